"""Each kind of value from a model keeps its meaning, or its column fails by name (docs/reference/models.md)."""

from __future__ import annotations

import array
import collections
import ctypes
import datetime as dt
import decimal
import enum
import math
import zoneinfo
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy.dtypes import StringDType

from mops.child.outputs import as_tables
from mops.study.output_schema import InvalidOutput

UTC = zoneinfo.ZoneInfo("UTC")
BERN = dt.timezone(dt.timedelta(hours=1))
NOON = dt.datetime(2024, 1, 1, 12)
NANO = pd.Timestamp("2024-01-01T12:00:00.123456789")
MASKED = np.ma.array([1.5, 2.5, 3.5], mask=[False, True, False])


def stored(values: Any) -> list[Any]:
    return as_tables({"daily": {"x": values}}, 1)["daily"]["x"].to_pylist()


def kind_of_stored(values: Any) -> pa.DataType:
    return as_tables({"daily": {"x": values}}, 1)["daily"].schema.field("x").type


class Tensor:
    """An array like those of torch and jax, which numpy can convert."""

    def __init__(self, values: Any, error: type[Exception] | None = None):
        self._values, self._error = np.asanyarray(values), error
        self.ndim = self._values.ndim

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self._error:
            raise self._error("the tensor is on another device")
        return self._values

    def __len__(self) -> int:
        return len(self._values)


class Items:
    """A sequence that only has a length and items."""

    def __init__(self, *values: Any):
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> Any:
        return self._values[index]


class Labelled:
    """An array with coordinates like those of xarray."""

    def __array__(self) -> np.ndarray:
        return np.zeros(2)

    def to_dataframe(self) -> None: ...


class Colour(enum.IntEnum):
    """A number with a name."""

    RED = 1


def swapped(values: Any) -> np.ndarray:
    values = np.asarray(values)
    return values.astype(values.dtype.newbyteorder(">"))


