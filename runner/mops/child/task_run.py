"""Runs the simulations and targets of one request, one after the other.

Runs in children: the standard library, numpy, pyarrow and the user's code only.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np

from mops.child.blocks import Outputs, table_of
from mops.child.buffers import BufferWriter, GroupName, Tables
from mops.child.channel import Channel, Message, ProgressPage, end_for_lost_files
from mops.child.load import UserCode
from mops.child.outputs import Results
from mops.child.texts import failure_of, failure_of_target, flush_prints, name_step
from mops.parquet.schemas import storage_schema
from mops.study.casts import converted_table
from mops.study.column_families import join_families
from mops.study.column_types import families_in
from mops.study.ids_and_seeds import target_seed
from mops.system.clock import monotonic

T = TypeVar("T")

# A child keeps finished results for at most this long, or until they have so many bytes.
HANDOVER_SECONDS = 0.5
_HANDOVER_BYTES = 4 << 20

PART_BYTES = 16 << 20  # the least results of a task that it encodes itself as Parquet; smaller files would be many
_CHANNEL_CLOSED = 76  # EX_PROTOCOL of sysexits.h


def seed_generators(seed: int) -> None:
    """Seed the generators of the standard library, of numpy, and of torch if the model has imported it."""
    random.seed(seed)
    # numpy's legacy generator takes 32 bits, or an array of them: a list takes 3 us more.
    np.random.seed(seed if seed < 2**32 else np.array((seed & 0xFFFFFFFF, seed >> 32)))  # noqa: NPY002
    if (seed_torch := getattr(sys.modules.get("torch"), "manual_seed", None)) is not None:
        seed_torch(seed)  # it would start with the same seed in each process


def simulate(code: UserCode, params: dict[str, Any], seed: int) -> object:
    """Call the model with seeded generators, in a new context. The caller restores the rest of the process."""
    seed_generators(seed)
    return code.state.call(code.model, params, seed)


def score(
    code: UserCode, target: int, params: dict[str, Any], param_id: str, replicates: list[Tables]
) -> dict[str, float]:
    """Call a target in the same way, with copies of what it may change."""
    seed_generators(target_seed(param_id, code.target_names[target]))
    return code.state.call(code.targets[target], dict(params), [dict(tables) for tables in replicates])


class TaskRun:
    """Runs one task: its groups in turn, until the budget is used or a stop is requested."""

    def __init__(
        self,
        code: UserCode,
        request: Message,  # of the kind `run`
        given: dict[tuple[int, int], Tables],  # stored, or of earlier processes; by group position and replicate
        channel: Channel,
        page: ProgressPage,
    ):
        self._code, self._request, self._given = code, request, given
        self._channel, self._page = channel, page
        self._results = Results(request["reference"])
        self._writer = BufferWriter(channel, code.outputs, request["name"])
        self._encodes: bool | None = None if request["encode"] else False  # None: not decided yet
        self._names = {each["position"]: GroupName(each["index"], each["param_id"]) for each in request["groups"]}
        self._n_simulations = sum(len(each["simulations"]) for each in request["groups"])
        self._n_run = 0
        self._began = self._group_began = self._handed_over_at = monotonic()

    def run(self) -> None:
        """Run the task and hand over its results."""
        replacement = self._code.replacement
        replacement.replace_at(self._request["replacement_size"])
        for group in self._request["groups"]:
            if group["simulations"] and (replacement.reason or self._must_end(self._writer.groups_done)):
                break
            self._run_group(group)
        self._blame_no_step()
        flush_prints()
        if self._encodes and self._writer.holds_whole_groups:
            self._encode()
        self._writer.flush()
        written = self._code.folder.written() if self._request["keep_folder"] else []
        self._renew_folder()
        self._writer.end(monotonic() - self._began, replacement.reason, replacement.code, written)

    def _must_end(self, n_finished: int) -> bool:
        if self._page.stop_asked:
            return True
        spent_s = monotonic() - self._began
        is_used_up = spent_s >= self._request["seconds"] or self._writer.bytes_total >= self._request["bytes"]
        return is_used_up and n_finished > 0  # at least one: without progress, the task would be sent endlessly

    def _run_group(self, group: dict[str, Any]) -> None:
        position, handed_over_at = group["position"], self._handed_over_at
        self._group_began = monotonic()
        replicates: dict[int, Outputs] = {replicate: self._given[position, replicate] for replicate in group["given"]}
        given_bytes = sum(output.nbytes for outputs in replicates.values() for output in outputs.values())
        bytes_before, has_targets, stored = self._writer.bytes_total, bool(group["targets"]), set(group["reused"])
        for n_before, (replicate, seed) in enumerate(group["simulations"]):
            must_end = self._must_end(n_before) if group["in_pieces"] else self._page.stop_asked
            if self._code.replacement.reason or must_end:
                return
            reused = self._given[position, replicate] if replicate in stored else None
            outputs = self._simulate(group, replicate, seed, reused)
            if outputs is None:  # without this replicate the group has no losses
                has_targets = False
                replicates.clear()
            elif has_targets:
                replicates[replicate] = outputs
            outputs = None  # or they would stay in memory while the next simulation runs
            kept_bytes = given_bytes + self._writer.bytes_total - bytes_before
            self._code.replacement.finished(kept_bytes if has_targets else self._writer.bytes_open)
            self._hand_over_in_time(group_done=False)
        if group["in_pieces"]:
            return  # other tasks run the rest of the group
        if has_targets and len(replicates) == group["n_replicates"]:
            self._score(group, [replicates[i] for i in range(group["n_replicates"])])
            if self._code.replacement.is_limited:
                return  # another process runs the rest
        replicates.clear()  # or the block of the last rows could not be used again
        self._writer.done(position)
        if self._handed_over_at == handed_over_at:
            self._hand_over_in_time(group_done=True)
        else:  # the worker has buffers that count only with their group: a stop in the next simulation would lose them
            self._hand_over()

    def _simulate(self, group: dict[str, Any], replicate: int, seed: int, reused: Tables | None) -> Outputs | None:
        """Run a simulation, or take what another job has stored of it; return None if it fails."""
        self._n_run += 1

        def read() -> Outputs:
            result = simulate(self._code, dict(group["params"]), seed) if reused is None else reused
            self._page.returned()
            return self._results.read(result, seed)

        outputs = self._run_step(group, replicate, read, failure_of)
        if outputs is not None:
            self._writer.reference = self._results.first
            self._writer.finished(group["position"], replicate, seed, outputs)
        return outputs

    def _score(self, group: dict[str, Any], replicates: list[Outputs]) -> None:
        params = group["params"]
        ordered = [{name: table_of(output) for name, output in outputs.items()} for outputs in replicates]
        if group["given"] or group["reused"]:
            ordered = with_one_schema(ordered)
        describe = partial(failure_of_target, params=params, replicates=ordered)
        for target in group["targets"]:
            if self._code.replacement.is_limited:
                return
            run = partial(score, self._code, target, params, group["param_id"], ordered)
            losses = self._run_step(group, group["n_replicates"] + target, run, describe)
            if losses is not None:
                self._writer.scored(group["position"], target, losses)

    def _run_step(
        self,
        group: dict[str, Any],
        number: int,  # as in mops.child.channel.Step
        run: Callable[[], T],
        describe: Callable[[BaseException], dict[str, str]],
    ) -> T | None:
        """Run a simulation or a target, and undo what it changes in the process; return None if it fails."""
        must_enter, position = self._renew_folder(), group["position"]
        n_replicates = group["n_replicates"]
        replicate, target = (number, None) if number < n_replicates else (None, number - n_replicates)
        self._page.begin(position, number, self._code.replacement.size_bytes)
        name_step(*self._names[position], number if target is None else self._code.target_names[target])
        try:
            if must_enter:
                os.chdir(self._code.folder.path)
            return run()
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything, SystemExit too
            self._end_if_files_are_lost()
            self._writer.failed(position, replicate, target, self._with_hint(describe(error), error))
            return None
        finally:
            self._page.finished()
            signal.alarm(0)  # a timer that a step left would end a later one, which would be blamed for it
            if not self._channel.intact:
                # While the step still counts as running, so that no other is blamed for the silence.
                with contextlib.suppress(OSError):
                    os.write(2, b"the model closed the socket to its worker, a descriptor that it did not open\n")
                os._exit(_CHANNEL_CLOSED)
            if lowered := self._code.state.restore():
                self._code.replacement.lowered(lowered)

    def _with_hint(self, failure: dict[str, str], error: BaseException) -> dict[str, str]:
        with contextlib.suppress(BaseException):  # the model may have raised an error with any file
            if isinstance(error, PermissionError):
                failure["message"] += self._code.hint(error.filename)
        return failure

    def _renew_folder(self) -> bool:
        """Remove the files that the previous step wrote; tell whether the process has left the working folder."""
        folder = self._code.folder
        if folder.is_entered:
            return False
        if folder.changed and not (self._request["keep_folder"] and folder.made):
            self._page.idle()  # no step is to blame for a failure here
            folder.renew()
        return True

    def _end_if_files_are_lost(self) -> None:
        """End this process if another program has removed files of the step that failed, which then runs again."""
        if self._code.files_are_lost:
            self._page.idle()  # no step is to blame
            self._hand_over()
            flush_prints()
            end_for_lost_files()

    def _blame_no_step(self) -> None:
        """Blame no step if this process dies now, unless the last one has lowered limits that the hand-over needs."""
        if not self._code.replacement.is_limited:
            self._page.idle()

    def _hand_over_in_time(self, *, group_done: bool) -> None:
        """Encode or hand over the open results, if they are old or many."""
        now, bytes_open = monotonic(), self._writer.bytes_open
        if now - self._handed_over_at < HANDOVER_SECONDS and bytes_open < _HANDOVER_BYTES:
            return
        if self._encodes is None:  # if the other simulations are like those so far
            by_simulations = self._n_simulations / max(self._n_run, 1)
            by_time = self._request["seconds"] / max(now - self._began, 1e-9)
            expected_bytes = min(self._writer.kept_bytes * min(by_simulations, by_time), self._request["bytes"])
            self._encodes = expected_bytes >= PART_BYTES
        # Rows are encoded once their group is done.
        can_wait = group_done or (bytes_open < PART_BYTES and now - self._group_began < HANDOVER_SECONDS)
        if not self._encodes or not can_wait:
            self._hand_over()
        elif group_done and bytes_open >= _HANDOVER_BYTES:
            self._encode()

    def _encode(self) -> None:
        self._blame_no_step()  # if the disk is full; the next child hands over the rows
        folder = self._request["part_folder"]
        self._results.handed_over(self._writer.encode(self._names, self._results.families_of, folder))
        self._handed_over_at = monotonic()

    def _hand_over(self) -> None:
        if self._encodes:
            self._blame_no_step()  # as in _encode
            self._encodes = False  # the file ends here: at most one of a task is too small
        self._results.handed_over(self._writer.flush())
        self._handed_over_at = monotonic()


def with_one_schema(replicates: list[Tables]) -> list[Tables]:
    """Give each output one schema in all replicates: stored rows may have other types than new ones."""
    found = [dict(tables) for tables in replicates]
    for output in dict.fromkeys(output for tables in replicates for output in tables):
        schemas = [tables[output].schema for tables in replicates if output in tables]
        if any(schema != schemas[0] for schema in schemas):
            families = join_families(*({output: families_in(tables[output])} for tables in found if output in tables))
            schema = storage_schema(schemas, families[output])
            for tables in (tables for tables in found if output in tables):
                tables[output] = converted_table(tables[output], schema)
    return found
