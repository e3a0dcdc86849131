"""Makes a module of the functions that a notebook or a program gives to ``mops.submit``.

Child processes import a model from the files of the bundle. A function of a file of the project is named by its file. A
function of a notebook, or of the program that calls mops, is copied as source, with what it uses: imports, other
functions and classes, and constants. So the bundle shows what ran, and a notebook whose cells change later changes
nothing in a job.
"""

from __future__ import annotations

import ast
import base64
import builtins
import inspect
import linecache
import math
import pickle
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from mops.errors import ModelError

FILE = "mops_submitted.py"
"""The file of the bundle that has the functions of a notebook or program."""

_HEAD = '"""Functions of a notebook or program, as they were when its study was submitted. Written by mops."""\n'
_LITERALS = (bool, int, str, bytes, type(None))


class SubmittedFunctions:
    """Names the code of functions, and collects the source of those that are in no file of the project.

    Parameters
    ----------
    root
        The project root, all links resolved.
    """

    def __init__(self, root: Path):
        self._root = root
        self._names: dict[str, object] = {}
        self._imports: list[str] = []
        self._constants: list[str] = []
        self._definitions: list[str] = []

    def entry_point(self, code: object) -> str:
        """Return the entry point of a function or class; text is returned as it is.

        Raises
        ------
        ModelError
            The function has no name, no source, or uses something that cannot be copied.
        """
        if isinstance(code, str):
            return code
        if not isinstance(code, FunctionType | type):
            raise ModelError(
                f"an object of type {type(code).__name__} is not a function or class",
                where="the model or target",
                hint="pass a function, a class, or text like 'module:name'",
            )
        if code.__module__ != "__main__":
            return f"{self._place(sys.modules[code.__module__])}:{_top_name(code)}"
        self._define(_top_name(code), code)
        return f"{FILE}:{code.__name__}"

    def source(self) -> str | None:
        """Return the text of :data:`FILE`; None: every function is in a file of the project."""
        if not self._definitions:
            return None
        head = "from __future__ import annotations\n\n" if self._has_future() else ""
        parts = ("\n".join(sorted(set(self._imports))), "\n".join(self._constants), *self._definitions)
        return _HEAD + head + "\n\n\n".join(filter(None, parts)) + "\n"

    def _has_future(self) -> bool:
        codes = (code for thing in self._names.values() if (code := _code_of(thing)) is not None)
        return any(code.co_flags & 0x1000000 for code in codes)  # CO_FUTURE_ANNOTATIONS

    def _place(self, module: ModuleType) -> str:
        """Return how an entry point names a module: as a file of the project, else by its name."""
        file = getattr(module, "__file__", None)
        if file and (path := Path(file).resolve()).is_relative_to(self._root) and path.suffix == ".py":
            inside = path.relative_to(self._root)
            dotted = module.__name__.replace(".", "/")
            if inside.with_suffix("").as_posix() not in (dotted, f"{dotted}/__init__"):
                return inside.as_posix() if "." not in module.__name__ else module.__name__
        return module.__name__

    def _define(self, name: str, thing: FunctionType | type) -> None:
        if self._names.get(name) is thing:
            return
        self._refuse_other(name, thing)
        self._names[name] = thing
        node, text = _definition(thing)
        namespace = _namespace(thing)
        for used in _names_used(node):
            if used in namespace and not _is_shells(used, namespace[used]):
                self._bring(used, namespace[used], name)
        self._definitions.append(text)

    def _bring(self, name: str, value: object, user: str) -> None:
        """Make a name of the notebook mean the same in the module."""
        if isinstance(value, FunctionType | type) and value.__module__ == "__main__":
            self._define(_top_name(value), value)
            if value.__name__ != name:
                self._constants_once(name, value, f"{name} = {value.__name__}", self._definitions)
        elif isinstance(value, ModuleType):
            self._constants_once(name, value, _import_of(value, name), self._imports)
        elif (home := _home(value)) is not None:
            self._constants_once(name, value, f"from {home[0]} import {home[1]} as {name}", self._imports)
        else:
            self._constants_once(name, value, f"{name} = {self._constant(name, value, user)}", self._constants)

    def _constants_once(self, name: str, value: object, line: str, lines: list[str]) -> None:
        if self._names.get(name, self) is not value:
            self._refuse_other(name, value)
            self._names[name] = value
            lines.append(line)

    def _refuse_other(self, name: str, value: object) -> None:
        if name in self._names and self._names[name] is not value:
            raise ModelError(
                f"{name!r} means two different things in the functions of this study",
                where="the model and the targets",
                hint="rename one of them",
            )

    def _constant(self, name: str, value: object, user: str) -> str:
        if _is_literal(value):
            return repr(value)
        try:
            data = pickle.dumps(value, protocol=5)
        except Exception as bad:  # an object's own code raises anything
            raise _cannot_travel(user, name, value, str(bad)) from bad
        if b"__main__" in data:
            raise _cannot_travel(user, name, value, "its class is defined in this notebook or program")
        self._imports += ["import base64", "import pickle"]
        return f'pickle.loads(base64.b64decode("{base64.b64encode(data).decode()}"))  # a {type(value).__name__}'


