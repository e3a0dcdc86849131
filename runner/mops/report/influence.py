"""Which parameters the losses and the outputs depend on."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from mops.errors import UsageError
from mops.figures import charts
from mops.figures.sensitivity import LEAST_SETS, Sensitivity
from mops.figures.sobol import LEAST_BLOCKS, Sobol
from mops.jobs.figure_data import MeasuredSets, measured_of, sensitivity_of, sobol_of
from mops.report.content import Block, Figure, Gallery, Section
from mops.report.facts import Facts
from mops.units import counted

_RANKS = (
    "Spearman's rank correlation of each parameter with each loss and result. At 1, the result rises whenever the "
    "parameter rises; at -1 it falls. The correlation misses influences that rise and fall again."
)
_OTHER_DESIGN = (
    " Sobol indices find these too: the report has them if the parameter sets are a Saltelli design whose parameters "
    "are continuous, as sobol.sample of SALib makes it, with all its sets in their order."
)
_AXIS_HEIGHT = 58


def influence(facts: Facts) -> Section | None:
    """Return the section about sensitivity; None: the job has too few sets, or nothing to compare."""
    measured = measured_of(facts.data)
    found = sensitivity_of(measured)
    if found.n_sets < LEAST_SETS:
        return None
    notes = [Block("note", text) for text in (*found.notes, *measured.notes)]
    left_out = "".join(f" {text}" for text in found.texts)
    ranks = _rank_figures(found, measured)
    if not ranks:
        return Section("sensitivity", "Sensitivity", notes) if measured.notes else None
    try:
        indices = sobol_of(measured)
    except UsageError as missing:  # SALib is not installed
        notes.append(Block("note", f"{missing.what}: {missing.hint}."))
        return Section("sensitivity", "Sensitivity", [Gallery(ranks), *notes], f"{_RANKS}{left_out}")
    if indices is None:
        intro = f"{_RANKS}{_OTHER_DESIGN}{left_out}{_proposal(facts)}"
        return Section("sensitivity", "Sensitivity", [Gallery(ranks), *notes], intro)
    shares = [
        _figure(charts.sobol(indices, measure), indices.table.filter(pc.equal(indices.table["measure"], measure)))
        for measure in indices.measures
    ]
    parts: list[Gallery | Block] = [Gallery(shares)] if shares else []
    parts += [Block("note", f"{_RANKS}{left_out}"), Gallery(ranks), *notes]
    return Section("sensitivity", "Sensitivity", parts, _sobol_intro(indices))


def _rank_figures(found: Sensitivity, measured: MeasuredSets) -> list[Figure]:
    known = found.known().table
    tables = ((measure, known.filter(pc.equal(known["measure"], measure))) for measure in measured.measures)
    return [_figure(charts.sensitivity(found, measure), table) for measure, table in tables if len(table)]


def _figure(chart: charts.Chart, data: pa.Table) -> Figure:
    return Figure(chart, data, height=_AXIS_HEIGHT + chart.height)  # a row for each parameter


def _sobol_intro(found: Sobol) -> str:
    design = found.design
    sets = f"The parameter sets are a Saltelli design: {counted(design.n_blocks, 'block')} of {design.size} sets."
    if not found.measures:
        return f"{sets} Sobol indices need at least {LEAST_BLOCKS} blocks whose sets all have a value."
    return (
        "Sobol indices say which share of the variance of a loss or a result a parameter causes: the first-order index "
        f"alone, the total index also together with other parameters. {sets}"
    )


def _proposal(facts: Facts) -> str:
    found = facts.calibration
    if found is None or facts.data.name == f"{found.name}-r1":
        return ""
    return (
        " The sets of this round were drawn near the best sets of earlier rounds, so the correlations describe this "
        "choice of sets and not the whole space."
    )
