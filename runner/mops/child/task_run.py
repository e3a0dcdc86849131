"""Runs the simulations and targets of one request, one after the other."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa

from mops.child.buffers import BufferWriter
from mops.child.channel import Channel, Message, ProgressPage
from mops.child.load import UserCode
from mops.child.outputs import as_tables
from mops.child.tracebacks import failure_of
from mops.study.column_types import families_of
from mops.study.ids_and_seeds import target_seed
from mops.study.output_schema import OutputSchema

HANDOVER_SECONDS = 0.5

HANDOVER_BYTES = 4 << 20

_CHANNEL_CLOSED = 76  # EX_PROTOCOL of sysexits.h


def flush_prints() -> None:
    """Write out what user code has printed."""
    for stream in (sys.stdout, sys.stderr):  # the model may have put anything there
        with contextlib.suppress(Exception):
            stream.flush()


def _seed_generators(seed: int) -> None:
    random.seed(seed)
    # numpy's legacy generator takes 32 bits, or a list of them.
    np.random.seed(seed if seed < 2**32 else [seed & 0xFFFFFFFF, seed >> 32])  # noqa: NPY002


def _take_back_timer() -> None:
    """Stop a timer that user code started and left: it would end a later simulation, which would be blamed for it."""
    signal.alarm(0)


class TaskRun:
    """One task: its groups in turn, handed over as they finish, until the budget is used or a stop is asked for."""

    def __init__(
        self,
        bundle: UserCode,
        request: Message,
        given: dict[tuple[int, int], dict[str, pa.Table]],
        channel: Channel,
        page: ProgressPage,
    ):
        self._bundle, self._request, self._given = bundle, request, given
        self._channel, self._page = channel, page
        self._reference = OutputSchema(request["reference"]) if request["reference"] else None
        self._out = BufferWriter(channel, bundle.outputs, request["name"])
        self._began = self._handed_over = time.monotonic()

    def run(self) -> None:
        """Run what is asked for, and send what it gives."""
        self._bundle.wear.leave_at(self._request["leave_at"])
        for group in self._request["groups"]:
            if group["sims"] and (self._bundle.wear.worn or self._enough(self._out.groups_done)):
                break
            self._group(group)
        self._page.idle()
        flush_prints()
        self._out.flush()
        wear = self._bundle.wear
        written = self._bundle.folder.written() if self._request["keep_folder"] else []
        self._renew_folder()
        self._out.end(time.monotonic() - self._began, wear.worn, wear.reason, written)

    def _enough(self, n_finished: int) -> bool:
        if self._page.stop_asked:
            return True
        spent = time.monotonic() - self._began
        used_up = spent >= self._request["seconds"] or self._out.bytes_total >= self._request["bytes"]
        return used_up and n_finished > 0  # one at least, or a task would come back for ever

    def _group(self, group: dict[str, Any]) -> None:
        place, params, handed_over = group["place"], group["params"], self._handed_over
        replicates: dict[int, dict[str, pa.Table]] = {
            replicate: self._given[place, replicate] for replicate in group["given"]
        }
        kept_bytes = sum(t.nbytes for tables in replicates.values() for t in tables.values())
        bytes_before, scored = self._out.bytes_total, bool(group["targets"])
        for n_before, (replicate, seed) in enumerate(group["sims"]):
            if self._bundle.wear.worn or (self._enough(n_before) if group["in_pieces"] else self._page.stop_asked):
                return
            tables = self._simulate(place, replicate, dict(params), seed)
            if tables is None:  # without one of them there will be no losses
                scored = False
                replicates.clear()
            elif scored:
                replicates[replicate] = tables
            tables = None  # or the last one would be held beside the next
            held_bytes = kept_bytes + self._out.bytes_total - bytes_before if scored else self._out.bytes_open
            self._bundle.wear.finished(held_bytes)
            self._hand_over_in_time()
        if group["in_pieces"]:
            return  # what is settled counts, and the rest of the group is other tasks' work
        if scored and len(replicates) == group["n_replicates"]:
            ordered = [replicates[i] for i in range(group["n_replicates"])]
            for target in group["targets"]:
                self._score(group, target, ordered)
            _take_back_timer()
        self._out.done(place)
        if self._handed_over == handed_over:
            self._hand_over_in_time()
        else:  # parts went ahead that count with their group only: a stop in the next simulation would lose them
            self._hand_over()

    def _simulate(self, place: int, replicate: int, params: dict[str, Any], seed: int) -> dict[str, pa.Table] | None:
        self._renew_folder()
        self._page.begin(place, replicate, self._bundle.wear.size_bytes)
        try:
            self._bundle.folder.enter()  # the last one may have gone elsewhere
            _seed_generators(seed)
            tables = self._checked(as_tables(self._bundle.model(params, seed), seed))
        except BaseException as error:  # noqa: BLE001 - the model may raise anything, SystemExit too
            self._out.failed(place, replicate, None, self._failure(error))
            return None
        finally:
            _take_back_timer()
            self._leave_unit()
        self._out.finished(place, replicate, tables)
        return tables

    def _failure(self, error: BaseException) -> dict[str, str]:
        failure = failure_of(error)
        if isinstance(error, PermissionError):
            failure["message"] += self._bundle.hint(error.filename)
        return failure

    def _renew_folder(self) -> None:
        """Have the working folder as it was made, whatever the last unit wrote."""
        folder = self._bundle.folder
        if (self._request["keep_folder"] and folder.made) or not folder.changed:
            return
        self._page.idle()  # what fails here is no unit's fault
        folder.renew()

    def _leave_unit(self) -> None:
        if not self._channel.intact:
            # While this unit still counts as running, so that no other is blamed for the silence.
            with contextlib.suppress(OSError):
                os.write(2, b"the model closed the socket to its worker, a descriptor that was not its own\n")
            os._exit(_CHANNEL_CLOSED)

    def _checked(self, tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
        if self._reference is None:
            self._reference = OutputSchema(families_of(tables))
            self._out.reference = self._reference.families
        return self._reference.check(tables)

    def _score(self, group: dict[str, Any], target: int, ordered: list[dict[str, pa.Table]]) -> None:
        place = group["place"]
        self._renew_folder()
        self._page.begin(place, group["n_replicates"] + target, self._bundle.wear.size_bytes)
        try:
            self._bundle.folder.enter()
            _seed_generators(target_seed(group["param_id"], self._bundle.target_names[target]))
            losses = self._bundle.targets[target](dict(group["params"]), [dict(tables) for tables in ordered])
        except BaseException as error:  # noqa: BLE001 - as for the model
            self._out.failed(place, None, target, self._failure(error))
        else:
            self._out.scored(place, target, losses)
        finally:
            self._leave_unit()

    def _hand_over_in_time(self) -> None:
        if time.monotonic() - self._handed_over >= HANDOVER_SECONDS or self._out.bytes_open >= HANDOVER_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        families = self._out.flush()
        if self._reference is not None:
            self._reference.handed_over(families)
        self._handed_over = time.monotonic()
