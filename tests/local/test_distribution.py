"""The distribution `mops-runner` with the package and the command `mops`."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "runner" / "mops"
INSTALLS_MOPS = re.compile(r"""\b(?:pip|uv|pipx)\s+(?:install|add)\s(?:[^\n]*\s)?["']?mops(?=[\s"'\[=<>~`]|$)""")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, because a build leaves files next to its sources."""
    made, source = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("source")
    names = subprocess.run(
        ["git", "ls-files", "pyproject.toml", "README.md", "LICENSE", "runner"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in names.stdout.splitlines():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "-w", made, source], check=True)
    (only,) = made.iterdir()
    return only


def test_the_wheel_is_called_mops_runner_and_has_the_command_mops(wheel: Path) -> None:
    """`mops` on PyPI is another project: `pip install mops` installed that program."""
    assert re.fullmatch(r"mops_runner-[0-9.]+-py3-none-any\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        (info,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        metadata = message_from_bytes(archive.read(f"{info}/METADATA"))
        assert metadata["Name"] == "mops-runner"
        assert "mops = mops.cli.start:main" in archive.read(f"{info}/entry_points.txt").decode()


def test_the_wheel_has_every_module_and_template(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("mops/")}
    pages = [path for path in PACKAGE.glob("*/page/**/*") if path.is_file()]
    files = [*PACKAGE.rglob("*.py"), *(PACKAGE / "project" / "templates").glob("*/*"), *pages, PACKAGE / "py.typed"]
    assert packed == {f"mops/{path.relative_to(PACKAGE)}" for path in files}


def test_no_text_installs_the_other_project_called_mops() -> None:
    """No doc and no message says `pip install mops`, which installs the other project."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    texts = [
        ROOT / name for name in names.split("\0") if name.endswith((".md", ".py", ".toml", ".yaml", ".txt", ".tpl"))
    ]
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in texts
        if path != Path(__file__) and path.is_file()
        for line in path.read_text().splitlines()
        if INSTALLS_MOPS.search(line)
    ]
    assert found == []


def test_the_search_finds_every_form_of_the_command() -> None:
    """The test above would pass if its pattern matched nothing."""
    for line in ("pip install mops", "pip install 'mops[dedicated]'", "uv add mops==0.1"):
        assert INSTALLS_MOPS.search(line)
