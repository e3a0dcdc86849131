"""What the documentation shows is true: links lead somewhere, commands exist, every block runs.

A fenced ``console``, ``bash`` or ``python`` block runs, in the order of its page and in a folder of the page. A comment
in the line before a block, or by itself, says what else to do:

- ``<!-- file: NAME -->``: write the block as this file.
- ``<!-- files of: PAGE -->``: write the files of another page, named from the repository's root.
- ``<!-- copy of: FOLDER -->``: copy a folder of the repository.
- ``<!-- output -->``: the block is what the block before it printed.
- ``<!-- exact -->``: the commands of this ``console`` block print these very numbers.
- ``<!-- not run: REASON -->``: leave the block alone.

In a ``console`` block, the lines below a ``$`` line are what the command prints. Numbers, units and spaces may differ;
``...`` stands for any text, alone on a line for any lines. A command has to succeed, unless ``$ echo $?`` follows.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from markdown_it import MarkdownIt
from typer.main import get_command

from mops.cli.main import app
from mops.storage.params_file import GROUP_FIELDS
from mops.storage.samples import SAMPLES
from mops.study.groups import IDENTITY_FIELDS
from mops.task import FAILURES, LOSSES
from soak import SOAKING
from warm import WarmProcess, warm_figures, warm_for

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "helm").rglob("*.md")),
    *sorted((ROOT / "k8s").rglob("*.md")),
]
LONG = {ROOT / "examples" / "sir" / "README.md", ROOT / "docs" / "examples" / "calibration.md"}
"""Pages that compute for a minute or more: their blocks run in ``make soak``. ``make demo`` runs the first example."""
COLD = ROOT / "README.md"
"""The Python code of this page runs in new interpreters. That of other pages runs in forks, which start in no time."""

CODE = (ROOT, ROOT / "runner", ROOT / "runner" / "mops")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?<![a-z] )\bmops((?: [a-z]+)+)")  # not where it is another command's argument
RUN = {"console", "bash", "python"}
SHOWN = {"json", "text", "toml", "csv", "yaml", "ini"}
PROGRESS = re.compile(r"^[\d,]+ of [\d,]+ simulations, .* left.*\n", re.MULTILINE)
NUMBER = re.compile(r"\d[\d.,:]*(?: min \d\d s| h \d\d min| (?:[KMG]i)?B\b| (?:ms|s|min|h)\b|%|/s)?")


@dataclass
class Block:
    """A fenced block, with the comment before it, and what it is to print."""

    language: str
    text: str
    note: str
    output: str | None = None


@dataclass
class Page:
    """A page's blocks in their order; a comment that stands by itself is a block without a language."""

    path: Path
    blocks: list[Block] = field(default_factory=list)

    def files(self) -> dict[str, str]:
        """Return the files that the page shows."""
        return {
            block.note.removeprefix("file: "): block.text for block in self.blocks if block.note.startswith("file: ")
        }


def read_page(path: Path) -> Page:
    """Read a page's fenced blocks and comments."""
    page, note = Page(path), ""
    for token in MarkdownIt().parse(path.read_text()):
        assert token.type != "code_block", f"an indented block, which no test runs: {token.content}"
        if token.type == "html_block":
            for found in re.findall(r"<!-- (.*?) -->", token.content):
                if found.startswith(("files of: ", "copy of: ")):
                    page.blocks.append(Block("", "", found))
                else:
                    note = found
        elif token.type == "fence":
            if note == "output":
                page.blocks[-1].output = token.content
            else:
                page.blocks.append(Block(token.info, token.content, note))
            note = ""
        elif token.type.endswith("_open"):  # a paragraph, for instance: the comment was of something else
            note = ""
    return page


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_links_lead_to_files_and_headings() -> None:
    dead = []
    for page in PAGES:
        for link in LINK.findall(page.read_text()):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if not link.startswith(("http:", "https:")):
                known = anchors(target) if anchor and target.suffix == ".md" else {anchor}
                dead += [] if target.exists() and anchor in known else [f"{named(page)}: {link}"]
    assert not dead


