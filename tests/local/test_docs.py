"""The documentation is correct: links lead to files, commands exist, and the blocks of the README run.

The test writes a fenced block after `<!-- file: NAME -->` as that file and skips one after `<!-- not run: REASON -->`.
It runs all other `python` and `console` blocks in order, in one folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_command

from mops.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "helm").rglob("*.md")),
    *sorted((ROOT / "k8s").rglob("*.md")),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?<![a-z] )\bmops((?: [a-z]+)+)")  # not an argument of another command
BLOCK = re.compile(
    r"(?:<!-- (?P<note>[^>]*) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
KNOWN_LANGUAGES = {"python", "console", "json", "text"}


@dataclass
class Block:
    """A fenced block: its language, its text, and the note before it."""

    language: str
    text: str
    note: str


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_files(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if not link.startswith(("http:", "https:", "#"))]
    dead = [link for link in links if not (page.parent / link.partition("#")[0]).exists()]
    assert not dead


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_in_the_docs_exists(page: Path) -> None:
    """Only code counts: in prose "mops runs" is a sentence."""
    code = re.findall(r"`[^`\n]+`|^(?:    |\$ ).*$", page.read_text(), re.MULTILINE)
    for line in code:
        for words in COMMAND.findall(line.partition(" #")[0]):
            assert exists(words.split()), f"there is no command in: {line.strip()}"


def exists(words: list[str]) -> bool:
    """Tell whether these words start with a command, which arguments may follow."""
    command = get_command(app)
    for word in words:
        subcommands = getattr(command, "commands", None)
        if subcommands is None:
            return True
        if word not in subcommands:
            return False
        command = subcommands[word]
    return True


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """No dead link, and no page that no other page lists."""
    build = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "--fresh-env"]
    done = subprocess.run([*build, ROOT / "docs", tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_blocks_of_the_readme_run(tmp_path: Path) -> None:
    """A newcomer gets from the model to the losses."""
    (tmp_path / "mops.toml").touch()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MODELOPS_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["XDG_CACHE_HOME"] = str(tmp_path / ".cache")
    ran = 0
    for block in blocks((ROOT / "README.md").read_text()):
        assert block.language in KNOWN_LANGUAGES
        if block.note.startswith("file: "):
            (tmp_path / block.note.removeprefix("file: ")).write_text(block.text)
        elif block.language in ("python", "console") and not block.note.startswith("not run: "):
            for command in commands(block):
                done = subprocess.run(
                    command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
                )
                assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
                ran += 1
    assert ran >= 4, "the README has fewer blocks that run"


def blocks(page: str) -> Iterator[Block]:
    """Yield a page's fenced blocks."""
    for match in BLOCK.finditer(page):
        yield Block(match["language"], match["text"], match["note"] or "")


def commands(block: Block) -> list[list[str]]:
    """Return the commands that run a block."""
    if block.language == "python":
        # The tables at the end of the script must not be empty.
        return [[sys.executable, "-c", block.text + "\nassert daily.num_rows and losses.num_rows\n"]]
    return [line.removeprefix("$ ").split() for line in block.text.splitlines() if line.startswith("$ ")]
