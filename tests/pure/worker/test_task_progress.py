"""What is left of a task after any message and any death, and what its result holds."""

import socket

import pyarrow as pa
import pytest

from mops.child.buffers import BufferWriter, map_part
from mops.child.channel import Channel, Step
from mops.study.groups import Group
from mops.task import JobContext, TaskRequest
from mops.worker.deaths import Verdict
from mops.worker.task_progress import TaskProgress

CRASHED = Verdict("crashed", "segmentation fault")
TIMEOUT = Verdict("timeout", "longer than 1 s")
KINDS = {"daily": {"n": "number"}, "notes": {"s": "string"}}
WRONG = {"reason": "error", "message": "ValueError: no", "traceback": "line 1"}


def make(seeds=((10, 11), (20,)), targets=("t:first", "t:second"), retries=1, **request):
    """Return the progress of a task whose groups have the indices 5, 6, …"""
    context = JobContext("job", "1", "bundle", "storage", "m", "baseline", targets, None, slots=1, retries=retries)
    groups = tuple(Group(5 + i, f"{i}" * 64, {"beta": i}, of_group) for i, of_group in enumerate(seeds))
    return TaskProgress(
        TaskRequest(context, 3, groups, **({"reference": None, "seconds": 60.0, "bytes": 1000} | request))
    )


def tables(place, replicate):
    n = place + replicate + 1
    return {"daily": pa.table({"n": list(range(n))}), "notes": pa.table({"s": [f"{place}/{replicate}"]})}


class Child:
    """Sends what a child process sends: with the same writer, through a real socket."""

    def __init__(self, work):
        self._work = work
        ours, theirs = socket.socketpair()
        self._ours, self._theirs = Channel(ours), Channel(theirs)
        self.out = BufferWriter(self._theirs, None, "test")
        self.out.reference = KINDS

    def good(self, place, *replicates):
        for replicate in replicates:
            self.out.finished(place, replicate, tables(place, replicate))

    def flush(self):
        self.out.flush()
        message, fd = self._ours.receive()
        mapped = map_part(fd)
        self._work.take(message, None if mapped is None else pa.py_buffer(mapped))

    def close(self):
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def child():
    made = []

    def child(work):
        made.append(Child(work))
        return made[-1]

    yield child
    for one in made:
        one.close()


def asked(work):
    """Return what the request asks of each group: (place, replicates, given, targets)."""
    request = work.request()
    return [
        (group["place"], [i for i, _ in group["sims"]], group["given"], group["targets"]) for group in request["groups"]
    ]


def done(work):
    """Mark every group as done, and return the result."""
    empty = {"sims": [], "failures": [], "losses": [], "outputs": {}, "reference": None}
    work.take({**empty, "done": list(range(len(work.request()["groups"])))}, None)
    assert work.finished
    return work.result("")


class TestRequest:
    def test_the_first_request_asks_for_everything(self):
        work = make(reference=KINDS)
        request = work.request()
        assert asked(work) == [(0, [0, 1], [], [0, 1]), (1, [0], [], [0, 1])]
        assert request["groups"][0]["params"] == {"beta": 0}
        assert request["groups"][0]["sims"] == [[0, 10], [1, 11]]
        assert request["groups"][0]["n_replicates"] == 2
        assert (request["kind"], request["reference"], request["given"]) == ("run", KINDS, False)
        assert (request["seconds"], request["bytes"]) == (60.0, 1000)

    def test_replicates_that_arrived_are_given_back_and_not_asked_for(self, child):
        work = make()
        one = child(work)
        one.good(0, 1)
        one.flush()
        assert asked(work) == [(0, [0], [1], [0, 1]), (1, [0], [], [0, 1])]
        assert work.request()["given"] is True
        assert work.request()["reference"] == KINDS

    def test_nothing_is_given_back_without_targets(self, child):
        work = make(targets=())
        one = child(work)
        one.good(0, 0)
        one.flush()
        assert asked(work)[0] == (0, [1], [], [])
        assert work.given() == []

    def test_nothing_is_given_back_for_a_group_with_a_failed_replicate(self, child):
        work = make()
        one = child(work)
        one.good(0, 0)
        one.flush()
        work.blame(Step(0, 1), TIMEOUT)
        assert asked(work)[0] == (0, [], [], []), "the group is not scored: the child need not keep its replicates"
        assert work.given() == []

    def test_a_done_group_is_not_asked_for(self, child):
        work = make()
        one = child(work)
        one.good(0, 0, 1)
        one.out.done(0)
        one.flush()
        assert asked(work) == [(1, [0], [], [0, 1])]
        assert (work.n_done, work.finished) == (1, False)

    def test_the_budget_shrinks_by_what_is_used_down_to_zero(self, child):
        work = make()
        work.seconds = 45.0
        assert work.request()["seconds"] == 15.0
        one = child(work)
        for place, replicate in ((0, 0), (0, 1), (1, 0)):
            one.good(place, replicate)
            one.flush()
        work.seconds = 61.0
        assert (work.request()["seconds"], work.request()["bytes"]) == (0.0, 0)

    def test_given_replicates_have_their_rows_from_several_buffers(self, child):
        work = make(seeds=((10, 11, 12), (20, 21)))
        one = child(work)
        one.good(0, 2, 0)
        one.flush()
        one.good(1, 1)
        one.flush()
        given = work.given()
        assert [(place, replicate) for place, replicate, _ in given] == [(0, 0), (0, 2), (1, 1)]
        assert all(found == tables(place, replicate) for place, replicate, found in given)


