"""Chooses the types in which columns are stored and read: the narrowest that hold all values of their family.

study/column_families.py explains families. Child processes import this: the standard library and pyarrow only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import attrgetter

import pyarrow as pa

from mops.errors import CorruptRecord
from mops.study.casts import is_list
from mops.study.column_families import MIXED, NAN, NULL, Family, joined, said
from mops.study.column_types import ONE_TYPE, of_column, of_type


def unified(schemas: Iterable[pa.Schema], where: str, families: Mapping[str, Family] | None = None) -> pa.Schema:
    """Return a schema that can read all parts with every value; raise CorruptRecord if they are not of one job."""
    what, schemas, known = "the parts' schemas do not fit together", list(schemas), families or {}
    for field in (field for schema in schemas for field in schema):
        family = known.get(field.name, NULL)
        if joined(family, of_column(field.type)) == MIXED:
            raise CorruptRecord(f"{what}: column {field.name!r} of {said(family)} values is {field.type}", where=where)
    try:
        return storage_schema(schemas, known)
    except ValueError as bad:
        raise CorruptRecord(f"{what}: {bad}", where=where) from bad


def storage_schema(schemas: Iterable[pa.Schema], families: Mapping[str, Family]) -> pa.Schema:
    """Return a schema that holds all values of tables. ValueError: the types differ, and no family is known."""
    fields: dict[str, list[pa.Field]] = {}
    for schema in schemas:
        for field in schema:
            fields.setdefault(field.name, []).append(field)
    whole = []
    for name, same in fields.items():
        types = list(dict.fromkeys(field.type for field in same))
        family = families.get(name)
        if family is None and (len(types) > 1 or pa.types.is_dictionary(types[0])):
            family = reduce(joined, [of_column(kind) for kind in types])
            if family == MIXED:
                raise ValueError(f"column {name!r}: no type holds {' and '.join(map(str, types))}")
        kind = types[0] if family is None else _storage_type(types, family)
        whole.append(pa.field(name, kind, nullable=any(field.nullable for field in same)))
    return pa.schema(whole)


def with_dictionaries(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return a schema that reads these columns of strings as dictionaries."""
    dictionary = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([field.with_type(dictionary) if field.name in names else field for field in schema])


def _storage_type(types: Iterable[pa.DataType], family: Family) -> pa.DataType:
    """Return the narrowest type for the values of a family in columns of these types; other types hold none of them."""
    if isinstance(family, str):
        return _plain_storage(types, *family.split(" "))
    if family[0] == "list":
        inner = [kind.value_type for kind in types if is_list(kind)]
        return pa.list_(_storage_type(inner, family[1])) if inner else pa.null()
    structs = [kind for kind in types if pa.types.is_struct(kind) and {f.name for f in kind} == family[1].keys()]
    fields = [(name, _storage_type([kind.field(name).type for kind in structs], of)) for name, of in family[1].items()]
    return pa.struct(fields) if structs else pa.null()


def _plain_storage(types: Iterable[pa.DataType], family: str, *facts: str) -> pa.DataType:
    if family in ONE_TYPE:
        return ONE_TYPE[family]
    same = [kind for kind in types if str(of_type(kind)).split(" ")[0] == ("number" if family == NAN else family)]
    floats = [kind for kind in same if pa.types.is_floating(kind)]
    if family == NAN or "float" in facts:
        return max(floats, key=attrgetter("bit_width")) if 0 < len(floats) == len(same) else pa.float64()
    same = [kind for kind in same if kind not in floats]
    if not same:
        return pa.null()
    if family == "number":
        if len({pa.types.is_signed_integer(kind) for kind in same}) == 1:
            return max(same, key=attrgetter("bit_width"))
        return pa.uint64() if "huge" in facts else pa.int64()
    if family in ("decimal", "time"):
        schemas = [pa.schema([("", kind)]) for kind in same]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    unit = "ns" if "far" not in facts and any(kind.unit == "ns" for kind in same) else "us"
    if family == "duration":
        return pa.duration(unit)
    zones = {kind.tz for kind in same}
    return pa.timestamp(unit, zones.pop() if len(zones) == 1 else "UTC")
