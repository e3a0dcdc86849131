"""The rounds of a calibration run on the connected service, and continue when the user's process is killed.

The API server here starts the container of a Job as a process on this machine. tests/cluster has a real one.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from mops.k8s.chart import ServiceConfig
from mops.service.profile import Profile
from waiting import until
from warm import WarmProcess, warm

from .command_lab import CommandLab
from .test_service_options import SERVICE, Yes, kubeconfig

MODEL = """
import os
import time
from pathlib import Path


def run(params, seed):
    with open(os.environ["CALLS"], "a") as file:
        file.write(f"{params['x']} {seed}\\n")
    while Path(os.environ["HOLD"]).exists():
        time.sleep(0.02)
    return {"y": [params["x"]]}


def near_3(params, replicates):
    return (params["x"] - 3) ** 2
"""
N, ROUNDS = 6, 2
CALIBRATE = ("study", "calibrate", "space.json", "--model", "model:run", "--target", "model:near_3", "--name", "fit")
OPTIONS = ("--method", "tpe", "-n", N, "--rounds", ROUNDS)


@dataclass
class Jobs:
    """The Jobs of a namespace, whose containers are processes here."""

    environment: dict[str, str]
    log: Path
    manifests: dict[str, dict[str, Any]] = field(default_factory=dict)
    processes: dict[str, WarmProcess] = field(default_factory=dict)
    refuses: bool = False
    """Whether the API server refuses to list Jobs."""

    def create(self, manifest: dict[str, Any]) -> None:
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        name = manifest["metadata"]["name"]
        ours = {one["name"]: one["value"] for one in container["env"] if one["name"] != "MODELOPS_SCHEDULER"}
        with self.log.open("ab") as log:
            environment = self.environment | ours | {"XDG_CONFIG_HOME": str(self.log.parent / "none")}
            self.processes[name] = warm().start(container["args"][1:], environment, self.log.parent, out=log, err=log)
        self.manifests[name] = manifest

    def delete(self, name: str) -> None:
        """Delete a Job: Kubernetes sends SIGTERM to its container."""
        del self.manifests[name]
        self.processes[name].send_signal(signal.SIGTERM)

    def listed(self, selector: str) -> list[dict[str, Any]]:
        return [one | {"status": self._status(one["metadata"]["name"])} for one in self._selected(selector)]

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """Return a pod for each Job. A process here has the name of this machine, as one in a pod has the pod's."""
        return [
            {
                "metadata": {
                    "name": os.uname().nodename,
                    "labels": {"batch.kubernetes.io/job-name": one["metadata"]["name"]},
                },
                "status": {},
            }
            for one in self._selected(selector)
        ]

    def _selected(self, selector: str) -> list[dict[str, Any]]:
        wanted = dict(part.split("=", 1) for part in selector.split(",") if part)
        return [one for one in self.manifests.values() if wanted.items() <= one["metadata"]["labels"].items()]

    def _status(self, name: str) -> dict[str, Any]:
        code = self.processes[name].poll()
        if code is None:
            return {"active": 1}
        return {"conditions": [{"type": "Complete" if code == 0 else "Failed", "status": "True"}]}


class RunsJobs(Yes):
    """An API server that allows everything and runs Jobs."""

    jobs: Jobs

    def do_GET(self) -> None:  # noqa: N802 - http.server calls it
        url = urlsplit(self.path)
        selector = unquote(parse_qs(url.query).get("labelSelector", [""])[0])
        if url.path.endswith("/jobs") and self.jobs.refuses:
            self.answer(403, {"kind": "Status", "code": 403, "message": "jobs.batch is forbidden"})
        elif url.path.endswith("/jobs"):
            self.answer(200, {"kind": "JobList", "items": self.jobs.listed(selector)})
        elif url.path.endswith("/pods"):
            self.answer(200, {"kind": "PodList", "items": self.jobs.pods(selector)})
        else:
            super().do_GET()

    def do_POST(self) -> None:  # noqa: N802 - http.server calls it
        if not urlsplit(self.path).path.endswith("/jobs"):
            super().do_POST()
            return
        manifest = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not urlsplit(self.path).query:  # dryRun=All: only a question
            self.jobs.create(manifest)
        self.answer(201, manifest)

    def do_DELETE(self) -> None:  # noqa: N802 - http.server calls it
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.jobs.delete(urlsplit(self.path).path.rpartition("/")[2])
        self.answer(200, {"kind": "Status", "status": "Success"})


