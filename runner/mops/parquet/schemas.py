"""Unifies the schemas of a job's parts, and says which of their columns are read as dictionaries.

Child processes import this: the standard library and pyarrow only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from mops.errors import CorruptRecord
from mops.study.column_families import NULL, Family
from mops.study.column_types import storage_type


def unified(schemas: Iterable[pa.Schema], where: str, families: Mapping[str, Family] | None = None) -> pa.Schema:
    """Return a schema that can read all parts with every value; raise CorruptRecord if they are not of one job."""
    fields: dict[str, list[pa.Field]] = defaultdict(list)
    for schema in schemas:
        for field in schema:
            fields[field.name].append(field)
    whole = []
    for name, same in fields.items():
        try:
            kind = storage_type([field.type for field in same], (families or {}).get(name, NULL))
        except ValueError as bad:
            what = f"the parts' schemas do not fit together: column {name!r}: {bad}"
            raise CorruptRecord(what, where=where) from bad
        whole.append(pa.field(name, kind, nullable=any(field.nullable for field in same)))
    return pa.schema(whole)


def with_dictionaries(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return a schema that reads these columns of strings as dictionaries."""
    dictionary = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([field.with_type(dictionary) if field.name in names else field for field in schema])
