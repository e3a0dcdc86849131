"""A separate tmpfs of a few MiB that a test can fill and empty."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class SmallDisk:
    """A file system mounted at ``folder``."""

    folder: Path

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"

    @property
    def free(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self) -> None:
        """Leave no free space."""
        with self._ballast.open("ab", buffering=0) as file:
            while self.free:
                with suppress(OSError):  # other processes write at the same time
                    file.write(bytes(min(self.free, 1 << 20)))

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def grow(self, mib: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={mib}m", self.folder], check=True)


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[SmallDisk]:
    """Mount a disk for the body; skip the test on a machine that does not allow a mount."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", folder], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("the mount command is missing")
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
