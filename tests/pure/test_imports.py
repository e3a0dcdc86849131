"""Imports go only downwards through the floors of docs/internals/architecture.md."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mops

PACKAGE = Path(mops.__file__).parent
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

# The floors that each floor imports, all of them in lines above its own. `mops` is `__init__.py`, for the version.
FLOORS: dict[str, set[str]] = {
    "errors": set(),
    "units": set(),
    "verdicts": set(),
    "system": set(),
    "waiting": set(),
    "settings": {"mops", "errors", "units"},
    "options": {"errors"},
    "study": {"errors", "system"},
    "figures": {"errors", "units", "study"},
    "parquet": {"errors", "study"},
    "child": {"errors", "units", "study", "system", "parquet"},
    "project": {"errors", "units", "system", "study"},
    "k8s": {"errors", "verdicts", "waiting"},
    "task": {"verdicts", "study", "child"},
    "recovery": {"units", "system", "child"},
    "storage": {"mops", "errors", "units", "verdicts", "system", "options", "study", "parquet", "project"},
    "worker": {
        *("errors", "units", "verdicts", "system", "waiting", "study", "child", "project", "task", "recovery"),
        "storage",
    },
    "cluster": {"errors", "units", "verdicts", "system", "waiting", "settings", "task", "recovery", "worker"},
    "attempt": {
        *("errors", "units", "verdicts", "system", "waiting", "settings", "study", "child", "project", "task"),
        *("recovery", "parquet", "storage", "worker", "cluster"),
    },
    "service": {"mops", "errors", "system", "settings", "k8s", "storage", "cluster"},
    "jobs": {
        *("mops", "errors", "units", "verdicts", "system", "settings", "figures", "study", "parquet", "child"),
        *("project", "task", "recovery", "k8s", "storage", "worker", "cluster", "attempt", "service"),
    },
    "calibration": {
        *("errors", "units", "options", "study", "project", "storage", "jobs"),
    },
    "report": {
        *("mops", "errors", "units", "figures", "study", "project", "storage", "jobs", "calibration"),
    },
    "ui": {"system", "errors", "units", "verdicts", "storage", "jobs", "report"},
    "cli": {
        *("mops", "errors", "units", "verdicts", "system", "settings", "options", "study", "project", "k8s"),
        *("storage", "worker", "cluster", "attempt", "service", "jobs", "calibration", "ui"),
    },
}
ON_FIRST_USE = {"mops": {"jobs", "calibration", "report"}}  # `mops.submit`, `mops.open_job`

# Heavy libraries, and the only places that may import them.
HOMES = {
    "fsspec": ("storage/backends/azure.py", "storage/backends/memory.py"),
    "adlfs": ("storage/backends/",),
    "azure": ("storage/backends/azure.py",),
    "obstore": ("storage/backends/buckets.py",),
    "distributed": ("cluster/", "worker/dask_worker.py", "worker/retire.py", "worker/run_task.py"),
    "dask": ("cluster/",),
    "pydantic": (
        *("settings.py", "options.py", "calibration/options.py"),
        *("service/profile.py", "k8s/chart.py", "storage/"),
    ),
    "kr8s": ("k8s/client.py", "k8s/errors.py"),
    "httpx": ("k8s/client.py", "k8s/errors.py"),
    "httpx_ws": ("k8s/client.py", "k8s/errors.py"),
    "anyio": ("k8s/port_forward.py",),
    "dask_kubernetes": ("k8s/dedicated.py",),
    "scipy": ("study/sampling/draw.py", "figures/sensitivity.py"),
    "optuna": ("calibration/optimiser.py",),
    "cloudpickle": ("project/functions.py", "project/functions_loader.py"),
    "tenacity": ("storage/",),
    "prometheus_client": ("attempt/metrics.py", "worker/metrics.py"),
    **dict.fromkeys(("pandas", "polars", "duckdb", "xarray"), ("jobs/table.py",)),
    "altair": ("figures/charts.py", "figures/course_charts.py"),
    "SALib": ("figures/sobol.py",),
    "jinja2": ("report/", "ui/"),
    "vl_convert": ("report/content.py", "report/render.py"),
    "typer": ("cli/",),
    "rich": ("cli/",),
    **dict.fromkeys(("starlette", "uvicorn"), ("ui/",)),
}

# Each slot has a child process, so a child imports the standard library, numpy and pyarrow, and none of these.
NOT_IN_A_CHILD = [
    *("distributed", "dask", "fsspec", "adlfs", "azure", "pydantic", "kr8s", "typer", "rich", "psutil", "yaml"),
    *("pathspec", "scipy", "prometheus_client", "filelock", "packaging", "platformdirs", "tenacity", "xarray"),
    *("geopandas", "duckdb", "polars", "mops.settings", "mops.storage", "mops.task", "mops.recovery"),
    *("mops.worker", "mops.cluster", "mops.attempt", "mops.jobs", "mops.cli"),
]


def test_a_module_imports_only_the_floors_that_the_table_gives_its_own() -> None:
    wrong, imported = [], {floor: set[str]() for floor in FLOORS | ON_FIRST_USE}
    for module in MODULES:
        own = floor_of(module)
        assert own in imported, f"{module} is on no floor: give {own!r} a line here and in the drawing"
        found = {floor_named(name) for name in imports(module) if name.partition(".")[0] == "mops"} - {own}
        imported[own] |= found
        if too_high := found - (FLOORS | ON_FIRST_USE)[own]:
            wrong.append(f"{module} imports {sorted(too_high)}")
    assert wrong == []
    order = list(FLOORS)
    for floor, below in FLOORS.items():
        assert imported[floor] == below, f"{floor}: the table differs from the code"
        assert below - {"mops"} <= set(order[: order.index(floor)])


def test_a_heavy_library_has_one_home() -> None:
    wrong = [
        (library, module)
        for module in MODULES
        for library in {name.partition(".")[0] for name in imports(module)} & HOMES.keys()
        if not module.startswith(HOMES[library])
    ]
    assert wrong == []


def test_there_are_no_circular_imports() -> None:
    """What two modules need from each other belongs into a third. `mops` itself imports on first use."""
    left = {module: set(imported_modules(module)) for module in MODULES if module != "__init__.py"}
    while left:
        free = [module for module, needs in left.items() if not needs & left.keys() - {module}]
        assert free, f"these import each other: {sorted(left)}"
        left = {module: needs for module, needs in left.items() if module not in free}


RARELY_NEEDED = ("distributed", "dask", "azure", "fsspec", "mops.k8s.client")
ARROW = ("pyarrow", "numpy", "mops.jobs.job")


def test_a_process_starts_without_the_libraries_that_it_may_not_need(subtests: pytest.Subtests) -> None:
    """docs/internals/start-up.md has what each takes. A submit imports Dask while the template imports the model."""
    for module, absent in [
        ("mops", ("mops.errors", "mops.jobs", "distributed")),  # it imports the public names on first use
        ("mops.child.main", NOT_IN_A_CHILD),  # up to the import of the user's model
        ("mops.worker.run_task", ["pydantic"]),  # only the runner reads records; it costs 5 MiB and 0.2 s
        ("mops.cli.tidy", (*RARELY_NEEDED, *ARROW)),
        ("mops.cli.service", ("pyarrow", "mops.jobs.job", "distributed")),
        ("mops.cli.submit, mops.cli.study", RARELY_NEEDED),
    ]:
        with subtests.test(str((module, absent))):
            program = f"import sys, {module}; print(*[m for m in {absent!r} if m in sys.modules])"
            ran = subprocess.run(
                [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, timeout=60
            )
            assert ran.stdout.split() == []


def test_the_public_names_are_listed_for_completion() -> None:
    assert set(mops.__all__) <= set(dir(mops))


def floor_of(module: str) -> str:
    """Return the floor of a file of the package."""
    first = module.split("/")[0].removesuffix(".py")
    return "mops" if first == "__init__" else first


def floor_named(name: str) -> str:
    """Return the floor of a dotted name."""
    return "mops" if name == "mops" else name.split(".")[1]


@functools.cache
def import_statements(module: str) -> list[ast.Import | ast.ImportFrom]:
    """Return the statements of a file that import, anywhere in it."""
    nodes = ast.walk(ast.parse((PACKAGE / module).read_text()))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imported_modules(module: str) -> Iterator[str]:
    """Yield the files of the package that a file imports."""
    for node in import_statements(module):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "mops":
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                path = f"{'/'.join(name.split('.')[1:])}.py"
                if (PACKAGE / path).is_file():
                    yield path


def imports(module: str) -> Iterator[str]:
    """Yield the dotted names that a file imports anywhere; relative imports are an error."""
    for node in import_statements(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            assert node.level == 0, f"{module} imports relatively"
            assert node.module is not None
            # `from mops import errors` names a module, `from mops.errors import X` is in one.
            yield from ([f"mops.{alias.name}" for alias in node.names] if node.module == "mops" else [node.module])
