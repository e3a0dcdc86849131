"""Print the mean wait with its 95 % interval, next to the formula of Erlang."""

import math

import mops

MINUTES = 15  # of a consultation


def erlang(doctors, per_hour):
    """Return the mean wait in minutes, after a long time."""
    load = per_hour * MINUTES / 60
    all_busy = load**doctors / math.factorial(doctors) * doctors / (doctors - load)
    p_wait = all_busy / (sum(load**k / math.factorial(k) for k in range(doctors)) + all_busy)
    return p_wait * MINUTES / (doctors - load)


job = mops.open_job("clinic")
rows = job.outputs("output", params=True).to_pandas()
print("doctors  mean wait in minutes  Erlang")
for (doctors, per_hour), waits in rows.groupby(["doctors", "per_hour"])["mean_wait"]:
    half = 2.05 * waits.sem()  # Student's t for 30 independent replicates
    print(f"{doctors:7}  {waits.mean():9.2f} +- {half:.2f}      {erlang(doctors, per_hour):.2f}")
