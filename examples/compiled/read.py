"""Compare the mean density of the walkers with the exact one."""

import math

import mops

job = mops.open_job("walkers")
rows = job.outputs("output", params=True).to_arrow()
table = rows.group_by(["sites", "step"]).aggregate([("walkers", "mean"), ("walkers", "stddev"), ("walkers", "count")])
print("sites  step  density  standard error    exact")
for row in table.sort_by([("sites", "ascending"), ("step", "ascending")]).to_pylist():
    step, n = row["step"], row["walkers_count"]
    if step in (16, 256, 4096):
        density = row["walkers_mean"] / row["sites"]
        error = row["walkers_stddev"] / math.sqrt(n - 1) / row["sites"]  # Arrow's stddev divides by n
        exact = math.comb(2 * step, step) / 4**step * (1 + step / (step + 1))
        print(f"{row['sites']:5}  {step:4}  {density:.5f}  {error:14.5f}  {exact:.5f}")
