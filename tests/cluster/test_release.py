"""`make release` pushes an image, and a chart that installs this image, to a real registry, and builds a wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import pytest
import yaml
from chart_lab import MINIMAL, helm, helm_program

import mops
from programs import free_port, installed_once
from waiting import until

pytestmark = pytest.mark.k8s

ROOT = Path(__file__).parents[2]
REGISTRY = "v0.20.6"
VERSION = "7.8.9"


def registry_program() -> Path:
    """Return the program `registry` of go-containerregistry, after building it if necessary: 3 s and 9 MB."""
    if shutil.which("go") is None:
        pytest.skip("needs Go, which builds a registry")

    def install(home: Path) -> None:
        module = f"github.com/google/go-containerregistry/cmd/registry@{REGISTRY}"
        subprocess.run(["go", "install", module], env=os.environ | {"GOBIN": str(home)}, check=True, timeout=240)

    return installed_once(f"registry-{REGISTRY}", install) / "registry"


def answers(url: str) -> bool:
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=10) as answer:
            return int(answer.status) == 200
    except (URLError, ConnectionError):
        return False


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A registry with an empty store."""
    port = free_port()
    with (tmp_path / "registry.txt").open("wb") as log:
        process = subprocess.Popen([registry_program(), "-port", str(port)], stdout=log, stderr=log)
    try:
        until(lambda: answers(f"http://127.0.0.1:{port}/v2/") or process.poll() is not None)
        assert process.poll() is None, (tmp_path / "registry.txt").read_text()
        yield f"127.0.0.1:{port}/team"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files of which a release is made, so that it leaves none in the checkout."""
    root = tmp_path / "clone"
    for name in (".ci", "helm/mops", "runner"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("Makefile", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root)
    about = root / "runner" / "mops" / "__init__.py"
    about.write_text(about.read_text().replace(f'"{mops.__version__}"', f'"{VERSION}"'))
    return root


def release(clone: Path, registry: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PATH": f"{Path(helm_program()).parent}:{os.environ['PATH']}"} | variables
    return subprocess.run([clone / ".ci" / "release", registry], env=env, capture_output=True, text=True, timeout=240)


def test_the_chart_of_a_release_has_its_version_and_names_its_image(clone: Path, registry: str) -> None:
    ran = release(clone, registry, ONLY="chart", PLAIN_HTTP="1")
    assert ran.returncode == 0, ran.stderr
    chart = f"oci://{registry}/charts/mops"
    shown = helm("template", "mops", chart, "--version", VERSION, "--plain-http", "--values", MINIMAL)
    assert shown.returncode == 0, shown.stderr
    objects = [one for one in yaml.safe_load_all(shown.stdout) if one]
    images = {
        container["image"]
        for one in objects
        if one["kind"] == "Deployment"
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert images == {f"{registry}/mops:{VERSION}"}
    assert {one["metadata"]["labels"]["helm.sh/chart"] for one in objects if one["kind"] == "Deployment"} == {
        f"mops-{VERSION}"
    }


SMALL_IMAGE = """
FROM scratch
ARG VERSION
ARG KIND
LABEL version=${VERSION} kind=${KIND}
COPY runner/mops/__init__.py /
"""
"""In place of the real Dockerfile, which takes minutes, and which k8s/test-env builds."""


def test_the_image_and_the_wheel_of_a_release_have_its_version(clone: Path, registry: str, tmp_path: Path) -> None:
    """Without Docker: with it, the script calls other programs, which this test does not show."""
    if shutil.which("buildah") is None:
        pytest.skip("needs buildah")
    (clone / "Dockerfile").write_text(SMALL_IMAGE)
    store = tmp_path / "storage.conf"
    store.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{tmp_path}/images"\nrunroot = "{tmp_path}/run"\n')
    separate = {"CONTAINERS_STORAGE_CONF": str(store), "DOCKER_HOST": f"unix://{tmp_path}/none"}
    ran = release(
        clone, registry, ONLY="wheel image", PLAIN_HTTP="1", BUILD_OPTIONS="--build-arg KIND=small", **separate
    )
    assert ran.returncode == 0, ran.stderr
    assert [path.name for path in (clone / "dist").iterdir()] == [f"mops_runner-{VERSION}-py3-none-any.whl"]
    host, _, folder = registry.partition("/")
    image = f"http://{host}/v2/{folder}/mops"
    manifest = read_json(f"{image}/manifests/{VERSION}")
    config = read_json(f"{image}/blobs/{manifest['config']['digest']}")
    assert {name: config["config"]["Labels"][name] for name in ("version", "kind")} == {
        "version": VERSION,
        "kind": "small",
    }


def read_json(url: str) -> Any:
    with build_opener(ProxyHandler({})).open(url, timeout=10) as answer:
        return json.load(answer)


@pytest.mark.parametrize(
    ("registry", "only", "said"),
    [
        ("", "chart", "'' is not a registry: write it like make release REGISTRY=registry.example.org/team"),
        ("https://example.org", "chart", "'https://example.org' is not a registry: write it like "),
        ("example.org", "charts", "ONLY has no step 'charts': wheel, image, chart"),
    ],
)
def test_a_release_to_no_registry_is_refused(clone: Path, registry: str, only: str, said: str) -> None:
    ran = release(clone, registry, ONLY=only)
    assert ran.returncode == 2
    assert said in ran.stderr
