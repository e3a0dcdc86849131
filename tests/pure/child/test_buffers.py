"""Tables on their way from a child process to its worker and to a later child process."""

import gc
import io
import math
import os
import socket
from pathlib import Path

import pyarrow as pa
import pytest

from mops.child.buffers import BufferWriter, map_buffer, read_segment, send_tables, tables_of
from mops.child.channel import Channel
from mops.worker.results import take_buffer
from processes import descriptors


@pytest.fixture
def ends():
    socks = socket.socketpair()
    yield [Channel(sock) for sock in socks]
    for sock in socks:
        sock.close()


@pytest.fixture
def hand_over(ends):
    """Return a function that flushes a writer and returns the message and the tables of every simulation."""

    def hand_over(out):
        out.flush()
        message, fd = ends[1].receive()
        return message, tables_of(message["outputs"], fd)

    return hand_over


@pytest.fixture
def writer(ends):
    return lambda keep=None: BufferWriter(ends[0], keep, "mops-part-test")


def rows(n, start=0):
    return pa.table({"n": pa.array(range(start, start + n), pa.int64()), "s": [f"row {i}" for i in range(n)]})


class TestRoundTrip:
    def test_every_simulation_gets_its_own_rows_back(self, writer, hand_over):
        out, sent = writer(), {}
        for position in range(3):
            for replicate in range(4):
                tables = {"a": rows(position + replicate, start=10 * position), "b": rows(1)}
                out.finished(position, replicate, 1, tables)
                sent[position, replicate] = tables
        message, found = hand_over(out)
        assert found == sent
        assert message["simulations"] == [list(key) for key in sent]

    def test_tables_of_one_schema_are_one_segment(self, writer, hand_over):
        out = writer()
        for replicate in range(5):
            out.finished(0, replicate, 1, {"a": rows(2)})
        message, _ = hand_over(out)
        (segment,) = message["outputs"]["a"]
        assert segment["rows"] == [2] * 5
        assert segment["simulations"] == [[0, replicate] for replicate in range(5)]

    def test_schemas_may_change_and_change_back_within_one_flush(self, writer, hand_over):
        kinds = [pa.int64(), pa.int64(), pa.float64(), pa.null(), pa.int8(), pa.int64()]
        sent = {(0, i): {"a": pa.table({"x": pa.array([None, None], kind)})} for i, kind in enumerate(kinds)}
        sent[0, 0] = {"a": pa.table({"x": [1, 2]})}
        out = writer()
        for key, tables in sent.items():
            out.finished(*key, 1, tables)
        message, found = hand_over(out)
        assert found == sent
        assert [found[0, i]["a"].schema.types for i in range(6)] == [[kind] for kind in kinds]
        segments = message["outputs"]["a"]
        assert [len(segment["simulations"]) for segment in segments] == [3, 1, 1, 1], (
            "one for each schema, not for each change"
        )
        assert [segment["families"] for segment in segments] == [{"x": "number"}, *[{"x": "null"}] * 3]

    def test_segments_start_where_readers_need_not_copy(self, writer, hand_over):
        out = writer()
        for replicate, kind in enumerate([pa.int64(), pa.int8(), pa.string()]):
            out.finished(0, replicate, 1, {"a": pa.table({"x": pa.nulls(3, kind)})})
        message, _ = hand_over(out)
        assert [segment["offset"] % 64 for segment in message["outputs"]["a"]] == [0, 0, 0]

    def test_empty_tables_keep_their_columns(self, writer, hand_over):
        out = writer()
        sent = {(0, 0): {"a": rows(0)}, (0, 1): {"a": rows(2)}, (1, 0): {"a": rows(0)}, (1, 1): {"b": rows(0)}}
        for key, tables in sent.items():
            out.finished(*key, 1, tables)
        _, found = hand_over(out)
        assert found == sent

    def test_slices_and_chunks_arrive_as_their_rows(self, writer, hand_over):
        out = writer()
        chunked = pa.concat_tables([rows(2), rows(3, start=5)])
        out.finished(0, 0, 1, {"a": rows(1000).slice(990, 3)})
        out.finished(0, 1, 1, {"a": chunked})
        _, found = hand_over(out)
        assert found[0, 0]["a"] == rows(1000).slice(990, 3)
        assert found[0, 1]["a"] == chunked

    def test_nan_and_null_are_kept(self, writer, hand_over):
        out = writer()
        out.finished(0, 0, 1, {"a": pa.table({"x": [math.nan, None, math.inf]})})
        _, found = hand_over(out)
        assert found[0, 0]["a"]["x"].null_count == 1
        assert math.isnan(found[0, 0]["a"]["x"][0].as_py())

    def test_the_worker_reads_a_segment_by_itself(self, ends):
        message = {"kind": "given"}
        send_tables(ends[0], message, [(0, 0, {"a": rows(2)}), (0, 1, {"a": rows(1)}), (0, 0, {"b": rows(3)})], "test")
        received, fd = ends[1].receive()
        buffer = pa.py_buffer(map_buffer(fd))
        assert read_segment(buffer, received["outputs"]["a"][0]) == pa.concat_tables([rows(2), rows(1)])
        assert read_segment(buffer, received["outputs"]["b"][0]) == rows(3)

    def test_tables_outlive_the_message_and_its_descriptor(self, writer, hand_over):
        out = writer()
        out.finished(0, 0, 1, {"a": rows(1000)})
        table = hand_over(out)[1][0, 0]["a"]
        gc.collect()
        assert table == rows(1000)


