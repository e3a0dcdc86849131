"""Print the CPU time in milliseconds of one simulation with its share of targets: the ideal is half of it.

Runs groups one after the other, without ids, tables of rows or files. If the load is skewed, the mean is computed from
an ordinary simulation's cost and the study's seeds, because one second holds too few long simulations.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

from case import TARGETS, Case, case_parser, param_id, parse_case, score, seeds_of, simulate, sir

LEAST_S = 1.0
LEAST_SIMULATIONS = 50


def main() -> None:
    case, _ = parse_case(case_parser(__doc__))
    print(1000 * ordinary_seconds(case) * mean_factor(case))


def ordinary_seconds(case: Case) -> float:
    """Return the mean CPU time of a simulation that is not long, including targets."""
    params = replace(case, sets=1, skew=False).parameter_sets()[0]
    run_serially(case, params)  # the first run includes late imports
    started = time.process_time()
    simulations = 0
    while simulations < LEAST_SIMULATIONS or time.process_time() - started < LEAST_S:
        run_serially(case, params)
        simulations += case.replicates
    return (time.process_time() - started) / simulations


def mean_factor(case: Case) -> float:
    """Return the mean cost of a simulation in this case, relative to an ordinary simulation."""
    if not case.skew:
        return 1.0
    seeds = [seed for params in case.parameter_sets() for seed in seeds_of(param_id(params), case.replicates)]
    n_long = sum(sir.is_long(seed) for seed in seeds)
    return 1 + n_long / len(seeds) * (sir.SKEW_FACTOR - 1)


def run_serially(case: Case, params: dict) -> None:
    """Run one group."""
    replicates = [simulate(params, seed) for seed in range(case.replicates)]
    for target in TARGETS:
        score(target, params, replicates)


if __name__ == "__main__":
    main()
