"""Print which simulations failed, why, and how much memory they used."""

import mops

job = mops.open_job("greedy")
for row in job.failures(params=True).to_arrow().to_pylist():
    peak, limit = row["peak_bytes"] / 2**20, row["limit_bytes"] / 2**20
    print(f"points {row['points']}: {row['reason']}, {row['attempts']} attempts, {peak:.0f} of {limit:.0f} MiB")
