"""Print the CPU time in milliseconds of one simulation with its share of targets: the ideal is half of it.

Runs groups one after the other, without ids, tables of rows or files. Where the load is skewed, the mean is
reckoned from an ordinary simulation's cost and the study's seeds: a second holds too few of the long ones.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

from case import (
    N_REPLICATES,
    TARGETS,
    Case,
    param_id,
    score,
    seeds_of,
    simulate,
    sir,
)

LEAST_S = 1.0
LEAST_SIMULATIONS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, required=True)
    parser.add_argument("--ms", type=float, required=True)
    parser.add_argument("--skew", action="store_true")
    arguments = parser.parse_args()
    case = Case(arguments.sets, arguments.ms, skew=arguments.skew)
    print(1000 * ordinary_seconds(case) * mean_factor(case))


def ordinary_seconds(case: Case) -> float:
    """Return the mean CPU time of one simulation that is not one of the long ones, targets included."""
    params = Case(sets=1, ms=case.ms).parameter_sets()[0]
    run_serially(params)  # the first one pays for what is loaded late
    started = time.process_time()
    simulations = 0
    while simulations < LEAST_SIMULATIONS or time.process_time() - started < LEAST_S:
        run_serially(params)
        simulations += N_REPLICATES
    return (time.process_time() - started) / simulations


def mean_factor(case: Case) -> float:
    """Return how many times an ordinary simulation's cost the mean one of this case costs."""
    if not case.skew:
        return 1.0
    seeds = [seed for params in case.parameter_sets() for seed in seeds_of(param_id(params))]
    n_long = sum(sir.is_long(seed) for seed in seeds)
    return 1 + n_long / len(seeds) * (sir.SKEW_FACTOR - 1)


def run_serially(params: dict) -> None:
    """Run one group."""
    replicates = [simulate(params, seed) for seed in range(N_REPLICATES)]
    for target in TARGETS:
        score(target, params, replicates)


if __name__ == "__main__":
    main()
