"""Compactions of the real code on the simulated storage: compactors, readers and cleaners of a complete job.

A part is a JSON list of its groups, so that each row can be counted without Parquet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from retried_jobs import pairs
from simulated import PATHS, Actor, World, job_record

from mops.errors import CorruptRecord, JobError
from mops.jobs.job import Job
from mops.jobs.removal import clean
from mops.parquet.encoder import Encoded
from mops.storage.compaction import compact
from mops.storage.dataset import part_missing, read_current
from mops.storage.files import Files
from mops.storage.job_records import Source, load_job
from mops.storage.joblog.log import JobLog, current_parts, read_whole
from mops.storage.joblog.records import Part
from mops.storage.joblog.verify import compaction_problems
from mops.storage.sources import SourceLog
from mops.study.ranges import Ranges
from mops.verdicts import Counts


@cache
def complete_job(groups: int) -> dict[str, bytes]:
    """Return the files of a complete job with a part for each group."""
    files = Files.open(f"memory://simulated-{groups}")
    files.put(PATHS.record, job_record())
    files.put(PATHS.study, b"{}")
    log = JobLog(files, PATHS)
    log.claim("person")
    for group in range(groups):
        part = part_of(PATHS.part("losses", None, 1, group), [group])
        files.put(part.path, json.dumps([group]).encode())
        log.commit(Ranges.of([group]), [part], Counts(1))
    files.put(PATHS.part("losses", None, 1, 99), b"left behind")
    log.end("succeeded", log.view.counts)
    return {entry.path: files.get(entry.path) for entry in files.list("")}


def part_of(path: str, groups: Sequence[int]) -> Part:
    data = json.dumps(list(groups)).encode()
    return Part(path, len(groups), len(data), hashlib.sha256(data).hexdigest())


def world_of(groups: int, faults: int, kills: int) -> World:
    return World(groups, faults, kills, store=dict(complete_job(groups)))


def merge(files: Files, parts: Sequence[Part], _: Any) -> Encoded:
    data = [files.get_many([part.path])[0] for part in parts]
    if None in data:
        raise FileNotFoundError("a part")
    groups = [group for some in data for group in json.loads(some)]
    part = part_of("", groups)
    content: Any = json.dumps(groups).encode()
    return Encoded(content, part.rows, part.bytes, part.digest)


def compactor(actor: Actor) -> None:
    """Compact as ``mops jobs compact``, in pairs."""
    with suppress_if_stale(actor):
        compact(actor.files, load_job(actor.files, PATHS.job), plan=pairs, merge=merge)


def cleaner(actor: Actor) -> None:
    with suppress_if_stale(actor):
        clean(Job(actor.files, PATHS.job))


def reader(actor: Actor) -> None:
    """Read all rows twice; each time every group of the records that the reader saw comes once."""
    for _ in range(2):
        with suppress_if_stale(actor):
            seen, rows = read_current(sources(actor), lambda: sources(actor), lambda found: rows_of(actor, found))
            actor.world.claim(rows == seen, f"I9: a reader got {rows}")


def sources(actor: Actor) -> list[SourceLog]:
    every = Ranges(((0, 1_000),))
    return [SourceLog(Source(PATHS.job, PATHS.root.rpartition("/")[2], every, every), read_whole(actor.files, PATHS))]


def rows_of(actor: Actor, found: Sequence[SourceLog]) -> tuple[list[int], list[int]]:
    """Return the groups of the commits, and the rows of the current parts."""
    rows: list[int] = []
    for some in found[0].rows("losses"):
        try:
            rows += json.loads(actor.files.get(some.part.path))
        except FileNotFoundError as missing:
            raise part_missing(PATHS.job, some.part.path) from missing
    return list(found[0].log.view.committed), rows


class suppress_if_stale(suppress):  # noqa: N801 - like suppress
    """Allow errors about absent files after a GET that did not see a file: a storage must not do this to them."""

    def __init__(self, actor: Actor):
        super().__init__(CorruptRecord, JobError, FileNotFoundError)
        self._actor = actor

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        is_stale = any(f"{self._actor.name} stale" in label for label in self._actor.world.trace)
        return bool(is_stale and super().__exit__(kind, error, trace))


def check_compactions(world: World) -> None:
    """Check I9, I10 and I12."""
    files = Files.open(f"memory://check-{id(world)}")
    for path, data in world.store.items():
        files.put(path, data)
    try:
        whole = read_whole(files, PATHS)
        for compaction in (None, whole.compaction):
            groups = [group for one in current_parts(whole.commits, compaction) for group in one.ranges]
            world.claim(groups == list(range(world.groups)), f"I9: the current parts have {groups}")
        gone = [one.part.path for one in whole.parts if one.part.path not in world.store]
        world.claim(not gone, f"I10: {gone}")
        wrong = compaction_problems(whole.commits, whole.compaction)
        world.claim(not wrong, f"I9: {wrong}")
    except CorruptRecord as bad:
        world.broken.append(f"I9: {bad.what}")
    _check_stops(world)
    files.remove(list(world.store))


def _check_stops(world: World) -> None:
    """I12: if no process was killed and no answer was missing, every compaction ends without an error."""
    if any("killed" in label or "lost" in label or "late" in label or "stale" in label for label in world.trace):
        return
    compactors = [actor for actor in world.actors if actor.name.startswith("compactor")]
    world.claim(all(actor.outcome == "done" for actor in compactors), "I12: a compaction stopped")
