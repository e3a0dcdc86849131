"""Finds the statements of a project that a model reaches, to tell whether a change of the code may change the model.

Reached are the model's function or class, every function, class and value of a module that reached code names, and
what runs when the modules are imported. The rest, such as a target in the same file, may change. What follows from
names is bounded; what code computes from texts is not. So `Undecided` is raised for code that imports by computed
names, reads modules as values of a mapping, or unpickles. A wrong "reached" costs the user a flag, and a wrong "not
reached" gives wrong science: in doubt, code is reached.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

from mops.project.function_files import is_from_function_file
from mops.project.project import ModelSpec
from mops.study.entry_point import EntryPoint

# Names with which code finds other code by a text.
_COMPUTES_NAMES = frozenset(
    (
        *("importlib", "__import__", "runpy", "pkgutil", "zipimport", "exec", "eval", "builtins", "__main__"),
        *("globals", "locals", "vars", "dir", "__globals__", "__builtins__", "__code__", "__subclasses__"),
        *("inspect", "linecache", "__doc__", "__path__", "pkg_resources", "_getframe", "f_globals"),
        *("pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "read_pickle", "allow_pickle"),
    )
)
# With these, code runs a program, which may be a file of the project. To import them runs nothing.
_STARTS_PROGRAMS = frozenset(
    ("subprocess", "Popen", "popen", "create_subprocess_exec", "create_subprocess_shell", "posix_spawn")
)
# Libraries that find code by a text: they import by a path, read formulas or docstrings, or unpickle.
_FINDS_CODE = frozenset(("site", "pydoc", "hydra", "numexpr", "patsy", "statsmodels", "duckdb", "torch", "ply"))
_OF_SYS = frozenset(("modules", "path", "meta_path", "path_hooks"))
# An import of these changes nothing in other code. Python's own modules are the others.
_PLAIN_LIBRARIES = frozenset(("numpy", "scipy", "pandas", "polars", "pyarrow"))
# Calls that only return a value, and decorators that only return a function or class.
_PURE = frozenset(
    (
        *("bool", "int", "float", "str", "bytes", "complex", "len", "range", "abs", "min", "max", "sum", "round"),
        *("list", "tuple", "dict", "set", "frozenset", "sorted", "zip", "enumerate"),
        *("staticmethod", "classmethod", "property"),
        *("functools.cache", "functools.lru_cache", "functools.wraps", "contextlib.contextmanager"),
        *("dataclasses.dataclass", "dataclasses.field", "pathlib.Path", "fractions.Fraction", "decimal.Decimal"),
        *(f"math.{name}" for name in ("log", "log2", "log10", "exp", "sqrt", "pow", "radians")),
        *(
            f"numpy.{name}"
            for name in ("array", "asarray", "arange", "linspace", "logspace", "geomspace", "zeros", "ones", "full")
        ),
        *("numpy.log", "numpy.exp", "numpy.sqrt", "numba.njit", "numba.jit"),
    )
)
_PURE_BASES = frozenset(
    ("object", "Exception", "ValueError", "typing.NamedTuple", "typing.TypedDict", "typing.Protocol", "abc.ABC")
)
_PURE_NODES = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Dict, ast.Set),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.JoinedStr, ast.FormattedValue, ast.Starred),
    *(ast.Lambda, ast.arguments, ast.arg, ast.keyword, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    ast.comprehension,
    *(ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)

Code = Mapping[str, str]  # the text of each Python file, by its path relative to the project root
_Chain = tuple[str, ...]  # `model.rates.BETA` as its names
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Undecided(Exception):
    """What the code reaches does not follow from its names."""


@dataclass(frozen=True)
class _Import:
    """A name that an import gives to a module, or to something in it."""

    name: str  # in the importing code; `*`: every name
    module: _Chain
    level: int  # the dots in front of it
    inside: _Chain = ()  # what it names in the module


@dataclass(eq=False)
class _Statement:
    """A statement at the top of a module."""

    node: ast.stmt

    @cached_property
    def imports(self) -> list[_Import]:
        found = []
        for node in ast.walk(self.node):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    module = tuple(alias.name.split("."))
                    found.append(_Import(alias.asname or module[0], module if alias.asname else module[:1], 0))
                    if not alias.asname and module[1:]:  # runs the inner module, and names the outer one
                        found.append(_Import("", module, 0))
            elif isinstance(node, ast.ImportFrom):
                module = tuple(node.module.split(".")) if node.module else ()
                found += [_Import(one.asname or one.name, module, node.level, (one.name,)) for one in node.names]
        return found

    @cached_property
    def names(self) -> set[str]:
        """The names of the module that the statement, or a function in it, gives a value or changes."""
        found = {one.name for one in self.imports}
        for node in ast.walk(self.node):
            if isinstance(node, ast.Global):
                found.update(node.names)
            elif isinstance(node, _Definition) and node is self.node:
                found.add(node.name)
        if not isinstance(self.node, _Definition):
            found |= {n.id for n in ast.walk(self.node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
            found |= {n.name for n in ast.walk(self.node) if isinstance(n, _Definition)}
            found |= {n.name for n in ast.walk(self.node) if isinstance(n, ast.ExceptHandler) and n.name}
            found |= {n.name for n in ast.walk(self.node) if isinstance(n, ast.MatchAs | ast.MatchStar) and n.name}
        return found

    @cached_property
    def uses(self) -> set[_Chain]:
        """Every name, with the attributes that are read from it; also names of local variables."""
        found: set[_Chain] = set()
        todo: list[ast.AST] = [self.node]
        while todo:
            node = todo.pop()
            if isinstance(node, ast.Constant) and isinstance(node.value, str):  # as in `df.query("age > @ADULT")`
                found |= {(word,) for word in re.findall(r"@(\w+)", node.value)}
            for note in (getattr(node, "annotation", None), getattr(node, "returns", None)):
                for one in ast.walk(note) if note is not None else ():
                    if isinstance(one, ast.Constant) and isinstance(one.value, str):  # an annotation in quotes
                        found |= {(word,) for word in re.findall(r"\w+", one.value)}
            if (chain := _chain(node)) is not None:
                found.add(chain)
            else:
                todo += ast.iter_child_nodes(node)
        return found

    @cached_property
    def changed_names(self) -> set[str]:
        """The names whose attributes or elements a function of the statement may change."""
        found = set()
        for node in ast.walk(self.node):
            if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
                root: ast.AST = node
                while isinstance(root, ast.Attribute | ast.Subscript):
                    root = root.value
                found |= {root.id} if isinstance(root, ast.Name) else set()
        local = {n.id for n in ast.walk(self.node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return found - {n.arg for n in ast.walk(self.node) if isinstance(n, ast.arg)} - local


def _chain(node: ast.AST) -> _Chain | None:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else None


class _Module:
    """A Python file: its statements, without comments, docstrings, and what runs only in a program."""

    def __init__(self, file: str, text: str, own: Collection[str]):
        self.file, self._own = file, own  # `own`: names that modules and folders of the project have
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            raise Undecided from None
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | _Definition) and ast.get_docstring(node, clean=False) is not None:
                node.body[:1] = [] if node.body[1:] or isinstance(node, ast.Module) else [ast.Pass()]
        self.statements = [_Statement(node) for node in tree.body if not _is_program(node)]
        self._named: dict[str, list[_Statement]] = defaultdict(list)
        for one in self.statements:
            for name in one.names | (one.changed_names if isinstance(one.node, _Definition) else set()):
                self._named[name].append(one)

    def named(self, name: str) -> list[_Statement]:
        """Return the statements that give a name its value, or change it."""
        return self._named.get(name, [])

    def only_binds(self, node: ast.stmt, *, trusting: bool = False) -> bool:
        """Tell whether a statement does nothing but give names their values.

        ``trusting``: what libraries do with a function, a class or plain values changes nothing in the model.
        """
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if node.name.startswith("__") and node in (one.node for one in self.statements):  # __getattr__
                    return False
                of = node.args
                arguments = [*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg]
                notes = [one.annotation for one in arguments if one is not None] + [node.returns]
                values = [*of.defaults, *of.kw_defaults, *notes]
                return (
                    not getattr(node, "type_params", ())
                    and self._are_plain(node, trusting)
                    and self._are_pure(values, trusting)
                )
            case ast.ClassDef():
                # A base class may note its subclasses.
                bases = [self._library_name(base) for base in node.bases]
                are_known = all(base in _PURE_BASES or (trusting and "." in base) for base in bases)
                is_plain = are_known and not node.keywords and self._are_plain(node, trusting)
                return is_plain and all(self.only_binds(one, trusting=trusting) for one in node.body)
            case ast.Assign(targets=targets, value=value):
                names = [name for one in targets for name in (one.elts if isinstance(one, ast.Tuple) else [one])]
                return all(isinstance(one, ast.Name) for one in names) and self._are_pure([value], trusting)
            case ast.AnnAssign(target=ast.Name(), annotation=note, value=value):
                return self._are_pure([note, value], trusting)
            case ast.Import() | ast.ImportFrom():
                imports = _Statement(node).imports
                # What an import of the project's own modules runs is reached with these modules.
                known = _HARMLESS | set(self._own)
                return all(one.name != "*" and (trusting or one.level or one.module[0] in known) for one in imports)
        return isinstance(node, ast.Pass)

    def _are_plain(self, node: _Definition, trusting: bool) -> bool:
        """Tell whether decorators note the function or class nowhere."""
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            chain = _chain(decorator)
            if chain is not None and chain[1:] in (("setter",), ("deleter",)) and not self.named(chain[0]):
                continue
            if not self._is_harmless(called, trusting) or not self._are_pure([decorator], trusting):
                return False
        return True

    def _are_pure(self, values: Iterable[ast.expr | None], trusting: bool) -> bool:
        nodes = (node for value in values if value is not None for node in ast.walk(value))
        return all(
            self._is_harmless(node.func, trusting) if isinstance(node, ast.Call) else isinstance(node, _PURE_NODES)
            for node in nodes
        )

    def _is_harmless(self, function: ast.expr, trusting: bool) -> bool:
        name = self._library_name(function)
        return name in _PURE or (trusting and "." in name)

    def _library_name(self, node: ast.AST) -> str:
        """Return what a decorator, a base or a called function is in its library; empty: it is another object."""
        chain = _chain(node)
        if chain is None:
            return ""
        statements = self.named(chain[0])
        if not statements:
            return chain[0] if len(chain) == 1 and hasattr(builtins, chain[0]) else ""
        found = [one for statement in statements for one in statement.imports if one.name == chain[0]]
        if len(statements) > 1 or len(found) != 1 or found[0].level:
            return ""
        if found[0].module[0] in self._own and found[0].module[0] not in sys.stdlib_module_names:
            return ""
        return ".".join((*found[0].module, *found[0].inside, *chain[1:]))


_HARMLESS = (sys.stdlib_module_names | _PLAIN_LIBRARIES) - {"__future__"} - _COMPUTES_NAMES


def _is_program(node: ast.stmt) -> bool:
    """Tell whether a statement is ``if __name__ == "__main__"``, which no import runs."""
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'"


@dataclass
class Reached:
    """The code that a model reaches."""

    # For each file that reached code names: its reached statements, in a form without comments and places.
    files: dict[str, list[str]] = field(default_factory=dict)
    text: str = ""  # of all statements


def reached(python: Code, spec: ModelSpec) -> Reached:
    """Return the code of a project that a model reaches. Undecided: it does not follow from the names in the code."""
    if is_from_function_file(spec.model):
        raise Undecided  # the text of these functions is not in the project
    search = _Search(python, spec)
    entry = EntryPoint.parse(spec.model)
    if not (files := search.files_of_entry(entry)):
        raise Undecided
    try:
        for file in files:
            search.use(file, (entry.name,) if entry.name else ())
        search.add_imports_of_targets(spec.targets)
    except RecursionError:
        raise Undecided from None
    return search.found()


class _Search:
    def __init__(self, python: Code, spec: ModelSpec):
        self._python = python
        self._folders = tuple(dict.fromkeys(["" if one == "." else f"{one}/" for one in spec.import_folders]))
        self._modules: dict[str, _Module] = {}
        self._reached: dict[str, set[_Statement]] = {}
        self._whole: set[str] = set()
        self._executed: set[str] = set()
        self._running: set[str] = set()
        paths = map(PurePosixPath, python)
        self._words = {word for path in paths for word in (*path.parts[:-1], path.stem)}

    def files_of_entry(self, entry: EntryPoint) -> list[str]:
        if entry.path is not None:
            name = str(PurePosixPath(entry.path))
            return [file for folder in self._folders if (file := f"{folder}{name}") in self._python]
        return self._files(tuple(str(entry.module).split(".")), self._folders)

    def use(self, file: str, chain: _Chain) -> None:
        """Reach what a chain of names is in a module; an empty one: all of the module."""
        self._reached.setdefault(file, set())
        self._execute(file)
        module = self._module(file)
        if not chain or not module.named(chain[0]):
            if file in self._whole:
                return
            self._whole.add(file)
            for statement in module.statements:
                self._reach(module, statement)
            if file.endswith("__init__.py"):  # modules in a package are attributes of the package
                for other in self._python:
                    if other.startswith(file.removesuffix("__init__.py")):
                        self.use(other, ())
            return
        for statement in module.named(chain[0]):
            self._reach(module, statement)
        self._follow(module, [one for s in module.named(chain[0]) for one in s.imports if one.name == chain[0]], chain)

    def add_imports_of_targets(self, targets: Iterable[str]) -> None:
        """Reach what an import of the targets runs: a process imports them before it simulates.

        Most targets use libraries that the model does not know, so these count only if the model imports them too.
        """
        for target in targets:
            for file in [] if is_from_function_file(target) else self.files_of_entry(EntryPoint.parse(target)):
                self._execute(file, trusting=True)

    def found(self) -> Reached:
        found = Reached()
        texts: list[str] = []
        for file in sorted(self._reached):
            module = self._module(file)
            nodes = [one.node for one in module.statements if one in self._reached[file]]
            found.files[file] = list(map(ast.dump, nodes))
            texts += map(ast.unparse, nodes)
        found.text = "\n".join(texts)
        return found

    def _module(self, file: str) -> _Module:
        if file not in self._modules:
            self._modules[file] = _Module(file, self._python[file], self._words)
        return self._modules[file]

    def _execute(self, file: str, *, trusting: bool = False) -> bool:
        """Reach what an import of a module runs, also in the modules that it imports; tell whether it runs anything."""
        if file in self._executed:
            return file in self._running
        self._executed.add(file)
        self._running.add(file)  # so that modules that import each other keep their order
        module, is_running = self._module(file), False
        for folder in PurePosixPath(file).parents:
            if (above := str(folder / "__init__.py")) in self._python and above != file:
                is_running |= self._execute(above, trusting=trusting)
        for statement in module.statements:
            runs = not module.only_binds(statement.node, trusting=trusting)
            is_function = isinstance(statement.node, ast.FunctionDef | ast.AsyncFunctionDef)
            for one in [] if is_function else statement.imports:
                for other, _ in self._resolved(module, one, ()):
                    runs |= self._execute(other, trusting=trusting)
            if runs:
                self._reach(module, statement)
                is_running = True
        if not is_running:
            self._running.discard(file)
        return is_running

    def _reach(self, module: _Module, statement: _Statement) -> None:
        of_file = self._reached.setdefault(module.file, set())
        if statement in of_file:
            return
        of_file.add(statement)
        self._require_bounded(statement)
        for one in statement.imports:
            if one.name == "*":
                self._follow(module, [one], ())
            for file, _ in self._resolved(module, one, ()):
                self._execute(file)
        for chain in statement.uses:
            if module.named(chain[0]):
                self.use(module.file, chain)
            self._follow(module, [one for one in statement.imports if one.name == chain[0]], chain)

    def _follow(self, module: _Module, imports: Iterable[_Import], chain: _Chain) -> None:
        for one in imports:
            for file, rest in self._resolved(module, one, chain[1:]):
                self.use(file, rest)

    def _resolved(self, module: _Module, one: _Import, rest: _Chain) -> Iterator[tuple[str, _Chain]]:
        """Yield the files of the project that an import may mean, and what follows in each."""
        inside = () if one.inside == ("*",) else one.inside
        names = (*one.module, *inside, *rest)
        folders = self._folders
        if one.level:
            parents = PurePosixPath(module.file).parents
            if one.level > len(parents):
                raise Undecided
            folder = str(parents[one.level - 1])
            folders = ("" if folder == "." else f"{folder}/",)
        is_found = False
        for n in range(len(names), -1 if one.level else 0, -1):
            files = self._files(names[:n], folders)
            # A package may give the name of one of its modules to something else.
            yield from ((file, names[n:]) for file in files if not is_found or self._module(file).named(names[n]))
            is_found = is_found or bool(files)
        # The name may be a module that another folder holds, or a folder without an __init__.py.
        if not is_found and (one.level or (names[0] in self._words and names[0] not in sys.stdlib_module_names)):
            raise Undecided

    def _files(self, module: _Chain, folders: Iterable[str]) -> list[str]:
        path = "/".join(module)
        names = [f"{folder}{path}/__init__.py" if path else f"{folder}__init__.py" for folder in folders]
        names += [f"{folder}{path}.py" for folder in folders] if path else []
        return [name for name in names if name in self._python]

    def _require_bounded(self, statement: _Statement) -> None:
        """Raise Undecided if a statement may find code by a text."""
        words = {word for chain in statement.uses for word in chain}
        words |= {word for one in statement.imports for word in (*one.module, *one.inside)}
        texts: list[str] = []
        for node in ast.walk(statement.node):
            if isinstance(node, ast.keyword) and node.arg:
                words.add(node.arg)
            elif isinstance(node, ast.Attribute):  # also behind calls
                words.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
        of_sys = {chain[1:2] for chain in statement.uses if chain[0] == "sys"}
        imports = [one for one in statement.imports if one.module == ("sys",)]
        of_sys |= {one.inside for one in imports if one.inside or one.name != "sys"}
        libraries = {one.module[0] for one in statement.imports if one.module}
        if words & (_COMPUTES_NAMES | _STARTS_PROGRAMS) or {"os", "system"} <= words or libraries & _FINDS_CODE:
            raise Undecided
        if any(map(self._names_code, texts)):
            raise Undecided
        if any(not name or name[0] in _OF_SYS for name in of_sys):
            raise Undecided

    def _names_code(self, text: str) -> bool:
        """Tell whether a text names a Python file, a module in a package, or something in a module."""
        if ".py" in text:
            return True
        parts = tuple(text.split(":")[0].split("."))
        if len(parts) < 2 or not all(parts):
            return False
        return bool(self._files(parts, self._folders)) or any(
            self._module(file).named(parts[n])
            for n in range(1, len(parts))
            for file in self._files(parts[:n], self._folders)
        )
