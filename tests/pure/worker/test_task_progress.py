"""The rest of a task after any message and any death, and the contents of its result."""

import socket

import pyarrow as pa
import pytest

from mops.child.buffers import BufferWriter, map_buffer
from mops.child.channel import FILES_LOST, Channel, Step
from mops.recovery import Death
from mops.study.groups import Group
from mops.task import JobContext, ResultBuffer, RunningStep, Segment, TaskRequest
from mops.worker.task_progress import TaskProgress

MIB = 1 << 20
SIMULATION = Step(0, 0)
KINDS = {"daily": {"n": "number"}, "notes": {"s": "string"}}
WRONG = {"reason": "error", "message": "ValueError: no", "traceback": "line 1"}


def make(seeds=((10, 11), (20,)), targets=("t:first", "t:second"), retries=1, timeout_s=5.0, given=(), **request):
    """Return the progress of a task whose groups have the indices 5, 6, …"""
    job = {"slots": 1, "retries": retries, "timeout_s": timeout_s}
    context = JobContext("job", "1", "bundle", "storage", "m", "baseline", targets, None, **job)
    groups = tuple(Group(5 + i, f"{i}" * 64, {"beta": i}, of_group) for i, of_group in enumerate(seeds))
    return TaskProgress(
        TaskRequest(context, 3, groups, **({"reference": None, "seconds": 60.0, "bytes": 1000} | request)), given
    )


def death(by="itself", step=SIMULATION, **fields):
    fields = {"returncode": -11, "seconds": 2.0, "tail": "", "peak_bytes": 300 * MIB, "limit_bytes": 200 * MIB} | fields
    return Death(step=step, by=by, **fields)


def is_retried(progress, step, by="itself", **fields):
    """Record a death during a step; return whether the step runs again, or counts already."""
    return "recorded as failed" not in str(progress.record_death(death(by, step, **fields), "vm"))


def tables(position, replicate):
    n = position + replicate + 1
    return {"daily": pa.table({"n": list(range(n))}), "notes": pa.table({"s": [f"{position}/{replicate}"]})}


@pytest.fixture
def sends():
    """Return what lets the child process of a task hand over results: by its own writer, through a real socket."""
    ends = {}

    def sends(progress, *good, failed=(), scored=(), done=(), reference=KINDS):
        if progress not in ends:
            ours, theirs = map(Channel, socket.socketpair())
            ends[progress] = ours, theirs, BufferWriter(theirs, None, "test")
        ours, _, out = ends[progress]
        out.reference = reference
        for position, replicate in good:
            out.finished(position, replicate, 1, tables(position, replicate))
        for position, replicate, target in failed:
            out.failed(position, replicate, target, WRONG)
        for position, target, losses in scored:
            out.scored(position, target, losses)
        for position in done:
            out.done(position)
        out.flush()
        message, fd = ours.receive()
        mapped = map_buffer(fd)
        progress.take(message, None if mapped is None else pa.py_buffer(mapped))

    yield sends
    for ours, theirs, _ in ends.values():
        ours.close()
        theirs.close()


def asked(progress):
    """Return what the request asks of each group: (position, replicates, given, targets)."""
    request = progress.message()
    return [
        (group["position"], [i for i, _ in group["simulations"]], group["given"], group["targets"])
        for group in request["groups"]
    ]


def done(progress):
    """Mark every group as done, and return the result."""
    empty = {
        "simulations": [],
        "failures": [],
        "losses": [],
        "outputs": {},
        "files": [],
        "encoded": [],
        "reference": None,
    }
    progress.take({**empty, "done": list(range(len(progress.message()["groups"])))}, None)
    assert progress.finished
    return progress.result()


class TestEncoding:
    def test_only_the_first_child_of_a_task_encodes(self, sends):
        progress = make(encode=True)
        assert progress.message()["encode"]
        sends(progress, (0, 1))
        assert not progress.message()["encode"]

    def test_after_any_death_rows_are_handed_over(self):
        """The death of a child that ran nothing, or had just handed over its step, left no trace."""
        for step in (None, Step(0, 0)):
            progress = make(encode=True)
            progress.record_death(death(step), "host")
            assert not progress.message()["encode"]


