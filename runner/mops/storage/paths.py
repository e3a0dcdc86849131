"""The paths of all files of a job, relative to the storage's root.

docs/internals/storage.md ("Layout") draws the tree, and says which files are create-only. Only live records are
overwritten. Two jobs that have had the same name share no path but ``job.json``, because the others have the job's id.
"""

from __future__ import annotations

import os
import re
from urllib.parse import quote, unquote

from mops.errors import JobError

JOBS = "jobs"
PART_KINDS = ("outputs", "losses", "failures")

# A name that every storage, URL and Kubernetes label accepts as one segment.
_JOB = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_NUMBERED = re.compile(r"(\d+)-(\d+)\.(?:parquet|txt|json)", re.ASCII)
_COMPACTED = re.compile(r"compacted-[0-9a-f]+-\d+\.parquet", re.ASCII)
_ID = re.compile(r"[0-9a-f]{16}")


def bundle_path(digest: str) -> str:
    """Return the path of the bundle with this SHA-256."""
    return f"bundles/{digest}.zip"


def new_job_id() -> str:
    """Return a random id for a new job."""
    return os.urandom(8).hex()


class NamePaths:
    """The paths of a job's name, which another job can get after a deletion. JobError: no job can have this name."""

    def __init__(self, job: str) -> None:
        if not is_job_name(job):
            raise JobError(
                f"no job can be named {job!r}",
                where="the job's name",
                hint="1 to 63 letters, digits, '.', '_' and '-'; first and last a letter or a digit",
            )
        self.job = job
        self.root = f"{JOBS}/{job}"
        self.record = f"{self.root}/job.json"  # of the job that has the name: a job exists when this file does


class JobPaths:
    """The paths of one job. No other job has ever the same ones.

    ``k`` is the number of a record, ``n`` that of an attempt, ``c`` that of a file of an attempt; the first is 1.
    """

    def __init__(self, job: str, job_id: str) -> None:
        assert is_job_id(job_id)
        name = NamePaths(job)
        self.job, self.id = job, job_id
        self.record = name.record  # which names the job's id while the job exists
        self.root = f"{name.root}/{job_id}"
        self.study = f"{self.root}/study.json"  # at the submit
        self.params = f"{self.root}/params.parquet"  # the groups: ids, seeds and parameters
        self.reused = f"{self.root}/reused.parquet"  # the simulations that are taken from other jobs
        self.schema = f"{self.root}/schema.json"  # the reference schema of the outputs
        self.finished = f"{self.root}/finished.json"  # a copy of the complete end, for quick listing
        self.deleted = f"{self.root}/deleted.json"  # the mark of a deletion that has begun
        self.compaction = f"{self.root}/compacted.json"  # names larger parts in place of small ones
        self.log = f"{self.root}/log"  # the folder of the log's records
        self.texts = f"{self.root}/logs"  # the folder of the text log's files
        self.samples = f"{self.root}/events"  # the folder of the samples of memory and rate

    def options(self, k: int) -> str:
        """Return the path of the ``k``-th change of the job's options."""
        return f"{self.root}/options/{k:08d}.json"

    def log_record(self, k: int) -> str:
        """Return the path of record ``k`` of the log."""
        return f"{self.log}/{k:08d}.json"

    def live(self, n: int) -> str:
        """Return the path of the live record of attempt ``n``."""
        return f"{self.root}/live/{n}.json"

    def text(self, n: int, c: int) -> str:
        """Return the path of file ``c`` of the text log of attempt ``n``."""
        return f"{self.texts}/{n}-{c}.txt"

    def events(self, n: int, c: int) -> str:
        """Return the path of file ``c`` of the samples of attempt ``n``."""
        return f"{self.samples}/{n}-{c}.json"

    def folder(self, kind: str, output: str | None = None) -> str:
        """Return the folder of the parts of one table; ``output`` is the output's name, for ``outputs`` only."""
        assert kind in PART_KINDS
        assert (kind == "outputs") == (output is not None)
        if output is None:
            return f"{self.root}/{kind}"
        quoted = quote(output, safe="")  # a model may choose any name
        if quoted.endswith("."):  # '.' and '..' would be folders, and Azure drops a dot at the end
            quoted = quoted[:-1] + "%2E"
        return f"{self.root}/{kind}/{quoted}"

    def part(self, kind: str, output: str | None, n: int, c: int) -> str:
        """Return the path of part ``c`` of attempt ``n``; kind and output as for :meth:`folder`."""
        return f"{self.folder(kind, output)}/{n}-{c}.parquet"

    def compacted(self, kind: str, output: str | None, r: str, c: int) -> str:
        """Return the path of part ``c`` of the compaction with the random number ``r``; else as for :meth:`folder`."""
        return f"{self.folder(kind, output)}/compacted-{r}-{c}.parquet"

    def has_part(self, path: str, n: int) -> bool:
        """Tell whether a path is that of a part of attempt ``n``."""
        numbers = numbers_of(path)
        return path.startswith(f"{self.root}/") and numbers is not None and numbers[0] == n


def is_job_id(name: str) -> bool:
    """Tell whether a folder of a name is that of a job."""
    return bool(_ID.fullmatch(name))


def is_job_name(name: str) -> bool:
    """Tell whether a job can have this name."""
    return bool(_JOB.fullmatch(name))


def numbers_of(path: str) -> tuple[int, int] | None:
    """Return (n, c) from the path of a part, a text log or samples: the attempt and the number; None: another path."""
    found = _NUMBERED.fullmatch(path.rpartition("/")[2])
    return (int(found[1]), int(found[2])) if found else None


def is_compacted(path: str) -> bool:
    """Tell whether a compaction wrote a part."""
    return _COMPACTED.fullmatch(path.rpartition("/")[2]) is not None


def table_of(part: str) -> tuple[str, str | None]:
    """Return (kind, output) of a part's path: the inverse of :meth:`JobPaths.part`."""
    _, _, _, kind, *output, _ = part.split("/")
    return kind, unquote(output[0]) if output else None
