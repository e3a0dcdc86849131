"""Results that are copied behind those of earlier simulations, and read as slices of one table."""

import socket

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from mops.child.blocks import BlockRows, joined, table_of
from mops.child.buffers import BufferWriter, tables_of
from mops.child.channel import Channel
from mops.child.outputs import Results
from mops.study.output_schema import InvalidOutput


def read(task, result):
    """Return the columns of a result as lists, by output, and whether it was copied into a block."""
    outputs = task.read(result, 1)
    tables = {name: table_of(output).to_pydict() for name, output in outputs.items()}
    return tables, all(isinstance(output, BlockRows) for output in outputs.values())


def task_after(*results):
    """Return what reads results, after these."""
    task = Results(None)
    for result in results:
        task.read(result, 1)
    return task


FIRST = {"x": np.zeros(2), "n": np.zeros(2, np.int64), "on": np.zeros(2, bool)}
LATER = {"x": [0.5, 1.5, 2.5], "n": [1, 2, 3], "on": [True, False, True]}

LIKE_THE_FIRST = {
    "arrays": {name: np.array(values) for name, values in LATER.items()},
    "arrays in another order": {name: np.array(LATER[name]) for name in ("on", "n", "x")},
    "read-only arrays": {name: np.frombuffer(np.array(v).tobytes(), np.array(v).dtype) for name, v in LATER.items()},
    "arrays with steps": {name: np.repeat(np.array(values), 2)[::2] for name, values in LATER.items()},
    "arrays backwards": {name: np.array(values[::-1])[::-1] for name, values in LATER.items()},
    "columns of a Fortran array": LATER | {"x": np.asfortranarray([LATER["x"], [9.0] * 3]).T[:, 0]},
}


def test_arrays_of_the_same_types_are_copied(subtests: pytest.Subtests) -> None:
    for name, later in LIKE_THE_FIRST.items():
        with subtests.test(name):
            later = {name: np.asarray(values) for name, values in later.items()}
            assert read(task_after(FIRST), later) == ({"output": LATER}, True)


UNLIKE_THE_FIRST = {
    "big-endian": FIRST | {"x": np.array([0.5, 1.5], ">f8")},
    "masked": FIRST | {"x": np.ma.array([0.5, 1.5], mask=[False, True])},
    "objects": FIRST | {"x": np.array([0.5, None], object)},
    "another type": FIRST | {"x": np.array([1, 2])},
    "a narrower type": FIRST | {"x": np.array([0.5, 1.5], np.float32)},
    "a half": FIRST | {"x": np.array([0.5, 1.5], np.float16)},
    "lists": {name: values.tolist() for name, values in FIRST.items()},
    "an Arrow table": pa.table(FIRST),
}


def test_other_types_are_read_as_if_nothing_had_come_before(subtests: pytest.Subtests) -> None:
    for name, later in UNLIKE_THE_FIRST.items():
        with subtests.test(name):
            task = task_after(FIRST, FIRST)
            assert read(task, later) == (read(Results(None), later)[0], False)
            assert read(task, FIRST)[0] == read(Results(None), FIRST)[0]


def test_a_table_without_rows_between_others():
    task = task_after(FIRST)
    nothing = {name: values[:0] for name, values in FIRST.items()}
    assert read(task, nothing) == ({"output": {"x": [], "n": [], "on": []}}, True)
    assert read(task, FIRST)[0] == read(Results(None), FIRST)[0]


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((2, 2)), np.zeros(())], ids=["length", "2 dimensions", "0"])
def test_an_array_of_another_shape_is_refused_with_the_message_of_a_first_result(bad):
    columns = FIRST | {"x": bad}
    for result in (columns, dict(reversed(columns.items()))):
        with pytest.raises(InvalidOutput) as first:
            task_after().read(result, 1)
        with pytest.raises(InvalidOutput) as later:
            task_after(FIRST, FIRST).read(result, 1)
        assert str(later.value) == str(first.value)