class TestRequest:
    def test_the_first_request_asks_for_everything(self):
        progress = make(reference=KINDS)
        request = progress.message()
        assert asked(progress) == [(0, [0, 1], [], [0, 1]), (1, [0], [], [0, 1])]
        assert request["groups"][0]["params"] == {"beta": 0}
        assert request["groups"][0]["simulations"] == [[0, 10], [1, 11]]
        assert request["groups"][0]["n_replicates"] == 2
        assert (request["kind"], request["reference"], request["given"]) == ("run", KINDS, False)
        assert (request["seconds"], request["bytes"]) == (60.0, 1000)

    def test_replicates_that_arrived_are_given_back_and_not_asked_for(self, sends):
        progress = make()
        sends(progress, (0, 1))
        assert asked(progress) == [(0, [0], [1], [0, 1]), (1, [0], [], [0, 1])]
        assert progress.message()["given"] is True
        assert progress.message()["reference"] == KINDS

    def test_nothing_is_given_back_without_targets(self, sends):
        progress = make(targets=())
        sends(progress, (0, 0))
        assert asked(progress)[0] == (0, [1], [], [])
        assert progress.given_tables() == []

    def test_nothing_is_given_back_for_a_group_with_a_failed_replicate(self, sends):
        progress = make()
        sends(progress, (0, 0))
        is_retried(progress, Step(0, 1), "timeout")
        assert asked(progress)[0] == (0, [], [], []), "the group is not scored: the child need not keep its replicates"
        assert progress.given_tables() == []

    def test_a_done_group_is_not_asked_for(self, sends):
        progress = make()
        sends(progress, (0, 0), (0, 1), done=[0])
        assert asked(progress) == [(1, [0], [], [0, 1])]
        assert (len(progress.result().done), progress.finished) == (1, False)

    def test_the_budget_shrinks_by_what_is_used_down_to_zero(self, sends):
        progress = make()
        progress.seconds = 45.0
        assert progress.message()["seconds"] == 15.0
        for position, replicate in ((0, 0), (0, 1), (1, 0)):
            sends(progress, (position, replicate))
        progress.seconds = 61.0
        assert (progress.message()["seconds"], progress.message()["bytes"]) == (0.0, 0)

    def test_given_replicates_have_their_rows_from_several_buffers(self, sends):
        progress = make(seeds=((10, 11, 12), (20, 21)))
        sends(progress, (0, 2), (0, 0))
        sends(progress, (1, 1))
        progress.message()
        given = progress.given_tables()
        assert [(position, replicate) for position, replicate, _ in given] == [(0, 0), (0, 2), (1, 1)]
        assert all(found == tables(position, replicate) for position, replicate, found in given)


