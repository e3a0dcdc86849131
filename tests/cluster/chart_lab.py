"""The chart, rendered by the real helm."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from programs import cluster_program

CHART = Path(__file__).parents[2] / "helm" / "mops"
MINIMAL = CHART / "ci" / "minimal-values.yaml"
EVERYTHING = CHART / "ci" / "everything-values.yaml"

Object = dict[str, Any]


def helm_program() -> str:
    """Return helm, from the PATH or the test cluster. Without helm, skip the test, or fail if it must run."""
    return cluster_program("helm")


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run helm without a cluster and without the settings of the user."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
    env["KUBECONFIG"] = os.devnull
    return subprocess.run([helm_program(), *map(str, arguments)], env=env, capture_output=True, text=True, timeout=60)


@dataclass(frozen=True)
class Rendered:
    """The objects of a release."""

    text: str

    @cached_property
    def objects(self) -> list[Object]:
        return [document for document in yaml.safe_load_all(self.text) if document is not None]

    def of(self, kind: str) -> dict[str, Object]:
        """Return the objects of a kind by their names."""
        return {found["metadata"]["name"]: found for found in self.objects if found["kind"] == kind}

    @property
    def client(self) -> Object:
        """The configuration that clients read."""
        (config,) = (found for name, found in self.of("ConfigMap").items() if name.endswith("-client"))
        read: Object = json.loads(config["data"]["client.json"])
        return read

    def pods(self) -> Iterator[tuple[str, Object]]:
        """Yield each pod or pod template with its name."""
        for name, deployment in self.of("Deployment").items():
            yield name, deployment["spec"]["template"]
        for name, pod in self.of("Pod").items():
            yield name, pod
        yield "client's worker", self.client["worker"]["podTemplate"]
        yield "client's scheduler", self.client["schedulerPodTemplate"]

    def container(self, component: str) -> Object:
        """Return the container of the scheduler or the worker."""
        (found,) = self.of("Deployment")[f"mops-{component}"]["spec"]["template"]["spec"]["containers"]
        assert isinstance(found, dict)
        return found


def template(
    folder: Path, values: Mapping[str, Any], *files: Path, chart: Path = CHART
) -> subprocess.CompletedProcess[str]:
    """Render a release ``mops`` in namespace ``studies``, with values over those of files."""
    given = folder / "values.yaml"
    given.write_text(yaml.safe_dump(dict(values)))
    options = [option for file in (*files, given) for option in ("--values", file)]
    return helm("template", "mops", chart, "--namespace", "studies", *options)


def rendered(folder: Path, values: Mapping[str, Any] = {}, *files: Path, chart: Path = CHART) -> Rendered:
    """Render valid values."""
    ran = template(folder, values, *(files or (MINIMAL,)), chart=chart)
    assert ran.returncode == 0, ran.stderr
    return Rendered(ran.stdout)


def refused(folder: Path, values: Mapping[str, Any], *files: Path) -> str:
    """Return the error of helm for invalid values."""
    ran = template(folder, values, *(files or (MINIMAL,)))
    assert ran.returncode != 0
    return ran.stderr


def yaml_of(guide: str | Path) -> list[Object]:
    """Return the YAML blocks of a page, or of the one with this name in docs/how-to."""
    page = guide if isinstance(guide, Path) else CHART.parents[1] / "docs" / "how-to" / f"{guide}.md"
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)]
