"""What is left of one task, between a child's messages and the result. Pure.

A child may die at any unit; what it had handed over stays, the unit is blamed, the rest goes to the next child.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mops.child.buffers import Tables, read_segment
from mops.child.channel import Message, Step
from mops.study.column_families import Families
from mops.study.groups import Group, GroupPart
from mops.study.output_schema import narrowed
from mops.task import Failure, Loss, ResultBuffer, Segment, TaskRequest, TaskResult, failures_bytes, missing_losses
from mops.verdicts import Report
from mops.worker.deaths import Verdict

RETRIED = frozenset({"crashed", "oom"})


@dataclass
class _GroupProgress:
    """How far one group of the task is; ``wanted`` are the replicates that this task settles."""

    group: Group | GroupPart
    wanted: tuple[int, ...]
    good: set[int] = field(default_factory=set)
    failed: dict[int, Failure] = field(default_factory=dict)
    failed_targets: dict[int, Failure] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    done: bool = False
    postponed: set[int] = field(default_factory=set)  # steps that are to be run alone, in another task

    @property
    def begun(self) -> bool:
        """Whether something is known of it that would be lost with the task."""
        return bool(self.good or self.failed or self.failed_targets)

    @property
    def failures(self) -> list[Failure]:
        """What has failed, in study order."""
        rows = [self.failed[i] for i in sorted(self.failed)]
        return rows + [self.failed_targets[i] for i in sorted(self.failed_targets)]

    @property
    def settled(self) -> set[int]:
        """Replicates of which this task does no more."""
        return self.good | self.failed.keys() | self.postponed


class TaskProgress:
    """The groups of a task, what is handed over of them, and what is left.

    Parameters
    ----------
    given
        Parts of earlier tasks, for one that runs a group's targets alone: they hold all its replicates.
    """

    def __init__(self, request: TaskRequest, given: Sequence[ResultBuffer] = ()):
        self._order, self._given = request, given
        self._in_pieces = bool(request.replicates)
        self._groups = [_GroupProgress(group, _wanted(request, group)) for group in request.groups]
        if request.replicates == ():
            self._groups[0].good = set(range(request.groups[0].n_replicates))
        self._parts: list[ResultBuffer] = []
        self._tracebacks: dict[str, str] = {}  # each of them once, however many failures refer to it
        self._deaths: Counter[Step] = Counter()
        self.reference: Families | None = request.reference
        self._known = self.reference
        self.seconds = 0.0
        self._excused: dict[Step, int] = {}
        self.prints = ""
        self.peak_bytes = 0
        self.reports: list[Report] = []
        self.written: list[str] = []

    @property
    def n_done(self) -> int:
        """Groups of which nothing is left to do."""
        return sum(progress.done for progress in self._groups)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return all(progress.done or self._put_off(progress) for progress in self._groups)

    def _put_off(self, progress: _GroupProgress) -> bool:
        """Tell whether this task does no more for a group: in pieces, only the replicate itself is put off."""
        return bool(progress.postponed) and not self._in_pieces

    @property
    def should_continue(self) -> bool:
        """Whether to go on in a fresh child: what is half done would be lost, and the rest has time and room left."""
        partial_groups = not self._in_pieces and any(p.begun and not p.done and not p.postponed for p in self._groups)
        begun = any(progress.done or progress.begun for progress in self._groups)
        within = self.seconds < self._order.seconds and self._bytes_left > 0
        return not self.finished and (partial_groups or within or not begun)

    @property
    def _bytes_left(self) -> int:
        in_parts = sum(int(part.buffer.size) for part in self._parts)
        in_failures = failures_bytes([failure for progress in self._groups for failure in progress.failures])
        return max(self._order.bytes - in_parts - in_failures, 0)

    def request(self) -> Message:
        """Return the message that asks a child for what is left."""
        left = [self._request(place, progress) for place, progress in sorted(self._unfinished(), key=self._rank)]
        return {
            "kind": "run",
            "name": self._order.part_name,
            "groups": left,
            "given": any(group["given"] for group in left),
            "reference": self._known,
            "seconds": max(self._order.seconds - self.seconds, 0.0),
            "bytes": self._bytes_left,
            "keep_folder": self._order.keep_folder,
        }

    def _rank(self, found: tuple[int, _GroupProgress]) -> int:
        """Say how early a group is to be run: what is known of one that is begun would be lost with the task."""
        place, progress = found
        if any(unit.place == place for unit in self._excused):
            return 0
        if progress.begun:
            return 1 if set(progress.wanted) - progress.settled else 2
        return 3

    def _unfinished(self) -> list[tuple[int, _GroupProgress]]:
        return [(place, p) for place, p in enumerate(self._groups) if not p.done and not self._put_off(p)]

    def _request(self, place: int, progress: _GroupProgress) -> dict[str, Any]:
        group = progress.group
        settled = progress.settled
        left = [[i, group.seeds[i]] for i in progress.wanted if i not in settled]
        left.sort(key=lambda sim: Step(place, sim[0]) not in self._excused)
        n_targets = 0 if self._in_pieces else len(self._order.context.targets)
        targets = [i for i in range(n_targets) if i not in progress.failed_targets]
        # With a failed replicate there will be no losses, so the good ones need not come back.
        wants_targets = bool(targets) and not progress.failed
        return {
            "place": place,
            "params": group.params,
            "param_id": group.param_id,
            "n_replicates": group.n_replicates,
            "sims": left,
            "given": sorted(progress.good) if wants_targets else [],
            "targets": targets if wants_targets else [],
            "in_pieces": self._in_pieces,
        }

    def given(self) -> list[tuple[int, int, Tables]]:
        """Return the tables that the request's ``given`` names, as (place, replicate, tables)."""
        wanted = {(place, i) for place, progress in self._unfinished() for i in self._request(place, progress)["given"]}
        found: dict[tuple[int, int], Tables] = {key: {} for key in wanted}
        for part in (*self._given, *self._parts):
            for segment in part.segments:
                if wanted.intersection(self._places(segment)):
                    self._cut(part.buffer, segment, found)
        return [(place, replicate, tables) for (place, replicate), tables in sorted(found.items())]

    def _places(self, segment: Segment) -> list[tuple[int, int]]:
        places = {progress.group.index: place for place, progress in enumerate(self._groups)}
        return [(places[group], replicate) for group, replicate in segment.simulations]

    def _cut(self, buffer: pa.Buffer, segment: Segment, found: dict[tuple[int, int], Tables]) -> None:
        source = {"offset": segment.offset, "length": segment.length}
        table, start = read_segment(buffer, source), 0
        for key, rows in zip(self._places(segment), segment.rows, strict=True):
            if key in found:
                found[key][segment.output] = table.slice(start, rows)
            start += rows

    def take(self, message: Message, buffer: pa.Buffer | None) -> None:
        """Take a part that a child handed over."""
        self.reference = self.reference or message["reference"]
        if self.reference is not None:
            # The next child of this task holds its results against the values of this one's.
            self._known = narrowed(self._known or self.reference, message["outputs"])
        for place, replicate in message["sims"]:
            self._groups[place].good.add(replicate)
        for failure in message["failures"]:
            unit = self._unit(failure["place"], failure["replicate"], failure["target"])
            traceback = message["tracebacks"][failure["traceback"]]
            traceback = self._tracebacks.setdefault(traceback, traceback)
            self._fail(unit, Verdict(failure["reason"], failure["message"], traceback))
        for place, target, losses in message["losses"]:
            self._score(place, target, losses)
        for place in message["done"]:
            self._groups[place].done = True
        self._settle_pieces()
        if buffer is not None:
            self._parts.append(ResultBuffer(buffer, self._segments(message["outputs"])))

    def _settle_pieces(self) -> None:
        for progress in self._groups if self._in_pieces else ():
            progress.done = progress.settled.issuperset(progress.wanted)

    def _segments(self, outputs: dict[str, list[dict[str, Any]]]) -> list[Segment]:
        return [
            Segment(
                output,
                segment["offset"],
                segment["length"],
                [(self._groups[place].group.index, replicate) for place, replicate in segment["sims"]],
                segment["rows"],
                segment["families"],
            )
            for output, segments in outputs.items()
            for segment in segments
        ]

    def _score(self, place: int, target: int, losses: dict[str, float]) -> None:
        progress, name = self._groups[place], self._order.context.targets[target]
        n = progress.group.n_replicates
        progress.losses.extend(Loss(progress.group.index, name, key, loss, n) for key, loss in losses.items())

    def blame(self, unit: Step, verdict: Verdict) -> bool:
        """Note that a child ended because of this unit; return whether the unit is to be tried again."""
        if self._settled(unit):  # it had been handed over: the child ended on its way to the next
            return True
        self._deaths[unit] += 1
        if verdict.reason in RETRIED and not self._order.alone and self._deaths[unit] <= self._order.context.retries:
            return True
        self._fail(unit, verdict, died=True)
        self._settle_pieces()
        return False

    def retry_in_fresh_process(self, unit: Step, size_before: int) -> bool:
        """Let a unit that took too much memory run first in a fresh process, once; return whether it may.

        Parameters
        ----------
        size_before
            How large its process was from simulations before; 0: it was fresh, and nothing else is to blame.
        """
        if not size_before or unit in self._excused or self._settled(unit):
            return False
        self._excused[unit] = size_before
        return True

    @property
    def needs_fresh_process(self) -> bool:
        """Whether the next process is to be one that has run nothing."""
        return any(not self._settled(unit) and not self._postponed_unit(unit) for unit in self._excused)

    def worn_at(self) -> int:
        """Return the least size of a process at which a unit took too much that did not in a fresh one; 0: none."""
        good = (size for unit, size in self._excused.items() if self._good(unit))
        return min(good, default=0)

    def _good(self, unit: Step) -> bool:
        progress = self._groups[unit.place]
        target = unit.step - progress.group.n_replicates
        return progress.done and target not in progress.failed_targets if target >= 0 else unit.step in progress.good

    def _postponed_unit(self, unit: Step) -> bool:
        return unit.step in self._groups[unit.place].postponed

    def run_alone_later(self, unit: Step) -> bool:
        """Leave a unit that took too much memory to a task of its own; return False where that was this one."""
        if self._order.alone or not self._order.context.retries or self._settled(unit):
            return False
        self._deaths[unit] += 1
        self._groups[unit.place].postponed.add(unit.step)
        self._settle_pieces()
        return True

    def _settled(self, unit: Step) -> bool:
        progress = self._groups[unit.place]
        return progress.done or unit.step in progress.good or unit.step in progress.failed

    def how_often(self, unit: Step, reason: str) -> str:
        """Say how often a unit has been tried, and may be where it ends for this reason."""
        n = self._deaths[unit] + self._order.alone
        if not n:
            return "not counted"
        return f"time {n} of {max(self._order.context.retries + 1, n) if reason in RETRIED else n}"

    def describe(self, unit: Step) -> str:
        """Name a unit for people: ``replicate 2 (seed 17) of group 5 (param_id 761edf35)``."""
        group = self._groups[unit.place].group
        if unit.step < group.n_replicates:
            what = f"replicate {unit.step} (seed {group.seeds[unit.step]})"
        else:
            what = f"target {self._order.context.targets[unit.step - group.n_replicates]}"
        return f"{what} of group {group.index} (param_id {group.param_id[:12]})"

    def _unit(self, place: int, replicate: int | None, target: int | None) -> Step:
        n = self._groups[place].group.n_replicates
        return Step(place, n + target if target is not None else int(replicate or 0))

    def _fail(self, unit: Step, verdict: Verdict, *, died: bool = False) -> None:
        progress = self._groups[unit.place]
        n, seeds, group = progress.group.n_replicates, progress.group.seeds, progress.group.index
        attempts = self._deaths[unit] + (not died) + self._order.alone
        memory = (verdict.peak_bytes, verdict.peak_at_least, verdict.limit_bytes)
        why = (verdict.reason, verdict.message, verdict.traceback, attempts, verdict.signals, *memory)
        if unit.step < n:
            progress.failed[unit.step] = Failure(group, unit.step, seeds[unit.step], None, *why)
        else:
            target = unit.step - n
            progress.failed_targets[target] = Failure(group, None, None, self._order.context.targets[target], *why)

    def result(self, children: str) -> TaskResult:
        """Return what is done.

        Parameters
        ----------
        children
            How they were started.
        """
        done = [progress for progress in self._groups if progress.done or self._in_pieces]
        settled = {i for progress in done for i in (*progress.good, *progress.failed)}
        return TaskResult(
            keys=self._order.keys,
            done=frozenset() if self._in_pieces else frozenset(progress.group.index for progress in done),
            replicates=frozenset(settled) if self._in_pieces else frozenset(),
            seconds=self.seconds,
            reference=self.reference,
            parts=self._parts,
            failures=[failure for progress in done for failure in self._failures(progress)],
            losses=[loss for progress in done for loss in progress.losses],
            prints=self.prints,
            postponed=self._postponed(),
            peak_bytes=self.peak_bytes,
            reports=self.reports,
            written=self.written,
            children=children,
        )

    def _postponed(self) -> frozenset[int]:
        if self._in_pieces:
            return frozenset(step for progress in self._groups for step in progress.postponed)
        return frozenset(progress.group.index for progress in self._groups if progress.postponed)

    def _failures(self, progress: _GroupProgress) -> list[Failure]:
        rows = progress.failures
        if progress.failed and self._order.context.targets and not self._in_pieces:
            rows.append(missing_losses(rows))
        return rows


def _wanted(request: TaskRequest, group: Group | GroupPart) -> tuple[int, ...]:
    return request.replicates if request.replicates is not None else tuple(range(group.n_replicates))
