"""Names the code of functions and classes that a program gives to ``mops.submit``, and writes their files."""

from __future__ import annotations

import functools
import importlib.metadata
import io
import json
import keyword
import linecache
import pickle
import platform
import sys
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import count
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from mops.errors import ModelError, UsageError
from mops.project import functions_loader
from mops.project.function_files import free_module
from mops.project.import_folders import files_of, import_folders
from mops.units import mebibytes

Code = str | Callable[..., Any]  # an entry point as text, or a function or class

# The most bytes that the functions of a job take along. Each process that runs simulations has them in memory.
LIMIT_BYTES = 100 << 20
WHERE = "the model or target"
# Types whose values lead to no other object.
_FLAT = (str, bytes, int, float, type(None))
_MOST_OBJECTS = 1000  # of a set in order: each takes about a millisecond

_LIBRARIES = frozenset(("site-packages", "dist-packages"))


class GivenCode:
    """The functions and classes that a program gives to mops."""

    # Child processes import what is in a module. What is defined in a notebook, in a program or inside another function
    # goes into the bundle by value. ``taken``: files of the bundle that hold functions of an earlier submit.
    def __init__(self, root: Path, folder: Path, taken: Collection[str] = ()):
        self._root, self._folder = root, folder
        self._module = free_module(taken)
        self._by_value: dict[str, object] = {}
        # For each entry point of an object that child processes import: the file of its module.
        self.imported: dict[str, str] = {}

    def model(self, code: object) -> str:
        """Return the entry point of a model; text is returned as it is."""
        return self._entry_point(code, "model")

    def targets(self, codes: Sequence[object]) -> list[str]:
        """Return the entry points of targets. UsageError: they are no list."""
        if isinstance(codes, str) or not isinstance(codes, Sequence):
            what = repr(codes) if isinstance(codes, str) else f"of type {type(codes).__name__}"
            raise UsageError(f"the targets are {what}, not a list", where="targets", hint="write targets=[...]")
        return [self._entry_point(code, "target") for code in codes]

    def files(self) -> dict[str, bytes]:
        """Return the files of the bundle that hold functions; none if child processes import all of them."""
        if not self._by_value:
            return {}
        files: dict[str, str] = {}
        data = pickled(self._by_value, self._root, files, LIMIT_BYTES)
        texts = {shown: "".join(linecache.getlines(file)) for file, shown in files.items() if shown != file}
        record = {
            "python": platform.python_version(),
            "functions": list(self._by_value),
            "sources": {shown: text for shown, text in sorted(texts.items()) if text},
            "packages": {one.name: one.version for one in importlib.metadata.distributions() if one.name},
        }
        try:
            content = digest(self._by_value)
        except Exception as bad:  # as in pickled
            raise _refused(self._by_value, bad, LIMIT_BYTES) from bad
        loader = Path(functions_loader.__file__).read_text(encoding="utf-8")
        code = f"{loader}\n\nDIGEST = {content!r}\nglobals().update(load(__file__))\n"
        return {
            f"{self._module}.py": code.encode(),
            f"{self._module}.pickle": data,
            f"{self._module}.json": json.dumps(record, indent=1, sort_keys=True).encode(),
        }

    def _entry_point(self, code: object, role: str) -> str:
        if isinstance(code, str):
            return code
        function = code
        while isinstance(function, functools.partial):
            function = function.func
        name = getattr(function, "__name__", None)
        if not (callable(function) and isinstance(name, str)):
            raise ModelError(
                f"an object of type {type(code).__name__} is not a function or class",
                where=WHERE,
                hint="pass a function, a class, or text like 'module:name'",
            )
        module = _module_of(code, name)
        if module is not None:
            place, file = _place(module, self._root, self._folder)
            if file is not None:
                self.imported[f"{place}:{name}"] = file
            return f"{place}:{name}"
        name = name if name.isidentifier() and not keyword.iskeyword(name) else role  # a lambda's is that of its role
        keys = (name if number == 1 else f"{name}_{number}" for number in count(1))
        key = next(key for key in keys if self._by_value.setdefault(key, code) is code)
        return f"{self._module}:{key}"


