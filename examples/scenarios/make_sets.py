"""Write sets.csv: each policy with the same 200 seeds."""

import csv
from pathlib import Path

with Path("sets.csv").open("w", newline="") as file:
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["policy", "beta", "seed"])
    rows.writerows([policy, 0.3, seed] for policy in ("none", "masks", "schools") for seed in range(200))
