"""Models that are functions: the plain form, and the one that knows scenarios."""

import numpy as np

N_DAYS = 20


def plain(params, seed):
    """Return one table, as a mapping of columns: a random walk with drift `beta`."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(params.get("beta", 0.0), 1.0, N_DAYS)
    return {"day": np.arange(N_DAYS), "value": steps.cumsum()}


def with_scenario(params, seed, scenario):
    """Scale the walk by what the scenario says; an unknown scenario is the model's own error."""
    factor = {"baseline": 1.0, "lockdown": 0.25}[scenario]
    table = plain(params, seed)
    return {"daily": {"day": table["day"], "value": factor * table["value"]}}


def scalars(params, seed):
    """Return numbers and a string: one row."""
    return {
        "beta": params.get("beta", 0.0),
        "draw": float(np.random.default_rng(seed).random()),
        "label": "ok",
    }


def with_seed_column(params, seed):
    """Carry the seed as a column of its own, as some frameworks do."""
    return {"seed": [seed] * 3, "day": [0, 1, 2], "value": [0.0, 1.0, 2.0]}


def with_foreign_param_id(params, seed):
    """Clash with a column that the runner puts in front."""
    return {"param_id": ["mine"], "value": [1.0]}


def draw_unseeded(params, seed):
    """Draw from the global generators without seeding them: repeatable only if the caller seeds them."""
    import random

    return {"python": random.random(), "numpy": float(np.random.random())}  # noqa: NPY002 (the legacy way is the point)


def large(params, seed):
    """Return `mib` MiB of noise in one column (default 64)."""
    n_values = int(params.get("mib", 64)) * 2**20 // 8
    return {"value": np.random.default_rng(seed).random(n_values)}


def hungry(params, seed):
    """Use `mib` MiB of memory (default 1536) before returning a single number."""
    block = np.ones(int(params.get("mib", 1536)) * 2**20, dtype=np.uint8)
    return {"total": int(block.sum())}


def leaky(params, seed):
    """Keep `mib` MiB (default 50) of each simulation for ever, as a cache without a bound does."""
    _KEPT.append(np.ones(int(params.get("mib", 50)) * 2**20, dtype=np.uint8))
    return {"kept": len(_KEPT)}


_KEPT: list[np.ndarray] = []


def with_local_data(params, seed):
    """Read a file relative to the working directory, which is the project's root."""
    from pathlib import Path

    return {"first_line": Path("mops.toml").read_text().splitlines()[0]}
