"""The counted model, which is slow while a test requires it.

It is slow while the file named by MOPS_TEST_PACED exists, so a plain loop over the same study is quick.
"""

import os
import time
from pathlib import Path

import counted


def simulate(params, seed):
    """Count the call, wait `seconds` if the file exists, and run the epidemic."""
    counted.count(params, seed)
    time.sleep(params["seconds"] if is_slow() else 0)
    return {"daily": counted.epidemic(params["beta"], params.get("gamma", 0.1), seed)}


def is_slow():
    """Return whether the test requires a slow model now."""
    return Path(os.environ.get("MOPS_TEST_PACED", "nowhere")).exists()
