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


def pandas(params, seed):
    """Return a pandas frame."""
    import pandas as pd  # only here, because its import takes time and memory

    return pd.DataFrame(sir.simulate(params, seed))


def texts(params, seed):
    """Return an Arrow table that also has a column of texts."""
    result = sir.simulate(params, seed)
    return pa.table(result | {"place": ["Geneva"] * len(result["day"])})
