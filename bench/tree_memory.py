"""The peak memory of a process and all its descendants, sampled while it runs.

Memory is the proportional set size (PSS): a page that several processes share counts once in total. A page of
a memfd or of a file in /dev/shm counts while a process maps it. Needs Linux.

To read PSS, the kernel walks all pages, which takes 0.5 ms or more per process. Ten readings a second took 5 % of a
core from the measured program. So the sampler reads PSS only when the much cheaper resident size reaches a
new maximum, and otherwise once a second, because copies of forked pages raise only PSS.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

RSS_INTERVAL_S = 0.1
PSS_INTERVAL_S = 1.0
TREE_INTERVAL_S = 0.1
NOTEWORTHY_GROWTH_BYTES = 2**20


Size = Callable[[psutil.Process], int] | None
"""Returns the counted memory of a process; None: its PSS."""


class PeakMemory(threading.Thread):
    """Samples from `start` to `stop`.

    `peak_bytes` is the largest sum seen, `peak_root_bytes` the largest of the root process alone (not at the same
    moment), `cpu_s` the CPU time of sampling. `series` has (seconds since start, sum, root process) of each reading.

    Parameters
    ----------
    every_s
        PSS is read at least this often.
    size
        Returns the counted memory of a process; None: its whole PSS.
    """

    def __init__(self, pid: int, every_s: float = PSS_INTERVAL_S, size: Size = None):
        super().__init__(daemon=True)
        self._every_s, self._size = every_s, size or pss_bytes
        self.series: list[tuple[float, int, int]] = []
        self.root = psutil.Process(pid)
        self.peak_bytes = self.peak_root_bytes = 0
        self.cpu_s = 0.0
        self._stopping = threading.Event()

    def run(self) -> None:
        tree: list[psutil.Process] = []
        highest_rss, due, seen, began = 0, 0.0, 0.0, time.monotonic()
        while not self._stopping.wait(min(RSS_INTERVAL_S, self._every_s)):
            rss = sum(rss_bytes(process) for process in tree)
            grown = rss > highest_rss + NOTEWORTHY_GROWTH_BYTES
            if not grown and time.monotonic() < due:
                continue
            if grown:
                highest_rss = rss
            else:
                due = time.monotonic() + self._every_s
                if time.monotonic() >= seen:  # through all processes of the machine
                    tree, seen = self.tree(), time.monotonic() + TREE_INTERVAL_S
            sizes = [self._size(process) for process in tree] or [0]
            self.peak_bytes = max(self.peak_bytes, sum(sizes))
            self.peak_root_bytes = max(self.peak_root_bytes, sizes[0])
            self.series.append((time.monotonic() - began, sum(sizes), sizes[0]))
        self.cpu_s = time.thread_time()

    def tree(self) -> list[psutil.Process]:
        """Return the process and its descendants, or nothing once it has ended."""
        try:
            return [self.root, *self.root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def rss_bytes(process: psutil.Process) -> int:
    """Return a process's resident memory; none if it has just ended."""
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0


def pss_bytes(process: psutil.Process) -> int:
    """Return a process's share of memory; none if it has just ended."""
    try:
        return process.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # the kernel denies a look at a zombie
        return 0


def unreclaimable_bytes(process: psutil.Process) -> int:
    """Return a process's share of memory without pages of files, which the kernel can drop; none if it has ended.

    Pages of files are programs and libraries. Their share of one process depends on the other processes that map them:
    it changes by 70 MiB when other processes, or the process's children, start and end.
    """
    try:
        lines = Path("/proc", str(process.pid), "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
