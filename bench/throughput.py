"""Measure mops against the tools that a user could use instead: `python bench/throughput.py`.

In each round every peer runs once, in a separate process, in rotating order (A B C, B C A, ...), so that a slow minute
of the machine affects all peers. The two slow peers run in the first round only: they are ten times slower than the
others, and a difference between rounds does not matter. Before the rounds, the benchmark compares the peers' artefacts
row by row.

Writes `bench/results/<case>.json`, in `docs/internals` the tables of `throughput.md` and two pictures, and the table of
`docs/explanation/speed.md`. With some peers only (`--peers`), or with `--quick` (one short round of everything, to see
that it works), or with longer jobs (`--times`), it prints the tables and writes nothing.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import psutil
from check_artefact import differences
from throughput_report import standing, table, write_report
from tree_memory import PSS_INTERVAL_S, PeakMemory, Size

BENCH = Path(__file__).resolve().parent
RESULTS = BENCH / "results"

PEERS = {
    "mops": "mops_submit.py",
    "mops, auto": "mops_submit.py",
    "concurrent.futures": "concurrent_futures.py",
    "joblib": "joblib_generator.py",
    "ray": "ray_tasks.py",
    "dask, tasks write": "dask_writes.py",
    "pool, workers write": "pool_writes.py",
    "dask, strict": "dask_strict.py",
    "dask, all at once": "dask_all_at_once.py",
}
VARIABLES = {"mops, auto": "MODELOPS_JOB_BATCH_SIZE=auto"}
"""The variable of a peer that differs from another one only in this."""
OPTIONAL = {"ray": "ray"}
"""Peers that need a package which mops does not install for development: the package of each."""
SLOW = ("dask, strict", "dask, all at once")
QUICKER = 10
CHECK = ("--sets", "60", "--ms", "1", "--skew", "--export")
# The same for all programs. mops makes these choices itself: the allocator, and one thread for each simulation.
EQUAL = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}


@dataclass(frozen=True)
class Load:
    """One case: the cost of a simulation, and a number of sets that keeps mops busy for about 5 s.

    With these numbers, three rounds of all cases take about 12 minutes. The benchmark compares rates, so the slow
    peers run fewer sets. Otherwise they would take four minutes at 0 ms.
    """

    ms: float
    sets: int
    slow_sets: int
    rows: int = 365
    skew: bool = False

    def arguments(self, peer: str) -> list[str]:
        """Return the peer's command line."""
        sets = self.slow_sets if peer in SLOW else self.sets
        size = ["--sets", str(sets), "--rows", str(self.rows)]
        return [*size, "--ms", str(self.ms), *(["--skew"] if self.skew else [])]

    def longer(self, times: int) -> "Load":
        """Return the same case with more sets, in which the start and the end of a job weigh less."""
        return replace(self, sets=self.sets * times)

    def quick(self) -> "Load":
        """Return the same case with few sets."""
        return replace(self, sets=max(self.sets // QUICKER, 10), slow_sets=max(self.slow_sets // QUICKER, 10))


LOADS = {
    "0 ms": Load(ms=0, sets=8_000, slow_sets=200),
    "0 ms, 64 KiB": Load(ms=0, sets=3_500, slow_sets=200, rows=2_048),
    "1 ms": Load(ms=1, sets=1_500, slow_sets=200),
    "10 ms": Load(ms=10, sets=150, slow_sets=60),
    "skew": Load(ms=10, sets=100, slow_sets=100, skew=True),  # the same sets, because the seeds decide which are long
    "100 ms": Load(ms=100, sets=14, slow_sets=10),
}


def main() -> None:
    arguments = parse_arguments()
    peers = arguments.peers or installed_peers()
    check_artefacts(peers)
    chosen = {name: LOADS[name].longer(arguments.times) for name in arguments.cases}
    loads = {name: load.quick() for name, load in chosen.items()} if arguments.quick else chosen
    rounds = 1 if arguments.quick else arguments.rounds
    results = [measure(name, load, peers, rounds) for name, load in loads.items()]
    print(standing(results), table(results), sep="\n\n")
    if not arguments.peers and not arguments.quick and arguments.times == 1:
        keep(results)


def installed_peers() -> list[str]:
    """Return the peers whose packages are installed; name the others."""
    missing = [peer for peer, package in OPTIONAL.items() if not find_spec(package)]
    for peer in missing:
        say(f"{peer} is not installed, so the tables are without it; to measure it: pip install {OPTIONAL[peer]}")
    return [peer for peer in PEERS if peer not in missing]


def keep(results: list[dict]) -> None:
    """Write the figures, and the report of all figures that exist."""
    RESULTS.mkdir(exist_ok=True)
    for result in results:
        path_of(result["case"]).write_text(json.dumps(result, indent=1) + "\n")
    write_report([json.loads(path_of(name).read_text()) for name in LOADS if path_of(name).exists()])


def path_of(name: str) -> Path:
    """Return the path of a case's figures."""
    return RESULTS / f"{name.replace(',', '').replace(' ', '-')}.json"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each case (default %(default)s)")
    parser.add_argument("--cases", nargs="+", choices=LOADS, default=list(LOADS), help="only these; keep the others")
    parser.add_argument("--quick", action="store_true", help="one short round of everything; leaves nothing")
    parser.add_argument("--times", type=int, default=1, help="so many times as many sets; leaves nothing")
    parser.add_argument("--peers", nargs="+", choices=PEERS, help="only these; leaves nothing")
    return parser.parse_args()


def check_artefacts(peers: list[str]) -> None:
    """Run each peer once, untimed, and stop unless all have written the same rows."""
    with tempfile.TemporaryDirectory() as folder:
        outs = {peer: Path(folder) / str(n) for n, peer in enumerate(peers)}
        for peer, out in outs.items():
            run([*command(peer), *CHECK, "--out", str(out)])
        reference = peers[0]
        for peer in peers[1:]:
            found = differences(outs[reference], outs[peer])
            if found:
                sys.exit(f"{reference} and {peer} leave different artefacts:\n" + "\n".join(found))
    say(f"artefacts: {', '.join(peers)} leave the same rows")


def measure(name: str, load: Load, peers: list[str], rounds: int) -> dict:
    """Run one case; return all figures of all rounds."""
    result = {"case": name, "machine": machine(), "serial_ms": [], "rounds": []}
    for n in range(rounds):
        result["serial_ms"].append(serial_ms(load))
        running = [peer for peer in peers if n == 0 or peer not in SLOW]
        first = n % len(running)
        order = (*running[first:], *running[:first])
        figures = {peer: measure_arguments(peer, load.arguments(peer)) for peer in order}
        result["rounds"].append({peer: figures[peer] for peer in running})
        rates = ", ".join(f"{peer} {f['simulations'] / f['seconds']:,.0f}/s" for peer, f in figures.items())
        say(f"{name}, round {n + 1} of {rounds}: {rates}")
    return result


def measure_arguments(peer: str, arguments: list[str]) -> dict:
    """Run one peer once; return the figures that it prints and those measured from outside."""
    return measure_memory(peer, arguments, PSS_INTERVAL_S)[0]


def measure_memory(peer: str, arguments: list[str], every_s: float, size: Size = None) -> tuple[dict, PeakMemory]:
    """Run one peer once; return its figures, and its memory over time, sampled at least at this interval."""
    with tempfile.TemporaryDirectory() as folder:
        return run([*command(peer), *arguments, "--out", str(Path(folder) / "out")], every_s, size)


def command(peer: str) -> list[str]:
    variable = ["env", VARIABLES[peer]] if peer in VARIABLES else []
    return [*variable, sys.executable, str(BENCH / "peers" / PEERS[peer])]


def run(command_line: list[str], every_s: float = PSS_INTERVAL_S, size: Size = None) -> tuple[dict, PeakMemory]:
    """Run a program to its end; return the figures of its last line, its whole time and its memory (bytes)."""
    started = time.perf_counter()
    process = subprocess.Popen(command_line, stdout=subprocess.PIPE, text=True, env=environment())
    memory = PeakMemory(process.pid, every_s, size)
    memory.start()
    output, _ = process.communicate()
    total_s = time.perf_counter() - started
    memory.stop()
    if process.returncode:
        sys.exit(f"exit code {process.returncode}: {' '.join(command_line)}")
    figures = json.loads(output.splitlines()[-1])
    seen = {
        "total_seconds": total_s,
        "peak_bytes": memory.peak_bytes,
        "peak_root_bytes": memory.peak_root_bytes,
        "sampling_cpu_s": memory.cpu_s,
    }
    return figures | seen, memory


def environment() -> dict[str, str]:
    """Return this environment with mops importable and without settings, because defaults are measured."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MODELOPS_")}
    paths = [kept["PYTHONPATH"]] if kept.get("PYTHONPATH") else []
    return kept | EQUAL | {"PYTHONPATH": os.pathsep.join([*paths, str(BENCH.parent / "runner")])}


def serial_ms(load: Load) -> float:
    """Return the CPU time of one simulation with its share of targets, measured in a separate process."""
    line = [sys.executable, str(BENCH / "serial_cost.py"), *load.arguments("serial")]
    return float(subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, env=environment()).stdout)


def machine() -> dict:
    """Return what the figures depend on: the code, the date, the machine and the versions."""
    packages = ("distributed", "joblib", "numpy", "pyarrow", *filter(find_spec, OPTIONAL.values()))
    return {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "processor": processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


def commit() -> str:
    """Return the commit of the measured code; a plus sign after it says that the code has changes since."""
    git = ["git", "-C", str(BENCH.parent)]
    code = ["runner", "bench/*.py", "bench/models", "bench/peers"]
    try:
        name = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True)
        changes = subprocess.run([*git, "status", "--porcelain", "--", *code], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # a copy of the code without its history
        return "unknown"
    return name.stdout.strip() + ("+" if changes.stdout else "")


def processor() -> str:
    """Return the name of the processor, as Linux gives it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
