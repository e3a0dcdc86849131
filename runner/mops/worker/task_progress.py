"""Tracks what is left of one task, from the messages of its children to its result. Pure.

A child may die during any simulation or target. Its results that the worker has received count. The simulation or
target that it ran is retried or failed, and the rest of the task goes to the next child.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mops.child.buffers import Tables, read_segment
from mops.child.channel import FILES_LOST, Message, Step
from mops.project.bundle_cache import in_project
from mops.recovery import AfterStep, Death, StepDeaths, Verdict, after_death_in_step, verdict_of
from mops.study.column_families import Families
from mops.study.groups import Group, GroupPart
from mops.study.ids_and_seeds import short_id
from mops.study.output_schema import narrowed
from mops.study.ranges import Ranges
from mops.task import (
    Failure,
    Loss,
    PartContent,
    PartFile,
    ResultBuffer,
    RunningStep,
    Segment,
    TaskRequest,
    TaskResult,
    failures_bytes,
    missing_losses,
)
from mops.units import bytes_text
from mops.verdicts import Report


@dataclass
class _GroupProgress:
    """The state of one group of the task; ``wanted`` are the replicates that this task has to run."""

    group: Group | GroupPart
    wanted: tuple[int, ...]
    given: frozenset[int]  # replicates whose results came with the task
    good: set[int]
    failed: dict[int, Failure] = field(default_factory=dict)
    """By numbers of steps: those of targets follow those of replicates."""
    losses: dict[int, list[Loss]] = field(default_factory=dict)
    """By number of the step of the target."""
    done: bool = False
    alone_later: set[int] = field(default_factory=set)
    """Numbers of steps that another task runs alone on its worker."""

    @property
    def has_results(self) -> bool:
        """Whether the group has results, which would be lost with the task."""
        return bool(self.good > self.given or self.failed or self.losses)

    @property
    def failures(self) -> list[Failure]:
        """What has failed, in study order."""
        return [self.failed[number] for number in sorted(self.failed)]

    @property
    def lacks_replicate(self) -> bool:
        """Whether a replicate has failed, so that there are no losses."""
        return any(number < self.group.n_replicates for number in self.failed)

    @property
    def settled(self) -> set[int]:
        """Numbers of steps that this task does not run again."""
        return self.good | self.failed.keys() | self.losses.keys() | self.alone_later


class TaskProgress:
    """The groups of a task, with the results that children have handed over and the work that is left."""

    def __init__(self, request: TaskRequest, given: Sequence[ResultBuffer] = ()):
        self._request, self._given = request, given
        self._in_pieces = bool(request.replicates)
        self._groups: list[_GroupProgress] = []
        for group in request.groups:
            n, asked = group.n_replicates, request.replicates
            # Of all replicates if the task runs only targets, else of those that the request takes over.
            came = frozenset(range(n if asked == () else request.taken_over.get(group.index, 0)))
            self._groups.append(_GroupProgress(group, tuple(range(n)) if asked is None else asked, came, set(came)))
        self._buffers: list[ResultBuffer] = []
        self._files: list[PartFile] = []
        self._tracebacks: dict[str, str] = {}  # each of them once, however many failures refer to it
        self._deaths: defaultdict[Step, StepDeaths] = defaultdict(StepDeaths)
        self.reference: Families | None = request.reference
        self._known = self.reference
        self._asked: list[dict[str, Any]] = []
        """The groups that the present child was asked to run, in its order."""
        self._released = Ranges()
        self._has_died = False
        self.deaths_between = 0
        """How many children in a row have died while they ran nothing."""
        self.seconds = 0.0
        self.prints = ""
        self.peak_bytes = 0
        self.written: list[str] = []

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return not self._unfinished()

    @property
    def should_continue(self) -> bool:
        """Whether to continue in a fresh child: half a group would be lost, or the budget has room for the rest."""
        open_groups = () if self._in_pieces else [p for p in self._groups if not p.done and not p.alone_later]
        half_done = any(progress.has_results for progress in open_groups)
        has_started = any(progress.done or progress.has_results for progress in self._groups)
        in_budget = self.seconds < self._request.seconds and self._bytes_left > 0
        return not self.finished and (half_done or in_budget or not has_started)

    @property
    def _bytes_left(self) -> int:
        in_buffers = sum(int(part.buffer.size) for part in self._buffers)
        in_failures = failures_bytes([failure for progress in self._groups for failure in progress.failures])
        in_files = sum(file.row_bytes for file in self._files)
        return max(self._request.bytes - in_buffers - in_files - in_failures, 0)

    def _unfinished(self) -> list[tuple[int, _GroupProgress]]:
        """Return the groups that this task still runs, with their positions.

        If another task runs a step of a group alone, the rest of the group waits for that task, except in pieces.
        """
        groups = [(i, progress) for i, progress in enumerate(self._groups) if not progress.done]
        if self._in_pieces:
            return groups
        return [(i, p) for i, p in groups if not p.alone_later and p.group.index not in self._released]

    def release(self, step: Step) -> None:
        """Leave to other tasks what waits behind a long step: groups without results, or replicates of the group."""
        # The step runs, and for longer than the budget of its task, so that its child starts none of them. The runner
        # learns about it by running(). What comes before the step stays: the child may keep its results until the step
        # ends.
        if self._in_pieces:
            order = [replicate for group in self._asked for replicate, _ in group["simulations"]]
            waiting = order[order.index(step.number) + 1 :]
            (progress,) = self._groups
            progress.wanted = tuple(i for i in progress.wanted if i not in waiting)
        else:
            order = [group["position"] for group in self._asked]
            behind = [self._groups[i] for i in order[order.index(step.group_position) + 1 :]]
            # A group without simulations runs in any case, whatever the budget.
            waiting = [p.group.index for p in behind if not p.has_results and not p.settled.issuperset(p.wanted)]
        self._released |= Ranges.of(waiting)

    def message(self) -> Message:
        """Return the message that asks a child to run what is left."""
        self._asked = [self._group_message(i, progress) for i, progress in sorted(self._unfinished(), key=self._rank)]
        return {
            "kind": "run",
            "name": self._request.part_name,
            "groups": self._asked,
            "given": any(group["given"] or group["reused"] for group in self._asked),
            "reference": self._known,
            "seconds": max(self._request.seconds - self.seconds, 0.0),
            "bytes": self._bytes_left,
            "keep_folder": self._request.keep_folder,
            # Only the first child of a task encodes: its death loses its file, and further files would be small.
            "encode": self._request.encode and not (self._has_died or self._buffers or self._files),
        }

    def _rank(self, found: tuple[int, _GroupProgress]) -> int:
        """Return how early a group runs: first if it needs a fresh process, then if it has results to lose."""
        position, progress = found
        if any(step.group_position == position and deaths.size_in_first for step, deaths in self._deaths.items()):
            return 0
        if progress.has_results:
            return 1 if set(progress.wanted) - progress.settled else 2
        return 3

    def _group_message(self, position: int, progress: _GroupProgress) -> dict[str, Any]:
        group, settled = progress.group, progress.settled
        left = [[i, group.seeds[i]] for i in progress.wanted if i not in settled]
        mine = ((step.number, deaths) for step, deaths in self._deaths.items() if step.group_position == position)
        first = [number for number, deaths in mine if deaths.size_in_first]
        left.sort(key=lambda simulation: simulation[0] not in first)
        n_targets = 0 if self._in_pieces else len(self._request.context.targets)
        targets = [i for i in range(n_targets) if group.n_replicates + i not in settled]
        # With a failed replicate there will be no losses, so the good ones need not come back.
        has_targets = bool(targets) and not progress.lacks_replicate
        return {
            "position": position,
            "index": group.index,
            "params": group.params,
            "param_id": group.param_id,
            "n_replicates": group.n_replicates,
            "simulations": left,
            "reused": [i for i, _ in left if i in self._request.reused.get(group.index, ())],
            "given": sorted(progress.good) if has_targets else [],
            "targets": targets if has_targets else [],
            "in_pieces": self._in_pieces,
        }

    def given_tables(self) -> list[tuple[int, int, Tables]]:
        """Return the tables that ``given`` and ``reused`` of the message name, as (position, replicate, tables)."""
        wanted = {(group["position"], i) for group in self._asked for i in (*group["given"], *group["reused"])}
        found: dict[tuple[int, int], Tables] = {key: {} for key in wanted}
        positions = {progress.group.index: i for i, progress in enumerate(self._groups)}
        for part in (*self._given, *self._buffers):
            for segment in part.segments:
                keys = [(positions[group], replicate) for group, replicate in segment.simulations]
                if wanted.isdisjoint(keys):
                    continue
                table = read_segment(part.buffer, {"offset": segment.offset, "length": segment.length})
                start = 0
                for key, rows in zip(keys, segment.rows, strict=True):
                    if key in found:
                        found[key][segment.output] = table.slice(start, rows)
                    start += rows
        return [(position, replicate, tables) for (position, replicate), tables in sorted(found.items())]

    def take(self, message: Message, buffer: pa.Buffer | None, contents: Sequence[PartContent] = ()) -> None:
        """Take results that a child has handed over; ``contents`` are the files that came before the message."""
        bundle = self._request.context.bundle
        self.reference = self.reference or message["reference"]
        if self.reference is not None:
            # The next child of this task checks its results against the values of this one's.
            self._known = narrowed(self._known or self.reference, message["outputs"])
            for file in message["files"]:
                self._known = narrowed(self._known, {file["output"]: [file]})
        for position, replicate in message["simulations"]:
            self._groups[position].good.add(replicate)
        for failure in message["failures"]:
            position, target = failure["position"], failure["target"]
            n = self._groups[position].group.n_replicates
            step = Step(position, n + target if target is not None else int(failure["replicate"]))
            traceback = in_project(message["tracebacks"][failure["traceback"]], bundle)
            traceback = self._tracebacks.setdefault(traceback, traceback)
            verdict = Verdict(failure["reason"], in_project(failure["message"], bundle), traceback)
            n_before = self._deaths[step].tries if step in self._deaths else 0
            self._fail(step, verdict, n_before + 1 + self._request.alone)
        for position, target, losses in message["losses"]:
            group, name = self._groups[position].group, self._request.context.targets[target]
            rows = [Loss(group.index, name, key, loss, group.n_replicates) for key, loss in losses.items()]
            self._groups[position].losses[group.n_replicates + target] = rows
        for position in message["done"]:
            self._groups[position].done = True
        self._settle_pieces()
        if buffer is not None and message["outputs"]:
            segments = [
                Segment(
                    output,
                    segment["offset"],
                    segment["length"],
                    [(self._groups[position].group.index, replicate) for position, replicate in segment["simulations"]],
                    segment["rows"],
                    segment["families"],
                )
                for output, segments in message["outputs"].items()
                for segment in segments
            ]
            self._buffers.append(ResultBuffer(buffer, segments))
        assert {*message["encoded"]} <= {*message["done"]}
        groups = frozenset(self._groups[position].group.index for position in message["encoded"])
        files = zip(message["files"], contents, strict=True)
        self._files += [PartFile(**facts, groups=groups, content=content) for facts, content in files]

    def _settle_pieces(self) -> None:
        for progress in self._groups if self._in_pieces else ():
            progress.done = progress.settled.issuperset(progress.wanted)

    def record_death(self, death: Death, host: str, *, is_stopping: bool = False) -> Report | None:
        """Record how a child died and what follows: :mod:`mops.recovery` decides. Return the line of the log.

        None: mops has stopped the child. If the pool is stopping, no other child will start.
        """
        step, context = death.step, self._request.context
        self._has_died = True
        self.deaths_between = self.deaths_between + 1 if step is None else 0
        if death.by == "stop":
            return None
        if step is None and death.returncode == FILES_LOST:
            what = f"the files of a simulation were removed while it ran on {host} (TMPDIR or XDG_CACHE_HOME)"
            return Report("removed", what, "unpacking the project again; the simulation runs again")
        if step is None:
            what = f"a child process {death.how} on {host} while it ran nothing (death {self.deaths_between} in a row)"
            return Report("crashed", what, "the rest of the task runs in another process")
        verdict, before = verdict_of(death, context.timeout_s), self._deaths[step]
        then = after_death_in_step(
            death,
            verdict.reason,
            before,
            arrived=self._settled(step),
            retries=context.retries,
            alone=self._request.alone,
            is_stopping=is_stopping,
        )
        if then is AfterStep.ANOTHER_START:
            what = f"{self.describe(step)} did nothing for {death.seconds:.0f} s in a forked process on {host}"
            return Report("hung", what, then.value)
        before.was_stopped |= then is AfterStep.AGAIN
        if then is AfterStep.FRESH_PROCESS:
            before.size_in_first = death.size_before
        elif then in (AfterStep.ALONE_LATER, AfterStep.RETRY, AfterStep.FAILED):
            before.tries += 1
        n = before.tries + self._request.alone  # a task that runs alone was tried before, nearly always once
        if then is AfterStep.ALONE_LATER:
            self._groups[step.group_position].alone_later.add(step.number)
        elif then is AfterStep.FAILED:
            self._fail(step, verdict, n)
        self._settle_pieces()
        follows = then.value.format(
            left_over=bytes_text(death.size_before),
            next_try=n + 1,
            most_tries=context.retries + 1,
            tries=f"{n} {'try' if n == 1 else 'tries'}",
        )
        return Report(verdict.reason, f"{self.describe(step)} {verdict.happened} on {host}", follows)

    @property
    def needs_fresh_process(self) -> bool:
        """Whether the next process must have run nothing before."""
        return any(
            deaths.size_in_first
            and not self._settled(step)
            and step.number not in self._groups[step.group_position].alone_later
            for step, deaths in self._deaths.items()
        )

    @property
    def too_large_bytes(self) -> int:
        """The least size of a process in which a step exceeded its limit and then succeeded in a fresh one; 0: none."""
        sizes = []
        for step, deaths in self._deaths.items():
            progress = self._groups[step.group_position]
            is_target = step.number >= progress.group.n_replicates
            is_good = step.number in progress.good or (
                is_target and progress.done and step.number not in progress.failed
            )
            sizes += [deaths.size_in_first] if deaths.size_in_first and is_good else []
        return min(sizes, default=0)

    def _settled(self, step: Step) -> bool:
        progress = self._groups[step.group_position]
        return progress.done or step.number in progress.settled - progress.alone_later

    def _which(self, step: Step) -> tuple[_GroupProgress, int | None, str | None]:
        """Return the group of a step, and its replicate or the name of its target."""
        progress = self._groups[step.group_position]
        target = step.number - progress.group.n_replicates
        return (progress, step.number, None) if target < 0 else (progress, None, self._request.context.targets[target])

    def running(self, step: Step, worker: str, seconds: float) -> RunningStep:
        """Return what a step is that has run on a host for some seconds."""
        progress, replicate, target = self._which(step)
        what = (progress.group.index, progress.group.param_id, replicate, target)
        return RunningStep(*what, worker, seconds, self._request.number, self._released.intervals)

    def describe(self, step: Step) -> str:
        """Name a simulation or target for people: ``group 5 (761edf35ca16) replicate 2``."""
        progress, replicate, target = self._which(step)
        name = f"group {progress.group.index} ({short_id(progress.group.param_id)})"
        return f"{name} replicate {replicate}" if target is None else f"{name} target {target}"

    def _fail(self, step: Step, verdict: Verdict, tries: int) -> None:
        progress, replicate, target = self._which(step)
        memory = (verdict.peak_bytes, verdict.peak_at_least, verdict.limit_bytes)
        why = (verdict.reason, verdict.message, verdict.traceback, tries, verdict.signals, *memory)
        seed = None if replicate is None else progress.group.seeds[replicate]
        progress.failed[step.number] = Failure(progress.group.index, replicate, seed, target, *why)

    def result(self) -> TaskResult:
        """Return what is done."""
        done = [progress for progress in self._groups if progress.done or self._in_pieces]
        if self._in_pieces:
            settled = {i for progress in done for i in (*progress.good, *progress.failed)}
            alone_later = {step for progress in self._groups for step in progress.alone_later}
        else:
            settled = set()
            alone_later = {progress.group.index for progress in self._groups if progress.alone_later}
        failures: list[Failure] = []
        for progress in done:
            failures += progress.failures
            if progress.lacks_replicate and self._request.context.targets and not self._in_pieces:
                failures.append(missing_losses(progress.failures))
        return TaskResult(
            keys=self._request.keys,
            done=frozenset() if self._in_pieces else frozenset(progress.group.index for progress in done),
            replicates=frozenset(settled),
            seconds=self.seconds,
            reference=self.reference,
            buffers=self._buffers,
            files=self._files,
            failures=failures,
            losses=[loss for progress in done for rows in progress.losses.values() for loss in rows],
            prints=self.prints,
            postponed=frozenset(alone_later),
            peak_bytes=self.peak_bytes,
            written=self.written,
        )
