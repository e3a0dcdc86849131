"""Targets of every kind, for an output `daily` with the column `infected`, as `counted.py` returns it."""

import functools
import math
from dataclasses import dataclass

import numpy as np
import polars as pl


def number(params, replicates):
    """Return one number: the peak, averaged over replicates."""
    return float(np.mean(peaks(replicates)))


def mapping(params, replicates):
    """Return several losses by name."""
    return {"lowest": float(min(peaks(replicates))), "highest": float(max(peaks(replicates)))}


def replicates_only(replicates):
    """Do without the parameters."""
    return len(replicates)


def numpy_number(params, replicates):
    """Return numpy's idea of a number."""
    return np.float32(np.mean(peaks(replicates)))


def parameters(params, replicates):
    """Score the parameters themselves."""
    return params["beta"] * 10


def order(params, replicates):
    """Depend on the order of the replicates: only in replicate order is this the loss that was asked for."""
    return sum(position * peak for position, peak in enumerate(peaks(replicates), start=1))


def loss_nan(params, replicates):
    """Return what is no loss."""
    return math.nan


def loss_text(params, replicates):
    """Return what is no number."""
    return "good"


def raising(params, replicates):
    """Fail."""
    raise ZeroDivisionError("nobody was tested")


def exiting(params, replicates):
    """Leave."""
    raise SystemExit(3)


def peaks(replicates):
    """Return each replicate's highest number of infected; what comes in must be pyarrow tables."""
    return [int(replicate["daily"].column("infected").to_numpy().max()) for replicate in replicates]


# --- as calabaria makes them: decorated factories of objects with `evaluate` ---


@dataclass(frozen=True)
class LossResult:
    """What a target scored by a loss function returns."""

    name: str
    loss: float


@dataclass(frozen=True)
class LikelihoodResult:
    """What a target scored by a likelihood returns: one log likelihood for each replicate, and no `loss`."""

    name: str
    loglik_per_rep: np.ndarray


@dataclass(frozen=True)
class Target:
    """A model's output, the data to compare it with, and how."""

    model_output: str
    data: pl.DataFrame
    evaluation: object

    def evaluate(self, replicated_outputs):
        """Score a list of {output: polars frame}."""
        frames = [outputs[self.model_output] for outputs in replicated_outputs]
        if not all(isinstance(frame, pl.DataFrame) for frame in frames):
            raise TypeError("a calabaria target is made for polars frames")
        return self.evaluation([frame.join(self.data, on="day") for frame in frames])


def calibration_target(model_output, data):
    """Register a factory; what is left of it can be called without arguments."""

    def decorate(factory):
        @functools.wraps(factory)
        def make():
            return factory(data)

        make.model_output = model_output
        return make

    return decorate


OBSERVED = {"day": [10, 20, 30], "observed": [800, 950, 10]}


@calibration_target(model_output="daily", data={"observed": OBSERVED})
def squared_error(data_paths):
    """Return a target whose result has `.loss`."""

    def mean_squared_error(aligned):
        errors = [((frame["infected"] - frame["observed"]) ** 2).mean() for frame in aligned]
        return LossResult(name="squared_error", loss=float(np.mean(errors)))

    return Target("daily", pl.DataFrame(data_paths["observed"]), mean_squared_error)


@calibration_target(model_output="daily", data={"observed": OBSERVED})
def poisson_likelihood(data_paths):
    """Return a target whose result has `.loglik_per_rep`."""

    def log_likelihoods(aligned):
        return LikelihoodResult(name="poisson", loglik_per_rep=np.array([poisson(frame) for frame in aligned]))

    return Target("daily", pl.DataFrame(data_paths["observed"]), log_likelihoods)


def poisson(frame):
    """Poisson log likelihood of the observations: below -1,000, where `exp` of it is zero."""
    expected = frame["infected"].to_numpy() + 0.5
    observed = frame["observed"].to_numpy()
    log_factorials = np.array([math.lgamma(count + 1) for count in observed])
    return float((observed * np.log(expected) - expected - log_factorials).sum())
