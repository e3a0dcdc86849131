"""The Prometheus metrics of a runner, workers and a scheduler, scraped over HTTP while a real job runs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import psutil
import pytest
from dask_processes import DaskProcesses, dask_in, free_port
from distributed import Client
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from study_lab import StudyLab, betas, wait_for

import mops
from dashboard_lab import DASHBOARD, names_in, queries
from mops.attempt.metrics import serving
from mops.settings import Settings
from mops.storage.progress_record import Progress
from mops.system.resources import oom_kills
from mops.worker import slots

WARM_CHILDREN = True
SICK, REPLICATES = 1, 3
BAD = {"raises": "error", "segfault": "crashed", "returns_none": "invalid_output"}
"""The misbehaviour of the model in its sick replicate, and the expected verdict."""

Labels = frozenset[tuple[str, str]]


def scraped(port: int) -> list[Metric]:
    """Return the metrics of the process that listens at a port of this machine."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return list(text_string_to_metric_families(answer.read().decode()))


def values(families: list[Metric], name: str, **labels: str) -> dict[Labels, float]:
    """Return the values of a metric with these labels, by all their labels."""
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {frozenset(s.labels.items()): s.value for s in samples if labels.items() <= s.labels.items()}


def value(families: list[Metric], name: str, **labels: str) -> float:
    """Return the sum of a metric's values."""
    found = values(families, name, **labels)
    assert found, f"there is no {name} with {labels}"
    return sum(found.values())


def by(families: list[Metric], name: str, label: str) -> Counter[str]:
    """Return the values of a metric that are not 0, by the value of one label."""
    found: Counter[str] = Counter()
    for labels, n in values(families, name).items():
        found[dict(labels)[label]] += int(n)
    return +found


@dataclass
class Watch:
    """Scrapes a process repeatedly, and checks that no counter of mops decreases."""

    port: int
    seen: list[list[Metric]] = field(default_factory=list)
    counters: dict[tuple[str, Labels], float] = field(default_factory=lambda: defaultdict(float))

    def look(self, _: Progress | None = None) -> None:
        families = scraped(self.port)
        self.seen.append(families)
        ours = [family for family in families if family.name.startswith("mops_") and family.type == "counter"]
        for family in ours:
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert sample.value >= self.counters[key], f"{key} has fallen"
                self.counters[key] = sample.value

    @property
    def last(self) -> list[Metric]:
        return self.seen[-1]

    def highest(self, name: str) -> float:
        return max(value(families, name) for families in self.seen)


@dataclass
class Runs:
    """Runs jobs in this process, so that a scrape can come between the last commit and the end of the runner."""

    lab: StudyLab

    def submit(self, name: str = "job", **settings: Any) -> tuple[Watch, mops.Job]:
        """Run a study; return the last scrape of its runner, and the job."""
        watch = Watch(settings.setdefault("metrics_port", free_port()))
        look = settings.pop("look", watch.look)
        study, storage = self.lab.project / "study.json", str(self.lab.storage)
        job = mops.submit(study, storage=storage, name=name, settings=Settings(**settings), on_progress=look)
        return watch, job

    def resume(self, name: str = "job", **settings: Any) -> Watch:
        watch = Watch(settings.setdefault("metrics_port", free_port()))
        mops.resume(self.lab.job(name), settings=Settings(**settings), on_progress=watch.look)
        return watch


