"""A scan with joblib, as many scripts do it."""

from itertools import product

import pandas as pd
from fire import burn
from joblib import Parallel, delayed

jobs = list(product([0.5, 0.55, 0.6, 0.65], [0.0, 0.5], range(50)))
burnt = Parallel(n_jobs=-1)(delayed(burn)(density, wind, seed) for density, wind, seed in jobs)

rows = pd.DataFrame(jobs, columns=["density", "wind", "seed"])
rows["burnt"] = burnt
rows.to_csv("before.csv", index=False)
