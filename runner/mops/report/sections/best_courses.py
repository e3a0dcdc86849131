"""The courses of the best sets, compared with those of all sets."""

from __future__ import annotations

from mops.figures.choices import Course
from mops.figures.fan import Fan, have_decades
from mops.figures.losses import TOTAL, ScoredSets, named
from mops.jobs.figure_data import best_groups, data_of, fans_of
from mops.project.mops_toml import Observed
from mops.report.content import Figure, Width
from mops.report.facts import Facts
from mops.report.sections.fan_pairs import FanPair, Side, only_text, pairs_of_divisions
from mops.report.sections.losses import by_loss
from mops.units import counted, shortened


def best_courses(facts: Facts, scored: ScoredSets, course: Course, n_best: int, width: Width) -> list[Figure]:
    """Return a figure for each column of a course and each division: all sets, and the best sets before them."""
    groups = best_groups(scored, n_best)
    every, best = fans_of(facts.data, course, by=False), fans_of(facts.data, course, by=False, best=groups)
    figures = []
    for one, of_best in zip(every, best, strict=True):
        data = data_of(facts.data.observed, one)
        for whole, chosen in pairs_of_divisions(one, of_best):
            division = whole.table["division"][0].as_py()
            here = data and data.of_division(division)
            figures.append(_figure(whole, chosen, here, scored, width, has_decades=have_decades(every)))
    return figures


def _figure(
    every: Fan, best: Fan, data: Observed | None, scored: ScoredSets, width: Width, *, has_decades: bool
) -> Figure:
    loss = named(scored.title(TOTAL))
    sets = counted(best.n_sets_shown, "set")
    over = Side(best, "best", "the best sets", f"the {sets} with the least {loss}")
    pair = FanPair(Side(every, "all", "all sets", "all sets"), over, data, has_decades=has_decades)
    n_best = counted(best.n_simulations, "simulation")
    caption = (
        f"Median (lines) and the middle 90 % (bands) of {every.y!r} over {n_best} of the {sets} with the least "
        f"{loss}, and over {every.n_simulations:,} of all sets."
    )
    output = shortened(every.output, 30)
    title = f"{shortened(every.y, 40)} of the best sets{by_loss(scored)} ({output}){only_text(every)}"
    return pair.figure(title, caption, pair.alt, width)
