"""Finds the model and the targets in the bundle, and makes each callable in one way.

Runs in children: the standard library, numpy, pyarrow and the user's code only. What a framework is, is told by
what its objects can do; none is imported. The contract is STUDY.md, "Models" and "Targets".
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from mops.study.entry import EntryPoint
from mops.worker.tables import InvalidOutput, is_writable

Params = Mapping[str, Any]
Model = Callable[[dict[str, Any], int], object]
Target = Callable[[dict[str, Any], list[dict[str, pa.Table]]], dict[str, float]]

DEFAULT_LOSS = "loss"
_FUNCTION_NAMES = ("run", "simulate", "model")


class CannotLoad(Exception):
    """The model or a target is not what STUDY.md asks for; the message says what was found."""


def load_model(text: str, scenario: str, root: Path) -> Model:
    """Import the model and return it as ``f(params, seed)``.

    Parameters
    ----------
    text
        The study's ``model``: a module, ``module:name`` or ``path/file.py:name``.
    scenario
        Passed to models that know scenarios; any other model takes only ``baseline``.
    root
        The project root: the working directory, and first on ``sys.path``.

    Raises
    ------
    CannotLoad
        There is no such name, it cannot be called, or several candidates are there.
    """
    entry = EntryPoint.parse(text)
    module = _module(entry, root)
    name = entry.name or _only_candidate(module, text)
    return _as_function(_attribute(module, name, text), scenario, text)


def load_target(text: str, root: Path) -> Target:
    """Import a target and return it as ``f(params, replicates) -> {name: loss}``.

    Raises
    ------
    CannotLoad
        There is no such name, or it is neither a function of replicates nor a maker of an evaluator.
    """
    entry = EntryPoint.parse(text)
    if entry.name is None:
        raise CannotLoad(f"target {text!r} names no function; write 'module:function'")
    found = _attribute(_module(entry, root), entry.name, text)
    if not callable(found):
        raise CannotLoad(f"target {text!r} is a {type(found).__name__}, not a function")
    n_required = _required(found, text)
    if n_required == 0:
        return _evaluator(found(), text)
    if n_required == 1:
        return lambda _params, replicates: _losses(found(replicates))
    if n_required == 2:
        return lambda params, replicates: _losses(found(params, replicates))
    raise CannotLoad(f"target {text!r} needs {n_required} arguments; it gets (params, replicates) or (replicates)")


def _module(entry: EntryPoint, root: Path) -> ModuleType:
    if entry.path is None:
        return importlib.import_module(str(entry.module))
    path = root / entry.path
    if not path.is_file():
        raise CannotLoad(f"there is no file {entry.path!r} in the bundle (is it ignored by .mopsignore?)")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CannotLoad(f"{entry.path!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, name: str, text: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        there = ", ".join(sorted(key for key in vars(module) if not key.startswith("_"))[:20])
        raise CannotLoad(f"{text!r}: the module has no {name!r}; it has: {there or 'nothing public'}") from None


def _only_candidate(module: ModuleType, text: str) -> str:
    own = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }
    classes = [name for name, value in own.items() if inspect.isclass(value) and _simulates(value)]
    functions = [name for name in _FUNCTION_NAMES if inspect.isfunction(own.get(name))]
    for candidates in (classes, functions):
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            choices = ", ".join(f"'{text}:{name}'" for name in candidates)
            raise CannotLoad(f"{text!r} has more than one model; name one: {choices}")
    raise CannotLoad(
        f"{text!r} has no model: neither a class with simulate(params, seed) nor a function named "
        f"{', '.join(_FUNCTION_NAMES)}; name one as '{text}:name'"
    )


def _simulates(kind: type) -> bool:
    return hasattr(kind, "simulate") or hasattr(kind, "simulate_scenario")


def _as_function(found: Any, scenario: str, text: str) -> Model:
    if inspect.isclass(found):
        return _class_model(found, scenario, text)
    if not callable(found):
        raise CannotLoad(f"{text!r} is a {type(found).__name__}, neither a function nor a class")
    n_taken = _taken(found, text)
    if n_taken >= 3:
        return lambda params, seed: found(params, seed, scenario)
    if n_taken == 2:
        _only_baseline(scenario, text)
        return lambda params, seed: found(params, seed)
    raise CannotLoad(f"{text!r} takes {n_taken} arguments; a model is f(params, seed) or f(params, seed, scenario)")


def _class_model(kind: type, scenario: str, text: str) -> Model:
    needed = [name for name, p in _parameters(kind, text).items() if _is_needed(p)]
    if needed:
        raise CannotLoad(f"class {text!r} needs {', '.join(map(repr, needed))} to be made; mops gives it no arguments")
    # One instance for each simulation: what one leaves on itself must not reach the next.
    if hasattr(kind, "simulate_scenario"):
        return lambda params, seed: kind().simulate_scenario(scenario, params, seed)
    if hasattr(kind, "simulate"):
        _only_baseline(scenario, text)
        return lambda params, seed: kind().simulate(params, seed)
    raise CannotLoad(f"class {text!r} has neither simulate(params, seed) nor simulate_scenario(scenario, params, seed)")


def _only_baseline(scenario: str, text: str) -> None:
    if scenario != "baseline":
        raise CannotLoad(f"{text!r} knows no scenarios, so 'scenario' can only be 'baseline', not {scenario!r}")


def _parameters(function: Any, text: str) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except ValueError:
        raise CannotLoad(f"{text!r} does not tell its arguments; wrap it in a function") from None


def _is_needed(parameter: inspect.Parameter) -> bool:
    takes_many = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return not takes_many and parameter.default is inspect.Parameter.empty


def _positional(function: Any, text: str) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in _parameters(function, text).values() if p.kind in kinds]


def _taken(function: Any, text: str) -> int:
    """Count the arguments that a model takes: a third one only if it has no default or is the scenario."""
    found = _positional(function, text)
    takes_many = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in _parameters(function, text).values())
    if len(found) < 2 and takes_many:  # what a decorator without functools.wraps makes of a model
        return 2
    if len(found) > 2 and found[2].default is not inspect.Parameter.empty and found[2].name != "scenario":
        return 2
    return min(len(found), 3)


def _required(function: Any, text: str) -> int:
    return sum(_is_needed(parameter) for parameter in _positional(function, text))


def _evaluator(target: Any, text: str) -> Target:
    if not hasattr(target, "evaluate"):
        raise CannotLoad(
            f"target {text!r} needs no argument, so it should return an object with evaluate(replicates); "
            f"it returned {type(target).__name__}"
        )

    def evaluate(_params: dict[str, Any], replicates: list[dict[str, pa.Table]]) -> dict[str, float]:
        frames = importlib.import_module("polars").from_arrow  # the framework's own frames; the user's environment
        result = target.evaluate([{name: frames(table) for name, table in one.items()} for one in replicates])
        return _losses(_loss_of(result))

    return evaluate


def _loss_of(result: Any) -> object:
    loss = getattr(result, "loss", None)
    if loss is not None:
        return loss
    logliks = getattr(result, "loglik_per_rep", None)
    if logliks is None:
        return result
    # The annealed likelihood: -log of the mean over replicates of the likelihood, by logsumexp.
    values = np.asarray(logliks, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):  # no mean is no loss, which is told by its not being finite
        return -float(np.logaddexp.reduce(values) - np.log(len(values)))


def _losses(result: object) -> dict[str, float]:
    named = result if isinstance(result, Mapping) else {DEFAULT_LOSS: result}
    if not named:
        raise InvalidOutput("the target returned an empty mapping; it must name at least one loss")
    losses: dict[str, float] = {}
    for name, value in named.items():
        if not is_writable(str(name)):
            raise InvalidOutput(f"{name!r} cannot name a loss: a name is a non-empty string without control characters")
        if str(name) in losses:
            raise InvalidOutput(f"the target returned two losses named {str(name)!r}")
        losses[str(name)] = _finite(name, value)
    return losses


def _finite(name: object, value: object) -> float:
    if type(value) is float and math.isfinite(value):  # nearly all are
        return value
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "iuf":
        what = f"a {type(value).__name__}" if not isinstance(value, Sequence) else f"{value!r:.80}"
        raise InvalidOutput(f"the loss {name!r} is {what}; a loss is a finite number")
    if not np.isfinite(array):
        raise InvalidOutput(f"the loss {name!r} is {float(array)}; a loss is a finite number")
    return float(array)
