"""The scan of before.py with mops: the same parameters, seeds and numbers."""

from itertools import product

import model
import pandas as pd

import mops

jobs = list(product([0.5, 0.55, 0.6, 0.65], [0.0, 0.5], range(50)))
sets = pd.DataFrame(jobs, columns=["density", "wind", "seed"])
job = mops.submit(model=model.simulate, sets=sets, name="fires", if_exists="resume")

rows = job.outputs("output", params=True).to_pandas()
rows = rows.sort_values(["density", "wind", "seed"])
rows.to_csv("after.csv", index=False, columns=["density", "wind", "seed", "burnt"])
