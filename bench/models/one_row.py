"""The smallest model: one row of output for each simulation."""


def run(params, seed):
    """Return one number."""
    return {"y": params["beta"] * (seed % 1000)}
