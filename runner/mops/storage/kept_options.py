"""How a job is started: its variables, its interpreter, and its runner's pod. They are kept with the job.

``job.json`` has the options of the submit. A resume that names an option appends ``options/<k>.json``, create-only: the
last of these records is in effect for every later resume, and for the job that a retry derives. A record names the job
by the time of its submit: what a deleted job of the same name has left is passed over. A variable without a
value has only its name here: its value is the runner's and is never stored. What the settings (MODELOPS_JOB_*) say is
read afresh by each attempt and is not kept here. docs/cluster.md has the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from mops.errors import CorruptRecord, JobError, NewerFormat
from mops.storage.files import Files
from mops.storage.paths import JobPaths

if TYPE_CHECKING:
    from mops.storage.job_records import JobRecord

FORMAT = 1


@dataclass(frozen=True)
class PodOptions:
    """What the pod of a job's runner has in place of what the service's chart says; None: as the chart says.

    Parameters
    ----------
    queue
        A LocalQueue of Kueue.
    priority_class
        A PriorityClass.
    deadline_s
        The most seconds that all pods of one Kubernetes Job may take.
    keep_s
        Seconds for which the Kubernetes Job stays when it is over.
    memory
        Request and limit, as Kubernetes writes bytes.
    dedicated
        Whether the job runs on a Dask cluster of its own; None: as ``mops connect`` said.
    workers
        The size of that cluster: ``N`` or ``MIN:MAX``; None: as the chart says.
    """

    queue: str | None = None
    priority_class: str | None = None
    deadline_s: int | None = None
    keep_s: int | None = None
    memory: str | None = None
    dedicated: bool | None = None
    workers: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that say something, by field."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def of_a_service(self) -> list[str]:
        """How the command line calls the options that ask for what only a service has."""
        return [option(name) for name, value in self.given.items() if value is not False]

    def overridden(self, given: PodOptions) -> PodOptions:
        """Return these options with those of a later command in their place."""
        kept = replace(self, workers=None) if given.dedicated is False else self
        return replace(kept, **given.given)


def option(name: str) -> str:
    """Return how the command line calls a field of :class:`PodOptions`."""
    return f"--{name.removesuffix('_s').replace('_', '-')}"


@dataclass(frozen=True)
class JobOptions:
    """What is kept with a job besides its study.

    Parameters
    ----------
    env
        Variables for the model; None: its value is the runner's and is not kept.
    python
        The interpreter that runs simulations, an absolute path; None: the worker's own.
    """

    env: Mapping[str, str | None] = field(default_factory=dict)
    python: str | None = None
    pod: PodOptions = field(default_factory=PodOptions)

    def overridden(self, given: JobOptions) -> JobOptions:
        """Return these options with those of a later command in their place; of ``env`` by variable."""
        return JobOptions({**self.env, **given.env}, given.python or self.python, self.pod.overridden(given.pod))

    def changes_since(self, before: JobOptions) -> list[str]:
        """Return a line for each option that differs."""
        now, then = self._shown(), before._shown()
        names = [name for name in {**now, **then} if now.get(name) != then.get(name)]
        return [f"{name}: {then.get(name, 'unset')} before, {now.get(name, 'unset')} now" for name in names]

    def _shown(self) -> dict[str, str]:
        variables = {
            f"--env {name}": "this environment's" if value is None else value for name, value in self.env.items()
        }
        python = {"--python": self.python} if self.python else {}
        return {**variables, **python, **{option(name): str(value) for name, value in self.pod.given.items()}}

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON values."""
        return {"env": dict(self.env), "python": self.python, "pod": self.pod.given}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> JobOptions:
        """Return what :meth:`to_json` wrote, without fields of a newer mops; KeyError, TypeError or ValueError."""
        pod = {one.name: found["pod"][one.name] for one in fields(PodOptions) if one.name in found["pod"]}
        return cls(dict(found["env"]), found["python"], PodOptions(**pod))


@dataclass(frozen=True)
class KeptOptions:
    """The options in effect, and the number of the last record: 0 is ``job.json``."""

    k: int
    options: JobOptions


def read_options(files: Files, job: JobRecord) -> KeptOptions:
    """Return a job's options as the last command left them.

    Raises
    ------
    NewerFormat, CorruptRecord
        A record is of a newer mops, or is not one.
    """
    paths, kept = JobPaths(job.job), KeptOptions(0, job.options)
    while (data := files.get_many([paths.options(kept.k + 1)])[0]) is not None:
        found = _parse(data, job, f"{files.url}/{paths.options(kept.k + 1)}")
        kept = KeptOptions(kept.k + 1, found or kept.options)
    return kept


def keep_options(files: Files, job: JobRecord, before: KeptOptions, now: JobOptions) -> None:
    """Keep the options of a command with the job, unless they are what the job has already.

    Parameters
    ----------
    before
        What the command has read and changed.

    Raises
    ------
    JobError
        Another command has changed them meanwhile.
    """
    if now == before.options:
        return
    path = JobPaths(job.job).options(before.k + 1)
    record = {"format": FORMAT, "created": job.created, "options": now.to_json()}
    content = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()
    if not files.put_new(path, content) and files.get(path) != content:  # the same bytes: an answer was lost
        raise JobError(
            f"another command has changed the options of job {job.job!r} meanwhile",
            where=f"{files.url}/{path}",
            hint=f"look at the job: mops jobs status {job.job}; then repeat the command",
        )


def _parse(data: bytes, job: JobRecord, where: str) -> JobOptions | None:
    """Return the options of a record; None: it is of a job that had the same name before."""
    try:
        record = json.loads(data)
        if record["created"] != job.created:
            return None
        if record["format"] > FORMAT:
            raise NewerFormat(
                f"this record has format {record['format']}, and this mops reads {FORMAT}",
                where=where,
                hint="install the version of mops that resumed the job, or a newer one",
            )
        return JobOptions.from_json(record["options"])
    except (ValueError, KeyError, TypeError) as bad:
        raise CorruptRecord("this record is not what mops wrote", where=where) from bad
