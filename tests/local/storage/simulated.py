"""Runs the real JobLog of several runners, a canceller and a reader in an order that a scheduler chooses.

Each actor is a thread, and each request to the storage is a step. Only the chosen actor moves, until its next request.
The scheduler also chooses faults: a lost answer, a request that arrives later, even after the death of its sender,
a GET that does not see a record yet, and the kill of a runner.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from made import ID, created
from tenacity import stop_after_attempt

from mops.errors import JobError, StorageUnavailable, Superseded
from mops.jobs.job import Job
from mops.jobs.removal import clean
from mops.storage.backends.base import PATIENT, Entry
from mops.storage.files import Files
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import (
    By,
    Cancel,
    Claim,
    Commit,
    End,
    NothingToRun,
    Overtaken,
    Part,
    Record,
    RunRequest,
    decode_record,
)
from mops.storage.paths import JobPaths
from mops.study.ranges import Ranges
from mops.verdicts import Counts

PATHS = JobPaths("job", ID)
CLEANER = socket.gethostname()
"""The name of a cleaner, whose claims have the name of this host."""
THREE_TRIES = PATIENT.copy(stop=stop_after_attempt(3), sleep=lambda _: None)

Choose = Callable[[Sequence[str]], int]


@cache
def job_record() -> bytes:
    """Return the bytes of the record of a job."""
    files = Files.open("memory://simulated")
    created(files, PATHS.job)
    return files.get(PATHS.record)


class Killed(BaseException):
    """The scheduler has killed this actor."""


@dataclass
class World:
    """The storage, the actors and the trace of a simulation."""

    groups: int
    faults: int
    kills: int
    log_type: type[JobLog] = JobLog
    store: dict[str, bytes] = field(default_factory=lambda: {PATHS.record: job_record(), PATHS.study: b"{}"})
    flight: list[tuple[str, bytes]] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    yielded: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def log(self) -> list[Record]:
        """Return the current log."""
        found = []
        while data := self.store.get(PATHS.log_record(len(found) + 1)):
            found.append(decode_record(data, len(found) + 1, "simulated"))
        return found

    def claim(self, what: bool, invariant: str) -> None:
        if not what:
            self.broken.append(invariant)


class Actor(threading.Thread):
    """One process."""

    def __init__(self, world: World, name: str, program: Callable[[Actor], None]):
        super().__init__(name=name, daemon=True)
        self.world, self._program = world, program
        self.go = threading.Semaphore(0)
        self.options: Sequence[str] = ("start",)
        self.choice = "start"
        self.over = False
        self.outcome: BaseException | str | None = None
        self.seen: set[str] = set()
        """What this process has read or written: the storage shows it from then on."""
        self.files = SimulatedFiles(self)
        self.job_log = world.log_type(self.files, PATHS, host=name, clock=lambda: 0.0)

    def run(self) -> None:
        try:
            self.go.acquire()
            if self.choice != "killed":
                self._program(self)
                self.outcome = "done"
        except (NothingToRun, Overtaken, Superseded, StorageUnavailable, Killed) as error:
            self.outcome = error
        except Exception as error:
            self.outcome = error
            self.world.broken.append(f"{self.name} failed: {error!r}")
        self.over = True
        self.world.yielded.release()

    def ask(self, *options: str) -> str:
        """Wait for the scheduler; return its choice."""
        if self.choice == "killed":  # without cleaning up
            raise Killed
        self.options = options
        self.world.yielded.release()
        self.go.acquire()
        if self.choice == "killed":
            raise Killed
        return self.choice


class SimulatedFiles(Files):
    """Real Files over the simulated storage, with one GET after the other up to the first absent file."""

    def __init__(self, actor: Actor):
        super().__init__(Requests(actor), "simulated:/", THREE_TRIES)

    def get_many(self, paths: Sequence[str]) -> list[bytes | None]:
        found: list[bytes | None] = [None] * len(paths)
        for at, path in enumerate(paths):
            found[at] = self._get(path)
            if found[at] is None:
                break
        return found

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            super().remove([path])

    def brief(self) -> Files:
        return self


class Requests:
    """The backend of one actor."""

    def __init__(self, actor: Actor):
        self._actor, self._world = actor, actor.world

    def put_new(self, path: str, data: bytes) -> bool:
        outcome = self._put(path, data)
        created = path not in self._world.store
        self._world.store.setdefault(path, data)
        if outcome.startswith("lost"):
            raise TimeoutError
        if created:
            self._actor.seen.add(path)
        return created

    def put(self, path: str, data: bytes) -> None:
        outcome = self._put(path, data)
        self._world.store[path] = data
        if outcome.startswith("lost"):
            raise TimeoutError

    def _put(self, path: str, data: bytes) -> str:
        outcome = self._actor.ask(f"put {path}", f"lost: put {path}", f"late: put {path}")
        if outcome.startswith("late"):
            self._world.flight.append((path, data))
            raise TimeoutError
        return outcome

    def get(self, path: str) -> bytes | None:
        there = self._world.store.get(path)
        may_be_stale = there and path not in self._actor.seen
        outcome = self._actor.ask(f"get {path}", *([f"stale: get {path}"] if may_be_stale else []))
        found = None if outcome.startswith("stale") else self._world.store.get(path)
        if found is not None:
            self._actor.seen.add(path)
        return found

    def size(self, path: str) -> int | None:
        found = self.get(path)
        return None if found is None else len(found)

    def list(self, folder: str) -> list[Entry]:
        self._actor.ask(f"list {folder}")
        return [Entry(path, len(data)) for path, data in self._world.store.items() if path.startswith(f"{folder}/")]

    def folders(self, folder: str) -> set[str]:
        below = [path.removeprefix(f"{folder}/") for path in self._world.store if path.startswith(f"{folder}/")]
        return {path.partition("/")[0] for path in below if "/" in path}

    def prune(self, folder: str) -> None:
        pass

    def remove(self, path: str) -> None:
        self._actor.ask(f"remove {path}")
        self._world.store.pop(path, None)


def runner(by: By, asked: RunRequest | None = None) -> Callable[[Actor], None]:
    """Return a runner, with a request or without."""
    return lambda actor: drive(actor, by, asked)


def resume(actor: Actor) -> None:
    """Like ``mops jobs resume``: a person reads the log, and later a runner claims the job for the state in it."""
    view = actor.job_log.read()
    if not view.complete:
        drive(actor, "person", RunRequest(view.k, actor.name))


def drive(actor: Actor, by: By, asked: RunRequest | None) -> None:
    """Claim, run uncommitted groups, commit and end, like attempt/main_loop.py."""
    log, world = actor.job_log, actor.world
    view = log.claim(by, asked=asked)
    todo, c = list(view.committed.complement(world.groups)), 0
    while todo and not log.cancelled:
        c += 1
        size = 1 + (c + view.attempt) % 2
        some, todo = todo[:size], todo[size:]
        started(actor, some)
        path = PATHS.part("losses", None, view.attempt, c)
        actor.files.put_new(path, b"part")
        if actor.ask("no poll", "poll") == "poll":
            log.poll()
        log.commit(Ranges.of(some), [Part(path, 1, 4, "digest")], Counts(len(some)))
    log.end("cancelled" if todo else "succeeded", log.view.counts)


def cleaner(actor: Actor) -> None:
    """Clean as ``mops jobs clean --last-attempt``. Every runner looks dead, as if it had been silent for long."""
    with suppress(JobError):
        clean(Job(actor.files, PATHS.job), last_attempt=True)


def started(actor: Actor, groups: Sequence[int]) -> None:
    records = actor.world.log()
    mine = [k for k, record in enumerate(records) if isinstance(record, Claim) and record.host == actor.name]
    before = [commit for commit in records[: mine[-1]] if isinstance(commit, Commit)] if mine else []
    actor.world.claim(bool(mine), "I5: runs without a claim")
    actor.world.claim(not any(group in commit.ranges for commit in before for group in groups), "I5")


def canceller(actor: Actor) -> None:
    done = actor.job_log.cancel("a person")
    actor.world.claim(done or actor.job_log.view.complete, "I7: no cancel, though it was not too late")


def reader(actor: Actor) -> None:
    """Read repeatedly; groups that were committed stay committed."""
    seen: list[int] = []
    for _ in range(3):
        now = list(actor.job_log.read().committed)
        actor.world.claim(set(seen) <= set(now), "I2")
        actor.world.claim(
            len(now) == sum(len(r.ranges) for r in actor.world.log()[: actor.job_log.view.k] if isinstance(r, Commit)),
            "I2: a view that is not a prefix",
        )
        seen = now


def simulate(
    world: World,
    cast: dict[str, Callable[[Actor], None]],
    choose: Choose,
    check: Callable[[World], None] | None = None,
) -> World:
    """Run until no actor can move, then check the invariants."""
    world.actors = [Actor(world, name, program) for name, program in cast.items()]
    for actor in world.actors:
        actor.start()
    current = world.actors[0]
    while moves := list(_moves(world, current)):
        label, actor, option = moves[choose([move[0] for move in moves])]
        world.trace.append(label)
        if actor is None:
            path, data = world.flight.pop(int(option))
            world.store.setdefault(path, data)
            continue
        current = actor
        _resume(world, actor, option)
    (check or check_log)(world)
    return world


def _resume(world: World, actor: Actor, option: str) -> None:
    world.faults -= option.startswith(("lost", "late", "stale"))
    world.kills -= option == "killed"
    actor.choice = option
    actor.go.release()
    world.yielded.acquire()


def _moves(world: World, current: Actor) -> list[tuple[str, Actor | None, str]]:
    """Yield every move, the plainest first: the same actor, another actor, a fault."""
    alive = [actor for actor in world.actors if not actor.over]
    alive.sort(key=lambda actor: actor is not current)
    plain, odd = [], []
    for actor in alive:
        for option in actor.options:
            wrong = option.startswith(("lost", "late", "stale"))
            if not wrong or world.faults > 0:
                (odd if wrong else plain).append((f"{actor.name} {option}", actor, option))
        if world.kills > 0 and actor.options != ("start",):
            odd.append((f"{actor.name} killed", actor, "killed"))
    odd += [(f"lands: {path}", None, str(at)) for at, (path, _) in enumerate(world.flight)]
    return plain + odd


def check_log(world: World) -> None:
    """Check docs/internals/storage.md's invariants. Each earlier log was a prefix of this one."""
    records = world.log()
    in_log = [path for path in world.store if path.startswith(PATHS.log)]
    world.claim(in_log == [PATHS.log_record(k + 1) for k in range(len(records))], "I2: a hole, or out of order")
    order = list(world.store)
    covered: list[int] = []
    owner = mark = None
    for record in records:
        world.claim(not (isinstance(mark, End) and mark.complete), "I4")
        if isinstance(record, Claim):
            _check_request(world, records, record)
            world.claim(record.by == "person" or not isinstance(mark, Cancel | End), "I6: an automatic claim")
            owner = record
        if isinstance(record, Commit | End):
            world.claim(owner is not None and record.host == owner.host, "I6: not by the owner")
        if isinstance(record, Commit):
            covered += record.ranges
            before = order[: order.index(PATHS.log_record(record.k))]
            world.claim(all(part.path in before for part in record.parts), "I3: a part is missing")
        if isinstance(record, End) and record.complete:
            world.claim(sorted(covered) == list(range(world.groups)), "I3")
        mark = mark if isinstance(record, Commit) else record
    world.claim(len(covered) == len(set(covered)), "I1")
    _check_stops(world, records, owner)


