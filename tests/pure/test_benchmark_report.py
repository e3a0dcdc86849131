"""The report of bench/throughput.py: which programs it compares, and what its captions say."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[2] / "bench"
REPORT = runpy.run_path(str(BENCH / "throughput_report.py"))
MACHINE = {
    "commit": "0123456789",
    "date": "2026-01-31",
    "processor": "Abacus",
    "cpus": 2,
    "memory_gib": 24,
    "python": "3.11.7",
    "numpy": "2.0",
    "pyarrow": "21",
    "distributed": "2026.7",
    "joblib": "1.4",
}
TUNED = ("mops", "concurrent.futures", "joblib", "ray", "dask, tasks write", "pool, workers write")


def result(rounds: list[dict[str, float]], case: str = "0 ms, 64 KiB") -> dict[str, Any]:
    """Return a case whose peers run 1,000 simulations in so many seconds, on two cores."""
    same = {"simulations": 1_000, "peak_bytes": 3 * 2**20, "start_up_seconds": 0.5}
    measured = [
        {peer: {"seconds": seconds, "cpu_seconds": 2 * seconds, **same} for peer, seconds in round_.items()}
        for round_ in rounds
    ]
    return {"case": case, "machine": MACHINE, "serial_ms": [1.0] * len(rounds), "rounds": measured}


ALL = result([dict.fromkeys(TUNED, 1.0) | {"joblib": 0.8, "pool, workers write": 0.5, "dask, strict": 10.0}])


def test_mops_is_compared_with_the_fastest_program_of_each_kind() -> None:
    rows = REPORT["standing"]([ALL]).splitlines()[2:]
    assert rows == [
        "| 0 ms, 64 KiB | whose main process writes | joblib | 0.80 | 0.80 to 0.80 |",
        "| 0 ms, 64 KiB | whose workers write | pool, workers write | 0.50 | 0.50 to 0.50 |",
    ]


def test_a_peer_that_runs_in_one_round_is_compared_within_that_round() -> None:
    both = result([{"mops": 1.0, "dask, strict": 10.0}, {"mops": 2.0}])
    assert REPORT["advantage"](both, "dask, strict") == "10.00"
    assert "Medians of 2 interleaved rounds (dask, strict: one round); " in REPORT["caption"](both)
