"""The phase of a runner's Job, from what Kubernetes 1.34 writes: every word, every reason."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mops.k8s import pod_state
from mops.k8s.chart import Object
from mops.k8s.job_phase import GONE, Phase, phase_of
from mops.k8s.pod_state import (
    ObjectState,
    container_port,
    ends_of,
    event_time,
    is_ready,
    last_end,
    newest,
    pending,
    refused_pods,
    serving,
    state_of,
    waiting,
)

LIMIT = "BackoffLimitExceeded"


def job(suspend: bool = False, labels: Object | None = None, conditions: Any = (), **status: Any) -> Object:
    meta = {"name": "study-1", "creationTimestamp": "2026-11-21T10:00:00Z", "labels": labels or {}}
    return {"metadata": meta, "spec": {"suspend": suspend}, "status": {**status, "conditions": list(conditions)}}


def condition(kind: str, reason: str = "", message: str = "", status: str = "True") -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def pod(
    phase: str = "Pending", name: str = "study-1-x7k2p", born: str = "2026-11-21T10:00:01Z", **status: Any
) -> Object:
    meta = {"name": name, "creationTimestamp": born}
    return {"metadata": meta, "spec": {"containers": [{"name": "runner"}]}, "status": {"phase": phase, **status}}


def waits(reason: str, message: str = "") -> Object:
    state = {"waiting": {"reason": reason, "message": message} if message else {"reason": reason}}
    return pod(containerStatuses=[{"name": "runner", "restartCount": 0, "state": state}])


def end(code: int, reason: str = "Error", message: str = "", at: str = "2026-11-21T10:05:00Z") -> Object:
    return {"exitCode": code, "reason": reason, "message": message, "finishedAt": at}


def ended(phase: str, *ends: Object, name: str = "study-1-x7k2p") -> Object:
    """Return a pod whose container has ended, once or twice."""
    states = dict(zip(("state", "lastState"), ({"terminated": one} for one in ends), strict=False))
    return pod(phase, name, containerStatuses=[{"name": "runner", "state": {}, "lastState": {}, **states}])


def event(reason: str, message: str, kind: str = "Pod", name: str = "study-1-x7k2p", at: str | None = "1") -> Object:
    about = {"kind": kind, "name": name}
    return {"reason": reason, "message": message, "involvedObject": about, "lastTimestamp": at, "type": "Warning"}


NO_ROOM = "0/3 nodes are available: 3 Insufficient memory. preemption: 0/3 nodes are available"
UNSCHEDULED = pod(conditions=[condition("PodScheduled", "Unschedulable", NO_ROOM, "False")])
QUEUED = pod(conditions=[condition("PodScheduled", "SchedulingGated", "Scheduling is blocked", "False")])
QUEUED["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "small"}
QUEUED["spec"] = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
NO_PULL = 'Back-off pulling image "registry.example.org/mops:0.2"'
NO_SECRET = 'secret "storage-write" not found'
NO_MOUNT = 'MountVolume.SetUp failed for volume "ca" : configmap "ca" not found'
OVER_QUOTA = 'Error creating: pods "study-1-" is forbidden: exceeded quota: small'
NOT_RESTRICTED = 'Error creating: pods "study-1-" is forbidden: violates PodSecurity "restricted:latest"'
RUNS = pod("Running", containerStatuses=[{"name": "runner", "state": {"running": {}}}])
OOM = ended("Failed", end(137, "OOMKilled"))
SAID = "Traceback\nerror: the storage does not answer\n  at: abfs://x\nhint: check the network\n"

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
NODE_DEAD = {
    **RUNS,
    "metadata": {**RUNS["metadata"], "deletionTimestamp": "2026-11-21T11:58:00Z"},
    "spec": {"nodeName": "n7"},
}
ENDING = {**RUNS, "metadata": {**RUNS["metadata"], "deletionTimestamp": "2026-11-21T12:00:30Z"}}

# A Job, its pods, the events; the phase's word and reason.
TABLE: dict[str, tuple[Object | None, list[Object], list[Object], str, str]] = {
    "gone": (None, [], [], "gone", "its Kubernetes Job no longer exists"),
    "on a node that does not answer": (job(), [NODE_DEAD], [], "lost", "its node n7 does not answer"),
    "ending": (job(), [ENDING], [], "running", ""),
    "queued": (job(True, {"kueue.x-k8s.io/queue-name": "small"}), [], [], "queued", "in the queue small"),
    "suspended": (job(True), [], [], "suspended", ""),
    "not seen by the Job controller yet": (job(), [], [], "pending", ""),
    "not seen by the scheduler yet": (job(), [pod()], [], "starting", ""),
    "no room": (job(), [UNSCHEDULED], [], "unschedulable", NO_ROOM),
    "first pull": (job(), [waits("ErrImagePull", "rpc error: not found")], [], "stuck", "ErrImagePull: rpc error"),
    "later pulls": (job(), [waits("ImagePullBackOff", NO_PULL)], [], "stuck", f"ImagePullBackOff: {NO_PULL}"),
    "never pulled": (job(), [waits("ErrImageNeverPull")], [], "stuck", "ErrImageNeverPull"),
    "a bad name": (job(), [waits("InvalidImageName", "x y")], [], "stuck", "InvalidImageName: x y"),
    "no Secret": (job(), [waits("CreateContainerConfigError", NO_SECRET)], [], "stuck", NO_SECRET),
    "cannot run": (job(), [waits("RunContainerError", "exec: mops")], [], "stuck", "RunContainerError: exec: mops"),
    "cannot be made": (job(), [waits("CreateContainerError", "x")], [], "stuck", "CreateContainerError: x"),
    "being made": (job(), [waits("ContainerCreating")], [], "starting", ""),
    "no volume": (job(), [waits("ContainerCreating")], [event("FailedMount", NO_MOUNT)], "stuck", NO_MOUNT),
    "no disk": (job(), [waits("ContainerCreating")], [event("FailedAttachVolume", "busy")], "stuck", "busy"),
    "over quota": (job(), [], [event("FailedCreate", OVER_QUOTA, "Job", "study-1")], "stuck", OVER_QUOTA),
    "not admitted": (job(), [], [event("FailedCreate", NOT_RESTRICTED, "Job", "study-1")], "stuck", NOT_RESTRICTED),
    "running": (job(active=1), [RUNS], [], "running", ""),
    "its pod has ended, and the next one is not there yet": (job(failed=1), [], [], "pending", ""),
    "out of memory": (job(failed=1), [OOM], [], "retrying", "OOMKilled, exit code 137"),
    "storage out of reach": (
        job(failed=1),
        [ended("Failed", end(4, message=SAID))],
        [],
        "retrying",
        "exit code 4: error: the storage does not answer",
    ),
    "ended": (job(conditions=[condition("Complete")]), [ended("Succeeded", end(0, "Completed"))], [], "ended", ""),
    "about to have ended": (job(conditions=[condition("SuccessCriteriaMet")]), [], [], "ended", ""),
    "failed too often": (
        job(conditions=[condition("Failed", LIMIT, "Job has reached the specified backoff limit")]),
        [OOM],
        [],
        "failed",
        "its pods failed too often; OOMKilled, exit code 137",
    ),
    "took too long": (
        job(conditions=[condition("Failed", "DeadlineExceeded", "was active too long")]),
        [],
        [],
        "failed",
        "it took longer than activeDeadlineSeconds allows",
    ),
    "wrong input": (
        job(conditions=[condition("Failed", "PodFailurePolicy", "Container runner failed with exit code 2")]),
        [ended("Failed", end(2, message="error: no model\n  at: model.py\nhint: write one"))],
        [],
        "failed",
        "its pod ended with an exit code that a restart would repeat; exit code 2: error: no model",
    ),
    "about to have failed": (job(conditions=[condition("FailureTarget", LIMIT)]), [OOM], [], "failed", "too often"),
    "failed for a reason of the future": (
        job(conditions=[condition("Failed", "Melted", "the node has melted")]),
        [],
        [],
        "failed",
        "the node has melted",
    ),
    "a condition that is false": (
        job(conditions=[condition("Failed", LIMIT, status="False")]),
        [RUNS],
        [],
        "running",
        "",
    ),
}


def test_each_phase(subtests: pytest.Subtests) -> None:
    for name, (one, pods, events, word, said) in TABLE.items():
        with subtests.test(name):
            found = phase_of(one, pods, events, NOW)
            assert found.word == word
            assert said in found.reason
            assert bool(said) == bool(found.reason)
            assert bool(found.hint) == (word in ("stuck", "unschedulable", "failed", "suspended", "lost"))


def test_every_word_of_a_phase_is_in_the_table() -> None:
    words = (Phase.__doc__ or "").partition("Parameters\n")[0].split("``")[1::2]
    assert {word for *_, word, _ in TABLE.values()} | {"unknown"} == set(words)
    assert len(words) == 13


def test_every_reason_of_a_stuck_container_is_in_the_table() -> None:
    assert all(any(reason in str(case) for case in TABLE.values()) for reason in pod_state._STUCK)


def test_a_job_is_over_when_it_ended_failed_or_is_not_there() -> None:
    over = {
        phase_of(one, pods, events).word for one, pods, events, *_ in TABLE.values() if phase_of(one, pods, events).over
    }
    assert over == {"ended", "failed", "gone"}
    assert GONE.over


def test_pods_that_ended_before_are_counted() -> None:
    found = phase_of(job(failed=2), [RUNS])
    assert (found.restarts, found.pod) == (2, "study-1-x7k2p")


def test_the_newest_pod_decides() -> None:
    young = pod("Running", "study-1-a", "2026-11-21T11:00:00Z")
    assert phase_of(job(failed=1), [young, OOM]).word == "running"
    assert phase_of(job(failed=1), [young, OOM]).pod == "study-1-a"
    assert newest([]) is None
    assert newest([{"metadata": {"name": "without a time"}}, young]) is young


def test_a_suspended_job_without_labels_is_not_queued() -> None:
    suspended = job(True)
    del suspended["metadata"]["labels"]
    assert phase_of(suspended, []).word == "suspended"


def test_a_pod_that_has_ended_is_never_lost(subtests: pytest.Subtests) -> None:
    """A finalizer keeps the pod's record. The Job controller of Kubernetes sets one."""
    for phase in ["Succeeded", "Failed"]:
        with subtests.test(phase=phase):
            assert phase_of(job(), [{**NODE_DEAD, "status": {"phase": phase}}], now=NOW).word == "retrying"