class TestBlame:
    def test_a_crash_is_retried_and_then_a_failure_with_its_attempts(self):
        work = make(retries=2)
        assert [work.blame(Step(0, 1), CRASHED) for _ in range(3)] == [True, True, False]
        assert asked(work)[0] == (0, [0], [], [])
        assert [row.attempts for row in done(work).failures if row.replicate == 1] == [3]

    def test_a_timeout_is_not_retried(self):
        work = make(retries=2)
        assert work.blame(Step(0, 1), TIMEOUT) is False
        failure = next(row for row in done(work).failures if row.replicate == 1)
        assert (failure.reason, failure.message, failure.attempts) == ("timeout", "longer than 1 s", 1)

    def test_a_crash_counts_only_for_the_simulation_that_crashed(self):
        work = make()
        assert work.blame(Step(0, 0), CRASHED)
        assert work.blame(Step(0, 1), CRASHED)
        assert work.blame(Step(1, 0), CRASHED)

    def test_an_ordinary_failure_after_a_crash_counts_both_attempts(self, child):
        work = make()
        work.blame(Step(1, 0), CRASHED)
        one = child(work)
        one.out.failed(1, 0, None, WRONG)
        one.out.done(1)
        one.flush()
        assert work.result("").failures[0].attempts == 2

    def test_a_simulation_that_arrived_is_never_blamed(self, child):
        work = make()
        one = child(work)
        one.good(0, 0)
        one.out.failed(0, 1, None, WRONG)
        one.flush()
        for _ in range(5):
            assert work.blame(Step(0, 0), TIMEOUT)
            assert work.blame(Step(0, 1), TIMEOUT)
        assert [(row.replicate, row.reason) for row in done(work).failures if row.replicate is not None] == [
            (1, "error")
        ]

    def test_a_target_of_a_done_group_is_never_blamed(self, child):
        work = make()
        one = child(work)
        one.good(1, 0)
        one.out.done(1)
        one.flush()
        assert work.blame(Step(1, 2), TIMEOUT)
        assert work.result("").failures == []

    def test_a_target_that_killed_its_child_is_not_asked_for_again(self, child):
        work = make()
        one = child(work)
        one.good(1, 0)
        one.flush()
        assert [work.blame(Step(1, 1), CRASHED) for _ in range(2)] == [True, False]
        assert asked(work) == [(1, [], [0], [1]), (0, [0, 1], [], [0, 1])]

    def test_groups_that_have_begun_go_first(self, child):
        """A task may end after one group, which would lose the results of another that is half done."""
        work = make()
        work.blame(Step(1, 0), TIMEOUT)
        assert [place for place, *_ in asked(work)] == [1, 0]
        assert work.retry_in_fresh_process(Step(0, 1), 1 << 20)
        assert [(place, sims) for place, sims, *_ in asked(work)] == [(0, [1, 0]), (1, [])]


