"""Serves the metrics of a runner to Prometheus: its job, and with an embedded cluster its child processes.

The collectors read what the runner knows when Prometheus scrapes. docs/reference/metrics.md explains each metric;
:mod:`mops.worker.metrics` has those of workers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from mops.attempt.main_loop import MainLoop
from mops.system.every_address import every_address
from mops.system.process_memory import resident_bytes
from mops.system.resources import allowed_bytes
from mops.verdicts import VERDICTS
from mops.worker.metrics import MetricFamilies, PoolCollector
from mops.worker.run_task import pools

logger = logging.getLogger(__name__)


class JobCollector(Collector):
    """Collects the metrics of an attempt."""

    def __init__(self, attempt: int, runner: MainLoop):
        self._attempt, self._runner = attempt, runner

    def describe(self) -> list[Metric]:
        """Return nothing, so that the registry does not collect to find out the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        seen, committer = self._runner.look(), self._runner.committer
        families = MetricFamilies(mops_job=seen.job)
        ended = {verdict: seen.ended.get(verdict, 0) for verdict in ("good", *VERDICTS)}
        yield families.counter_by("mops_simulations", "Simulations that have reached the runner.", "verdict", ended)
        targets = {
            "good": seen.finished.targets_good - seen.inherited.targets_good,
            "failed": seen.finished.targets_failed - seen.inherited.targets_failed,
        }
        yield families.counter_by("mops_targets", "Targets that have reached the runner.", "verdict", targets)
        yield families.counter("mops_groups_committed", "Parameter sets made durable.", seen.n_groups_committed)
        yield families.counter("mops_written_bytes", "Bytes of Parquet parts stored.", committer.written_bytes)
        yield families.gauge("mops_groups_in_flight", "Parameter sets in flight.", seen.in_flight)
        yield families.gauge("mops_window_groups", "The most parameter sets that may be in flight now.", seen.window)
        yield families.gauge("mops_slots", "Simulations that run at once.", seen.slots)
        help_text = "Age of the oldest finished parameter set that is not durable; 0: all are."
        yield families.gauge("mops_checkpoint_lag_seconds", help_text, committer.pending.lag_s)
        help_text = "Bytes of results that are finished and not durable."
        yield families.gauge("mops_checkpoint_bytes", help_text, committer.pending.bytes)
        help_text = "Resident memory of the runner's process, and of its process tree."
        sizes = {"process": resident_bytes(), "tree": seen.memory_bytes}
        yield families.gauge_by("mops_memory_bytes", help_text, "of", sizes)
        help_text = "Memory limit of the runner's process tree, from its cgroup and the machine."
        yield families.gauge("mops_memory_limit_bytes", help_text, allowed_bytes())
        yield families.gauge("mops_job_attempt", "The attempt's number.", self._attempt)
        yield families.gauge("mops_job_groups", "Parameter sets of the job.", seen.n_groups)
        help_text = "Parameter sets that any attempt has committed."
        yield families.gauge("mops_job_groups_durable", help_text, seen.n_groups_durable)
        yield families.gauge("mops_job_simulations", "Simulations of the job.", seen.total)
        help_text = "Simulations that any attempt has committed."
        yield families.gauge("mops_job_simulations_durable", help_text, seen.durable.simulations)


@contextmanager
def serving_metrics(port: int | None, attempt: int, runner: MainLoop, *, has_children: bool) -> Iterator[None]:
    """Serve a runner's metrics while the body runs; with those of its child processes, if it has any."""
    if port is None:
        yield
        return
    collectors: list[Collector] = [JobCollector(attempt, runner)]
    if has_children:
        collectors.append(PoolCollector(pools))
    with serving(port, runner.look().job, collectors):
        yield


@contextmanager
def serving(port: int, job: str, collectors: Sequence[Collector]) -> Iterator[None]:
    """Serve collectors and this process's own metrics over HTTP. A port that cannot be opened is logged."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    for collector in collectors:
        registry.register(collector)
    try:
        server, thread = start_http_server(port, every_address(), registry)
    except OSError as refused:
        message = "%s: metrics are not served: cannot open port %d (MODELOPS_METRICS_PORT): %s"
        logger.warning(message, job, port, refused)
        yield
        return
    logger.info("%s: metrics are served at port %d, path /metrics", job, server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
