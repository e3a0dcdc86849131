"""Target: the blood survey on the last day."""

import numpy as np
from scipy.special import gammaln, xlog1py, xlogy

from targets.observation import loss_over_replicates, read_column

# Tests are not perfect: even if the prevalence is 0 or 1, every survey result is possible.
FALSE_RATE = 0.01


def survey(params, replicates):
    """Minus log likelihood of the survey's positives, over all replicates of one parameter set."""
    tested = read_column("serosurvey.csv", "tested")[0]
    positive = read_column("serosurvey.csv", "positive")[0]
    attack_rates = [replicate["summary"].column("attack_rate")[0].as_py() for replicate in replicates]
    return loss_over_replicates([log_likelihood(tested, positive, rate) for rate in attack_rates])


def log_likelihood(tested: int, positive: int, attack_rate: float) -> float:
    """Binomial: each tested agent is positive with the attack rate, blurred by the test's errors."""
    p = FALSE_RATE + (1 - 2 * FALSE_RATE) * attack_rate
    ways = gammaln(tested + 1) - gammaln(positive + 1) - gammaln(tested - positive + 1)
    return float(ways + xlogy(positive, p) + xlog1py(tested - positive, np.negative(p)))
