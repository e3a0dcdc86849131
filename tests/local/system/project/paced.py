"""The counted model, which takes its time as long as a test wants it to.

That is while the file named by MOPS_TEST_PACED is there; a plain loop over the same study is quick.
"""

import os
import time
from pathlib import Path

import counted


def simulate(params, seed):
    """Count the call, wait `seconds` if it is to take its time, run the epidemic."""
    counted.count(params, seed)
    time.sleep(params["seconds"] if Path(os.environ.get("MOPS_TEST_PACED", "nowhere")).exists() else 0)
    return {"daily": counted.epidemic(params["beta"], params.get("gamma", 0.1), seed)}