class TestBlame:
    def test_a_crash_is_retried_and_then_a_failure_with_its_attempts(self):
        progress = make(retries=2)
        assert [is_retried(progress, Step(0, 1)) for _ in range(3)] == [True, True, False]
        assert asked(progress)[0] == (0, [0], [], [])
        assert [row.attempts for row in done(progress).failures if row.replicate == 1] == [3]

    def test_a_crash_counts_only_for_the_simulation_that_crashed(self):
        progress = make()
        assert is_retried(progress, Step(0, 0))
        assert is_retried(progress, Step(0, 1))
        assert is_retried(progress, Step(1, 0))

    def test_an_ordinary_failure_after_a_crash_counts_both_attempts(self, sends):
        progress = make()
        is_retried(progress, Step(1, 0))
        sends(progress, failed=[(1, 0, None)], done=[1])
        assert progress.result().failures[0].attempts == 2

    def test_a_simulation_that_arrived_is_never_blamed(self, sends):
        progress = make()
        sends(progress, (0, 0), failed=[(0, 1, None)])
        for _ in range(5):
            assert is_retried(progress, Step(0, 0), "timeout")
            assert is_retried(progress, Step(0, 1), "timeout")
        assert [(row.replicate, row.reason) for row in done(progress).failures if row.replicate is not None] == [
            (1, "error")
        ]

    def test_a_target_of_a_done_group_is_never_blamed(self, sends):
        progress = make()
        sends(progress, (1, 0), done=[1])
        assert is_retried(progress, Step(1, 2), "timeout")
        assert progress.result().failures == []

    def test_a_target_that_arrived_before_its_group_was_done_is_neither_blamed_nor_run_again(self, sends):
        """Regression: a child whose files were removed handed over its first target, which ran and counted twice."""
        progress = make()
        sends(progress, (0, 0), (0, 1), failed=[(0, None, 1)], scored=[(0, 0, {"loss": 1.0})])
        assert is_retried(progress, Step(0, 2), "timeout")
        assert is_retried(progress, Step(0, 3), "timeout")
        assert asked(progress)[0] == (0, [], [], [])
        sends(progress, done=[0])
        result = progress.result()
        assert [(row.target, row.loss) for row in result.losses] == [("t:first", 1.0)]
        assert [(row.target, row.reason) for row in result.failures] == [("t:second", "error")]

    def test_a_target_that_killed_its_child_is_not_asked_for_again(self, sends):
        progress = make()
        sends(progress, (1, 0))
        assert [is_retried(progress, Step(1, 1)) for _ in range(2)] == [True, False]
        assert asked(progress) == [(1, [], [0], [1]), (0, [0, 1], [], [0, 1])]

    def test_groups_that_have_begun_go_first(self):
        """A task may end after one group, which would lose the results of another that is half done."""
        progress = make()
        is_retried(progress, Step(1, 0), "timeout")
        assert [position for position, *_ in asked(progress)] == [1, 0]
        assert is_retried(progress, Step(0, 1), "memory", size_before=1 << 20)
        assert [(position, sims) for position, sims, *_ in asked(progress)] == [(0, [1, 0]), (1, [])]


class TestResult:
    def test_only_done_groups_are_in_the_result(self, sends):
        progress = make()
        sends(progress, (0, 0), (1, 0), failed=[(0, 1, None)], scored=[(1, 0, {"loss": 0.1})], done=[1])
        result = progress.result()
        assert (result.keys, result.done) == (("sim-job-1-3",), frozenset({6}))
        assert result.failures == []
        assert [(row.group, row.target, row.name, row.loss, row.n_replicates) for row in result.losses] == [
            (6, "t:first", "loss", 0.1, 1)
        ]

    def test_segments_name_groups_by_their_index(self, sends):
        progress = make()
        sends(progress, (0, 0), (0, 1), (1, 0))
        (part,) = done(progress).buffers
        assert {segment.output: (segment.simulations, segment.rows) for segment in part.segments} == {
            "daily": ([(5, 0), (5, 1), (6, 0)], [1, 2, 2]),
            "notes": ([(5, 0), (5, 1), (6, 0)], [1, 1, 1]),
        }
        assert progress.result().reference == KINDS

    def test_the_first_reference_schema_stays(self, sends):
        progress = make(reference=KINDS)
        sends(progress, (0, 0), reference={"other": {}})
        assert progress.reference == KINDS

    def test_losses_of_several_targets_keep_every_digit(self, sends):
        progress = make()
        sends(
            progress,
            (0, 0),
            (0, 1),
            scored=[(0, 0, {"low": 0.1 + 0.2, "high": 1e300}), (0, 1, {"loss": -0.0})],
            done=[0],
        )
        found = [
            (row.group, row.target, row.name, repr(row.loss), row.n_replicates) for row in progress.result().losses
        ]
        assert found == [
            (5, "t:first", "low", "0.30000000000000004", 2),
            (5, "t:first", "high", "1e+300", 2),
            (5, "t:second", "loss", "-0.0", 2),
        ]

    def test_a_failed_replicate_adds_a_row_with_the_reason_for_the_missing_losses(self, sends):
        progress = make()
        sends(progress, (0, 0), failed=[(0, 1, None)], done=[0])
        simulation, losses = progress.result().failures
        assert (simulation.group, simulation.replicate, simulation.seed, simulation.target) == (5, 1, 11, None)
        assert (simulation.reason, simulation.message, simulation.traceback) == ("error", "ValueError: no", "line 1")
        assert (losses.group, losses.replicate, losses.seed, losses.target) == (5, None, None, "*")
        assert (losses.reason, losses.attempts) == ("error", 1)
        assert losses.message == "no losses: replicate 1 (seed 11) failed (error)"

    def test_the_row_for_missing_losses_names_the_first_failure_and_counts_the_others(self):
        progress = make(seeds=((10, 11, 12),))
        for replicate in (2, 0, 1):
            is_retried(progress, Step(0, replicate), "timeout")
        rows = done(progress).failures
        assert [row.replicate for row in rows] == [0, 1, 2, None]
        assert rows[-1].message == "no losses: replicate 0 (seed 10) and 2 more failed (timeout)"

    def test_without_targets_there_is_no_row_for_missing_losses(self):
        progress = make(targets=())
        is_retried(progress, Step(0, 0), "timeout")
        assert [row.target for row in done(progress).failures] == [None]

    def test_a_failed_target_does_not_affect_simulations_and_other_targets(self, sends):
        progress = make()
        sends(progress, (0, 0), (0, 1), failed=[(0, None, 0)], scored=[(0, 1, {"loss": 1.0})], done=[0])
        result = progress.result()
        assert [(row.replicate, row.seed, row.target, row.reason) for row in result.failures] == [
            (None, None, "t:first", "error")
        ]
        assert [row.target for row in result.losses] == ["t:second"]
        assert result.buffers[0].segments[0].simulations == [(5, 0), (5, 1)]


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (Step(0, 1), "group 5 (000000000000) replicate 1"),
        (Step(0, 3), "group 5 (000000000000) target t:second"),
        (Step(1, 1), "group 6 (111111111111) target t:first"),
    ],
)
def test_a_step_is_described_by_group_replicate_and_seed_or_by_target(step, text):
    assert make().describe(step) == text


