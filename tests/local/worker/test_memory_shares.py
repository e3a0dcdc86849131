"""The sources of memory limits, and the share of one simulation."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cases import case_folder
from mops.system import process_memory, resources
from mops.system.process_memory import kept_bytes, resident_bytes

MIB = 1 << 20


def test_version_2_uses_the_lowest_limit_up_to_the_root(tmp_path: Path) -> None:
    proc, mounted = tmp_path / "cgroup", tmp_path / "sys"
    proc.write_text("0::/pods/one\n")
    for path, text in {
        "cgroup.controllers": "memory",
        "pods/memory.max": str(300 * MIB),
        "pods/one/memory.max": "max",
        "pods/one/memory.events": "low 0\noom 3\noom_kill 2\n",
    }.items():
        (mounted / path).parent.mkdir(parents=True, exist_ok=True)
        (mounted / path).write_text(text)
    found = resources.own_cgroup(proc, mounted)
    assert found is not None
    assert (found.limit_bytes(), found.kills()) == (300 * MIB, 2)


def test_version_1_with_an_empty_version_2(tmp_path: Path) -> None:
    proc, mounted = tmp_path / "cgroup", tmp_path / "sys"
    proc.write_text("4:memory:/a\n0::/\n")
    own = mounted / "memory" / "a"
    own.mkdir(parents=True)
    (own / "memory.limit_in_bytes").write_text(str(200 * MIB))
    (own.parent / "memory.limit_in_bytes").write_text("9223372036854771712")
    (own / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    found = resources.own_cgroup(proc, mounted)
    assert found is not None
    assert (found.limit_bytes(), found.kills()) == (200 * MIB, 5)


def test_a_container_sees_its_own_cgroup_as_the_root(tmp_path: Path) -> None:
    proc, mounted = tmp_path / "cgroup", tmp_path / "sys"
    proc.write_text("0::/kubepods/pod7/abc\n")
    mounted.mkdir()
    (mounted / "cgroup.controllers").write_text("memory")
    (mounted / "memory.max").write_text(str(64 * MIB))
    found = resources.own_cgroup(proc, mounted)
    assert found is not None
    assert (found.limit_bytes(), found.kills()) == (64 * MIB, None)


def test_without_cgroup_files_nothing_is_known(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for text in [None, "", "3:cpu:/\n"]:
        with case_folder(subtests, tmp_path, text) as folder:
            proc = folder / "cgroup"
            if text is not None:
                proc.write_text(text)
            assert resources.own_cgroup(proc, folder) is None


def test_the_lowest_limit_counts() -> None:
    assert resources.allowed_bytes(100 * MIB) == 100 * MIB
    assert resources.allowed_bytes() <= psutil.virtual_memory().total
    assert resources.allowed_bytes(0) == resources.allowed_bytes()


def test_a_share_leaves_room_for_the_parent_and_for_each_slot(subtests: pytest.Subtests) -> None:
    for allowed, parent, slots, share in [
        (24 << 30, 200 * MIB, 2, ((24 << 30) - 200 * MIB) // 2 - 256 * MIB),
        (4 << 30, 1 << 30, 4, 768 * MIB - 256 * MIB),
        (1 << 30, 900 * MIB, 4, 64 * MIB),  # not enough memory: the minimum for a simulation
    ]:
        with subtests.test(str((allowed, parent, slots, share))):
            assert resources.share_bytes(allowed, parent, slots) == share


def test_no_more_slots_are_used_than_there_is_memory_for(subtests: pytest.Subtests) -> None:
    for allowed, parent, slots, n in [
        (24 << 30, 200 * MIB, 8, 8),
        (1 << 30, 150 * MIB, 8, 2),  # with eight, each simulation would get 64 MiB, and nearly all would run alone
        (1 << 30, 900 * MIB, 8, 1),
        (1 << 30, 2 << 30, 8, 1),
    ]:
        with subtests.test(str((allowed, parent, slots, n))):
            assert resources.slots_with_room(allowed, parent, slots) == n


@pytest.mark.parametrize("version", [1, 2])
def test_free_memory_of_a_container_is_its_limit_minus_its_usage_without_file_cache(
    tmp_path: Path, version: int
) -> None:
    """Regression: mops computed the limit of a simulation from all memory, including that of other programs."""
    proc, mounted = tmp_path / "cgroup", tmp_path / "sys"
    own = mounted / "memory" / "pod" / "one" if version == 1 else mounted / "pod" / "one"
    own.mkdir(parents=True)
    (mounted / "cgroup.controllers").touch()
    proc.write_text("4:memory:/pod/one\n" if version == 1 else "0::/pod/one\n")
    limit, usage = ("limit_in_bytes", "usage_in_bytes") if version == 1 else ("max", "current")
    stat = "inactive_file 1\nactive_file 1\nshmem 1\ntotal_inactive_file {}\ntotal_active_file {}\ntotal_shmem 9\n"
    if version == 2:
        stat = "anon 9\nfile 9\nshmem 9\ninactive_file {}\nactive_file {}\n"

    def of(folder: Path, limit_mib: int | None, used_mib: int, files_mib: int, active_mib: int = 0) -> int | None:
        none = str((1 << 63) - 4096) if version == 1 else "max"
        (folder / f"memory.{limit}").write_text(none if limit_mib is None else str(limit_mib * MIB))
        (folder / f"memory.{usage}").write_text(str(used_mib * MIB))
        (folder / "memory.stat").write_text(stat.format(files_mib * MIB, active_mib * MIB))
        found = resources.own_cgroup(proc, mounted)
        assert found is not None
        return found.free_bytes()

    assert of(own, None, 300, 100) is None
    assert of(own, 1000, 700, 300) == 600 * MIB
    assert of(own, 1000, 700, 100, active_mib=200) == 600 * MIB, "files that were read twice can be dropped, too"
    assert of(own.parent, 2000, 1900, 100) == 200 * MIB, "the lowest of its cgroups"
    assert of(own.parent, 1000, 1100, 0) == 0


READS = """
import os, sys
from collections.abc import Callable
from pathlib import Path
from mops.system.resources import available_bytes

Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
print(available_bytes())
for _ in range(3):
    Path(sys.argv[2]).read_bytes()
