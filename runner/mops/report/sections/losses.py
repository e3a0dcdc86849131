"""The losses: the best sets, how losses are spread, and how they depend on the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.figures.bins import Bins
from mops.figures.columns import numbers
from mops.figures.losses import TOTAL, ScoredSets, distribution, named
from mops.figures.parallel import Parallel, parallel
from mops.figures.profiles import Pairs, Profile, pairs, profile, telling_parameters
from mops.report.content import Block, Figure, Gallery, Key, Section, csv_address
from mops.report.drawing.axes import bin_axis, bin_rows, loss_axis, point_axis, values
from mops.report.drawing.histograms import histogram
from mops.report.drawing.look import BLUE, GREY, SHARES, VERMILION
from mops.report.drawing.parallel import parallel_svg
from mops.report.facts import Facts
from mops.report.numbers import cell
from mops.study.ids_and_seeds import short_id
from mops.units import counted, number, shortened

MOST_RANKINGS = 3  # how many losses rank the sets in a report, if several have no weights

_ROWS_SHOWN = 20
_POINT_MARGIN = 6  # pixels
_PAIR_PARAMETERS = 4
_MOST_AS_POINTS = 1_000  # more would make the file too large: each pair draws all
_COLOURED = 0.75  # the share of the sets, those with the least losses, whose colours tell their losses apart
_DARKEST_BEST = tuple(reversed(SHARES))
_EQUAL = 0.02  # of the greatest loss shown: a smaller spread is no bar
_DISTRIBUTIONS = 6
_COLUMNS_OF_LOSSES = 6
_FEWEST_BEST, _MOST_BEST, _OTHERS = 20, 100, 400  # sets that are lines


def losses(facts: Facts) -> Section | None:
    """Return the section about losses; None: the study has no targets."""
    if not facts.data.record.spec.targets:
        return None
    scored, n = facts.scored, facts.scored.n_complete
    if not n:
        return Section(
            "losses", "Losses", [Block("note", f"No parameter set has all losses{'' if facts.has_ended else ' yet'}.")]
        )
    parts = [] if scored.has_total else _without_weights(scored)
    for one in scored.criteria()[:MOST_RANKINGS]:
        parts += _ranked(one, has_distributions=scored.has_total)
    return Section("losses", "Losses", parts, _intro(facts))


def by_loss(scored: ScoredSets) -> str:
    """Return which of several losses ranks the sets; empty: there is no choice."""
    of_several = len(scored.labels) > 1 and scored.weights is not None and len(scored.weights) == 1
    return f" by {shortened(scored.title(TOTAL), 40)}" if of_several else ""


def _without_weights(scored: ScoredSets) -> list[Gallery | Block]:
    """Say that each loss ranks the sets, and show how each is spread."""
    names = ", ".join(shortened(label, 40) for label in scored.labels)
    weights = " ".join(f"--weight {label}=1" for label in scored.labels[:MOST_RANKINGS])
    text = f"Each loss ranks the sets, because the losses have no weights: {names}."
    if len(scored.labels) > MOST_RANKINGS:
        text += f" The rankings of the first {MOST_RANKINGS} are below; --target shows those of one target."
    text += f" To rank by a weighted sum, add weights to the command of the report, such as {weights}."
    return [
        Block("note", text),
        Gallery([_distribution(scored, label) for label in scored.shown_labels[:_DISTRIBUTIONS]]),
    ]


def _ranked(scored: ScoredSets, *, has_distributions: bool) -> list[Gallery | Block]:
    """Return the figures of one ranking."""
    n = len(scored.ranked())
    if not n:
        return [Block("note", f"No parameter set has the {named(scored.title(TOTAL))}.")]
    lines = parallel(scored, best=min(max(n // 10, _FEWEST_BEST), _MOST_BEST), others=_OTHERS)
    labels = scored.shown_labels[:_DISTRIBUTIONS] if has_distributions else ()
    figures = [_distribution(scored, label) for label in labels]
    shown = telling_parameters(scored)
    figures += [_profile(profile(scored, name), by_loss(scored)) for name in shown]
    crossed = pairs(scored, parameters=telling_parameters(scored, most=_PAIR_PARAMETERS))
    parts: list[Gallery | Block] = []
    if len(lines.axes) > 1:
        parts.append(Block("parallel", _parallel(lines) | {"by": by_loss(scored)}))
    parts.append(Block("ranking", _ranking(scored, lines)))
    if n > 1 and figures:
        parts.append(Gallery(figures))
    parts += _not_shown(scored, shown, crossed.parameters)
    if len(crossed.parameters) > 1:
        shade = Shades.of(scored)
        parts.append(Gallery([_pair(scored, crossed, names, shade) for names in combinations(crossed.parameters, 2)]))
    return parts


def _intro(facts: Facts) -> str:
    """Say how many sets have all losses, of those that have run."""
    scored, n, n_run, n_all = facts.scored, facts.scored.n_complete, facts.scored.n_run, facts.data.record.n_groups
    title = f"The {named(scored.title(TOTAL))} says" if scored.has_total else "The losses say"
    text = f"{title} how far a set is from the data: less is better."
    run = "" if n_run == n_all else " that have run"
    text = f"{text} {_scored_of_all(n, n_run, run, len(scored.labels))}"
    if n_run == n_all:
        return text
    return f"{text} {n_run:,} of {counted(n_all, 'set')} have run{'' if facts.has_ended else ' so far'}."


def _scored_of_all(n: int, n_run: int, run: str, n_losses: int) -> str:
    losses = "all losses" if n_losses > 1 else "a loss"
    if n == n_run:
        return f"All {n:,} parameter sets{run} have {losses}." if n > 1 else f"One parameter set has {losses}."
    have, missing = "has" if n == 1 else "have", n_run - n
    lack = "lacks" if missing == 1 else "lack"
    return f"{n:,} of {counted(n_run, 'parameter set')}{run} {have} {losses}; {missing:,} {lack} one."


def _not_shown(scored: ScoredSets, profiles: Sequence[str], crossed: Sequence[str]) -> list[Gallery | Block]:
    """Return a note that names the parameters without a profile or without pairs, and says how mops chooses."""
    rows = scored.table.take(pa.array(scored.ranked()))
    varying = [name for name in scored.parameters if len(rows[name].drop_null().unique()) > 1]
    texts = [
        f"{what}: {', '.join(shortened(name, 40) for name in missing)}."
        for what, shown in (("Without a profile", profiles), ("Without pairs", crossed))
        if (missing := [name for name in varying if name not in shown])
    ]
    chosen = "The figures have the parameters whose bins explain most of the variance of the ranks of the loss."
    return [Block("note", " ".join([chosen, *texts]))] if texts else []


def _ranking(scored: ScoredSets, lines: Parallel) -> dict[str, Any]:
    labels = [label for label in scored.labels if label != scored.title(TOTAL)][:_COLUMNS_OF_LOSSES]
    names = [axis.name for axis in lines.axes if axis.name != lines.sets.label]
    rows = lines.sets.table.to_pylist()
    shown = [row[TOTAL] for row in rows[:_ROWS_SHOWN]]
    least, most = min(shown), max(shown)
    has_meters = most - least > _EQUAL * abs(most)
    return {
        "by": by_loss(scored),
        "head": [scored.title(TOTAL), *names, *labels],
        "rows": [
            {
                "group": row["group"],
                "rank": rank,
                "id": short_id(row["param_id"]),
                "meter": 100 * (row[TOTAL] - least) / (most - least) if has_meters else None,
                "cells": [cell(row[name]) for name in (TOTAL, *names, *labels)],
            }
            for rank, row in zip(lines.sets.ranks.tolist(), rows, strict=True)
        ],
        "shown": _ROWS_SHOWN,
        "has_meters": has_meters,
        "csv": csv_address(lines.sets.table_with_ranks),
        "n": lines.sets.n_sets,
    }


def _parallel(lines: Parallel) -> dict[str, Any]:
    svg, axes = parallel_svg(lines)
    keys = []
    if lines.sets.n_best:
        keys.append(Key(VERMILION, "best set"))
        keys.append(Key(BLUE, f"{counted(lines.sets.n_best, 'set')} with the least {named(lines.sets.title)}"))
    if keys and lines.sets.n_others:
        keys.append(Key("var(--pale)", "others"))
    csv = csv_address(lines.sets.table_with_ranks)
    n_shown = lines.sets.n_best + lines.sets.n_others
    is_part = n_shown < lines.sets.n_sets
    caption = f"{lines.caption} The page has these {n_shown:,} only." if is_part else lines.caption
    return {"svg": svg, "axes": axes, "caption": caption, "keys": keys, "csv": csv, "n": lines.sets.n_sets}


def _distribution(scored: ScoredSets, label: str) -> Figure:
    found = distribution(scored, label)
    title = f"Distribution of the {shortened(named(found.title), 40)}"
    spec = histogram(found.bins, found.table, found.title, "parameter sets")
    return Figure(title, found.caption, f"Histogram. {found.caption}", spec, found.table)


def _profile(found: Profile, by: str) -> Figure:
    rows = [row | at for row, at in zip(found.table.to_pylist(), bin_rows(found.bins, "x"), strict=True)]
    rows = [row for row in rows if row["best"] is not None]
    y = loss_axis([row[name] for row in rows for name in ("best", "median")], found.title, is_log=found.is_log)
    layers = [
        {
            "mark": _profile_mark(colour, dash, is_text=found.bins.is_text),
            "encoding": {**point_axis(found.bins, "x"), "y": y | {"field": name}},
        }
        for name, colour, dash in (("median", GREY, [3, 3]), ("best", BLUE, [1, 0]))
    ]
    best = min(rows, key=lambda row: row["best"])
    alt = f"Over {found.parameter}, the least {found.title} is {cell(best['best'])}, at {best['label']}."
    keys = [Key(BLUE, "best set"), Key(GREY, "median")]
    title = f"Profile of {shortened(found.parameter, 40)}{by}"
    return Figure(title, found.caption, alt, {**values(rows), "layer": layers}, found.table, keys)


def _profile_mark(colour: str, dash: list[int], *, is_text: bool) -> dict[str, Any]:
    """Return a line with points. Texts have no order that a line could show, so they have points only."""
    if is_text:
        return {"type": "point", "filled": True, "size": 50, "opacity": 1, "color": colour}
    return {"type": "line", "color": colour, "strokeDash": dash, "point": {"size": 20, "color": colour}}


@dataclass(frozen=True)
class Shades:
    """The colours of losses: six steps, equal in width or in ratio, up to the loss that 3 of 4 sets are below."""

    limits: tuple[float, ...]  # the losses between the colours; empty: all losses are equal, and have one colour

    @classmethod
    def of(cls, scored: ScoredSets) -> Shades:
        """Return the colours for the loss that ranks the sets."""
        losses = scored.losses()[scored.ranked()]
        if scored.is_constant():
            return cls(())
        low, high = float(losses[0]), float(np.quantile(losses, _COLOURED))
        spaced = np.geomspace if scored.is_log() else np.linspace
        return cls(tuple(np.unique([float(f"{limit:.3g}") for limit in spaced(low, high, len(SHARES))[1:]]).tolist()))

    def encoding(self, name: str) -> dict[str, Any]:
        """Return the encoding of a column of losses."""
        if not self.limits:
            return {"value": BLUE}
        colours = list(_DARKEST_BEST[: len(self.limits) + 1])
        scale = {"type": "threshold", "domain": list(self.limits), "range": colours}
        return {"field": name, "type": "quantitative", "scale": scale, "legend": None}

    def keys(self, title: str) -> list[Key]:
        """Return the colours with the losses at their ends; empty: all losses are equal."""
        if not self.limits:
            return []
        texts = [f"{shortened(title, 24)} below {number(self.limits[0])}"]
        texts += [f"below {number(limit)}" for limit in self.limits[1:]]
        texts += [f"{number(self.limits[-1])} or more"]
        return [Key(colour, text) for colour, text in zip(_DARKEST_BEST, texts, strict=False)]


def _pair(scored: ScoredSets, found: Pairs, names: tuple[str, str], shades: Shades) -> Figure:
    """Draw the sets as points, or the cells of many sets, in the colours of their losses."""
    x, y = names
    bins = {"x": found.bins[x], "y": found.bins[y]}
    n = found.points.n_sets
    as_points = n <= _MOST_AS_POINTS and any(of.kind != "values" for of in bins.values())
    axes = {**bin_axis(bins["x"], "x"), **bin_axis(bins["y"], "y")}
    if as_points:
        axes = {**_with_margin(point_axis(bins["x"], "x")), **_with_margin(point_axis(bins["y"], "y"))}
        rows, data = _points_of(scored, bins, names)
        mark = {"type": "point", "filled": True, "size": 26, "opacity": 1, "stroke": "var(--axis)", "strokeWidth": 0.4}
        on_top = "" if scored.is_constant() else ", the best on top"
        what, field = f"Each of {counted(n, 'set')} is a point{on_top}", "loss"
    else:
        data = _cells_of(found, names)
        rows = [
            {**row, **bin_rows(bins["x"], "x")[row["x_bin"]], **bin_rows(bins["y"], "y")[row["y_bin"]]}
            for row in data.drop_columns(["x", "y"]).to_pylist()
        ]
        mark, field = {"type": "rect"}, "best"
        what = (
            f"The least {named(found.title)} of the sets in each cell, of {counted(n, 'set')}. An empty cell has none"
        )
    spec = {**values(rows), "mark": mark, "encoding": axes | {"color": shades.encoding(field)}}
    alt = f"The {found.title} of {counted(n, 'set')} over {x} and {y}. The best is at {_best_at(scored, names)}."
    title = f"{shortened(named(found.title), 30)} over {shortened(x, 20)} and {shortened(y, 20)}"
    keys = shades.keys(found.title)
    return Figure(title[0].upper() + title[1:], f"{what}.", alt, spec, data, keys, height=240)


def _with_margin(encoding: dict[str, Any]) -> dict[str, Any]:
    """Keep points at the ends of an axis away from the labels of the other one."""
    return {
        channel: one | ({"scale": one["scale"] | {"padding": _POINT_MARGIN}} if "scale" in one else {})
        for channel, one in encoding.items()
    }


def _points_of(
    scored: ScoredSets, bins: dict[str, Bins], names: tuple[str, str]
) -> tuple[list[dict[str, Any]], pa.Table]:
    """Return the sets, the best last and so on top, and their data, the best first."""
    ranked = scored.table.take(pa.array(scored.ranked()))
    columns = {channel: ranked[name] for channel, name in zip("xy", names, strict=True)}
    data = pa.table({"group": ranked["group"], "x": columns["x"], "y": columns["y"], "loss": ranked[TOTAL]})
    places = {channel: _places(of, columns[channel], channel) for channel, of in bins.items()}
    losses = ranked[TOTAL].to_pylist()
    rows = [x | y | {"loss": loss} for x, y, loss in zip(places["x"], places["y"], losses, strict=True) if x and y]
    return rows[::-1], data


def _places(bins: Bins, column: pa.ChunkedArray, channel: str) -> list[dict[str, Any]]:
    """Return the fields of :func:`point_axis` for each value; none for a value without a place."""
    if bins.kind == "values":
        labels = bins.labels()
        return [{f"{channel}_label": labels[at]} if at >= 0 else {} for at in bins.index(column).tolist()]
    return [{f"{channel}_middle": value} if np.isfinite(value) else {} for value in numbers(column).tolist()]


def _cells_of(found: Pairs, names: tuple[str, str]) -> pa.Table:
    """Return the cells of a pair, with the number of sets in each, and the labels of its bins."""
    table = found.cells.filter(_is_pair(found, *names))
    for channel, name in zip("xy", names, strict=True):
        labels = pa.array(found.bins[name].labels(), pa.string())
        table = table.append_column(f"{channel}_label", labels.take(table[f"{channel}_bin"]))
    return table


def _best_at(scored: ScoredSets, names: tuple[str, str]) -> str:
    row = scored.table.slice(int(scored.ranked()[0]), 1)
    return " and ".join(f"{name} = {cell(row[name][0].as_py())}" for name in names)


def _is_pair(found: Pairs, x: str, y: str) -> Any:
    return pc.and_(pc.equal(found.cells["x"], x), pc.equal(found.cells["y"], y))