def _place(module: ModuleType, root: Path, folder: Path) -> tuple[str, str | None]:
    """Return how an entry point names a module, and the module's file, relative to the root if it is below the root."""
    dotted, file = module.__name__, getattr(module, "__file__", None)
    if file is None or Path(file).suffix != ".py":
        return dotted, None
    path = Path(file).resolve()
    if not path.is_relative_to(root):
        return dotted, str(path)
    inside = path.relative_to(root).as_posix()
    found = files_of(dotted, import_folders(root, folder, [dotted]), lambda name: (root / name).is_file())
    is_found = next(iter(found.values()), None) == inside
    if is_found or "." in dotted or _LIBRARIES.intersection(path.parts):
        return dotted, inside
    # No folder from which child processes import has the module, or another folder before it has one of this name.
    return inside if "/" in inside else f"./{inside}", inside


def _module_of(code: object, name: str) -> ModuleType | None:
    """Return the module from which other processes import a function or class; None: they cannot."""
    module = sys.modules.get(getattr(code, "__module__", None) or "")
    is_there = module is not None and module.__name__ != "__main__" and getattr(module, name, None) is code
    return module if is_there else None


class _TooLarge(Exception):
    """The pickle has more bytes than allowed."""


class _Target(io.BytesIO):
    """The bytes of a pickle, up to a limit."""

    def __init__(self, limit_bytes: int):
        super().__init__()
        self._limit_bytes = limit_bytes
        self.n_bytes = 0

    def write(self, data: Any) -> int:
        self.n_bytes += memoryview(data).nbytes
        if self.n_bytes > self._limit_bytes:
            raise _TooLarge
        return super().write(data)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles functions; ``changed`` returns the code to pickle instead of a code object."""

    def __init__(self, target: io.BytesIO, changed: Callable[[CodeType], CodeType]):
        reduce = cloudpickle.Pickler.dispatch_table[CodeType]
        own = {CodeType: lambda code: reduce(changed(code)), functools._lru_cache_wrapper: _cached}
        self.dispatch_table = ChainMap(own, {io.TextIOWrapper: _open_file}, cloudpickle.Pickler.dispatch_table)
        super().__init__(target)  # reads the table

    def reducer_override(self, value: Any) -> Any:
        if hasattr(value, "__cuda_array_interface__") and not isinstance(value, type):
            raise pickle.PicklingError(f"a {type(value).__name__} is in the memory of a GPU")
        return super().reducer_override(value)


# Sets by their id, with the digests of their elements in order; None while these are computed. The set itself keeps its
# id from being used again.
_Sets = dict[int, tuple[object, list[str] | None]]


class _DigestPickler(_Pickler):
    """Writes bytes that are equal in each process, and do not depend on the place of a function in its file."""

    # ``sets``: those found so far. None: put only sets of flat elements in order.
    def __init__(self, target: io.BytesIO, sets: _Sets | None):
        self._sets = sets
        super().__init__(target, lambda code: code.replace(co_filename="", co_firstlineno=1, co_linetable=b""))

    def persistent_id(self, value: Any) -> object:
        if isinstance(value, str):
            # A class has a random id. Equal texts may be one object or two: these bytes are never one object.
            is_random = value in cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
            return b"" if is_random else value.encode(errors="surrogatepass")
        if type(value) in (set, frozenset) and self._orders(value):
            return [type(value).__name__, *self._in_order(value)]
        return None

    def _orders(self, value: Any) -> bool:
        # Elements that are no plain values are pickled one by one: with their class, and what they share.
        return all(type(one) in _FLAT for one in value) or (self._sets is not None and len(value) <= _MOST_OBJECTS)

    def _in_order(self, value: Any) -> list[str]:
        if self._sets is None:
            return sorted(_digest(one, None) for one in value)
        if id(value) not in self._sets:
            self._sets[id(value)] = value, None
            self._sets[id(value)] = value, sorted(_digest(one, self._sets) for one in value)
        found = self._sets[id(value)][1]
        if found is None:
            raise RecursionError("a set leads back to itself")
        return found

    def reducer_override(self, value: Any) -> Any:
        reduced = super().reducer_override(value)
        if isinstance(value, FunctionType) and isinstance(reduced, tuple):
            make, (code, _module, *more), (attributes, slots), *rest = reduced
            slots["_cloudpickle_submodules"] = []  # in the order of earlier imports
            return make, (code, {}, *more), (attributes, slots), *rest
        if isinstance(reduced, tuple) and len(reduced) > 2:
            for name in ("__firstlineno__", "__static_attributes__"):
                reduced[2][0].pop(name, None)
        return reduced


def digest(value: object) -> str:
    """Return a digest that is equal for equal functions in other processes, whatever their lines and comments."""
    try:
        return _digest(value, {})
    except (pickle.PicklingError, RecursionError):  # sets that lead back to themselves, which only pickle's memo ends
        return _digest(value, None)


def _digest(value: object, sets: _Sets | None) -> str:
    data = io.BytesIO()
    _DigestPickler(data, sets).dump(value)
    return blake2b(data.getbuffer(), digest_size=16).hexdigest()


def _cached(function: functools._lru_cache_wrapper[Any]) -> Any:
    """Reduce a function with lru_cache or cache, without its results; pickle would take only its name."""
    if _module_of(function, function.__name__) is not None:
        return function.__reduce__()
    size, typed = function.cache_parameters().values()
    made_of = (function.__wrapped__, size, typed, functools._CacheInfo)
    return functools._lru_cache_wrapper, made_of, vars(function)


def _open_file(_file: io.TextIOWrapper) -> Any:
    """Refuse what cloudpickle would read: the function may want to continue the file."""
    raise pickle.PicklingError("it is an open file")


def pickled(functions: Mapping[str, object], root: Path, files: dict[str, str], limit_bytes: int) -> bytes:
    """Return the bytes of functions. ``files`` gets the name that tracebacks show for each file of their code.

    ModelError: what the functions use cannot go to another process, or is too large.
    """

    def renamed(code: CodeType) -> CodeType:
        shown = files.setdefault(code.co_filename, _shown(code.co_filename, code.co_name, root))
        return code.replace(co_filename=shown)

    target = _Target(limit_bytes)
    try:
        _Pickler(target, renamed).dump(functions)
    except Exception as bad:  # methods of the user's classes may raise anything
        raise _refused(functions, bad, limit_bytes) from bad
    return target.getvalue()


def _refused(functions: Mapping[str, object], bad: Exception, limit_bytes: int) -> ModelError:
    """Return the error that names the variable because of which functions cannot be pickled."""
    names, sizes = ", ".join(functions), {}
    seen: set[int] = set()
    for text, value in (one for function in functions.values() for one in _variables(function, seen)):
        target = _Target(limit_bytes)
        try:
            _Pickler(target, lambda code: code).dump(value)
        except _TooLarge:
            pass
        except Exception as refused:  # noqa: BLE001 - as in pickled
            names, bad = text, refused
            break
        sizes[text] = target.n_bytes
    if isinstance(bad, _TooLarge):
        name = max(sizes, key=sizes.__getitem__, default=names)
        return ModelError(
            f"{name} has at least {mebibytes(sizes.get(name, limit_bytes))}; what the functions of a job use can have "
            f"{mebibytes(limit_bytes)} in all",
            where=WHERE,
            hint="write the data to a file of the project, and read the file in the function",
        )
    reason = str(bad).partition("\n")[0]
    return ModelError(
        f"{names} cannot go to the processes that run simulations: {reason}",
        where=WHERE,
        hint="make it inside the function, or pass a path or a number instead",
    )


def _variables(code: Any, seen: set[int]) -> Iterator[tuple[str, object]]:
    """Yield the variables that a function or class takes along, with a text for errors; first those of what it uses."""
    reduced = cloudpickle.Pickler(io.BytesIO()).reducer_override(code)
    if id(code) in seen or not isinstance(reduced, tuple) or len(reduced) < 3:
        return
    seen.add(id(code))
    attributes, slots = reduced[2]
    cells = zip(code.__code__.co_freevars, slots["__closure__"] or (), strict=True) if slots else ()
    inside = {name: cell.cell_contents for name, cell in cells if cell != CellType()}
    for name, value in {**attributes, **slots.get("__globals__", {}), **inside}.items():
        if isinstance(value, FunctionType | type):
            yield from _variables(value, seen)
        else:
            yield f"the variable {name!r}, which {code.__qualname__} uses,", value


def _shown(file: str, function: str, root: Path) -> str:
    """Return how tracebacks name a file of code: without this process's temporary folders, and without its user."""
    path = Path(file)
    if _LIBRARIES.intersection(path.parts):
        return file
    if path.is_file():
        real = path.resolve()
        return real.relative_to(root).as_posix() if real.is_relative_to(root) else path.name
    # The cells of a notebook are files that do not exist, with names that differ in each process.
    return file.strip("<>") if file.startswith("<") else f"cell of {function}"