def test_a_pod_is_lost_a_minute_after_its_grace_period(subtests: pytest.Subtests) -> None:
    for until, word in [("2026-11-21T11:59:00Z", "lost"), ("2026-11-21T11:59:01Z", "running")]:
        with subtests.test(until=until, word=word):
            late = {**NODE_DEAD, "metadata": {**NODE_DEAD["metadata"], "deletionTimestamp": until}}
            assert phase_of(job(), [late], now=NOW).word == word
            assert phase_of(job(), [{**late, "spec": {}}], now=NOW).word == "running", "it is on no node"


def test_the_pod_of_a_suspended_job_may_still_be_ending() -> None:
    ending = {**RUNS, "metadata": {**RUNS["metadata"], "deletionTimestamp": "2026-11-21T10:07:00Z"}}
    assert phase_of(job(True), [ending]).reason == "its pod is ending"


def test_the_hint_for_a_suspended_job_names_a_queue_and_never_patches_it() -> None:
    """The hint was to patch `suspend`. If Kueue holds Jobs that have no queue label, that bypassed its quota."""
    hint = phase_of(job(True), []).hint
    assert "patch" not in hint
    assert "--queue QUEUE" in hint


def test_events_of_other_objects_are_ignored() -> None:
    other = [event("FailedMount", "not mine", name="study-10-x"), event("FailedCreate", "not mine", "Job", "study-10")]
    assert phase_of(job(), [waits("ContainerCreating")], other).word == "starting"
    assert phase_of(job(), [], other).word == "pending"


