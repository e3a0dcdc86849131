"""The held model, which fails while a file outside the project says so. A bundle cannot change, this file can.

The parameter `ward` is the path of the file. Each line has a beta and `error`, `crashed`, `timeout`, or `target`.
"""

import time
from pathlib import Path

import held
import nasty
import scores


def simulate(params, seed):
    """Fail as the ward says for this beta; otherwise run the held model."""
    match illness(params):
        case "error":
            raise ValueError("ill")
        case "crashed":
            nasty.segfault()
        case "timeout":
            time.sleep(3600)
    return held.simulate(params, seed)


def score(params, replicates):
    """Score like `scores.order`, unless the ward says that the target fails."""
    if illness(params) == "target":
        raise ValueError("no score")
    return scores.order(params, replicates)


def illness(params):
    """Return the failure that the ward has for a set, or None."""
    ward = Path(params["ward"])
    lines = [line.split() for line in ward.read_text().splitlines()] if ward.exists() else []
    return dict(lines).get(str(params["beta"]))
