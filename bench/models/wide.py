"""A model with large outputs, which are different each time and do not compress.

| parameter | meaning |
|---|---|
| `mib` | bytes of one simulation's output |
"""

import numpy as np

COLUMNS = 8


def simulate(params, seed):
    """Return a table of random floats."""
    rows = (params["mib"] << 20) // (8 * COLUMNS)
    rng = np.random.default_rng(seed)
    return {f"column_{n}": rng.random(rows) for n in range(COLUMNS)}
