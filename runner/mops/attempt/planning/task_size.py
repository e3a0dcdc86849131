"""How much one task runs."""

from __future__ import annotations

import math

TASKS_PER_SLOT = 4
"""Tasks in flight for each slot: enough that none waits for the runner; the rest of the window would only queue."""

PIECES_PER_SLOT = 2
"""The same for pieces of groups, which are longer, and whose groups are to be half done in small numbers."""

WINDOW_PER_SLOT = 2.0
"""Tasks that a window of short groups is divided into at least, for each slot: one runs, the next one is there."""

WINDOW_PER_EMBEDDED_SLOT = 1.5
"""The same where the runner computes beside the simulations: the fewer tasks, the more is left for these (a task takes
it about 7 ms of CPU with cold caches, whatever it holds), and the next one is there in a few milliseconds."""

MIN_TASK_SECONDS = 0.1
"""Near a job's end tasks shrink, but not below this: neither are short groups fused into less, nor is a group that
takes less cut in pieces. It would be the last two groups or so of each slot that were cut, each into three tasks and
more that cost the runner 7 ms, with a gap between a group's last simulation and its targets. With groups of 60 ms on
two slots a job's end lost 90 ms of slot time at 0.03, 65 at 0.1, and the job had 34 tasks instead of 20."""


def task_budget_s(*, task_seconds: float, left_s: float, slots: int) -> float:
    """Return how many seconds of work a task should hold.

    About ``task_seconds``, and near the job's end a share of what is left, so that slots finish together (guided
    self-scheduling, Polychronopoulos and Kuck 1987).

    Parameters
    ----------
    left_s
        Work that is not sent yet, in seconds on one slot.
    """
    return min(task_seconds, max(left_s / (2 * slots), MIN_TASK_SECONDS))


def least_tasks(slots: int, per_slot: float) -> int:
    """Return the tasks that a window is divided into at least."""
    return math.ceil(per_slot * slots)


def piece_size(n_left: int, seconds_per_simulation: float | None, budget_s: float) -> int:
    """Return how many of a long group's replicates one task runs: even pieces of about the budget, at least one."""
    if seconds_per_simulation is None:
        return 1
    most = max(1, int(budget_s / max(seconds_per_simulation, 1e-9)))
    return math.ceil(n_left / math.ceil(n_left / most))