KEPT: dict[str, tuple[Any, list[Any]]] = {
    # masks
    "a masked array": (MASKED, [1.5, None, 3.5]),
    "a masked array without a mask": (np.ma.array([1, 2]), [1, 2]),
    "a masked array with NaN": (np.ma.array([math.nan, 1.0], mask=[False, True]), [math.nan, None]),
    "masked integers": (np.ma.array([1, 2], mask=[True, False]), [None, 2]),
    "masked booleans": (np.ma.array([True, False], mask=[True, False]), [None, False]),
    "masked text": (np.ma.array(["a", "b"], mask=[True, False]), [None, "b"]),
    "masked objects": (np.ma.array(["a", 1], mask=[True, False], dtype=object), [None, 1]),
    "masked times": (
        np.ma.array(["2024-01-01", "NaT", "2024-01-02"], dtype="M8[D]", mask=[False, False, True]),
        [dt.date(2024, 1, 1), None, None],
    ),
    "masked and of another byte order": (np.ma.array(swapped([1, 2]), mask=[True, False]), [None, 2]),
    "masked halves": (np.ma.array([0.5, 1], dtype="f2", mask=[True, False]), [None, 1.0]),
    "every other of a masked array": (MASKED[::2], [1.5, 3.5]),
    "a list with the masked constant": ([1.0, np.ma.masked, 2.0], [1.0, None, 2.0]),
    "objects with the masked constant": (np.array([1, np.ma.masked], dtype=object), [1, None]),
    "a list of masked arrays": ([MASKED, None, MASKED[:1]], [[1.5, None, 3.5], None, [1.5]]),
    "a list of masked arrays of many types": ([MASKED, MASKED.astype("f4")], [[1.5, None, 3.5]] * 2),
    "mappings with masked values": ([{"a": np.ma.masked}, {"a": MASKED}], [{"a": None}, {"a": [1.5, None, 3.5]}]),
    "a list of masked scalars": ([np.ma.array(1, mask=True), np.ma.array(2)], [None, 2]),
    "a tensor that is masked": (Tensor(MASKED), [1.5, None, 3.5]),
    "the masked constant": (np.ma.masked, [None]),
    "a masked number": (np.ma.array(2.5, mask=True), [None]),
    # numpy
    "numbers of another byte order": (swapped([1.5, math.inf]), [1.5, math.inf]),
    "integers of another byte order": (swapped([1, 2**62]), [1, 2**62]),
    "text of another byte order": (swapped(["a", "bc"]), ["a", "bc"]),
    "times of another byte order": (swapped(np.array(["2024-01-01", "NaT"], "M8[D]")), [dt.date(2024, 1, 1), None]),
    "halves": (np.array([0.5, 65504, math.inf], "f2"), [0.5, 65504.0, math.inf]),
    "halves of another byte order": (swapped(np.array([0.5, 1], "f2")), [0.5, 1.0]),
    "times": (np.array(["2024-01-01T12", "NaT"], "M8[us]"), [NOON, None]),
    "durations": (np.array([90, "NaT"], "m8[s]"), [dt.timedelta(seconds=90), None]),
    "text": (np.array(["a", "bc"]), ["a", "bc"]),
    "text of any length": (np.array(["a", None], dtype=StringDType(na_object=None)), ["a", None]),
    "bytes": (np.array([b"a", b"bc"]), [b"a", b"bc"]),
    "text with a NUL": (np.array(["a\0b", "c"]), ["a\0b", "c"]),
    "text with a NUL, of another byte order": (swapped(["a\0b"]), ["a\0b"]),
    "bytes with a NUL": (np.array([b"a\0b", b"\0c"]), [b"a\0b", b"\0c"]),
    "bytes with a NUL in a pandas index": (pd.Index(np.array([b"a\0b"])), [b"a\0b"]),
    "masked text with a NUL": (np.ma.array(["a\0b", "c"], mask=[False, True]), ["a\0b", None]),
    "masked bytes with a NUL": (np.ma.array([b"a\0b", b"c"], mask=[False, True]), [b"a\0b", None]),
    "lists of text with a NUL": ([np.array(["a\0b"]), np.array([], "U1")], [["a\0b"], []]),
    "objects that are bytes with a NUL": (np.array([np.bytes_(b"a\0b"), None], dtype=object), [b"a\0b", None]),
    "objects": (np.array(["a", None], dtype=object), ["a", None]),
    "every other, backwards": (np.arange(6)[::-2], [5, 3, 1]),
    "a column of a matrix": (np.arange(6).reshape(3, 2)[:, 1], [1, 3, 5]),
    "a field of a structured array": (np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")])["b"], [2.5]),
    "a number without dimensions": (np.array(2.5), [2.5]),
    "no values": (np.array([], "f4"), []),
    # of other libraries
    "a tensor": (Tensor(np.array([1.5, 2.5], "f4")), [1.5, 2.5]),
    "a list of tensors": ([Tensor(np.array([1.5])), Tensor(np.array([]))], [[1.5], []]),
    "a list of numbers in tensors": ([Tensor(np.float64(1.5)), Tensor(np.float64(2.5))], [1.5, 2.5]),
    "a number in a tensor": (Tensor(np.float64(1.5)), [1.5]),
    "a memoryview": (memoryview(np.array([1.5, 2.5])), [1.5, 2.5]),
    "an array of the standard library": (array.array("d", [1.5, 2.5]), [1.5, 2.5]),
    "large integers without a sign": (array.array("Q", [2**63 - 1, 2**63 + 1]), [2**63 - 1, 2**63 + 1]),
    "a range": (range(3), [0, 1, 2]),
    "an array of C": ((ctypes.c_float * 2)(0.5, 1.5), [0.5, 1.5]),
    "a sequence by its items": (Items(1, None), [1, None]),
    "a deque": (collections.deque(["a", None]), ["a", None]),
    # pandas
    "nullable integers": (pd.array([2**60 + 1, None]), [2**60 + 1, None]),
    "a nullable series": (pd.Series([True, None], dtype="boolean"), [True, None]),
    "a series of floats": (pd.Series([math.nan, 1.0]), [math.nan, 1.0]),
    "a series of objects": (pd.Series(["a", math.nan, None, pd.NA], dtype=object), ["a", None, None, None]),
    "a series of objects that are numbers": (pd.Series([1.5, math.nan, None], dtype=object), [1.5, math.nan, None]),
    "a series of objects that are missing": (pd.Series([math.nan, None], dtype=object), [None, None]),
    "a series of booleans and NaN": (pd.Series([True, math.nan], dtype=object), [True, None]),
    "a series of decimals and NaN": (
        pd.Series([decimal.Decimal("1.5"), 2, math.nan], dtype=object),
        [decimal.Decimal("1.5"), decimal.Decimal("2.0"), None],
    ),
    "a series of text and a narrow NaN": (pd.Series(["a", np.float32("nan")], dtype=object), ["a", None]),
    "what is in a series of floats": (pd.Series([math.nan, 1.0]).array, [math.nan, 1.0]),
    "what is in a series of bytes": (pd.Series(np.array([b"a\0b"])).array, [b"a\0b"]),
    "categories": (pd.Categorical(["a", None, "b"]), ["a", None, "b"]),
    "categories that are numbers": (pd.Series([3, 1, None]).astype("category"), [3.0, 1.0, None]),
    "categories that are times": (pd.Series([NANO, None]).astype("category"), [NANO, None]),
    "categories that are texts of objects": (pd.Series(["b", None], dtype=object).astype("category"), ["b", None]),
    "bins of cut as text": (pd.Series(pd.cut([0.5, 2.5], [0, 1, 3])).astype(str), ["(0, 1]", "(1, 3]"]),
    "times of pandas": (pd.Series([NANO, pd.NaT]), [NANO, None]),
    "times of pandas in a list": ([NANO, None, pd.NaT], [NANO, None, None]),
    "times of pandas next to Python's": ([NOON, NANO], [pd.Timestamp(NOON), NANO]),
    "times of pandas in lists": ([[NANO], [], None], [[NANO], [], None]),
    "times of pandas with a zone": (
        pd.Series([NANO.tz_localize("Europe/Zurich")]),
        [NANO.tz_localize("Europe/Zurich")],
    ),
    "durations of pandas": (pd.Series([pd.Timedelta(1, "ns"), pd.NaT]), [pd.Timedelta(1, "ns"), None]),
    "durations of pandas in a list": ([pd.Timedelta(1, "ns")], [pd.Timedelta(1, "ns")]),
    "sparse numbers made dense": (pd.Series(pd.arrays.SparseArray([0.0, 1.5])).sparse.to_dense(), [0.0, 1.5]),
    "an index": (pd.Index(["a", "b"]), ["a", "b"]),
    "missing values of pandas in a list": ([1, pd.NA], [1, None]),
    # Python
    "halves in a list": ([np.float16(0.5), 4097], [0.5, 4097.0]),
    "long doubles": (np.array([0.5, 1], np.longdouble), [0.5, 1.0]),
    "long doubles in a list": ([np.longdouble(0.5), 1.0], [0.5, 1.0]),
    "numbers of many widths": ([np.float32(0.5), np.float64(0.1), 3], [0.5, 0.1, 3.0]),
    "decimals": ([decimal.Decimal("1.50"), None], [decimal.Decimal("1.50"), None]),
    "names of numbers": ([Colour.RED, 2], [1, 2]),
    "times of numpy in a list": ([np.datetime64("2024-01-01T12:00:00", "us"), None], [NOON, None]),
    "times with a zone": (
        [NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=BERN)],
        [NOON.replace(tzinfo=UTC), NOON.replace(hour=11, tzinfo=UTC)],
    ),
    "dates": ([dt.date(2024, 1, 1), None], [dt.date(2024, 1, 1), None]),
    "lists": ([[1, 2], [], None, (3,)], [[1, 2], [], None, [3]]),
    "lists of lists": ([[[1], None], []], [[[1], None], []]),
    "lists and arrays": ([[1], np.array([2.5])], [[1.0], [2.5]]),
    "lists and series": ([pl.Series([1, None]), pd.Series([2])], [[1, None], [2]]),
    "mappings": ([{"a": 1}, None, {"b": "x"}], [{"a": 1, "b": None}, None, {"a": None, "b": "x"}]),
}


