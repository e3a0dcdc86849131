"""A registered target in the plain form, with a data file."""

import csv
from pathlib import Path


def attack_rate_target(params, replicates):
    """Distance of the mean attack rate from the survey's."""
    with Path("data/survey.csv").open(newline="") as file:
        survey = next(csv.DictReader(file))
    rates = [replicate["final"].column("attack_rate")[0].as_py() for replicate in replicates]
    return abs(sum(rates) / len(rates) - int(survey["positive"]) / int(survey["tested"]))
