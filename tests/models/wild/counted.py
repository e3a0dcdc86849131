"""A model that keeps a tally of its calls, so that tests can see what was run, how often and where.

Each call appends one line to the file named by the environment variable MOPS_TEST_CALLS:

    <key of the parameters> <seed> <pid>

Lines are short and written at once with O_APPEND, so calls from many processes do not mix.
Parameters: `beta`, `gamma` (both optional), and `sleep`, seconds to wait after the call has been counted.
"""

import json
import os
import time

import numpy as np

N_DAYS = 50
POPULATION = 1_000


def simulate(params, seed):
    """Count the call, wait if asked to, run a chain-binomial SIR; same params and seed, same table."""
    count(params, seed)
    time.sleep(params.get("sleep", 0))
    return {"daily": epidemic(params.get("beta", 0.3), params.get("gamma", 0.1), seed)}


def count(params, seed):
    """Append one line to the tally, if there is one; return its number, from 1 on."""
    path = os.environ.get("MOPS_TEST_CALLS")
    if not path:
        return 0
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, f"{key(params)} {seed} {os.getpid()}\n".encode())
        # Up to its own end, and not all lines: another process may have written one meanwhile.
        return os.pread(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR), 0).count(b"\n")
    finally:
        os.close(descriptor)


def key(params):
    """Return the parameters as one word: canonical JSON, which here has no blanks."""
    return json.dumps(params, sort_keys=True, separators=(",", ":"))


def epidemic(beta, gamma, seed):
    """Return the days of one epidemic as columns."""
    rng = np.random.default_rng(seed)
    susceptible, infected = POPULATION - 10, 10
    rows = []
    for day in range(N_DAYS):
        rows.append((day, susceptible, infected))
        infections = rng.binomial(susceptible, 1 - np.exp(-beta * infected / POPULATION))
        recoveries = rng.binomial(infected, 1 - np.exp(-gamma))
        susceptible, infected = susceptible - infections, infected + infections - recoveries
    day, s, i = (np.array(column) for column in zip(*rows, strict=True))
    return {"day": day, "susceptible": s, "infected": i}
