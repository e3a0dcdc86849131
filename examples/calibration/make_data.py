"""Write data/cases.csv: the reports of one epidemic with known parameters."""

import numpy as np
import pandas as pd
from model import WEEKS, epidemic, reports

TRUTH = {"beta": 0.04, "init_prev": 0.01}

if __name__ == "__main__":
    infections = epidemic(TRUTH, seed=2)["infections"]
    cases = reports(infections).rvs(random_state=np.random.default_rng(2))
    pd.DataFrame({"week": range(WEEKS), "cases": cases}).to_csv("data/cases.csv", index=False)
