"""Ranks parameter sets by their losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from mops.errors import UsageError
from mops.figures.losses import TOTAL, ScoredSets, wide_losses

RANKED_BY = "ranked_by"  # the column with the loss that ranks a set, if several losses do so

_FIRST = ("param_id", "group", TOTAL)
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
    labels, weights = _of_target(target, loss_labels(losses)), weights or None
    if unknown := sorted((weights or {}).keys() - labels.keys()):
        raise UsageError(
            f"no loss has the label {', '.join(map(repr, unknown))}",
            where="the weights",
            hint=f"the labels are {', '.join(map(repr, labels)) or 'none, because the job has no losses'}",
        )
    return ScoredSets(wide_losses(losses, labels, weights), tuple(labels), (), sets_run, weights)


def ranked(losses: pa.Table, target: str | None, weights: Mapping[str, float] | None) -> pa.Table:
    """Rank parameter sets by their loss, or by the weighted sum of their losses; arguments as for ``scored_sets``."""
    # The columns are those of `Job.best` without the parameters. Several losses without weights rank the sets one after
    # the other, and the column `ranked_by` has the label of the loss.
    scored = scored_sets(losses, target, weights)
    if scored.has_total or not scored.labels:
        return _rows(scored)
    tables = [(one.title(TOTAL), _rows(one)) for one in scored.criteria()]
    return pa.concat_tables(
        [rows.add_column(0, RANKED_BY, pa.array([title] * len(rows), pa.string())) for title, rows in tables]
    )


def _rows(scored: ScoredSets) -> pa.Table:
    return scored.table.select([*_FIRST, *scored.labels]).take(pa.array(scored.ranked()))


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


def loss_labels(losses: pa.Table) -> dict[str, tuple[str, str]]:
    """Return target and name of each loss by its label: the target's function, and the name if there are several."""
    # If two functions have the same name, or one has the name of another column, the label has the whole entry point.
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