def test_a_running_step_has_its_group_and_its_replicate_or_target():
    first, second = "0" * 64, "1" * 64
    assert make().running(Step(0, 1), "vm", 3.0) == RunningStep(5, first, 1, None, "vm", 3.0, 3)
    assert make().running(Step(1, 1), "vm", 3.0) == RunningStep(6, second, None, "t:first", "vm", 3.0, 3)


class TestShouldContinue:
    """A new child process starts only for results that would be lost, or if time and room are left."""

    def test_not_for_a_group_that_waits_to_run_alone(self):
        """The task that runs the group alone continues what is begun. A new child process has nothing to do here."""
        progress = make(seconds=0.0, retries=1)
        assert is_retried(progress, Step(0, 1), "memory")
        is_retried(progress, Step(0, 0), "timeout")  # the group has begun
        assert not progress.should_continue

    def test_for_a_half_done_group_even_after_the_time_is_over(self):
        progress = make(seconds=0.0)
        is_retried(progress, Step(0, 0), "timeout")
        assert progress.should_continue

    def test_not_for_a_group_in_pieces_after_the_time_is_over(self):
        progress = make(seeds=((10, 11),), seconds=0.0, replicates=(0, 1))
        is_retried(progress, Step(0, 0), "timeout")
        assert not progress.should_continue


