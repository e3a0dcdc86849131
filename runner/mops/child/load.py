"""Finds the model and the targets in the bundle, and makes each of them callable in one way.

Runs in children: the standard library, numpy, pyarrow and the user's code only. mops imports no framework: it
recognizes one by what its objects can do. See docs/reference/models.md.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import stat
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from mops.child.channel import Message
from mops.child.libraries import Form, Unresolved, UnsupportedForm, form_of
from mops.child.outputs import as_tables, is_writable
from mops.child.process_state import ProcessState, enter_temporary_folder
from mops.child.replacement import ReplacementPolicy
from mops.child.shadowed_names import PythonModules, is_of_library, refusal, shadowing_files
from mops.child.shared_state import BeforeImport
from mops.child.working_folder import WorkingFolder, links_to
from mops.errors import known_name
from mops.study.entry_point import EntryPoint
from mops.study.output_schema import InvalidOutput
from mops.system.folders import make_read_only
from mops.units import counted

Params = Mapping[str, Any]
Model = Callable[[dict[str, Any], int], object]
Target = Callable[[dict[str, Any], list[dict[str, pa.Table]]], dict[str, float]]

DEFAULT_LOSS = "loss"
_FUNCTION_NAMES = ("run", "simulate", "model")
_ROLES_OF_MODEL = ("params", "seed", "scenario")
_ROLES_OF_TARGET = ("params", "replicates")
_ROLES = {*_ROLES_OF_MODEL, *_ROLES_OF_TARGET}
# From Python 3.14 on, a signature evaluates annotations. Names that only a type checker imports do not exist.
_LAZY_ANNOTATIONS: dict[str, Any] = (
    {}
    if sys.version_info < (3, 14)
    else {"annotation_format": importlib.import_module("annotationlib").Format.FORWARDREF}
)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class CannotLoad(Exception):
    """The model or a target does not meet docs/reference/models.md; the message tells what mops found."""

    def __init__(self, message: str, missing: str = ""):
        super().__init__(message)
        self.missing = missing  # the entry point whose file or module does not exist; empty: another reason
        self.others: list[str] = []  # the messages for the other entry points of the study that mops cannot load


def load_model(
    text: str,  # the study's `model`: a module, `module:name` or `path/file.py:name`
    scenario: str,  # must be `baseline` if the model does not take a scenario
    folders: Sequence[Path],  # of the project: those on sys.path, in the same order
    parameters: Collection[str] = (),  # of the study
) -> Model:
    """Import the model and return it as ``f(params, seed)``."""
    # The model gets all parameters in one dict, so no argument may have the name of one.
    entry = EntryPoint.parse(text)
    module = _module(entry, text, folders)
    found = _attribute(module, entry.name or _only_candidate(module, text), text)
    if inspect.isclass(found):
        return _class_model(found, scenario, text, parameters)
    if not callable(found):
        raise CannotLoad(f"{text!r} is a {type(found).__name__}, neither a function nor a class")
    n_taken = _taken(found, text)
    if n_taken < 2:
        n = counted(n_taken, "argument")
        raise CannotLoad(f"{text!r} takes {n}; a model is f(params, seed) or f(params, seed, scenario)")
    checked = _Call(found, text, _ROLES_OF_MODEL[:n_taken], parameters).checked
    if n_taken == 3:
        return lambda params, seed: checked(params)(params, seed, scenario)
    _only_baseline(scenario, text)
    return lambda params, seed: checked(params)(params, seed)


def load_target(text: str, folders: Sequence[Path], parameters: Collection[str] = ()) -> Target:
    """Import a target, or the evaluator that it returns, as ``f(params, replicates) -> {name: loss}``."""
    entry = EntryPoint.parse(text)
    if entry.name is None:
        raise CannotLoad(f"target {text!r} names no function; write 'module:function'")
    found = _attribute(_module(entry, text, folders), entry.name, text)
    if not callable(found):
        raise CannotLoad(f"target {text!r} is a {type(found).__name__}, not a function")
    needed = [name for name, parameter in _parameters(found, text).items() if _is_needed(parameter)]
    if not needed:
        return _evaluator(found(), text)
    if len(needed) > 2:
        raise CannotLoad(f"target {text!r} needs {len(needed)} arguments; it gets (params, replicates) or (replicates)")
    checked = _Call(found, text, _ROLES_OF_TARGET[-len(needed) :], parameters).checked
    form = _form_of_replicates(found, needed[-1], text)
    of: Form = form or list
    if len(needed) == 1:
        return lambda params, replicates: _losses(checked(params)(of(replicates)))
    return lambda params, replicates: _losses(checked(params)(params, of(replicates)))


def _form_of_replicates(function: Any, argument: str, text: str) -> Form | None:
    """Return the form that a target asks for; None: Arrow tables by output."""
    annotation = _parameters(function, text)[argument].annotation
    if annotation is inspect.Parameter.empty:
        return None
    try:
        return form_of(annotation, function)
    except UnsupportedForm as refused:
        raise CannotLoad(f"target {text!r} cannot get {argument!r} as {refused}") from None
    except Unresolved as unknown:
        sys.stderr.write(  # the job's log
            f"warning: target {text!r} gets {argument!r} as Arrow tables, because mops cannot resolve {unknown}; "
            "import the library at the top of the module\n"
        )
        return None


def _module(entry: EntryPoint, text: str, folders: Sequence[Path]) -> ModuleType:
    path = _file(entry, folders)
    if entry.path is None:
        name = str(entry.module)
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if path is None and error.name is not None and f"{name}.".startswith(f"{error.name}."):
                raise CannotLoad(f"module {name!r} was not found", missing=text) from None
            raise
        file = getattr(module, "__file__", None)
        # If the project has its file, no library may take its place. An editable install is none.
        if path is not None and file is not None and is_of_library(Path(file).resolve()):
            raise CannotLoad(
                f"module {name!r} of {text!r} is {file}, not {path.name} of the project; rename {path.name}"
            )
        return module
    if path is None:
        raise CannotLoad(f"the project has no file {entry.path!r}", missing=text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CannotLoad(f"{entry.path!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _file(entry: EntryPoint, folders: Sequence[Path]) -> Path | None:
    """Return the file of an entry point in the project; None: the project has none."""
    names = (entry.file,) if entry.path else (f"{entry.file.removesuffix('.py')}/__init__.py", entry.file)
    return next((folder / name for folder in folders for name in names if (folder / name).is_file()), None)


def _attribute(module: ModuleType, name: str, text: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        own = sorted(n for n, value in vars(module).items() if n[0] != "_" and not isinstance(value, ModuleType))
        advice = known_name(name, own, otherwise=f"it has: {', '.join(own[:20]) or 'nothing public'}")
        raise CannotLoad(f"the module of {text!r} has no {name!r}; {advice}") from None


def _only_candidate(module: ModuleType, text: str) -> str:
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    own = {name: value for name, value in public.items() if getattr(value, "__module__", None) == module.__name__}
    kinds = {name: value for name, value in own.items() if inspect.isclass(value)}
    classes = [n for n, kind in kinds.items() if hasattr(kind, "simulate") or hasattr(kind, "simulate_scenario")]
    functions = [name for name in _FUNCTION_NAMES if inspect.isfunction(own.get(name))]
    for candidates in (classes, functions):
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            choices = ", ".join(f"'{text}:{name}'" for name in candidates)
            raise CannotLoad(f"{text!r} has more than one model; name one: {choices}")
    raise CannotLoad(
        f"{text!r} has no model: no function named {', '.join(_FUNCTION_NAMES)}, and no class with a method simulate; "
        f"name the model, like '{text}:name'"
    )


class _Call:
    """A function of the user, and the arguments that mops passes by position.

    A function with other arguments, like ``run(beta, seed)``, might compute wrong values from what it gets. So mops
    refuses it by the names of its arguments.
    """

    def __init__(
        self,
        function: Any,
        text: str,
        roles: tuple[str, ...],  # the argument at each position: ("params", "seed")
        parameters: Collection[str],  # of the study
        kind: type | None = None,  # the class that has the function as a method
        *,
        bound: bool = False,  # whether the first argument of the function is its object
    ):
        self._called, self._text = function if kind is None else kind, text
        self._form = f"mops calls it as f({', '.join(roles)})"
        every = list(_parameters(function, text).values())[1 if bound else 0 :]
        self._names = [parameter.name for parameter in every if parameter.kind in _POSITIONAL]
        passed = self._names[: len(roles)]
        for parameter in every:
            if _is_needed(parameter) and parameter.name not in passed:
                raise CannotLoad(f"{text!r} needs an argument {parameter.name!r} as well; {self._form}")
        for name, role in zip(passed, roles, strict=False):
            if name != role and name in _ROLES:
                raise CannotLoad(f"{text!r} has {name!r} where mops passes the {role}; {self._form}")
        if "seed" in roles and any(p.name == "seed" and p.name not in passed for p in every):
            raise CannotLoad(f"{text!r} does not have 'seed' where mops passes the seed; {self._form}")
        self._doubtful = frozenset(name for name, role in zip(passed, roles, strict=False) if name != role)
        self.checked(parameters)

    def checked(self, parameters: Collection[str]) -> Any:
        """Return the function, or its class, unless a parameter has the name of an argument that gets another value."""
        if not self._doubtful.isdisjoint(parameters):
            name = min(self._doubtful.intersection(parameters), key=self._names.index)
            raise CannotLoad(
                f"{self._text!r} has an argument {name!r}, which is a parameter of the study; {self._form}, "
                f"so take params[{name!r}]"
            )
        return self._called


def _class_model(kind: type, scenario: str, text: str, parameters: Collection[str]) -> Model:
    needed = [name for name, p in _parameters(kind, text).items() if _is_needed(p)]
    if needed:
        raise CannotLoad(f"class {text!r} needs {', '.join(map(repr, needed))}; mops makes it without arguments")
    # One instance for each simulation: what a simulation stores in it must not reach the next one.
    if hasattr(kind, "simulate_scenario"):
        checked = _method(kind, "simulate_scenario", ("scenario", "params", "seed"), text, parameters)
        return lambda params, seed: checked(params)().simulate_scenario(scenario, params, seed)
    if hasattr(kind, "simulate"):
        checked = _method(kind, "simulate", ("params", "seed"), text, parameters)
        _only_baseline(scenario, text)
        return lambda params, seed: checked(params)().simulate(params, seed)
    raise CannotLoad(f"class {text!r} has neither simulate(params, seed) nor simulate_scenario(scenario, params, seed)")


def _method(
    kind: type, name: str, roles: tuple[str, ...], text: str, parameters: Collection[str]
) -> Callable[[Params], Any]:
    """Check a method's arguments; return a function that returns the class, after it has checked the parameters."""
    found = getattr(kind, name)
    if not (inspect.isfunction(found) or inspect.ismethod(found)):  # compiled code may not know its arguments
        return lambda _params: kind
    is_static = isinstance(inspect.getattr_static(kind, name), staticmethod | classmethod)
    return _Call(found, f"{text}.{name}", roles, parameters, kind, bound=not is_static).checked


