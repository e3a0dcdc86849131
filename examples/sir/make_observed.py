"""Make the observed data in data/: one epidemic with known parameters, as a health office would observe it.

Run it as `python make_observed.py`.

The true parameters are below, so that you can compare a calibration with them.
"""

import csv

import numpy as np
from models.reporting import REPORTING
from models.sir import N_AGENTS, SIR
from targets.observation import DATA, DISPERSION, SURVEY_SIZE

TRUTH = {"beta": 0.032, "infectious_days": 6.5, "initial_prevalence": 0.008}
SEED = 20240229


def main() -> None:
    """Run the true epidemic once, blur it, write both files."""
    result = SIR().simulate(TRUTH, SEED)
    rng = np.random.default_rng(SEED)
    daily = result["daily"]
    cases = report(daily["new_infections"].to_numpy(), rng)
    write("daily_cases.csv", ("day", "cases"), zip(daily["day"], cases, strict=True))
    ever_infected = N_AGENTS - daily["susceptible"][-1]
    positive = rng.hypergeometric(ever_infected, N_AGENTS - ever_infected, SURVEY_SIZE)
    write("serosurvey.csv", ("day", "tested", "positive"), [(daily["day"][-1], SURVEY_SIZE, positive)])


def report(infections: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Scatter the reports of each day around the reported share of its infections."""
    expected = REPORTING * infections
    return rng.negative_binomial(DISPERSION, DISPERSION / (DISPERSION + expected))


def write(file_name: str, header: tuple[str, ...], rows) -> None:
    """Write one CSV file into data/."""
    with (DATA / file_name).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
