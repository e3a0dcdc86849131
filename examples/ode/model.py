"""Hares and lynxes: the equations of Lotka and Volterra, solved with scipy, scored against 21 years of pelts."""

import numpy as np
import pandas as pd
from scipy.integrate import solve_ivp

YEARS = np.arange(1900, 1921)


def predators(params, seed):
    """Return the hares and lynxes of each year, in thousands. Nothing is random, so the seed is not used."""

    def change(_, animals):
        hare, lynx = animals
        return [
            (params["hare_birth"] - params["hare_eaten"] * lynx) * hare,
            (params["lynx_birth"] * hare - params["lynx_death"]) * lynx,
        ]

    start = [params["hare_1900"], params["lynx_1900"]]
    solution = solve_ivp(change, (YEARS[0], YEARS[-1]), start, t_eval=YEARS, rtol=1e-6)
    if not solution.success:
        raise RuntimeError(solution.message)
    return pd.DataFrame(solution.y.T, columns=["hare", "lynx"], index=pd.Index(YEARS, name="year"))


def pelts(params, replicates):
    """Return minus the log likelihood of the pelts, whose errors are log-normal with a standard deviation of 0.25."""
    model = replicates[0]["output"].to_pandas().set_index("year")
    observed = pd.read_csv("data/pelts.csv").set_index("year")
    errors = np.log(observed[["hare", "lynx"]] / model[["hare", "lynx"]]) / 0.25
    return float((errors**2).sum().sum() / 2)
