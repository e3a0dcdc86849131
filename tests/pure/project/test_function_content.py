"""What functions of a notebook take along: which changes count, and what is refused."""

from __future__ import annotations

import functools
import io
import math
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from mops.errors import ModelError
from mops.project.functions import GivenCode, digest, pickled

MODEL = """
import math

rate = 2.0


def grown(x):
    return math.exp(rate * x)


def simulate(params, seed):
    return {"y": [grown(params["x"])]}
"""


def defined(source: str, name: str = "simulate", **more: Any) -> Any:
    """Return an object of a program, as if the module ``__main__`` had defined it."""
    namespace = {"__name__": "__main__", **more}
    exec(compile(source, "<cell>", "exec"), namespace)
    return namespace[name]


def refusal(function: object, limit_bytes: int = 1 << 20) -> str:
    with pytest.raises(ModelError) as refused:
        pickled({"simulate": function}, Path("/project"), {}, limit_bytes)
    return refused.value.what


def test_comments_lines_and_unused_variables_are_no_change(subtests: pytest.Subtests) -> None:
    for before, after in [
        ("rate = 2.0", "rate = 2.0  # per day"),
        ("rate = 2.0", "\n\n\nrate = 2.0"),
        ("import math", "import math\n\nunused = 7"),
    ]:
        with subtests.test(str((before, after))):
            assert digest(defined(MODEL.replace(before, after))) == digest(defined(MODEL))


def test_code_constants_names_and_variables_are_a_change(subtests: pytest.Subtests) -> None:
    for before, after in [
        ("rate = 2.0", "rate = 2"),
        ("rate = 2.0", "rate = 2.5"),
        ("math.exp(rate * x)", "math.exp(x * rate)"),
        ("math.exp(rate * x)", "math.expm1(rate * x)"),
        ("import math", "import cmath as math"),
        ("def grown(x):", "def grown(x, more=1):"),
        ('{"y"', '{"z"'),
    ]:
        with subtests.test(str((before, after))):
            assert digest(defined(MODEL.replace(before, after))) != digest(defined(MODEL))


IN_A_PROCESS = """
import abc, dataclasses, enum, functools, typing
from mops.project.functions import digest

T = typing.TypeVar("T")
names = {"a", "b c", "d", frozenset({"x", "y z"})}

class Color(enum.Enum):
    red = "r"
    blue = "b"

@dataclasses.dataclass
class Settings:
    x: int = 1
    kind: Color = Color.red
    def known(self):
        return {"zz", "yy"} & names

class Point:
    def __init__(self, name):
        self.name = name
    def __hash__(self):
        return hash(self.name)

points = {Point(name) for name in "abcdefg"}

class Base(abc.ABC):
    @abc.abstractmethod
    def f(self): ...

class Derived(Base):
    def f(self):
        return Settings(3), T

@functools.lru_cache
def cached(n):
    return n if n in {"ab", "cd", "ef gh"} else cached(n)

def made(k):
    def simulate(params, seed):
        return [k, Derived().f(), cached, (lambda z: z in {"q", "w w"}), names, points, Color.blue]
    return simulate

print(digest({"simulate": made({"p q", "r"}), "model": Derived, "target": lambda: names}))
"""


def test_two_processes_have_equal_digests() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", "\n" * seed + IN_A_PROCESS],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(found) == 1


CACHED = """
import functools


@functools.lru_cache(maxsize=8)
def helper(n):
    return n if n < 2 else helper(n - 1) + helper(n - 2)


def simulate(params, seed):
    return {"y": [helper(params["x"])]}
"""


def test_a_function_with_a_cache_counts_by_its_content(subtests: pytest.Subtests) -> None:
    for before, after in [("n < 2", "n < 3"), ("maxsize=8", "maxsize=9"), ("maxsize=8", "maxsize=8, typed=True")]:
        with subtests.test(str((before, after))):
            called = defined(CACHED)
            called({"x": 9}, 0)
            assert digest(called) == digest(defined(CACHED))
            assert digest(defined(CACHED.replace(before, after))) != digest(defined(CACHED))


def test_a_type_variable_of_the_program_is_taken_along() -> None:
    assert digest(defined("import typing\nT = typing.TypeVar('T')\ndef simulate(params, seed):\n    return T\n"))


CLASS = """
class Base:
    rate = 2.0


class Model(Base):
    def simulate(self, params, seed):
        return {"y": [self.rate * params["x"]]}
"""


@pytest.mark.parametrize(("before", "after"), [("rate = 2.0", "rate = 2.5"), ("self.rate *", "self.rate +")])
def test_a_class_takes_along_its_bases_and_methods(before: str, after: str) -> None:
    assert digest(defined(CLASS, "Model")) == digest(defined(CLASS, "Model"))
    assert digest(defined(CLASS.replace(before, after), "Model")) != digest(defined(CLASS, "Model"))


@dataclass(eq=False)
class Settings:
    rate: float
    near: Any = None


