"""Notes about declared data that no figure of a report shows."""

from __future__ import annotations

from collections.abc import Sequence

from mops.errors import MopsError
from mops.figures.choices import number_columns
from mops.figures.fan import Fan
from mops.project.mops_toml import Observed
from mops.report.content import Block
from mops.report.facts import Facts


def unshown_data(facts: Facts, fans: Sequence[Fan]) -> list[Block]:
    """Return a note for each table of declared data that is in none of the fans, with the reason."""
    if isinstance(facts.data.observed, MopsError):
        return [Block("note", f"The figures have no data: {facts.data.observed.what} ({facts.data.observed.where}).")]
    shown = {(fan.output, fan.x, fan.y) for fan in fans}
    known = [(one.output, one.x, one.y) for one in facts.data.observed]
    return [
        Block("note", f"No figure shows the data of {one.file} for {one.y!r} of {one.output!r}: {reason}.")
        for i, one in enumerate(facts.data.observed)
        if (reason := _reason(facts, one, fans, is_first=known[i] not in known[:i], is_shown=known[i] in shown))
    ]


def _reason(facts: Facts, data: Observed, fans: Sequence[Fan], *, is_first: bool, is_shown: bool) -> str:
    """Return why no figure shows the data; empty: one does."""
    keys = next((fan.keys for fan in fans if (fan.output, fan.x, fan.y) == (data.output, data.x, data.y)), ())
    if lacking := [key for key in keys if key not in data.table.column_names]:
        return f"the figures are apart for each {lacking[0]!r}, and the data have no column of this name"
    if is_shown:
        return "" if is_first else "a figure shows the first data that mops.toml declares for a column"
    names = facts.data.output_names
    if data.output not in names:
        return f"the job has no such output. It has {', '.join(names) or 'none'}"
    schema = facts.data.dataset("outputs", data.output).schema
    for name in (data.x, data.y):
        if name not in schema.names:
            return f"the output has no column {name!r}. It has {', '.join(schema.names)}"
    if data.y not in number_columns(schema, [data.x]):
        return f"the column has the type {schema.field(data.y).type}, and a figure needs numbers"
    along = next((fan.x for fan in fans if fan.output == data.output), data.x)
    if along != data.x:
        return f"the figures of this output are along {along!r}, and the data along {data.x!r}"
    return "the output has no finite values of this column, or the report has figures of 4 other outputs"
