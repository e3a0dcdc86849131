"""Reads a job's committed results as Arrow datasets, chunk by chunk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from mops.errors import CorruptRecord, UsageError
from mops.parquet.schemas import unified, with_dictionaries
from mops.storage.ancestors import PartRows
from mops.storage.files import Files
from mops.storage.filtered_dataset import FilteredFile, filtered, unfiltered
from mops.study.column_families import Columns
from mops.units import without_numbers

_READERS = 16

CHUNK_ROWS = 10_000

_MOST_REASONS = 1_000

_OTHER_REASONS = "other messages"


@dataclass(frozen=True)
class FilteredPart:
    """A part without the rows of some groups: ``without`` has their intervals, from start up to stop."""

    path: str
    without: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Table:
    """The committed rows of one table of a job's results.

    Parameters
    ----------
    kind, name
        ``outputs`` and the output's name, or twice ``losses`` or ``failures``.
    folder
        The folder of its parts. It may also hold parts of a killed runner, which do not count and are not in ``paths``.
    paths
        Parts in which every row counts.
    filtered
        Parts of a derived job's ancestors in which the rows of some groups do not count.
    """

    kind: str
    name: str
    rows: int
    bytes: int
    folder: str
    paths: tuple[str, ...]
    filtered: tuple[FilteredPart, ...] = ()


@dataclass(frozen=True)
class Reason:
    """A reason of failures: how many simulations and targets, the verdict, the first line of the message."""

    n: int
    verdict: str
    message: str


def best_sets(losses: pa.Table, params: pa.Table, n: int, weights: Mapping[str, float] | None) -> pa.Table:
    """Rank parameter sets by the weighted sum of their losses.

    Parameters
    ----------
    losses, params
        The tables of :meth:`mops.jobs.job.Job.losses` and :meth:`mops.jobs.job.Job.params`.
    n
        The most rows.
    weights
        The weight of each loss that counts, by its label; None: the sum of all losses.

    Returns
    -------
    pyarrow.Table
        As :meth:`mops.jobs.job.Job.best`.

    Raises
    ------
    UsageError
        A weight names no loss; the error lists the labels.
    """
    labels = loss_labels(losses)
    weights = dict.fromkeys(labels, 1.0) if weights is None else weights
    if unknown := sorted(weights.keys() - labels.keys()):
        raise UsageError(
            f"no loss has the label {', '.join(map(repr, unknown))}",
            where="the weights",
            hint=f"the labels are {', '.join(map(repr, labels)) or 'none, because the job has no losses'}",
        )
    wide = losses.group_by(["param_id", "group"]).aggregate([])
    for label, (target, name) in labels.items():
        is_it = pc.and_(pc.equal(losses["target"], target), pc.equal(losses["name"], name))
        one = losses.filter(is_it).select(["group", "loss"]).rename_columns(["group", f"loss.{label}"])
        wide = wide.join(one, "group", join_type="inner")
    total = pa.chunked_array([pa.nulls(len(wide), pa.float64()).fill_null(0.0)])
    for label, weight in weights.items():
        total = pc.add(total, pc.multiply(wide[f"loss.{label}"], weight))
    wide = wide.add_column(2, "loss", total).sort_by([("loss", "ascending"), ("group", "ascending")]).slice(0, n)
    names = ["param_id", "group", "loss", *labels]
    wide = wide.select(["param_id", "group", "loss", *(f"loss.{label}" for label in labels)]).rename_columns(names)
    typed = params.drop_columns(["group", "seeds", "params"])
    order = [("loss", "ascending"), ("group", "ascending")]
    return wide.join(typed, "param_id", right_suffix=".param").sort_by(order)


def loss_labels(losses: pa.Table) -> dict[str, tuple[str, str]]:
    """Return target and name of each loss by its label: the target's function, and the name if there are several."""
    pairs = losses.group_by(["target", "name"], use_threads=False).aggregate([]).to_pylist()
    of_target = Counter(pair["target"] for pair in pairs)
    of_function = Counter(target.rpartition(":")[2] for target in of_target)
    found = {}
    for pair in pairs:
        target, name = pair["target"], pair["name"]
        function = target.rpartition(":")[2]
        label = function if of_function[function] == 1 else target
        found[label if of_target[target] == 1 else f"{label}.{name}"] = (target, name)
    return found


def dataset_of(
    files: Files,
    job: str,
    rows: Sequence[PartRows],
    empty: pa.Schema,
    families: Columns | None = None,
    dictionaries: Sequence[str] = (),
) -> ds.Dataset:
    """Return committed rows as one dataset.

    Parameters
    ----------
    empty
        The schema of an empty result.
    families
        The type families of the columns.
    dictionaries
        Columns of strings to read as dictionaries.

    Raises
    ------
    FileNotFoundError
        A part is missing.
    CorruptRecord
        A part is not a Parquet file.
    """
    if not rows:
        return ds.dataset(with_dictionaries(empty, dictionaries).empty_table())
    filesystem, _ = files.arrow(rows[0].part.path)
    paths = [files.arrow(some.part.path)[1] for some in rows]
    with ThreadPoolExecutor(_READERS) as pool:
        schemas = list(pool.map(lambda path: _schema_of(job, path, filesystem), paths))
    schema = with_dictionaries(unified(schemas, f"{files.url}/{rows[0].part.path}", families), dictionaries)
    file_format = ds.ParquetFileFormat(dictionary_columns=set(dictionaries))
    if any(some.without for some in rows):
        parts = [FilteredFile(path, some.job, some.without) for path, some in zip(paths, rows, strict=True)]
        return filtered(parts, schema, filesystem, file_format)
    return unfiltered(paths, schema, filesystem, file_format)


def _schema_of(job: str, path: str, filesystem: FileSystem) -> pa.Schema:
    try:
        return pq.read_schema(path, filesystem=filesystem)
    except FileNotFoundError as missing:
        raise FileNotFoundError(path) from missing
    except pa.ArrowInvalid as bad:
        raise CorruptRecord(
            f"a committed part of job {job!r} is damaged: it is not a Parquet file",
            where=path,
            hint=f"list all damaged parts, to restore them from a backup: mops jobs verify {job}",
        ) from bad


def count_reasons(batches: Iterable[pa.RecordBatch]) -> list[Reason]:
    """Count failures by reason, the most frequent first; messages that differ only in numbers are one reason.

    Parameters
    ----------
    batches
        The columns ``reason`` and ``message``.
    """
    reasons: dict[tuple[str, str], Reason] = {}
    for batch in batches:
        table = pa.Table.from_batches([batch])
        # Without threads, the groups come in the order of the rows.
        found = table.group_by(["reason", "message"], use_threads=False).aggregate([([], "count_all")])
        columns = (found[name].to_pylist() for name in ("reason", "message", "count_all"))
        for verdict, text, n in zip(*columns, strict=True):
            message = text.partition("\n")[0]
            kind = (verdict, without_numbers(message))
            if kind not in reasons and len(reasons) >= _MOST_REASONS:
                kind, message = (verdict, _OTHER_REASONS), _OTHER_REASONS
            known = reasons.get(kind, Reason(0, verdict, message))
            reasons[kind] = replace(known, n=known.n + n)
    return sorted(reasons.values(), key=lambda reason: -reason.n)
