"""Write sets.parquet: the sets of a Sobol analysis, in the order that SALib needs."""

import pandas as pd
from problem import PROBLEM
from SALib.sample import sobol

sets = sobol.sample(PROBLEM, 1024, calc_second_order=False, seed=1)
pd.DataFrame(sets, columns=PROBLEM["names"]).to_parquet("sets.parquet", index=False)
print(len(sets), "sets")
