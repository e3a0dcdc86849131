"""The runner's Job as a manifest: what is in it, what never is, and the example that operators read."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mops.attempt.attempt import simulations_grace
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


def test_the_example_is_what_submit_makes() -> None:
    """Also in its order, so that both can be read side by side."""
    example = yaml.safe_load(EXAMPLE.read_text())
    assert example == job()
    assert yaml.safe_dump(example, sort_keys=False) == yaml.safe_dump(job(), sort_keys=False)


def test_the_example_explains_itself() -> None:
    comments = [line for line in EXAMPLE.read_text().splitlines() if line.lstrip().startswith("#")]
    assert len(comments) > 15


# How it ends


def test_an_evicted_pod_is_not_counted_whatever_its_exit_code() -> None:
    """Kubernetes takes the first rule that fits: an evicted runner ends with 137 or 143, or with 1 on its way down."""
    ignore, fatal, counted = job()["spec"]["podFailurePolicy"]["rules"]
    assert ignore == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert (fatal["action"], fatal["onExitCodes"]["values"]) == ("FailJob", [1, 2])
    assert (counted["action"], counted["onExitCodes"]["values"]) == ("Count", [4, 137])


def test_rules_name_the_container_and_pods_are_never_restarted_in_place() -> None:
    manifest = job()
    for rule in manifest["spec"]["podFailurePolicy"]["rules"][1:]:
        assert rule["onExitCodes"]["containerName"] == container_of(manifest)["name"]
        assert rule["onExitCodes"]["values"] == sorted(rule["onExitCodes"]["values"])  # the API server insists
    assert pod_of(manifest)["restartPolicy"] == "Never"
    assert manifest["spec"]["podReplacementPolicy"] == "Failed"


def test_limits_are_there_only_if_somebody_set_them() -> None:
    assert "activeDeadlineSeconds" not in job()["spec"]
    bare = POD.model_copy(update={"keep_s": None})
    assert "ttlSecondsAfterFinished" not in job(bare)["spec"]
    limited = job(POD.model_copy(update={"deadline_s": 3600, "keep_s": 0, "backoff_limit": 0}))["spec"]
    assert (limited["activeDeadlineSeconds"], limited["ttlSecondsAfterFinished"], limited["backoffLimit"]) == (
        3600,
        0,
        0,
    )


def test_a_queue_is_a_label_of_the_job_and_suspending_it_is_kueues() -> None:
    manifest = job(POD.model_copy(update={"queue": "small"}))
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "small"
    assert "kueue.x-k8s.io/queue-name" not in manifest["spec"]["template"]["metadata"]["labels"]
    assert "suspend" not in manifest["spec"]
    assert "kueue.x-k8s.io/queue-name" not in job()["metadata"]["labels"]


def test_every_pod_of_a_job_gets_the_request_that_it_carries_out() -> None:
    run = ["mops", "jobs", "run", "malaria-261121-0f3a", "--pod", "--grace", "60"]
    assert container_of(job())["args"] == run
    assert container_of(job(asked="3-9f3c"))["args"][-2:] == ["--asked", "3-9f3c"]


@pytest.mark.parametrize("seconds", [10, 60, 3600])
def test_a_runner_knows_how_long_its_pod_has_to_end(seconds: int) -> None:
    """It gave simulations 10 s and no more, whatever the chart's values said."""
    manifest = job(POD.model_copy(update={"grace_s": seconds}))
    assert pod_of(manifest)["terminationGracePeriodSeconds"] == seconds
    args = container_of(manifest)["args"]
    assert args[args.index("--grace") + 1] == str(seconds)


@given(st.floats(1, 1e6))
def test_a_part_of_the_grace_period_is_for_the_last_commit(seconds: float) -> None:
    simulations = simulations_grace(seconds)
    assert seconds / 3 <= simulations < seconds
    assert min(15, 2 * seconds / 3) - 1e-6 <= seconds - simulations <= 60 + 1e-6
    assert simulations_grace(60) == 40
    assert simulations_grace(None) == 10


# Its environment


def test_settings_of_the_submitter_replace_those_of_the_chart() -> None:
    pod = POD.model_copy(update={"env": [*POD.env, {"name": "MODELOPS_JOB_BATCH_SIZE", "value": "7"}]})
    names_in_order = [one["name"] for one in container_of(job(pod))["env"]]
    assert len(names_in_order) == len(set(names_in_order)), "Kubernetes takes the last of two, and warns"
    assert variables(job(pod))["MODELOPS_JOB_BATCH_SIZE"] == "400"


