"""Every way to give parameter sets has the ids and seeds of the contract, computed here by a plain reference."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cases import case_folder
from mops.errors import StudyError
from mops.project.study_source import given_study, read_study
from mops.storage.backends.base import Spool
from mops.storage.params_file import encode_groups
from mops.study.study_file import Study, parse_study

Entry = tuple[dict[str, Any], int | None]  # parameters, and an own seed

KINDS: dict[str, Any] = {
    "whole": lambda r: r.choice([0, -1, 1, 2**53, 2**53 + 1, -(2**63), r.randrange(-(10**6), 10**6)]),
    "huge": lambda r: r.choice([2**64 - 1, 2**63, r.randrange(2**64)]),
    "real": lambda r: r.choice([-0.0, 0.0, 1.0, 1e22, 1e-7, 5e-324, 1.7976931348623157e308, r.gauss(0, 1), r.random()]),
    "flag": lambda r: r.random() < 0.5,
    "text": lambda r: r.choice(
        ["", "a", "1", "1.0", "true", "null", " x ", '"', "\\", "a,b\nc", "Genève", "\U0001f600", "%s"]
    ),
}
MIXED = lambda r: KINDS[r.choice(list(KINDS))](r)  # noqa: E731


def expected(entries: Iterable[Entry], n_replicates: int) -> list[tuple[str, dict[str, Any], tuple[int, ...]]]:
    groups: dict[str, tuple[dict[str, Any], dict[int, None]]] = {}
    for params, own in entries:
        text = json.dumps(params, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        identity = blake2b(b"contracts:param:v1|" + text.encode(), digest_size=32).hexdigest()
        derived = [
            int.from_bytes(blake2b(f"{identity}:{i}".encode(), digest_size=8).digest(), "big") % 2**32
            for i in range(n_replicates)
        ]
        seeds = groups.setdefault(identity, (params, {}))[1]
        seeds.update(dict.fromkeys(derived if own is None else [own]))
    return [(identity, params, tuple(seeds)) for identity, (params, seeds) in groups.items()]


def entries_of(rng: random.Random, *, mixed: bool) -> list[Entry]:
    names = rng.sample(["beta", "Ünder", "a b", "x%", "zeta", "seed_2", '"'], rng.randrange(1, 6))
    kinds = {name: MIXED if mixed else KINDS[rng.choice(list(KINDS))] for name in names}
    pool = [{name: kinds[name](rng) for name in names if rng.random() < 0.9} for _ in range(rng.randrange(1, 40))]
    drawn = [dict(rng.choice(pool)) for _ in range(rng.randrange(1, 60))]
    return [(params, rng.choice([None, None, 7, 2**64 - 1, rng.randrange(2**64)])) for params in drawn]


def as_json(entries: list[Entry], n: int, folder: Path) -> Study:
    sets = [{"params": params, "seed": seed} for params, seed in entries]
    (folder / "study.json").write_text(json.dumps({"model": "m:f", "parameter_sets": sets, "n_replicates": n}))
    source = read_study(folder / "study.json", folder)
    return parse_study(source.data, where="", folder=folder)


def as_list(entries: list[Entry], n: int, folder: Path) -> Study:
    sets = [{"params": params, "seed": seed} if seed is not None else params for params, seed in entries]
    source = given_study({"model": "m:f", "parameter_sets": sets, "n_replicates": n}, folder)
    return parse_study(source.data, where="", folder=folder)


def as_csv(entries: list[Entry], n: int, folder: Path) -> Study:
    names = sorted({name for params, _ in entries for name in params}) or ["x"]
    with (folder / "sets.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow([*names, "seed"])
        for params, seed in entries:
            cells = [json.dumps(params[name], ensure_ascii=False) if name in params else "" for name in names]
            writer.writerow([*cells, "" if seed is None else seed])
    return parse_study({"model": "m:f", "parameter_sets": "sets.csv", "n_replicates": n}, where="", folder=folder)


def column_of(values: list[Any]) -> pa.Array:
    is_huge = any(isinstance(value, int) and value >= 2**63 for value in values)
    return pa.array(values, pa.uint64() if is_huge else None)


def table_of(entries: list[Entry]) -> pa.Table:
    names = sorted({name for params, _ in entries for name in params})
    columns = {name: column_of([params.get(name) for params, _ in entries]) for name in names}
    return pa.table({**columns, "seed": pa.array([seed for _, seed in entries], pa.uint64())})


def as_parquet(entries: list[Entry], n: int, folder: Path) -> Study:
    pq.write_table(table_of(entries), folder / "sets.parquet")
    return parse_study({"model": "m:f", "parameter_sets": "sets.parquet", "n_replicates": n}, where="", folder=folder)


def as_table(entries: list[Entry], n: int, folder: Path) -> Study:
    source = given_study({"model": "m:f", "parameter_sets": table_of(entries), "n_replicates": n}, folder)
    return parse_study(source.data, where="", folder=folder)


def test_ids_and_seeds_are_those_of_the_contract(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number in range(12):
        for path in [as_json, as_list, as_csv, as_parquet, as_table]:
            with subtests.test(str((number, path))):
                folder = tmp_path / str(sum(1 for _ in tmp_path.iterdir()))
                folder.mkdir()
                rng = random.Random(number)
                for _ in range(5):
                    entries = entries_of(rng, mixed=path in (as_json, as_list, as_csv))
                    n = rng.choice([1, 3])
                    groups = path(entries, n, folder).groups
                    found = groups.groups(range(len(groups)))
                    assert [(one.param_id, one.params, one.seeds) for one in found] == expected(entries, n)
                    assert [repr(one.params[k]) for one in found for k in sorted(one.params)] == [
                        repr(params[k]) for _, params, _ in expected(entries, n) for k in sorted(params)
                    ], "-0.0 and 1.0 stay"


def test_a_cell_that_is_not_finite_is_refused_by_place(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for cell in ["NaN", "inf", "-Infinity"]:
        with case_folder(subtests, tmp_path, cell) as here:
            (here / "sets.csv").write_text(f"beta\n1.0\n{cell}\n")
            with pytest.raises(StudyError) as refused:
                parse_study({"model": "m:f", "parameter_sets": "sets.csv"}, where="", folder=here)
            assert [problem.path for problem in refused.value.problems] == ["sets.csv, line 3, column 'beta'"]


def test_a_table_with_a_wrong_value_is_refused_by_place(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for columns, place in [
        ({"beta": [1.0, float("nan")]}, "$.parameter_sets[1].beta"),
        ({"beta": pa.array([1.0, float("nan")]).dictionary_encode()}, "$.parameter_sets[1].beta"),
        ({"beta": [1.0, 2.0], "seed": [1, -1]}, "$.parameter_sets[1].seed"),
        ({"beta": [1.0, 2.0], "seed": [None, 1.0]}, "$.parameter_sets[1].seed"),
        ({"beta": [None, [1]]}, "$.parameter_sets[1].beta"),
    ]:
        with case_folder(subtests, tmp_path, (columns, place)) as folder:
            source = given_study({"model": "m:f", "parameter_sets": pa.table(columns)}, folder)
            with pytest.raises(StudyError) as refused:
                parse_study(source.data, where="")
            assert [problem.path for problem in refused.value.problems] == [place]


def test_a_parameter_with_1_and_1_0_is_not_the_same_in_all_sets() -> None:
    """They are two parameter sets, and check listed 1 as the same in both."""
    sets = [{"beta": 1, "where": "Genève"}, {"beta": 1.0, "where": "Genève"}]
    assert parse_study({"model": "m:f", "parameter_sets": sets}, where="").groups.constants == {"where": '"Genève"'}


def test_the_stored_study_of_a_table_with_an_empty_chunk_is_json(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for place in range(3):
        with case_folder(subtests, tmp_path, place) as folder:
            chunks = [pa.table({"beta": [1, 2]}), pa.table({"beta": [3]})]
            chunks.insert(place, chunks[0].slice(0, 0))
            source = given_study({"model": "m:f", "parameter_sets": pa.concat_tables(chunks)}, folder)
            assert json.loads(source.text)["parameter_sets"] == [{"beta": 1}, {"beta": 2}, {"beta": 3}]


def test_categories_of_polars_are_texts(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for values in [["a", "b"], ["a", None]]:
        for kind in [pl.Categorical, pl.Enum(["b", "a"])]:
            with subtests.test(str((values, kind))):
                folder = tmp_path / str(sum(1 for _ in tmp_path.iterdir()))
                folder.mkdir()
                frame = pl.DataFrame({"beta": [1, 2], "policy": pl.Series(values, dtype=kind)})
                source = given_study({"model": "m:f", "parameter_sets": frame}, folder)
                groups = parse_study(source.data, where="").groups
                found = [one.params.get("policy") for one in groups.groups(range(2))]
                assert found == values


def test_a_column_without_a_value_is_no_parameter(tmp_path: Path) -> None:
    """A job of it ended with an error of Python."""
    (tmp_path / "sets.csv").write_text("beta,empty\n1,\n2,\n")
    study = parse_study({"model": "m:f", "parameter_sets": "sets.csv"}, where="", folder=tmp_path)
    assert list(study.groups.kinds) == ["beta"]
    stored = pq.read_table(encode_groups(study.groups, Spool()).content.opened())
    assert "empty" not in stored.column_names
    assert stored["beta"].to_pylist() == [1, 2]


def test_sets_with_different_parameters_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mops.study.study_file._CELLS_AT_ONCE", 10)
    sets: list[dict[str, Any]] = [{f"p{i}": i, f"q{i}": "x"} for i in range(9)]
    sets[7]["p0"] = "text"
    study = parse_study({"model": "m:f", "parameter_sets": sets}, where="")
    assert [one.params for one in study.groups.groups(range(9))] == sets
    assert "$.parameter_sets[7]: parameter 'p0' is text here, but not in other sets" in study.warnings