class TestKeep:
    def test_of_a_done_group_only_kept_outputs_are_sent(self, writer, hand_over):
        out = writer(["b", "unknown"])
        out.finished(0, 0, 1, {"a": rows(1), "b": rows(2)})
        out.done(0)
        message, found = hand_over(out)
        assert found == {(0, 0): {"b": rows(2)}}
        assert message["simulations"] == [[0, 0]]

    def test_of_an_unfinished_group_all_outputs_are_sent(self, writer, hand_over):
        out = writer(["b"])
        out.finished(0, 0, 1, {"a": rows(1), "b": rows(2)})
        out.finished(1, 0, 1, {"a": rows(3), "b": rows(4)})
        out.done(0)
        _, found = hand_over(out)
        assert {key: set(tables) for key, tables in found.items()} == {(0, 0): {"b"}, (1, 0): {"a", "b"}}

    def test_a_simulation_without_kept_outputs_still_counts_as_good(self, writer, hand_over):
        out = writer(["unknown"])
        out.finished(0, 0, 1, {"a": rows(1)})
        out.done(0)
        message, found = hand_over(out)
        assert found == {}
        assert (message["simulations"], message["done"]) == ([[0, 0]], [0])


class TestWriter:
    def test_nothing_is_sent_when_nothing_happened(self, writer, ends):
        out = writer()
        out.flush()
        out.end(1.5, "it is old", "simulations", [])
        assert ends[1].receive() == (
            {
                "kind": "ended",
                "name": "mops-part-test",
                "seconds": 1.5,
                "written": [],
                "replace_reason": "it is old",
                "replace_code": "simulations",
            },
            None,
        )

    def test_a_buffer_has_the_name_of_its_writer(self, writer, ends):
        """The drain check finds by this name whose buffers are left."""
        out = writer()
        out.finished(0, 0, 1, {"a": rows(1), "b": rows(1)})
        out.flush()
        _, fd = ends[1].receive()
        assert "mops-part-test" in str(Path(f"/proc/self/fd/{fd}").readlink())
        os.close(fd)

    def test_results_are_sent_once(self, writer, hand_over, ends):
        out = writer()
        out.finished(0, 0, 1, {"a": rows(1)})
        out.failed(0, 1, None, {"reason": "error", "message": "no", "traceback": ""})
        out.done(0)
        hand_over(out)
        out.finished(1, 0, 1, {"a": rows(2)})
        message, found = hand_over(out)
        assert found == {(1, 0): {"a": rows(2)}}
        assert (message["failures"], message["done"]) == ([], [])
        out.flush()
        out.end(0.0, "", "", [])
        assert ends[1].receive()[0]["kind"] == "ended"

    def test_a_failure_alone_is_sent_without_tables(self, writer, hand_over):
        out = writer()
        out.failed(2, None, 1, {"reason": "error", "message": "no", "traceback": "line"})
        message, found = hand_over(out)
        assert found == {}
        assert message["failures"] == [
            {"position": 2, "replicate": None, "target": 1, "reason": "error", "message": "no", "traceback": 0}
        ]
        assert message["tracebacks"] == ["line"]

    def test_failures_count_as_bytes_and_send_a_traceback_once(self, writer, hand_over):
        """Failures did not count: a model that always raised filled one message with copies of one traceback."""
        out = writer()
        for replicate in range(1000):
            out.failed(0, replicate, None, {"reason": "error", "message": "no", "traceback": "x" * 8000})
        assert 8000 + 1000 * len("no") < out.bytes_open == out.bytes_total < 1_000_000
        message, _ = hand_over(out)
        assert message["tracebacks"] == ["x" * 8000]
        assert out.bytes_open == 0
        out.failed(0, 0, None, {"reason": "error", "message": "no", "traceback": "x" * 8000})
        message, _ = hand_over(out)
        assert message["tracebacks"] == ["x" * 8000], "each message has its own tracebacks"

    def test_losses_count_as_bytes(self, writer):
        out = writer()
        out.scored(0, 0, {f"name {i}": 1.0 for i in range(1000)})
        assert out.bytes_open >= 100_000

    def test_bytes_are_counted_since_the_last_flush_and_in_total(self, writer, hand_over):
        out = writer()
        table = pa.table({"x": pa.array(range(100_000), pa.int64())})
        out.finished(0, 0, 1, {"a": table})
        assert out.bytes_open == out.bytes_total == 800_000
        hand_over(out)
        out.finished(0, 1, 1, {"a": table.slice(0, 10_000)})
        assert (out.bytes_open, out.bytes_total) == (80_000, 880_000)

    def test_done_groups_are_counted(self, writer):
        out = writer()
        out.done(0)
        out.done(4)
        assert out.groups_done == 2


