"""The groups of a study, which are kept as pieces of Arrow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mops.storage.backends.base import Spool
from mops.storage.params_file import encode_groups, read_groups
from mops.study import groups as groups_module
from mops.study.groups import IDENTITY_FIELDS, Group, GroupPart, GroupTable, bounds_of
from mops.study.ids_and_seeds import param_id, replicate_seed
from mops.study.study_file import Study, parse_study


def parse(sets: list[dict[str, Any]], n_replicates: int = 1) -> Study:
    return parse_study({"model": "m:f", "parameter_sets": sets, "n_replicates": n_replicates}, where="study.json")


def stored(study: Study) -> GroupTable:
    return read_groups(encode_groups(study.groups, Spool()).content.opened(), "params.parquet")


def by_hand(sets: list[dict[str, Any]], n_replicates: int) -> list[Group]:
    """Return the groups of a study, built without Arrow."""
    found: dict[str, tuple[dict[str, Any], dict[int, None]]] = {}
    for entry in sets:
        identity, own = param_id(entry["params"]), entry.get("seed")
        _, seeds = found.setdefault(identity, (entry["params"], {}))
        derived = [replicate_seed(identity, i) for i in range(n_replicates)]
        seeds.update(dict.fromkeys(derived if own is None else [own]))
    return [Group(i, identity, params, tuple(seeds)) for i, (identity, (params, seeds)) in enumerate(found.items())]


entries = st.fixed_dictionaries(
    {"params": st.dictionaries(st.sampled_from("ab"), st.integers(0, 2), max_size=2)},
    optional={"seed": st.none() | st.integers(0, 3)},
)


@settings(deadline=None)
@given(st.lists(entries, min_size=1, max_size=30), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
def test_groups_are_the_same_for_any_size_of_the_pieces(
    sets: list[dict[str, Any]], n_replicates: int, piece_groups: int, piece_simulations: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups_module, "PIECE_GROUPS", piece_groups)
        patch.setattr(groups_module, "PIECE_SIMULATIONS", piece_simulations)
        asked = parse(sets, n_replicates).groups
        wanted = by_hand(sets, n_replicates)
        for table in (asked, stored(parse(sets, n_replicates))):
            assert [table.group(i) for i in range(len(table))] == wanted
            assert table.groups(range(len(table))) == tuple(wanted)
            assert table.groups(range(len(table))[::-1]) == tuple(reversed(wanted))
            assert table.n_simulations == sum(len(group.seeds) for group in wanted)
            assert [table.n_replicates(i) for i in range(len(table))] == [len(group.seeds) for group in wanted]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> GroupTable:
    """Return a table of 1,000 groups in pieces of 7."""
    monkeypatch.setattr(groups_module, "PIECE_GROUPS", 7)
    return stored(parse([{"x": i} for i in range(1000)], 2))


@pytest.mark.parametrize(
    ("simulations", "n_rows"),
    [
        ([(999, 1), (0, 0), (500, 1), (0, 1), (6, 0), (7, 0)], [2, 1, 0, 3, 1, 1]),
        ([(13, 1), (10, 0), (13, 0)], [1, 2, 1]),
    ],
    ids=["several pieces", "one piece"],
)
def test_rows_get_the_identity_of_their_simulation_in_any_order(
    table: GroupTable, simulations: list[tuple[int, int]], n_rows: list[int]
) -> None:
    values = pa.table({"y": range(sum(n_rows))})
    ids, groups, replicates, seeds, _ = table.identify(values, simulations, n_rows).columns
    rows = [pair for pair, n in zip(simulations, n_rows, strict=True) for _ in range(n)]
    assert list(zip(groups.to_pylist(), replicates.to_pylist(), strict=True)) == rows
    assert ids.to_pylist() == [param_id({"x": group}) for group, _ in rows]
    assert seeds.to_pylist() == [replicate_seed(param_id({"x": group}), replicate) for group, replicate in rows]


@pytest.mark.parametrize("piece_groups", [1, 2])
def test_a_seed_of_64_bits_is_exact_in_the_rows(monkeypatch: pytest.MonkeyPatch, piece_groups: int) -> None:
    monkeypatch.setattr(groups_module, "PIECE_GROUPS", piece_groups)
    table = stored(parse([{"params": {"x": i}, "seed": 2**64 - 1 - i} for i in range(2)]))
    seeds = table.identify(pa.table({"y": [0, 1]}), [(1, 0), (0, 0)], [1, 1])["seed"]
    assert seeds.to_pylist() == [2**64 - 2, 2**64 - 1]


def test_the_identity_columns_come_before_the_columns_of_the_output(table: GroupTable) -> None:
    found = table.identify(pa.table({"y": [0.5, 1.5]}), [(8, 1), (0, 0)], [1, 1])
    assert found.column_names == ["param_id", "group", "replicate", "seed", "y"]
    assert [found.schema.field(i).nullable for i in range(5)] == [False] * 4 + [True]
    assert [str(kind) for kind in found.schema.types[1:]] == ["int32", "int32", "uint64", "double"]
    assert found.schema.types[0] == pa.dictionary(pa.int32(), pa.string())
    assert [f.name for f in IDENTITY_FIELDS] == found.column_names[:4]
    eight = param_id({"x": 8})
    assert found.slice(0, 1).to_pylist() == [
        {"param_id": eight, "group": 8, "replicate": 1, "seed": replicate_seed(eight, 1), "y": 0.5}
    ]
    assert table.identify(pa.table({"y": []}), [], []).schema.types[:4] == found.schema.types[:4]


def test_a_part_of_a_group_has_only_the_seeds_of_its_replicates(table: GroupTable) -> None:
    identity = param_id({"x": 500})
    assert table.part(500, [1]) == GroupPart(500, identity, {"x": 500}, 2, {1: replicate_seed(identity, 1)})


def test_ids_come_in_the_requested_order(table: GroupTable) -> None:
    assert table.param_ids([999, 3, 999]).to_pylist() == [param_id({"x": i}) for i in (999, 3, 999)]
    assert table.param_ids([]).to_pylist() == []


def test_groups_come_in_the_requested_order(table: GroupTable) -> None:
    indices = (5, 6, 7, 8, 3, 999, 0)
    assert [group.index for group in table.groups(indices)] == list(indices)
    assert table.groups(()) == ()


@pytest.mark.parametrize("index", [-1, 1000])
def test_a_missing_group_is_an_index_error(table: GroupTable, index: int) -> None:
    with pytest.raises(IndexError, match="not among the 1000 groups"):
        table.group(index)


def test_threads_may_read_at_the_same_time(table: GroupTable) -> None:
    """The main loop and the threads that fetch and commit results share the table."""
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(table.group, list(range(1000)) * 3))
    assert [group.index for group in found] == list(range(1000)) * 3


def test_only_a_few_pieces_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_module, "PIECE_GROUPS", 10)
    asked = parse([{"x": i} for i in range(1000)]).groups
    loads = []
    pieces = list(asked.pieces())
    table = GroupTable(range(0, 1001, 10), lambda number: loads.append(number) or pieces[number], 1000)
    for i in range(1000):
        table.group(i)
    assert loads == list(range(100)), "a walk in study order loads each piece once"
    table.group(0)
    assert loads[100:] == [0], "the first is no longer kept"


@given(st.lists(st.integers(1, 3_000_000), max_size=30))
def test_pieces_are_bounded_and_cover_all_groups(counts: list[int]) -> None:
    bounds = bounds_of(np.array(counts, np.int64))
    assert (bounds[0], bounds[-1]) == (0, len(counts))
    for first, last in pairwise(bounds):
        assert first < last
        assert last - first == 1 or sum(counts[first:last]) <= groups_module.PIECE_SIMULATIONS


def test_replicates_that_share_a_seed_are_one_simulation() -> None:
    """Derived seeds have 32 bits: in two of three studies with 100,000 replicates, two replicates share one."""
    study = parse([{"x": 0}, {"x": 1}], 100_000)
    for group in study.groups.groups((0, 1)):
        assert len(set(group.seeds)) == len(group.seeds) == study.groups.n_replicates(group.index)
        derived = {replicate_seed(group.param_id, i) for i in range(100_000)}
        assert set(group.seeds) == derived
        assert (len(derived) < 100_000) == any(f"[{group.index}]" in warning for warning in study.warnings)
