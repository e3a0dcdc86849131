"""The benchmark's model with its results in other forms: as Arrow, as Python lists, and in types that change.

The parameters are the same as in `sir.py`.
"""

import pyarrow as pa
import sir


def arrow(params, seed):
    """Return an Arrow table."""
    return pa.table(sir.simulate(params, seed))


def lists(params, seed):
    """Return columns that are lists."""
    return {name: column.tolist() for name, column in sir.simulate(params, seed).items()}


def changing(params, seed):
    """Return the days as integers for even seeds, and as floats for odd ones."""
    result = sir.simulate(params, seed)
    return result if seed % 2 else result | {"day": result["day"].astype(int)}
