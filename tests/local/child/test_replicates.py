"""A target gets its replicates as the annotation of their argument says: pandas, polars or Arrow."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from mops.child.load import Target, load_target
from mops.child.modules import CannotLoad
from mops.study.output_schema import InvalidOutput

ONE = [{"daily": pa.table({"n": [1, 2]})}, {"daily": pa.table({"n": [5, 0]})}]
TWO = [{**outputs, "summary": pa.table({"peak": [2], "place": ["Bern"]})} for outputs in ONE]

IMPORTS = """
import collections.abc, functools, typing
from typing import *
import geopandas, pandas as pd, polars as pl, pyarrow as pa
from pandas import DataFrame
def kinds(replicates):
    first = replicates[0]
    each = first.values() if isinstance(first, dict) else [first]
    return {f"{type(one).__module__.split('.')[0]}.{type(one).__name__}": float(len(one)) for one in each}
"""
LATER = f"from __future__ import annotations\n{IMPORTS}"


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Target]]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two texts of one length and second have one cache

    def load(code: str) -> Target:
        sys.modules.pop("the_targets", None)
        (tmp_path / "the_targets.py").write_text(textwrap.dedent(code))
        return load_target("the_targets:score", [tmp_path])

    yield load
    sys.modules.pop("the_targets", None)


PANDAS, POLARS, ARROW = "pandas.DataFrame", "polars.DataFrame", "pyarrow.Table"
NAMED = {
    "list[dict[str, pd.DataFrame]]": PANDAS,
    "list[dict[str, pl.DataFrame]]": POLARS,
    "list[dict[str, pa.Table]]": ARROW,
    "List[Dict[str, DataFrame]]": PANDAS,
    "typing.Sequence[typing.Mapping[str, pl.DataFrame]]": POLARS,
    "collections.abc.Iterable[collections.abc.Mapping[str, pd.DataFrame]]": PANDAS,
    "Annotated[list[dict[str, pl.DataFrame]], 'by replicate']": POLARS,
    "'list[dict[str, pd.DataFrame]]'": PANDAS,
    "list[dict[str, 'pd.DataFrame']]": PANDAS,
    # no class of pandas, polars or pyarrow: as without an annotation
    "list": ARROW,
    "list[dict]": ARROW,
    "list[dict[str, Any]]": ARROW,
    "Any": ARROW,
    "object": ARROW,
    "list[dict[str, geopandas.GeoDataFrame]]": ARROW,
}
DIRECT = {"list[pd.DataFrame]": PANDAS, "list[pl.DataFrame]": POLARS, "list[pa.Table]": ARROW}


@pytest.mark.parametrize("imports", [IMPORTS, LATER], ids=["evaluated", "text"])
class TestAnnotations:
    def test_a_dictionary_of_frames(self, target, imports, subtests: pytest.Subtests) -> None:
        for annotation, wanted in NAMED.items():
            for replicates, rows in [(ONE, 2.0), (TWO, 1.0)]:
                with subtests.test(f"{annotation} {len(replicates[0])}"):
                    score = target(f"{imports}\ndef score(params, replicates: {annotation}): return kinds(replicates)")
                    assert score({}, replicates) == {wanted: rows}

    def test_the_frames_of_the_only_output(self, target, imports, subtests: pytest.Subtests) -> None:
        for annotation, wanted in DIRECT.items():
            with subtests.test(annotation):
                score = target(f"{imports}\ndef score(replicates: {annotation}): return kinds(replicates)")
                assert score({}, ONE) == {wanted: 2.0}

    def test_several_outputs_cannot_be_one_frame(self, target, imports, subtests: pytest.Subtests) -> None:
        for annotation in DIRECT:
            with subtests.test(str(annotation)):
                score = target(f"{imports}\ndef score(replicates: {annotation}): return kinds(replicates)")
                with pytest.raises(
                    InvalidOutput, match=r"outputs daily, summary; annotate .* list\[dict\[str, \.\.\.\]\]"
                ):
                    score({}, TWO)

    def test_another_form_of_a_known_library_is_refused(self, target, imports, subtests: pytest.Subtests) -> None:
        for annotation in [
            "pd.DataFrame",
            "dict[str, pd.DataFrame]",
            "list[pd.Series]",
            "list[list[pd.DataFrame]]",
            "list[dict[str, pl.LazyFrame]]",
            "list[dict[str, pa.RecordBatch]]",
            "list[dict[str, pa.Table | pd.DataFrame]]",
            "Optional[list[pd.DataFrame]]",
        ]:
            with subtests.test(str(annotation)):
                with pytest.raises(CannotLoad) as refused:
                    target(f"{imports}\ndef score(params, replicates: {annotation}): return 1")
                assert "target 'the_targets:score' cannot get 'replicates' as" in str(refused.value)
                assert "list[dict[str, FRAME]]" in str(refused.value)

    def test_the_annotation_of_a_wrapped_function_counts(self, target, imports) -> None:
        code = """
