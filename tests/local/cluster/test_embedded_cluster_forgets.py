"""The embedded cluster keeps nothing of the tasks that are over."""

import gc
import threading

from distributed.spans import Span

from mops.cluster.embedded import EmbeddedCluster, start_embedded


class Payload:
    """Stands for the groups of an order."""


def _take(payload: Payload) -> None:
    assert isinstance(payload, Payload)


def test_what_tasks_were_given_does_not_pile_up_in_dasks_log_of_messages() -> None:
    """Dask keeps the last thousand messages of each stream unless told otherwise: 50 MiB of groups."""
    with start_embedded("forgets", 2) as cluster:
        for n in range(60):
            cluster.client.submit(_take, Payload(), key=f"sim-forgets-{n}", pure=False).result()
        gc.collect()
        kept = sum(isinstance(found, Payload) for found in gc.get_objects())
    assert kept <= 30  # ten of each stream, and not 120


_over = threading.Event()


def _wait() -> None:
    _over.wait(60.0)


def test_dask_notes_nothing_of_a_task_for_good() -> None:
    """Its spans keep a dictionary of each submission as long as any task is in flight: with a window, always."""
    with start_embedded("notes", 2) as cluster:
        in_flight = cluster.client.submit(_wait, key="sim-notes-in-flight", pure=False)
        try:
            for n in range(60):
                cluster.client.submit(_take, Payload(), key=f"sim-notes-{n}", pure=False).result()
            noted = sum(len(span.metadata["collections"]) for span in _spans(cluster))
        finally:
            _over.set()
        in_flight.result()
    assert noted <= 1


def _spans(cluster: EmbeddedCluster) -> list[Span]:
    extension = cluster.client.cluster.scheduler.extensions.get("spans")
    return list(extension.spans.values()) if extension else []
