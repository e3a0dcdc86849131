"""The embedded cluster keeps nothing of the tasks that are over."""

import gc

from mops.driver.cluster import embedded


class Payload:
    """Stands for the groups of an order."""


def _take(payload: Payload) -> None:
    assert isinstance(payload, Payload)


def test_what_tasks_were_given_does_not_pile_up_in_dasks_log_of_messages() -> None:
    """Dask keeps the last thousand messages of each stream unless told otherwise: 50 MiB of groups."""
    with embedded("forgets", 2) as cluster:
        for n in range(60):
            cluster.client.submit(_take, Payload(), key=f"sim-forgets-{n}", pure=False).result()
        gc.collect()
        kept = sum(isinstance(found, Payload) for found in gc.get_objects())
    assert kept <= 30  # ten of each stream, and not 120