def test_the_last_event_decides_even_without_a_last_timestamp() -> None:
    """Events of events.k8s.io have an eventTime instead."""
    old, new = event("FailedMount", "old", at="2026-11-21T10:00:02Z"), event("FailedMount", "new", at=None)
    new["eventTime"] = "2026-11-21T10:00:03.123456Z"
    for events in ([new, old], [old, new]):
        assert phase_of(job(), [waits("ContainerCreating")], events).reason == "new"
    new, old = (
        event("FailedMount", "new", at="2026-11-21T10:00:03Z"),
        event("FailedMount", "old", at="2026-11-21T10:00:02Z"),
    )
    old["eventTime"] = "2026-11-21T10:00:09.000000Z"  # later than lastTimestamp, which counts
    for events in ([new, old], [old, new]):
        assert phase_of(job(), [waits("ContainerCreating")], events).reason == "new"
    assert event_time({}) == ""


def test_the_newest_refusal_of_a_deployments_pods_is_its_reason(subtests: pytest.Subtests) -> None:
    """Regression: the event of a ReplicaSet from before an upgrade, or nothing if the text had another form."""
    for message, reason in [
        ('pods "mops-worker-5-x" is forbidden: exceeded quota: few, used: pods=1', "exceeded quota: few, used: pods=1"),
        ("admission webhook denied the request: no owner", "admission webhook denied the request: no owner"),
    ]:
        with subtests.test(message=message, reason=reason):
            old = event("FailedCreate", "old", "ReplicaSet", "mops-worker-1", at="2026-11-21T10:00:01Z")
            new = event("FailedCreate", message, "ReplicaSet", "mops-worker-5", at="2026-11-21T10:00:02Z")
            other = event("FailedCreate", "other", "ReplicaSet", "mops-workers-9", at="2026-11-21T10:00:03Z")
            assert refused_pods([old, new, other], "mops-worker") == reason
            assert refused_pods([other], "mops-worker") == ""
            of_pool = event("FailedCreate", "of gpu", "ReplicaSet", "mops-worker-gpu-5", at="2026-11-21T10:00:04Z")
            assert refused_pods([new, of_pool], "mops-worker") == reason
            assert refused_pods([new, of_pool], "mops-worker-gpu") == "of gpu"
            assert refused_pods([new, of_pool], "mops-*") == "of gpu"