class TestRecordDeath:
    """The log says what happened to which simulation, where, and what follows."""

    def test_a_crash_is_retried_and_then_recorded(self):
        progress = make(retries=1)
        first, second = (str(progress.record_death(death(), "vm")) for _ in range(2))
        crash = "crashed: group 5 (000000000000) replicate 0 ended with SIGSEGV (Segmentation fault) after 2.0 s on vm"
        assert first == f"{crash}; retrying in a new process (try 2 of 2)"
        assert second == f"{crash}; recorded as failed after 2 tries"

    def test_a_timeout_is_recorded_and_not_retried(self):
        progress = make(retries=2, timeout_s=5.0)
        report = progress.record_death(death("timeout", Step(0, 1)), "vm")
        assert str(report).endswith("; recorded as failed after 1 try")
        assert report.kind == "timeout"
        failure = next(row for row in done(progress).failures if row.replicate == 1)
        assert (failure.reason, failure.attempts) == ("timeout", 1)

    def test_too_much_memory_is_retried_in_a_fresh_process_then_alone(self):
        progress = make(retries=1)
        over = "oom: group 5 (000000000000) replicate 0 used 300 MiB of its 200 MiB limit on vm"
        fresh = "retrying in a fresh process (151 MiB were left over from earlier simulations)"
        assert str(progress.record_death(death("memory", size_before=151 * MIB), "vm")) == f"{over}; {fresh}"
        assert progress.needs_fresh_process
        alone = "retrying at the end of the job, alone on its worker"
        assert str(progress.record_death(death("memory"), "vm")) == f"{over}; {alone}"
        assert not progress.needs_fresh_process
        assert progress.result().postponed == {5}

    def test_a_task_that_runs_alone_was_tried_before(self, sends):
        progress = make(alone=True)
        assert str(progress.record_death(death("memory"), "vm")).endswith("recorded as failed after 2 tries")
        sends(progress, failed=[(0, 1, None)], done=[0])
        assert [row.attempts for row in progress.result().failures if row.replicate is not None] == [2, 2]

    def test_a_step_that_was_handed_over_is_not_retried(self, sends):
        progress = make()
        sends(progress, (0, 0))
        assert str(progress.record_death(death(), "vm")).endswith("it had finished before, so its result counts")
        assert progress.result().failures == []

    def test_a_hung_start_blames_no_simulation(self):
        progress = make(retries=0)
        report = progress.record_death(death("start", seconds=60.0), "vm")
        assert str(report).startswith(
            "hung: group 5 (000000000000) replicate 0 did nothing for 60 s in a forked process on vm; retrying"
        )
        assert progress.result().failures == []

    def test_deaths_while_nothing_runs_are_counted_in_a_row(self):
        progress = make()
        assert "(death 1 in a row)" in str(progress.record_death(death(step=None), "vm"))
        assert "(death 2 in a row)" in str(progress.record_death(death(step=None), "vm"))
        progress.record_death(death(), "vm")
        assert progress.deaths_between == 0

    def test_the_first_stop_signal_is_no_try_and_the_second_is_one(self, subtests: pytest.Subtests) -> None:
        """A signal to every process of the job may reach a child before it reaches the runner."""
        for returncode in [-2, -15, -1, None]:
            with subtests.test(str(returncode)):
                progress = make(retries=0)
                first, second = (str(progress.record_death(death(returncode=returncode), "vm")) for _ in range(2))
                assert first.endswith("; retrying in a new process, because such a signal usually comes from outside")
                assert second.endswith("; recorded as failed after 1 try")

    def test_a_signal_while_the_job_stops_is_no_verdict(self, subtests: pytest.Subtests) -> None:
        """Regression: a simulation that systemd or scancel ended was recorded as failed, and resume did not run it."""
        for returncode in [-2, -15, -9, -11, None]:
            with subtests.test(str(returncode)):
                progress = make(retries=0)
                for _ in range(2):
                    report = progress.record_death(death(returncode=returncode), "vm", is_stopping=True)
                    assert str(report).endswith("; it counts as not run, because the job is stopping")
                assert not progress.finished
                assert progress.result().failures == []

    def test_an_exit_while_the_job_stops_is_the_models_own(self):
        progress = make(retries=0)
        report = progress.record_death(death(returncode=7), "vm", is_stopping=True)
        assert str(report).endswith("; recorded as failed after 1 try")

    def test_a_child_whose_files_were_removed_costs_no_try(self):
        progress = make()
        said = str(progress.record_death(death(step=None, returncode=FILES_LOST), "vm"))
        assert said.startswith("removed: the files of a simulation were removed while it ran on vm")
        assert progress.deaths_between == 1
        assert asked(progress) == asked(make())

    def test_a_child_that_mops_stopped_is_not_reported(self):
        progress = make(retries=0)
        assert progress.record_death(death("stop", returncode=-9), "vm") is None
        assert progress.result().failures == []


