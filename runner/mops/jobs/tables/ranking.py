"""Ranks parameter sets by their losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from mops.errors import UsageError

_FIRST = ("param_id", "group", "loss")
_BETWEEN = "\0"
_ORDER = [("loss", "ascending"), ("group", "ascending")]


def ranked(losses: pa.Table, target: str | None, weights: Mapping[str, float] | None) -> pa.Table:
    """Rank parameter sets by the weighted sum of their losses.

    The columns are those of :meth:`mops.jobs.job.Job.best` without the parameters.

    Parameters
    ----------
    losses
        The columns ``param_id``, ``group``, ``target``, ``name`` and ``loss``.
    target
        Only the losses of this target: its entry point, or its function if no other target has a function of this name.
    weights
        The weight of each loss that counts, by its label; None: the sum of all losses.

    Raises
    ------
    UsageError
        The target has no loss, or a weight names no loss; the error lists those that exist.
    """
    labels = _of_target(target, loss_labels(losses))
    weights = dict.fromkeys(labels, 1.0) if weights is None else weights
    if unknown := sorted(weights.keys() - labels.keys()):
        raise UsageError(
            f"no loss has the label {', '.join(map(repr, unknown))}",
            where="the weights",
            hint=f"the labels are {', '.join(map(repr, labels)) or 'none, because the job has no losses'}",
        )
    wide = losses.group_by(["param_id", "group"]).aggregate([])
    for label, (of_target, name) in labels.items():
        is_it = pc.and_(pc.equal(losses["target"], of_target), pc.equal(losses["name"], name))
        one = losses.filter(is_it).select(["group", "loss"]).rename_columns(["group", f"loss.{label}"])
        wide = wide.join(one, "group", join_type="inner")
    total = pa.chunked_array([pa.nulls(len(wide), pa.float64()).fill_null(0.0)])
    for label, weight in weights.items():
        total = pc.add(total, pc.multiply(wide[f"loss.{label}"], weight))
    wide = wide.add_column(2, "loss", total).sort_by(_ORDER)
    return wide.select([*_FIRST, *(f"loss.{label}" for label in labels)]).rename_columns([*_FIRST, *labels])


def _of_target(target: str | None, labels: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    if target is None:
        return labels
    known = {of for of, _ in labels.values()}
    chosen = [of for of in known if of == target] or [of for of in known if of.rpartition(":")[2] == target]
    if len(chosen) != 1:
        raise UsageError(
            f"{'several targets have' if chosen else 'no target with a loss has'} the name {target!r}",
            where="the target",
            hint=f"the targets are {', '.join(map(repr, sorted(known))) or 'none, because the job has no losses'}",
        )
    return {label: pair for label, pair in labels.items() if pair[0] == chosen[0]}


def loss_labels(losses: pa.Table) -> dict[str, tuple[str, str]]:
    """Return target and name of each loss by its label: the target's function, and the name if there are several.

    If two functions have the same name, or one has the name of another column, the label has the whole entry point.
    """
    # In the order of the rows, which group_by does not keep.
    keys = pc.unique(pc.binary_join_element_wise(losses["target"], losses["name"], _BETWEEN)).to_pylist()
    pairs = [tuple(key.split(_BETWEEN)) for key in keys]
    of_target = Counter(target for target, _ in pairs)
    of_function = Counter(target.rpartition(":")[2] for target in of_target)
    found = {}
    for target, name in pairs:
        function = target.rpartition(":")[2]
        label = function if of_function[function] == 1 and function not in _FIRST else target
        found[label if of_target[target] == 1 else f"{label}.{name}"] = (target, name)
    return found
