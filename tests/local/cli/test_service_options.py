"""Options that only a service or only this machine accepts: the full text of errors, and nothing is written.

The API server here allows everything and has no objects. The tests in tests/cluster use a real one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from mops.k8s.chart import ServiceConfig
from mops.service.profile import Profile
from waiting import until

from .command_lab import CommandLab, Ran

SERVICE = {
    "format": 1,
    "version": "0.1.0",
    "release": "mops",
    "storage": "/storage",
    "scheduler": "tcp://mops-scheduler.studies.svc:8786",
    "dashboard": {"service": "mops-scheduler", "port": 8787},
    "runner": {"image": "localhost/mops:0.1.0", "serviceAccount": "mops-runner"},
    "worker": {"selector": {}},
}


class Yes(BaseHTTPRequestHandler):
    """An API server that allows everything and has only the description of the service."""

    posted: list[str]
    described: dict[str, str]
    """The content of the service's ConfigMap by namespace."""

    def do_GET(self) -> None:
        if self.path.startswith("/version"):
            self.answer(200, {"gitVersion": "v1.34.4"})
        elif "/configmaps/" in self.path:
            text = self.described.get(self.path.partition("/namespaces/")[2].partition("/")[0])
            if text is None or not self.path.partition("?")[0].endswith("/mops-client"):
                self.answer(404, {"kind": "Status", "message": "not found"})
            else:
                self.answer(200, {"metadata": {"name": "mops-client", "uid": "uid-0"}, "data": {"client.json": text}})
        else:
            self.answer(200, {"items": []})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.posted.append(self.path)
        self.answer(201, {"metadata": {"name": ""}, "status": {"allowed": True, "userInfo": {"username": "ada"}}})

    def answer(self, code: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def kubeconfig(folder: Path, server: str) -> Path:
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "studies"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def described() -> dict[str, str]:
    """The current descriptions of the services, by namespace."""
    return {"studies": json.dumps(SERVICE)}


@pytest.fixture
def server(lab: CommandLab, described: dict[str, str]) -> Iterator[str]:
    """Run the API server that allows everything, and give the lab's user a kubeconfig for it."""
    handler = type("Handler", (Yes,), {"posted": [], "described": described})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{http.server_port}"
        lab.environment["KUBECONFIG"] = str(kubeconfig(lab.root, url))
        yield url
        http.shutdown()
        assert not [path for path in http.RequestHandlerClass.posted if "selfsubject" not in path]  # type: ignore[attr-defined]


@pytest.fixture
def connected(lab: CommandLab, server: str) -> CommandLab:
    """A user who is connected to a service."""
    lab.connect(Profile(namespace="studies", service=ServiceConfig.parse(json.dumps(SERVICE), "here")))
    lab.environment.pop("MODELOPS_STORAGE")
    return lab


def refused(lab: CommandLab, ran: Ran, *lines: str, code: int = 2) -> None:
    """Assert the full error, and that nothing was written."""
    assert ran.err.splitlines() == [f"error: {lines[0]}", f"  at: {lines[1]}", f"hint: {lines[2]}"]
    assert (ran.code, ran.out) == (code, "")
    assert lab.stored() == []


OPTIONS = {
    "--queue": "small",
    "--priority-class": "urgent",
    "--deadline": "60",
    "--keep": "60",
    "--memory": "2Gi",
}


def test_a_local_job_accepts_no_service_option_and_the_error_names_all(lab: CommandLab) -> None:
    for options in (["--memory"], [*OPTIONS]):
        refused(
            lab,
            lab.submit(*(part for one in options for part in (one, OPTIONS[one]))),
            f"only a cluster service has {', '.join(options)}, and this machine runs the job",
            "the options of the runner's pod",
            "connect to a service: mops connect",
        )


@pytest.mark.parametrize(("here", "in_python"), [("--local", ", in Python local=True"), ("--detach", "")])
def test_the_error_names_the_setting_that_makes_the_job_local(connected: CommandLab, here: str, in_python: str) -> None:
    refused(
        connected,
        connected.submit(here, "--queue", "small"),
        "only a cluster service has --queue, and this machine runs the job",
        "the options of the runner's pod",
        f"leave out {here}{in_python}",
    )


def test_a_scheduler_address_makes_the_job_local(connected: CommandLab) -> None:
    ran = connected.submit("--queue", "small", MODELOPS_SCHEDULER="tcp://127.0.0.1:1")
    note, *rest = ran.err.splitlines()
    assert note.startswith("note: MODELOPS_SCHEDULER is set")
    hint = "unset MODELOPS_SCHEDULER"
    what = "only a cluster service has --queue, and this machine runs the job"
    refused(connected, Ran(ran.code, ran.out, "\n".join(rest)), what, "the options of the runner's pod", hint)


def test_local_runs_on_this_machine_even_when_connected_to_a_service(connected: CommandLab) -> None:
    assert connected.submit("--local", "--storage", connected.storage).code == 0


@pytest.mark.parametrize("here", [[], ["--local"]])
def test_a_broken_profile_is_reported_before_anything_is_written(connected: CommandLab, here: list[str]) -> None:
    """Regression: with --local, the error came after the job was created, and the job did not run."""
    profile = Path(connected.environment["XDG_CONFIG_HOME"], "mops", "profiles", "default.json")
    profile.write_text("{}")
    refused(
        connected,
        connected.submit(*here, "--storage", connected.storage),
        "this does not describe a mops service (namespace: Field required; service: Field required)",
        str(profile),
        "replace it: mops connect --profile default --namespace NAME",
    )
    assert connected.submit("--storage", connected.storage, XDG_CONFIG_HOME=str(connected.root / "none")).code == 0


def test_a_service_refuses_a_local_folder_as_storage(connected: CommandLab) -> None:
    refused(
        connected,
        connected.submit("--storage", connected.storage),
        "a runner in the cluster cannot reach this storage",
        str(connected.storage),
        "leave out --storage to use the service's storage (/storage), or add --local",
    )


def test_a_service_refuses_a_local_interpreter(connected: CommandLab) -> None:
    ran = connected.submit("--python", "/usr/bin/python3")
    assert ran.err.splitlines() == [
        "error: these options cannot start simulations",
        "  --python: /usr/bin/python3 is on this machine, and pods use their image's interpreter",
        "hint: list the model's libraries in requirements.txt",
    ]
    assert (ran.code, ran.out, connected.stored()) == (2, "", [])


def test_a_service_that_cannot_be_reached(connected: CommandLab) -> None:
    path = kubeconfig(connected.root, "https://127.0.0.1:1")
    refused(
        connected,
        connected.submit(),
        "the Kubernetes cluster at 127.0.0.1:1 is out of reach (Connection refused)",
        f"{path}, its current context",
        "check the context: kubectl cluster-info",
        code=4,
    )


def test_without_kubernetes_the_states_are_those_of_the_storage(lab: CommandLab) -> None:
    """Regression: list, status and watch printed nothing, although the storage has everything."""
    lab.write_study(parameter_sets=[{"x": 1, "sleep": 60}])
    with lab.start("jobs", "submit", lab.study, "--name", "job", "--local") as process:
        # After its first sign of life a dead runner is known by its process; before, it counts as alive for a while.
        until(lambda: any(path.endswith("/live/1.json") for path in lab.stored()))
        process.kill()
    service = json.dumps(SERVICE | {"storage": str(lab.storage)})
    lab.connect(Profile(namespace="studies", service=ServiceConfig.parse(service, "here")))
    lab.environment["KUBECONFIG"] = str(kubeconfig(lab.root, "https://127.0.0.1:1"))
    what = "the Kubernetes cluster at 127.0.0.1:1 is out of reach (Connection refused)"
    listed, shown, watched = (lab.run("jobs", *verb) for verb in (["list"], ["status", "job"], ["watch", "job"]))
    assert (listed.code, listed.out.split("\n")[1].split()[:2]) == (0, ["job", "interrupted"])
    assert listed.err.startswith("warning: Kubernetes does not say which runners are alive, so states are those of")
    assert what in listed.err
    assert (shown.code, shown.err) == (0, "")
    assert f"Kubernetes      unknown: {what}" in shown.out
    assert "check the context: kubectl cluster-info" in shown.out
    assert "mops jobs resume job" in shown.out
    assert json.loads(lab.run("jobs", "status", "job", "--json").out)["kubernetes"]["word"] == "unknown"
    assert watched.err == f"warning: Kubernetes does not answer, so watch reads the storage alone: {what}\n"
    assert (watched.code, watched.out.startswith("job: interrupted after")) == (1, True)


# A service that has changed since mops connect


def test_a_submit_uses_the_current_values_of_the_chart(connected: CommandLab, described: dict[str, str]) -> None:
    """Regression: the profile was as old as the last 'mops connect', so after an upgrade jobs used the old storage and
    image."""
    described["studies"] = json.dumps(SERVICE | {"storage": "/elsewhere"})
    ran = connected.submit("--storage", connected.storage)
    assert "hint: leave out --storage to use the service's storage (/elsewhere)" in ran.err
    assert ran.err.startswith("warning: the service has changed since 'mops connect'; the profile is updated\n")
    assert (
        '"/elsewhere"' in Path(connected.environment["XDG_CONFIG_HOME"], "mops", "profiles", "default.json").read_text()
    )
    assert "warning:" not in connected.submit("--storage", connected.storage).err


def test_a_read_only_profile_does_not_stop_a_job(connected: CommandLab, described: dict[str, str]) -> None:
    """A profile may be on a read-only mount. Here a folder has the name of the temporary file."""
    described["studies"] = json.dumps(SERVICE | {"storage": "/elsewhere"})
    profile = Path(connected.environment["XDG_CONFIG_HOME"], "mops", "profiles", "default.json")
    kept = profile.read_text()
    program = (
        "import os, pathlib, runpy, sys\n"
        f"pathlib.Path({str(profile)!r}).with_suffix(f'.{{os.getpid()}}').mkdir()\n"
        "runpy.run_module('mops.cli.start', run_name='__main__')\n"
    )
    arguments = ["jobs", "submit", str(connected.study), "--storage", str(connected.storage)]
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=connected.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stderr.startswith("warning: the service has changed since 'mops connect', but the profile cannot be")
    assert "hint: leave out --storage to use the service's storage (/elsewhere)" in ran.stderr
    assert profile.read_text() == kept


CHANGED = {
    "removed": (
        None,
        "service 'mops' no longer exists: its ConfigMap is absent",
        "connect to another service with 'mops connect', or add --local to run on this machine",
        4,
    ),
    "newer": (
        {"format": 2, "version": "9.0"},
        "the service's chart is from mops 9.0, and this client is older",
        "install mops-runner 9.0",
        2,
    ),
}


@pytest.mark.parametrize(("fields", "what", "hint", "code"), CHANGED.values(), ids=CHANGED)
def test_a_service_that_this_client_cannot_use_is_an_error(
    connected: CommandLab,
    server: str,
    described: dict[str, str],
    fields: dict[str, object] | None,
    what: str,
    hint: str,
    code: int,
) -> None:
    described.clear()
    if fields is not None:
        described["studies"] = json.dumps(SERVICE | fields)
    refused(connected, connected.submit(), what, f"{server}, namespace studies: ConfigMap mops-client", hint, code=code)


# connect


CONNECT = {
    "an unknown context": (
        "--context elsewhere",
        "the kubeconfig does not lead to a cluster (Context elsewhere not found)",
        "{root}/kubeconfig, context elsewhere",
        "list your contexts: kubectl config get-contexts",
        2,
    ),
    "no kubeconfig": (
        "--kubeconfig {root}/nothing",
        "the kubeconfig does not lead to a cluster (Unable to find valid credentials)",
        "{root}/nothing, its current context",
        "list your contexts: kubectl config get-contexts",
        2,
    ),
    "a namespace without a service": (
        "--namespace empty",
        "this namespace has no mops service 'mops'",
        "{server}, namespace empty",
        "use another --namespace, or ask the cluster's operator to install the chart",
        4,
    ),
}


def test_connect_to_what_has_no_service(lab: CommandLab, server: str) -> None:
    for options, what, where, hint, code in CONNECT.values():
        given, at = (text.format(root=lab.root, server=server) for text in (options, where))
        refused(lab, lab.run("connect", *given.split()), what, at, hint, code=code)
        assert not_connected(lab)


@pytest.mark.usefixtures("server")
def test_an_unknown_profile_is_answered_with_the_saved_ones(lab: CommandLab, described: dict[str, str]) -> None:
    assert lab.run("connect", "--profile", "prod").code == 0
    described.clear()
    assert "or use a saved profile: --profile prod" in lab.run("connect", "--profile", "prdo").err


def test_connect_uses_the_namespace_of_the_named_context(
    lab: CommandLab, server: str, described: dict[str, str]
) -> None:
    """kr8s uses the namespace of the current context instead of that of the named one."""
    described.clear()
    path = Path(lab.environment["KUBECONFIG"])
    content = yaml.safe_load(path.read_text())
    other = {"name": "other", "context": {"cluster": "c", "user": "u", "namespace": "theirs"}}
    path.write_text(yaml.safe_dump(content | {"contexts": [*content["contexts"], other]}))
    assert f"at: {server}, namespace studies\n" in lab.run("connect").err
    assert f"at: {server}, namespace theirs\n" in lab.run("connect", "--context", "other").err


def test_forgetting_a_service(connected: CommandLab) -> None:
    assert connected.run("disconnect").err == "jobs run on this machine again\n"
    assert connected.run("disconnect").err == "no service was connected\n"
    assert not_connected(connected)


def test_services_have_named_profiles(connected: CommandLab) -> None:
    assert connected.run("connect", "--profile", "other").code == 0
    assert connected.run("disconnect").code == 0
    assert service_of(connected) is None
    assert connected.run("connect", "--profile", "default").code == 0
    assert service_of(connected) == "mops in namespace studies"


def service_of(lab: CommandLab) -> str | None:
    lines: dict[str, str | None] = {one["name"]: one["value"] for one in lab.run("settings", "--json").json}
    return lines["service"]


def test_a_wrong_name_of_a_profile(connected: CommandLab) -> None:
    ran = connected.run("connect", "--profile", "../prod")
    assert ran.code == 2
    assert "a profile cannot have the name '../prod'" in ran.err


def not_connected(lab: CommandLab) -> bool:
    return not Path(lab.environment["XDG_CONFIG_HOME"], "mops", "current-profile").exists()
