"""A name that is deleted and used again while runners of the deleted job live on, in thousands of interleavings.

The real JobLog, submit and deletion run in an order that a scheduler chooses, with lost answers, requests that land
late, and kills (simulated.py). Nothing of the deleted job may count for the new one.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace

import pytest
from made import ID
from simulated import PATHS, Actor, World, at_random, job_record, simulate

from mops.errors import JobError
from mops.jobs.removal import delete
from mops.storage.files import Files
from mops.storage.job_records import JOB_RECORDS, check_not_deleted, give_name
from mops.storage.joblog.log import JobLog, read_whole
from mops.storage.joblog.records import Part
from mops.storage.joblog.verify import verify
from mops.storage.paths import JobPaths
from mops.study.ranges import Ranges
from mops.verdicts import Counts

OLD = JOB_RECORDS.decode(job_record(), "simulated")
NEW = replace(OLD, id="fedcba9876543210")
GROUPS = 3
RUNS = 300


def run(actor: Actor, paths: JobPaths) -> None:
    """Claim, run what is left, commit each group and end, like attempt/main_loop.py."""
    log = JobLog(actor.files, paths, host=f"{actor.name} of {paths.id}", clock=lambda: 0.0)
    todo = log.claim("person").committed.complement(GROUPS)
    check_not_deleted(actor.files, paths)
    for group in todo:
        path, data = paths.part("losses", None, log.view.attempt, group), f"{paths.id} {group}".encode()
        actor.files.create(path, data)
        part = Part(path, 1, len(data), hashlib.sha256(data).hexdigest())
        log.commit(Ranges.of([group]), [part], Counts(1))
        if actor.ask("no poll", "poll") == "poll":
            log.poll()
    log.end("succeeded", log.view.counts)


def old_runner(actor: Actor) -> None:
    with suppress(JobError):
        run(actor, OLD.paths)


def submitter(actor: Actor) -> None:
    with suppress(JobError):
        actor.files.create(NEW.paths.study, b"{}")
        give_name(actor.files, NEW)
        run(actor, NEW.paths)


def deleter(actor: Actor) -> None:
    with suppress(JobError):
        list(delete(actor.files, [PATHS.job]))


CAST = {"A": old_runner, "B": old_runner, "X": deleter, "C": submitter}


def check(world: World) -> None:
    """The job that has the name now has only its own records and parts, all of them."""
    files = Files.open(f"memory://reuse-{id(world)}")
    for path, data in world.store.items():
        files.put(path, data)
    data = world.store.get(PATHS.record)
    record = None if data is None else JOB_RECORDS.decode(data, "simulated")
    if record is not None and record.paths.deleted not in world.store and _is_settled(world, record.id):
        whole = read_whole(files, record.paths)
        problems = verify(files, record.paths, GROUPS)
        world.claim(not problems, f"I14: {problems}")
        stored = [world.store[part.path] for commit in whole.commits for part in commit.parts]
        world.claim(all(data.startswith(record.id.encode()) for data in stored), f"I13: foreign rows: {stored}")
        hosts = {commit.host for commit in whole.commits}
        world.claim(all(host.endswith(record.id) for host in hosts), f"I13: foreign records: {hosts}")
    files.remove(list(world.store))


def _is_settled(world: World, job_id: str) -> bool:
    """Tell whether no submitter was killed, or lost its last answers, between its record and its look for a mark."""
    return job_id == ID or not any("C killed" in move or "lands" in move for move in world.trace)


def test_nothing_of_a_deleted_job_counts_for_the_next_job_of_its_name():
    outcomes = set()
    for seed in range(RUNS):
        world = World(GROUPS, faults=seed % 3, kills=seed % 2)
        simulate(world, CAST, at_random(seed), check)
        assert not world.broken, (seed, world.broken, world.trace)
        data = world.store.get(PATHS.record)
        outcomes.add(None if data is None else JOB_RECORDS.decode(data, "x").id)
    assert outcomes == {None, OLD.id, NEW.id}


def test_the_search_finds_paths_without_the_id(monkeypatch):
    """Regression: this was the rule until a job had 1,143 of 1,200 rows of a deleted one."""
    init = JobPaths.__init__

    def without_the_id(paths: JobPaths, job: str, job_id: str) -> None:
        init(paths, job, ID)
        paths.id = job_id

    monkeypatch.setattr(JobPaths, "__init__", without_the_id)
    for seed in range(RUNS):
        world = World(GROUPS, faults=0, kills=0)
        simulate(world, CAST, at_random(seed), check)
        if any("I13" in broken or "I14" in broken for broken in world.broken):
            return
    pytest.fail("not found")
