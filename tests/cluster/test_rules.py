"""The alert rules of the chart in promtool: valid, and each fires for its cause and for nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_lab import EVERYTHING, refused, rendered

from programs import cluster_program

pytestmark = pytest.mark.k8s

OURS = 'namespace="studies", app_kubernetes_io_instance="mops"'
OTHER = 'namespace="others", app_kubernetes_io_instance="mops"'
HEALTHY = {
    f'up{{job="scheduler", {OURS}}}': "1x120",
    f'dask_scheduler_workers{{state="idle", {OURS}}}': "0x120",
    f'dask_scheduler_workers{{state="saturated", {OURS}}}': "2x120",
    f"dask_scheduler_clients{{{OURS}}}": "2x120",  # a runner, and the autoscaler
    f'mops_checkpoint_lag_seconds{{mops_job="waves", {OURS}}}': "30x120",
    f'mops_simulations_total{{verdict="oom", mops_job="waves", {OURS}}}': "3x120",
    f'mops_simulations_total{{verdict="good", mops_job="waves", {OURS}}}': "0+5x120",
    f'mops_worker_oom_kills_total{{pod="mops-worker-a", {OURS}}}': "2x120",
    'kube_job_failed{condition="true", namespace="studies", job_name="waves-1"}': "0x120",
    'kube_job_owner{owner_kind="ConfigMap", owner_name="mops-client", namespace="studies", job_name="waves-1"}': "1x99",
}
OF_RELEASE = {"severity": "critical", "namespace": "studies", "release": "mops"}
# The series in place of those of a healthy service, and the labels of the alerts after an hour; None: no series.
CASES: dict[str, tuple[dict[str, str | None], str, list[dict[str, str]]]] = {
    "the scheduler does not answer": (
        {f'up{{job="scheduler", {OURS}}}': "1x50 0x70"},
        "MopsSchedulerDown",
        [OF_RELEASE],
    ),
    "no scheduler exists": ({f'up{{job="scheduler", {OURS}}}': "1x40"}, "MopsSchedulerDown", [OF_RELEASE]),
    "the scheduler restarts": ({f'up{{job="scheduler", {OURS}}}': "1x56 0x2 1x70"}, "MopsSchedulerDown", []),
    "only another service has a scheduler": (
        {f'up{{job="scheduler", {OURS}}}': None, f'up{{job="scheduler", {OTHER}}}': "1x120"},
        "MopsSchedulerDown",
        [OF_RELEASE],
    ),
    "no worker while a runner waits": (
        {f'dask_scheduler_workers{{state="saturated", {OURS}}}': "2x40 0x80"},
        "MopsNoWorkers",
        [OF_RELEASE],
    ),
    "no worker and no runner": (
        {
            f'dask_scheduler_workers{{state="saturated", {OURS}}}': "0x120",
            f"dask_scheduler_clients{{{OURS}}}": "1x120",
        },
        "MopsNoWorkers",
        [],
    ),
    "results are not durable": (
        {f'mops_checkpoint_lag_seconds{{mops_job="waves", {OURS}}}': "0+60x120"},
        "MopsCheckpointLag",
        [{"severity": "warning", "namespace": "studies", "app_kubernetes_io_instance": "mops", "mops_job": "waves"}],
    ),
    "a slow commit": (
        {f'mops_checkpoint_lag_seconds{{mops_job="waves", {OURS}}}': "30x55 300x3 700x2 30x60"},
        "MopsCheckpointLag",
        [],
    ),
    "mops kills a simulation": (
        {f'mops_simulations_total{{verdict="oom", mops_job="waves", {OURS}}}': "3x55 4x65"},
        "MopsKilledForMemory",
        [{"severity": "warning", "namespace": "studies", "mops_job": "waves"}],
    ),
    "the kernel kills a process": (
        {f'mops_worker_oom_kills_total{{pod="mops-worker-a", {OURS}}}': "2x55 3x65"},
        "MopsKilledForMemory",
        [{"severity": "warning", "namespace": "studies", "pod": "mops-worker-a"}],
    ),
    "a kill long ago": (
        {f'mops_simulations_total{{verdict="oom", mops_job="waves", {OURS}}}': "3x30 4x90"},
        "MopsKilledForMemory",
        [],
    ),
    "a runner fails": (
        {'kube_job_failed{condition="true", namespace="studies", job_name="waves-1"}': "0x40 1x80"},
        "MopsRunnerFailed",
        [{"severity": "warning", "condition": "true", "namespace": "studies", "job_name": "waves-1"}],
    ),
    "a Job of somebody else fails": (
        {'kube_job_failed{condition="true", namespace="studies", job_name="backup-1"}': "0x40 1x80"},
        "MopsRunnerFailed",
        [],
    ),
}


def groups(folder: Path) -> dict[str, Any]:
    """Return the groups of rules of a release ``mops`` in the namespace ``studies``."""
    (rule,) = rendered(folder, {}, EVERYTHING).of("PrometheusRule").values()
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    found: dict[str, Any] = rule["spec"]
    return found


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([cluster_program("promtool"), *map(str, arguments)], capture_output=True, text=True)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(groups(tmp_path)))
    return path


def test_promtool_finds_no_fault_in_the_rules(rules: Path) -> None:
    ran = promtool("check", "rules", "--lint=all", "--lint-fatal", rules)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "SUCCESS: 5 rules found" in ran.stdout


def test_each_alert_says_in_a_line_what_is_wrong_and_which_command_to_run(rules: Path) -> None:
    (group,) = yaml.safe_load(rules.read_text())["groups"]
    for rule in group["rules"]:
        assert "\n" not in rule["annotations"]["summary"]
        assert any(command in rule["annotations"]["description"] for command in ("kubectl ", "mops "))


def alerts(rules: Path, series: Mapping[str, str | None], name: str, expected: list[dict[str, str]]) -> str:
    """Return what promtool says if other alerts than the expected ones fire after an hour; empty: it is as expected."""
    read = yaml.safe_load(rules.read_text())["groups"][0]["rules"]
    for rule in read:  # promtool would compare the texts as well
        rule["annotations"] = {}
    plain = rules.with_name("plain.yaml")
    plain.write_text(yaml.safe_dump({"groups": [{"name": "mops", "rules": read}]}))
    tested = {
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items() if values],
        "alert_rule_test": [
            {
                "eval_time": "1h",
                "alertname": rule["alert"],
                "exp_alerts": [{"exp_labels": labels} for labels in expected] if rule["alert"] == name else [],
            }
            for rule in read
        ],
    }
    path = rules.with_name("test.yaml")
    path.write_text(yaml.safe_dump({"rule_files": [plain.name], "evaluation_interval": "1m", "tests": [tested]}))
    ran = promtool("test", "rules", path)
    return "" if ran.returncode == 0 else ran.stdout + ran.stderr


@pytest.mark.parametrize(("changes", "name", "expected"), CASES.values(), ids=CASES)
def test_an_alert_fires_for_its_cause_and_no_other_alert_does(
    rules: Path, changes: dict[str, str | None], name: str, expected: list[dict[str, str]]
) -> None:
    assert alerts(rules, HEALTHY | changes, name, expected) == ""
    if expected:
        assert "got:[]" in alerts(rules, HEALTHY, name, expected), "no alert fires for a healthy service"


def test_the_alert_about_a_failed_runner_ends_after_an_hour(rules: Path) -> None:
    failed = {'kube_job_failed{condition="true", namespace="studies", job_name="waves-1"}': "1x120"}
    assert alerts(rules, HEALTHY | failed, "MopsRunnerFailed", []) == ""


def test_rules_without_a_monitor_are_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, {"metrics": {"rules": {"enabled": True}}})
    assert "the rules need series with the labels of a monitor of this chart" in said