def test_three_hundred_buffers_leave_no_open_descriptor(writer, hand_over):
    before = descriptors()
    out = writer()
    kept = []
    for replicate in range(300):
        out.finished(0, replicate, 1, {"a": rows(1, start=replicate)})
        kept.append(hand_over(out)[1][0, replicate]["a"])
    assert [table["n"][0].as_py() for table in kept] == list(range(300))
    kept.clear()
    gc.collect()
    assert descriptors() <= before


def test_a_thousand_buffers_that_a_worker_keeps_hold_no_descriptor(writer, ends):
    before = descriptors()
    out, kept = writer(), []
    for replicate in range(1000):
        out.finished(0, replicate, 1, {"a": rows(1, start=replicate)})
        out.flush()
        message, fd = ends[1].receive()
        kept.append(read_segment(take_buffer(fd, "test"), message["outputs"]["a"][0]))
    assert descriptors() <= before
    assert [table["n"][0].as_py() for table in kept] == list(range(1000))


def test_a_buffer_that_cannot_be_sent_leaves_no_open_descriptor(writer, ends):
    before = descriptors()
    ends[1].close()
    out = writer()
    out.finished(0, 0, 1, {"a": rows(1)})
    with pytest.raises(BrokenPipeError):
        out.flush()
    assert descriptors() <= before


def test_an_empty_buffer_is_not_mapped_and_its_descriptor_is_closed():
    read, write = os.pipe()
    os.close(write)
    assert map_buffer(read) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)


class Short(io.FileIO):
    """A file that writes at most 100 bytes at once, as the kernel writes at most 2 GiB."""

    def write(self, data):
        return super().write(memoryview(data)[:100])


def test_a_write_that_the_kernel_shortens_is_continued(ends, monkeypatch):
    """A column of more than 2 GiB was truncated: the rest of a short write was not written."""

    def fdopen(fd, mode, buffering=-1):
        return Short(fd, mode) if buffering == 0 else io.BufferedWriter(Short(fd, mode))

    table = pa.table({"x": list(range(10_000))})
    with monkeypatch.context() as patched:
        patched.setattr("mops.child.buffers.os.fdopen", fdopen)
        send_tables(ends[0], {"kind": "part"}, [(0, 0, {"output": table})], "mops-test")
    message, fd = ends[1].receive()
    assert tables_of(message["outputs"], fd)[0, 0]["output"] == table
