"""Functions of ``mops`` that are not about one job: connect, disconnect, jobs, settings, sample."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from mops.errors import UsageError, known_name
from mops.jobs.conditions import Where
from mops.jobs.listing import list_jobs
from mops.jobs.location import described, locate
from mops.jobs.runners import Runners
from mops.jobs.scan import Computed, Selection
from mops.jobs.table import Table
from mops.service import profile as profiles
from mops.service.connect import connect as connect_service
from mops.service.profile import Profile
from mops.study.json_file import read_text
from mops.study.sampling.draw import Method
from mops.study.sampling.write import draw_sets


def connect(
    namespace: str | None = None,
    *,
    profile: str | None = None,
    context: str | None = None,
    kubeconfig: str | Path | None = None,
    release: str | None = None,
    dedicated: bool = False,
) -> Profile:
    """Connect to a cluster service, so that jobs run there, as ``mops connect`` does.

    Parameters
    ----------
    namespace, context, kubeconfig
        As for kubectl; None: the current ones.
    profile
        The name to save the service with; None: ``default``. With the name of a saved profile and nothing else, mops
        connects to that service again.
    release
        The release of the chart; None: mops.
    dedicated
        Run jobs on dedicated Dask clusters by default.

    Returns
    -------
    Profile
        What mops has saved: ``namespace``, ``context``, ``kubeconfig``, ``dedicated`` and ``service``.

    Raises
    ------
    UsageError
        The kubeconfig or the context does not exist, or the service has no dedicated clusters.
    ServiceError
        The cluster is out of reach, the service does not exist, or you may not use it.

    Examples
    --------
    >>> mops.connect("studies", profile="prod").service.storage
    """
    found, _ = connect_service(profile, namespace, context, kubeconfig, release, dedicated)
    return found


def disconnect() -> None:
    """Run jobs on this machine again, as ``mops disconnect`` does."""
    profiles.disconnect()


JOBS = pa.schema(
    [
        pa.field("job", pa.string()),
        pa.field("state", pa.string()),
        pa.field("groups", pa.int32()),
        pa.field("n_groups", pa.int32()),
        pa.field("simulations_failed", pa.int64()),
        pa.field("created", pa.timestamp("s", "UTC")),
        pa.field("error", pa.string()),
    ]
)
SETTINGS = pa.schema([pa.field(name, pa.string()) for name in ("name", "value", "source", "meaning")])


def jobs(
    states: str | Collection[str] = (),
    limit: int | None = None,
    *,
    where: Where | None = None,
    storage: str | Path | None = None,
    local: bool = False,
) -> Table:
    """List the jobs of a storage, newest first, as ``mops jobs list`` does.

    Parameters
    ----------
    states
        Only jobs in these states, such as ``"running"`` or ``["running", "interrupted"]``; empty: all.
    limit
        At most this many of the newest; None: all.
    where
        A condition for the columns, as for :meth:`Job.outputs`.
    storage, local
        As for :func:`mops.open_job`.

    Returns
    -------
    Table
        A row for each job:

        - ``job`` (string): its name
        - ``state`` (string): as in :class:`~mops.jobs.status.Status`, or ``unreadable``
        - ``groups``, ``n_groups`` (int32): the committed groups, and all groups
        - ``simulations_failed`` (int64): the committed simulations that failed
        - ``created`` (timestamp in s, UTC): when the job was submitted
        - ``error`` (string): why the job is unreadable; null for other jobs

    Raises
    ------
    UsageError
        A state is unknown. This and errors of the storage are raised when the table is read.

    Warns
    -----
    UserWarning
        Kubernetes does not answer, when the table is read: the states are those of the storage.

    Examples
    --------
    >>> mops.jobs("running").to_pandas()
    """
    files = locate(storage, local=local).open()
    wanted = [states] if isinstance(states, str) else list(states)

    def opened() -> Computed:
        runners = Runners(files, local=local)
        listed = list_jobs(files.brief(), wanted, limit, phases=runners.phases)
        if runners.error:
            warnings.warn(runners.warning, UserWarning, stacklevel=4)
        created = [datetime.fromisoformat(one.created) if one.created else None for one in listed]
        rows = [vars(one) | {"created": at} for one, at in zip(listed, created, strict=True)]
        return Computed(pa.Table.from_pylist(rows, schema=JOBS), Selection(where=where))

    return Table(f"jobs in {files.url}", opened)


def settings(*, local: bool = False) -> Table:
    """List every setting, as ``mops settings`` does.

    Parameters
    ----------
    local
        Leave a connected service aside.

    Returns
    -------
    Table
        ``name`` (string): the variable; ``value`` (string); ``source`` (string): where the value comes from;
        ``meaning`` (string).

    Examples
    --------
    >>> mops.settings().to_pandas()
    """

    def opened() -> Computed:
        lines = described(locate(local=local))
        rows = [{"name": one.name, "value": one.text, "source": one.source, "meaning": one.meaning} for one in lines]
        return Computed(pa.Table.from_pylist(rows, schema=SETTINGS), Selection())

    return Table("settings", opened)


def sample(
    space: str | Path | Mapping[str, Any],
    n: int | None = None,
    *,
    method: Literal["sobol", "lhs", "grid"] = "sobol",
    seed: int = 0,
) -> Table:
    """Draw parameter sets from a space, as ``mops study sample`` does.

    Parameters
    ----------
    space
        Path of a space file, or a mapping with its keys: ``{"beta": {"min": 0.1, "max": 0.5}}``.
    n
        The number of parameter sets; None: a grid.
    method : {"sobol", "lhs", "grid"}
        How to draw; ``lhs`` is a Latin hypercube.
    seed
        The same seed gives the same sets in the same order.

    Returns
    -------
    Table
        A row for each set, and a column for each parameter (boolean, int64, float64 or string). Pass it to
        :func:`mops.submit` as ``sets``.

    Raises
    ------
    StudyError
        The space has problems; the error lists all of them.
    UsageError
        The method is unknown, or ``n`` is not possible for it.

    Examples
    --------
    >>> sets = mops.sample({"beta": {"min": 0.1, "max": 0.5}}, 64)
    >>> job = mops.submit(model=sir.simulate, targets=[sir.peak], sets=sets)
    """
    given = isinstance(space, Mapping)
    text, where = (json.dumps(space), "the space") if given else (read_text(Path(str(space)), "space"), str(space))
    if method not in tuple(Method):
        raise UsageError(f"the method {method!r} is unknown", where="mops.sample", hint=known_name(str(method), Method))
    drawn = draw_sets(text, where, method=Method(method), n=n, seed=seed)
    return Table("sampled parameter sets", lambda: Computed(drawn.table, Selection()))
