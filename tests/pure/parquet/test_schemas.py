"""The type that stores and reads columns of several types: the narrowest for all values of their family."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mops.errors import CorruptRecord
from mops.parquet.schemas import storage_schema, unified
from mops.study.column_families import NAN, Family

BERN = "Europe/Zurich"


def test_the_type_that_stores_columns_of_several_types(subtests: pytest.Subtests) -> None:
    for types, family, stored in [
        ([pa.null()], None, pa.null()),
        ([pa.null(), pa.int8(), pa.int8()], None, pa.int8()),
        ([pa.int8(), pa.int32(), pa.int16()], None, pa.int32()),
        ([pa.uint8(), pa.uint16()], None, pa.uint16()),
        ([pa.uint8(), pa.int8()], None, pa.int64()),
        ([pa.uint64(), pa.int8()], "number huge large", pa.uint64()),
        ([pa.float32()], None, pa.float32()),
        ([pa.float32(), pa.float64()], None, pa.float64()),
        ([pa.float32(), pa.int8()], None, pa.float64()),
        ([pa.int8()], "number float", pa.float64()),
        ([pa.float32()], NAN, pa.float32()),
        ([pa.float64(), pa.string(), pa.float32()], "string", pa.string()),  # floats that are all NaN
        ([pa.float64()], "date", pa.date32()),
        ([pa.timestamp("us"), pa.timestamp("ns")], None, pa.timestamp("ns")),
        ([pa.timestamp("ns"), pa.timestamp("us")], "timestamp far", pa.timestamp("us")),
        ([pa.timestamp("us")], "timestamp fine", pa.timestamp("us")),
        ([pa.timestamp("us", BERN)], None, pa.timestamp("us", BERN)),
        ([pa.timestamp("ns", BERN), pa.timestamp("us", "Asia/Tokyo")], None, pa.timestamp("ns", "UTC")),
        ([pa.duration("ns"), pa.duration("us")], None, pa.duration("ns")),
        ([pa.duration("ns"), pa.timestamp("us")], "duration", pa.duration("ns")),
        ([pa.decimal128(10, 2)], None, pa.decimal128(10, 2)),
        ([pa.decimal128(10, 2), pa.decimal128(5, 4)], None, pa.decimal128(12, 4)),
        ([pa.decimal128(38, 0), pa.decimal128(2, 0)], None, pa.decimal128(38, 0)),
        ([pa.decimal128(38, 0), pa.decimal128(1, 1)], None, pa.decimal256(39, 1)),
        ([pa.time64("ns"), pa.time64("us")], None, pa.time64("ns")),
        ([pa.dictionary(pa.int32(), pa.string())], None, pa.string()),
        ([pa.bool_()], None, pa.bool_()),
        ([pa.list_(pa.int8()), pa.list_(pa.int16())], None, pa.list_(pa.int16())),
        ([pa.map_(pa.string(), pa.int64())], None, pa.map_(pa.string(), pa.int64())),  # one type of any kind
        (
            [pa.struct([("b", pa.int8()), ("a", pa.null())]), pa.struct([("a", pa.date32()), ("b", pa.int16())])],
            None,
            pa.struct([("b", pa.int16()), ("a", pa.date32())]),
        ),
        ([pa.list_(pa.int8())], ["list", "number float"], pa.list_(pa.float64())),
        # columns without values
        ([pa.int8()], "null", pa.null()),
        ([pa.null()], "number float", pa.float64()),
        ([pa.null()], "number", pa.null()),
        ([pa.null()], ["list", "string"], pa.null()),
        ([pa.string(), pa.int8()], "number", pa.int8()),
        ([pa.int8()], ["list", "string"], pa.null()),
        ([pa.list_(pa.int8())], ["list", "null"], pa.list_(pa.null())),
        ([pa.list_(pa.int8())], ["list", "string"], pa.list_(pa.string())),
        ([pa.struct([("b", pa.int8())])], ["struct", {"a": "number"}], pa.null()),
        ([pa.struct([("a", pa.int8())])], ["struct", {"a": "null"}], pa.struct([("a", pa.null())])),
    ]:
        with subtests.test(str((types, family, stored))):
            schemas = [pa.schema([("x", kind)]) for kind in types]
            assert storage_schema(schemas, {} if family is None else {"x": family}) == pa.schema([("x", stored)])


@pytest.mark.parametrize(
    ("types", "family", "message"),
    [
        ([pa.int8(), pa.string()], None, "column 'x': no type holds int8 and string"),
        ([pa.string()], "number", "column 'x' of number values is string"),
    ],
)
def test_parts_whose_types_do_not_fit_together_are_corrupt(
    types: list[pa.DataType], family: Family | None, message: str
) -> None:
    with pytest.raises(CorruptRecord, match=f"do not fit together: {message}"):
        unified([pa.schema([("x", kind)]) for kind in types], "here", {} if family is None else {"x": family})