def _only_baseline(scenario: str, text: str) -> None:
    if scenario != "baseline":
        raise CannotLoad(f"{text!r} takes no scenario, so 'scenario' can only be 'baseline', not {scenario!r}")


def _parameters(function: Any, text: str) -> Mapping[str, inspect.Parameter]:
    """Return a function's arguments, or those of the function that it wraps if it takes any arguments."""
    try:
        own = inspect.signature(function, follow_wrapped=False, **_LAZY_ANNOTATIONS).parameters
        takes_any = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in own.values())
        return inspect.signature(function, **_LAZY_ANNOTATIONS).parameters if takes_any else own
    except ValueError:
        raise CannotLoad(f"{text!r} does not reveal its arguments; wrap it in a function") from None


def _is_needed(parameter: inspect.Parameter) -> bool:
    takes_many = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return not takes_many and parameter.default is inspect.Parameter.empty


def _taken(function: Any, text: str) -> int:
    """Count the arguments that a model takes: a third one only if it has no default or is the scenario."""
    every = _parameters(function, text).values()
    found = [parameter for parameter in every if parameter.kind in _POSITIONAL]
    takes_many = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in every)
    if len(found) < 2 and takes_many:  # a model under a decorator without functools.wraps
        return 2
    if len(found) > 2 and found[2].default is not inspect.Parameter.empty and found[2].name != "scenario":
        return 2
    return min(len(found), 3)