def test_a_value_keeps_its_meaning(subtests: pytest.Subtests) -> None:
    for name, (values, wanted) in KEPT.items():
        with subtests.test(name):
            assert repr(stored(values)) == repr(wanted)


def test_a_value_keeps_its_width(subtests: pytest.Subtests) -> None:
    for values, kind in [
        (np.array([1], ">i2"), pa.int16()),
        (np.array([1], "f2"), pa.float32()),
        ([np.array([1], "i1"), np.ma.array([1], dtype="i1", mask=[True])], pa.list_(pa.int8())),
        (np.array(1, "f4"), pa.float32()),
        (Tensor(np.array(1, "f4")), pa.float32()),
        (pd.Series(["a"]).astype("category"), pa.string()),
        (pd.Series([NOON]).dt.tz_localize("Europe/Zurich"), pa.timestamp("us", "Europe/Zurich")),
        (np.array([], "U1"), pa.string()),
        (np.array([], "S1"), pa.binary()),
        ([], pa.null()),
    ]:
        with subtests.test(str((values, kind))):
            assert kind_of_stored(values) == kind


REFUSED: dict[str, tuple[Any, str]] = {
    "times with and without a zone": ([NOON, NOON.replace(tzinfo=dt.UTC)], "times with a zone and times without"),
    "a date, then a time": ([dt.date(2024, 1, 1), NOON], "dates and times"),
    "numbers and booleans": ([1.5, True], "booleans and numbers"),
    "text and bytes": (["a", b"b"], "bytes and text"),
    "text and numbers": (["a", 1], "numbers and text"),
    "text and numbers in a deque": (collections.deque(["a", 1]), "numbers and text"),
    "text and numbers in a sequence by its items": (Items("a", 1), "numbers and text"),
    "large integers in a sequence by its items": (Items(2**63 - 1, 2**63 + 1), "too large"),
    "text and numbers in an array": (np.array(["a", 1], dtype=object), "numbers and text"),
    "text and NaN": (["a", math.nan], "numbers and text"),
    "lists and numbers": ([[1], 2], "lists and numbers"),
    "lists that mix": ([[NOON], [NOON.replace(tzinfo=dt.UTC)]], "times with a zone and times without"),
    "mappings that mix": ([{"a": 1}, {"a": "x"}], "numbers and text"),
    "mappings whose keys are numbers": ([{1: 2}], "keys that are not text"),
    "mappings without keys": ([{}], "without keys"),
    "times of day with a zone": ([dt.time(12, tzinfo=dt.UTC)], "times of day with a zone"),
    "times of pandas of many zones": ([NANO.tz_localize("UTC"), NANO.tz_localize("Europe/Zurich")], "no common type"),
    "times of numpy of many units": ([np.datetime64(1, "s"), np.datetime64(1, "ms")], "datetime64"),
    "an integer that no float holds": ([2**53 + 1, 0.5], "9007199254740993"),
    "an integer that no float holds, of numpy": ([np.int64(2**53 + 1), np.float64(0.5)], "9007199254740993"),
    "an integer beyond 64 bits": ([2**70], "too large"),
    "a range that ends beyond 64 bits": (range(2**63 - 1, 2**63 + 1), "too large"),
    "ranges that end beyond 64 bits": ([range(2**63 - 1, 2**63 + 1)], "too large"),
    "integers of both signs beyond 64 bits": ([-1, 2**63], "too large"),
    "a matrix of text": (np.array([["a"]]), "2 dimensions"),
    "a series that mixes booleans and numbers": (
        pd.Series([True, 1.5, math.nan], dtype=object),
        "booleans and numbers",
    ),
    "complex numbers": (np.array([1j]), r"it holds complex numbers; return \.real and \.imag"),
    "complex numbers in a list": ([1.0, 1j], r"it holds complex numbers; return \.real and \.imag"),
    "one complex number of numpy": (np.complex64(1j), r"it holds complex numbers; return \.real and \.imag"),
    "times of hours": (np.array(["2024-01-01T12"], "M8[h]"), "unit"),
    "a structured array": (np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]), "structured"),
    "a matrix": (np.zeros((2, 2)), "2 dimensions"),
    "a masked matrix": (np.ma.zeros((2, 2)), "2 dimensions"),
    "a matrix of objects": (np.zeros((2, 2), dtype=object), "2 dimensions"),
    "a list of matrices": ([np.zeros((2, 2))], "2 dimensions"),
    "a tensor that cannot be read": (Tensor(np.zeros(2), RuntimeError), "another device"),
    "objects": ([object()], "object"),
    "intervals": (pd.arrays.IntervalArray.from_tuples([(0, 1), None]), r"pandas.Interval.*\.astype\(str\)"),
    "bins of cut": (pd.cut([0.5, 2.5], [0, 1, 3]), r"pandas.Interval.*\.astype\(str\)"),
    "intervals in a list": ([pd.Interval(0, 1), None], r"pandas.Interval.*\.astype\(str\)"),
    "intervals in objects": (pd.Series([pd.Interval(0, 1)], dtype=object), r"pandas.Interval.*\.astype\(str\)"),
    "periods": (pd.Series(pd.PeriodIndex(["2024Q1", None], freq="Q")), r"pandas.Period.*\.to_timestamp\(\)"),
    "periods in a list": ([pd.Period("2024-01", "M"), pd.NaT], r"pandas.Period.*\.to_timestamp\(\)"),
    "periods that are categories": (
        pd.Series(pd.PeriodIndex(["2024Q1"], freq="Q")).astype("category"),
        r"pandas.Period.*\.to_timestamp\(\)",
    ),
    "sparse numbers": (pd.arrays.SparseArray([0.0, 1.5]), r"pandas.Sparse.*\.sparse\.to_dense\(\)"),
    "a series of sparse numbers": (pd.Series(pd.arrays.SparseArray([0, 2])), r"pandas.Sparse.*to_dense"),
    "a duration of months": ([pd.DateOffset(months=1)], "Parquet cannot hold"),
}