def _check_request(world: World, records: Sequence[Record], claim: Claim) -> None:
    """I8: a request does not undo records that its maker had not seen."""
    if claim.asked is None:
        return
    behind = [mark for mark in records[claim.asked.k : claim.k - 1] if not isinstance(mark, Commit)]
    claims = [mark for mark in behind if isinstance(mark, Claim)]
    if not any(mark.asked == claim.asked for mark in claims):
        world.claim(not behind, "I8: a request is carried out though others came first")
        return
    world.claim(claims[-1].asked == claim.asked, "I8: the job is taken from a newer attempt")
    world.claim(not isinstance(behind[-1], Cancel | End), "I8: a restart undoes a cancel or an end")


def _check_stops(world: World, records: Sequence[Record], owner: Claim | None) -> None:
    for actor in world.actors:
        if isinstance(actor.outcome, Overtaken):
            world.claim(actor.outcome.mark in records, "I7: stopped for a record that is not there")
    last = {record.host: record for record in records if isinstance(record, Claim)}
    for actor in world.actors:
        if isinstance(actor.outcome, Superseded):
            world.claim(owner is not None and owner.host != actor.name and actor.name in last, "I7: stopped by mistake")
    by_name = {actor.name: actor for actor in world.actors}
    if owner is not None and by_name[owner.host].outcome == "done":
        world.claim(any(isinstance(record, End) and record.n == owner.n for record in records), "I7: no end")
    stopped = [actor.outcome for actor in world.actors if actor.job_log.view.attempt and actor.name in last]
    if stopped and all(outcome == "done" for outcome in stopped):
        world.claim(any(isinstance(record, End) for record in records), "I7: no attempt has ended it")


def at_random(seed: int) -> Choose:
    """Return a scheduler that mostly continues with the same actor, and else chooses at random."""
    source = random.Random(seed)
    same = source.choice([0.3, 0.6, 0.85])

    def choose(labels: Sequence[str]) -> int:
        return 0 if source.random() < same else source.randrange(len(labels))

    return choose
