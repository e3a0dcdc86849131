"""The methods that weigh sets: importance resampling, and approximate Bayesian computation (ABC).

Both draw from the unit cube, in which every set of the space is equally likely: the prior spreads each parameter evenly
over its range (in the logarithm if the scale is ``log``), so it has the density 1. Round 1 is a design.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mops.calibration.rounds import (
    Counts,
    Draw,
    TotalLoss,
    design,
    draws_that_tell,
    is_from_prior,
    pooled_sample_size,
    sample_size,
)
from mops.storage.calibration_records import Round
from mops.study.sampling.draw import Floats, sets_at, varying
from mops.study.sampling.space import Space

_MOST_DRAWN = 10_000  # how many draws of a proposal may be needed for each point in the cube
_LEAST_KEPT = 10  # so many points more are allowed, because the share of the first ones is uncertain

_LEAST_VARIANCE = 1e-12  # added to variances, so that a covariance of equal points has an inverse


def _drawn(space: Space, points: Floats, **state: Any) -> Draw:
    return Draw(sets_at(space, points).to_pylist(), {"points": points.tolist(), **state})


def _points_of(history: Sequence[Round]) -> Floats:
    return np.concatenate([np.array(each.state["points"], dtype=float) for each in history])


def _none_for_nan(weights: Floats) -> list[float | None]:
    return [None if math.isnan(weight) else weight for weight in weights.tolist()]


def inside_the_cube(
    propose: Callable[[int], Floats],  # draws this many points
    n: int,
) -> tuple[Floats, int] | None:
    """Draw points until ``n`` are in the cube; return these, and how many were drawn. None: hardly any are inside."""
    kept: list[Floats] = []
    n_kept = drawn = 0
    while n_kept < n:
        if drawn > _MOST_DRAWN * (n_kept + _LEAST_KEPT):
            return None
        points = propose(n)
        places = np.flatnonzero(np.all((points >= 0) & (points < 1), axis=1))[: n - n_kept]
        n_kept += len(places)
        drawn += n if n_kept < n else int(places[-1]) + 1
        kept.append(points[places])
    return np.concatenate(kept), drawn


def _proposed(space: Space, rng: np.random.Generator, propose: Callable[[int], Floats], n: int, **state: Any) -> Draw:
    """Return draws from a proposal that has this state, or from the whole space if the cube has hardly any of them."""
    # The share inside falls exponentially with the number of parameters. Draws from the whole space are right as well.
    found = inside_the_cube(propose, n)
    if found is None:
        return _drawn(space, rng.random((n, len(varying(space)))))
    points, drawn = found
    return _drawn(space, points, **state, drawn=drawn)


# Importance resampling (Rubin, D. B. 1988, Bayesian Statistics 3, 395-402): each later round draws from a Student
# distribution with the weighted mean and covariance of the sets so far.

_FREEDOM = 5  # degrees of freedom of the Student distribution: its tails are heavier than those of a posterior

# The mean and covariance of a proposal come from at least this share of a round's sets, as effective sample size.
_SHARE_FITTED = 0.1


@dataclass(frozen=True)
class ImportanceResampling:
    """Draws the sets of each round, and weighs all sets."""

    space: Space
    seed: int
    loss: TotalLoss
    # The total loss divided by it is minus the logarithm of the likelihood (Bissiri, Holmes, Walker 2016, Journal of
    # the Royal Statistical Society B 78, 1103-1130).
    temperature: float

    def ask(self, history: Sequence[Round], n: int) -> Draw:
        """Return the sets of the round after these rounds: the design, or draws from a new proposal."""
        if not history:
            return _drawn(self.space, design(self.space, n, self.seed))
        rng = np.random.default_rng([self.seed, len(history) + 1])
        losses, log_q, points = self.loss.of_all(history), log_mixture(history), _points_of(history)
        scored = ~np.isnan(losses)
        draws = draws_that_tell(history)[scored]
        d = points.shape[1]
        least = max(4 * (d + 1), _SHARE_FITTED * n)
        if len(np.unique(draws)) < least:  # too few simulations for a covariance
            return _drawn(self.space, rng.random((n, d)))
        weights = tempered(self._log_likelihoods(losses[scored]), log_q[scored], draws, least)
        centre = weights @ points[scored]
        apart = points[scored] - centre
        scale = (weights * apart.T) @ apart + _LEAST_VARIANCE * np.eye(d)
        root = np.linalg.cholesky(scale)

        def student(m: int) -> Floats:
            normal = rng.standard_normal((m, d)) @ root.T
            found: Floats = centre + normal / np.sqrt(rng.chisquare(_FREEDOM, (m, 1)) / _FREEDOM)
            return found

        return _proposed(self.space, rng, student, n, centre=centre.tolist(), scale=scale.tolist())

    def weights(self, history: Sequence[Round]) -> list[float | None]:
        """Return the weight of each set, None for a failed set."""
        # The likelihood, divided by the mixture of all distributions from which sets were drawn (Cornuet, Marin, Mira,
        # Robert 2012, Scandinavian Journal of Statistics 39, 798-812). So no round is lost, and the weights are right
        # even if a distribution fitted badly.
        losses = self.loss.of_all(history)
        scored = ~np.isnan(losses)
        weights = np.full(len(losses), np.nan)
        if scored.any():
            weights[scored] = normalised(self._log_likelihoods(losses[scored]) - log_mixture(history)[scored])
        return _none_for_nan(weights)

    def _log_likelihoods(self, losses: Floats) -> Floats:
        """Return the logarithms of the likelihoods; that of the smallest loss counts as 0."""
        # Very large losses divided by a small temperature overflow. An infinite logarithm times a power of 0 is NaN.
        with np.errstate(over="ignore"):
            found: Floats = np.maximum((losses.min() - losses) / self.temperature, -sys.float_info.max)
        return found

    def is_over(self, history: Sequence[Round], ess: float) -> bool:
        """Tell whether the effective sample size is reached."""
        return sample_size(self.weights(history), history) >= ess


def log_mixture(history: Sequence[Round]) -> Floats:
    """Return, for each set, the logarithm of the sum over all drawn points of the density from which each came."""
    points = _points_of(history)
    states = [each.state for each in history]
    n_even = sum(len(state["points"]) for state in states if is_from_prior(state))  # these have the density 1
    found: Floats = np.full(len(points), math.log(n_even))
    for state in states:
        if not is_from_prior(state):
            # All drawn points count, with those outside of the cube: the density without the cut at its borders, times
            # their number, is the density of the kept points times the number of these.
            log_density = log_student(points, np.array(state["centre"]), np.array(state["scale"]))
            found = np.logaddexp(found, math.log(state["drawn"]) + log_density)
    return found


def log_student(points: Floats, centre: Floats, scale: Floats) -> Floats:
    """Return the logarithm of the density of a multivariate Student distribution."""
    d = len(centre)
    root = np.linalg.cholesky(scale)
    squares = (np.linalg.solve(root, (points - centre).T) ** 2).sum(axis=0)
    constant = math.lgamma((_FREEDOM + d) / 2) - math.lgamma(_FREEDOM / 2) - d / 2 * math.log(_FREEDOM * math.pi)
    density: Floats = constant - np.log(np.diag(root)).sum() - (_FREEDOM + d) / 2 * np.log1p(squares / _FREEDOM)
    return density


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


# ABC keeps the sets with the smallest distances from the data, round by round. Each later round moves sets of this
# population by a normal distribution with twice its weighted covariance (Beaumont et al. 2009, Biometrika 96, 983-990).
# The total loss counts as a distance, and need not be a likelihood.

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

    def ask(self, history: Sequence[Round], n: int) -> Draw:
        """Return the sets of the round after these rounds."""
        if not history:
            return _drawn(self.space, design(self.space, n, self.seed))
        d = len(varying(self.space))
        rng = np.random.default_rng([self.seed, len(history) + 1])
        kept = self._population(history)
        if len(np.unique(draws_that_tell(history)[kept])) < 2 * (d + 1):  # too few simulations for a covariance
            return _drawn(self.space, rng.random((n, d)))
        centres = _points_of(history)[kept]
        weights = 1 / densities(history)[kept]
        weights /= weights.sum()
        if len(kept) > (most := self._size(history)):  # many have the same distance: the record holds a sample of them
            centres, weights = rng.choice(centres, most, p=weights), np.full(most, 1 / most)
        apart = centres - weights @ centres
        scale = 2 * (weights * apart.T) @ apart + _LEAST_VARIANCE * np.eye(d)
        root = np.linalg.cholesky(scale)

        def moved(m: int) -> Floats:
            found: Floats = rng.choice(centres, m, p=weights) + rng.standard_normal((m, d)) @ root.T
            return found

        state = {"centres": centres.tolist(), "weights": weights.tolist(), "scale": scale.tolist()}
        return _proposed(self.space, rng, moved, n, **state)

    def weights(self, history: Sequence[Round]) -> list[float | None]:
        """Return the weight of each set: 0 outside of the population, None for a failed set."""
        # 1 divided by the density from which the set was drawn, because the prior is even in the unit cube (Toni,
        # Welch, Strelkowa, Ipsen, Stumpf 2009, Journal of the Royal Society Interface 6, 187-202).
        losses, kept = self.loss.of_all(history), self._population(history)
        weights = np.where(np.isnan(losses), math.nan, 0.0)
        if len(kept):
            weights[kept] = 1 / densities(history)[kept]
            weights /= np.nansum(weights)
        return _none_for_nan(weights)

    def is_over(self, history: Sequence[Round], ess: float) -> bool:
        """Tell whether the last round has hardly come below the tolerance of the rounds before it."""
        # If the effective sample size is too small, more rounds are needed all the same.
        if len(history) < 2:
            return False
        n_last = len(history[-1].sets)
        accepted = int((self.loss.of_all(history)[-n_last:] < self.tolerance(history[:-1])).sum())
        is_enough = sample_size(self.weights(history), history) >= ess
        return is_enough and accepted < _LEAST_ACCEPTED * n_last

    def tolerance(self, history: Sequence[Round]) -> float:
        """Return the greatest distance in the population; infinite: there is none."""
        # So the tolerance needs no schedule, and no simulation of the population is lost (Lenormand, Jabot, Deffuant
        # 2013, Computational Statistics 28, 2777-2796).
        kept = self._population(history)
        return float(self.loss.of_all(history)[kept].max()) if len(kept) else math.inf

    def _population(self, history: Sequence[Round]) -> Any:
        """Return the places of the sets with the smallest distances."""
        # All sets with the greatest of these distances belong to the population: integer distances are often equal.
        losses = self.loss.of_all(history)
        smallest = np.sort(losses[~np.isnan(losses)])[: self._size(history)]
        return np.flatnonzero(losses <= smallest[-1]) if len(smallest) else np.zeros(0, np.int64)

    def _size(self, history: Sequence[Round]) -> int:
        """Return the number of sets in the population, without further sets that have the distance of the last one."""
        return math.ceil(_SHARE_KEPT * len(history[0].sets)) if history else 0


def densities(history: Sequence[Round]) -> Floats:
    """Return, for each set, the density in the unit cube from which it was drawn."""
    found = []
    for each in history:
        points = np.array(each.state["points"], dtype=float)
        found.append(np.ones(len(points)) if is_from_prior(each.state) else _kernel_density(points, each.state))
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
