"""The schema that every result of a job must fit: the names of outputs and columns, and the families of their types.

column_families.py explains families. Child processes import this.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from mops.study.column_families import (
    MIXED,
    NULL,
    Columns,
    Families,
    join_columns,
    join_families,
    joined,
    misfits,
    refusal,
)
from mops.study.column_types import families_in, of_type

DEFAULT_OUTPUT = "output"  # the name of the output of a model that returns one table without a name


class OutputSchema:
    """The names and families that results must fit. It learns from the values of each result."""

    # Most results have the same Arrow schema, whose types always fit: mops does not read their values. Once an output
    # has a second schema, or a schema that may not fit, mops reads the values of each result. bench/tricks.py, one
    # child: -13 % of its CPU time.
    def __init__(self, families: Families):
        # ``null``: the first value of a column fixes its family.
        self.families = families
        self._plain: dict[str, pa.Schema | None] = {}  # the only schema so far; None: read the values
        self._unread: dict[str, list[pa.Table]] = {output: [] for output in families}

    def check(self, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """Return the tables with their columns in the reference's order. InvalidOutput names all that does not fit."""
        if tables.keys() != self.families.keys():
            raise InvalidOutput(_differing("output", self.families, tables))
        fitting = {output: self._fit(output, table) for output, table in tables.items()}
        # Only after all checks: a refused result must fix nothing.
        for output, (table, found) in fitting.items():
            if found is None:
                self._unread[output].append(table)
            else:
                self.learn({output: found})
        return {output: table for output, (table, _) in fitting.items()}

    def learn(self, families: Families) -> None:
        """Add the families of results that fitted."""
        self.families = join_families(self.families, families)

    def always_fits(self, tables: Mapping[str, pa.Table]) -> bool:
        """Tell whether all results with the schemas of these tables fit, so mops need not read the values."""
        return all(self._plain.get(output) == table.schema for output, table in tables.items())

    def handed_over(self, families: Families) -> None:
        """Add the families of all results so far, which the child process has handed over."""
        self.learn(families)
        for tables in self._unread.values():
            tables.clear()

    def _fit(self, output: str, table: pa.Table) -> tuple[pa.Table, Columns | None]:
        """Return the table with ordered columns, and the families of its values; None: mops did not read the values."""
        plain = self._plain.get(output)
        if plain is not None and plain == table.schema:
            return table, None
        wanted = self.families[output]
        if wanted.keys() != set(table.column_names):
            raise InvalidOutput(f"output {output!r}: " + _differing("column", wanted, table.column_names))
        table = table.select(list(wanted))
        if self._is_plain(output, table):
            self._plain[output] = table.schema
            return table, None
        # From now on mops reads the values of each table, also of those so far.
        self._plain[output] = None
        if unread := self._unread[output]:
            self.learn({output: families_in(pa.concat_tables(unread))})
            unread.clear()
        found = families_in(table)
        if wrong := misfits(self.families[output], found):
            known, types = self.families[output], table.schema
            problems = [f"column {n!r} {refusal(known.get(n, NULL), found[n], types.field(n).type)}" for n in wrong]
            raise InvalidOutput(
                f"output {output!r}: {', '.join(problems)}; the job's first value fixes the type of a column"
            )
        return table, found

    def _is_plain(self, output: str, table: pa.Table) -> bool:
        """Tell whether a table has the only schema so far, whose types always fit."""
        if output in self._plain:
            return bool(self._plain[output] == table.schema)
        known = self.families[output]
        return all(joined(known[field.name], of_type(field.type, most=True)) != MIXED for field in table.schema)


def narrowed(known: Families, outputs: Mapping[str, list[dict[str, object]]]) -> Families:
    """Return the known families joined with those of these segments (:mod:`mops.child.buffers`)."""
    for output, segments in outputs.items():
        for segment in segments:
            known = {**known, output: join_columns(known.get(output, {}), segment["families"])}  # type: ignore[arg-type]
    return known


def _differing(what: str, wanted: Mapping[str, object], got: Mapping[str, object] | list[str]) -> str:
    missing = [repr(name) for name in wanted if name not in got]
    extra = [repr(name) for name in got if name not in wanted]
    parts = [f"{what} {', '.join(names)} {how}" for names, how in ((missing, "missing"), (extra, "extra")) if names]
    return "; ".join(parts) + f"; return the same {what}s as the job's first successful simulation"


class InvalidOutput(Exception):
    """A model or a target returned a value that mops cannot store. The message says which and why."""
