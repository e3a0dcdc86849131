"""The manifest of a runner's Job, and the example of it for operators."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import Context
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from mops.attempt.attempt import simulations_grace
from mops.cli.main import app
from mops.jobs import prepare
from mops.k8s import names
from mops.k8s.chart import RunnerPod
from mops.k8s.runner_job import runner_job
from runner_jobs import POD, REQUEST

EXAMPLE = Path(__file__).parents[3] / "k8s" / "job.example.yaml"
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
"""https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set."""


def job(pod: RunnerPod = POD, **changes: Any) -> dict[str, Any]:
    return runner_job(pod, dataclasses.replace(REQUEST, **changes))


def pod_of(manifest: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return spec


def container_of(manifest: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod_of(manifest)["containers"]
    assert isinstance(container, dict)
    return container


def variables(manifest: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container_of(manifest)["env"]}


def test_the_example_is_the_manifest_that_submit_makes() -> None:
    """The order is the same too, so that both can be compared line by line."""
    example = yaml.safe_load(EXAMPLE.read_text())
    assert example == job()
    assert yaml.safe_dump(example, sort_keys=False) == yaml.safe_dump(job(), sort_keys=False)


def test_the_command_line_takes_every_option_of_the_manifest() -> None:
    """Both ends changed names apart: the pod ended with exit code 2."""
    dedicated = [{"kind": "DaskCluster", "metadata": {"name": "dask-sir-7f3a2c"}}]
    _, *arguments = container_of(job(asked="3-abc", dedicated=dedicated, workers={"a": "b"}))["args"]
    group, verb, *rest = arguments
    command = get_command(app).get_command(Context(get_command(app)), group).commands[verb]
    parsed = command.make_context(verb, rest).params
    assert [name for name in ("asked", "pod", "grace", "dedicated", "workers") if not parsed[name]] == []


# How it ends


def test_an_evicted_pod_does_not_count_as_a_failure() -> None:
    """Kubernetes applies the first rule that matches. An evicted runner exits with 137, 143 or 1."""
    ignore, fatal, counted = job()["spec"]["podFailurePolicy"]["rules"]
    assert ignore == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert (fatal["action"], fatal["onExitCodes"]["values"]) == ("FailJob", [1, 2])
    assert (counted["action"], counted["onExitCodes"]["values"]) == ("Count", [4, 137])


def test_limits_are_in_the_manifest_only_if_they_are_set() -> None:
    assert "activeDeadlineSeconds" not in job()["spec"]
    bare = POD.model_copy(update={"keep_s": None})
    assert "ttlSecondsAfterFinished" not in job(bare)["spec"]
    limited = job(POD.model_copy(update={"deadline_s": 3600, "keep_s": 0, "backoff_limit": 0}))["spec"]
    fields = ("activeDeadlineSeconds", "ttlSecondsAfterFinished", "backoffLimit")
    assert [limited[field] for field in fields] == [3600, 0, 0]


def test_a_queue_is_a_label_of_the_job_and_only_kueue_suspends_it() -> None:
    manifest = job(POD.model_copy(update={"queue": "small"}))
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "small"
    assert "kueue.x-k8s.io/queue-name" not in manifest["spec"]["template"]["metadata"]["labels"]
    assert "suspend" not in manifest["spec"]
    assert "kueue.x-k8s.io/queue-name" not in job()["metadata"]["labels"]


def test_a_pod_gets_the_job_and_the_request_as_arguments() -> None:
    run = ["mops", "jobs", "run", "malaria-261121-0f3a", "--pod", "--grace", "60"]
    assert container_of(job())["args"] == run
    assert container_of(job(asked="3-9f3c"))["args"][-2:] == ["--asked", "3-9f3c"]


def test_a_runner_knows_the_grace_period_of_its_pod(subtests: pytest.Subtests) -> None:
    """Simulations got 10 s, whatever the values of the chart said."""
    for seconds in [10, 60, 3600]:
        with subtests.test(seconds=seconds):
            manifest = job(POD.model_copy(update={"grace_s": seconds}))
            assert pod_of(manifest)["terminationGracePeriodSeconds"] == seconds
            args = container_of(manifest)["args"]
            assert args[args.index("--grace") + 1] == str(seconds)


@given(st.floats(1, 1e6))
def test_a_part_of_the_grace_period_is_left_for_the_last_commit(seconds: float) -> None:
    simulations = simulations_grace(seconds)
    assert seconds / 3 <= simulations < seconds
    assert min(15, 2 * seconds / 3) - 1e-6 <= seconds - simulations <= 60 + 1e-6
    assert simulations_grace(60) == 40
    assert simulations_grace(None) == 10


# Its environment


def test_settings_of_the_user_replace_those_of_the_chart() -> None:
    pod = POD.model_copy(update={"env": [*POD.env, {"name": "MODELOPS_JOB_BATCH_SIZE", "value": "7"}]})
    names_in_order = [one["name"] for one in container_of(job(pod))["env"]]
    assert len(names_in_order) == len(set(names_in_order)), "of two with one name Kubernetes uses the last, and warns"
    assert variables(job(pod))["MODELOPS_JOB_BATCH_SIZE"] == "400"


def test_without_a_port_a_runner_serves_no_metrics() -> None:
    assert "MODELOPS_METRICS_PORT" not in variables(job(POD.model_copy(update={"ports": []})))


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_variables_of_the_calling_process_stay_out(environment: dict[str, str]) -> None:
    """A container gets the variables of the chart and of the request, and the URLs of storage and scheduler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountKey=secret")
        manifest = job(environment=environment)
    urls_and_port = {"MODELOPS_STORAGE", "MODELOPS_SCHEDULER", "MODELOPS_METRICS_PORT"}
    assert set(variables(manifest)) == {one["name"] for one in POD.env} | set(environment) | urls_and_port
    assert "AccountKey=secret" not in yaml.safe_dump(manifest)


