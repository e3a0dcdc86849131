"""A model that is a class: checked parameters, four outputs, and results in every common kind of table.

The outputs' rows differ in number from simulation to simulation, and one of them has a column of strings.
"""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

BOUNDS = {"beta": (0.0, 1.0), "gamma": (0.0, 1.0)}
SCENARIOS = ("baseline", "lockdown")
AGE_GROUPS = ("child", "adult", "pensioner")


class Epidemic:
    """Chain-binomial SIR until nobody is infectious any more."""

    population = 500

    def simulate_scenario(self, scenario, params, seed):
        """Apply the scenario to the parameters, then run."""
        if scenario not in SCENARIOS:
            raise KeyError(f"unknown scenario {scenario!r}; known: {', '.join(SCENARIOS)}")
        params = check(params)
        if scenario == "lockdown":
            params["beta"] *= 0.5
        rng = np.random.default_rng(seed)
        daily = self.epidemic(params, rng)
        return {
            "daily": self.table(daily),
            "deaths": self.table(deaths(daily, rng)),
            "final": self.table(final(daily, self.population)),
            "log": self.table(milestones(daily)),
        }

    def epidemic(self, params, rng):
        """Return the days' compartments; as many rows as the epidemic has days."""
        susceptible, infected = self.population - 5, 5
        rows = [(0, susceptible, infected)]
        while infected:
            infections = rng.binomial(susceptible, 1 - np.exp(-params["beta"] * infected / self.population))
            recoveries = rng.binomial(infected, 1 - np.exp(-params["gamma"]))
            susceptible -= infections
            infected += infections - recoveries
            rows.append((len(rows), susceptible, infected))
        day, s, i = (np.array(column) for column in zip(*rows, strict=True))
        return {"day": day, "susceptible": s, "infected": i}

    def table(self, columns):
        """Give the columns the shape that this class stands for."""
        return pl.DataFrame(columns)


class EpidemicPandas(Epidemic):
    """The same with pandas frames."""

    def table(self, columns):
        return pd.DataFrame(columns)


class EpidemicArrow(Epidemic):
    """The same with pyarrow tables."""

    def table(self, columns):
        return pa.table(columns)


class EpidemicColumns(Epidemic):
    """The same with mappings of columns."""

    def table(self, columns):
        return columns


class EpidemicScalars:
    """The short form: `simulate`, and numbers instead of tables."""

    def simulate(self, params, seed):
        check(params)
        daily = Epidemic().epidemic(params, np.random.default_rng(seed))
        row = {name: column[0] for name, column in final(daily, Epidemic.population).items()}
        return {**row, "verdict": "over"}


def check(params):
    """Return a copy of the parameters, or raise for one that is missing, unknown or out of bounds."""
    if set(params) != set(BOUNDS):
        raise ValueError(f"expected the parameters {sorted(BOUNDS)}, got {sorted(params)}")
    for name, (low, high) in BOUNDS.items():
        if not low < params[name] <= high:
            raise ValueError(f"{name}={params[name]} is not within ({low}, {high}]")
    return dict(params)


def deaths(daily, rng):
    """One row for each death; some epidemics have none, and then the table is empty."""
    n_deaths = int(rng.binomial(daily["day"][-1], 0.02))
    groups = rng.integers(0, len(AGE_GROUPS), n_deaths)
    return {
        "day": np.sort(rng.integers(0, len(daily["day"]), n_deaths)),
        "age_group": [AGE_GROUPS[group] for group in groups],
    }


def final(daily, population):
    """How it ended: one row."""
    return {"attack_rate": [float(1 - daily["susceptible"][-1] / population)], "days": [len(daily["day"])]}


def milestones(daily):
    """What happened when, in words."""
    days = [0, int(daily["infected"].argmax()), len(daily["day"]) - 1]
    return {"day": days, "event": ["introduction", "peak", "end"]}
