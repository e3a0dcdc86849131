"""The counted model, which a test can hold, so that the test chooses the moment of an event.

While the file named by MOPS_TEST_HOLD is there and says `n`, only the first `n` calls (lines of the tally in
MOPS_TEST_CALLS) finish. A later call waits until the number rises or the file no longer exists.
"""

import os
import time
from pathlib import Path

import counted
import nasty


def simulate(params, seed):
    """Count the call, wait while the test holds the model, and run the epidemic."""
    own = counted.count(params, seed)
    while allowed() < own:
        time.sleep(0.01)
    time.sleep(params.get("sleep", 0))
    return {"daily": counted.epidemic(params["beta"], params.get("gamma", 0.1), seed)}


def crashes_once(params, seed):
    """Crash with a segmentation fault in the call number `crash_at_call` of the tally; a retry then succeeds."""
    own = counted.count(params, seed)
    time.sleep(params["sleep"])
    if own == params["crash_at_call"]:
        nasty.segfault()
    return {"daily": counted.epidemic(params["beta"], params.get("gamma", 0.1), seed)}


def allowed():
    """Return how many calls may finish."""
    try:
        return int(Path(os.environ["MOPS_TEST_HOLD"]).read_text())
    except (KeyError, FileNotFoundError):
        return float("inf")