def test_a_value_that_would_change_is_refused_with_its_column(subtests: pytest.Subtests) -> None:
    for name, (values, says) in REFUSED.items():
        with subtests.test(name), pytest.raises(InvalidOutput, match=rf"output 'daily'.*column 'x': .*{says}"):
            as_tables({"daily": {"good": [0], "x": values}}, 1)


def test_an_array_with_coordinates_is_refused() -> None:
    with pytest.raises(InvalidOutput, match="'x': Labelled"):
        as_tables({"x": Labelled()}, 1)


def test_numbers_without_dimensions_are_one_row() -> None:
    result = {"a": np.array(1.5), "b": Tensor(np.float32(2.5)), "c": np.ma.masked, "d": 3}
    assert as_tables(result, 1)["output"].to_pylist() == [{"a": 1.5, "b": 2.5, "c": None, "d": 3}]


def test_a_list_is_copied() -> None:
    numbers, inner = [1, 2], [3]
    found = as_tables({"a": numbers, "b": [inner, inner]}, 1)["output"]
    numbers.append(4)
    inner.append(5)
    assert found.to_pydict() == {"a": [1, 2], "b": [[3], [3]]}


class TestIndexes:
    """Frames of Mesa lost Step and AgentID, and sums of groups their keys."""

    def columns(self, result: Any) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = as_tables(result, 1)["output"].to_pydict()
        return found

    def test_each_named_level_is_a_column_before_the_others(self) -> None:
        index = pd.MultiIndex.from_tuples([(0, 7), (0, 8), (1, 7)], names=["Step", "AgentID"])
        frame = pd.DataFrame({"wealth": [1, 2, 3]}, index=index)
        assert self.columns(frame) == {"Step": [0, 0, 1], "AgentID": [7, 8, 7], "wealth": [1, 2, 3]}
        assert list(self.columns(frame)) == ["Step", "AgentID", "wealth"]

    def test_the_keys_of_groups_are_kept(self) -> None:
        frame = pd.DataFrame({"k": ["a", "b", "a"], "x": [1, 2, 3]})
        assert self.columns(frame.groupby("k").sum()) == {"k": ["a", "b"], "x": [4, 2]}

    def test_bins_that_are_keys_are_kept_as_text(self) -> None:
        frame = pd.DataFrame({"age": [5, 15], "x": [1, 2]})
        found = self.columns(frame.groupby(pd.cut(frame["age"], [0, 10, 20]).astype(str))[["x"]].sum())
        assert found == {"age": ["(0, 10]", "(10, 20]"], "x": [1, 2]}
        with pytest.raises(InvalidOutput, match=r"column 'age'.*pandas.Interval"):
            self.columns(frame.groupby(pd.cut(frame["age"], [0, 10, 20]), observed=True)[["x"]].sum())

    def test_dates_without_a_name_are_kept(self) -> None:
        frame = pd.DataFrame({"x": [1, 2]}, index=pd.to_datetime(["2024-01-01", "2024-01-20"]))
        found = self.columns(frame.resample("MS").sum())
        assert found == {"index": [dt.datetime(2024, 1, 1)], "x": [3]}

    def test_row_numbers_without_a_name_are_dropped(self, subtests: pytest.Subtests) -> None:
        """Filtering or sorting a frame leaves such an index."""
        for index in [[3, 1], np.array([3, 1], "u1"), pd.Index([3, 1], dtype=object)]:
            with subtests.test(str(index)):
                assert self.columns(pd.DataFrame({"x": [1, 2]}, index=index)) == {"x": [1, 2]}

    def test_row_numbers_with_a_name_are_a_column(self) -> None:
        frame = pd.DataFrame({"x": [1, 2]}, index=pd.RangeIndex(2, name="step"))
        assert self.columns(frame) == {"step": [0, 1], "x": [1, 2]}

    def test_text_labels_without_a_name_are_the_column_index(self) -> None:
        frame = pd.DataFrame({"x": [1, 2]}, index=["mean", "max"])
        assert self.columns(frame) == {"index": ["mean", "max"], "x": [1, 2]}

    def test_levels_without_a_name_are_numbered(self) -> None:
        index = pd.MultiIndex.from_tuples([("a", 0), ("b", 1)], names=["k", None])
        assert self.columns(pd.DataFrame({"x": [1, 2]}, index=index)) == {
            "k": ["a", "b"],
            "level_1": [0, 1],
            "x": [1, 2],
        }

    def test_the_index_of_an_empty_frame_is_dropped(self) -> None:
        assert self.columns(pd.DataFrame(columns=["x"])) == {"x": []}

    def test_a_level_with_the_name_of_a_column_is_refused(self) -> None:
        frame = pd.DataFrame({"day": [1], "x": [2]}).set_index("day", drop=False)
        with pytest.raises(InvalidOutput, match="columns of the same name: 'day', 'day', 'x'"):
            as_tables(frame, 1)

    def test_a_level_named_seed_is_the_seed(self) -> None:
        frame = pd.DataFrame({"x": [2]}, index=pd.Index([1], name="seed"))
        assert self.columns(frame) == {"x": [2]}

    def test_the_labels_of_series_are_kept(self) -> None:
        groups = pd.DataFrame({"k": ["a", "b", "a"], "x": [1, 2, 3]}).groupby("k")["x"]
        assert self.columns({"sum": groups.sum(), "n": groups.size()}) == {"k": ["a", "b"], "sum": [4, 2], "n": [2, 1]}

    def test_series_with_different_labels_are_refused(self) -> None:
        """Pandas would align the two. By position they would be wrong."""
        one, other = pd.Series([1, 2], index=["a", "b"]), pd.Series([1, 2], index=["b", "a"])
        with pytest.raises(InvalidOutput, match=r"column 'other': its pandas index is not that of column 'one'"):
            as_tables({"one": one, "other": other}, 1)

    def test_series_with_equal_row_numbers_make_one_table(self) -> None:
        one, other = pd.Series([1, 2]), pd.Series([3, 4], index=pd.Index([0, 1]))
        assert self.columns({"one": one, "other": other, "third": [5, 6]})["other"] == [3, 4]


