"""Target: the daily reported cases."""

import numpy as np
from models.reporting import REPORTING
from scipy.special import gammaln, xlogy

from targets.observation import DISPERSION, loss_over_replicates, read_column

# Imported infections are reported too; a day without any infection in the model must not forbid a case.
BACKGROUND_CASES = 0.1


def daily_cases(params, replicates):
    """Minus log likelihood of the reported cases, over all replicates of one parameter set."""
    observed = read_column("daily_cases.csv", "cases")
    courses = [replicate["daily"].column("new_infections").to_numpy() for replicate in replicates]
    return loss_over_replicates([log_likelihood(observed, infections) for infections in courses])


def log_likelihood(observed: np.ndarray, infections: np.ndarray) -> float:
    """Negative binomial: each day's reports scatter around the reported share of its infections."""
    expected = REPORTING * infections + BACKGROUND_CASES
    k = DISPERSION
    terms = gammaln(observed + k) - gammaln(k) - gammaln(observed + 1)
    terms += k * np.log(k / (k + expected)) + xlogy(observed, expected / (k + expected))
    return float(terms.sum())