def test_a_model_that_returns_the_same_arrays_again_does_not_change_earlier_results():
    task, mine = Results(None), {"x": np.zeros(2), "again": None}
    mine["again"] = mine["x"]
    found = []
    for number in range(4):
        mine["x"][:] = number
        found.append(task.read(mine, 1))
    mine["x"][:] = 99
    assert [table_of(outputs["output"]).to_pydict() for outputs in found] == [
        {"x": [number] * 2, "again": [number] * 2} for number in range(4)
    ]


def test_a_target_cannot_write_through_its_tables():
    """Earlier, it could write through the buffers of a table: mops would have stored what it wrote."""
    task = task_after({"x": np.zeros(2)})
    table = table_of(task.read({"x": np.ones(2)}, 1)["output"])
    chunk = table.column("x").chunk(0)
    assert not np.frombuffer(chunk.buffers()[1]).flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        table.column("x").to_numpy()[0] = 99


def test_tables_stay_as_they_are_when_more_results_come():
    task = task_after({"x": np.zeros(2)})
    early = [table_of(task.read({"x": np.full(2, float(n))}, 1)["output"]) for n in range(3)]
    for n in range(50_000):
        task.read({"x": np.full(2, -float(n))}, 1)
    assert [table.to_pydict() for table in early] == [{"x": [n, n]} for n in range(3)]


KEPT = {
    "the rows": lambda output: output,
    "a table": table_of,
    "an array": lambda output: table_of(output)["x"].to_numpy(),
    "a slice of an array": lambda output: table_of(output)["x"].to_numpy()[1:],
    "polars": lambda output: pl.from_arrow(table_of(output)),
}


class TestMemoryOfEarlierResults:
    """After results are handed over, later ones take their memory, unless a target has kept something of them."""

    @staticmethod
    def address(output):
        return table_of(output)["x"].chunk(0).buffers()[1].address

    def handed_over(self, task, number):
        """Return a result that is handed over."""
        output = task.read({"x": np.full(2, float(number))}, 1)["output"]
        task.handed_over({})
        return output

    def test_it_serves_again(self):
        task = task_after({"x": np.zeros(2)})
        assert len({self.address(self.handed_over(task, n)) for n in range(10)}) <= 2

    def test_what_a_target_keeps_does_not_change(self, subtests: pytest.Subtests) -> None:
        for name, keep in KEPT.items():
            with subtests.test(name):
                task = task_after({"x": np.zeros(2)})
                kept = [keep(self.handed_over(task, n)) for n in range(5)]
                assert [self.values(each) for each in kept] == [
                    self.values(keep(output)) for output in self.new_outputs(5)
                ]

    def new_outputs(self, n):
        return [task_after({"x": np.zeros(2)}).read({"x": np.full(2, float(i))}, 1)["output"] for i in range(n)]

    def values(self, kept):
        if isinstance(kept, np.ndarray):
            return kept.tolist()
        return kept["x"].to_list() if isinstance(kept, pl.DataFrame) else table_of(kept)["x"].to_pylist()

    def test_the_memory_of_large_results_is_returned(self):
        task = task_after({"x": np.zeros(2)})
        task.read({"x": np.zeros(1 << 21)}, 1)
        task.handed_over({})
        assert task._blocks._earlier == {}

    def test_a_result_that_is_longer_than_earlier_memory(self):
        task = task_after({"x": np.zeros(2)})
        self.handed_over(task, 0)
        long = np.arange(1e6)
        assert table_of(task.read({"x": long}, 1)["output"])["x"].to_numpy().tolist() == long.tolist()


