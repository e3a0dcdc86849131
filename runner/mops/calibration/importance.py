"""Importance resampling: a design over the space, then rounds near its best sets, each set with a posterior weight.

Round 1 is a design; each later round draws from a Student distribution with the weighted mean and covariance of the
sets so far. The prior spreads each parameter evenly over its range (in the logarithm if the scale is ``log``), so it
has the density 1 in the unit cube. Rubin, D. B. (1988), Bayesian Statistics 3, 395-402.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mops.calibration.rounds import Draw, TotalLoss, is_from_prior, outcomes_of
from mops.calibration.seeds import Counts, draws_that_tell, pooled_sample_size
from mops.calibration.unit_cube import LEAST_VARIANCE, inside_the_cube, points_of
from mops.storage.calibration_records import Round
from mops.study.sampling.draw import Floats, Method, sets_at, unit_points, varying
from mops.study.sampling.space import Space

_FREEDOM = 5  # degrees of freedom of the Student distribution: its tails are heavier than those of a posterior

# The mean and covariance of a proposal come from at least this share of a round's sets, as effective sample size.
_SHARE_KEPT = 0.1


@dataclass(frozen=True)
class Proposal:
    """A multivariate Student distribution, cut off at the borders of the unit cube."""

    centre: Floats
    scale: Floats
    # How many points were drawn, with those outside of the cube. This times the density without the cut is the density
    # of the kept points times their number.
    drawn: int

    def log_density(self, points: Floats) -> Floats:
        """Return the logarithm of the density without the cut."""
        d = len(self.centre)
        root = np.linalg.cholesky(self.scale)
        squares = (np.linalg.solve(root, (points - self.centre).T) ** 2).sum(axis=0)
        constant = math.lgamma((_FREEDOM + d) / 2) - math.lgamma(_FREEDOM / 2) - d / 2 * math.log(_FREEDOM * math.pi)
        density: Floats = constant - np.log(np.diag(root)).sum() - (_FREEDOM + d) / 2 * np.log1p(squares / _FREEDOM)
        return density


@dataclass(frozen=True)
class ImportanceResampling:
    """Draws the sets of each round, and weighs all sets."""

    space: Space
    seed: int
    loss: TotalLoss
    # The total loss divided by it is minus the logarithm of the likelihood (Bissiri, Holmes, Walker 2016, Journal of
    # the Royal Statistical Society B 78, 1103-1130).
    temperature: float
    where: str  # the space's file, for errors

    def ask(self, history: Sequence[Round], n: int) -> Draw:
        """Return the sets of the round after these rounds: the design, or draws from a new proposal."""
        if not history:
            points = unit_points(self.space, Method.SOBOL, n=n, seed=self.seed, where=self.where)
            return self._draw(points, None)
        rng = np.random.default_rng([self.seed, len(history) + 1])
        fitted = self._fitted(history, n)
        if fitted is None:
            return self._draw(rng.random((n, len(varying(self.space)))), None)
        centre, scale = fitted
        root = np.linalg.cholesky(scale)

        def student(m: int) -> Floats:
            normal = rng.standard_normal((m, len(centre))) @ root.T
            found: Floats = centre + normal / np.sqrt(rng.chisquare(_FREEDOM, (m, 1)) / _FREEDOM)
            return found

        points, drawn = inside_the_cube(student, n)
        return self._draw(points, Proposal(centre, scale, drawn))

    def weights(self, history: Sequence[Round]) -> list[float | None]:
        """Return the weight of each set, None for a failed set."""
        # The likelihood, divided by the mixture of all distributions from which sets were drawn (Cornuet, Marin, Mira,
        # Robert 2012, Scandinavian Journal of Statistics 39, 798-812). So no round is lost, and the weights are right
        # even if a distribution fitted badly.
        losses = self._losses(history)
        scored = ~np.isnan(losses)
        weights = np.full(len(losses), np.nan)
        if scored.any():
            weights[scored] = normalised((-losses / self.temperature - log_mixture(history))[scored])
        return [None if math.isnan(weight) else weight for weight in weights.tolist()]

    def is_over(self, history: Sequence[Round], ess: float) -> bool:
        """Tell whether the effective sample size is reached."""
        weights = np.array([weight or 0.0 for weight in self.weights(history)])
        return pooled_sample_size(weights, draws_that_tell(history)) >= ess

    def _losses(self, history: Sequence[Round]) -> Floats:
        """Return the total losses, NaN for a failed set."""
        totals = map(self.loss.of, outcomes_of(history))
        return np.array([math.nan if total is None else total for total in totals])

    def _fitted(self, history: Sequence[Round], n: int) -> tuple[Floats, Floats] | None:
        """Return mean and covariance of the sets that fit best; None: too few simulations have losses."""
        losses, log_q, points = self._losses(history), log_mixture(history), points_of(history)
        scored = ~np.isnan(losses)
        draws = draws_that_tell(history)[scored]
        d = points.shape[1]
        least = max(4 * (d + 1), _SHARE_KEPT * n)
        if len(np.unique(draws)) < least:
            return None
        weights = tempered(-losses[scored] / self.temperature, log_q[scored], draws, least)
        centre = weights @ points[scored]
        apart = points[scored] - centre
        return centre, (weights * apart.T) @ apart + LEAST_VARIANCE * np.eye(d)

    def _draw(self, points: Floats, proposal: Proposal | None) -> Draw:
        state: dict[str, Any] = {"points": points.tolist()}
        if proposal is not None:
            state |= {"centre": proposal.centre.tolist(), "scale": proposal.scale.tolist(), "drawn": proposal.drawn}
        return Draw(sets_at(self.space, points).to_pylist(), state)


def log_mixture(history: Sequence[Round]) -> Floats:
    """Return, for each set, the logarithm of the sum over all drawn points of the density from which each came."""
    points = points_of(history)
    states = [each.asked.state for each in history]
    n_even = sum(len(state["points"]) for state in states if is_from_prior(state))  # these have the density 1
    found: Floats = np.full(len(points), math.log(n_even))
    for state in states:
        if not is_from_prior(state):
            proposal = Proposal(np.array(state["centre"]), np.array(state["scale"]), state["drawn"])
            found = np.logaddexp(found, math.log(proposal.drawn) + proposal.log_density(points))
    return found


def normalised(log_weights: Floats) -> Floats:
    """Return weights with the sum 1."""
    weights: Floats = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    return weights


def tempered(log_likelihoods: Floats, log_q: Floats, draws: Counts, least: float) -> Floats:
    """Return weights with an effective sample size of at least ``least``, if that is possible."""
    # If a few simulations carry all weight, a covariance from them would be meaningless. So this raises the likelihoods
    # to the largest power of at most 1 that gives the wanted size.
    low, high = 0.0, 1.0
    weights = normalised(log_likelihoods - log_q)
    if pooled_sample_size(weights, draws) >= least:
        return weights
    for _ in range(60):
        middle = (low + high) / 2
        if pooled_sample_size(normalised(middle * log_likelihoods - log_q), draws) >= least:
            low = middle
        else:
            high = middle
    return normalised(low * log_likelihoods - log_q)
