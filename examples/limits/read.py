"""Print which simulations failed, why, and how much memory they used."""

import mops

job = mops.open_job("greedy")
params = job.params(columns=["param_id", "points"]).to_arrow()
failures = job.failures().to_arrow().join(params, "param_id").sort_by([("group", "ascending"), ("replicate", "ascending")])
for row in failures.to_pylist():
    peak, limit = row["peak_bytes"] / 2**20, row["limit_bytes"] / 2**20
    print(f"points {row['points']}: {row['reason']}, {row['attempts']} attempts, {peak:.0f} of {limit:.0f} MiB")
