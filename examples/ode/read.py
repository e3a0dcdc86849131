"""Print the best set, and the pelts of some years next to the animals of the model."""

import pandas as pd

import mops

job = mops.open_job("narrow")
best = job.best(1).to_pandas().iloc[0]
print(best[["loss", "hare_birth", "hare_eaten", "lynx_birth", "lynx_death"]].map("{:.3f}".format).to_string())

rows = job.outputs("output", where={"group": int(best["group"])})  # reads only this set
model = rows.to_pandas().set_index("year")[["hare", "lynx"]]
observed = pd.read_csv("data/pelts.csv").set_index("year")[["hare", "lynx"]]
both = pd.concat({"pelts": observed, "model": model}, axis=1)
print(both.loc[[1902, 1904, 1908, 1912, 1914, 1918]].round().astype(int).to_string())
