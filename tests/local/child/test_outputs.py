"""The result of a model, in every form that the documentation names, becomes Arrow tables."""

import math

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mops.child.blocks import table_of
from mops.child.outputs import Results, as_tables
from mops.study.column_types import families_in
from mops.study.output_schema import InvalidOutput, OutputSchema

COLUMNS = {"day": [0, 1, 2], "value": [0.5, 1.5, 2.5], "place": ["a", "b", "c"]}
BIG = 2**53 + 2  # the next float64 after 2**53, so that every column type can hold it
ODD = 2**63 + 1


class OnlyAStream:
    """A table that can only be streamed."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


FRAMES = {
    "polars": pl.DataFrame,
    "pyarrow": pa.table,
    "pandas": pd.DataFrame,
    "duckdb": lambda columns: duckdb.connect().from_arrow(pa.table(columns)),
    "record batch": lambda columns: pa.table(columns).to_batches()[0],
    "record batch reader": lambda columns: pa.table(columns).to_reader(),
    "a stream and nothing else": lambda columns: OnlyAStream(pa.table(columns)),
    "mapping of lists": dict,
    "mapping of tuples": lambda columns: {name: tuple(column) for name, column in columns.items()},
    "mapping of numpy": lambda columns: {name: np.array(column) for name, column in columns.items()},
    "mapping of polars series": lambda columns: {name: pl.Series(name, column) for name, column in columns.items()},
    "mapping of pandas series": lambda columns: {name: pd.Series(column) for name, column in columns.items()},
    "mapping of pyarrow arrays": lambda columns: {name: pa.array(column) for name, column in columns.items()},
    "mapping of chunked arrays": lambda columns: {name: pa.chunked_array([column]) for name, column in columns.items()},
}


class TestEveryFormOfTable:
    def test_a_table_alone_is_the_output_named_output(self, subtests: pytest.Subtests) -> None:
        for case, make in FRAMES.items():
            with subtests.test(case):
                found = as_tables(make(COLUMNS), 1)
                assert {name: table.to_pydict() for name, table in found.items()} == {"output": COLUMNS}

    def test_a_table_under_a_name_is_the_output_of_that_name(self, subtests: pytest.Subtests) -> None:
        for case, make in FRAMES.items():
            with subtests.test(case):
                found = as_tables({"daily": make(COLUMNS), "other": make({"n": [1]})}, 1)
                assert found["daily"].to_pydict() == COLUMNS
                assert found["other"].to_pydict() == {"n": [1]}

    def test_strings_have_one_encoding_and_there_is_no_metadata(self, subtests: pytest.Subtests) -> None:
        for case, make in FRAMES.items():
            with subtests.test(case):
                schema = as_tables(make(COLUMNS), 1)["output"].schema
                assert schema.types == [pa.int64(), pa.float64(), pa.string()]
                assert not schema.metadata

    def test_a_second_result_of_the_same_form_gives_the_same_table(self, subtests: pytest.Subtests) -> None:
        for case, make in FRAMES.items():
            with subtests.test(case):
                first = as_tables(make(COLUMNS), 1)
                assert as_tables(make(COLUMNS), 2)["output"].equals(first["output"], check_metadata=True)

    def test_nan_and_infinity_are_kept(self, subtests: pytest.Subtests) -> None:
        for case, make in FRAMES.items():
            with subtests.test(case):
                column = as_tables(make({"day": [0, 1, 2], "value": [math.nan, math.inf, 1.0]}), 1)["output"]["value"]
                assert column.null_count == 0
                assert math.isnan(column[0].as_py())
                assert column[1].as_py() == math.inf

    def test_a_column_with_the_seed_is_left_out(self, subtests: pytest.Subtests) -> None:
        for case, make in FRAMES.items():
            with subtests.test(case):
                assert as_tables(make({"seed": [7, 7], "n": [1, 2]}), 7)["output"].to_pydict() == {"n": [1, 2]}

    def test_a_column_with_the_name_of_an_identity_column_is_refused(self, subtests: pytest.Subtests) -> None:
        for case, make in FRAMES.items():
            with subtests.test(case), pytest.raises(InvalidOutput, match="'replicate'"):
                as_tables(make({"replicate": [0], "n": [1]}), 7)


class TestMappings:
    def test_scalars_are_one_row(self):
        result = {"i": 1, "f": 0.5, "s": "over", "b": True, "none": None}
        assert as_tables(result, 1)["output"].to_pylist() == [result]

    def test_numpy_scalars_are_one_row_and_keep_their_types(self):
        result = {"i": np.int32(1), "f": np.float32(0.5), "s": np.str_("over"), "b": np.bool_(True)}
        found = as_tables(result, 1)["output"]
        assert found.to_pylist() == [{"i": 1, "f": 0.5, "s": "over", "b": True}]
        assert found.schema.types == [pa.int32(), pa.float32(), pa.string(), pa.bool_()]

    def test_a_scalar_nan_is_kept(self):
        column = as_tables({"x": math.nan, "y": np.float64("nan")}, 1)["output"]
        assert [column[name].null_count for name in ("x", "y")] == [0, 0]

    def test_scalars_under_a_name_are_one_row_of_that_output(self):
        assert as_tables({"final": {"n": 1, "s": "a"}}, 1)["final"].to_pylist() == [{"n": 1, "s": "a"}]

    def test_tables_of_different_libraries_may_be_mixed(self):
        found = as_tables({"a": pl.DataFrame({"n": [1]}), "b": {"n": [2]}, "c": pd.DataFrame({"n": [3]})}, 1)
        assert {name: table["n"].to_pylist() for name, table in found.items()} == {"a": [1], "b": [2], "c": [3]}

    def test_an_output_name_that_cannot_be_a_folder_is_refused(self, subtests: pytest.Subtests) -> None:
        for name in ["", "a/b", ".hidden", 3, "a\nb", "a\0b", "caf\udce9"]:
            with subtests.test(ascii(name)), pytest.raises(InvalidOutput, match="cannot name an output"):
                as_tables({name: pa.table({"n": [1]})}, 1)


class TestTypes:
    def test_categories_of_polars_and_pandas_become_string(self):
        frames = [pl.DataFrame({"s": ["a", "b"]}, schema={"s": pl.Categorical}), pd.DataFrame({"s": ["a", "b"]})]
        frames[1]["s"] = frames[1]["s"].astype("category")
        for frame in frames:
            assert as_tables(frame, 1)["output"].equals(pa.table({"s": ["a", "b"]}))

    def test_a_table_without_rows_is_valid(self, subtests: pytest.Subtests) -> None:
        for make in [pl.DataFrame, pa.table, pd.DataFrame, dict]:
            with subtests.test(str(make)):
                columns = {"day": np.array([], dtype=np.int64), "value": np.array([], dtype=np.float64)}
                found = as_tables(make(columns), 1)["output"]
                assert (found.num_rows, found.schema.types) == (0, [pa.int64(), pa.float64()])


class TestSeedColumn:
    def test_a_seed_above_2_53_is_compared_exactly(self, subtests: pytest.Subtests) -> None:
        for kind in [pa.int64(), pa.uint64(), pa.float64()]:
            with subtests.test(str(kind)):
                column = pa.array([BIG, BIG]).cast(kind, safe=False)
                assert as_tables(pa.table({"seed": column, "n": [1, 2]}), BIG)["output"].column_names == ["n"]
                with pytest.raises(InvalidOutput, match=str(BIG + 1)):
                    as_tables(pa.table({"seed": column, "n": [1, 2]}), BIG + 1)

    def test_a_seed_above_2_63_is_recognised(self):
        table = pa.table({"seed": pa.array([ODD], pa.uint64()), "n": [1]})
        assert as_tables(table, ODD)["output"].column_names == ["n"]

    def test_it_is_left_out_of_a_table_without_rows(self):
        table = pa.table({"seed": pa.array([], pa.int64()), "n": pa.array([], pa.int64())})
        assert as_tables(table, 7)["output"].column_names == ["n"]

    def test_a_seed_column_with_other_values_is_refused(self, subtests: pytest.Subtests) -> None:
        for column in [[7, 8], [7, None], ["7", "7"], [[7], [7]], [{"a": 7}, {"a": 7}]]:
            with subtests.test(str(column)), pytest.raises(InvalidOutput, match=r"column 'seed'.*seed, 7"):
                as_tables({"seed": column, "n": [1, 2]}, 7)

    def test_a_table_with_only_the_seed_is_refused(self):
        with pytest.raises(InvalidOutput, match="no column but 'seed'"):
            as_tables({"seed": [7]}, 7)

    def test_other_identity_columns_are_refused(self):
        for name in ("param_id", "group", "replicate"):
            with pytest.raises(InvalidOutput, match=f"column '{name}'"):
                as_tables({"seed": [7], name: [0], "n": [1]}, 7)


NO_TABLES = {
    "nothing": (lambda: None, "returned None; add a return statement"),
    "a number": (lambda: 3.5, "float"),
    "text": (lambda: "over", "str"),
    "a wide list": (lambda: [1, 2, 3, 4, 5], "list of 5"),
    "an array": (lambda: np.zeros((2, 2)), "ndarray"),
    "a polars series": (lambda: pl.Series("n", [1]), "Series"),
    "a pandas series": (lambda: pd.Series([1], name="n"), "Series"),
    "a generator": (lambda: ({"day": [day]} for day in range(3)), "generator"),
    "an empty mapping": (dict, "empty mapping"),
    "a scalar next to a column": (lambda: {"n": 1, "day": [0, 1]}, "'n': int, 'day': list of 2"),
    "a table next to a scalar": (lambda: {"daily": pa.table({"n": [1]}), "n": 1}, "'daily': Table, 'n': int"),
    "an object as a value": (lambda: {"n": object()}, "'n': object"),
    "a set as a column": (lambda: {"n": {1, 2}}, "'n': set"),
    "ragged columns": (lambda: {"day": [0, 1, 2], "value": [0.5]}, "'output'"),
    "objects in a column": (lambda: {"day": [0], "thing": np.array([object()], dtype=object)}, "'output'"),
    "a mixed column": (lambda: {"day": [0, 1], "value": [1.5, "one"]}, "'output'"),
    "a matrix as a column": (lambda: {"m": np.zeros((2, 2))}, "'output'"),
    "an integer beyond 64 bits": (lambda: {"n": 2**70}, "'output'"),
    "a table without columns": (lambda: pa.table({}), "'output' has no columns"),
    "an output without columns": (lambda: {"daily": {}}, "'daily' has no columns"),
    "columns of one name": (lambda: pa.table([[1], [2]], names=["n", "n"]), "same name: n, n"),
}


def test_a_result_that_is_no_table_is_refused_with_its_type(subtests: pytest.Subtests) -> None:
    for name, (make, says) in NO_TABLES.items():
        with subtests.test(name):
            with pytest.raises(InvalidOutput) as refused:
                as_tables(make(), 1)
            assert says in str(refused.value)


# --- earlier results of the same task


def tables_or_refusal(read):
    try:
        return {name: table_of(output) for name, output in read().items()}
    except InvalidOutput as refused:
        return str(refused)


NAMES = st.sampled_from(["a", "b", "seed", "3", "True", 3, 1, True, 1.0])
TYPES = st.sampled_from(["float64", "float32", "int64", "int32", "uint8", "bool", "<U3", "object", "M8[s]", ">f8"])
LAYOUTS = st.dictionaries(NAMES, TYPES, min_size=1, max_size=3)
SHAPES = st.sampled_from([(0,), (2,), (3,), (2, 2), ()])


@st.composite
def results_in_turn(draw):
    """Draw several results, of few forms, so that many are as one before."""
    layouts = draw(st.lists(LAYOUTS, min_size=1, max_size=2))
    found = []
    for layout in draw(st.lists(st.sampled_from(layouts), min_size=2, max_size=6)):
        shape = draw(SHAPES)
        values = st.sampled_from([7, 0])  # 7: the seed
        found.append({name: np.full(shape, draw(values)).astype(kind) for name, kind in layout.items()})
    return found


@settings(max_examples=300)
@given(results_in_turn(), st.booleans())
def test_earlier_results_do_not_change_how_a_result_is_read(results, are_handed_over):
    """The result is as it is without copies into blocks: read as a table and checked."""
    task, schema, was_good = Results(None), None, []
    for result in results:
        found = tables_or_refusal(lambda result=result: task.read(result, 7))
        as_first = tables_or_refusal(lambda result=result: as_tables(result, 7))
        if isinstance(as_first, dict):
            schema = schema or OutputSchema({name: families_in(table) for name, table in as_first.items()})
            as_first = tables_or_refusal(lambda schema=schema, tables=as_first: schema.check(tables))
        assert found == as_first
        if isinstance(found, dict):
            assert found["output"].schema.equals(as_first["output"].schema, check_metadata=True)
            was_good.append((found, {name: table.to_pylist() for name, table in found.items()}))
            if are_handed_over:
                task.handed_over({name: families_in(table) for name, table in found.items()})
                schema.handed_over({name: families_in(table) for name, table in found.items()})
    for tables, rows in was_good:  # later results have changed none
        assert {name: table.to_pylist() for name, table in tables.items()} == rows


def test_column_names_that_are_equal_as_text_are_refused():
    with pytest.raises(InvalidOutput, match="columns of the same name: 3, '3'"):
        as_tables({3: np.zeros(2), "3": np.ones(2)}, 1)
