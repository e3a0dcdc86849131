"""A calibration as users see it: the table of its trials, its posterior, and a summary of each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mops.calibration.optimiser import Optimiser
from mops.calibration.options import Method
from mops.calibration.rounds import (
    Fitting,
    TotalLoss,
    draws_that_tell,
    labels_of,
    outcomes_of,
    sample_size,
)
from mops.calibration.weighing import AbcSmc, ImportanceResampling
from mops.errors import JobError
from mops.storage.calibration_records import CalibrationRecord, CalibrationRecords, Round, Scoring
from mops.storage.params_file import free_names
from mops.study.ids_and_seeds import param_id
from mops.study.sampling.draw import Floats, check_n_sets, column_of, varying
from mops.study.sampling.space import Space, n_different_sets
from mops.units import counted

INTERVAL = (0.025, 0.975)  # the quantiles between which a parameter lies with a probability of 95 %


@dataclass(frozen=True)
class Marginal:
    """The posterior of one parameter.

    Parameters
    ----------
    mean, low, median, high
        Of a number; ``low`` and ``high`` are the ends of the 95 % interval. None: the parameter is not a number.
    shares
        The probability of each value, the most likely first, if the parameter is not a number.
    """

    parameter: str
    mean: float | None
    low: float | None
    median: float | None
    high: float | None
    shares: dict[str, float]


@dataclass(frozen=True)
class Calibration:
    """The rounds of a calibration that have ended.

    Parameters
    ----------
    record, scoring
        What the calibration fits, and how the last call weighs its sets.
    space
        The space: the prior of each parameter.
    rounds
        The rounds that have ended, comparable by the losses that count.
    weights
        The posterior weight of each set; None: it has failed, or the method is an optimiser.
    stopped
        The job in which the calibration was stopped; None: all rounds have ended that the call asked for.
    """

    records: CalibrationRecords
    record: CalibrationRecord
    space: Space
    scoring: Scoring
    rounds: Sequence[Round] = ()
    weights: Sequence[float | None] = ()
    stopped: str | None = None

    def __repr__(self) -> str:
        rounds, sets = counted(len(self.rounds), "round"), f"{self.n_scored:,} sets scored, {self.n_failed:,} failed"
        return f"{type(self).__name__}({self.name!r}, method={self.method.value!r}, {rounds}, {sets})"

    def with_rounds(self, rounds: Sequence[Round], stopped: str | None = None) -> Calibration:
        """Return the calibration with these rounds and the weights of their sets."""
        found = replace(self, rounds=rounds, stopped=stopped)
        return replace(found, weights=found.fitting.weights(rounds)) if rounds else found

    @property
    def fitting(self) -> Fitting:
        """The method with its options."""
        seed = self.record.seed
        if self.method is Method.IMPORTANCE:
            return ImportanceResampling(self.space, seed, self.loss, self.scoring.temperature)
        if self.method is Method.ABC:
            return AbcSmc(self.space, seed, self.loss)
        return Optimiser(self.space, self.method, seed, self.loss, self.objectives)

    @property
    def name(self) -> str:
        """The name of the calibration."""
        return self.records.name

    @property
    def storage(self) -> str:
        """The storage of the records and of the rounds' jobs."""
        return self.records.files.url

    @property
    def method(self) -> Method:
        """How mops chooses sets."""
        return Method(self.record.method)

    @property
    def loss(self) -> TotalLoss:
        """The weighted sum of the losses."""
        return TotalLoss(self.scoring.weights)

    @property
    def objectives(self) -> tuple[str, ...]:
        """The losses that are objectives by themselves; empty: the total loss is the only objective."""
        return self.scoring.objectives

    @property
    def least_ess(self) -> float:
        """The smallest effective sample size for a posterior."""
        return self.scoring.ess

    @property
    def varying(self) -> tuple[str, ...]:
        """The parameters that are fitted."""
        return tuple(varying(self.space))

    @property
    def n_failed(self) -> int:
        """The number of sets without a loss, because a simulation or a target has failed."""
        return sum(outcome.failure is not None for outcome in outcomes_of(self.rounds))

    @property
    def n_scored(self) -> int:
        """The number of sets with a loss."""
        return sum(1 for _ in outcomes_of(self.rounds)) - self.n_failed

    @cached_property
    def ess(self) -> float:
        """The effective sample size: how many draws of the posterior tell as much.

        Trials that share a simulation count as one.
        """
        return sample_size(self.weights, self.rounds)

    @property
    def has_weights(self) -> bool:
        """Whether a set has a posterior weight: the method gives them, and a set has losses."""
        return any(weight is not None for weight in self.weights)

    @property
    def has_posterior(self) -> bool:
        """Whether the effective sample size is large enough for a posterior."""
        return self.has_weights and self.ess >= self.least_ess

    @property
    def is_rough(self) -> bool:
        """Whether there are weights, but the effective sample size is too small for a posterior."""
        return self.has_weights and not self.has_posterior

    def trials(self) -> pa.Table:
        """Return all parameter sets in the order in which mops asked for them.

        Returns
        -------
        pyarrow.Table
            A row for each set: ``round`` (int32), ``job`` (string), ``param_id`` (string), ``failure`` (string: the
            verdict, null for a set with losses), ``loss`` (float64, the weighted sum), ``weight`` (float64, the
            posterior weight; all together are 1), a column for each loss (float64), then a column for each parameter.
            Losses and weights of failed sets are null, and all weights if the method is an optimiser. A parameter with
            the name of a column before it is called ``param.NAME``.
        """
        outcomes = list(outcomes_of(self.rounds))
        asked = [each for each in self.rounds for _ in each.sets]
        columns = {
            "round": pa.array([each.k for each in asked], pa.int32()),
            "job": pa.array([each.job for each in asked], pa.string()),
            "param_id": pa.array(map(param_id, self._sets()), pa.string()),
            "failure": pa.array([outcome.failure for outcome in outcomes], pa.string()),
            "loss": pa.array(map(self.loss.of, outcomes), pa.float64()),
            "weight": pa.array(self.weights, pa.float64()),
        }
        for label in labels_of(self.rounds):
            columns[label] = pa.array([outcome.losses.get(label) for outcome in outcomes], pa.float64())
        return _with_parameters(columns, self._sets())

    def fitted(self) -> pa.Table:
        """Return the fitted parameters of each trial: a column for each, with the name of the parameter."""
        return pa.table({name: column_of([each[name] for each in self._sets()]) for name in self.varying})

    def best(self, n: int = 10) -> pa.Table:
        """Return the ``n`` trials with the smallest total loss, the best first; the columns are those of trials."""
        trials = self.trials()
        return trials.filter(pc.is_valid(trials["loss"])).sort_by("loss")[:n]

    def pareto(self) -> pa.Table:
        """Return the Pareto set: the trials that no other trial beats in all objectives.

        A trial beats another if none of its losses is larger and one is smaller. With one objective, these are the
        trials with the smallest total loss. The columns are those of :meth:`trials`, and the order is that of the first
        objective.
        """
        return self.trials().take(pa.array(self.pareto_places(), pa.int64()))

    def pareto_places(self) -> list[int]:
        """Return the places of the Pareto set among the trials, in the order of the first objective."""
        outcomes = list(outcomes_of(self.rounds))
        scored = [place for place, outcome in enumerate(outcomes) if outcome.failure is None]
        labels = self.objectives
        losses = np.array(
            [
                [outcomes[place].losses[label] for label in labels] if labels else [self.loss.of(outcomes[place])]
                for place in scored
            ],
            dtype=float,
        )
        found: list[int] = []
        for place in np.lexsort(losses.T[::-1]).tolist() if scored else ():
            row = losses[place]
            if not np.any(np.all(losses <= row, axis=1) & np.any(losses < row, axis=1)):
                found.append(scored[place])
        return found

    def posterior(self, n: int = 1000, *, seed: int = 0) -> pa.Table:
        """Draw parameter sets from the posterior: sets of the trials, each as often as its weight says.

        Parameters
        ----------
        n
            The number of draws.
        seed
            The same seed gives the same draws.

        Returns
        -------
        pyarrow.Table
            A row for each draw: ``draw`` (int32), ``job`` and ``param_id`` (string), then a column for each parameter.
            The job has the outputs of the set.

        Raises
        ------
        UsageError
            ``n`` is below 1 or above 10,000,000.
        JobError
            The effective sample size is too small, or the method is an optimiser.
        """
        check_n_sets(n, "n")
        self._check_weights()
        if self.is_rough:
            sizes = f"{self.ess:.3g} is too small for a posterior ({self.least_ess:g} is the least)"
            raise JobError(
                f"an effective sample size of {sizes}" + (f": {self.why_rough}" if self.why_rough else ""),
                where=f"calibration {self.name!r}",
                hint="add rounds: repeat the command with a larger --rounds",
            )
        # Systematic resampling: of all schemes, the one with the least noise that keeps the weights (Kitagawa 1996).
        steps = (np.arange(n) + np.random.default_rng(seed).random()) / n
        ends = np.cumsum(self._weights())
        chosen = np.searchsorted(ends / ends[-1], steps, side="right")
        sets, jobs = self._sets(), [each.job for each in self.rounds for _ in each.sets]
        drawn = [sets[i] for i in chosen]
        columns = {
            "draw": pa.array(range(n), pa.int32()),
            "job": pa.array([jobs[i] for i in chosen], pa.string()),
            "param_id": pa.array(map(param_id, drawn), pa.string()),
        }
        return _with_parameters(columns, drawn)

    @property
    def why_rough(self) -> str:
        """Why the effective sample size is small, if trials share simulations; empty: they do not."""
        draws = draws_that_tell(self.rounds)
        n, n_simulations, n_trials = n_different_sets(self.space), len(np.unique(draws)), len(draws)
        if n is None or n_simulations == n_trials:
            return ""
        shared = f"{n_trials:,} trials share {counted(n_simulations, 'simulation')}"
        return f"{shared}, because the space has {counted(n, 'different set')} and a round simulates each once"

    def _check_weights(self) -> None:
        if not self.method.gives_posterior:
            raise JobError(
                f"the method '{self.method}' searches for the smallest loss and gives no posterior",
                where=f"calibration {self.name!r}",
                hint="use the trials, or begin a calibration with the method importance or abc",
            )
        if not self.has_weights:
            raise JobError(
                "no set has a loss, so there is no posterior",
                where=f"calibration {self.name!r}",
                hint="find out why: mops jobs failures JOB, with the job of a round",
            )

    def marginals(self) -> list[Marginal]:
        """Return the posterior of each fitted parameter.

        If :attr:`is_rough`, the effective sample size is too small, and the intervals are probably too narrow.

        Raises
        ------
        JobError
            No set has a weight: all have failed, or the method is an optimiser.
        """
        self._check_weights()
        weights = self._weights()
        return [_marginal(name, [each[name] for each in self._sets()], weights) for name in self.varying]

    def _sets(self) -> list[dict[str, Any]]:
        return [params for each in self.rounds for params in each.sets]

    def _weights(self) -> Floats:
        return np.array([weight or 0.0 for weight in self.weights])


def _with_parameters(columns: dict[str, pa.Array], sets: Sequence[dict[str, Any]]) -> pa.Table:
    table = pa.table(columns)
    names = free_names(list(sets[0]), columns) if sets else {}
    for name, shown in names.items():
        table = table.append_column(shown, column_of([params[name] for params in sets]))
    return table


def _marginal(name: str, values: Sequence[Any], weights: Floats) -> Marginal:
    if isinstance(values[0], bool | str):
        shares = {str(value): 0.0 for value in values}
        for value, weight in zip(values, weights.tolist(), strict=True):
            shares[str(value)] += weight
        return Marginal(name, None, None, None, None, dict(sorted(shares.items(), key=lambda share: -share[1])))
    numbers = np.array(values, dtype=float)
    at = (INTERVAL[0], 0.5, INTERVAL[1])
    low, median, high = np.quantile(numbers, at, weights=weights, method="inverted_cdf").tolist()
    return Marginal(name, float(weights @ numbers), low, median, high, {})