def stored(n: int) -> ResultBuffer:
    """Return the first replicates of group 5 as the runner reads them from the storage."""
    table = pa.concat_tables([tables(0, replicate)["daily"] for replicate in range(n)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    buffer, rows = sink.getvalue(), [replicate + 1 for replicate in range(n)]
    return ResultBuffer(buffer, [Segment("daily", 0, buffer.size, [(5, i) for i in range(n)], rows)])


def test_stored_replicates_do_not_run_and_come_with_the_targets() -> None:
    progress = make(((10, 11, 12), (20,)), taken_over={5: 2}, given=[stored(2)])
    first, second = progress.message()["groups"]
    assert (first["simulations"], first["given"], first["targets"]) == ([[2, 12]], [0, 1], [0, 1])
    assert (second["simulations"], second["given"]) == ([[0, 20]], [])
    found = {(position, replicate): given["daily"].num_rows for position, replicate, given in progress.given_tables()}
    assert found == {(0, 0): 1, (0, 1): 2}
    assert not progress._groups[0].has_results, "stored results are not lost with the task"
    assert progress.result().done == frozenset()


def test_after_a_death_stored_replicates_come_again_with_the_new_one(sends) -> None:
    progress = make(((10, 11, 12),), taken_over={5: 2}, given=[stored(2)])
    sends(progress, (0, 2))
    assert progress._groups[0].has_results
    (group,) = progress.message()["groups"]
    assert (group["simulations"], group["given"]) == ([], [0, 1, 2])
    assert [(key[0], key[1]) for key in progress.given_tables()] == [(0, 0), (0, 1), (0, 2)]


def test_a_group_whose_simulations_are_all_stored_runs_its_targets_only() -> None:
    progress = make(((10, 11),), taken_over={5: 2}, given=[stored(2)])
    (group,) = progress.message()["groups"]
    assert (group["simulations"], group["targets"]) == ([], [0, 1])
    assert not progress.finished


class TestRelease:
    def released(self, progress, step):
        progress.release(step)
        return progress.running(step, "vm", 20.0).released

    def test_groups_that_wait_behind_a_long_step_are_left_to_other_tasks(self, sends):
        progress = make(seeds=((10,), (20,), (30,), (40,)))
        assert len(asked(progress)) == 4
        sends(progress, (0, 0), done=[0])
        assert self.released(progress, Step(1, 0)) == ((7, 9),)
        assert [position for position, *_ in asked(progress)] == [1], "another child of the task does not run them"
        sends(progress, (1, 0), done=[1])
        assert progress.finished
        assert progress.result().done == {5, 6}

    def test_a_task_keeps_a_group_that_has_results_and_one_that_has_only_targets_left(self, sends):
        progress = make(seeds=((10,), (20, 21), (30,)), taken_over={7: 1})
        sends(progress, (1, 0))
        is_retried(progress, Step(0, 0), "memory", size_before=100)
        assert [position for position, *_ in asked(progress)] == [0, 1, 2]
        assert self.released(progress, Step(0, 0)) == ()
        assert len(asked(progress)) == 3

    def test_a_task_keeps_what_its_child_has_finished_and_not_handed_over(self):
        """Regression: such groups ran twice, and in pieces the result of the long simulation was dropped."""
        whole = make(seeds=((10,), (20,), (30,), (40,)))
        assert len(asked(whole)) == 4
        assert self.released(whole, Step(2, 0)) == ((8, 9),)
        assert self.released(whole, Step(2, 0)) == ((8, 9),), "at the next look"
        pieces = make(seeds=((10, 11, 12, 13, 14),), replicates=(1, 2, 3, 4), targets=())
        assert asked(pieces) == [(0, [1, 2, 3, 4], [], [])]
        assert self.released(pieces, Step(0, 3)) == ((4, 5),)
        assert self.released(pieces, Step(0, 3)) == ((4, 5),)
        assert asked(pieces) == [(0, [1, 2, 3], [], [])]

    def test_what_waits_is_what_the_child_runs_later(self):
        """A step that needs a fresh process runs first, whatever its number."""
        progress = make(seeds=((10,), (20,), (30,)))
        is_retried(progress, Step(2, 0), "memory", size_before=100)
        assert [position for position, *_ in asked(progress)] == [2, 0, 1]
        assert self.released(progress, Step(2, 0)) == ((5, 7),)

    def test_replicates_that_wait_behind_a_long_one_are_left_to_other_tasks(self, sends):
        progress = make(seeds=((10, 11, 12, 13, 14),), replicates=(1, 2, 3, 4), targets=())
        assert len(asked(progress)) == 1
        sends(progress, (0, 1))
        assert self.released(progress, Step(0, 2)) == ((3, 5),)
        assert asked(progress) == [(0, [2], [], [])]
        sends(progress, (0, 2))
        assert progress.finished
        assert progress.result().replicates == {1, 2}