class TestArrowTables:
    def test_a_table_of_the_same_schema_is_copied(self):
        first, later = pa.table(FIRST), pa.table(LATER)
        assert read(task_after(first), later) == ({"output": LATER}, True)
        assert read(task_after(first), pa.concat_tables([later.slice(0, 1), later.slice(1)])) == (
            {"output": LATER},
            True,
        )

    def test_nulls_and_metadata_are_read_as_if_nothing_had_come_before(self):
        first = pa.table(FIRST)
        with_null = pa.table({**LATER, "x": [0.5, None, 2.5]}, schema=first.schema)
        assert read(task_after(first), with_null) == ({"output": with_null.to_pydict()}, False)
        meaning = pa.field("x", pa.float64(), metadata={"ARROW:extension:name": "someone.unit"})
        with pytest.raises(InvalidOutput, match=r"someone\.unit"):
            task_after(first).read(first.cast(first.schema.set(0, meaning)), 1)

    def test_memory_that_the_model_uses_again(self):
        memory = np.zeros(2)
        task, table = Results(None), pa.table({"x": memory})
        found = []
        for number in range(3):
            memory[:] = number
            found.append(task.read(table, 1))
        assert [table_of(outputs["output"])["x"].to_pylist() for outputs in found] == [[n, n] for n in range(3)]


def test_several_outputs_are_copied_together():
    def result(number):
        return {"a": {"x": np.full(number, number)}, "b": pa.table({"y": np.full(1, number / 2)})}

    task = task_after(result(1))
    assert read(task, result(2)) == ({"a": {"x": [2, 2]}, "b": {"y": [1.0]}}, True)
    with pytest.raises(InvalidOutput, match="output 'b' missing"):
        task.read({"a": {"x": np.zeros(1, int)}}, 1)
    with pytest.raises(InvalidOutput, match="output 'c' extra"):
        task.read(result(1) | {"c": {"x": np.zeros(1)}}, 1)


def test_columns_have_the_order_of_the_reference():
    task = Results({"output": {"b": "number float", "a": "number float"}})
    for _ in range(2):
        outputs = task.read({"a": np.zeros(1), "b": np.ones(1)}, 1)
        assert table_of(outputs["output"]).column_names == ["b", "a"]


def test_a_column_with_the_seed_is_dropped_from_every_result():
    task = Results(None)
    for _ in range(2):
        outputs = task.read({"seed": np.full(2, 1), "x": np.zeros(2)}, 1)
        assert table_of(outputs["output"]).column_names == ["x"]
    with pytest.raises(InvalidOutput, match="'seed' that is not the simulation's seed"):
        task.read({"seed": np.full(2, 2), "x": np.zeros(2)}, 1)


def test_values_in_blocks_fix_families():
    """An integer that a float cannot hold is refused next to floats, even if nothing has read the integer yet."""
    task = task_after({"x": np.array([1])}, {"x": np.array([2**60])})
    with pytest.raises(InvalidOutput, match="column 'x'"):
        task.read({"x": np.array([0.5])}, 1)


@pytest.mark.parametrize("keep", [None, ["a"]])
def test_all_rows_arrive_in_one_segment(keep):
    ours, theirs = map(Channel, socket.socketpair())
    writer, task = BufferWriter(ours, keep, "mops-part-test"), Results(None)
    sent = {}
    for position in range(40):
        for replicate in range(5):
            result = {
                "a": {"x": np.full(replicate + 200, float(position))},
                "b": {"y": np.arange(replicate), "on": np.arange(replicate) % 2 == 0},
            }
            outputs = task.read(result, 1)
            writer.finished(position, replicate, 1, outputs)
            sent[position, replicate] = {name: table_of(output) for name, output in outputs.items()}
        if position % 2:
            writer.done(position)
            if keep is not None:
                for replicate in range(5):
                    del sent[position, replicate]["b"]
    assert writer.bytes_open == pytest.approx(sum(8 * 202 * 5 + 8 * 10 + 10 / 8 for _ in range(40)), rel=0.01)
    task.handed_over(writer.flush())
    message, fd = theirs.receive()
    assert tables_of(message["outputs"], fd) == sent
    assert [len(segments) for segments in message["outputs"].values()] == [1, 1]


def test_neighbours_are_joined_to_one_table():
    task = task_after({"x": np.zeros(1)})
    outputs = [task.read({"x": np.full(1, float(n))}, 1)["output"] for n in range(5)]
    assert [table.num_rows for table in joined(outputs)] == [5]
    without_one = [*outputs[:2], *outputs[3:]]
    assert [table["x"].to_pylist() for table in joined(without_one)] == [[0, 1], [3, 4]]