def test_a_refusal_of_pods_is_over_after_another_event_of_the_deployment(subtests: pytest.Subtests) -> None:
    """Regression: a service without replicas named a quota that had refused its pods ten minutes before."""
    for reason, kind, name in [
        ("SuccessfulCreate", "ReplicaSet", "mops-worker-5"),
        ("SuccessfulDelete", "ReplicaSet", "mops-worker-5"),
        ("ScalingReplicaSet", "Deployment", "mops-worker"),
    ]:
        with subtests.test(reason=reason, kind=kind, name=name):
            refusal = event("FailedCreate", "no", "ReplicaSet", "mops-worker-5", at="2026-11-21T10:00:02Z")
            assert (
                refused_pods([refusal, event(reason, "done", kind, name, at="2026-11-21T10:00:03Z")], "mops-worker")
                == ""
            )
            for at in ("2026-11-21T10:00:01Z", "2026-11-21T10:00:02Z"):
                assert refused_pods([event(reason, "done", kind, name, at=at), refusal], "mops-worker") == "no"


def test_an_event_without_an_involved_object_is_ignored() -> None:
    nameless = {"reason": "FailedMount", "message": "no"}
    assert phase_of(job(), [waits("ContainerCreating")], [nameless]).word == "starting"


def test_a_pod_without_most_of_its_fields_is_starting() -> None:
    """Kubelet fills in a status step by step."""
    bare = {"metadata": {"name": "study-1-x7k2p"}}
    assert pending(bare) == ObjectState("starting")
    assert phase_of(job(), [bare], now=NOW).word == "starting"
    ending = {"metadata": {**bare["metadata"], "deletionTimestamp": "2026-11-21T11:00:00Z"}}
    assert phase_of(job(), [ending], now=NOW).word == "starting"
    assert pending({**bare, "status": {"containerStatuses": [{"name": "runner"}]}}) == ObjectState("starting")
    assert waiting({"status": {"containerStatuses": [{"state": {"waiting": {"message": "m"}}}]}}) == [("", ": m")]
    assert waiting(waits("ErrImagePull")) == [("ErrImagePull", "ErrImagePull")]
    assert ends_of(bare) == []


