"""Tables of xarray, polars, DuckDB and geopandas, and dataclasses and pydantic models as rows (result-forms.md)."""

from __future__ import annotations

import dataclasses
import enum
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import duckdb
import geopandas as gpd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pydantic
import pytest
import xarray as xr
from shapely import from_wkb
from shapely.geometry import Point

from mops.child.outputs import Results, as_tables
from mops.study.column_types import families_in
from mops.study.output_schema import InvalidOutput

GRID = xr.Dataset(
    {
        "infected": (("day", "place"), np.array([[1, 2, 3], [4, 5, 6]], np.int32)),
        "rate": (("place", "day"), np.array([[0.1, 0.4], [0.2, 0.5], [0.3, 0.6]])),
    },
    coords={"place": ["a", "b", "c"], "size": ("place", [10, 20, 30]), "year": 2024},
    attrs={"title": "a grid"},
)
ZONES = gpd.GeoDataFrame(
    {"zone": ["a", "b", "c"]}, geometry=[Point(0, 1), None, Point(1, 2, 3)], crs="EPSG:4326", index=[7, 8, 9]
)
LAZY = pl.LazyFrame({"day": [0, 1]}).with_columns(square=pl.col("day") ** 2)


@dataclass
class Place:
    x: float
    y: float | None = None


@dataclass
class Agent:
    number: int
    place: Place | None
    visited: list[Place] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Summary:
    peak: int
    curve: Any = None


class Test(pydantic.BaseModel):
    __test__ = False
    day: int
    value: float | None = None
    tags: list[str] = []
    secret: str = pydantic.Field("", exclude=True)

    @pydantic.computed_field
    def is_late(self) -> bool:
        return self.day > 1


class Campaign(pydantic.BaseModel):
    name: str
    best: Test


Numbers = pydantic.RootModel[list[int]]


class Colour(enum.Enum):
    RED = 1


def relation() -> Any:
    return duckdb.sql("select range::integer as day, range || 'x' as label from range(2)")


def alone(result: object) -> pa.Table:
    (name, table), *others = as_tables(result, 1).items()
    assert (name, others) == ("output", [])
    return table


def refusal(result: object) -> str:
    with pytest.raises(InvalidOutput) as refused:
        as_tables(result, 1)
    return str(refused.value)


DOUBLE, INT, TEXT = pa.float64(), pa.int64(), pa.string()
PLACE = pa.struct([("x", DOUBLE), ("y", pa.null())])
FORMS: dict[str, tuple[Any, dict[str, pa.DataType]]] = {
    "a Dataset": (
        GRID,
        {"day": INT, "place": TEXT, "infected": pa.int32(), "rate": DOUBLE, "size": INT, "year": INT},
    ),
    "a DataArray": (GRID["infected"], {"day": INT, "place": TEXT, "size": INT, "year": INT, "infected": pa.int32()}),
    "a DataArray without a name": (xr.DataArray([0.5], dims="t"), {"t": INT, "values": DOUBLE}),
    "a Dataset without rows": (GRID.isel(place=[])[["rate"]].drop_vars(["size", "year"]), None),
    "a Dataset without dimensions": (GRID.max().drop_vars("year"), {"infected": pa.int32(), "rate": DOUBLE}),
    "a Dataset of several levels": (
        GRID[["rate"]].drop_vars(["size", "year"]).assign_coords(day=[1.5, 2.5]).stack(cell=("day", "place")),
        {"day": DOUBLE, "place": TEXT, "rate": DOUBLE},
    ),
    "a Dataset with times": (
        xr.Dataset({"n": ("when", [1])}, coords={"when": np.array(["2024-01-01"], "M8[ns]")}),
        {"when": pa.timestamp("ns"), "n": INT},
    ),
    "a lazy frame": (LAZY, {"day": INT, "square": INT}),
    "a DuckDB relation": (relation, {"day": pa.int32(), "label": TEXT}),
    "a geopandas frame": (ZONES, {"zone": TEXT, "geometry": pa.binary()}),
    "a geopandas frame with an index": (ZONES.set_index("zone"), {"zone": TEXT, "geometry": pa.binary()}),
    "a geopandas frame without rows": (ZONES.iloc[:0], {"zone": TEXT, "geometry": pa.binary()}),
    "geopandas' Arrow table": (ZONES.to_arrow(index=False), {"zone": TEXT, "geometry": pa.binary()}),
    "a dataclass": (Summary(3), {"peak": INT, "curve": pa.null()}),
    "a dataclass with an array": (Summary(3, np.zeros(2, np.float32)), {"peak": INT, "curve": pa.list_(pa.float32())}),
    "dataclasses": (
        [Agent(1, Place(0.5), [Place(1.5), Place(2.5)]), Agent(2, None)],
        {"number": INT, "place": PLACE, "visited": pa.list_(PLACE)},
    ),
    "a tuple of dataclasses": ((Place(0.5), Place(1.5)), {"x": DOUBLE, "y": pa.null()}),
    "a pydantic model": (
        Test(day=1),
        {"day": INT, "value": pa.null(), "tags": pa.list_(pa.null()), "is_late": pa.bool_()},
    ),
    "pydantic models": (
        [Test(day=1, tags=["a"]), Test(day=2, value=0.5)],
        {"day": INT, "value": DOUBLE, "tags": pa.list_(TEXT), "is_late": pa.bool_()},
    ),
}


