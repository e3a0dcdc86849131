"""Print how alike neighbours are, before the first step and after the last, with standard errors."""

import mops

job = mops.open_job("segregation")
rows = job.outputs("output", params=True).to_pandas()
ends = rows[rows["step"].isin([0, 15])]
print(ends.groupby(["threshold", "step"])["alike"].agg(["mean", "sem"]).unstack().round(3).to_string())
