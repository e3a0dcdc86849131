"""Help, errors and log lines keep the rules for texts that a test can check. It is a net: reading them is the goal."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import mops
from mops import errors
from mops.cli.main import app

PACKAGE = Path(mops.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
# Words of the tables' "not" column and of translated idiom; the reason is what to write.
FORBIDDEN = {
    r"\btr(?:y|ies|ied|ying) (?:it |them |that )?again\b": "retry",
    r"\b(?:goes|go|went|going) on\b": "continue, resume",
    r"\banew\b": "again, new",
    r"\breckon": "compute",
    r"\bfor ever\b": "endlessly",
    r"\bin vain\b": "without success",
    r"\b(?:nobody|somebody|everybody)\b": "name who",
    r"\bhow manieth\b": "which attempt",
    r"\bas long as that\b|\bwhere that is so\b|\bif that is so\b": "name the condition",
    r"\blook(?:s|ed)? whether\b": "check whether",
    r"\b(?:is|are|was) gone\b": "is removed, has ended, no longer exists",
    r"\b(?:take|takes|took|taken) away\b": "remove",
    r"\bof (?:its|their|his) own\b": "say which",
    r"\bown clusters?\b": "dedicated cluster",
    r"\bany more\b": "no longer",
    r"\bbeside\b": "next to, while",
    r"\b(?:driver|submitter)\b": "runner",
    r"(?:^|[.:;] )[Ww]hoever\b": "name who",
}
NAMES = ("Azure", "Dask", "Kubernetes", "MODELOPS_", "SIGTERM", "Superseded")
"""Names with which a line may begin in upper case."""


def where(path: Path, node: Any) -> str:
    return f"{path.relative_to(PACKAGE)}:{node.lineno}"


def template(node: ast.expr | None) -> str | None:
    """Return a literal or an f-string as text, with {} for what is filled in; None: it is computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def calls() -> Iterator[tuple[Path, ast.Call, str]]:
    """Yield every call of the package with the name of what it calls."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield path, node, ast.unparse(node.func)


def log_templates() -> dict[str, str]:
    found = {}
    for path, node, name in calls():
        if re.fullmatch(r"logger\.(debug|info|warning|error|exception)", name) and node.args:
            text = template(node.args[0])
            if text is not None:
                found[where(path, node)] = text
    return found


def error_kinds() -> set[str]:
    """Return the names of the errors of mops, also of those that other modules derive."""
    kinds = {
        name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, errors.MopsError)
    }
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} & kinds:
                kinds.add(node.name)
    return kinds


def error_texts() -> tuple[dict[str, str], dict[str, str]]:
    """Return the first lines and the hints of every error that is built from literals."""
    kinds, lines, hints = error_kinds(), {}, {}
    for path, node, name in calls():
        if name.rpartition(".")[2] not in kinds:
            continue
        text = template(node.args[0]) if node.args else None
        if text is not None:
            lines[where(path, node)] = text
        for keyword in node.keywords:
            if keyword.arg == "hint" and (hint := template(keyword.value)) is not None:
                hints[where(path, node)] = hint
    return lines, hints


def help_texts() -> Iterator[tuple[str, Any]]:
    """Yield every command and group by its words."""
    top = get_command(app)
    yield "mops", top
    for name in top.commands:
        command = top.commands[name]
        if hasattr(command, "commands"):
            yield f"mops {name}", command
            yield from ((f"mops {name} {verb}", command.commands[verb]) for verb in command.commands)
        else:
            yield f"mops {name}", command


HELP = dict(help_texts())
LOGS = log_templates()
ERRORS, HINTS = error_texts()


@pytest.mark.parametrize("name", HELP)
def test_options_have_short_help_in_the_imperative(name: str) -> None:
    context = HELP[name].context_class(HELP[name])
    for parameter in HELP[name].get_params(context):
        text = parameter.help or ""
        if parameter.name in ("help", "install_completion", "show_completion"):  # typer's
            continue
        assert text, f"{name}: {parameter.name} has no help"
        assert len(text) <= 70, f"{name}: {text}"
        assert text[0].isupper(), f"{name}: {text}"
        assert not text.endswith("."), f"{name}: {text}"
        assert parameter.param_type_name == "argument" or not text.startswith(("The ", "A ", "Whether ", "Only "))


@pytest.mark.parametrize("name", HELP)
def test_a_command_says_what_it_does_and_shows_an_example(name: str) -> None:
    text = inspect.cleandoc(HELP[name].help or "")
    first = text.partition("\n")[0]
    assert first.endswith(".")
    assert len(first) <= 80
    example = {"mops run": "mops jobs submit"}.get(name, name)  # the same command
    assert re.search(rf"^Example:\n\n    {example}\b", text, re.MULTILINE), f"{name} has no example"


@pytest.mark.parametrize("place", LOGS)
def test_a_log_line_is_one_line_of_at_most_160_characters(place: str) -> None:
    text = LOGS[place]
    assert len(text) <= 160
    assert "\n" not in text.strip("\n")
    assert not text.endswith("."), text
    assert not text[0].isupper() or text.startswith(NAMES), text


@pytest.mark.parametrize("place", ERRORS)
def test_an_error_begins_in_lower_case_and_has_no_full_stop(place: str) -> None:
    text = ERRORS[place]
    assert not text.endswith("."), text
    assert not text[0].isupper() or text.startswith(NAMES), text


@pytest.mark.parametrize("place", HINTS)
def test_a_hint_is_one_thing_to_do(place: str) -> None:
    text = HINTS[place]
    assert not text.endswith((".", "?")), text
    assert not text[:1].isupper() or text.startswith(NAMES), text


@pytest.mark.parametrize("kind", sorted(error_kinds() & set(vars(errors))))
def test_an_error_class_is_described_in_one_sentence(kind: str) -> None:
    first = (inspect.getdoc(getattr(errors, kind)) or "").partition("\n")[0]
    assert re.fullmatch(r"[^.]+(\.[^ .][^.]*)*\.", first), first


@pytest.mark.parametrize("module", [path.relative_to(PACKAGE).as_posix() for path in MODULES])
def test_messages_docstrings_and_comments_use_plain_words(module: str) -> None:
    wrong = []
    for token in tokenize.generate_tokens(io.StringIO((PACKAGE / module).read_text()).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string):
            for pattern, instead in FORBIDDEN.items():
                if found := re.search(pattern, token.string, re.MULTILINE):
                    wrong.append(f"{module}:{token.start[0]}: {found[0]!r}: {instead}")
    assert not wrong, "\n".join(wrong)
