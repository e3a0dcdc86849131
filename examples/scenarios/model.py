"""An epidemic in a town of 1,000 people, with and without a measure."""

import numpy as np

PEOPLE, DAYS = 1_000, 100
CONTACTS = {"none": 1.0, "masks": 0.9, "schools": 0.8}  # share of the contacts that remain from day 15 on


def epidemic(params, seed):
    """Follow each person. Whatever the policy, person i has the same luck on day d, and the same days of illness."""
    rng = np.random.default_rng(seed)
    luck = rng.random((DAYS, PEOPLE))
    days_ill = rng.geometric(0.2, PEOPLE)
    ends = np.full(PEOPLE, -1)  # the day on which a person recovers; -1: never infected
    ends[:10] = days_ill[:10]
    for day in range(DAYS):
        contacts = CONTACTS[params["policy"]] if day >= 15 else 1.0
        risk = 1 - np.exp(-params["beta"] * contacts * np.mean(ends > day))
        infected = (ends < 0) & (luck[day] < risk)
        ends[infected] = day + 1 + days_ill[infected]
    return {"infected": int(np.sum(ends >= 0)), "last_day": int(ends.max())}
