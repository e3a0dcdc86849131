"""The paths of all files of a job. Paths are relative to the storage's root.

::

    bundles/<sha256>.zip
    jobs/<job>/study.json  params.parquet  schema.json  job.json     create-only
    jobs/<job>/reused-<digest>.parquet                               create-only: simulations taken from other jobs
    jobs/<job>/options/00000001.json  ...                            create-only
    jobs/<job>/log/00000001.json  00000002.json  ...                 create-only: decides what is committed
    jobs/<job>/outputs/<output>/<n>-<c>.parquet                      parts: they count once a log record names them
    jobs/<job>/losses/<n>-<c>.parquet  failures/<n>-<c>.parquet
    jobs/<job>/compactions/<end>/00000001.json  ...                  create-only: which larger parts replace others
    jobs/<job>/outputs/<output>/compacted-<n>-<c>-<end>.parquet      parts of compactions
    jobs/<job>/logs/<n>-<c>.txt  events/<n>-<c>.json
    jobs/<job>/live/<n>.json  snapshot.json                          the only files that mops overwrites
    jobs/<job>/finished.json                                         an advisory copy of the end
    jobs/<job>/deleted.json                                          during a deletion, and perhaps after it
    calibrations/<name>/...                                          calibration_records.py

``n`` is the number of the attempt or compaction, ``c`` a number that its process uses once (a worker: a random one),
``<end>`` the nonce of the job's complete end (in names of parts its first characters).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from mops.errors import JobError

JOBS = "jobs"
BUNDLES = "bundles"
PART_KINDS = ("outputs", "losses", "failures")

# A name that every storage, URL and Kubernetes label accepts as one segment.
_JOB = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_NUMBERED = re.compile(r"(\d+)-(\d+)\.(?:parquet|txt|json)", re.ASCII)
_COMPACTED = re.compile(r"compacted-(\d+)-\d+-(\w+)\.parquet", re.ASCII)
_END_CHARACTERS = 8
_DIGEST_CHARACTERS = 16


def bundle_path(digest: str) -> str:
    """Return the path of the bundle with this SHA-256."""
    return f"{BUNDLES}/{digest}.zip"


@dataclass(frozen=True)
class JobPaths:
    """Every path of one job.

    Parameters
    ----------
    job
        The job's name.

    Raises
    ------
    JobError
        No job can have this name.
    """

    job: str

    def __post_init__(self) -> None:
        if not is_job_name(self.job):
            raise JobError(
                f"no job can be named {self.job!r}",
                where="the job's name",
                hint="1 to 63 letters, digits, '.', '_' and '-'; first and last a letter or a digit",
            )

    @property
    def root(self) -> str:
        """The job's folder."""
        return f"{JOBS}/{self.job}"

    @property
    def record(self) -> str:
        """The job's record. The job exists when this file does."""
        return f"{self.root}/job.json"

    @property
    def study(self) -> str:
        """The study at the submit."""
        return f"{self.root}/study.json"

    @property
    def params(self) -> str:
        """The groups: ids, seeds and parameters."""
        return f"{self.root}/params.parquet"

    def reused(self, digest: str) -> str:
        """Return the path of the table, with this SHA-256, of the simulations that are taken from other jobs.

        A killed submit may leave a table of other simulations, so the name depends on the content.
        """
        return f"{self.root}/reused-{digest[:_DIGEST_CHARACTERS]}.parquet"

    @property
    def schema(self) -> str:
        """The reference schema of the outputs."""
        return f"{self.root}/schema.json"

    @property
    def finished(self) -> str:
        """A copy of the complete end, for quick listing."""
        return f"{self.root}/finished.json"

    @property
    def snapshot(self) -> str:
        """The meaning of the first records of the log, so that readers begin after these records."""
        return f"{self.root}/snapshot.json"

    @property
    def deleted(self) -> str:
        """The mark of a deletion. mops refuses new jobs of this name while it exists."""
        return f"{self.root}/deleted.json"

    def options(self, k: int) -> str:
        """Return the path of the ``k``-th change of the job's options (the first is 1)."""
        return f"{self.root}/options/{k:08d}.json"

    @property
    def log(self) -> str:
        """The folder of the log's records."""
        return f"{self.root}/log"

    def log_record(self, k: int) -> str:
        """Return the path of record ``k`` of the log (the first is 1)."""
        return record_path(self.log, k)

    def folder(self, kind: str, output: str | None = None) -> str:
        """Return the folder of the parts of one table.

        Parameters
        ----------
        kind
            ``outputs``, ``losses`` or ``failures``.
        output
            The output's name, for ``outputs`` only. A model may choose any name, so the path contains it
            percent-encoded.
        """
        assert kind in PART_KINDS
        assert (kind == "outputs") == (output is not None)
        if output is None:
            return f"{self.root}/{kind}"
        quoted = quote(output, safe="")
        if quoted.endswith("."):  # '.' and '..' would be folders, and Azure drops a dot at the end
            quoted = quoted[:-1] + "%2E"
        return f"{self.root}/{kind}/{quoted}"

    def part(self, kind: str, output: str | None, n: int, c: int) -> str:
        """Return the path of part ``c`` of attempt ``n``; kind and output as for :meth:`folder`."""
        return f"{self.folder(kind, output)}/{n}-{c}.parquet"

    @property
    def compactions(self) -> str:
        """The folder of the logs of compactions."""
        return f"{self.root}/compactions"

    def compactions_behind(self, end: str) -> str:
        """Return the folder of the log of the compactions behind the complete end with this nonce."""
        return f"{self.compactions}/{end}"

    def compacted(self, kind: str, output: str | None, n: int, c: int, end: str) -> str:
        """Return the path of part ``c`` of compaction ``n`` behind the complete end with this nonce."""
        return f"{self.folder(kind, output)}/compacted-{n}-{c}-{end[:_END_CHARACTERS]}.parquet"

    @property
    def texts(self) -> str:
        """The folder of the text log's files."""
        return f"{self.root}/logs"

    def text(self, n: int, c: int) -> str:
        """Return the path of file ``c`` of the text log of attempt ``n``."""
        return f"{self.texts}/{n}-{c}.txt"

    @property
    def samples(self) -> str:
        """The folder of the samples of memory and rate."""
        return f"{self.root}/events"

    def events(self, n: int, c: int) -> str:
        """Return the path of file ``c`` of the samples of attempt ``n``."""
        return f"{self.samples}/{n}-{c}.json"

    def live(self, n: int) -> str:
        """Return the path of the live record of attempt ``n``."""
        return f"{self.root}/live/{n}.json"


