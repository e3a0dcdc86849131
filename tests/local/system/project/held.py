"""The counted model, which waits where a test holds it, so that tests choose the moment and never wait for luck.

While the file named by MOPS_TEST_HOLD is there and says `n`, only the first `n` calls (lines of the tally in
MOPS_TEST_CALLS) run to their end; any later call waits until the number rises or the file is gone.
"""

import os
import time
from pathlib import Path

import counted
import nasty


def simulate(params, seed):
    """Count the call, wait while the test holds it, run the epidemic."""
    own = counted.count(params, seed)
    while allowed() < own:
        time.sleep(0.01)
    time.sleep(params.get("sleep", 0))
    return {"daily": counted.epidemic(params["beta"], params.get("gamma", 0.1), seed)}


def crashes_once(params, seed):
    """Die by a segmentation fault in the tally's call number `crash_at_call`; the same simulation runs on later."""
    own = counted.count(params, seed)
    time.sleep(params["sleep"])
    if own == params["crash_at_call"]:
        nasty.segfault()
    return {"daily": counted.epidemic(params["beta"], params.get("gamma", 0.1), seed)}


def allowed():
    """Return how many calls may run to their end."""
    try:
        return int(Path(os.environ["MOPS_TEST_HOLD"]).read_text())
    except (KeyError, FileNotFoundError):
        return float("inf")
