"""The benchmark's model: a stochastic SIR whose cost in CPU time is a parameter.

| parameter | meaning |
|---|---|
| `beta`, `gamma` | transmission and recovery, per day |
| `ms` | CPU time of one simulation, in milliseconds, on top of the table's own (about 0.03 ms) |
| `rows` | rows of the table: 365 are 11 KiB, 2,048 are 64 KiB |
| `skew` | 1: two simulations of a hundred take 20 times longer |

The work is a fixed number of steps, not a time on the clock. So a busy runner on the same core slows this model as it
slows a real one, and the results are the same on every machine.
"""

import numpy as np

STEPS_PER_MS = 900  # on the machine of docs/internals/throughput.md; `throughput.py` prints the figure of this one
POPULATION = 10_000
SKEW_FACTOR = 20


def simulate(params, seed):
    """Return one epidemic as four columns of floats."""
    rng = np.random.default_rng(seed)
    steps = round(params["ms"] * STEPS_PER_MS)
    if params.get("skew") and is_long(seed):
        steps *= SKEW_FACTOR
    attack_rate = last_attack_rate(params["beta"], params["gamma"], steps, rng)
    return course(params["beta"], attack_rate, params["rows"], rng)


def is_long(seed):
    """Tell whether the simulation with this seed is long in a skewed load."""
    return seed % 50 == 0


def last_attack_rate(beta, gamma, steps, rng):
    """Run `steps` days of chain-binomial epidemics, one after the other; return the result of the last one."""
    susceptible, infected = POPULATION - 10, 10
    for _ in range(steps):
        infections = rng.binomial(susceptible, 1 - np.exp(-beta * infected / POPULATION))
        recoveries = rng.binomial(infected, gamma)
        susceptible, infected = susceptible - infections, infected + infections - recoveries
        if not infected:
            susceptible, infected = POPULATION - 10, 10
    return 1 - susceptible / POPULATION


def course(beta, attack_rate, rows, rng):
    """Return a logistic epidemic with noise: vectorised, so that a simulation of 0 ms is one."""
    day = np.arange(rows, dtype=np.float64)
    noise = rng.standard_normal(rows)
    cumulative = (POPULATION * (0.5 + attack_rate / 2)) / (1 + np.exp(beta * (60 - day)))
    infected = cumulative * (1 - cumulative / POPULATION) * (1 + 0.1 * noise)
    return {"day": day, "susceptible": POPULATION - cumulative, "infected": infected, "noise": noise}
