"""Weigh the sets of the job `prior` by their likelihood, resample them, and compare with the truth."""

import numpy as np
import pandas as pd
from make_data import TRUTH

import mops

sets = mops.open_job("prior").losses(params=True).to_pandas()
weights = np.exp(sets["loss"].min() - sets["loss"])
weights /= weights.sum()
print(f"effective sample size: {1 / (weights**2).sum():.0f} of {len(sets)} sets")

posterior = sets.sample(2_000, replace=True, weights=weights, random_state=1)[list(TRUTH)]
posterior.to_csv("posterior.csv", index=False)
table = pd.DataFrame({"truth": TRUTH})
for name, draws in (("prior", sets), ("posterior", posterior)):
    for quantile in (0.025, 0.975):
        table[f"{name} {quantile:.1%}"] = draws[list(TRUTH)].quantile(quantile)
print(table.round(3).to_string())
