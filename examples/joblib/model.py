"""The model as mops calls it."""

from fire import burn


def simulate(params, seed):
    return {"burnt": burn(params["density"], params["wind"], seed)}
