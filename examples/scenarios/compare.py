"""How many infections does each policy avoid? With common random numbers, and with independent ones."""

import pandas as pd

import mops


def infected(job):
    """Return a column for each policy and a row for each replicate; replicate i has seed i in the job `common`."""
    rows = job.outputs("output", params=True).to_pandas()
    return rows.pivot(index="replicate", columns="policy", values="infected")


common, independent = infected(mops.open_job("common")), infected(mops.open_job("independent"))
table = pd.DataFrame()
for policy in ("masks", "schools"):
    differences = common["none"] - common[policy]  # one for each seed
    error_independent = (independent["none"].sem() ** 2 + independent[policy].sem() ** 2) ** 0.5
    table[policy] = {
        "infections avoided": differences.mean(),
        "  standard error": differences.sem(),
        "infections avoided, independent": (independent["none"] - independent[policy]).mean(),
        "  standard error, independent": error_independent,
        "ratio of the variances": (error_independent / differences.sem()) ** 2,
    }
print(table.round(1).to_string())
