"""Ranks parameter sets by their losses."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from mops.errors import UsageError
from mops.figures.losses import TOTAL, ScoredSets, wide_losses
from mops.study.entry_point import loss_labels

RANKED_BY = "ranked_by"  # the column with the loss that ranks a set, if several losses do so

_BETWEEN = "\0"


def scored_sets(
    losses: pa.Table,  # the columns `param_id`, `group`, `target`, `name` and `loss`
    # Only its losses: its entry point, or its function if no other target has a function of this name.
    target: str | None = None,
    # Of each loss that counts, by its label; None: of one loss 1, and several have no sum.
    weights: Mapping[str, float] | None = None,
    *,
    sets_run: int | None = None,  # as in `mops.figures.losses.ScoredSets`
) -> ScoredSets:
    """Return the parameter sets with their losses, without the parameters; raise UsageError that lists the losses."""
    # In the order of the rows, which group_by does not keep.
    keys = pc.unique(pc.binary_join_element_wise(losses["target"], losses["name"], _BETWEEN)).to_pylist()
    of_pair = loss_labels((of, name) for of, name in (key.split(_BETWEEN) for key in keys))
    labels, weights = _of_target(target, {label: pair for pair, label in of_pair.items()}), weights or None
    if unknown := sorted((weights or {}).keys() - labels.keys()):
        raise UsageError(
            f"no loss has the label {', '.join(map(repr, unknown))}",
            where="the weights",
            hint=f"the labels are {', '.join(map(repr, labels)) or 'none, because the job has no losses'}",
        )
    for label, weight in (weights or {}).items():
        if not math.isfinite(weight):
            raise UsageError(f"the weight of {label!r} is {weight}", where="the weights", hint="use a finite number")
    return ScoredSets(wide_losses(losses, labels, weights), tuple(labels), (), sets_run, weights)


def ranked(losses: pa.Table, target: str | None, weights: Mapping[str, float] | None) -> pa.Table:
    """Rank parameter sets by their loss, or by the weighted sum of their losses; arguments as for ``scored_sets``."""
    # The columns are those of `Job.best` without the parameters. Several losses without weights rank the sets one after
    # the other, and the column `ranked_by` has the label of the loss.
    scored = scored_sets(losses, target, weights)
    if scored.has_total or not scored.labels:
        return scored.ranked
    tables = []
    for one in scored.criteria():
        rows = one.ranked
        tables.append(rows.add_column(0, RANKED_BY, pa.array([one.title(TOTAL)] * len(rows), pa.string())))
    return pa.concat_tables(tables)


def require_total(scored: ScoredSets, where: str) -> None:
    """Raise UsageError if several losses have no weights, so that no set is the best."""
    if len(scored.labels) > 1 and not scored.has_total:
        raise UsageError(
            f"the job has {len(scored.labels)} losses, and without weights they have no sum: "
            f"{', '.join(map(repr, scored.labels))}",
            where=where,
            hint=f"give the losses that count a weight: --weight {scored.labels[0]}=1, or in Python "
            f"weights={{{scored.labels[0]!r}: 1.0}}",
        )


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
