"""The time of a slot for each simulation, from samples: mops does not store the time of each simulation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mops.figures.columns import numbers


@dataclass(frozen=True)
class SlotTime:
    """How long a slot was busy for a simulation.

    Parameters
    ----------
    table
        A row for each point of a timeline with a rate above 0: ``attempt`` (int32), ``running_seconds``, ``seconds``
        (float64): the slots divided by the rate.
    mean
        The same over all points: the sum of slots times the simulations of each point, divided by these. NaN: no point.
    """

    table: pa.Table
    mean: float

    @property
    def caption(self) -> str:
        """The caption of the figure."""
        return (
            f"The slots divided by the rate: how long a slot was busy for a simulation, with the work of mops and "
            f"with waits. On average {self.mean:.3g} s. mops does not store the time of each simulation."
        )


def slot_time(points: pa.Table) -> SlotTime:
    """Return how long a slot was busy for a simulation.

    Parameters
    ----------
    points
        Those of :class:`mops.figures.timeline.Timeline`.
    """
    rates, slots = numbers(points["rate"]), numbers(points["slots"])
    counts = np.flatnonzero((rates > 0) & (slots > 0))
    seconds = slots[counts] / rates[counts]
    taken = points.select(["attempt", "running_seconds"]).take(pa.array(counts))
    # Each point stands for about as many samples as the next, so its simulations are proportional to samples * rate.
    n = rates[counts] * numbers(points["samples"])[counts]
    mean = float((seconds * n).sum() / n.sum()) if len(counts) else float("nan")
    return SlotTime(taken.append_column("seconds", pa.array(seconds, pa.float64())), mean)
