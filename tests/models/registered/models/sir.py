"""The registered model. The module alone would be ambiguous: the registry says which class is meant."""

import numpy as np
import polars as pl

N_DAYS = 40
POPULATION = 500


class SIR:
    """Chain-binomial SIR with two outputs."""

    def simulate_scenario(self, scenario, params, seed):
        """Run one epidemic; the only scenario is the baseline."""
        if scenario != "baseline":
            raise ValueError(f"unknown scenario {scenario!r}")
        rng = np.random.default_rng(seed)
        susceptible, infected = POPULATION - 10, 10
        incidence = []
        for _ in range(N_DAYS):
            infections = rng.binomial(susceptible, 1 - np.exp(-params["beta"] * infected / POPULATION))
            recoveries = rng.binomial(infected, 1 - np.exp(-params["gamma"]))
            susceptible, infected = susceptible - infections, infected + infections - recoveries
            incidence.append(infections)
        return {
            "incidence": pl.DataFrame({"day": np.arange(N_DAYS), "incidence": np.array(incidence)}),
            "final": pl.DataFrame({"attack_rate": [1 - susceptible / POPULATION]}),
        }


class Frozen(SIR):
    """Not registered."""
