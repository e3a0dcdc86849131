"""Help, errors and log lines keep the rules for texts that a test can check. It is a net: reading them is the goal."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


@functools.cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Return every node of the package's code that has a line, with its place."""
    return [
        (f"{path.relative_to(PACKAGE)}:{node.lineno}", node)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call | ast.ClassDef)
    ]


def template(node: ast.expr | None) -> str | None:
    """Return a literal or an f-string as text, with {} for what is filled in; None: it is computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def calls(names: re.Pattern[str]) -> Iterator[tuple[str, ast.Call]]:
    """Yield every call of the package whose function has one of these names, with its place."""
    for place, node in nodes():
        if isinstance(node, ast.Call) and names.fullmatch(ast.unparse(node.func).rpartition(".")[2]):
            yield place, node


def error_kinds() -> set[str]:
    """Return the names of the errors of mops, also of those that other modules derive."""
    kinds = {
        name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, errors.MopsError)
    }
    for _, node in nodes():
        if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} & kinds:
            kinds.add(node.name)
    return kinds


def error_texts(part: str) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each error's first line or hint that is built from literals."""
    for place, node in calls(re.compile("|".join(error_kinds()))):
        given = {keyword.arg: keyword.value for keyword in node.keywords} | {
            "line": node.args[0] if node.args else None
        }
        text = template(given.get(part))
        if text is not None:
            yield place, text


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


def begins_in_upper_case(text: str) -> bool:
    return text[:1].isupper() and not text.startswith(NAMES)


def test_options_have_short_help_in_the_imperative() -> None:
    wrong = []
    for name, command in help_texts():
        for parameter in command.get_params(command.context_class(command)):
            if parameter.name in ("help", "install_completion", "show_completion"):  # typer's
                continue
            text = parameter.help or ""
            is_noun = parameter.param_type_name != "argument" and text.startswith(("The ", "A ", "Whether ", "Only "))
            if not 0 < len(text) <= 70 or not text[0].isupper() or text.endswith(".") or is_noun:
                wrong.append(f"{name} {parameter.name}: {text!r}")
    assert wrong == []


def test_a_command_says_what_it_does_and_shows_an_example() -> None:
    wrong = []
    for name, command in help_texts():
        text = inspect.cleandoc(command.help or "")
        first = text.partition("\n")[0]
        example = {"mops run": "mops jobs submit"}.get(name, name)  # the same command
        if not re.search(rf"^Example:\n\n    {example}\b", text, re.MULTILINE):
            wrong.append(f"{name} has no example")
        if not first.endswith(".") or len(first) > 80:
            wrong.append(f"{name}: {first}")
    assert wrong == []


def test_a_log_line_is_one_line_of_at_most_160_characters() -> None:
    texts = {
        place: text
        for place, node in calls(re.compile("debug|info|warning|error|exception"))
        if ast.unparse(node.func).startswith("logger.") and node.args and (text := template(node.args[0])) is not None
    }
    assert len(texts) > 40
    assert {
        place: text
        for place, text in texts.items()
        if len(text) > 160 or "\n" in text.strip("\n") or text.endswith(".") or begins_in_upper_case(text)
    } == {}


def test_an_error_begins_in_lower_case_and_has_no_full_stop() -> None:
    texts = [*error_texts("line")]
    assert len(texts) > 200
    assert [(place, text) for place, text in texts if text.endswith(".") or begins_in_upper_case(text)] == []


def test_a_hint_is_one_thing_to_do() -> None:
    texts = [*error_texts("hint")]
    assert len(texts) > 150
    assert [(place, text) for place, text in texts if text.endswith((".", "?")) or begins_in_upper_case(text)] == []


def test_an_error_class_is_described_in_one_sentence() -> None:
    firsts = [
        (inspect.getdoc(getattr(errors, kind)) or "").partition("\n")[0] for kind in error_kinds() & set(vars(errors))
    ]
    assert [first for first in firsts if not re.fullmatch(r"[^.]+(\.[^ .][^.]*)*\.", first)] == []


def test_messages_docstrings_and_comments_use_plain_words() -> None:
    wrong = []
    forbidden = re.compile("|".join(FORBIDDEN), re.MULTILINE)
    for path in MODULES:
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            is_text = token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string)
            if is_text and (found := forbidden.search(token.string)):
                instead = next(words for pattern, words in FORBIDDEN.items() if re.search(pattern, found[0]))
                wrong.append(f"{path.relative_to(PACKAGE)}:{token.start[0]}: {found[0]!r}: {instead}")
    assert not wrong, "\n".join(wrong)