def made(form: str) -> Any:
    value = FORMS[form][0]
    return value() if callable(value) and not dataclasses.is_dataclass(value) else value


class TestStoredColumns:
    def test_alone(self, subtests: pytest.Subtests) -> None:
        for form in FORMS:
            with subtests.test(str(form)):
                wanted = FORMS[form][1]
                if form == "a Dataset without rows":
                    wanted = {"place": alone(GRID[["rate"]]).schema.field("place").type, "day": INT, "rate": DOUBLE}
                table = alone(made(form))
                assert {field.name: str(field.type) for field in table.schema} == {
                    n: str(kind) for n, kind in wanted.items()
                }
                assert not table.schema.metadata

    def test_as_one_of_several_outputs(self, subtests: pytest.Subtests) -> None:
        for form in FORMS:
            with subtests.test(str(form)):
                found = as_tables({"it": made(form), "summary": {"n": 1}, "frame": pd.DataFrame({"n": [1]})}, 1)
                assert found["it"].equals(alone(made(form)))
                assert list(found) == ["it", "summary", "frame"]


class TestXarray:
    def test_a_dataset_is_its_tidy_table(self) -> None:
        tidy = GRID.to_dataframe().reset_index()
        assert alone(GRID).to_pydict() == pa.table(tidy).to_pydict()

    def test_nan_stays_nan(self) -> None:
        (value,) = alone(xr.Dataset({"x": ("t", [math.nan])}))["x"].to_pylist()
        assert math.isnan(value)

    def test_a_coordinate_of_another_dimension_is_left_out_and_does_not_repeat_rows(self) -> None:
        with_other = GRID.assign_coords(week=("week", [1, 2]))
        assert alone(with_other).equals(alone(GRID))

    def test_variables_of_different_dimensions_are_refused(self) -> None:
        mixed = GRID.assign(total=("day", [6, 15]), all=21)
        said = refusal({"grid": mixed})
        assert "output 'grid'" in said
        assert "['infected', 'rate'] of (day, place), ['total'] of (day), ['all'] of ()" in said

    def test_arrays_without_dimensions_are_numbers(self) -> None:
        result = {"peak": GRID["infected"].max(), "mean": GRID["rate"].mean(), "n": 3}
        assert alone(result).to_pylist() == [{"peak": 6, "mean": pytest.approx(0.35), "n": 3}]

    def test_an_array_with_the_name_of_its_dimension_is_refused(self) -> None:
        assert "columns of the same name: 'day', 'day'" in refusal(xr.DataArray([1], dims="day", name="day"))

    def test_a_dataset_without_variables_is_refused(self) -> None:
        assert "no data variables" in refusal(GRID.drop_vars(["infected", "rate"]))

    def test_a_tree_is_refused(self) -> None:
        tree = xr.DataTree.from_dict({"/a": GRID, "/b": GRID})
        assert "returned DataTree; return a table" in refusal(tree)
        assert "'a': DataTree" in refusal({"a": tree})

    def test_a_result_of_another_simulation_does_not_change_it(self) -> None:
        values = np.zeros(2)
        first = alone(xr.Dataset({"x": ("t", values)}))
        values[:] = 1
        assert first["x"].to_pylist() == [0, 0]


