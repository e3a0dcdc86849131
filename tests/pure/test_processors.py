"""How many processors mops uses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dask.system import cpu_count

from mops.system.resources import n_processors


def laid(folder: Path, files: dict[str, str]) -> Path:
    """Write files below a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_mops_counts_no_more_than_dask_does() -> None:
    assert 1 <= n_processors() <= cpu_count()


def test_the_lowest_quota_of_the_cgroups_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    cases: list[tuple[dict[str, str], int]] = [
        ({"fs/a/cpu.max": "150000 100000\n"}, 2),
        ({"fs/a/cpu.max": "50000 100000\n"}, 1),
        ({"fs/a/cpu.max": "max 100000\n"}, 8),
        ({"fs/cpu,cpuacct/cpu.cfs_quota_us": "300000\n", "fs/cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 3),
        ({"fs/cpuacct,cpu/cpu.cfs_quota_us": "-1\n", "fs/cpuacct,cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"fs/a/cpu.max": "9900000 100000\n"}, 8),
        # Regression: the quota of a cgroup above the own one did not count.
        ({"proc/self/cgroup": "0::/a/b\n", "fs/a/b/cpu.max": "max 100000\n", "fs/a/cpu.max": "100000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/pod/box\n",
                "fs/cpu,cpuacct/pod/box/cpu.cfs_quota_us": "400000\n",
                "fs/cpu,cpuacct/pod/box/cpu.cfs_period_us": "100000\n",
                "fs/cpu,cpuacct/pod/cpu.cfs_quota_us": "200000\n",
                "fs/cpu,cpuacct/pod/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        ({}, 8),
    ]
    for i, (files, expected) in enumerate(cases):
        with subtests.test(files=files, expected=expected):
            laid(tmp_path / str(i), {"proc/self/cgroup": "0::/a\n"} | files)
            assert n_processors(tmp_path / str(i) / "proc", tmp_path / str(i) / "fs") == expected
