"""How the epidemic was observed: the common code of both targets and of the script that made the data."""

import csv
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent.parent / "data"
DISPERSION = 10.0  # of the negative binomial by which daily reports scatter
SURVEY_SIZE = 200  # agents whose blood is tested on the last day


def read_column(file_name: str, column: str) -> np.ndarray:
    """Read one column of integers from a CSV file in `data/`."""
    with (DATA / file_name).open(newline="") as file:
        return np.array([int(row[column]) for row in csv.DictReader(file)])


def loss_over_replicates(log_likelihoods: list[float]) -> float:
    """Return minus the log of the replicates' mean likelihood.

    Replicates are draws from the model's own scatter, so the likelihood of a parameter set is their *mean*
    likelihood; averaging the logs would punish a model for being as random as the epidemic is.
    """
    log_mean = np.logaddexp.reduce(log_likelihoods) - np.log(len(log_likelihoods))
    return float(-log_mean)
