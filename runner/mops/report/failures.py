"""Why simulations failed, and where in the parameter space."""

from __future__ import annotations

import pyarrow.compute as pc

from mops.figures import charts
from mops.figures.failures import FailureBins
from mops.jobs.figure_data import failure_bins_of
from mops.jobs.summary import shown_cause
from mops.report.content import Block, Figure, Gallery, Section
from mops.report.facts import Facts
from mops.units import counted

_CAUSES_SHOWN = 10
_PARAMETERS_SHOWN = 6


def failures(facts: Facts) -> Section | None:
    """Return the section about failures; None: there are none."""
    causes = facts.causes
    if not causes:
        return None
    found = failure_bins_of(facts.data)
    intro = f"{counted(len(causes), 'cause')}. {found.n_failed:,} of {counted(found.n_sets, 'parameter set')} "
    intro += f"that {'has' if found.n_sets == 1 else 'have'} run {'has' if found.n_failed == 1 else 'have'} a failure."
    rows = [shown_cause(row) for row in causes[:_CAUSES_SHOWN]]
    shown = {"rows": rows, "more": len(causes) - len(rows), "command": facts.command("failures", "--all")}
    parts: list[Gallery | Block] = [Block("causes", shown)]
    figures = _figures(found) if found.n_failed < found.n_sets else []  # else each share is 100 %
    if figures:
        parts.append(Gallery(figures))
    return Section("failures", "Failures", parts, intro)


def _figures(found: FailureBins) -> list[Figure]:
    """Return a figure for each parameter, those over which the share of failures differs most first."""
    tables = {name: found.table.filter(pc.equal(found.table["parameter"], name)) for name in found.bins}
    shares = {
        name: [share for share in table["share"].to_pylist() if share is not None] for name, table in tables.items()
    }
    order = sorted(found.bins, key=lambda name: min(shares[name], default=0) - max(shares[name], default=0))
    return [Figure(charts.failures(found, name), tables[name]) for name in order[:_PARAMETERS_SHOWN]]
