"""Every storage passes these tests: folders, memory, Azurite, moto, versitygw, and moto as Google Cloud."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import azurite
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from made import Hooked
from servers import CuttingProxy
from storages import KINDS, VERSITYGW, Storage

from mops.errors import InternalError, UsageError
from mops.storage.backends.base import Data, Entry, Put
from mops.storage.backends.local import _make_folder, _write
from mops.storage.files import Files
from soak import repeats

N_WRITERS, N_RACES = 8, repeats(20)

COMPETE = """
import sys
from mops.storage.files import Files
files = Files.open(sys.argv[1])
files.list("race")
print("ready", flush=True)
sys.stdin.readline()
for n in range(10):
    if files.put_new(f"race/{n}", sys.argv[2].encode()).value == "created":
        print(n, flush=True)
"""
WRITE = """
import sys
from mops.storage.files import Files
files = Files.open(sys.argv[1])
for n in range(20):
    files.put(f"many/{n:03d}", b"x" * 1000)
    print(n, flush=True)
"""
OVERWRITE = """
import sys
from mops.storage.files import Files
files = Files.open(sys.argv[1])
print("ready", flush=True)
for n in range(1_000_000):
    files.put("one", bytes([n % 256]) * (4 << 20))
"""


@pytest.fixture(params=[*KINDS, "google"])  # whose code is that of S3, so the tests of the log need it no second time
def storage(request: pytest.FixtureRequest) -> Storage:
    return request.getfixturevalue(request.param)


between_processes = pytest.mark.parametrize(
    "storage", ["local", "s3", VERSITYGW, pytest.param("azure", marks=pytest.mark.azurite)], indirect=True
)
"""Memory belongs to one process, and the requests to Google Cloud are checked by the other tests."""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", program, *arguments], text=True, **pipes)


def test_get_reads_the_bytes(storage, files):
    storage.lay("a/b", b"of another program")
    assert files.get("a/b") == b"of another program"
    assert files.size("a/b") == 18


def test_an_absent_file_is_an_error_with_its_name(storage, files):
    storage.lay("a/b", b"")
    for absent in ("nowhere/1", "a", "a/b/c", "a/bb"):
        with pytest.raises(FileNotFoundError, match=absent):
            files.get(absent)
        with pytest.raises(FileNotFoundError, match=absent):
            files.size(absent)


def test_a_reader_reads_at_any_position(storage, files):
    storage.lay("a", bytes(range(256)))
    with files.reader("a") as file:
        assert file.size() == 256
        file.seek(250)
        assert file.read(3) == bytes([250, 251, 252])
        assert file.read_at(2, 1) == bytes([1, 2])


def test_a_reader_of_an_absent_file_is_an_error_with_its_name(storage, files):
    with pytest.raises(FileNotFoundError, match="nothing"):
        files.reader("nothing")


def test_put_overwrites(storage, files):
    files.put("live/1.json", b"a longer first version")
    files.put("live/1.json", b"second")
    assert storage.bytes_at("live/1.json") == b"second"


def test_put_new_creates_and_never_overwrites(storage, files):
    storage.lay("log/0", b"theirs")
    assert files.put_new("log/0", b"ours") is Put.OTHER
    with pytest.raises(InternalError, match="another process has written a file that belongs to this one"):
        files.create("log/0", b"ours")
    assert storage.bytes_at("log/0") == b"theirs"
    assert files.put_new("log/1", b"first") is Put.CREATED
    assert files.put_new("log/1", b"second") is Put.OTHER
    assert files.put_new("log/1", b"first") is Put.SAME
    assert storage.bytes_at("log/1") == b"first"


def test_a_lost_answer_is_not_taken_for_a_file_of_another_process(storage, files, clock):
    """Regression: a submit whose answer was lost said that its job exists already."""
    lost = []

    def lose(name, path) -> None:
        if name == "put_new" and not lost:
            lost.append(files.put_new(path, b"mine"))
            raise TimeoutError

    lossy = Files(Hooked(files._backend, lose), files.url, clock.retrying())
    assert lossy.put_new("log/1", b"mine") is Put.SAME
    lost.clear()
    lossy.create("log/2", b"mine")
    assert lost == [Put.CREATED]


def test_any_kind_of_buffer_can_be_written(storage, files, subtests: pytest.Subtests):
    for make, data in itertools.product([bytes, bytearray, memoryview, pa.py_buffer], [b"", b"some bytes"]):
        put, new = (f"{verb} {make.__name__} {len(data)}" for verb in ("put", "new"))
        with subtests.test(put):
            files.put(put, make(data))
            files.put_new(new, make(data))
            assert storage.bytes_at(put) == storage.bytes_at(new) == data
            assert files.get(put) == data
            assert files.size(put) == len(data)


def test_a_file_may_have_any_name(storage, files, subtests: pytest.Subtests):
    for name in ["with space", "pro%2Fcent", "dot.", "Größe", "a+b=c&d?e#f"]:
        with subtests.test(name):
            path = f"outputs/{name}/1-1.parquet"
            files.put_new(path, b"rows")
            assert storage.bytes_at(path) == b"rows"
            assert files.list(f"outputs/{name}") == [Entry(path, 4)]
            assert files.get_many([path]) == [b"rows"]


def test_get_many_keeps_the_order_and_returns_none_for_absent_files(storage, files):
    for n in range(0, 70, 2):  # more than mops reads at once
        storage.lay(f"log/{n}", str(n).encode())
    wanted = [str(n).encode() if n % 2 == 0 else None for n in range(70)]
    assert files.get_many([f"log/{n}" for n in range(70)]) == wanted
    assert files.get_many([]) == []


def test_a_listing_has_exactly_the_files_below_a_folder(storage, files):
    for path in ("job/b", "job/a/2", "job/a/1", "job2/c", "jo"):
        storage.lay(path, path.encode())
    assert files.list("job") == [Entry("job/a/1", 7), Entry("job/a/2", 7), Entry("job/b", 5)]
    assert [entry.path for entry in files.list("")] == ["jo", "job/a/1", "job/a/2", "job/b", "job2/c"]
    assert files.list("nowhere") == []


def test_folders_lists_the_folders_directly_below_that_hold_files(storage, files):
    for path in ("jobs/b/job.json", "jobs/b/log/1", "jobs/a/outputs/daily/1-1", "jobs/c.d/x", "jobs/file", "jobs2/e/x"):
        storage.lay(path, b"x")
    assert files.folders("jobs") == ["a", "b", "c.d"]
    assert files.folders("jobs/a") == ["outputs"]
    assert files.folders("") == ["jobs", "jobs2"]
    assert files.folders("jobs/b/log") == files.folders("nowhere") == files.folders("jobs/file") == []
    storage.drop("jobs/a/outputs/daily/1-1")
    assert files.folders("jobs") == ["b", "c.d"]


def test_pruning_keeps_files_and_files_can_be_put_again(storage, files):
    for path in ("job/log/1", "job/outputs/daily/1-1", "other/x"):
        storage.lay(path, b"x")
    files.remove(["job/outputs/daily/1-1"])
    files.prune("job")
    assert [entry.path for entry in files.list("")] == ["job/log/1", "other/x"]
    files.remove(["job/log/1"])
    files.prune("job")
    files.prune("nowhere")
    assert [entry.path for entry in files.list("")] == ["other/x"]
    files.put("job/log/1", b"again")
    assert storage.bytes_at("job/log/1") == b"again"


def test_pruning_leaves_no_empty_folder_on_a_disk(local):
    files = Files.open(local.url)
    for path in ("job/log/1", "job/outputs/a/1", "job/outputs/b/1"):
        local.lay(path, b"x")
    files.remove(["job/outputs/a/1", "job/log/1"])
    files.prune("job")
    assert sorted(path.name for path in Path(local.url).rglob("*")) == ["1", "b", "job", "outputs"]
    files.remove(["job/outputs/b/1"])
    files.prune("job")
    assert list(Path(local.url).iterdir()) == []


def test_a_file_can_be_put_while_its_empty_folder_is_pruned(local, monkeypatch):
    """Regression: a submit failed if a deletion of the same name removed the folder in between."""
    files, make, pruned = Files.open(local.url), _make_folder, []

    def make_and_prune(folder: Path) -> None:
        make(folder)
        if not pruned:
            pruned.append(folder)
            files.prune("jobs/a")

    monkeypatch.setattr("mops.storage.backends.local._make_folder", make_and_prune)
    files.put("jobs/a/1", b"x")
    assert pruned
    assert local.bytes_at("jobs/a/1") == b"x"


def test_a_folder_can_be_made_while_the_empty_one_above_is_pruned(local, monkeypatch):
    """Regression: a submit at the end of a deletion of its name was told that its folder cannot be made."""
    files = Files.open(local.url)
    files.put("jobs/one/old/job.json", b"old")
    files.remove(["jobs/one/old/job.json"])
    mkdir = Path.mkdir

    def prune_first(path: Path, *options: object) -> None:
        monkeypatch.setattr(Path, "mkdir", mkdir)
        files.prune("jobs/one")
        mkdir(path, *options)

    monkeypatch.setattr(Path, "mkdir", prune_first)
    files.put_new("jobs/one/new/job.json", b"new")
    assert files.get("jobs/one/new/job.json") == b"new"


def test_temporary_files_of_a_killed_writer_are_not_listed_and_pruned(local):
    files = Files.open(local.url)
    for path in ("job/.part.0a.tmp", "job/deep/.hidden", "job/not.tmp", "other/log/.part.0c.tmp"):
        local.lay(path, b"left")
    assert [entry.path for entry in files.list("")] == ["job/deep/.hidden", "job/not.tmp"]
    assert files.folders("") == ["job"]
    files.prune("job")
    files.prune("other")
    found = [path.relative_to(local.url).as_posix() for path in Path(local.url).rglob("*") if path.is_file()]
    assert sorted(found) == ["job/deep/.hidden", "job/not.tmp"]


@pytest.mark.parametrize("put", [Files.put, Files.put_new])
@pytest.mark.parametrize("as_spool", [False, True])
def test_a_file_can_be_put_while_its_temporary_file_is_pruned(local, monkeypatch, put, as_spool):
    files, write, pruned = Files.open(local.url), _write, []
    data: Data = b"x"
    if as_spool:
        data = files.spool()
        data.write(b"x")

    def write_and_prune(path: Path, content: Data) -> None:
        write(path, content)
        if not pruned:
            pruned.append(path)
            files.prune("job")

    monkeypatch.setattr("mops.storage.backends.local._write", write_and_prune)
    put(files, "job/1", data)
    assert pruned
    assert local.bytes_at("job/1") == b"x"
    assert [path.name for path in Path(local.url, "job").iterdir()] == ["1"]


def test_remove_removes_files_and_ignores_absent_ones(storage, files):
    for n in range(70):
        storage.lay(f"parts/{n}", b"x")
    files.remove([f"parts/{n}" for n in range(69)] + ["parts/never", "nowhere/at/all"])
    assert [entry.path for entry in files.list("parts")] == ["parts/69"]


def test_a_url_that_is_opened_twice_has_the_same_files(storage, files):
    Files.open(storage.url).put("a", b"1")
    assert files.get("a") == b"1"
    assert files.put_new("a", b"2") is Put.OTHER


def test_pyarrow_reads_parts_in_several_threads(storage, files):
    tables = [pa.table({"group": [n] * 1000, "x": list(range(1000))}) for n in range(6)]
    for n, table in enumerate(tables):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=100)
        files.put(f"outputs/daily/1-{n}.parquet", sink.getvalue())
    system, _ = files.arrow("outputs")
    paths = [files.arrow(entry.path)[1] for entry in files.list("outputs/daily")]
    assert ds.dataset(paths, filesystem=system).to_table().equals(pa.concat_tables(tables))
    # Several readers of one file: the memory files of fsspec share one position.
    with ThreadPoolExecutor(8) as threads:
        read = threads.map(lambda _: pq.read_table(paths[0], filesystem=system), range(40))
        assert all(table.equals(tables[0]) for table in read)


def test_only_one_of_several_threads_creates_a_file(storage, files):
    gate = threading.Barrier(N_WRITERS)

    def compete(me: int) -> list[int]:
        gate.wait()
        return [n for n in range(N_RACES) if files.put_new(f"race/{n}", str(me).encode()) is Put.CREATED]

    with ThreadPoolExecutor(N_WRITERS) as threads:
        won = list(threads.map(compete, range(N_WRITERS)))
    assert sorted(n for mine in won for n in mine) == list(range(N_RACES))
    for me, mine in enumerate(won):
        assert all(storage.bytes_at(f"race/{n}") == str(me).encode() for n in mine)


@between_processes
def test_only_one_of_several_processes_creates_a_file(storage):
    writers = [start(COMPETE, storage.url, str(me)) for me in range(2)]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    won = [[int(line) for line in writer.communicate(timeout=30)[0].split()] for writer in writers]
    assert sorted(n for mine in won for n in mine) == list(range(10))
    for me, mine in enumerate(won):
        assert all(storage.bytes_at(f"race/{n}") == str(me).encode() for n in mine)


@between_processes
def test_a_listing_has_all_files_that_another_process_has_finished(storage, files):
    assert files.list("many") == []
    writer = start(WRITE, storage.url)
    for line in writer.stdout:
        entries = files.list("many")
        assert len(entries) > int(line)
        assert {entry.size for entry in entries} == {1000}
    assert writer.wait(10) == 0


def test_a_reader_never_sees_a_mix_of_two_versions(storage, files):
    versions = [bytes([n]) * 200_000 for n in range(20)]
    files.put("live", versions[0])
    seen, stop = [], threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.append(files.get("live"))
            was_read.release()

    was_read = threading.Semaphore(0)
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for version in versions:
            files.put("live", version)
            assert was_read.acquire(timeout=60)
    finally:
        stop.set()
        reader.join()
    assert set(seen) <= set(versions)


def test_a_killed_writer_leaves_a_whole_file_and_no_temporary_file_in_a_listing(local):
    for delay_s in (0.0, 0.01, 0.02, 0.03):
        writer = start(OVERWRITE, local.url)
        assert writer.stdout.readline() == "ready\n"
        time.sleep(delay_s)
        writer.kill()
        writer.communicate()
        files = Files.open(local.url)
        there = files.list("")
        assert [entry.path for entry in there] in ([], ["one"])
        if there:
            data = files.get("one")
            assert data == data[:1] * (4 << 20)


@pytest.mark.azurite
def test_a_part_larger_than_one_request_is_created_once(azure):
    files = Files.open(azure.url)
    data = bytes(range(256)) * (65 << 12)
    assert files.put_new("big", data) is Put.CREATED
    assert files.put_new("big", data) is Put.SAME
    assert files.get("big") == data


@pytest.mark.azurite
def test_a_record_is_created_by_one_conditional_request(azure, monkeypatch):
    seen = []
    proxy = CuttingProxy(azure.port, lambda first: bool(seen.append(first)))
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string(proxy.port))
    files = Files.open(azure.url)
    files.put_new("log/1", b"x" * 2000)
    files.get("log/1")
    proxy.close()
    assert [line.split()[0] for line in seen] == [b"PUT", b"GET"]


def test_a_folder_whose_name_is_not_utf8_is_refused_by_name(tmp_path):
    """Regression: the path ended in an error of Python while the job's record was written."""
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    with pytest.raises(UsageError, match=r"caf\\udce9'") as caught:
        Files.open(folder)
    assert caught.value.what == "the storage's folder cannot be used: its name is not UTF-8 text"


def test_local_urls_name_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for url in ("sub folder", "~/sub folder", str(tmp_path / "sub folder"), f"file://{tmp_path}/sub%20folder"):
        files = Files.open(url)
        files.put("x", url.encode())
        assert Path(tmp_path, "sub folder", "x").read_bytes() == url.encode()
        assert Files.open(files.url).get("x") == url.encode()
