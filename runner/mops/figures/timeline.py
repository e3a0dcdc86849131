"""The progress, rate and memory of a job over time, from its samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mops.figures.columns import Floats, Integers

MOST_POINTS = 500


@dataclass(frozen=True)
class Timeline:
    """A job over time."""

    # At most about 500 rows, in the order of time. A row stands for ``samples`` consecutive samples of one attempt:
    # ``time`` (ms, UTC), ``simulations`` (finished so far), ``failed``, ``durable`` (committed) of the last sample;
    # ``seconds`` since the first sample of the job; ``running_seconds`` without the pauses between attempts; ``rate``
    # is the mean of their rates, in simulations per second (null: the only sample is the first of its attempt, before
    # which no time has passed); ``memory_bytes`` (the runner with all its processes) and ``runner_bytes`` (the runner
    # alone), resident, are the greatest of the samples.
    points: pa.Table
    starts: Floats  # the ``running_seconds`` of the first sample of each attempt with samples
    n_simulations: int  # of the whole job
    limit_bytes: int | None = None  # of the container or of the machine of the runner


def timeline(samples: pa.Table, n_simulations: int, limit_bytes: int | None = None) -> Timeline:
    """Return a job over time, from the samples of ``Job.samples``, in the order of time."""
    attempt = _integers(samples, "attempt")
    times = _integers(samples, "time")
    seconds = (times - times[0]) / 1000 if len(times) else np.empty(0)
    running = _without_pauses(seconds, attempt)
    starts = np.flatnonzero(np.diff(attempt, prepend=-1))
    first, last = _runs(attempt, starts)
    simulations = _integers(samples, "simulations_good") + _integers(samples, "simulations_failed")
    points = {
        "attempt": pa.array(attempt[last], pa.int32()),
        "time": samples["time"].take(pa.array(last)),
        "seconds": pa.array(seconds[last]),
        "running_seconds": pa.array(running[last]),
        "simulations": pa.array(simulations[last]),
        "failed": samples["simulations_failed"].take(pa.array(last)),
        "durable": samples["durable"].take(pa.array(last)),
        "rate": _mean_rates(samples["rate"].to_numpy(), starts, first),
        "memory_bytes": pa.array(_greatest(_integers(samples, "memory_bytes"), first)),
        "runner_bytes": pa.array(_greatest(_integers(samples, "runner_bytes"), first)),
        "samples": pa.array(last - first + 1, pa.int32()),
    }
    return Timeline(pa.table(points), running[starts], n_simulations, limit_bytes)


def _integers(samples: pa.Table, name: str) -> Integers:
    found: Integers = samples[name].to_numpy().astype(np.int64)
    return found


def _without_pauses(seconds: Floats, attempt: Integers) -> Floats:
    """Return the seconds without those between attempts, and without steps back of a clock."""
    steps = np.diff(seconds, prepend=seconds[:1])
    steps[np.diff(attempt, prepend=attempt[:1]) != 0] = 0.0
    return np.cumsum(np.maximum(steps, 0.0))


def _runs(attempt: Integers, starts: Integers) -> tuple[Integers, Integers]:
    """Return the first and the last row of each point: equally many consecutive rows, of one attempt."""
    size = max(1, -(-len(attempt) // MOST_POINTS))
    ends = np.append(starts[1:], len(attempt))
    firsts = [np.arange(start, end, size) for start, end in zip(starts, ends, strict=False)]
    first = np.concatenate(firsts) if firsts else np.empty(0, np.int64)
    return first, np.append(first[1:], len(attempt))[: len(first)] - 1


def _mean_rates(rates: Floats, starts: Integers, first: Integers) -> pa.Array:
    """Return the mean rate of each point, without the first samples of attempts."""
    if not len(first):
        return pa.array([], pa.float64())
    counts = np.ones(len(rates))
    counts[starts] = 0
    n = np.add.reduceat(counts, first)
    means = np.add.reduceat(rates * counts, first) / np.maximum(n, 1)
    return pa.array(means, mask=n == 0)


def _greatest(values: Integers, first: Integers) -> Integers:
    return np.maximum.reduceat(values, first) if len(first) else np.empty(0, np.int64)