# Names and labels


@given(st.text(), st.text(), st.from_regex(r"[a-z0-9]([a-z0-9-]{0,58}[a-z0-9])?", fullmatch=True))
def test_labels_are_always_valid(owner: str, study: str, name: str) -> None:
    """Kubernetes refused the Job of an owner "Åsa Ödegård", and of a study ".hidden"."""
    manifest = job(job=name, owner=owner, study=study)
    for where in (manifest["metadata"], manifest["spec"]["template"]["metadata"]):
        for value in where["labels"].values():
            assert LABEL.fullmatch(value), value


def test_a_label_without_valid_characters_is_left_out() -> None:
    assert names.OWNER not in job(owner="!?", study="x")["metadata"]["labels"]


def test_the_annotation_has_the_whole_name_of_the_owner() -> None:
    """Kubernetes refuses `:` and `@` in labels, and names of persons and service accounts have them."""
    metadata = job(owner="system:serviceaccount:studies:ci")["metadata"]
    assert metadata["labels"][names.OWNER] == "system-serviceaccount-studies-ci"
    assert metadata["annotations"][names.OWNER] == "system:serviceaccount:studies:ci"
    assert names.OWNER not in job(owner="")["metadata"]["annotations"]


def test_the_name_of_a_runner_is_a_valid_label_of_at_most_63_characters() -> None:
    """Pods have the name of their Job as a label."""
    jobs = ("sir", "a" * prepare._NAME_LIMIT, "a" * 60, "a" * 58 + "-b")
    for one, number in itertools.product(jobs, (1, 9, 99, 100, 12_345)):
        name = names.runner_name(one, number)
        assert job(job=one, number=number)["metadata"]["name"] == name
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name)
        assert len(name) <= 63
        assert name.endswith(f"-{number}")
        assert "--" not in name


def test_labels_of_the_chart_cannot_replace_the_label_of_the_job() -> None:
    pod = POD.model_copy(update={"labels": {names.JOB: "other", "team": "epi"}})
    labels = job(pod)["spec"]["template"]["metadata"]["labels"]
    assert (labels[names.JOB], labels["team"]) == (REQUEST.job, "epi")


def test_a_service_account_token_is_mounted_only_if_the_chart_says_so() -> None:
    """Regression: the token was that of automountServiceAccountToken, which many clusters accept for a year."""
    without = job(POD.model_copy(update={"mount_token": False}))
    mounted = [volume for volume in pod_of(job())["volumes"] if volume not in pod_of(without)["volumes"]]
    (found,) = [mount for mount in container_of(job())["volumeMounts"] if mount["name"] == mounted[0]["name"]]
    assert found["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    (source, *_) = mounted[0]["projected"]["sources"]
    assert source["serviceAccountToken"]["expirationSeconds"] == 600
    assert "serviceaccount" not in str(without)
    for manifest in (job(), without):
        assert pod_of(manifest)["automountServiceAccountToken"] is False
        assert pod_of(manifest)["enableServiceLinks"] is False