def test_a_pod_that_is_scheduled_but_not_ready_is_not_unschedulable() -> None:
    conditions = [condition("PodScheduled"), condition("Ready", status="False")]
    assert pending(pod(conditions=conditions)).word == "starting"
    nowhere = pending(pod(conditions=[{"type": "PodScheduled", "status": "False"}]))
    assert (nowhere.word, nowhere.reason) == ("unschedulable", "")
    assert nowhere.hint == "wait for room, or lower the resources in the chart's values"


def test_a_phase_is_printed_with_its_reason_and_restarts() -> None:
    assert str(Phase("running")) == "running"
    assert str(Phase("running", restarts=1)) == "running, its pod ended once before"
    assert str(Phase("retrying", "exit code 4", restarts=2)) == "retrying: exit code 4, its pod ended 2 times before"
    assert str(Phase("ended", restarts=2)) == "ended"
    assert str(pending(waits("InvalidImageName"))) == "stuck: InvalidImageName"


def test_the_hint_for_a_failed_mount_names_what_may_be_missing() -> None:
    stuck = pending(waits("ContainerCreating"), [event("FailedMount", "no secret")])
    assert stuck.hint == "create the missing volume, Secret or ConfigMap, or correct its name in the chart's values"


# How containers end


def test_the_last_end_is_that_of_the_pod_that_ended_last() -> None:
    first = ended("Failed", end(4, at="2026-11-21T10:01:00Z"), name="study-1-a")
    assert last_end([OOM, first]) == "OOMKilled, exit code 137"
    assert last_end([]) == last_end([RUNS]) == last_end([pod()]) == ""


def test_the_latest_end_counts_in_any_order_of_pods() -> None:
    first, last = end(4, at="2026-11-21T10:01:00Z"), end(5, at="2026-11-21T10:02:00Z")
    timeless = {"exitCode": 6}
    for ends in ([first, last], [last, first]):
        pods = [ended("Failed", one, name=f"study-1-{i}") for i, one in enumerate([*ends, timeless])]
        assert last_end(pods) == last_end(pods[::-1]) == "exit code 5"
    assert last_end([ended("Failed", {"finishedAt": "2026-11-21T10:02:00Z"})]) == "", "no exit code means success"
    assert last_end([ended("Failed", timeless)]) == "exit code 6"


def test_the_ends_of_scheduler_and_worker_containers_are_read() -> None:
    statuses = [{"name": name, "state": {"terminated": end(code)}} for name, code in [("scheduler", 1), ("worker", 2)]]
    assert [one["exitCode"] for one in ends_of(pod("Failed", containerStatuses=statuses))] == [1, 2]


def test_a_restarted_container_has_the_end_of_the_one_before() -> None:
    again = pod(
        "Running",
        containerStatuses=[
            {"name": "worker", "state": {"running": {}}, "lastState": {"terminated": end(137, "OOMKilled")}}
        ],
    )
    assert last_end([again]) == "OOMKilled, exit code 137"
    assert [one["exitCode"] for one in ends_of(ended("Failed", end(1), end(137)))] == [1, 137]


def test_exit_code_0_is_a_success_even_with_reason_oomkilled() -> None:
    """With cgroup v1, a container in which the kernel killed a child has the reason OOMKilled and may exit with 0."""
    assert last_end([ended("Succeeded", end(0, "OOMKilled"))]) == ""
    done = job(conditions=[condition("Complete")])
    assert phase_of(done, [ended("Succeeded", end(0, "OOMKilled"))]) == Phase("ended", pod="study-1-x7k2p")


