"""Each query of the dashboard, and each series of an alert, has data in a real Prometheus that scrapes a running job.

Prometheus is one of the programs that k8s/testcluster/build compiles, so this test runs with those on Kubernetes.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest
import yaml
from dask_processes import DaskProcesses, dask_in
from distributed import Client
from study_lab import StudyLab, wait_for

from dashboard_lab import DASHBOARD, names_in, queries, selector
from mops.system.resources import oom_kills
from programs import cluster_program, free_port

pytestmark = pytest.mark.k8s

NAMESPACE = "studies"
VARIABLES = {"$namespace": NAMESPACE, "$job": "(night)", "$__rate_interval": "4s", "$__range": "5m"}
FAILS = {"raises": "error", "segfault": "crashed", "returns_none": "invalid_output"}
"""What the model does in some sets, and the verdict."""


@pytest.fixture(scope="module", autouse=True)
def _prometheus() -> None:
    cluster_program("prometheus")


@dataclass
class Prometheus:
    """A running Prometheus."""

    url: str
    started: float = field(default_factory=time.time)

    def get(self, path: str, parameters: Mapping[str, Any]) -> Any:
        with build_opener(ProxyHandler({})).open(
            f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=30
        ) as got:
            return json.load(got)["data"]

    def series(self, query: str, *, instant: bool = False) -> list[dict[str, Any]]:
        """Return the series of a query, each with its labels (``metric``) and values."""
        if instant:
            return self.get("query", {"query": query})["result"]  # type: ignore[no-any-return]
        span = {"start": self.started, "end": time.time(), "step": "1s"}
        return self.get("query_range", {"query": query, **span})["result"]  # type: ignore[no-any-return]

    def labels(self, metric: str) -> set[str]:
        """Return the names of the labels of a metric."""
        return set(self.get("labels", {"match[]": metric}))

    def label_values(self, label: str, match: str) -> list[str]:
        return self.get(f"label/{label}/values", {"match[]": match})  # type: ignore[no-any-return]


def is_ready(url: str) -> bool:
    try:
        with build_opener(ProxyHandler({})).open(f"{url}/-/ready", timeout=10) as answer:
            return int(answer.status) == 200
    except (URLError, ConnectionError, TimeoutError):
        return False


@contextmanager
def prometheus_in(folder: Path, targets: Mapping[str, list[int]]) -> Iterator[Prometheus]:
    """Run Prometheus on ports of this machine, with the labels that a PodMonitor of the chart gives.

    Parameters
    ----------
    targets
        The ports by component.
    """
    folder.mkdir()
    jobs = [
        {
            "job_name": component,
            "static_configs": [
                {
                    "targets": [f"127.0.0.1:{port}"],
                    "labels": {
                        "namespace": NAMESPACE,
                        "pod": f"{component}-{number}",
                        "app_kubernetes_io_instance": "mops",
                    },
                }
                for number, port in enumerate(ports)
            ],
        }
        for component, ports in targets.items()
    ]
    config, url = folder / "prometheus.yaml", f"127.0.0.1:{free_port()}"
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    options = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={url}"]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen([cluster_program("prometheus"), *options], stdout=log, stderr=log)
    try:
        wait_for(lambda: is_ready(f"http://{url}") or process.poll() is not None)
        assert process.poll() is None, (folder / "log.txt").read_text()
        yield Prometheus(f"http://{url}")
    finally:
        process.kill()
        process.wait()


def filled(query: str) -> str:
    """Return a query of the dashboard with values for its variables, as Grafana sends it."""
    for name, value in sorted(VARIABLES.items(), key=lambda pair: -len(pair[0])):
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


def ports_of(dask: DaskProcesses) -> dict[str, list[int]]:
    """Return the ports of the metrics of the scheduler and the workers."""
    with Client(dask.address, set_as_default=False) as client:
        client.wait_for_workers(len(dask.workers), timeout=60)
        info = client.scheduler_info(n_workers=-1)
    workers = [worker["services"]["dashboard"] for worker in info["workers"].values()]
    return {"scheduler": [info["services"]["dashboard"]], "worker": workers}


def write_study(lab: StudyLab) -> None:
    """Write a study that runs for minutes. Every tenth set fails."""
    kinds = list(FAILS)
    sets: list[dict[str, Any]] = [
        {"what": kinds[i // 10 % len(kinds)] if i % 10 == 9 else "good", "place": i, "sleep": 0.05} for i in range(4000)
    ]
    lab.write("sometimes:simulate", sets, targets=["scores:rows"])


def assert_legend(series: list[dict[str, Any]], target: Mapping[str, Any]) -> None:
    """Check that each label that the legend shows is one of the series."""
    shown = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
    for one in series:
        assert shown <= one["metric"].keys(), f"{target['expr']} has the labels {', '.join(one['metric'])}"


def alert_rules() -> list[dict[str, Any]]:
    """Return the alert rules of the chart."""
    read = yaml.safe_load((DASHBOARD.parents[1] / "files" / "rules.yaml").read_text())
    return read["groups"][0]["rules"]  # type: ignore[no-any-return]


def last_values(series: list[dict[str, Any]]) -> list[float]:
    return [float(one["values"][-1][1]) for one in series]


@pytest.mark.timeout(240)
def test_every_query_of_the_dashboard_gives_data_of_a_running_job(lab: StudyLab, tmp_path: Path) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    targets = {
        (panel["title"], target["refId"]): target
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }
    assert len(targets) > 30
    missing = dict(targets)
    if oom_kills() is None:  # the kernel's counter of this cgroup cannot be read here
        del missing["Kills for memory by the kernel", "A"]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    write_study(lab)
    port = free_port()
    with (
        dask_in(tmp_path / "dask") as dask,
        prometheus_in(tmp_path / "prometheus", ports_of(dask) | {"runner": [port]}) as prometheus,
    ):
        lab.more_env = {"MODELOPS_SCHEDULER": dask.address, "MODELOPS_METRICS_PORT": str(port)}
        runner = lab.submit("night", CHECKPOINT_SECONDS=1, TASK_SECONDS=0.2, TASKS_PER_CHILD=20, MAX_FAILURES="100%")

        def all_found() -> bool:
            for key, target in list(missing.items()):
                series = prometheus.series(filled(target["expr"]), instant=target.get("instant", False))
                if series:
                    found[key] = series
                    del missing[key]
            return not missing

        try:
            wait_for(all_found, of=runner)
        finally:
            print("without data:", [f"{key}: {target['expr']}" for key, target in missing.items()])
        shares = filled(targets["Worker trees, of their limits", "A"]["expr"])
        wait_for(lambda: len(prometheus.series(shares)) == len(dask.workers), of=runner)
        assert all(0 < share < 1 for share in last_values(prometheus.series(shares)))
        values = {key: last_values(series) for key, series in found.items() if "values" in series[0]}
        verdicts = {one["metric"]["verdict"] for one in found["Failures in this range, by verdict", "A"]}
        answers = {
            variable["name"]: prometheus.label_values(*map(filled, selector(variable)))
            for variable in dashboard["templating"]["list"]
            if variable["type"] == "query"
        }
        for query in queries(dashboard):
            metrics, labels = names_in(query)
            known = {label for metric in metrics for label in prometheus.labels(metric)}
            assert labels <= known or not metrics, f"{query} has a label that no series of {metrics} has"
        names = set(prometheus.label_values("__name__", '{namespace="studies"}'))
        for rule in alert_rules():
            metrics, labels = names_in(rule["expr"])
            ours = {metric for metric in metrics if not metric.startswith("kube_")}
            if oom_kills() is None:
                ours.discard("mops_worker_oom_kills_total")
            assert ours <= names, f"{rule['alert']} has a metric that nothing exports"
            known = {label for metric in ours for label in prometheus.labels(metric)}
            assert labels <= known or ours != metrics, f"{rule['alert']} has a label that no series of {ours} has"
    assert answers == {"namespace": [NAMESPACE], "job": ["night"]}
    for key, series in found.items():
        assert_legend(series, targets[key])
    assert verdicts <= set(FAILS.values())
    assert 0 <= values["Durable, of the whole job", "A"][0] < 1


def test_promtool_finds_no_fault_in_the_metrics_of_a_runner(lab: StudyLab) -> None:
    port = free_port()
    lab.more_env = {"MODELOPS_METRICS_PORT": str(port)}
    lab.write("held:simulate", [{"beta": 0.3, "i": i} for i in range(20)], targets=["scores:order"])
    runner = lab.submit(hold=5, CHECKPOINT_SECONDS=0)
    wait_for(lambda: lab.exists() and lab.view().committed, of=runner)
    with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read()
    assert b"mops_simulations_total" in text
    checked = subprocess.run([cluster_program("promtool"), "check", "metrics"], input=text, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
