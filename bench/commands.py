"""Measures CPU time and memory of commands that do little (docs/internals/decisions.md, "What a command imports").

Each round runs every command twice: once with pandas hidden, as the command ``mops`` hides it, and once with pandas
where pyarrow finds it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict

COMMANDS = ("--version", "settings", "jobs list", "jobs status missing", "jobs submit missing.json")
WAYS = {
    "mops": "from mops.cli.start import main; main()",
    "mops with pandas": "from mops.cli.main import main; main()",
}


_LAUNCHER = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, _, usage = os.wait4(process.pid, 0)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    found = defaultdict(list)
    with tempfile.TemporaryDirectory() as empty:
        for _ in range(rounds):
            for command in COMMANDS:
                for way, program in WAYS.items():
                    found[command, way].append(taken([sys.executable, "-c", program, *command.split()], empty))
    print(f"{'command':26} {'':18} {'CPU':>7} {'memory':>9}   (medians of {rounds})")
    for (command, way), runs in found.items():
        seconds, kib = (statistics.median(figures) for figures in zip(*runs, strict=True))
        print(f"{command:26} {way:18} {seconds:5.2f} s {kib / 1024:5.0f} MiB")


def taken(command: list[str], folder: str) -> tuple[float, int]:
    """Run a command; return its CPU time (s) and its peak memory (KiB)."""
    # Start the command from a small process: the kernel's peak for a program includes the process that started it.
    line = [sys.executable, "-I", "-S", "-c", _LAUNCHER, *command]
    cpu_s, kib = subprocess.run(line, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return float(cpu_s), int(kib)


if __name__ == "__main__":
    main()