class TestPolars:
    def test_a_query_that_fails_is_refused_with_the_reason(self) -> None:
        assert 'unable to find column "nights"' in refusal({"daily": LAZY.select("nights")})


class TestDuckDB:
    def test_the_query_runs(self) -> None:
        assert alone(relation()).to_pylist() == [{"day": 0, "label": "0x"}, {"day": 1, "label": "1x"}]

    def test_a_query_that_fails_is_refused_with_the_reason(self) -> None:
        broken = duckdb.sql("select cast(l as integer) from (values ('a')) as t(l)")
        assert "Could not convert string 'a'" in refusal(broken)


class TestGeopandas:
    def test_geometries_are_wkb_and_a_missing_one_is_null(self) -> None:
        stored = alone(ZONES)["geometry"].to_pylist()
        assert stored[1] is None
        assert [from_wkb(stored[0]).wkt, from_wkb(stored[2]).wkt] == ["POINT (0 1)", "POINT Z (1 2 3)"]
        assert gpd.GeoSeries.from_wkb(stored, crs="EPSG:4326", index=ZONES.index).equals(ZONES.geometry)

    def test_a_series_of_geometries_is_a_column(self) -> None:
        assert alone({"zone": ["a", "b", "c"], "at": ZONES.geometry.reset_index(drop=True)})["at"].type == pa.binary()


class TestRecords:
    def test_nested_records_are_structs(self) -> None:
        assert alone([Agent(1, Place(0.5), [Place(1.5)]), Agent(2, None)]).to_pylist() == [
            {"number": 1, "place": {"x": 0.5, "y": None}, "visited": [{"x": 1.5, "y": None}]},
            {"number": 2, "place": None, "visited": []},
        ]
        assert alone(Campaign(name="a", best=Test(day=2)))["best"].to_pylist() == [
            {"day": 2, "value": None, "tags": [], "is_late": True}
        ]

    def test_records_in_a_column_are_structs(self) -> None:
        found = as_tables({"agents": {"n": [1, 2, 3], "at": [Place(0.5), None, Place(1.5, 2.0)]}}, 1)["agents"]
        assert found["at"].to_pylist() == [{"x": 0.5, "y": None}, None, {"x": 1.5, "y": 2.0}]

    def test_numbers_of_numpy_keep_their_types(self) -> None:
        assert alone([Summary(np.int16(1)), Summary(np.int16(2))]).schema.field("peak").type == pa.int16()

    def test_other_rows_are_refused_with_the_reason(self, subtests: pytest.Subtests) -> None:
        for result, says in [
            ([Place(1.0), Summary(1)], "rows 0 and 1 differ in their fields: curve, peak, x, y"),
            ([Place(1.0), None], "mixes rows and NoneType"),
            ([Place(1.0), {"x": 1.0, "y": None}], "mixes rows and dict"),
            (Summary(1, pd.DataFrame({"n": [1]})), "field 'curve' of a row holds a table"),
            ([Summary(1, pa.table({"n": [1]}))], "field 'curve' of a row holds a table"),
            (Numbers([1, 2]), "model_dump() gives list"),
            (Summary(Colour.RED), "column 'peak'"),
            (Place, "returned type"),
            ([Place], "returned list of 1"),
            ({"n": [1, 2], "at": [Place(1.0), Place(2.0)]}, "'n': list of 2, 'at': list of 2"),
            ({"daily": Place(1.0), "n": 3}, "'daily': Place, 'n': int"),
        ]:
            with subtests.test(str((result, says))):
                assert says in refusal(result)