@pytest.fixture
def service(lab: CommandLab) -> Iterator[Jobs]:
    """A user who is connected to a service that runs jobs, with a project and a space."""
    lab.write("model.py", MODEL)
    lab.write("space.json", json.dumps({"x": {"min": 0, "max": 10}}))
    lab.environment |= {"CALLS": str(lab.root / "calls.txt"), "HOLD": str(lab.root / "hold")}
    lab.environment.pop("MODELOPS_STORAGE")
    described = json.dumps(SERVICE | {"storage": str(lab.storage)})
    jobs = Jobs(dict(lab.environment), lab.root / "runners.log")
    handler = type("Handler", (RunsJobs,), {"posted": [], "described": {"studies": described}, "jobs": jobs})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        lab.environment["KUBECONFIG"] = str(kubeconfig(lab.root, f"http://127.0.0.1:{http.server_port}"))
        lab.connect(Profile(namespace="studies", service=ServiceConfig.parse(described, "here")))
        yield jobs
        http.shutdown()
    Path(lab.environment["HOLD"]).unlink(missing_ok=True)
    for process in jobs.processes.values():
        process.kill()
        process.wait()


def calls(lab: CommandLab) -> list[str]:
    path = Path(lab.environment["CALLS"])
    return path.read_text().splitlines() if path.exists() else []


def test_a_killed_command_leaves_its_round_running_and_the_next_one_waits_for_it(
    lab: CommandLab, service: Jobs
) -> None:
    hold = Path(lab.environment["HOLD"])
    hold.touch()
    with lab.start(*CALIBRATE, *OPTIONS, cwd=lab.project) as killed:
        until(lambda: calls(lab), 60, look_every_s=0.05, said=lambda: str(killed.poll()))
        killed.kill()
    assert service.processes["fit-r1-1"].poll() is None, "the runner is on the service"
    pod = ("--memory", "3Gi", "--keep", "60", "--deadline", "900")
    with lab.start(*CALIBRATE, *OPTIONS, *pod, cwd=lab.project) as second:
        assert second.stderr is not None
        line = second.stderr.readline()
        assert line.startswith("round 1 of 2: job fit-r1, "), line
        hold.unlink()
        _, err = second.communicate(timeout=60)
    assert second.returncode == 0, err + service.log.read_text()
    assert f"round {ROUNDS} ended: {N} sets scored, 0 failed" in err
    assert list(service.manifests) == ["fit-r1-1", "fit-r2-1"], "no round has started twice"
    assert len(calls(lab)) == len(set(calls(lab))) == N * ROUNDS
    assert lab.run("calibrations", "list", "--json").json[0]["rounds"] == ROUNDS
    spec = service.manifests["fit-r2-1"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["memory"] == "3Gi"
    assert (spec["ttlSecondsAfterFinished"], spec["activeDeadlineSeconds"]) == (60, 900)


def test_a_round_whose_runner_was_killed_is_resumed(lab: CommandLab, service: Jobs) -> None:
    hold = Path(lab.environment["HOLD"])
    hold.touch()
    with lab.start(*CALIBRATE, *OPTIONS, cwd=lab.project) as first:
        until(lambda: calls(lab), 60, look_every_s=0.05, said=lambda: str(first.poll()))
        os.kill(service.processes["fit-r1-1"].pid, 9)
        _, err = first.communicate(timeout=120)
    assert first.returncode != 0
    assert "mops jobs resume fit-r1" in err
    for sign_of_life in lab.storage.rglob("live/*.json"):
        sign_of_life.unlink()  # as if the runner had been killed before its first one
    hold.unlink()
    ran = lab.run(*CALIBRATE, *OPTIONS, cwd=lab.project)
    assert ran.code == 0, ran.err + service.log.read_text()
    assert list(service.manifests)[1:] == ["fit-r1-2", "fit-r2-1"]


def test_the_options_of_a_pod_are_refused_on_this_machine(lab: CommandLab, service: Jobs) -> None:
    ran = lab.run(*CALIBRATE, *OPTIONS, "--local", "--memory", "3Gi", cwd=lab.project)
    assert ran.code == 2
    assert "only a cluster service has --memory, and this machine runs the job" in ran.err
    assert "leave out --local" in ran.err
    assert calls(lab) == []