def is_job_name(name: str) -> bool:
    """Tell whether a job can have this name."""
    return bool(_JOB.fullmatch(name))


def record_path(folder: str, k: int) -> str:
    """Return the path of record ``k`` of the log in a folder (the first is 1)."""
    return f"{folder}/{k:08d}.json"


def numbers_of(path: str) -> tuple[int, int] | None:
    """Return (n, c) from the path of a part, a text log or samples: the attempt and the number; None: another path."""
    found = _NUMBERED.fullmatch(path.rpartition("/")[2])
    return (int(found[1]), int(found[2])) if found else None


def compaction_of(path: str, end: str) -> int | None:
    """Return the number of the compaction that wrote a part; None: another process did.

    Parameters
    ----------
    end
        The nonce of the job's complete end. For parts of compactions behind any other end this returns -1, because
        those belonged to a deleted job of the same name.
    """
    found = _COMPACTED.fullmatch(path.rpartition("/")[2])
    if found is None:
        return None
    return int(found[1]) if found[2] == end[:_END_CHARACTERS] else -1


def table_of(part: str) -> tuple[str, str | None]:
    """Return (kind, output) of a part's path: the inverse of :meth:`JobPaths.part`."""
    _, _, kind, *output, _ = part.split("/")
    return kind, unquote(output[0]) if output else None
