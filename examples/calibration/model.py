"""An epidemic among 1,000 agents with starsim, and how likely the reported cases are."""

import os

import numpy as np
import pandas as pd
from scipy.special import logsumexp
from scipy.stats import nbinom

os.environ.setdefault("STARSIM_INSTALL_FONTS", "0")  # nothing is plotted

import starsim as ss

WEEKS = 6
REPORTED = 0.1  # share of the infections
DISPERSION = 5.0  # of the negative binomial distribution of the reports in a week


def epidemic(params, seed):
    """Return the infections of each week."""
    disease = ss.SIR(
        beta=ss.perday(params["beta"]),
        dur_inf=ss.lognorm_ex(mean=ss.days(6)),
        init_prev=ss.bernoulli(p=params["init_prev"]),
        p_death=ss.bernoulli(p=0),
    )
    days = {"start": ss.days(0), "stop": ss.days(7 * WEEKS - 1), "dt": ss.days(1)}
    network = ss.RandomNet(n_contacts=10)
    sim = ss.Sim(n_agents=1_000, diseases=disease, networks=network, rand_seed=seed, verbose=0, **days)
    sim.run()
    weekly = np.asarray(sim.results.sir.new_infections).reshape(WEEKS, 7).sum(axis=1)
    return {"week": np.arange(WEEKS), "infections": weekly.astype(int)}


def reports(infections):
    """Return the distribution of the reported cases, given the infections."""
    expected = REPORTED * np.asarray(infections) + 0.1  # so that any report is possible without infections
    return nbinom(DISPERSION, DISPERSION / (DISPERSION + expected))


def likelihood(params, replicates):
    """Return minus the log of the likelihood of the data, which is the mean of the likelihoods of the replicates."""
    cases = pd.read_csv("data/cases.csv")["cases"]
    logs = [reports(one["output"]["infections"]).logpmf(cases).sum() for one in replicates]
    return float(np.log(len(logs)) - logsumexp(logs))