class TestDictionariesAsRows:
    def test_each_dictionary_is_a_row(self) -> None:
        found = alone([{"day": 0, "where": "Bern"}, {"where": "Geneva", "day": 1}])
        assert found.column_names == ["day", "where"]
        assert found.to_pylist() == [{"day": 0, "where": "Bern"}, {"day": 1, "where": "Geneva"}]

    def test_values_are_those_of_a_column(self) -> None:
        rows = [{"at": {"x": 1.5}, "seen": [1, 2], "note": None}, {"at": None, "seen": [], "note": "late"}]
        assert alone(rows).to_pylist() == rows
        assert alone(tuple(rows)).to_pylist() == rows
        assert alone([{"n": np.int16(1)}, {"n": np.int16(2)}]).schema.field("n").type == pa.int16()

    def test_several_outputs_may_have_rows(self) -> None:
        found = as_tables({"daily": [{"day": 0}, {"day": 1}], "places": [Place(0.5)], "total": {"n": 3}}, 1)
        assert {name: table.num_rows for name, table in found.items()} == {"daily": 2, "places": 1, "total": 1}
        assert as_tables({"daily": [{"day": 0}]}, 1)["daily"].to_pylist() == [{"day": 0}]

    def test_beside_a_column_and_inside_of_a_table_they_are_values(self) -> None:
        rows = [{"x": 1}, {"x": 2}]
        assert as_tables({"n": [1, 2], "at": rows}, 1)["output"].column_names == ["n", "at"]
        assert as_tables({"table": {"at": rows}}, 1)["table"]["at"].to_pylist() == rows

    def test_the_seed_is_left_out(self) -> None:
        assert alone([{"seed": 1, "n": 5}]).column_names == ["n"]

    def test_other_lists_are_refused_with_the_reason(self, subtests: pytest.Subtests) -> None:
        for result, says in [
            ([{"day": 1}, {"day": 2, "late": True}], "rows 0 and 1 differ in their fields: late"),
            ([{"day": 1}, {1: 2}], "rows 0 and 1 differ in their fields: 1, day"),
            ([{"day": 1}, None], "mixes rows and NoneType"),
            ([{"day": 1}, Place(1.0)], "mixes rows and Place"),
            ([{"daily": pa.table({"n": [1]})}], "field 'daily' of a row holds a table"),
            ([{}], "has no columns"),
            ([{"day": "x"}, {"day": 1}], "column 'day': it mixes numbers and text"),
            ([1.5, 2.5], "returned list of 2; return a table, a list of rows, or a mapping"),
            ([pd.DataFrame({"n": [1]})], "returned list of 1; return a table"),
        ]:
            with subtests.test(str((result, says))):
                assert says in refusal(result)


class TestEmptyLists:
    """A list of rows may be empty. It says no columns, so mops takes those of the job's earlier results."""

    EVENT: ClassVar = {"events": [Place(0.5, 1.5)]}
    SEVERAL: ClassVar = {"events": [Place(0.5, 1.5)], "summary": {"n": 1}}

    def test_it_is_a_table_without_rows(self, subtests: pytest.Subtests) -> None:
        for first, then, n_rows in [
            (self.EVENT, {"events": []}, {"events": 0}),
            (self.SEVERAL, {"events": [], "summary": {"n": 2}}, {"events": 0, "summary": 1}),
            ([Place(0.5, 1.5)], [], {"output": 0}),
            ([Place(0.5, 1.5)], (), {"output": 0}),
            ([{"x": 0.5}], [], {"output": 0}),
            (
                {"events": [{"x": 0.5}], "more": [{"n": 1}]},
                {"events": [], "more": [{"n": 2}]},
                {"events": 0, "more": 1},
            ),
            ({"day": [1]}, {"day": []}, {"output": 0}),
            ({"output": [1]}, {"output": []}, {"output": 0}),
        ]:
            with subtests.test(str((first, then, n_rows))):
                results = Results({name: families_in(table) for name, table in as_tables(first, 1).items()})
                outputs = results.read(then, 2)
                assert {name: output.num_rows for name, output in outputs.items()} == n_rows
                assert results.read(first, 3)["output" if "output" in n_rows else "events"].num_rows == 1

    @pytest.mark.parametrize("result", [[], {"events": [], "summary": {"n": 1}}])
    def test_it_is_refused_as_the_first_result(self, result: object) -> None:
        with pytest.raises(InvalidOutput, match="is an empty list, and mops does not know its columns yet"):
            Results(None).read(result, 1)