class TestResult:
    def test_only_done_groups_are_in_the_result(self, child):
        work = make()
        one = child(work)
        one.good(0, 0)
        one.out.failed(0, 1, None, WRONG)
        one.good(1, 0)
        one.out.scored(1, 0, {"loss": 0.1})
        one.out.done(1)
        one.flush()
        result = work.result("forked")
        assert (result.keys, result.done, result.children) == (("sim-job-1-3",), frozenset({6}), "forked")
        assert result.failures == []
        assert [(row.group, row.target, row.name, row.loss, row.n_replicates) for row in result.losses] == [
            (6, "t:first", "loss", 0.1, 1)
        ]

    def test_segments_name_groups_by_their_index(self, child):
        work = make()
        one = child(work)
        one.good(0, 0, 1)
        one.good(1, 0)
        one.flush()
        (part,) = done(work).parts
        assert {segment.output: (segment.simulations, segment.rows) for segment in part.segments} == {
            "daily": ([(5, 0), (5, 1), (6, 0)], [1, 2, 2]),
            "notes": ([(5, 0), (5, 1), (6, 0)], [1, 1, 1]),
        }
        assert work.result("").reference == KINDS

    def test_the_first_reference_schema_stays(self, child):
        work = make(reference=KINDS)
        one = child(work)
        one.out.reference = {"other": {}}
        one.good(0, 0)
        one.flush()
        assert work.reference == KINDS

    def test_losses_of_several_targets_keep_every_digit(self, child):
        work = make()
        one = child(work)
        one.good(0, 0, 1)
        one.out.scored(0, 0, {"low": 0.1 + 0.2, "high": 1e300})
        one.out.scored(0, 1, {"loss": -0.0})
        one.out.done(0)
        one.flush()
        found = [(row.group, row.target, row.name, repr(row.loss), row.n_replicates) for row in work.result("").losses]
        assert found == [
            (5, "t:first", "low", "0.30000000000000004", 2),
            (5, "t:first", "high", "1e+300", 2),
            (5, "t:second", "loss", "-0.0", 2),
        ]

    def test_a_failed_replicate_adds_a_row_with_the_reason_for_the_missing_losses(self, child):
        work = make()
        one = child(work)
        one.good(0, 0)
        one.out.failed(0, 1, None, WRONG)
        one.out.done(0)
        one.flush()
        simulation, losses = work.result("").failures
        assert (simulation.group, simulation.replicate, simulation.seed, simulation.target) == (5, 1, 11, None)
        assert (simulation.reason, simulation.message, simulation.traceback) == ("error", "ValueError: no", "line 1")
        assert (losses.group, losses.replicate, losses.seed, losses.target) == (5, None, None, "*")
        assert (losses.reason, losses.attempts) == ("error", 1)
        assert losses.message == "no losses: replicate 1 (seed 11) failed (error)"

    def test_the_row_for_missing_losses_names_the_first_failure_and_counts_the_others(self):
        work = make(seeds=((10, 11, 12),))
        for replicate in (2, 0, 1):
            work.blame(Step(0, replicate), TIMEOUT)
        rows = done(work).failures
        assert [row.replicate for row in rows] == [0, 1, 2, None]
        assert rows[-1].message == "no losses: replicate 0 (seed 10) and 2 more failed (timeout)"

    def test_without_targets_there_is_no_row_for_missing_losses(self):
        work = make(targets=())
        work.blame(Step(0, 0), TIMEOUT)
        assert [row.target for row in done(work).failures] == [None]

    def test_a_failed_target_does_not_affect_simulations_and_other_targets(self, child):
        work = make()
        one = child(work)
        one.good(0, 0, 1)
        one.out.failed(0, None, 0, WRONG)
        one.out.scored(0, 1, {"loss": 1.0})
        one.out.done(0)
        one.flush()
        result = work.result("")
        assert [(row.replicate, row.seed, row.target, row.reason) for row in result.failures] == [
            (None, None, "t:first", "error")
        ]
        assert [row.target for row in result.losses] == ["t:second"]
        assert result.parts[0].segments[0].simulations == [(5, 0), (5, 1)]


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (Step(0, 1), "replicate 1 (seed 11) of group 5 (param_id 000000000000)"),
        (Step(0, 3), "target t:second of group 5 (param_id 000000000000)"),
        (Step(1, 1), "target t:first of group 6 (param_id 111111111111)"),
    ],
)
def test_a_step_is_described_by_group_replicate_and_seed_or_by_target(step, text):
    assert make().describe(step) == text


class TestShouldContinue:
    """A new child process starts only for results that would be lost, or if time and room are left."""

    def test_not_for_a_group_that_waits_to_run_alone(self):
        """The task that runs the group alone continues what is begun. A new child process has nothing to do here."""
        work = make(seconds=0.0, retries=1)
        assert work.run_alone_later(Step(0, 1))
        work.blame(Step(0, 0), TIMEOUT)  # the group has begun
        assert not work.should_continue

    def test_for_a_half_done_group_even_after_the_time_is_over(self):
        work = make(seconds=0.0)
        work.blame(Step(0, 0), TIMEOUT)
        assert work.should_continue

    def test_not_for_a_group_in_pieces_after_the_time_is_over(self):
        work = make(seeds=((10, 11),), seconds=0.0, replicates=(0, 1))
        work.blame(Step(0, 0), TIMEOUT)
        assert not work.should_continue


@pytest.mark.parametrize(
    ("reason", "asked", "n_deaths", "says"),
    [
        ("crashed", {"retries": 2}, 0, "not counted"),
        ("crashed", {"retries": 2}, 1, "time 1 of 3"),
        ("oom", {"retries": 1}, 2, "time 2 of 2"),
        ("crashed", {"retries": 0, "alone": True}, 1, "time 2 of 2"),
        ("timeout", {"retries": 2}, 1, "time 1 of 1"),
        ("oom", {"retries": 1, "alone": True}, 1, "time 2 of 2"),
        ("oom", {"retries": 3, "alone": True}, 0, "time 1 of 4"),
    ],
)
def test_how_often_a_simulation_was_tried_and_the_limit(reason, asked, n_deaths, says):
    work = make(seeds=((10,),), **asked)
    for _ in range(n_deaths):
        work.blame(Step(0, 0), CRASHED)
    assert work.how_often(Step(0, 0), reason) == says