@pytest.fixture
def runs(lab: StudyLab, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setenv("XDG_CACHE_HOME", str(lab.folder / "cache"))
    for name in ("MODELOPS_SCHEDULER", "MODELOPS_STORAGE", "MOPS_TEST_CALLS", "MOPS_TEST_HOLD"):
        monkeypatch.delenv(name, raising=False)
    return Runs(lab)


def write_ill(lab: StudyLab) -> None:
    """Write a study with good sets, and with sets that each fail differently in one replicate."""
    good: list[dict[str, Any]] = [{"what": "good", "place": place, "sleep": 0.02} for place in range(12)]
    bad = [{"what": what, "place": 100 + at, "sick": SICK} for at, what in enumerate(BAD)]
    lab.write("sometimes:simulate", [*good, *bad], n_replicates=REPLICATES, targets=["scores:rows"])


def assert_as_the_status_says(families: list[Metric], job: mops.Job, lab: StudyLab) -> None:
    """Compare the last scrape of a job's only attempt with the storage."""
    status = job.status()
    ended = by(families, "mops_simulations_total", "verdict")
    assert ended.pop("good") == status.counts.simulations_good
    failed = Counter(row["reason"] for row in job.failures().to_arrow().to_pylist() if row["target"] is None)
    assert ended == failed
    assert failed.total() == status.counts.simulations_failed
    targets = by(families, "mops_targets_total", "verdict")
    assert (targets["good"], targets["failed"]) == (status.counts.targets_good, status.counts.targets_failed)
    assert value(families, "mops_written_bytes_total") == sum(size.bytes for size in lab.view(job.name).sizes.values())
    assert value(families, "mops_groups_committed_total") == status.groups
    assert value(families, "mops_job_groups_durable") == status.groups
    assert value(families, "mops_job_groups") == status.n_groups
    assert value(families, "mops_job_simulations") == status.n_simulations
    assert value(families, "mops_job_simulations_durable") == status.counts.simulations
    for name in ("mops_groups_in_flight", "mops_checkpoint_lag_seconds", "mops_checkpoint_bytes"):
        assert value(families, name) == 0, name


@pytest.mark.usefixtures("real_children")
@pytest.mark.timeout(180)
def test_an_embedded_runner_shows_its_job_and_its_children(lab: StudyLab, runs: Runs) -> None:
    write_ill(lab)
    before = Counter(slots.counts()[1])  # counts of other tests in this process
    watch, job = runs.submit(tasks_per_child=1, slots=2, checkpoint_seconds=1.0, task_seconds=0.1)
    assert_as_the_status_says(watch.last, job, lab)
    assert by(watch.last, "mops_simulations_total", "verdict") == {
        "good": 42,
        "error": 1,
        "invalid_output": 1,
        "crashed": 1,
    }
    replaced = by(watch.last, "mops_children_replaced_total", "reason")
    # Each simulation had its own process. The simulation that crashes had two, and both died.
    assert replaced - before == {"simulations": 44, "died": 2}
    assert value(watch.last, "mops_children_started_total") >= 46
    assert watch.highest("mops_groups_in_flight") > 0
    assert 0 < watch.highest("mops_checkpoint_lag_seconds") < 30
    assert value(watch.last, "mops_slots") == 2
    assert value(watch.last, "mops_window_groups") == 200
    assert value(watch.last, "mops_memory_bytes", of="tree") > value(watch.last, "mops_memory_bytes", of="process") > 0
    assert {labels["mops_job"] for labels in map(dict, values(watch.last, "mops_slots"))} == {"job"}
    assert value(watch.last, "process_resident_memory_bytes") > 0


def test_the_next_attempt_counts_from_zero_and_its_gauges_describe_the_job(lab: StudyLab, runs: Runs) -> None:
    lab.write("held:simulate", betas(30), targets=["scores:order"])
    port = free_port()
    lab.more_env = {"MODELOPS_METRICS_PORT": str(port)}
    first = lab.submit(CHECKPOINT_SECONDS=0, hold=12)
    wait_for(lambda: lab.exists() and len(lab.view().committed) == 12, of=first)
    assert wait_for(lambda: value(scraped(port), "mops_groups_committed_total") == 12, of=first)
    first.signal(signal.SIGKILL)
    first.process.wait()
    watch = runs.resume(metrics_port=port)  # the port of the killed runner is free again
    job = lab.job()
    assert job.status().state == "succeeded"
    for families in watch.seen:
        committed = value(families, "mops_groups_committed_total")
        assert value(families, "mops_job_groups_durable") == 12 + committed
        assert value(families, "mops_simulations_total") >= committed
    for name, expected in {
        "mops_simulations_total": 18,
        "mops_targets_total": 18,
        "mops_groups_committed_total": 18,
        "mops_job_groups_durable": 30,
        "mops_job_simulations_durable": 30,
        "mops_job_attempt": 2,
    }.items():
        assert value(watch.last, name) == expected, name


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_server_ends_with_its_runner_and_one_process_runs_several(lab: StudyLab, runs: Runs) -> None:
    lab.write("counted:simulate", betas(3))
    port = free_port()
    for number in range(3):
        watch, _ = runs.submit(f"job-{number}", metrics_port=port)
        assert {labels["mops_job"] for labels in map(dict, values(watch.last, "mops_slots"))} == {f"job-{number}"}
        assert value(watch.last, "mops_simulations_total") == 3
        assert not listens(port)
        assert not [thread for thread in threading.enumerate() if "serve_forever" in thread.name]


def test_the_server_listens_on_ipv4_and_ipv6() -> None:
    """Prometheus reaches a pod of an IPv6-only cluster by its one address."""
    port = free_port()
    with serving(port, "job", []):
        for host in ("127.0.0.1", "[::1]"):
            with build_opener(ProxyHandler({})).open(f"http://{host}:{port}/metrics", timeout=30) as answer:
                assert b"process_resident_memory_bytes" in answer.read()


def test_a_port_in_use_is_a_warning_in_the_log_of_the_job(lab: StudyLab, runs: Runs) -> None:
    lab.write("counted:simulate", betas(3))
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        _, job = runs.submit(metrics_port=port, look=lambda _: None)
    assert job.status().state == "succeeded"
    assert f"metrics are not served: cannot open port {port} (MODELOPS_METRICS_PORT)" in lab.job().logs()


def test_without_a_port_nothing_listens_and_port_0_chooses_a_free_port(
    lab: StudyLab, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mops")
    lab.write("counted:simulate", betas(3))
    listening = listening_ports()
    runs.submit("none", metrics_port=None, look=lambda _: assert_none_more(listening))
    assert "metrics" not in lab.job("none").logs()
    runs.submit("any", metrics_port=0, look=lambda _: None)
    assert re.search(r"any: metrics are served at port \d{4,5}, path /metrics", lab.job("any").logs())


def listening_ports() -> set[tuple[str, int]]:
    """Return the addresses, other than loopback, at which this process listens."""
    found = psutil.Process().net_connections("tcp")
    return {c.laddr for c in found if c.status == psutil.CONN_LISTEN and c.laddr.ip != "127.0.0.1"}


def assert_none_more(before: set[tuple[str, int]]) -> None:
    assert listening_ports() <= before


@dataclass
class Service:
    """A cluster of real processes, and the ports of its metrics."""

    dask: DaskProcesses
    scheduler: int
    workers: list[int]


def service_of(dask: DaskProcesses) -> Service:
    with Client(dask.address, set_as_default=False) as client:
        client.wait_for_workers(len(dask.workers), timeout=60)
        info = client.scheduler_info(n_workers=-1)
    workers = [worker["services"]["dashboard"] for worker in info["workers"].values()]
    return Service(dask, info["services"]["dashboard"], workers)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with dask_in(tmp_path / "dask") as dask:
        yield service_of(dask)


@pytest.mark.usefixtures("real_children")
@pytest.mark.timeout(180)
def test_on_a_cluster_the_runner_has_metrics_of_the_job_and_workers_of_their_children(
    lab: StudyLab, runs: Runs, service: Service
) -> None:
    """One of these processes also exports every metric of the dashboard."""
    write_ill(lab)
    watches = [Watch(port) for port in (service.scheduler, *service.workers)]
    runner = Watch(free_port())

    def look(snapshot: Progress) -> None:
        for watch in (runner, *watches):
            watch.look(snapshot)

    _, job = runs.submit(
        metrics_port=runner.port, look=look, scheduler=service.dask.address, tasks_per_child=1, checkpoint_seconds=1.0
    )
    assert_as_the_status_says(runner.last, job, lab)
    assert not [name for name in names(runner.last) if name.startswith(("mops_worker_", "mops_children"))]
    for watch in watches:
        watch.look()
    workers = [watch.last for watch in watches[1:]]
    replaced = sum((by(families, "mops_children_replaced_total", "reason") for families in workers), Counter())
    assert replaced == {"simulations": 44, "died": 2}
    assert sum(value(families, "mops_children_started_total") for families in workers) >= 46
    for watch in watches[1:]:
        tree = max(
            value(families, "mops_worker_memory_bytes", of="tree") for families in watch.seen if mops_of(families)
        )
        assert 0 < tree < value(next(filter(mops_of, watch.seen)), "mops_worker_memory_limit_bytes")
    shown = {name for watch in (runner, *watches) for families in watch.seen for name in names(families)}
    assert asked_for() - shown == (set() if oom_kills() is not None else {"mops_worker_oom_kills_total"})
    for watch in (runner, *watches):
        assert_well_named(watch)
    unbounded = {"mops_job", "job", "bundle", "run", "pool"}
    for families in workers:
        assert (
            not {label for f in families if f.name.startswith("mops_") for s in f.samples for label in s.labels}
            & unbounded
        )


def mops_of(families: list[Metric]) -> bool:
    return any(family.name == "mops_worker_memory_limit_bytes" for family in families)


def names(families: list[Metric]) -> set[str]:
    """Return the names of all metrics, including those without a value."""
    known = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    return known | {sample.name for family in families for sample in family.samples}


def asked_for() -> set[str]:
    """Return the metrics in the queries of the dashboard."""
    return {metric for query in queries(json.loads(DASHBOARD.read_text())) for metric in names_in(query)[0]}


def assert_well_named(watch: Watch) -> None:
    """Check the metrics of mops by the rules of promtool's lint for names, help, units and labels."""
    ours = {family.name: family for families in watch.seen for family in families if family.name.startswith("mops_")}
    for name, family in ours.items():
        assert family.documentation.endswith("."), f"{name} says nothing of itself"
        assert family.type in {"counter", "gauge"}
        exposed = {sample.name for sample in family.samples}
        assert exposed <= ({f"{name}_total"} if family.type == "counter" else {name})
        assert re.fullmatch(r"[a-z]+(_[a-z]+)+", name)
        assert not re.search(r"_(total|count|sum|bucket|gauge|counter)$", name), f"{name}: a suffix of other types"
        assert not re.search(r"_(ms|milliseconds|minutes|kb|kib|mb|mib|percent)(_|$)", name), f"{name}: no base unit"
        labels = {label for sample in family.samples for label in sample.labels}
        assert not labels & {"job", "instance", "namespace", "pod", "le", "quantile"}, (
            f"{name}: a label of the scrape's"
        )


def test_a_worker_without_prometheus_runs_jobs(lab: StudyLab, runs: Runs, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['prometheus_client'] = None\n")
    with dask_in(tmp_path / "dask", n_workers=0) as dask:
        dask.env = {"PYTHONPATH": path_with(hidden)}
        dask.add_worker()
        service = service_of(dask)
        lab.write("counted:simulate", betas(4))
        _, job = runs.submit(scheduler=dask.address)
        assert job.status().state == "succeeded"
        with urllib.request.urlopen(f"http://127.0.0.1:{service.workers[0]}/metrics", timeout=30) as answer:
            assert b"not available" in answer.read()


def path_with(folder: Path) -> str:
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))
