"""Which seeds the sets of a round have, and which trials share a simulation.

Equal sets of one round are one group of its job, so they share a simulation with its replicates. In another round, an
equal set has other seeds. If that never changed a loss, the model is deterministic: then a set keeps its seeds, and its
job takes the simulations of the earlier round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mops.calibration.unit_cube import effective_sample_size
from mops.storage.calibration_records import Asked, Outcome, Round
from mops.study.ids_and_seeds import param_id, round_seed
from mops.study.sampling.draw import Floats

# So many repeats of sets with other seeds must all have had the same losses before a model counts as deterministic. A
# loss of a few possible values is often equal by chance: of a model with two policies, each with the same loss in 70 %
# of its simulations, 4 repeats are all equal in 1 of 7 calibrations, and 12 repeats in 1 of 150.
LEAST_REPEATS = 12

Counts = npt.NDArray[np.int64]


def entries_of(
    asked: Asked,
    seed: int,  # of the calibration
    n_replicates: int,
) -> list[dict[str, Any]]:
    """Return the parameter sets of a round's job: each different set once for each replicate, with its seed."""
    different = dict(zip(asked.param_ids, asked.sets, strict=True))
    return [
        {"params": params, "seed": round_seed(identity, seed, asked.seeds_of_round(identity), replicate)}
        for identity, params in different.items()
        for replicate in range(n_replicates)
    ]


def kept_seeds(history: Sequence[Round], sets: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the earlier round whose seeds a set of the next round keeps, by its param_id; empty: all get new seeds."""
    if not is_deterministic(history):
        return {}
    earlier: dict[str, int] = {}
    for identity, k, outcome in _simulated(history):
        if outcome.failure is None:
            earlier.setdefault(identity, k)
    return {identity: earlier[identity] for identity in map(param_id, sets) if identity in earlier}


def is_deterministic(history: Sequence[Round]) -> bool:
    """Tell whether the seeds have no effect: all repeats of sets with other seeds had the same losses."""
    # A set that failed tells nothing.
    losses: dict[str, dict[int, dict[str, float]]] = {}
    for identity, k, outcome in _simulated(history):
        if outcome.failure is None:
            losses.setdefault(identity, {})[k] = outcome.losses
    equal = [later == first for first, *others in (list(each.values()) for each in losses.values()) for later in others]
    return len(equal) >= LEAST_REPEATS and all(equal)


def draws_that_tell(history: Sequence[Round]) -> Counts:
    """Return a number for each trial. Trials with the same number share a simulation, and count as one."""
    # If the model is deterministic, each trial has another number: its loss has no randomness that trials could share.
    numbers: dict[tuple[str, int], int] = {}
    shared = [numbers.setdefault((identity, k), len(numbers)) for identity, k, _ in _simulated(history)]
    return np.arange(len(shared)) if is_deterministic(history) else np.array(shared, np.int64)


def pooled_sample_size(
    weights: Floats,
    draws: Counts,  # from `draws_that_tell`
) -> float:
    """Return the effective sample size, after the weights of trials that share a simulation are added."""
    pooled: Floats = np.bincount(draws, weights).astype(np.float64)
    return effective_sample_size(pooled)


def _simulated(history: Sequence[Round]) -> Iterator[tuple[str, int, Outcome]]:
    """Yield for each trial its param_id, the round whose seeds it has, and its outcome."""
    for each in history:
        for identity, outcome in zip(each.asked.param_ids, each.told.outcomes, strict=True):
            yield identity, each.asked.seeds_of_round(identity), outcome