class TestNamesOfPandas:
    def names(self, frame: pd.DataFrame) -> list[str]:
        found: list[str] = as_tables(frame, 1)["output"].column_names
        return found

    def test_names_that_are_not_text_become_text(self) -> None:
        assert self.names(pd.DataFrame([[1, 2]], columns=[0, dt.date(2024, 1, 1)])) == ["0", "2024-01-01"]

    def test_names_of_levels_are_joined(self) -> None:
        frame = pd.DataFrame({"k": ["a", "a"], "x": [1, 2]}).groupby("k").agg(["min", "max"]).reset_index()
        assert self.names(frame) == ["k", "x_min", "x_max"]

    def test_two_columns_with_one_name_are_refused(self, subtests: pytest.Subtests) -> None:
        for names in [["x", "x"], [1, "1"], [("x", "y"), "x_y"]]:
            with subtests.test(str(names)):
                frame = pd.DataFrame([[1, 2]])
                frame.columns = pd.Index(names, tupleize_cols=False)
                with pytest.raises(InvalidOutput, match="columns of the same name"):
                    as_tables(frame, 1)

    def test_a_subclass_of_a_frame_is_a_frame(self) -> None:
        class Results(pd.DataFrame):
            """Like the class of geopandas."""

        assert as_tables(Results({"x": [1]}, index=pd.Index([5], name="k")), 1)["output"].column_names == ["k", "x"]


@pytest.mark.parametrize("make", [pl.DataFrame, lambda series: series], ids=["frame", "series"])
def test_python_objects_of_polars_are_refused(make: Any) -> None:
    """Polars exports the addresses of the objects."""
    with pytest.raises(InvalidOutput, match="column 'x': it holds Python objects"):
        as_tables({"daily": make({"x": pl.Series([object()], dtype=pl.Object)})}, 1)