def timed(function):
    @functools.wraps(function)
    def inner(*args, **kwargs): return function(*args, **kwargs)
    return inner
@timed
def score(params, replicates: list[pl.DataFrame]): return kinds(replicates)
"""
        assert target(imports + code)({}, ONE) == {POLARS: 2.0}

    def test_the_annotation_of_a_partial_function_counts(self, target, imports) -> None:
        code = "def by(data, params, replicates: list[pl.DataFrame]): return kinds(replicates)\n"
        assert target(f"{imports}{code}score = functools.partial(by, 3)")({}, ONE) == {POLARS: 2.0}

    def test_the_annotation_of_an_object_counts(self, target, imports) -> None:
        code = (
            "class Score:\n    def __call__(self, params, replicates: list[pl.DataFrame]): return kinds(replicates)\n"
        )
        assert target(f"{imports}{code}score = Score()")({}, ONE) == {POLARS: 2.0}


def test_an_annotation_that_cannot_be_resolved_gives_arrow_and_a_warning(target, capfd) -> None:
    """Such a name is often imported for a type checker only."""
    code = """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            import pandas as pd
        def score(params, replicates: list[dict[str, pd.DataFrame]]): return replicates[0]["daily"].num_rows
    """
    assert target(code)({}, ONE) == {"loss": 2.0}
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("warning: target 'the_targets:score' gets 'replicates' as Arrow tables")
    assert "'list[dict[str, pd.DataFrame]]' (name 'pd' is not defined); import the library" in line


def test_the_values_of_each_form_are_those_of_the_table(target) -> None:
    code = f"{IMPORTS}\nseen = []\ndef score(replicates: list[FORM]): seen.append(replicates); return 0"
    table = pa.table({"n": [1, 2], "x": [0.5, None], "s": ["a", None], "when": pa.array([0, 1], pa.timestamp("us"))})
    for form, whole in {"pd.DataFrame": pd.DataFrame, "pl.DataFrame": pl.DataFrame}.items():
        target(code.replace("FORM", form))({}, [{"output": table}])
        ((frame,),) = sys.modules["the_targets"].seen
        assert type(frame) is whole
        assert pa.table(frame).select(["n", "when"]).to_pylist() == table.select(["n", "when"]).to_pylist()
        sys.modules.pop("the_targets")


@pytest.mark.parametrize("form", ["pd.DataFrame", "pl.DataFrame"])
def test_what_a_target_changes_in_a_frame_does_not_reach_the_next_call(target, form) -> None:
    change = {
        "pd.DataFrame": "replicates[0].iloc[0, 0] = 100; return float(replicates[0].iloc[0, 0])",
        "pl.DataFrame": "replicates[0][0, 'n'] = 100; return replicates[0][0, 'n']",
    }[form]
    score = target(f"{IMPORTS}\ndef score(replicates: list[{form}]): {change}")
    given = [{"daily": pa.table({"n": [1, 2]})}]
    assert [score({}, given), score({}, given)] == [{"loss": 100.0}] * 2
    assert given[0]["daily"]["n"].to_pylist() == [1, 2]