print(available_bytes())
"""


def test_files_that_were_read_again_leave_a_container_its_memory(
    cgroup_of: Callable[[int], Path], tmp_path: Path
) -> None:
    """Regression: they are in the active page cache, which counted as used, so one of four slots was used."""
    folder, file = cgroup_of(600 * MIB), tmp_path / "data"
    with file.open("wb") as sparse:
        sparse.truncate(300 * MIB)
    line = [sys.executable, "-c", READS, str(folder), str(file)]
    ran = subprocess.run(line, capture_output=True, text=True, check=True)
    before, after = map(int, ran.stdout.split())
    version_1 = "total_" if (folder / "memory.limit_in_bytes").exists() else ""
    assert resources._stat(folder / "memory.stat", f"{version_1}active_file") or 250 * MIB < 0
    assert after > before - 100 * MIB


def test_memory_of_other_programs_is_not_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < resources.available_bytes() <= resources.allowed_bytes()
    monkeypatch.setattr(resources, "available_bytes", lambda: 300 * MIB)
    assert resources.usable_bytes(None, 50 * MIB) == 350 * MIB
    assert resources.usable_bytes(200 * MIB, 50 * MIB) == 200 * MIB


def counts(proc: Path, mounted: Path) -> str | None:
    found = resources.kill_counter(proc, mounted)
    return None if found is None else found.name


def test_kernel_kills_are_counted_in_a_container_with_a_limit_or_else_in_the_machine(tmp_path: Path) -> None:
    """On a laptop that runs out of memory, the counter of a cgroup may not rise."""
    proc, mounted = tmp_path / "proc", tmp_path / "sys"
    (proc / "self").mkdir(parents=True)
    own = mounted / "memory" / "a"
    own.mkdir(parents=True)
    assert counts(proc, mounted) is None
    (proc / "vmstat").write_text("nr_free_pages 5\noom_kill 7\n")
    assert counts(proc, mounted) == "vmstat", "no cgroup at all"
    (proc / "self" / "cgroup").write_text("4:memory:/a\n")
    (own / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    (own / "memory.limit_in_bytes").write_text("9223372036854771712")
    assert counts(proc, mounted) == "vmstat", "a cgroup without a limit"
    (own / "memory.limit_in_bytes").write_text(str(200 * MIB))
    assert counts(proc, mounted) == "memory.oom_control"


def look(usage: process_memory.Usage, limit: int, resident: int, exact: int | None) -> int:
    return usage.look(limit, lambda: resident, lambda: exact)


def test_exact_usage_is_measured_only_above_the_limit() -> None:
    usage = process_memory.Usage()

    def never() -> int:
        raise AssertionError("it costs milliseconds")

    assert usage.look(100, lambda: 100, never) == 100
    assert look(usage, 100, 150, 60) == 60
    assert usage.is_exact
    assert usage.look(100, lambda: 155, never) == 65, "the shared size stays valid for a while"
    assert look(usage, 100, 200, 105) == 105, "measured at once if the estimate is above the limit again"
    assert look(process_memory.Usage(), 100, 150, None) == 150


def test_the_shared_size_is_measured_again_while_resident_memory_is_above_the_limit() -> None:
    usage = process_memory.Usage()
    assert look(usage, 100, 150, 60) == 60
    deadline = time.monotonic() + 30
    while look(usage, 100, 150, 150) != 150:  # no page is shared now, but resident memory has not changed
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_tree_contains_all_descendants() -> None:
    child = "import time; x = bytearray(60 << 20); print('there', flush=True); time.sleep(60)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        pids = list(process_memory.tree(process.pid))
        assert len(pids) == 2
        assert process_memory.tree_bytes(process.pid) > resident_bytes(process.pid) + 60 * MIB
        assert process_memory.tree_bytes(process.pid, pids[1]) < resident_bytes(process.pid) + 110 * MIB, (
            "counted twice"
        )
        assert process_memory.peak_bytes(pids[1]) >= 60 * MIB
        os.killpg(process.pid, 9)
    assert process_memory.tree_bytes(process.pid) == process_memory.peak_bytes(process.pid) == 0


def counted(**mib: int) -> tuple[int, int]:
    """Return the private and the proportional MiB that count of a smaps_rollup."""
    private, parts = process_memory.without_files({name: n * MIB for name, n in mib.items()})
    return private // MIB, parts // MIB


MAPPED = {"Private_Clean": 800, "Private_Dirty": 12, "Shared_Clean": 60, "Shared_Dirty": 0, "Pss": 842}
MAPPED_BY_TWO = {"Private_Clean": 0, "Private_Dirty": 12, "Shared_Clean": 860, "Shared_Dirty": 0, "Pss": 442}
IN_MEMORY = {"Private_Clean": 0, "Private_Dirty": 12, "Shared_Clean": 0, "Shared_Dirty": 600, "Pss": 312}
WRITTEN = {"Private_Clean": 0, "Private_Dirty": 312, "Shared_Clean": 0, "Shared_Dirty": 0, "Pss": 312}
IN_SWAP = {"Private_Clean": 200, "Private_Dirty": 100, "Shared_Clean": 80, "Shared_Dirty": 0, "Pss": 340}


@pytest.mark.parametrize(
    ("rollup", "files", "counts"),
    [
        pytest.param(MAPPED, 830, (12, 12), id="a file"),
        pytest.param(MAPPED_BY_TWO, 430, (12, 12), id="a file that two processes map"),
        pytest.param(IN_MEMORY, 0, (12, 312), id="a file in /dev/shm that two processes map"),
        pytest.param(WRITTEN, 300, (12, 12), id="a file that is not written back"),
        pytest.param(IN_SWAP, 40, (260, 300), id="anonymous pages that were in the swap space"),
    ],
)
def test_pages_of_files_do_not_count(rollup: dict[str, int], files: int, counts: tuple[int, int]) -> None:
    """Regression: a simulation that mapped a file of 800 MiB was `oom` with 12 MiB of its own."""
    assert counted(**rollup, Pss_File=files) == counts


def test_memory_beside_a_mapped_file_counts_in_a_forked_process() -> None:
    """400 MiB of its own, a fifth of 300 MiB of its template, and a quarter of a file of 800 MiB."""
    rollup = {"Private_Clean": 0, "Private_Dirty": 400, "Shared_Clean": 800, "Shared_Dirty": 300, "Pss": 660}
    assert counted(**rollup, Pss_File=200) == (400, 460)


def test_files_that_a_process_maps_are_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "data"
    with file.open("wb") as sparse:
        sparse.truncate(100 * MIB)
    before = resident_bytes(), kept_bytes()
    with file.open("rb") as data, mmap.mmap(data.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[i] for i in range(0, len(mapped), mmap.PAGESIZE)) == 0
        assert resident_bytes() - before[0] > 90 * MIB
        assert kept_bytes() - before[1] < 10 * MIB
        assert process_memory.file_bytes(os.getpid()) > 100 * MIB
    assert kept_bytes(1 << 30) == 0
