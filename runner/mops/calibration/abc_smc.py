"""Approximate Bayesian computation: keeps the sets with the smallest distances from the data, round by round.

Round 1 is a design. Each later round moves sets of the population by a normal distribution with twice the weighted
covariance of the population (Beaumont et al. 2009, Biometrika 96, 983-990). The total loss counts as a distance, and
need not be a likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mops.calibration.rounds import Draw, TotalLoss, is_from_prior, outcomes_of
from mops.calibration.seeds import draws_that_tell, pooled_sample_size
from mops.calibration.unit_cube import LEAST_VARIANCE, inside_the_cube, points_of
from mops.storage.calibration_records import Round
from mops.study.sampling.draw import Floats, Method, sets_at, unit_points, varying
from mops.study.sampling.space import Space

_SHARE_KEPT = 0.5  # the size of the population, as a share of the sets of the first round

# With a sufficient effective sample size, the rounds end when less than this share of a round's sets comes below the
# tolerance (Lenormand et al. 2013).
_LEAST_ACCEPTED = 0.05


@dataclass(frozen=True)
class AbcSmc:
    """Draws the sets of each round near the population, and weighs the population."""

    space: Space
    seed: int
    loss: TotalLoss
    where: str  # the space's file, for errors

    def ask(self, history: Sequence[Round], n: int) -> Draw:
        """Return the sets of the round after these rounds."""
        if not history:
            return self._draw(unit_points(self.space, Method.SOBOL, n=n, seed=self.seed, where=self.where), {})
        d = len(varying(self.space))
        rng = np.random.default_rng([self.seed, len(history) + 1])
        kept = self._population(history)
        if len(np.unique(draws_that_tell(history)[kept])) < 2 * (d + 1):  # too few simulations for a covariance
            return self._draw(rng.random((n, d)), {})
        centres = points_of(history)[kept]
        weights = 1 / densities(history)[kept]
        weights /= weights.sum()
        if len(kept) > (most := self._size(history)):  # many have the same distance: the record holds a sample of them
            centres, weights = rng.choice(centres, most, p=weights), np.full(most, 1 / most)
        apart = centres - weights @ centres
        scale = 2 * (weights * apart.T) @ apart + LEAST_VARIANCE * np.eye(d)
        root = np.linalg.cholesky(scale)

        def moved(m: int) -> Floats:
            found: Floats = rng.choice(centres, m, p=weights) + rng.standard_normal((m, d)) @ root.T
            return found

        points, drawn = inside_the_cube(moved, n)
        state = {"centres": centres.tolist(), "weights": weights.tolist(), "scale": scale.tolist(), "drawn": drawn}
        return self._draw(points, state)

    def weights(self, history: Sequence[Round]) -> list[float | None]:
        """Return the weight of each set: 0 outside of the population, None for a failed set."""
        # 1 divided by the density from which the set was drawn, because the prior is even in the unit cube (Toni,
        # Welch, Strelkowa, Ipsen, Stumpf 2009, Journal of the Royal Society Interface 6, 187-202).
        losses, kept = self._losses(history), self._population(history)
        weights = np.where(np.isnan(losses), math.nan, 0.0)
        if len(kept):
            weights[kept] = 1 / densities(history)[kept]
            weights /= np.nansum(weights)
        return [None if math.isnan(weight) else weight for weight in weights.tolist()]

    def is_over(self, history: Sequence[Round], ess: float) -> bool:
        """Tell whether the last round has hardly come below the tolerance of the rounds before it."""
        # If the effective sample size is too small, more rounds are needed all the same.
        if len(history) < 2:
            return False
        n_last = len(history[-1].asked.sets)
        accepted = int((self._losses(history)[-n_last:] < self.tolerance(history[:-1])).sum())
        weights = np.array([weight or 0.0 for weight in self.weights(history)])
        is_enough = pooled_sample_size(weights, draws_that_tell(history)) >= ess
        return is_enough and accepted < _LEAST_ACCEPTED * n_last

    def tolerance(self, history: Sequence[Round]) -> float:
        """Return the greatest distance in the population; infinite: there is none."""
        # So the tolerance needs no schedule, and no simulation of the population is lost (Lenormand, Jabot, Deffuant
        # 2013, Computational Statistics 28, 2777-2796).
        kept = self._population(history)
        return float(self._losses(history)[kept].max()) if len(kept) else math.inf

    def _population(self, history: Sequence[Round]) -> Any:
        """Return the places of the sets with the smallest distances."""
        # All sets with the greatest of these distances belong to the population: integer distances are often equal.
        losses = self._losses(history)
        smallest = np.sort(losses[~np.isnan(losses)])[: self._size(history)]
        return np.flatnonzero(losses <= smallest[-1]) if len(smallest) else np.zeros(0, np.int64)

    def _size(self, history: Sequence[Round]) -> int:
        """Return the number of sets in the population, without further sets that have the distance of the last one."""
        return math.ceil(_SHARE_KEPT * len(history[0].asked.sets)) if history else 0

    def _losses(self, history: Sequence[Round]) -> Floats:
        totals = map(self.loss.of, outcomes_of(history))
        return np.array([math.nan if total is None else total for total in totals])

    def _draw(self, points: Floats, state: dict[str, Any]) -> Draw:
        return Draw(sets_at(self.space, points).to_pylist(), {"points": points.tolist(), **state})


def densities(history: Sequence[Round]) -> Floats:
    """Return, for each set, the density in the unit cube from which it was drawn."""
    found = []
    for each in history:
        state = each.asked.state
        points = np.array(state["points"], dtype=float)
        found.append(np.ones(len(points)) if is_from_prior(state) else _kernel_density(points, state))
    return np.concatenate(found)


def _kernel_density(points: Floats, state: dict[str, Any]) -> Floats:
    """Return the density of a mixture of normal distributions around centres, cut off at the borders of the cube."""
    centres, weights, scale = (np.array(state[key], dtype=float) for key in ("centres", "weights", "scale"))
    root = np.linalg.cholesky(scale)
    d = len(scale)
    places, around = np.linalg.solve(root, points.T).T, np.linalg.solve(root, centres.T).T
    squares = (places**2).sum(axis=1)[:, None] + (around**2).sum(axis=1) - 2 * places @ around.T
    constant = np.log(np.diag(root)).sum() + d / 2 * math.log(2 * math.pi)
    density: Floats = np.exp(-squares / 2 - constant) @ weights
    density *= state["drawn"] / len(points)
    return density