def _top_name(code: FunctionType | type) -> str:
    name, full = code.__name__, code.__qualname__
    if name == "<lambda>":
        raise ModelError("a lambda has no name", where="the model or target", hint="write a function with def")
    if name != full:
        raise ModelError(
            f"{full} is defined inside something else, so it cannot be imported by its name",
            where="the model or target",
            hint="define it at the top level of the notebook or file",
        )
    return name


def _code_of(thing: object) -> CodeType | None:
    """Return the code object of a function, or of a class's first method; None: there is none."""
    if isinstance(thing, type):
        methods = (inspect.unwrap(m) for m in map(_bare, vars(thing).values()) if isinstance(m, FunctionType))
        return next((m.__code__ for m in methods if isinstance(m, FunctionType)), None)
    thing = inspect.unwrap(thing) if callable(thing) else thing
    return thing.__code__ if isinstance(thing, FunctionType) else None


def _bare(member: object) -> object:
    return member.__func__ if isinstance(member, classmethod | staticmethod) else member


def _namespace(thing: FunctionType | type) -> Mapping[str, Any]:
    return vars(sys.modules["__main__"]) if isinstance(thing, type) else inspect.unwrap(thing).__globals__


def _definition(thing: FunctionType | type) -> tuple[ast.stmt, str]:
    """Return the definition of a function or class, as a tree and as text.

    Not ``inspect.getsource``, which does not find the classes of a notebook.
    """
    code = _code_of(thing)
    lines = linecache.getlines(code.co_filename) if code is not None else []
    wanted = ast.ClassDef if isinstance(thing, type) else ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, wanted) and node.name == thing.__name__ and code is not None and node.end_lineno:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            is_it = first == code.co_firstlineno or isinstance(node, ast.ClassDef)
            if is_it and first <= code.co_firstlineno <= node.end_lineno:
                return node, textwrap.dedent("".join(lines[first - 1 : node.end_lineno])).rstrip()
    raise ModelError(
        f"the source of {thing.__name__} is not there to be copied",
        where="the model or target",
        hint="define it in a cell of the notebook, or in a file of the project",
    )


def _names_used(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a definition reads and does not set itself, in the order of the text."""
    names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
    shared = {name for part in ast.walk(node) if isinstance(part, ast.Global) for name in part.names}
    own = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    own |= {part.id for part in names if not isinstance(part.ctx, ast.Load)}
    yield from dict.fromkeys(part.id for part in names if part.id not in own - shared)


def _import_of(module: ModuleType, name: str) -> str:
    return f"import {module.__name__}" if module.__name__ == name else f"import {module.__name__} as {name}"


def _home(value: object) -> tuple[str, str] | None:
    """Return the module and the name under which a function or class can be imported; None: under none."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not name.isidentifier():
        return None
    found = getattr(sys.modules.get(module), name, None)
    return (module, name) if found is value else None


def _is_shells(name: str, value: object) -> bool:
    """Tell whether a notebook's shell has replaced a built-in function by its own, as IPython does with ``open``."""
    return hasattr(builtins, name) and callable(value) and value is not getattr(builtins, name) and not _home(value)


def _is_literal(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list | tuple | set) and type(value) in (list, tuple, set):
        return bool(value) and all(map(_is_literal, value))
    if type(value) is dict:
        return all(_is_literal(key) and _is_literal(one) for key, one in value.items())
    return type(value) in _LITERALS


def _cannot_travel(user: str, name: str, value: object, why: str) -> ModelError:
    return ModelError(
        f"{user} uses {name!r}, which cannot be copied to another process ({type(value).__name__}: {why})",
        where="the model or target",
        hint=f"make it inside {user}, or read it there from a file of the project",
    )


Code = str | Callable[..., Any]
"""An entry point as text, or a function or class."""
