"""Reads what functions take along to another process, and finds what cannot go there.

A function that child processes cannot import takes along its code, its default values, the variables of its closure,
and the global variables that its code names, with what these functions and classes take along. Modules, and what they
define, go by name.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import io
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, NoReturn

import cloudpickle
import numpy as np

from mops.errors import ModelError
from mops.units import mebibytes

WHERE = "the model or target"

_SCALARS = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
_GLOBAL_NAMES = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL")
_OF_CODE = (
    *("co_name", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_code", "co_consts"),
    *("co_names", "co_varnames", "co_freevars", "co_cellvars", "co_exceptiontable"),
)
_NOT_OF_CLASS = frozenset(
    (
        *("__dict__", "__weakref__", "__module__", "__doc__", "_abc_impl", "__annotations_cache__"),
        *("__annotate__", "__annotate_func__", "__firstlineno__", "__static_attributes__", "__classdictcell__"),
    )
)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the others are in C, and exist in every process
_PROTOCOL = 4
_BY_NAME = (types.FunctionType, functools._lru_cache_wrapper, type)  # other processes import them, if they can
_SHARED = (tuple, frozenset, types.CodeType)  # Python may use one object for equal ones, and does not always


class FunctionContent:
    """What some functions take along, and a digest that tells whether they are the same as in an earlier job."""

    def __init__(self, limit_bytes: int):
        self._limit_bytes = limit_bytes
        self.n_bytes = 0
        # For each file name in the code: the name of the first function that names this file.
        self.files: dict[str, str] = {}
        # The bytes of cloudpickle cannot be the digest: they differ between processes. The digest does not depend on
        # comments, blank lines, or the place of a function in its file.
        self._hash = blake2b(digest_size=16)
        self._numbers: dict[int, int] = {}
        self._objects: list[object] = []  # the numbers are by id, so no object may end before this one
        self._function = ""
        self._open: list[tuple[str, int]] = []  # variables, and the bytes before each
        self._sizes: dict[str, int] = {}

    @property
    def digest(self) -> str:
        """The digest of all that was added."""
        return self._hash.hexdigest()

    def add(self, name: str, function: object) -> None:
        """Add a function or class. ModelError: what it takes along cannot go to another process, or is too large."""
        self._function = name
        self._value(name)
        try:
            self._value(function)
        except RecursionError:
            self._refuse("it is nested too deeply")

    def _refuse(self, reason: object) -> NoReturn:
        text = str(reason).partition("\n")[0]
        what = self._open[-1][0] if self._open else self._function
        raise ModelError(
            f"{what} cannot go to the processes that run simulations: {text}",
            where=WHERE,
            hint="make it inside the function, or pass a path or a number instead",
        )

    def _count(self, n_bytes: int) -> None:
        self.n_bytes += n_bytes
        if self.n_bytes <= self._limit_bytes:
            return
        # A variable of a function that another function uses comes before that function.
        sizes = self._sizes | {name: self.n_bytes - before for name, before in reversed(self._open)}
        most = max(sizes.values(), default=0)
        name, size = next((one for one in sizes.items() if one[1] > 0.9 * most), (self._function, self.n_bytes))
        raise ModelError(
            f"{name} has at least {mebibytes(size)}; what the functions of a job use can have "
            f"{mebibytes(self._limit_bytes)} in all",
            where=WHERE,
            hint="write the data to a file of the project, and read the file in the function",
        )

    def _put(self, *parts: bytes) -> None:
        for part in parts:
            self._count(len(part))
            self._hash.update(b"%d:" % len(part))
            self._hash.update(part)

    def _text(self, *parts: object) -> None:
        self._put(*(str(part).encode(errors="surrogatepass") for part in parts))

    @contextmanager
    def _of_variable(self, text: str) -> Iterator[None]:
        """Name a variable, for errors about what the body reads."""
        self._open.append((text, self.n_bytes))
        yield
        _, before = self._open.pop()
        self._sizes[text] = self.n_bytes - before

    def _value(self, value: object) -> None:
        kind = type(value)
        if kind in _SCALARS:
            self._text(kind.__name__, value if isinstance(value, str) else repr(value))
            return
        if not isinstance(value, _SHARED):
            if id(value) in self._numbers:
                self._text("again", self._numbers[id(value)])
                return
            self._numbers[id(value)] = len(self._numbers)
            self._objects.append(value)
        reader = _READERS.get(kind)
        if isinstance(value, _BY_NAME) and (name := reference(value)) is not None:
            self._text("reference", name)
        elif reader is not None:
            reader(self, value)
        elif isinstance(value, type):
            self._class(value)
        else:
            self._object(value)

    def _values(self, kind: str, values: Iterable[object]) -> None:
        found = list(values)
        self._text(kind, len(found))
        if {type(one) for one in found} <= {int, float, bool}:
            self._text(repr(found))
            return
        for one in found:
            self._value(one)

    def _set(self, values: set[object] | frozenset[object]) -> None:
        """Read the elements in the order of their digests: the order of a set differs between processes."""
        digests = []
        for one in values:
            alone = FunctionContent(self._limit_bytes)
            alone._function, alone._open = self._function, [(name, 0) for name, _ in self._open[-1:]]
            alone._value(one)
            self.files = alone.files | self.files
            digests.append(alone.digest)
        self._values("set", sorted(digests))

    def _dict(self, values: Mapping[Any, object]) -> None:
        self._values("dict", (one for pair in values.items() for one in pair))

    def _array(self, array: np.ndarray[Any, Any]) -> None:
        if array.dtype.hasobject:
            self._object(array)
            return
        self._text("array", array.dtype, array.shape)
        self._count(array.nbytes)  # before the copy
        self._hash.update(array.tobytes())

    def _defined_function(self, function: types.FunctionType) -> None:
        self._code(function.__code__)
        self._values("defaults", function.__defaults__ or ())
        self._dict(function.__kwdefaults__ or {})
        self._dict(function.__dict__)
        self._dict(dict(getattr(function, "__annotations__", {})))
        for name, value in _variables_of(function):
            self._text(name)
            with self._of_variable(f"the variable {name!r}, which {function.__qualname__} uses,"):
                self._value(value)

    def _cached(self, function: functools._lru_cache_wrapper[Any]) -> None:
        self._values("cached", (function.__wrapped__, vars(function), *function.cache_parameters().values()))

    def _code(self, code: types.CodeType) -> None:
        self.files.setdefault(code.co_filename, code.co_name)
        for field in _OF_CODE:
            self._value(getattr(code, field))

    def _class(self, kind: type) -> None:
        self._text("class", kind.__name__)
        self._value(type(kind))
        self._values("bases", kind.__bases__)
        self._dict({name: value for name, value in vars(kind).items() if name not in _NOT_OF_CLASS})

    def _object(self, value: object) -> None:
        if hasattr(value, "__cuda_array_interface__"):
            self._refuse(f"a {type(value).__name__} is in the memory of a GPU")
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            reduced = reduce(value) if reduce is not None else value.__reduce_ex__(_PROTOCOL)
            module = pickle.whichmodule(value, reduced) if isinstance(reduced, str) else ""  # type: ignore[attr-defined]
        except Exception as refused:  # noqa: BLE001 - methods of the user's class may raise anything
            self._by_pickle(value, refused)
            return
        if isinstance(reduced, str):
            if module == "__main__" and type(value) not in cloudpickle.Pickler.dispatch_table:
                self._refuse(f"other processes cannot import the {type(value).__name__} {reduced!r}")
            self._text("name", module, reduced)
            return
        self._text("object", len(reduced))
        for part in reduced:
            self._value(list(part) if isinstance(part, Iterator) else part)

    def _by_pickle(self, value: object, refused: Exception) -> None:
        """Read what only cloudpickle can pickle. It would read a file, but the function may want to continue it."""
        if isinstance(value, io.IOBase):
            self._refuse(f"it is an open file ({refused})")
        try:
            self._put(cloudpickle.dumps(value))
        except Exception as bad:  # noqa: BLE001 - as above
            self._refuse(bad)


def reference(value: Any) -> str | None:
    """Return the name by which another process imports a function or class; None: it cannot."""
    module_name, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(value, type) and not value.__flags__ & _HEAP_TYPE:
        return f"{module_name}:{name}"
    module = sys.modules.get(module_name or "")
    if module is None or name is None or module.__name__ == "__main__":
        return None
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module_name}:{name}" if found is value else None


def _variables_of(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the variables of a function's closure, and the global variables that its code names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it has no value yet
            yield name, None
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _global_names(code: types.CodeType) -> set[str]:
    found = {step.argval for step in dis.get_instructions(code) if step.opname in _GLOBAL_NAMES}
    return found.union(*(_global_names(one) for one in code.co_consts if isinstance(one, types.CodeType)))


_READERS: dict[type, Callable[[FunctionContent, Any], None]] = {
    types.FunctionType: FunctionContent._defined_function,
    functools._lru_cache_wrapper: FunctionContent._cached,
    types.CodeType: FunctionContent._code,
    types.ModuleType: lambda content, module: content._text("module", module.__name__),
    types.MethodType: lambda content, one: content._values("method", (one.__func__, one.__self__)),
    types.MappingProxyType: lambda content, one: content._dict(dict(one)),
    staticmethod: lambda content, one: content._values("staticmethod", (one.__func__,)),
    classmethod: lambda content, one: content._values("classmethod", (one.__func__,)),
    property: lambda content, one: content._values("property", (one.fget, one.fset, one.fdel)),
    tuple: lambda content, values: content._values("tuple", values),
    list: lambda content, values: content._values("list", values),
    dict: FunctionContent._dict,
    set: FunctionContent._set,
    frozenset: FunctionContent._set,
    np.ndarray: FunctionContent._array,
}