def _evaluator(target: Any, text: str) -> Target:
    if not hasattr(target, "evaluate"):
        raise CannotLoad(
            f"target {text!r} needs no argument, so it should return an object with evaluate(replicates); "
            f"it returned {type(target).__name__}"
        )

    def evaluate(_params: dict[str, Any], replicates: list[dict[str, pa.Table]]) -> dict[str, float]:
        frames = importlib.import_module("polars").from_arrow  # which the framework uses, so it is installed
        result = target.evaluate([{name: frames(table) for name, table in one.items()} for one in replicates])
        loss = getattr(result, "loss", None)
        if loss is None and (logliks := getattr(result, "loglik_per_rep", None)) is not None:
            # The annealed likelihood: -log of the mean over replicates of the likelihood, by logsumexp.
            values = np.asarray(logliks, dtype=float)
            with np.errstate(divide="ignore", invalid="ignore"):  # without a mean the loss is not finite, and refused
                loss = -float(np.logaddexp.reduce(values) - np.log(len(values)))
        return _losses(result if loss is None else loss)

    return evaluate


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
        array = np.asarray(value)
        if array.ndim or array.dtype.kind not in "iuf":
            what = f"a {type(value).__name__}" if not isinstance(value, Sequence) else f"{value!r:.80}"
            raise InvalidOutput(f"the loss {name!r} is {what}; a loss is a finite number")
        if not np.isfinite(array):
            raise InvalidOutput(f"the loss {name!r} is {float(array)}; a loss is a finite number")
        losses[str(name)] = float(array)
    return losses


