"""Where limits of memory come from, and what one simulation's share is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mops.worker import memory
from mops.worker.heap import resident_bytes

MIB = 1 << 20


def test_version_2_has_the_least_limit_up_to_the_root(tmp_path: Path) -> None:
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
    found = memory.own_cgroup(proc, mounted)
    assert found is not None
    assert (found.limit_bytes(), found.kills()) == (300 * MIB, 2)


def test_version_1_beside_an_empty_version_2(tmp_path: Path) -> None:
    proc, mounted = tmp_path / "cgroup", tmp_path / "sys"
    proc.write_text("4:memory:/a\n0::/\n")
    own = mounted / "memory" / "a"
    own.mkdir(parents=True)
    (own / "memory.limit_in_bytes").write_text(str(200 * MIB))
    (own.parent / "memory.limit_in_bytes").write_text("9223372036854771712")
    (own / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    found = memory.own_cgroup(proc, mounted)
    assert found is not None
    assert (found.limit_bytes(), found.kills()) == (200 * MIB, 5)


def test_a_container_sees_its_own_cgroup_as_the_root(tmp_path: Path) -> None:
    proc, mounted = tmp_path / "cgroup", tmp_path / "sys"
    proc.write_text("0::/kubepods/pod7/abc\n")
    mounted.mkdir()
    (mounted / "cgroup.controllers").write_text("memory")
    (mounted / "memory.max").write_text(str(64 * MIB))
    found = memory.own_cgroup(proc, mounted)
    assert found is not None
    assert (found.limit_bytes(), found.kills()) == (64 * MIB, None)


@pytest.mark.parametrize("text", [None, "", "3:cpu:/\n"])
def test_where_nothing_is_to_be_seen_nothing_is_known(tmp_path: Path, text: str | None) -> None:
    proc = tmp_path / "cgroup"
    if text is not None:
        proc.write_text(text)
    assert memory.own_cgroup(proc, tmp_path) is None


def test_the_least_limit_counts() -> None:
    assert memory.allowed_bytes(100 * MIB) == 100 * MIB
    assert memory.allowed_bytes() <= psutil.virtual_memory().total
    assert memory.allowed_bytes(0) == memory.allowed_bytes()


@pytest.mark.parametrize(
    ("allowed", "parent", "slots", "share"),
    [
        (24 << 30, 200 * MIB, 2, ((24 << 30) - 200 * MIB) // 2 - 256 * MIB),
        (4 << 30, 1 << 30, 4, 768 * MIB - 256 * MIB),
        (1 << 30, 900 * MIB, 4, 64 * MIB),  # there is no room: the least that anything can run in
    ],
)
def test_a_share_leaves_room_for_the_parent_and_for_each_slot(
    allowed: int, parent: int, slots: int, share: int
) -> None:
    assert memory.share_bytes(allowed, parent, slots) == share


@pytest.mark.parametrize("named", [True, False])  # False: systems whose kernel does not name a process's children
def test_a_tree_has_all_that_a_process_started(monkeypatch: pytest.MonkeyPatch, *, named: bool) -> None:
    monkeypatch.setattr(memory, "_NAMES_CHILDREN", named)
    child = "import time; x = bytearray(60 << 20); print('there', flush=True); time.sleep(60)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        pids = list(memory.tree(process.pid))
        assert len(pids) == 2
        assert memory.tree_bytes(process.pid) > resident_bytes(process.pid) + 60 * MIB
        assert memory.tree_bytes(process.pid, pids[1]) < resident_bytes(process.pid) + 110 * MIB, "counted twice"
        assert memory.peak_bytes(pids[1]) >= 60 * MIB
        os.killpg(process.pid, 9)
    assert memory.tree_bytes(process.pid) == memory.peak_bytes(process.pid) == 0
