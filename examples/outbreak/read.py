"""Compare the share of outbreaks that die out with the theory of branching processes."""

import math

import mops

job = mops.open_job("outbreak")
cases = job.outputs("output", columns=["r", "died_out"]).to_arrow()
print("  r  died out  standard error  theory")
for row in cases.group_by("r").aggregate([("died_out", "mean"), ("died_out", "count")]).sort_by("r").to_pylist():
    share = row["died_out_mean"]
    error = math.sqrt(share * (1 - share) / row["died_out_count"])
    theory = 0.0
    for _ in range(1_000):  # the smallest solution of q = exp(r (q - 1))
        theory = math.exp(row["r"] * (theory - 1))
    print(f"{row['r']:.1f}  {share:8.3f}  {error:14.3f}  {theory:6.3f}")
