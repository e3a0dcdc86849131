"""The held model, ill while a file outside of the project says so: a bundle never changes, what is around it may.

The parameter `ward` names that file: lines of a beta and its illness (`error`, `crashed`, `timeout`, or `target`).
"""

import time
from pathlib import Path

import held
import nasty
import scores


def simulate(params, seed):
    """Fail in the way that the ward says of this beta; run on otherwise."""
    match illness(params):
        case "error":
            raise ValueError("ill")
        case "crashed":
            nasty.segfault()
        case "timeout":
            time.sleep(3600)
    return held.simulate(params, seed)


def score(params, replicates):
    """Score as `scores.order` does, unless the ward says that the target is ill."""
    if illness(params) == "target":
        raise ValueError("no score")
    return scores.order(params, replicates)


def illness(params):
    """Return what the ward says of a set; None: it is well."""
    ward = Path(params["ward"])
    lines = [line.split() for line in ward.read_text().splitlines()] if ward.exists() else []
    return dict(lines).get(str(params["beta"]))
