"""Print the Sobol indices with their 95 % intervals, next to the exact ones."""

import numpy as np
import pandas as pd
from problem import PROBLEM
from SALib.analyze import sobol

import mops

job = mops.open_job("sobol")
rows = job.outputs("output", columns=["group", "y"]).to_pandas()
y = rows.groupby("group")["y"].mean()  # over replicates; sorted by group, the order of sets.parquet
assert len(y) == len(pd.read_parquet("sets.parquet")), "a set has failed, or is twice in sets.parquet"

found = sobol.analyze(PROBLEM, y.to_numpy(), calc_second_order=False, seed=1)
table = pd.DataFrame(found, index=PROBLEM["names"])[["S1", "S1_conf", "ST", "ST_conf"]]

# The exact variances of y: by x1 alone, by x2 alone, and by x1 together with x3.
v1, v2, v13 = (1 + 0.1 * np.pi**4 / 5) ** 2 / 2, 7**2 / 8, 0.1**2 * np.pi**8 * (1 / 18 - 1 / 50)
table["exact S1"] = np.array([v1, v2, 0]) / (v1 + v2 + v13)
table["exact ST"] = np.array([v1 + v13, v2, v13]) / (v1 + v2 + v13)
print(table.round(2).to_string())
