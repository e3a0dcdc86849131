from __future__ import annotations

import json
from pathlib import Path

import pytest
from service_in_memory import DESCRIBED, MODEL

from kubernetes_in_memory import Kubernetes
from mops.k8s.chart import ServiceConfig
from mops.service.profile import Profile
from mops.service.service import Service


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return str(tmp_path / "storage")


@pytest.fixture
def service(storage: str) -> Service:
    """A service whose pods can read a folder of this machine."""
    described = ServiceConfig.model_validate(DESCRIBED | {"storage": storage})
    return Service(Profile(namespace="studies", service=described), Kubernetes(), described.runner)  # type: ignore[arg-type]


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(MODEL)
    path = tmp_path / "waves.json"
    path.write_text(json.dumps({"model": "model:run", "parameter_sets": [{"x": 0}, {"x": 1}]}))
    return path
