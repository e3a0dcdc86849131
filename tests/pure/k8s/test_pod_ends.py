"""Why pods ended, read from what Kubernetes writes about them.

pods_seen.json holds pods of a real Kubernetes (1.34, cgroup v1), each named for what happened to it.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from clocks import Clock
from mops.errors import ServiceError
from mops.k8s.chart import Object, RunnerPod
from mops.k8s.client import Kubernetes
from mops.k8s.pod_ends import (
    ACCOUNT,
    NEAR_SECONDS,
    PAUSE_SECONDS,
    PodHistory,
    Pods,
    container_end,
    event_end,
    removal_of,
)
from mops.k8s.pod_state import ends_of
from mops.k8s.runner_job import Request, runner_job
from mops.verdicts import LossCause

SEEN: dict[str, Object] = json.loads(Path(__file__).with_name("pods_seen.json").read_text())

EARLIER = "; the kernel had killed a process in it for memory before"


def test_a_container_was_oom_killed_only_if_its_exit_code_says_so(subtests: pytest.Subtests) -> None:
    for pod, expected in [
        ("under-init", LossCause("the container of pod x was OOMKilled (exit code 137)", memory=True)),
        ("restarted-worker", LossCause("the container of pod x was OOMKilled (exit code 137)", memory=True)),
        ("child-code-3", LossCause(f"the container of pod x ended with exit code 3{EARLIER}")),
        ("child-code-0", LossCause(f"the container of pod x ended with exit code 0{EARLIER}")),
        ("crash", LossCause("the container of pod x ended with exit code 3")),
    ]:
        with subtests.test(str((pod, expected))):
            assert container_end("x", ends_of(SEEN[pod])[0]) == expected


def evicted(message: str) -> Object:
    return {"metadata": {"name": "x"}, "status": {"phase": "Failed", "reason": "Evicted", "message": message}}


MEMORY = (
    "The node was low on resource: memory. Threshold quantity: 100Mi, available: 91Mi. "
    "Container worker was using 900Mi, request is 1Gi, has larger consumption of memory. "
)


KUEUE: Object = {"metadata": {"name": "x", "deletionTimestamp": "2026-11-21T11:00:00Z"}, "status": {"conditions": []}}
KUEUE["status"]["conditions"].append(
    {
        "type": "TerminationTarget",
        "status": "True",
        "reason": "WorkloadEvictedDueToDeactivated",
        "message": "The workload is deactivated",
    }
)


def test_a_pod_was_removed_by_others_or_because_of_what_ran_in_it(subtests: pytest.Subtests) -> None:
    for pod, expected in [
        (
            SEEN["evicted"],
            LossCause("pod evicted was removed (EvictionByEvictionAPI): Eviction API: evicting", removed=True),
        ),
        (SEEN["killed"], LossCause("pod killed was deleted", removed=True)),
        (
            KUEUE,
            LossCause("pod x was removed (WorkloadEvictedDueToDeactivated): The workload is deactivated", removed=True),
        ),
        # A simulation has filled it, which must be found if it does so repeatedly.
        (SEEN["disk"], LossCause('pod disk was Evicted: Usage of EmptyDir volume "tmp" exceeds the limit "20Mi".')),
        (evicted(MEMORY), LossCause(f"pod x was Evicted: {MEMORY.strip()}", removed=True)),
        (
            evicted("The node was low on resource: ephemeral-storage. "),
            LossCause("pod x was Evicted: The node was low on resource: ephemeral-storage."),
        ),
        (SEEN["crash"], None),
        (SEEN["restarted-worker"], None),
        ({"metadata": {"name": "x"}}, None),
    ]:
        with subtests.test(str((pod, expected))):
            assert removal_of(pod) == expected


def event(reason: str, message: str, second: int = 0) -> Object:
    return {"reason": reason, "message": message, "lastTimestamp": f"2026-11-21T22:33:{second:02}Z"}


def test_events_explain_an_end_that_the_status_does_not_show(subtests: pytest.Subtests) -> None:
    for events, expected in [
        ([], None),
        ([event("Pulled", "image"), event("Killing", "Stopping container worker")], None),
        ([event("Evicted", MEMORY)], LossCause(f"pod x was Evicted: {MEMORY.strip()}", removed=True)),
        (
            [event("Preempted", "by a on node b")],
            LossCause("pod x was removed (Preempted): by a on node b", removed=True),
        ),
        (
            [event("Killing", "Container worker failed liveness probe, will be restarted", 3), event("Evicted", "", 1)],
            LossCause("pod x: Container worker failed liveness probe, will be restarted"),
        ),
        (
            [event("OOMKilling", "Memory cgroup")],
            LossCause("pod x ran out of memory (OOMKilling): Memory cgroup", memory=True),
        ),
    ]:
        with subtests.test(str((events, expected))):
            assert event_end("x", events) == expected


WORKER = "tcp://10.245.0.64:8789"


def healthy() -> Object:
    """Return the worker before it was killed."""
    pod = copy.deepcopy(SEEN["restarted-worker"])
    pod["status"]["containerStatuses"][0]["lastState"] = {}
    return pod


class Answers:
    """Kubernetes, as far as these tests ask it: a list of pods for each look."""

    def __init__(self, *lists: list[Object] | ServiceError, events: list[Object] | None = None):
        self.lists, self._events, self.n_asked = iter(lists), events or [], 0

    def pods(self, _: str) -> list[Object]:
        self.n_asked += 1
        found = next(self.lists)
        if isinstance(found, ServiceError):
            raise found
        return found

    def pod(self, name: str) -> Object | None:
        return SEEN.get(name)

    def events(self, _: str) -> list[Object]:
        return self._events


def asked(answers: Answers, clock: Clock) -> Pods:
    return Pods("app=worker", lambda: cast("Kubernetes", answers), clock)


def causes(
    answers: Answers, clock: Clock, n: int, *, worker: str = WORKER, every_s: float = 2.0
) -> Iterator[LossCause | None]:
    """Yield, for each look, the cause that is known for a worker that leaves then."""
    pods = asked(answers, clock)
    for _ in range(n):
        clock.now += every_s
        pods.look()
        yield pods.cause(worker, clock.now)


OOM = "the container of pod mops-worker-7bc55dccfd-5gs4b was OOMKilled (exit code 137)"


def test_a_worker_is_found_by_the_address_of_its_pod(clock: Clock) -> None:
    answers = Answers([healthy()], [healthy()], [SEEN["restarted-worker"]])
    assert list(causes(answers, clock, 3)) == [None, None, LossCause(OOM, memory=True)]
    answers = Answers([healthy()], [SEEN["restarted-worker"]])
    assert list(causes(answers, clock, 2, worker="tcp://10.245.0.65:8789")) == [None, None]


def test_an_end_that_was_there_at_the_first_look_explains_nothing(clock: Clock) -> None:
    again = [SEEN["restarted-worker"]]
    assert list(causes(Answers(again, again), clock, 2)) == [None, None]
    answers = Answers([healthy()], again)
    assert list(causes(answers, clock, 2, every_s=PAUSE_SECONDS + 1)) == [None, None], "the time of the end is unknown"


def test_an_end_explains_a_departure_at_about_that_time_only(clock: Clock) -> None:
    pods = asked(Answers([healthy()], [SEEN["restarted-worker"]]), clock)
    pods.look()
    clock.now += 10
    pods.look()
    seen_at = clock.now
    known = [pods.cause(WORKER, seen_at + s) is not None for s in (-NEAR_SECONDS - 1, -NEAR_SECONDS, 0, 1, 3)]
    assert known == [False, True, True, True, False]


def test_a_pod_that_is_missing_was_deleted_unless_an_event_says_more(clock: Clock) -> None:
    assert list(causes(Answers([healthy()], []), clock, 2))[-1] == LossCause(
        "pod mops-worker-7bc55dccfd-5gs4b was deleted", removed=True
    )
    answers = Answers([healthy()], [], events=[event("Evicted", "The node was low on resource: pids. ")])
    found = list(causes(answers, clock, 2))[-1]
    assert found is not None
    assert not found.removed
    assert "low on resource: pids" in found.text


def test_the_end_of_a_pod_counts_after_the_pod_was_deleted(clock: Clock) -> None:
    answers = Answers([healthy()], [SEEN["restarted-worker"]], [])
    assert list(causes(answers, clock, 3))[-1] == LossCause(OOM, memory=True)


def test_of_two_pods_with_one_address_the_newest_counts() -> None:
    old = copy.deepcopy(SEEN["disk"])
    old["status"]["podIP"] = "10.245.0.64"
    old["metadata"]["creationTimestamp"] = "2026-11-20T00:00:00Z"
    history = PodHistory()
    history.note([healthy(), old], 1.0)
    found = history.pod_with_address("10.245.0.64")
    assert found is not None
    assert found.name == "mops-worker-7bc55dccfd-5gs4b"


def test_ipv6_addresses_are_found_too(clock: Clock) -> None:
    pod = copy.deepcopy(SEEN["killed"])
    pod["status"]["podIP"] = "fd00::7"
    assert next(causes(Answers([pod]), clock, 1, worker="tcp://[fd00::7]:8789")) is not None


def test_a_kubernetes_that_refuses_is_logged_once_and_not_asked_for_a_while(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    refused = ServiceError("you may not do this: pods is forbidden", where="https://10.97.0.1, namespace studies")
    answers = Answers(refused, refused, [])
    pods = asked(answers, clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(40):
            clock.now += 1
            pods.look()
            assert pods.cause(WORKER, clock.now) is None
    assert answers.n_asked == 2
    (said,) = caplog.messages
    assert said == f"cannot ask Kubernetes why pods end: {refused.what} (at {refused.where})"


@pytest.mark.skipif(ACCOUNT.exists(), reason="this is a pod")
def test_a_missing_service_account_token_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    Pods("app=worker").look()
    assert "the pod has no token of its service account" in caplog.text


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ("under-init", "the container of pod under-init was OOMKilled (exit code 137)"),
        ("child-code-3", ""),
        ("crash", ""),
        ("gone", ""),
    ],
)
def test_a_runner_that_was_oom_killed_is_recognized(pod: str, expected: str, clock: Clock) -> None:
    assert asked(Answers(), clock).runner_out_of_memory(pod) == expected


@pytest.mark.parametrize(("workers", "options"), [({"a": "1", "b": "2"}, ["--workers", "a=1,b=2"]), ({}, [])])
def test_a_runner_gets_the_labels_of_its_workers_as_an_option(workers: dict[str, str], options: list[str]) -> None:
    request = Request("job", 1, "mops", "uid", "studies", "abfs://a/b", "tcp://s:8786", workers=workers)
    spec = runner_job(RunnerPod(image="mops", service_account="mops-runner"), request)["spec"]["template"]["spec"]
    assert spec["containers"][0]["args"] == ["mops", "jobs", "run", "job", "--pod", "--grace", "60", *options]


def test_events_of_the_container_before_are_ignored() -> None:
    liveness = event("Killing", "Container worker failed liveness probe, will be restarted", 3)
    assert event_end("x", [liveness], since="2026-11-21T22:33:04Z") is None
    assert event_end("x", [liveness], since="2026-11-21T22:33:01Z") is not None
