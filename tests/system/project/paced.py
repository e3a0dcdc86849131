"""The counted model, which takes its time on a cluster's workers only: a plain loop over the same study is quick."""

import os
import time

import counted


def simulate(params, seed):
    """Count the call, wait `seconds` where MOPS_TEST_PACED is set, run the epidemic."""
    counted.count(params, seed)
    time.sleep(params["seconds"] if "MOPS_TEST_PACED" in os.environ else 0)
    return {"daily": counted.epidemic(params["beta"], params.get("gamma", 0.1), seed)}
