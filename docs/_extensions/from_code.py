"""A Sphinx extension that replaces ``<!-- from code: NAME -->`` in a page by Markdown made from the code.

So the reference of settings, commands, exit codes and chart values is what this version has.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ByteSize
from sphinx.application import Sphinx
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import mops
from mops import errors
from mops.cli.main import app as command_line
from mops.cli.terminal import EXIT_CODES
from mops.settings import Settings
from mops.units import bytes_text

CHART = Path(__file__).parents[2] / "helm" / "mops"
PACKAGE = Path(mops.__file__).parent
MARKER = re.compile(r"^<!-- from code: ([a-z ]+) -->$", re.MULTILINE)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("source-read", lambda _app, _page, source: source.__setitem__(0, filled(source[0])))
    return {"parallel_read_safe": True}


def filled(page: str) -> str:
    """Return a page with what its markers ask for; a name that is not in ``PARTS`` is a KeyError."""
    return MARKER.sub(lambda marker: PARTS[marker[1]](), page)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


def prose(text: str) -> str:
    """Return a help text as Markdown: what stands in single quotes is a command."""
    return re.sub(r"(?<![\w`])'([^'\n]+)'(?![\w`])", r"`\1`", text.replace("<", "&lt;").replace("*", "\\*"))


def settings() -> str:
    """Return each variable with its meaning, and below that its type and default."""
    fields = {line.name: field for line, field in zip(Settings().described(), Settings.model_fields, strict=True)}
    rows = []
    for line in Settings().described():
        value = bytes_text(line.value) if line.unit == "bytes" else "unset" if line.value is None else code(line.value)
        rows.append((code(line.name), f"{prose(line.meaning)}<br>{allowed(fields[line.name])}; default: {value}"))
    return table(("variable", "meaning"), rows)


def allowed(field: str) -> str:
    """Return in words what a setting may be."""
    info = Settings.model_fields[field]
    kinds = [kind for kind in typing.get_args(info.annotation) or (info.annotation,) if kind is not type(None)]
    if typing.get_origin(info.annotation) is typing.Literal:
        return ", ".join(code(kind) for kind in kinds[:-1]) + f" or {code(kinds[-1])}"
    words = {"int": "integer", "float": "number", "str": "text", "ByteSize": "bytes"}
    said = []
    for kind in kinds:
        if typing.get_origin(kind) is typing.Literal:
            said += [code(word) for word in typing.get_args(kind)]
            continue
        plain, *about = typing.get_args(kind) or (kind,)
        said.append(words[plain.__name__] + bounds([*info.metadata, *about], is_size=plain is ByteSize))
    return "integer, or percentage as `5%`" if field == "max_failures" else ", or ".join(said)


def bounds(about: Iterable[object], *, is_size: bool) -> str:
    """Return in words which numbers may be given, from the constraints of a field: ``, at least 1``."""
    constraints = [found for part in about for found in (part, *getattr(part, "metadata", ()))]
    words = {"ge": "at least", "gt": "above", "le": "at most"}
    return "".join(
        f", {word} {bytes_text(limit) if is_size and limit else limit}"
        for found in constraints
        for name, word in words.items()
        if (limit := getattr(found, name, None)) is not None
    )


def exit_codes() -> str:
    """Return each exit code with the states and errors that give it."""
    causes: dict[int, list[str]] = {
        0: ["the command did what you asked"],
        130: ["Ctrl-C ended the command"],
        141: ["the reader of the output left"],
    }
    for state, number in EXIT_CODES.items():
        causes.setdefault(number, []).insert(0, f"the job ended as `{state}`")
    for kind in error_classes():
        causes.setdefault(kind.exit_code, []).append(f"{code(kind.__name__)}: {summary(kind)}")
    return table(("code", "cause"), ((code(number), "<br>".join(causes[number])) for number in sorted(causes)))


def error_classes() -> Iterator[type[errors.MopsError]]:
    """Yield the errors that a user can meet, in the order of the module."""
    not_listed = (errors.MopsError, errors.RunnerEnded)  # the base, and the error that has its runner's exit code
    kinds = [kind for name, kind in vars(errors).items() if inspect.isclass(kind) and not name.startswith("_")]
    yield from (kind for kind in kinds if issubclass(kind, errors.MopsError) and kind not in not_listed)


def summary(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0].rstrip(".")


def commands() -> str:
    """Return every command with its arguments and options."""
    top = get_command(command_line)
    assert isinstance(top, TyperGroup)
    parts = [command_text("mops", top)]
    for name in top.commands:
        command = top.commands[name]
        if isinstance(command, TyperGroup):
            parts += [f"## mops {name}", *help_blocks(command.help or "")]
            verbs = ((verb, command.commands[verb]) for verb in command.commands)
            parts += [command_text(f"mops {name} {verb}", found, "###") for verb, found in verbs if not found.hidden]
        else:
            parts.append(command_text(f"mops {name}", command))
    return "\n\n".join(parts)


def command_text(name: str, command: TyperCommand | TyperGroup, level: str = "##") -> str:
    """Return a command's help: a heading, its usage, its text, and a table for each panel of options."""
    context = command.context_class(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            panel = getattr(parameter, "rich_help_panel", None) or "Argument or option"
            panels.setdefault(panel, []).append((code(record[0]), prose(record[1])))
    tables = [table((panel, ""), rows) for panel, rows in panels.items()]
    return "\n\n".join([f"{level} {name}", f"```text\n{usage}\n```", *help_blocks(command.help or ""), *tables])


def help_blocks(text: str) -> Iterator[str]:
    """Yield a help text's paragraphs; an indented paragraph, or one marked with ``\\b``, is code."""
    for block in inspect.cleandoc(text).split("\n\n"):
        kept = block.startswith(("\b\n", "    "))
        yield f"```text\n{inspect.cleandoc(block.removeprefix(chr(8)))}\n```" if kept else prose(block)


def chart_values() -> str:
    """Return each value of the chart with its meaning, type and default, a table for each part of the chart."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    parts = []
    for name, about in schema["properties"].items():
        if name != "global":
            rows = list(values_of(name, about, defaults.get(name), schema))
            parts += [f"## {name}", prose(about["description"]), table(("value", "meaning"), rows)]
    return "\n\n".join(parts)


def values_of(path: str, about: Mapping[str, Any], default: Any, schema: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a row for each value below a path of the chart's values."""
    for name, given in about.get("properties", {}).items():
        found = resolved(given, schema)
        value = default.get(name) if isinstance(default, dict) else None
        if found.get("properties") and isinstance(value, dict):
            yield from values_of(f"{path}.{name}", found, value, schema)
        else:
            kind = f"{kind_of(found)}; default: {code(json.dumps(value))}"
            yield [code(f"{path}.{name}"), f"{prose(found.get('description', ''))}<br>{kind}"]


def resolved(about: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a property with what it refers to; its own description counts more."""
    referred: dict[str, Any] = {}
    for other in [about, *about.get("allOf", [])]:
        if "$ref" in other:
            referred |= resolved(schema["definitions"][other["$ref"].rpartition("/")[2]], schema)
    return referred | {key: value for key, value in about.items() if key not in ("$ref", "allOf")}


def kind_of(about: Mapping[str, Any]) -> str:
    """Return in words what a value may be."""
    if "enum" in about:
        return " or ".join(code(choice) for choice in about["enum"])
    kinds = about.get("type", "string")
    return " or ".join([kinds] if isinstance(kinds, str) else kinds)


def messages() -> str:
    """Return every error and warning that the code can print, with its hint; ``…`` stands for what varies."""
    rows: dict[str, set[tuple[str, str]]] = {}
    kinds = {kind.__name__ for kind in error_classes()}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ast.parse(path.read_text())
        for function in (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)):
            texts = {**assigned_texts(module), **assigned_texts(function)}
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call) and node.args):
                name = ast.unparse(call.func)
                said = template(call.args[0], texts)
                if name in kinds and said.strip("… "):
                    hint = next((template(word.value, texts) for word in call.keywords if word.arg == "hint"), "")
                    rows.setdefault(name, set()).add((said, hint))
                elif name in ("logger.warning", "logger.error") and said.strip("…: "):
                    rows.setdefault("warnings", set()).add((said, ""))
    parts = []
    for kind in sorted(rows):
        head = ("message", "hint") if kind != "warnings" else ("message",)
        cells = (
            [cell.replace("<", "&lt;").replace("*", "\\*") for cell in row[: len(head)]] for row in sorted(rows[kind])
        )
        parts.append(f"## {kind}\n\n{table(head, cells)}")
    return "\n\n".join(parts)


def assigned_texts(scope: ast.AST) -> dict[str, str]:
    """Return the texts that a module or a function gives names."""
    found = [node for node in ast.iter_child_nodes(scope) if isinstance(node, ast.Assign)]
    if isinstance(scope, ast.FunctionDef):
        found = [node for node in ast.walk(scope) if isinstance(node, ast.Assign)]
    named = ((node.targets[0].id, template(node.value, {})) for node in found if isinstance(node.targets[0], ast.Name))
    return {name: text for name, text in named if text.strip("… ")}


def template(node: ast.expr, texts: Mapping[str, str]) -> str:
    """Return an expression's text, with ``…`` for what only a run can tell."""
    match node:
        case ast.Constant(value=str() as text):
            return re.sub(r"%[.\d]*[a-z]", "…", text)
        case ast.JoinedStr(values=values):
            return "".join(template(value, texts) if isinstance(value, ast.Constant) else "…" for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return template(left, texts) + template(right, texts)
        case ast.IfExp(body=body, orelse=other):
            return f"{template(body, texts)} / {template(other, texts)}"
        case ast.Name(id=name):
            return texts.get(name, "…")
    return "…"


PARTS: Mapping[str, Callable[[], str]] = {
    "messages": messages,
    "settings": settings,
    "exit codes": exit_codes,
    "commands": commands,
    "chart values": chart_values,
}
