"""The real JobLog in thousands of interleavings with faults: no invariant of docs/internals/storage.md breaks.

A model checker has searched the rules, these tests search the code. Mutants of the code show that the search finds
errors.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import simulated_compactions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated import CLEANER, World, at_random, canceller, cleaner, reader, resume, runner, simulate
from simulated_compactions import check_compactions, compactor, world_of

from mops.errors import StorageUnavailable
from mops.storage import compaction
from mops.storage.joblog.log import JobLog, read_whole
from mops.storage.joblog.records import Cancel, Claim, Commit, Compaction, RunRequest
from mops.storage.paths import numbers_of
from mops.study.ranges import Ranges
from soak import SOAKING, repeats, spread

AUTO = {"A": runner("auto"), "B": runner("auto")}
POD = runner("person", RunRequest(0, "the submit's"))
CASTS = {
    "two restarted pods": AUTO,
    "a resume meets a restart": {"A": runner("auto"), "B": runner("person"), "R": reader},
    "a cancel": {**AUTO, "X": canceller},
    "everyone": {**AUTO, "C": runner("person"), "X": canceller, "R": reader},
    "two people": {"A": runner("person"), "B": runner("person"), "X": canceller},
    "two resumes": {"A": runner("auto"), "B": resume, "C": resume, "X": canceller},
    "pods of a submit, and a resume": {"P": POD, "Q": POD, "B": resume, "X": canceller},
    "a cleaner": {"A": runner("auto"), "B": resume, CLEANER: cleaner},
    "a cleaner, and a restarted pod": {"P": POD, "Q": POD, CLEANER: cleaner},
}
RUNS = repeats(150)
RUNS_TO_FIND_A_MUTANT = 13 * 150


@pytest.mark.parametrize("cast", CASTS)
def test_no_invariant_breaks(cast):
    for seed in range(RUNS):
        world = World((2, 4)[seed // 12 % 2], faults=seed % 4, kills=seed % 3)
        simulate(world, CASTS[cast], at_random(seed))
        assert not world.broken, (seed, world.broken, world.trace)


@settings(max_examples=100 if SOAKING else 30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_invariant_breaks_in_schedules_of_hypothesis(data):
    world = World(3, faults=3, kills=2)
    simulate(world, CASTS["everyone"], lambda labels: data.draw(st.integers(0, len(labels) - 1)))
    assert not world.broken, (world.broken, world.trace)


def every_choice(limit):
    """Yield all schedules that differ from the plainest one in at most ``limit`` choices, depth first."""
    pending = [()]
    while pending:
        detours = dict(pending.pop())
        widths = []

        def choose(labels, detours=detours, widths=widths):
            widths.append(len(labels))
            return detours.get(len(widths) - 1, 0)

        yield choose
        if len(detours) < limit:
            first = max(detours, default=-1) + 1
            for at in range(first, len(widths)):
                pending += [(*detours.items(), (at, option)) for option in range(1, widths[at])]


@pytest.mark.parametrize("cast", spread(["two restarted pods", "a cancel"], 1))
def test_no_invariant_breaks_with_any_two_changes_to_the_plainest_schedule(cast):
    n_runs = 0
    for choose in every_choice(2):
        world = World(2, faults=2, kills=0)
        simulate(world, CASTS[cast], choose)
        assert not world.broken, (world.broken, world.trace)
        n_runs += 1
    assert n_runs > 500


class Deaf(JobLog):
    """Continues after the claim of another attempt, and takes that for its own."""

    def _fence(self):
        return self._view.owner

    def _meet(self, records):
        self._view = self._view.extended(records)


class Trusting(JobLog):
    """Treats a missing answer as a success."""

    def _settle(self, record):
        try:
            return super()._settle(record)
        except StorageUnavailable:
            self._open = None
            return record


class Greedy(JobLog):
    """Treats an existing record as its own."""

    def _settle(self, record):
        super()._settle(record)
        return record


class Forgetful(JobLog):
    """Ignores commits that it reads while it claims."""

    def _meet(self, records):
        kept = [replace(record, ranges=Ranges()) if isinstance(record, Commit) else record for record in records]
        super()._meet(kept)


class BlindCancel(JobLog):
    """Cancels complete jobs."""

    def cancel(self, who):
        self.read()
        return self._append(lambda head: Cancel(who=who, **head)) is not None


class Hasty(JobLog):
    """Claims a cancelled job."""

    def _decide_claim(self, by, asked, head):
        return Claim(by=by, **{**head, "n": self.view.attempt + 1})


class ByAttempt(JobLog):
    """Treats a request as void only after a newer attempt."""

    def _decide_claim(self, by, asked, head):
        marks = [mark for mark in self.view.marks if mark.k <= asked.k] if asked else []
        since = self.view.attempt - sum(isinstance(mark, Claim) for mark in marks)
        claim = super()._decide_claim("auto" if since else by, None, head)
        return replace(claim, asked=asked)


def assert_found(cast, new_world, invariant="", check=None):
    """Run interleavings of new worlds, made from the number of the run, until one breaks the invariant, or any."""
    for seed in range(RUNS_TO_FIND_A_MUTANT):
        world = simulate(new_world(seed), cast, at_random(seed), check)
        if any(broken.startswith(invariant) for broken in world.broken):
            return
    pytest.fail("not found")


@pytest.mark.parametrize("mutant", [Deaf, Trusting, Greedy, Forgetful, BlindCancel, Hasty])
def test_the_search_finds_a_mutant_of_the_log(mutant):
    assert_found(CASTS["everyone"], lambda _: World(3, faults=3, kills=0, log_type=mutant))


def test_the_search_finds_requests_that_undo_later_records():
    assert_found(CASTS["two resumes"], lambda _: World(3, faults=0, kills=0, log_type=ByAttempt), "I8")


def test_the_search_finds_a_cleaner_that_removes_parts_of_another_attempt(monkeypatch):
    """Regression: cleaning read the log after its claim to find ended attempts."""
    monkeypatch.setattr("mops.jobs.removal.last_attempt_over", lambda view: view.attempt)
    assert_found(CASTS["a cleaner"], lambda _: World(3, faults=0, kills=0), "I3")


# Compactions of a complete job

TWO = {"compactor A": compactor, "compactor B": compactor}
COMPACTIONS = {
    "two compactions": TWO,
    "a compaction and a reader": {"compactor A": compactor, "R": simulated_compactions.reader},
    "a cleaner": {**TWO, "X": simulated_compactions.cleaner},
    "everyone": {**TWO, "R": simulated_compactions.reader, "X": simulated_compactions.cleaner},
}


@pytest.mark.parametrize("cast", COMPACTIONS)
@pytest.mark.parametrize("groups", [2, 5])
def test_no_invariant_of_compactions_breaks(cast, groups):
    for seed in range(RUNS):
        world = world_of(groups, faults=seed % 4, kills=seed % 3)
        simulate(world, COMPACTIONS[cast], at_random(seed), check_compactions)
        assert not world.broken, (seed, world.broken, world.trace)


def early(files, record, run, *rest):
    """Remove the old parts before the record of the compaction."""
    merge = _stored(files, record, run, *rest)
    files.remove([*merge.removed])
    return merge


_stored = compaction._stored
NOTHING = Compaction(time=0.0, host="", merges=())
MUTANTS = {
    "removes parts of a compaction that may count": (
        "mops.jobs.removal.numbers_of",
        lambda path: numbers_of(path) or (0, 0),
    ),
    "removes parts without looking at the compaction": (
        "mops.jobs.removal.read_whole",
        lambda files, paths: replace(read_whole(files, paths), compaction=NOTHING),
    ),
    "does not read again": ("simulated_compactions.read_current", lambda sources, _, use: use(sources)),
    "removes old parts before its record": ("mops.storage.compaction._stored", early),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_search_finds_a_mutant_of_compactions(mutant, monkeypatch):
    monkeypatch.setattr(*MUTANTS[mutant])
    new_world = lambda seed: world_of(5, faults=0, kills=seed % 2)  # noqa: E731
    assert_found(COMPACTIONS["everyone"], new_world, check=check_compactions)
