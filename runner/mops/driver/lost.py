"""What becomes of work that took down the workers that ran it: sent in ever smaller orders, until one simulation is it.

Cutting the orders is :mod:`mops.driver.plan`'s.
"""

from __future__ import annotations

from collections.abc import Callable

from mops.driver.plan import Submit
from mops.worker.order import Failure, Order, Outcome
from mops.worker.work import no_losses


def is_single(submit: Submit, n_replicates: Callable[[int], int]) -> bool:
    """Tell whether an order cannot be made smaller: one simulation, or one group's targets."""
    if submit.replicates is not None:
        return len(submit.replicates) <= 1
    return len(submit.groups) == 1 and n_replicates(submit.groups[0]) == 1


def given_up(order: Order, why: str, attempts: int) -> Outcome:
    """Return the outcome of an order that cannot be made smaller and is not sent again: ``lost``."""
    (group,), targets = order.groups, order.context.targets
    if order.replicates == ():
        failures = [Failure(group.index, None, None, target, "lost", why, "", attempts) for target in targets]
    else:
        replicate = order.replicates[0] if order.replicates else 0
        failures = [Failure(group.index, replicate, group.seeds[replicate], None, "lost", why, "", attempts)]
        if targets and order.replicates is None:
            failures.append(no_losses(failures))
    return Outcome(
        keys=order.keys,
        done=frozenset() if order.replicates else frozenset({group.index}),
        replicates=frozenset(order.replicates or ()),
        seconds=0.0,
        reference=order.reference,
        failures=failures,
    )