USES = "def simulate(params, seed):\n    return {'y': [value]}\n"
VALUES: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
    (lambda: [1, 2.0, "a", None, True, (b"x", 2j)], lambda: [1, 2.0, "a", None, 1, (b"x", 2j)]),
    (lambda: {"a": {1, 2}, "b": frozenset("xy")}, lambda: {"a": {1, 3}, "b": frozenset("xy")}),
    (lambda: np.arange(6.0).reshape(2, 3), lambda: np.arange(6.0).reshape(3, 2)),
    (lambda: np.array(["a", None], dtype=object), lambda: np.array(["a", "b"], dtype=object)),
    (lambda: np.float64(0.5), lambda: np.float32(0.5)),
    (
        lambda: pd.DataFrame({"x": [1.0, 2.0], "s": ["a", "b"]}),
        lambda: pd.DataFrame({"x": [1.0, 2.0], "s": ["a", "c"]}),
    ),
    (lambda: pl.DataFrame({"x": [1, 2]}), lambda: pl.DataFrame({"x": [1, 3]})),
    (lambda: pa.table({"x": [1, 2]}), lambda: pa.table({"x": [1, 3]})),
    (lambda: Settings(0.1), lambda: Settings(0.2)),
    (lambda: functools.partial(max, 1), lambda: functools.partial(max, 2)),
    (lambda: Settings, lambda: threading.Lock),
    (lambda: math.pi.as_integer_ratio, lambda: (0.5).as_integer_ratio),
    (lambda: np.random.default_rng(1), lambda: np.random.default_rng(2)),
    (lambda: types.MappingProxyType({"a": 1}), lambda: types.MappingProxyType({"a": 2})),
    (lambda: {"a": 1}.items(), lambda: {"a": 2}.items()),
    (lambda: np.add, lambda: np.subtract),
    (lambda: list[int], lambda: list[str]),
]


def test_values_of_variables_count_by_their_content(subtests: pytest.Subtests) -> None:
    for one, other in VALUES:
        with subtests.test(str((one, other))):
            assert digest(defined(USES, value=one())) == digest(defined(USES, value=one()))
            assert digest(defined(USES, value=one())) != digest(defined(USES, value=other()))


def test_objects_that_contain_each_other_have_an_end() -> None:
    both: list[Any] = [{}]
    both[0]["list"] = both
    assert digest(defined(USES, value=both))
    one, other = Settings(0.1), Settings(0.2)
    one.near, other.near = {other}, {one}
    assert digest(defined(USES, value=one))
    inner: tuple[Any, ...] = (Settings(0.3),)
    inner[0].near = {inner}
    assert digest(defined(USES, value={inner}))
    nested: frozenset[Any] = frozenset("x")
    for _ in range(300):
        nested = frozenset([nested])
    assert digest(defined(USES, value=nested))
    recursive = "def simulate(params, seed):\n    return simulate(params, seed - 1) if seed else {}\n"
    assert digest(defined(recursive)) == digest(defined(recursive))


def test_a_closure_and_default_values_count() -> None:
    def model(rate: float, start: int) -> Callable[..., Any]:
        def simulate(params: dict[str, Any], seed: int = start) -> Any:
            return {"y": [rate]}

        return simulate

    assert digest(model(1.0, 0)) == digest(model(1.0, 0))
    assert len({digest(model(1.0, 0)), digest(model(2.0, 0)), digest(model(1.0, 1))}) == 3


class OnGpu:
    __cuda_array_interface__ = types.MappingProxyType({"version": 3})


def opened() -> Any:
    return io.TextIOWrapper(io.BytesIO(b"rows"))


def test_what_cannot_go_to_another_process_is_refused_by_name(subtests: pytest.Subtests) -> None:
    for make, said in [
        (threading.Lock, "lock"),
        (opened, "open file"),
        (lambda: sqlite3.connect(":memory:"), "sqlite3.Connection"),
        (lambda: (one for one in "abc"), "generator"),
        (OnGpu, "a OnGpu is in the memory of a GPU"),
        (lambda: {"deep": [{"lock": threading.Lock()}]}, "lock"),
    ]:
        with subtests.test(said):
            what = refusal(defined(USES, value=make()))
            assert what.startswith("the variable 'value', which simulate uses, cannot go to")
            assert said in what


def test_a_socket_of_a_function_that_the_model_uses_is_refused() -> None:
    source = "def send():\n    return connection\n\n\ndef simulate(params, seed):\n    return send()\n"
    with socket.socket() as connection:
        assert "'connection', which send uses," in refusal(defined(source, connection=connection))


@pytest.mark.parametrize("make", [lambda: np.zeros(1 << 18), lambda: pd.DataFrame({"x": np.zeros(1 << 18)})])
def test_a_large_variable_is_refused_by_name_and_size(make: Callable[[], Any]) -> None:
    source = "def read():\n    return frame, small\n\n\ndef simulate(params, seed):\n    return read()\n"
    what = refusal(defined(source, frame=make(), small=[1]))
    assert what.startswith("the variable 'frame', which read uses, has at least 2.0 MiB; ")


def test_deep_nesting_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert "recursion" in refusal(defined(USES, value=deep))


class OnceReadable:
    """Stands for an object that the digest cannot read although it can go to another process."""

    n_reads = 0

    def __reduce__(self) -> Any:
        self.n_reads += 1
        if self.n_reads > 1:
            raise ValueError("it was read before")
        return OnceReadable, ()


def test_what_the_digest_cannot_read_is_refused_by_name(tmp_path: Path) -> None:
    given = GivenCode(tmp_path, tmp_path)
    given.model(defined(USES, value=OnceReadable()))
    with pytest.raises(ModelError, match=r"the variable 'value', which simulate uses, cannot go to .*read before"):
        given.files()
