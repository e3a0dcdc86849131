"""A bare module without a class: its one function named run, simulate or model is the model."""

from functions import plain


def helper(params, seed):
    """Not a candidate by its name."""
    return plain(params, seed)


def run(params, seed):
    """The model."""
    return helper(params, seed)