def _loaded(load: Message, folders: Sequence[Path]) -> tuple[Model, list[Target]]:
    """Import the model and the targets; the first that cannot be loaded raises, with the messages of the others."""
    if names := shadowing_files(folders):
        sys.meta_path.insert(0, PythonModules(names))
    if why := refusal([load["model"], *load["targets"]], names, folders, Path(load["root"])):
        raise CannotLoad(why)
    parameters = load["parameters"]
    loaders: list[Callable[[], Any]] = [partial(load_model, load["model"], load["scenario"], folders, parameters)]
    loaders += [partial(load_target, text, folders, parameters) for text in load["targets"]]
    loaded: list[Any] = []
    refused: list[CannotLoad] = []
    for loader in loaders:
        try:
            loaded.append(loader())
        except CannotLoad as error:
            refused.append(error)
        except BaseException:  # the user's import may raise anything
            if not refused:
                raise
    if refused:
        refused[0].others = list(map(str, refused[1:]))
        raise refused[0]
    model, *targets = loaded
    return model, targets


class UserCode:
    """The user's code, imported: the model, the targets, and the folder in which they run."""

    def __init__(self, load: Message, imported_in: WorkingFolder):
        root = Path(load["root"])
        self.scratch = load["scratch"]
        folders = [root / folder for folder in load["import_folders"]]
        sys.path[:0] = map(str, folders)
        entry = EntryPoint.parse(load["model"])
        sys.argv = [str(_file(entry, folders) or root / entry.file)]  # as if the model's file ran as a script
        temporary = own_folder(self.scratch, ".tmp")
        enter_temporary_folder(temporary)
        before = BeforeImport()
        self.target_names: list[str] = load["targets"]
        self.model, self.targets = _loaded(load, folders)
        self.outputs = load["outputs"]
        self.replacement = ReplacementPolicy(load["tasks_per_child"], load["growth_bytes"], temporary)
        self.shared = before.shared(temporary)
        # The first table makes pyarrow import pandas, if installed: 0.1 s for which the first simulation would wait.
        as_tables({"warm": np.zeros(1)}, 0)
        # Every simulation can read what the import wrote, and none can change it.
        has_written = imported_in.changed
        make_read_only(imported_in.path.parent)
        self.folder = imported_in.of(own_folder(self.scratch))
        if has_written:
            self.folder = WorkingFolder(own_folder(self.scratch), links_to(imported_in.path))
        self._read_only = (root.resolve(), imported_in.path.resolve())
        self.state, self._temporary = ProcessState(), temporary

    def forked(self) -> None:
        """Give a process that was just forked its own folders and its own offsets in open files."""
        self.folder = self.folder.of(own_folder(self.scratch))
        enter_temporary_folder(own_folder(self.scratch, ".tmp"), instead_of=self._temporary)
        self.shared.files.open_again()
        self.state = ProcessState()

    @property
    def has_import_folder(self) -> bool:
        """Whether the folder still exists in which the model was imported: forked processes may have links into it."""
        return self._read_only[1].is_dir()

    def hint(self, path: object) -> str:
        """Return why the kernel refused this file, as the end of a message; empty if mops does not know."""
        if not isinstance(path, str):
            return ""
        real = Path(path).resolve()
        if any(real.is_relative_to(folder) for folder in self._read_only):
            return " (the project's files are read-only; a simulation may write new files by relative paths)"
        if real.is_relative_to(self.folder.path.resolve()):
            with contextlib.suppress(OSError):  # the file does not exist
                if not real.stat().st_mode & stat.S_IWUSR:
                    return " (a copy keeps the mode of its source: use shutil.copyfile)"
        return ""


def enter_import_folder(load: Message) -> WorkingFolder:
    """Make the folder in which the model is imported, and enter it."""
    folder = WorkingFolder(own_folder(load["scratch"], ".import"), links_to(Path(load["root"])))
    folder.renew()
    os.chdir(folder.path)
    return folder


def own_folder(scratch: str, kind: str = "") -> Path:
    """Return the folder that only this process uses; its worker removes it."""
    return Path(scratch, f"{os.getpid()}{kind}")
