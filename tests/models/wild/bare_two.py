"""A bare module with two candidates: which one is meant, nobody can tell."""

from functions import plain


class Walk:
    """The one candidate."""

    def simulate(self, params, seed):
        return plain(params, seed)


class Drift:
    """The other candidate."""

    def simulate_scenario(self, scenario, params, seed):
        return plain({"beta": 1.0}, seed)
