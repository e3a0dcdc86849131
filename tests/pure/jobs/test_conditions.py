"""A condition chooses the rows for which the same expression is true in Python."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mops.errors import UsageError
from mops.jobs.conditions import condition, explained
from mops.jobs.scan import filtered

BIG = 2**53
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "u8": (pa.uint8(), st.integers(0, 255)),
    "i8": (pa.int8(), st.integers(-128, 127)),
    "i64": (pa.int64(), st.integers(-3, 3) | st.sampled_from([BIG, BIG + 1, 2**62, 2**63 - 1, -(2**63)])),
    "seed": (pa.uint64(), st.integers(0, 3) | st.sampled_from([BIG + 1, 2**63, 2**64 - 1])),
    "f32": (pa.float32(), st.sampled_from([0.0, -0.0, math.inf, math.nan]) | st.floats(-4, 4, width=32)),
    "f64": (pa.float64(), st.sampled_from([0.1, 0.5, -0.0, 3.0, float(BIG), 1e300, math.inf, math.nan])),
    "flag": (pa.bool_(), st.booleans()),
    "name": (pa.string(), st.sampled_from(["", "a", "b", "ß"])),
}
NUMBERS = ["u8", "i8", "i64", "seed", "f32", "f64"]
CONSTANTS = st.sampled_from(
    [
        *("0", "1", "-1", "2", "255", "256", "300", "0.1", "0.5", "-0.5", "3.0", "1e999", "1e30", "True", f"{BIG}.0"),
        *map(str, (BIG, BIG + 1, 2**63, 2**64 - 1, 2**64, -(2**63), 10**30, 10**400)),
    ]
)
TEXTS = st.sampled_from(["'a'", "'b'", "''", "'c'"])
COMPARISONS = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])


def _sums(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/"]), inner)
    return binary | st.builds("(-{})".format, inner)


OPERANDS = st.sampled_from(NUMBERS) | st.recursive(st.sampled_from([*NUMBERS, "flag"]) | CONSTANTS, _sums, max_leaves=3)
ATOMS = st.one_of(
    st.builds("{} {} {}".format, OPERANDS, COMPARISONS, OPERANDS),
    st.builds("{} {} {}".format, st.sampled_from([*NUMBERS, "flag"]), COMPARISONS, CONSTANTS),
    st.builds("{} {} {} {} {}".format, CONSTANTS, COMPARISONS, st.sampled_from(NUMBERS), COMPARISONS, CONSTANTS),
    st.builds(
        "{} {} [{}]".format,
        st.sampled_from([*NUMBERS, "flag"]),
        st.sampled_from(["in", "not in"]),
        st.lists(CONSTANTS | st.just("None"), max_size=3).map(", ".join),
    ),
    st.builds("name {} {}".format, COMPARISONS, TEXTS),
    st.builds(
        "name {} [{}]".format, st.sampled_from(["in", "not in"]), st.lists(TEXTS | st.just("None")).map(", ".join)
    ),
    st.builds("{} {} None".format, st.sampled_from(list(KINDS)), st.sampled_from(["is", "is not", "==", "!="])),
    st.just("flag"),
)
CONDITIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("(not {})".format, inner),
    ),
    max_leaves=3,
)
ROW = st.fixed_dictionaries({name: st.none() | values for name, (_, values) in KINDS.items()})


def chosen(where: Any, rows: list[Mapping[str, Any]] | pa.Table, ids: tuple[str, ...] = ()) -> list[int]:
    """Return the numbers of the rows that a condition chooses."""
    table = rows
    if not isinstance(rows, pa.Table):
        table = pa.Table.from_pylist(rows, pa.schema([(name, kind) for name, (kind, _) in KINDS.items()]))
    table = table.append_column("_at", pa.array(range(len(table))))
    found = condition(where, table.schema, pa.schema([]), lambda: pa.array(ids, pa.string())).stored
    assert found is not None
    with explained():
        return filtered(table, found)["_at"].to_pylist()


@given(CONDITIONS, ROW)
@example("seed == flag", dict.fromkeys(KINDS) | {"seed": 1, "flag": True})
@example("seed < flag", dict.fromkeys(KINDS) | {"seed": 0, "flag": True})
def test_a_condition_is_true_where_python_says_so(text: str, row: dict[str, Any]) -> None:
    """Conditions computed in the width of a column: 200 + 100 in uint8 was 44, and -1 of uint8 was 255."""
    try:
        expected = bool(eval(text, {}, row))
    except (TypeError, ArithmeticError):  # a missing value, or a division by 0
        return
    try:
        assert chosen(text, [row]) == [0] * expected
    except UsageError:
        whole = [value for value in row.values() if isinstance(value, int)]
        assert max(map(abs, whole), default=0) > BIG or any(len(word) > 15 for word in text.split()), "small numbers"


MISSING = pa.table({"x": [1, None], "f": [1.0, None], "name": ["a", None], "flag": [True, None], "zero": [0, None]})


def test_a_missing_value_is_equal_to_none_only_and_has_no_order(subtests: pytest.Subtests) -> None:
    """`x != 1` left out rows without a value, and `x not in [1]` chose them."""
    for text, rows in [
        *[(f"{name} {op} {value}", [1]) for name, value in (("x", 1), ("f", 1.0), ("name", "'a'")) for op in ("!=",)],
        *[(f"{name} not in [{value}]", [1]) for name, value in (("x", 1), ("f", 1.0), ("name", "'a'"))],
        *[(f"x {op} 5", rows) for op, rows in (("<", [0]), (">", []), ("==", []))],
        *[(f"not (x {op} 5)", rows) for op, rows in (("<", [1]), (">", [0, 1]), ("==", [0, 1]))],
        ("x + 1 != 2", [1]),
        ("not flag", [1]),
        ("x == f", [0, 1]),
        ("x / zero > 5", [0]),
        ("zero != 0 and x / zero > 5", []),
        ("x < 1 or name is None", [1]),
    ]:
        with subtests.test(str((text, rows))):
            assert chosen(text, MISSING) == rows


def test_a_computation_beyond_64_bits_is_an_error(subtests: pytest.Subtests) -> None:
    for text in ["big * 4 > 0", "-big < 0", "big + 1 > 0 or big - 1 < 0", "seed - 1 > 0", "seed / 2 > 0"]:
        with subtests.test(str(text)):
            table = pa.table({"big": [1, -(2**63)], "seed": pa.array([1, 2**64 - 1], pa.uint64())})
            with pytest.raises(
                UsageError, match=r"the condition cannot be computed: (a result does not fit|no .* holds 184)"
            ):
                chosen(text, table)


def test_the_seeds_of_a_job_compare_exactly() -> None:
    table = pa.table({"seed": pa.array([1, 2**63, 2**64 - 1], pa.uint64()), "x": [1, -1, None]})
    assert chosen(f"seed == {2**64 - 1}", table) == [2]
    assert chosen("seed > 0", table) == [0, 1, 2]
    assert chosen("seed > x", table) == [1]
    assert chosen({"seed": [2**63, np.uint64(1)]}, table) == [0, 1]


def test_many_values_are_one_look_up() -> None:
    """`where={"group": [...]}` made a chain of `or`, which took minutes for thousands of values, and then crashed."""
    n = 20_000
    table = pa.table({"group": pa.array(range(n), pa.int32()), "name": list(map(str, range(n)))})
    assert len(chosen({"group": range(0, n, 2)}, table)) == n // 2
    assert len(chosen(f"group in {list(range(0, n, 2))}", table)) == n // 2
    assert len(chosen({"name": list(map(str, range(0, n, 2)))}, table)) == n // 2
    assert len(chosen(" or ".join(f"group == {at}" for at in range(2_000)), table)) == 2_000


def test_a_name_that_python_does_not_accept_stands_in_backticks() -> None:
    names = ["peak day", "lambda", "param.group", "µ", "ﬁt", "a'b", "True", "x-y", "`"]
    table = pa.table({name: pa.array([at]) for at, name in enumerate(names)})
    for at, name in enumerate(names[:-1]):
        assert chosen(f"`{name}` == {at} and `peak day` < 1", table) == [0]
    assert chosen("µ == 3 and ﬁt == 4 and param.group == 2", table) == [0], "Python reads the first two as μ and fit"
    tick = pa.table({"t": ["`peak day`"]})
    assert chosen("t == '`peak day`'", tick) == [0]


def test_a_text_names_a_time() -> None:
    days = [dt.datetime(2020, 3, day) for day in (1, 2, 3)]
    table = pa.table({"t": pa.array(days, pa.timestamp("ms")), "day": pa.array(days, pa.date32())})
    assert chosen("t >= '2020-03-02'", table) == chosen("day >= '2020-03-02'", table) == [1, 2]
    assert chosen({"t": ["2020-03-02", days[2], np.datetime64(days[0], "ns")]}, table) == [0, 1, 2]
    assert chosen({"day": days[1].date()}, table) == [1]
    assert chosen("t == day", table) == [0, 1, 2]


def test_other_types_compare_with_their_own_values() -> None:
    table = pa.table({"price": [decimal.Decimal("0.10"), decimal.Decimal(2)], "data": [b"a", b"b"]})
    assert chosen("price == 0.1 or price > 1", table) == chosen({"price": [0.1, 2]}, table) == [0, 1]
    assert chosen("price * 2 == 4 and price != 1.999", table) == [1]
    assert chosen({"data": b"b"}, table) == [1]
    text = pa.table({"s": pa.array(["a", "b"]).dictionary_encode(), "f": [math.nan, 1.0]})
    assert chosen("s != 'a'", text) == [1]
    assert chosen({"f": math.nan}, text) == [0]


def test_a_condition_that_does_not_fit_is_an_error(subtests: pytest.Subtests) -> None:
    for where, message in [
        ("name > 1", r"column 'name' \(string\) cannot be compared with 1"),
        ("x in [1, 'a']", r"column 'x' \(int64\) cannot be compared with 'a'"),
        ("x > name", r"column 'x' \(int64\) cannot be compared with column 'name' \(string\)"),
        ("x < None", r"column 'x' \(int64\) is not less or greater than None"),
        ("name + 1 > 2", r"column 'name' \(string\) cannot be combined with 1"),
        ("x is 1", "'x is 1' is not possible in a condition"),
        ("abs(x) > 1", r"'abs\(x\)' is not possible in a condition"),
        ("x > 1 and 3", "'3' is not a condition"),
        ("x = 1", "the condition 'x = 1' cannot be read\n.*hint: compare with =="),
        ("x > 1 AND x < 3", "cannot be read.*write and, or, not"),
        ({"x": pc}, r"column 'x' \(int64\) cannot be compared with <module"),
        ("nam == 1", "no column 'nam'.*did you mean 'name'"),
        ("peak day == 1", "cannot be read.*`peak day`"),
        ("(" * 500 + "x" + ")" * 500, "cannot be read"),
        (f"x + {2**63} > 1", "9223372036854775808 does not fit into a 64-bit integer"),
        ({"t": 5}, r"column 't' \(timestamp\[us\]\) cannot be compared with 5"),
        ({"t": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}, "cannot be compared with"),
        ({"param_id": "xyz"}, "no parameter set has a param_id that begins with 'xyz'"),
    ]:
        with subtests.test(str((where, message))):
            table = pa.table({"x": [1], "name": ["a"], "t": pa.array([0], pa.timestamp("us")), "param_id": ["abc"]})
            with pytest.raises(UsageError, match=f"(?s){message}"):
                chosen(where, table, ids=("abc",))


def test_param_ids_may_be_shortened() -> None:
    ids = ("abc", "abd", "xyz", *(f"q{i}{'0' * 60}" for i in range(7)))
    table = pa.table({"param_id": ids[:3]})
    assert chosen({"param_id": ["abc", "x"]}, table, ids) == chosen("param_id in ['abc', 'x']", table, ids) == [0, 2]
    assert chosen("param_id != 'x'", table, ids) == [0, 1]
    message = "7 parameter sets have a param_id that begins with 'q': q00000000000, .*, q40000000000 and 2 more"
    with pytest.raises(UsageError, match=message):
        chosen({"param_id": ["x", "q"]}, table, ids)


def test_a_column_without_values_compares_with_everything() -> None:
    table = pa.table({"x": pa.nulls(1), "y": [1]})
    for text in ("x == 1", "x > 'a'", "x in [1, 'a']", "x == y", "x < y", "x + 1 > 0", "x is not None"):
        assert chosen(text, table) == []
    assert chosen("x != 1 and x is None and x not in ['a'] and x != y", table) == [0]
    assert chosen({"x": [None, 1]}, table) == [0]


def test_an_expression_of_arrow_keeps_its_meaning() -> None:
    assert chosen(pc.field("x") != 1, MISSING) == []
