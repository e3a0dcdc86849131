"""Imports go one way: the table in CONTRIBUTING.md, read from the code."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mops

PACKAGE = Path(mops.__file__).parent
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

# What each layer may import of mops, besides itself. `mops` is the package's own `__init__`: its version.
LAYERS = {
    "errors": set(),
    "folders": set(),
    "settings": {"errors"},
    "profile": {"errors"},
    "k8s": {"errors", "profile"},
    "study": {"errors"},
    "storage": {"mops", "errors", "folders", "study"},
    "worker": {"errors", "folders", "study", "storage"},
    "driver": {"errors", "settings", "study", "storage", "worker"},
    "location": {"errors", "settings", "profile", "study", "storage"},
    "job": {"errors", "location", "study", "storage"},
    "export": {"errors", "job"},
    "listing": {"errors", "storage", "job"},
    "textlog": {"errors", "storage", "job"},
    "tidy": {"errors", "storage", "job"},
    "deletion": {"errors", "storage", "job", "tidy"},
    "derive": {"errors", "study", "storage", "job"},
    "detached": {"errors", "settings", "storage"},
    "own_cluster": {"errors", "k8s"},
    "service": {"mops", "errors", "settings", "profile", "k8s", "storage"},
    "survey": {"errors", "k8s", "driver", "service"},
    "launch": {
        "mops",
        "errors",
        "settings",
        "study",
        "storage",
        "worker",
        "driver",
        "location",
        "job",
        "derive",
        "detached",
        "service",
    },
    "cli": {
        "mops",
        "errors",
        "settings",
        "profile",
        "location",
        "k8s",
        "study",
        "storage",
        "worker",
        "driver",
        "job",
        "export",
        "service",
        "survey",
        "own_cluster",
        "detached",
        "launch",
        "sample",
        "listing",
        "textlog",
        "tidy",
        "deletion",
    },
    "sample": {"errors", "study"},
    "mops": {"job", "launch"},  # on first use: `mops.submit`, `mops.open_job`
}

# Heavy libraries, and the only places that may import them.
HOMES = {
    "fsspec": ("storage/files.py",),
    "adlfs": ("storage/files.py",),
    "azure": ("storage/files.py", "storage/backends/faults.py"),
    "distributed": ("driver/", "worker/run_task.py"),
    "dask": ("driver/",),
    "pydantic": ("settings.py", "service/profile.py"),
    "kr8s": ("k8s/client.py",),
    "httpx": ("k8s/client.py",),
    "httpx_ws": ("k8s/client.py",),
    "anyio": ("k8s/port_forward.py",),
    "dask_kubernetes": ("k8s/dedicated.py",),
    "scipy": ("study/sampling/draw.py",),
    "prometheus_client": ("attempt/reporting/metrics.py", "worker/metrics.py"),
    "typer": ("cli/",),
    "rich": ("cli/",),
}

# A child is paid for once for each slot: the standard library, numpy and pyarrow, and nothing of these.
NOT_IN_A_CHILD = (
    *(
        "distributed",
        "dask",
        "fsspec",
        "adlfs",
        "azure",
        "pydantic",
        "kr8s",
        "typer",
        "rich",
        "psutil",
        "yaml",
        "pathspec",
        "scipy",
        "prometheus_client",
    ),
    *("mops.settings", "mops.storage", "mops.driver", "mops.jobs.job", "mops.jobs.submit", "mops.cli"),
)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_layers_below_its_own(module: str) -> None:
    own = layer_of(module)
    assert own in LAYERS, f"{module} is in no layer: give {own!r} a line here and in CONTRIBUTING.md"
    beneath = LAYERS[own] | {own}
    wrong = {name for name in imports(module) if name.partition(".")[0] == "mops" and layer_named(name) not in beneath}
    assert not wrong, f"{module} ({own}) may import {sorted(beneath)}"


@pytest.mark.parametrize("library", HOMES)
def test_a_heavy_library_has_one_home(library: str) -> None:
    importers = [module for module in MODULES if library in {name.partition(".")[0] for name in imports(module)}]
    assert all(module.startswith(HOMES[library]) for module in importers), importers


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_of_the_table_exists(layer: str) -> None:
    assert any(layer_of(module) == layer for module in MODULES)


def test_the_layers_form_no_circle() -> None:
    """A table with a circle would allow everything; `mops` itself imports lazily and is left out."""
    order: list[str] = []
    left = {layer: beneath - {"mops"} for layer, beneath in LAYERS.items() if layer != "mops"}
    while left:
        free = [layer for layer, beneath in left.items() if beneath <= set(order)]
        assert free, f"these import each other: {sorted(left)}"
        order += free
        left = {layer: beneath for layer, beneath in left.items() if layer not in free}


def test_a_child_loads_nothing_heavy() -> None:
    """A real child interpreter, as the pool starts it, before the user's model is imported."""
    program = f"import sys, mops.child.main; print(*[m for m in {NOT_IN_A_CHILD!r} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split() == []


def test_importing_mops_loads_nothing_heavy() -> None:
    """`import mops` is what a child and a notebook do first; names come when they are used."""
    program = "import sys; import mops; print(*[m for m in sys.modules if m.startswith('mops.') or m == 'distributed'])"
    ran = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split() == []


def test_the_public_names_are_listed_for_completion() -> None:
    assert set(mops.__all__) <= set(dir(mops))


def layer_of(module: str) -> str:
    """Return the layer of a file of the package."""
    first = module.split("/")[0].removesuffix(".py")
    return "mops" if first == "__init__" else first


def layer_named(name: str) -> str:
    """Return the layer of a dotted name."""
    return "mops" if name == "mops" else name.split(".")[1]


def imports(module: str) -> Iterator[str]:
    """Yield the dotted names that a file imports, wherever in it the import stands; relative ones are forbidden."""
    for node in ast.walk(ast.parse((PACKAGE / module).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            assert node.module is not None
            # `from mops import errors` names a module, `from mops.errors import X` is in one.
            yield from ([f"mops.{alias.name}" for alias in node.names] if node.module == "mops" else [node.module])