def test_places_come_from_the_chart_and_the_port_from_the_pod() -> None:
    found = variables(job())
    assert found["MODELOPS_STORAGE"] == "abfs://studies/mops"
    assert found["MODELOPS_SCHEDULER"] == "tcp://mops-scheduler.studies.svc:8786"
    assert found["MODELOPS_METRICS_PORT"] == "9095"
    assert "MODELOPS_METRICS_PORT" not in variables(job(POD.model_copy(update={"ports": []})))


def test_every_value_is_text() -> None:
    """Kubernetes refuses numbers in an environment."""
    assert all(isinstance(value, str) for value in variables(job()).values())


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_nothing_of_the_process_environment_gets_in(environment: dict[str, str]) -> None:
    """What the container has is the chart's, the request's, and where storage and scheduler are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountKey=secret")
        manifest = job(environment=environment)
    places = {"MODELOPS_STORAGE", "MODELOPS_SCHEDULER", "MODELOPS_METRICS_PORT"}
    assert set(variables(manifest)) == {one["name"] for one in POD.env} | set(environment) | places
    assert "AccountKey=secret" not in yaml.safe_dump(manifest)


# Names and labels


@given(st.text(), st.text(), st.from_regex(r"[a-z0-9]([a-z0-9-]{0,58}[a-z0-9])?", fullmatch=True))
def test_labels_are_always_valid(owner: str, study: str, name: str) -> None:
    """A person is called Åsa Ödegård, and a study ".hidden": Kubernetes refused the whole Job."""
    manifest = job(job=name, labels={names.OWNER: owner, names.STUDY: study})
    for where in (manifest["metadata"], manifest["spec"]["template"]["metadata"]):
        for value in where["labels"].values():
            assert LABEL.fullmatch(value), value


def test_a_label_that_says_nothing_is_left_out() -> None:
    assert names.OWNER not in job(labels={names.OWNER: "!?", names.STUDY: "x"})["metadata"]["labels"]


@pytest.mark.parametrize("number", [1, 9, 10, 99])
def test_names_have_at_most_63_characters(number: int) -> None:
    """As a label a Job's name may have 63."""
    name = job(job="a" * prepare._NAME_LIMIT, number=number)["metadata"]["name"]
    assert len(name) <= 63


def test_everything_of_a_job_is_found_by_its_label() -> None:
    manifest = job()
    for where in (manifest["metadata"], manifest["spec"]["template"]["metadata"]):
        assert where["labels"].items() >= names.of_job(REQUEST.job).items()


def test_labels_of_the_chart_do_not_hide_whose_pod_it_is() -> None:
    pod = POD.model_copy(update={"labels": {names.JOB: "other", "team": "epi"}})
    labels = job(pod)["spec"]["template"]["metadata"]["labels"]
    assert (labels[names.JOB], labels["team"]) == (REQUEST.job, "epi")


# What Pod Security "restricted" asks for


def test_the_pod_is_restricted() -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted."""
    manifest = job()
    pod, container = pod_of(manifest), container_of(manifest)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert not any("hostPath" in volume for volume in pod["volumes"])


def test_there_is_a_token_only_where_one_is_used() -> None:
    assert pod_of(job())["automountServiceAccountToken"] is True
    assert pod_of(job(POD.model_copy(update={"mount_token": False})))["automountServiceAccountToken"] is False
    assert pod_of(job())["enableServiceLinks"] is False


def test_what_is_not_set_is_not_there() -> None:
    """An empty affinity is one, for the API server; null is refused in places."""
    assert not {"nodeSelector", "tolerations", "affinity", "priorityClassName", "imagePullSecrets"} & set(pod_of(job()))
    assert "envFrom" not in container_of(job())


@pytest.mark.parametrize("job", ["sir", "a" * 60, "a" * 58 + "-b"])
@pytest.mark.parametrize("number", [1, 99, 100, 12_345])
def test_the_name_of_a_job_fits_into_the_label_that_its_pods_have_of_it(job: str, number: int) -> None:
    name = names.runner_name(job, number)
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name)
    assert len(name) <= 63
    assert name.endswith(f"-{number}")
    assert "--" not in name