def test_the_reason_of_an_end_is_the_last_error_in_its_message(subtests: pytest.Subtests) -> None:
    """The last of the three lines of an error is the hint, which is not the reason."""
    for message, said in [
        ("", "exit code 4"),
        ("\n \n", "exit code 4"),
        ("one\ntwo\n", "exit code 4: two"),
        (SAID, "exit code 4: error: the storage does not answer"),
        ("error: first\nhint: a\nerror: second\nhint: b\n", "exit code 4: error: second"),
        ("the last error: was this\nbye", "exit code 4: bye"),
    ]:
        with subtests.test(str((message, said))):
            assert last_end([ended("Failed", end(4, message=message))]) == said


def test_other_containers_of_a_pod_are_ignored() -> None:
    """A service mesh adds containers to the pod."""
    statuses = [
        {"name": "proxy", "state": {"terminated": end(255, at="2026-11-21T10:09:00Z")}},
        {"name": "runner", "state": {"terminated": end(4)}},
    ]
    assert last_end([pod("Failed", containerStatuses=statuses)]) == "exit code 4"


# Pods of the service


def worker(ready: bool = True, restarts: int = 0, state: Object | None = None, **status: Any) -> Object:
    status = {"phase": "Running", **status}
    kubelet = {"name": "worker", "restartCount": restarts, "state": state or {"running": {}}, "lastState": {}}
    if restarts:
        kubelet["lastState"] = {"terminated": end(137, "OOMKilled")}
    conditions = [condition("Ready", status="True" if ready else "False")]
    meta = {"name": "mops-worker-1", "creationTimestamp": "2026-11-21T10:00:00Z"}
    found: Object = {"metadata": meta, "spec": {"nodeName": "node1", "containers": []}}
    return {**found, "status": {"conditions": conditions, "containerStatuses": [kubelet], **status}}


ENDING_WORKER = worker()
ENDING_WORKER["metadata"]["deletionTimestamp"] = "2026-11-21T10:07:00Z"
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}


def test_the_state_of_a_worker(subtests: pytest.Subtests) -> None:
    for pod, said, restarts, hinted in [
        (worker(), "running", 0, False),
        (worker(restarts=3), "running", 3, False),
        (worker(ready=False), "starting", 0, False),
        (
            worker(ready=False, restarts=7, state=BACK_OFF),
            "restarting: CrashLoopBackOff: back-off 5m0s restarting failed container",
            7,
            True,
        ),
        (UNSCHEDULED, f"unschedulable: {NO_ROOM}", 0, True),
        (QUEUED, "queued: in the queue small", 0, False),
        (ENDING_WORKER, "ending", 0, False),
        (worker(ready=False, phase="Failed", reason="Evicted"), "ended: Evicted", 0, False),
    ]:
        with subtests.test(str((pod, said, restarts, hinted))):
            found = state_of(pod)
            assert (str(found), found.restarts, bool(found.hint)) == (said, restarts, hinted)
            assert found.last_end == ("OOMKilled, exit code 137" if restarts else "")
            assert found.ready == is_ready(pod)
            assert found.node == pod["spec"].get("nodeName", "")


def test_connections_go_to_the_newest_pod_that_is_ready_and_not_ending() -> None:
    young = worker()
    young["metadata"] |= {"name": "young", "creationTimestamp": "2026-11-21T11:00:00Z"}
    assert serving([worker(), young, ENDING_WORKER]) is young
    assert serving([ENDING_WORKER, worker(ready=False), pod()]) is None


def test_a_port_of_a_service_leads_to_a_port_of_the_container() -> None:
    ports = [{"port": 8787, "targetPort": "http"}, {"port": 8786}, {"port": 80, "targetPort": 8000}]
    service = {"spec": {"ports": ports}}
    there = {
        "spec": {"containers": [{"ports": [{"name": "tcp", "containerPort": 1}, {"name": "http", "containerPort": 9}]}]}
    }
    assert [container_port(service, there, port) for port in (8787, 8786, 80, 443)] == [9, 8786, 8000, 443]
    assert container_port(service, {"spec": {"containers": [{}]}}, 8787) == 8787
