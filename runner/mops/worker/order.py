"""What a Dask task is asked, and what it answers. Plain data, pickled between runner and worker."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from mops.study.groups import Group
from mops.worker.tables import Kinds


@dataclass(frozen=True)
class Context:
    """What all orders of a job share.

    Parameters
    ----------
    job
        The job's name.
    root
        The folder with the unpacked bundle.
    model, scenario, targets, outputs
        As in STUDY.md; ``outputs`` None: all.
    slots
        Simulations that run at once on a worker.
    threads
        Threads that one simulation may use.
    timeout_s
        Seconds for one simulation or one target; None: no limit.
    retries
        How often a unit whose process died is tried again.
    held_bytes
        Bytes of finished, unfetched results above which a worker starts no further order.
    """

    job: str
    root: str
    model: str
    scenario: str
    targets: tuple[str, ...]
    outputs: tuple[str, ...] | None
    slots: int
    threads: int = 1
    timeout_s: float | None = None
    retries: int = 1
    held_bytes: int = 256 << 20


def key_of(job: str, number: int) -> str:
    """Return an order's Dask key.

    All keys of a job must fall into one group for Dask (the first words of a key name it): only large groups of
    independent tasks are queued on the scheduler instead of being sent to workers ahead of time.
    """
    return f"sim-{job}-{number}"


@dataclass(frozen=True)
class Order:
    """Groups for one task, with the budget at which it returns early, at a group's border.

    Parameters
    ----------
    number
        Counts the job's orders: ``sim-<job>-<number>`` is the Dask key.
    reference
        The reference schema; None: the first good simulation of this order makes it.
    seconds, bytes
        The budget: wall-clock seconds, and bytes of results as Arrow.
    """

    context: Context
    number: int
    groups: tuple[Group, ...]
    reference: Kinds | None
    seconds: float
    bytes: int

    @property
    def key(self) -> str:
        """The Dask key."""
        return key_of(self.context.job, self.number)

    @property
    def part_name(self) -> str:
        """The name of this order's anonymous files."""
        return f"mops-part-{self.key}."


@dataclass(frozen=True)
class Failure:
    """A simulation (``target`` is None) or a target (``replicate`` and ``seed`` are None) that failed."""

    group: int
    replicate: int | None
    seed: int | None
    target: str | None
    reason: str
    message: str
    traceback: str
    attempts: int


@dataclass(frozen=True)
class Loss:
    """One loss of one target for one group."""

    group: int
    target: str
    name: str
    loss: float
    n_replicates: int


@dataclass(frozen=True)
class Segment:
    """Rows of one output, of several simulations, as one Arrow stream in a part's buffer.

    ``simulations`` holds (group, replicate) and ``rows`` how many rows each has, in the order of the rows.
    """

    output: str
    offset: int
    length: int
    simulations: list[tuple[int, int]]
    rows: list[int]


@dataclass(frozen=True)
class ArrowPart:
    """What a child handed over at once: a mapped file and what is where in it."""

    buffer: pa.Buffer
    segments: list[Segment]


@dataclass
class Outcome:
    """The answer to an order. Only groups named in ``done`` count; other rows of the parts are to be dropped."""

    number: int
    done: frozenset[int]
    seconds: float
    reference: Kinds | None
    parts: list[ArrowPart] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    prints: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of Arrow data."""
        return sum(part.buffer.size for part in self.parts)

    def __sizeof__(self) -> int:  # what Dask's sizeof counts
        return object.__sizeof__(self) + self.nbytes
