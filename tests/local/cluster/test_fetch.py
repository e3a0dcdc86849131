"""Results are fetched together; a lost worker or task costs only its own results. Scheduler and workers are real."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import CancelledError, Client, Future, LocalCluster

from mops.cluster.dask_calls import DaskCalls
from mops.cluster.external import fetched


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False, direct_to_workers=True) as connected,
    ):
        yield connected


def finished(client: Client, values: list[int], workers: list[str] | None = None) -> list[Future[Any]]:
    futures = [client.submit(int, n, pure=False, workers=workers) for n in values]
    client.gather(futures)
    return futures


def raising(value: int) -> int:
    raise ZeroDivisionError(value)


def test_results_of_all_workers_come_together(client: Client) -> None:
    futures = finished(client, [0, *range(1, 20)])
    (outcomes,) = fetched(DaskCalls(client), futures, lambda _: False)
    assert dict(outcomes) == dict(zip(futures, range(20), strict=True))


def test_a_result_that_is_lost_has_its_error_and_the_others_come(client: Client) -> None:
    first, second = finished(client, [1, 2])
    failed = client.submit(raising, 3, pure=False)
    failed.exception()
    outcomes = dict(
        outcome for some in fetched(DaskCalls(client), [first, failed, second], lambda _: False) for outcome in some
    )
    assert (outcomes[first], outcomes[second]) == (1, 2)
    assert isinstance(outcomes[failed], ZeroDivisionError)


def test_a_worker_that_does_not_answer_holds_up_only_its_own_results(client: Client) -> None:
    silent, other = client.run(os.getpid).items()
    futures = [*finished(client, [1], [silent[0]]), *finished(client, [2], [other[0]])]
    came: dict[Future[Any], Any] = {}
    os.kill(silent[1], signal.SIGSTOP)
    try:
        fetching = fetched(DaskCalls(client), futures, lambda _: bool(came))
        came.update(next(fetching))
        assert came == {futures[1]: 2}
        came.update(next(fetching))
    finally:
        os.kill(silent[1], signal.SIGCONT)
    assert isinstance(came[futures[0]], CancelledError), "the fetch is given up"
