"""SIR on a random contact network: 1,000 agents, 60 days, with starsim.

Parameters of a simulation:

======================  =====================================================  ==========
``beta``                chance of transmission per contact and day             0 to 1
``infectious_days``     mean number of days for which an agent is infectious   above 0
``initial_prevalence``  share of the agents infected on day 0                  0 to 1
======================  =====================================================  ==========
"""

import math
import os

import numpy as np
import polars as pl

# Workers may have no writable home for the fonts that starsim would install; nothing is plotted here.
os.environ.setdefault("STARSIM_INSTALL_FONTS", "0")

import starsim as ss

from models.reporting import REPORTING

N_AGENTS = 1_000
N_DAYS = 60
N_CONTACTS = 10
MAX_STARSIM_SEED = 2**32 - 1

PARAMETERS = ("beta", "infectious_days", "initial_prevalence")


class SIR:
    """The model as mops calls it: mops makes one object for each simulation, then calls `simulate`."""

    def simulate(self, params: dict, seed: int) -> dict[str, pl.DataFrame]:
        """Run one epidemic; return its daily course and its totals."""
        check(params)
        sim = build(params, starsim_seed(seed))
        sim.run()
        daily = daily_course(sim)
        return {"daily": daily, "summary": summarise(daily)}


def check(params: dict) -> None:
    """Refuse parameters with which an epidemic makes no sense."""
    if set(params) != set(PARAMETERS):
        raise ValueError(f"expected the parameters {', '.join(PARAMETERS)}; got {', '.join(sorted(params))}")
    for name in ("beta", "initial_prevalence"):
        if not 0 <= params[name] <= 1:
            raise ValueError(f"{name} must lie between 0 and 1, not {params[name]}")
    if not (params["infectious_days"] > 0 and math.isfinite(params["infectious_days"])):
        raise ValueError(f"infectious_days must be positive, not {params['infectious_days']}")


def starsim_seed(seed: int) -> int:
    """Return `seed` in the range that starsim takes, 0 to 2^32 - 1.

    Seeds that mops derives are in this range and stay unchanged. A study may give seeds up to 2^64 - 1. Larger seeds
    are mixed and not cut, so that seeds with the same lower half stay different.
    """
    if seed <= MAX_STARSIM_SEED:
        return seed
    return int(np.random.SeedSequence(seed).generate_state(1)[0])


def build(params: dict, seed: int) -> ss.Sim:
    """Put agents, network and disease together; every random number follows from `seed`."""
    disease = ss.SIR(
        beta=ss.perday(params["beta"]),
        dur_inf=ss.lognorm_ex(mean=ss.days(params["infectious_days"])),
        init_prev=ss.bernoulli(p=params["initial_prevalence"]),
        p_death=ss.bernoulli(p=0),
    )
    return ss.Sim(
        n_agents=N_AGENTS,
        start=ss.days(0),
        stop=ss.days(N_DAYS - 1),
        dt=ss.days(1),
        diseases=disease,
        networks=ss.RandomNet(n_contacts=N_CONTACTS),
        rand_seed=seed,
        verbose=0,
    )


def daily_course(sim: ss.Sim) -> pl.DataFrame:
    """One row for each day: the compartments at its end, the infections during it, and the expected cases."""
    results = sim.results.sir
    counts = {
        "susceptible": results.n_susceptible,
        "infected": results.n_infected,
        "recovered": results.n_recovered,
        "new_infections": results.new_infections,
    }
    columns = {name: np.asarray(values).astype(np.int64) for name, values in counts.items()}
    cases = REPORTING * columns["new_infections"]
    return pl.DataFrame({"day": np.arange(N_DAYS), **columns, "cases": cases})


def summarise(daily: pl.DataFrame) -> pl.DataFrame:
    """One row: how large, how high, how early."""
    peak = daily["infected"].arg_max()
    ever_infected = N_AGENTS - daily["susceptible"][-1]
    return pl.DataFrame(
        {
            "attack_rate": [ever_infected / N_AGENTS],
            "peak_day": [daily["day"][peak]],
            "peak_infected": [daily["infected"][peak]],
        }
    )