def anchors(page: Path) -> set[str]:
    """Return the names by which links address the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_commands_that_are_named_exist() -> None:
    """In code only: in prose "mops runs" is a sentence."""
    code = [
        (named(page), line)
        for page in PAGES
        for line in re.findall(r"`[^`\n]+`|^(?:    |\$ ).*$", page.read_text(), re.MULTILINE)
    ]
    found = [(page, words) for page, line in code for words in COMMAND.findall(line.partition(" #")[0])]
    assert not [(page, words) for page, words in found if not exists(words.split())]


def exists(words: list[str]) -> bool:
    """Tell whether these words begin with a command; what follows a command are its arguments."""
    command = get_command(app)
    for word in words:
        subcommands = getattr(command, "commands", None)
        if subcommands is None:
            return True
        if word not in subcommands:
            return False
        command = subcommands[word]
    return True


def runs(page: Path) -> bool:
    """Tell whether a page has blocks that run. Each block has a known language, or a reason why it does not run."""
    blocks = [block for block in read_page(page).blocks if not block.note.startswith(("file: ", "not run: "))]
    for block in blocks:
        assert block.language in {"", *RUN, *SHOWN} or block.language.startswith("{"), f"neither run nor shown: {block}"
    return any(block.language in RUN for block in blocks) and (SOAKING or page not in LONG)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [*filter(runs, PAGES)], ids=named)
def test_blocks_run_as_they_stand(page: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MODELOPS_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment |= {"HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"}
    # A page may run make, and so may the person who runs the tests.
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "MAKELEVEL", "MAKEFLAGS", "MFLAGS"):
        environment.pop(name, None)
    folder = tmp_path / "work"
    folder.mkdir()
    for block in read_page(page).blocks:
        kind, _, named = block.note.partition(": ")
        if kind == "file":
            write(folder / named, block.text)
        elif kind == "files of":
            for name, text in read_page(ROOT / named).files().items():
                write(folder / name, text)
        elif kind == "copy of":
            shutil.copytree(ROOT / named, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("mops-storage"))
        elif kind != "not run" and block.language in RUN:
            for step in steps(block):
                step.run(folder, environment, is_cold=page == COLD)


TABLES = {
    "outputs": pa.schema(IDENTITY_FIELDS),
    "losses": LOSSES,
    "failures": FAILURES,
    "samples": SAMPLES,
    "params": GROUP_FIELDS,
}


def test_the_reference_lists_every_column_with_its_type() -> None:
    pages = "".join((ROOT / "docs" / "reference" / page).read_text() for page in ("results.md", "failures.md"))
    types = {"list<element: uint64>": "list of uint64", "list<item: uint64>": "list of uint64"}
    for name, schema in TABLES.items():
        (rows,) = re.findall(rf"<!-- columns: {name} -->\n((?:\|.*\n)+)", pages)
        listed = [tuple(cell.strip("` ") for cell in row.split("|")[1:3]) for row in rows.splitlines()[2:]]
        assert listed == [(field.name, types.get(str(field.type), str(field.type))) for field in schema], name


def test_the_internals_name_files_that_exist() -> None:
    text = "".join(page.read_text() for page in PAGES if page.parent.name == "internals")
    names = set(re.findall(r"`((?:[a-z0-9_]+/)+[a-z0-9_]+\.py)(?:: [^`]*)?`", text))
    assert not [name for name in sorted(names) if not any((top / name).exists() for top in CODE)]


def test_the_pictures_are_those_that_the_program_draws() -> None:
    folder = ROOT / "docs" / "pictures"
    draw = runpy.run_path(str(folder / "draw.py"))
    old = [name for name, picture in draw["PICTURES"].items() if (folder / name).read_text() != picture()]
    assert not old, "draw them again: python docs/pictures/draw.py"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@dataclass
class Step:
    """A command of a block, what it is to print (None: anything), and its exit code."""

    command: list[str]
    output: str | None
    exit_code: int = 0
    exact: bool = False
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, folder: Path, environment: dict[str, str], *, is_cold: bool) -> None:
        process: subprocess.Popen[bytes] | WarmProcess
        program, *words = self.command
        with tempfile.TemporaryFile() as file:
            if program == "mops" or (program == "python" and not is_cold):
                warm = warm_for(words) if program == "mops" else warm_figures()
                process = warm.start(words, environment | self.variables, folder, out=file, err=file)
            else:
                process = subprocess.Popen(self.command, cwd=folder, env=environment, stdout=file, stderr=file)
            try:
                code = process.wait(timeout=300)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                raise
            file.seek(0)
            printed = file.read().decode()
        said = f"{' '.join(self.command)}\nprinted:\n{printed}"
        assert code == self.exit_code, said
        if self.output is not None and self.exact:
            assert printed == self.output, said
        elif self.output is not None:
            assert re.fullmatch(pattern(self.output), comparable(printed)), said


def steps(block: Block) -> Iterator[Step]:
    """Yield the commands of a block."""
    if block.language == "python":
        yield Step(["python", "-c", block.text], block.output)
    elif block.language == "bash":
        yield Step(["bash", "-euo", "pipefail", "-c", block.text], block.output)
    else:
        parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
        typed = [typed_and_printed(part) for part in parts]
        for (command, output), follows in zip(typed, [*typed[1:], ("", "")], strict=True):
            code = int(follows[1]) if follows[0] == "echo $?" else 0
            if command != "echo $?":
                # Of such, a shell does nothing but to split it.
                plain = re.fullmatch(r"((?:[A-Z_]+=\w+ )*)((?:mops|python) [\w\s./:,=@-]+)", command)
                words = plain[2].split() if plain else ["bash", "-c", command]
                variables = dict(one.split("=") for one in plain[1].split()) if plain else {}
                yield Step(words, output or None, code, exact=block.note == "exact", variables=variables)


def typed_and_printed(part: str) -> tuple[str, str]:
    """Return a command, which may continue after a backslash at the end of a line, and the lines after it."""
    lines = part.splitlines(keepends=True)
    n = 1 + next(i for i, line in enumerate(lines) if not line.endswith("\\\n"))
    return "".join(lines[:n]).rstrip("\n"), "".join(lines[n:])


def comparable(printed: str) -> str:
    """Return what was printed without what differs from run to run, such as lines of progress on a busy machine."""
    printed = PROGRESS.sub("", printed)
    lines = [re.sub(r"\s+", " ", NUMBER.sub("#", line)).strip() for line in printed.splitlines()]
    return "".join(f"{line}\n" for line in lines if line)


def pattern(output: str) -> str:
    """Return the regular expression of what a page shows."""
    lines = comparable(output).splitlines()
    return "".join(
        r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n" for line in lines
    )
