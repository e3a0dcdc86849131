"""A model that writes down its calls, so that tests see what ran, how often and in which process.

Each call appends one line to the file named by the environment variable MOPS_TEST_CALLS:

    <key of the parameters> <seed> <pid>

O_APPEND keeps the lines of several processes apart. Parameters: `beta`, `gamma` (both optional), and `sleep`, the
seconds to wait after the call was counted.
"""

import json
import os
import time

import numpy as np

N_DAYS = 50
POPULATION = 1_000


def simulate(params, seed):
    """Count the call, wait, and run a chain-binomial SIR model."""
    count(params, seed)
    time.sleep(params.get("sleep", 0))
    return {"daily": epidemic(params.get("beta", 0.3), params.get("gamma", 0.1), seed)}


def count(params, seed):
    """Append a line to the file, if there is one; return the number of the line, from 1 on."""
    path = os.environ.get("MOPS_TEST_CALLS")
    if not path:
        return 0
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, f"{key(params)} {seed} {os.getpid()}\n".encode())
        # Count up to the own line: another process may have written one after it.
        return os.pread(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR), 0).count(b"\n")
    finally:
        os.close(descriptor)


def key(params):
    """Return the parameters as canonical JSON, without blanks."""
    return json.dumps(params, sort_keys=True, separators=(",", ":"))


def epidemic(beta, gamma, seed):
    """Return one row for each day of an epidemic."""
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
