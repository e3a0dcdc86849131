"""Prometheus metrics of a process with children: collectors that read what the pools know at each scrape.

Imported only if prometheus_client is installed: a worker's interpreter may lack it and runs jobs all the same.
docs/reference/metrics.md says what the metrics mean.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mops.system import resources
from mops.system.process_memory import resident_bytes
from mops.worker.pool import Pool
from mops.worker.results import held_bytes
from mops.worker.slots import counts


class MetricFamilies:
    """Makes metrics that have some labels in common."""

    def __init__(self, **labels: str):
        self._labels = labels

    def gauge(self, name: str, help_text: str, value: float) -> Metric:
        """Return a gauge of one value."""
        return self._filled(GaugeMetricFamily, name, help_text, {(): value})

    def gauge_by(self, name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
        """Return a gauge with a value for each value of another label."""
        return self._filled(GaugeMetricFamily, name, help_text, {(key,): value for key, value in values.items()}, label)

    def counter(self, name: str, help_text: str, value: float) -> Metric:
        """Return a counter of one value."""
        return self._filled(CounterMetricFamily, name, help_text, {(): value})

    def counter_by(self, name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
        """Return a counter with a value for each value of another label."""
        return self._filled(CounterMetricFamily, name, help_text, {(k,): value for k, value in values.items()}, label)

    def _filled(
        self,
        kind: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        help_text: str,
        values: Mapping[tuple[str, ...], float],
        *more: str,
    ) -> Metric:
        family = kind(name, help_text, labels=[*self._labels, *more])
        for keys, value in values.items():
            family.add_metric([*self._labels.values(), *keys], value)
        return family


_PLAIN = MetricFamilies()


class PoolCollector(Collector):
    """The children of this process."""

    def __init__(self, pools: Callable[[], Iterable[Pool]]):  # those that there are now
        self._pools = pools

    def describe(self) -> list[Metric]:
        """Return nothing, so that a registry does not collect only for the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the present values."""
        pools = list(self._pools())
        busy, idle = map(sum, zip((0, 0), *(pool.slots.busy_and_idle() for pool in pools), strict=True))
        help_text = "Child processes of this process."
        yield _PLAIN.gauge_by("mops_children", help_text, "state", {"busy": busy, "idle": idle})
        started, replaced = counts()
        help_text = "Child processes started, since this process began."
        yield _PLAIN.counter_by("mops_children_started", help_text, "how", started)
        help_text = "Child processes that made room for a fresh one, since this process began."
        yield _PLAIN.counter_by("mops_children_replaced", help_text, "reason", replaced)
        own = resident_bytes()
        sizes = {"process": own, "tree": own + (pools[0].slots.worker.resident_bytes() if pools else 0)}
        help_text = "Resident memory of this process, and of the tree with all children; shared pages count in each."
        yield _PLAIN.gauge_by("mops_worker_memory_bytes", help_text, "of", sizes)
        if pools:
            limit = min(pool.allowed_bytes for pool in pools)
            help_text = "Memory that this process and its children may use."
            yield _PLAIN.gauge("mops_worker_memory_limit_bytes", help_text, limit)
        help_text = "Bytes of results read from children and not fetched yet."
        yield _PLAIN.gauge("mops_worker_held_bytes", help_text, held_bytes())
        if (kills := resources.oom_kills()) is not None:
            help_text = "Processes of this cgroup that the kernel has killed for memory."
            yield _PLAIN.counter("mops_worker_oom_kills", help_text, kills)


@functools.cache
def expose(pools: Callable[[], Iterable[Pool]]) -> None:
    """Add the children, once, to this process's default registry, which Dask's /metrics publishes."""
    REGISTRY.register(PoolCollector(pools))
