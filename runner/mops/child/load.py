"""Makes the model and the targets of a bundle callable, each in one way.

Runs in children: the standard library, numpy, pyarrow and the user's code only. mops imports no framework: it
recognizes one by what its objects can do. See docs/reference/models.md.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa

from mops.child.buffers import Tables
from mops.child.channel import Message
from mops.child.copies import one_process
from mops.child.leftovers import ProcessState, ReplacementPolicy, enter_temporary_folder
from mops.child.modules import CannotLoad, PythonModules, attribute, file_of, imported, refusal, shadowing_files
from mops.child.outputs import as_tables, is_writable
from mops.child.shared_state import BeforeImport
from mops.child.working_folder import WorkingFolder, links_to
from mops.study.entry_point import EntryPoint
from mops.study.output_schema import InvalidOutput
from mops.system.folders import make_read_only
from mops.units import counted

Params = Mapping[str, Any]
Model = Callable[[dict[str, Any], int], object]
Target = Callable[[dict[str, Any], list[Tables]], dict[str, float]]
Form = Callable[[Sequence[Tables]], list[Any]]  # converts the replicates for a target
Check = Callable[[Collection[str]], None]  # raises CannotLoad if an argument has the name of one of these parameters

DEFAULT_LOSS = "loss"
_FUNCTION_NAMES = ("run", "simulate", "model")
_ROLES = {"params", "seed", "scenario", "replicates"}  # the arguments that mops passes
# From Python 3.14 on, a signature evaluates annotations. Names that only a type checker imports do not exist.
_LAZY_ANNOTATIONS: dict[str, Any] = (
    {}
    if sys.version_info < (3, 14)
    else {"annotation_format": importlib.import_module("annotationlib").Format.FORWARDREF}
)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

# The classes that an annotation of a target may name, and how each is made. An annotation that is not text holds the
# class itself, so the module of the target has imported the library.
_FRAMES: dict[tuple[str, str], Callable[[pa.Table], Any]] = {
    ("pandas", "DataFrame"): lambda table: table.to_pandas(),
    ("polars", "DataFrame"): lambda table: sys.modules["polars"].from_arrow(table),
    ("pyarrow", "Table"): lambda table: table,
}
_OF_TABLES = re.compile(r"\b(pandas|polars|pyarrow)\.")  # an annotation with another class of these is a mistake


_is_in_import = False


@contextlib.contextmanager
def _in_import() -> Iterator[None]:
    global _is_in_import
    _is_in_import = True
    try:
        yield
    finally:
        _is_in_import = False


def is_in_import() -> bool:
    """Tell whether a model or a target calls this while it is imported in a child process."""
    return _is_in_import


class UserCode:
    """The user's code, imported: the model, the targets, and the folder in which they run."""

    def __init__(self, load: Message, imported_in: WorkingFolder):
        root = Path(load["root"])
        self.scratch = load["scratch"]
        folders = [root / folder for folder in load["import_folders"]]
        sys.path[:0] = map(str, folders)
        entry = EntryPoint.parse(load["model"])
        sys.argv = [str(file_of(entry, folders) or root / entry.file)]  # as if the model's file ran as a script
        temporary = own_folder(self.scratch, ".tmp")
        enter_temporary_folder(temporary)
        before = BeforeImport()
        self.target_names: list[str] = load["targets"]
        with _in_import():
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
        self._imported_in: WorkingFolder | None = None
        if has_written:
            tree = links_to(imported_in.path)
            self.folder = WorkingFolder(own_folder(self.scratch), tree)
            self._imported_in = WorkingFolder(imported_in.path.parent, tree)  # without what the import has removed
        self._read_only = (root.resolve(), imported_in.path.resolve())
        self.state, self._temporary = ProcessState(), temporary

    def forked(self) -> None:
        """Give a process that was just forked its own folders and its own offsets in open files."""
        self.folder = self.folder.of(own_folder(self.scratch))
        enter_temporary_folder(own_folder(self.scratch, ".tmp"), instead_of=self._temporary)
        self.shared.files.open_again()
        self.state = ProcessState()

    @property
    def files_are_lost(self) -> bool:
        """Whether another program has removed the working folder, or files to which it has or should have links."""
        return self.folder.is_lost or (self._imported_in is not None and self._imported_in.is_lost)

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
            with one_process():
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


def enter_import_folder(load: Message) -> WorkingFolder:
    """Make the folder in which the model is imported, and enter it."""
    folder = WorkingFolder(own_folder(load["scratch"], ".import"), links_to(Path(load["root"])))
    folder.renew()
    os.chdir(folder.path)
    return folder


def own_folder(scratch: str, kind: str = "") -> Path:
    """Return the folder that only this process uses; its worker removes it."""
    return Path(scratch, f"{os.getpid()}{kind}")


def load_model(
    text: str,  # the study's `model`: a module, `module:name` or `path/file.py:name`
    scenario: str,  # must be `baseline` if the model does not take a scenario
    folders: Sequence[Path],  # of the project: those on sys.path, in the same order
    parameters: Collection[str] = (),  # of the study
) -> Model:
    """Import the model and return it as ``f(params, seed)``."""
    module = imported(text, folders)
    found = attribute(module, EntryPoint.parse(text).name or _only_candidate(module, text), text)
    if not callable(found):
        raise CannotLoad(f"{text!r} is a {type(found).__name__}, neither a function nor a class")
    is_class = inspect.isclass(found)
    if is_class:
        if needed := [name for name, parameter in _parameters(found, text).items() if _is_needed(parameter)]:
            raise CannotLoad(f"class {text!r} needs {', '.join(map(repr, needed))}; mops makes it without arguments")
        takes_scenario = hasattr(found, "simulate_scenario")
        if not takes_scenario and not hasattr(found, "simulate"):
            raise CannotLoad(
                f"class {text!r} has neither simulate(params, seed) nor simulate_scenario(scenario, params, seed)"
            )
        check = _check_of_method(found, takes_scenario, text, parameters)
    else:
        n_taken = _n_taken(found, text)
        if n_taken < 2:
            n = counted(n_taken, "argument")
            raise CannotLoad(f"{text!r} takes {n}; a model is f(params, seed) or f(params, seed, scenario)")
        takes_scenario = n_taken == 3
        check = _check_of_arguments(found, text, ("params", "seed", "scenario")[:n_taken], parameters)
    if not takes_scenario and scenario != "baseline":
        raise CannotLoad(f"{text!r} takes no scenario, so 'scenario' can only be 'baseline', not {scenario!r}")

    def run(params: dict[str, Any], seed: int) -> object:
        check(params)
        if not is_class:
            return found(params, seed, scenario) if takes_scenario else found(params, seed)
        # One instance for each simulation: what a simulation stores in it must not reach the next one.
        one = found()
        return one.simulate_scenario(scenario, params, seed) if takes_scenario else one.simulate(params, seed)

    return run


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


def _n_taken(function: Any, text: str) -> int:
    """Count the arguments that a model takes: a third one only if it has no default or is the scenario."""
    every = _parameters(function, text).values()
    found = [parameter for parameter in every if parameter.kind in _POSITIONAL]
    takes_many = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in every)
    if len(found) < 2 and takes_many:  # a model under a decorator without functools.wraps
        return 2
    if len(found) > 2 and found[2].default is not inspect.Parameter.empty and found[2].name != "scenario":
        return 2
    return min(len(found), 3)


def _check_of_method(kind: type, takes_scenario: bool, text: str, parameters: Collection[str]) -> Check:
    name = "simulate_scenario" if takes_scenario else "simulate"
    roles = ("scenario", "params", "seed") if takes_scenario else ("params", "seed")
    method = getattr(kind, name)
    if not (inspect.isfunction(method) or inspect.ismethod(method)):  # compiled code may not know its arguments
        return lambda _parameters: None
    is_static = isinstance(inspect.getattr_static(kind, name), staticmethod | classmethod)
    return _check_of_arguments(method, f"{text}.{name}", roles, parameters, n_before=0 if is_static else 1)


def _check_of_arguments(
    function: Any,
    text: str,
    roles: Sequence[str],  # the argument at each position: ("params", "seed")
    parameters: Collection[str],  # of the study
    n_before: int = 0,  # arguments before these: the object of a method
) -> Check:
    """Refuse a function by the names of its arguments; return what does so for further parameters of the study.

    A function with other arguments, like ``run(beta, seed)``, might compute wrong values from what it gets.
    """
    form = f"mops calls it as f({', '.join(roles)})"
    every = list(_parameters(function, text).values())[n_before:]
    passed = [parameter.name for parameter in every if parameter.kind in _POSITIONAL][: len(roles)]
    for parameter in every:
        if _is_needed(parameter) and parameter.name not in passed:
            raise CannotLoad(f"{text!r} needs an argument {parameter.name!r} as well; {form}")
    doubtful = [(name, role) for name, role in zip(passed, roles, strict=False) if name != role]
    for name, role in doubtful:
        if name in _ROLES:
            raise CannotLoad(f"{text!r} has {name!r} where mops passes the {role}; {form}")
    if "seed" in roles and any(p.name == "seed" and p.name not in passed for p in every):
        raise CannotLoad(f"{text!r} does not have 'seed' where mops passes the seed; {form}")

    def check(parameters: Collection[str]) -> None:
        for name, _ in doubtful:
            if name in parameters:
                raise CannotLoad(
                    f"{text!r} has an argument {name!r}, which is a parameter of the study; {form}, "
                    f"so take params[{name!r}]"
                )

    check(parameters)
    return check


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


def load_target(text: str, folders: Sequence[Path], parameters: Collection[str] = ()) -> Target:
    """Import a target, or the evaluator that it returns, as ``f(params, replicates) -> {name: loss}``."""
    name = EntryPoint.parse(text).name
    if name is None:
        raise CannotLoad(f"target {text!r} names no function; write 'module:function'")
    module = imported(text, folders)
    found = attribute(module, name, text)
    if not callable(found):
        raise CannotLoad(f"target {text!r} is a {type(found).__name__}, not a function")
    arguments = _parameters(found, text)
    needed = [name for name, parameter in arguments.items() if _is_needed(parameter)]
    if not needed:
        return _evaluator(found(), text)
    if len(needed) > 2:
        raise CannotLoad(f"target {text!r} needs {len(needed)} arguments; it gets (params, replicates) or (replicates)")
    check = _check_of_arguments(found, text, ("params", "replicates")[-len(needed) :], parameters)
    names = vars(module) | getattr(inspect.unwrap(found), "__globals__", {})
    form = _form_of(arguments[needed[-1]], names, text)

    def score(params: dict[str, Any], replicates: list[Tables]) -> dict[str, float]:
        check(params)
        given = form(replicates)
        return _losses(found(given) if len(needed) == 1 else found(params, given))

    return score


def _evaluator(target: Any, text: str) -> Target:
    if not hasattr(target, "evaluate"):
        raise CannotLoad(
            f"target {text!r} needs no argument, so it should return an object with evaluate(replicates); "
            f"it returned {type(target).__name__}"
        )

    def evaluate(_params: dict[str, Any], replicates: list[Tables]) -> dict[str, float]:
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


def _form_of(argument: inspect.Parameter, names: dict[str, Any], text: str) -> Form:
    """Return what converts the replicates to the form that the annotation of a target's argument names."""
    annotation = argument.annotation
    if annotation is inspect.Parameter.empty:
        return list
    said = repr(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))
    try:
        resolved = _resolved(annotation, names)
    except Exception as error:  # noqa: BLE001 - code of the user, in an annotation
        sys.stderr.write(  # the job's log
            f"warning: target {text!r} gets {argument.name!r} as Arrow tables, because mops cannot resolve the "
            f"annotation {said} ({error}); import the library at the top of the module\n"
        )
        return list
    element = _last_argument(resolved, list)
    named = _last_argument(element, dict)
    frame = element if named is None else named
    convert = _FRAMES.get((frame.__module__.partition(".")[0], frame.__qualname__)) if inspect.isclass(frame) else None
    if convert is None:
        if not _OF_TABLES.search(inspect.formatannotation(resolved)):
            return list
        raise CannotLoad(
            f"target {text!r} cannot get {argument.name!r} as {said}; write list[dict[str, FRAME]], or list[FRAME] for "
            "a model with one output; FRAME is pandas.DataFrame, polars.DataFrame or pyarrow.Table"
        )

    def with_names(replicates: Sequence[Tables]) -> list[dict[str, Any]]:
        return [{output: convert(table) for output, table in one.items()} for one in replicates]

    def of_one_output(replicates: Sequence[Tables]) -> list[Any]:
        for outputs in replicates:
            if len(outputs) > 1:
                raise InvalidOutput(
                    f"the target takes one table for each replicate, and the model has the outputs "
                    f"{', '.join(outputs)}; annotate the replicates as list[dict[str, ...]]"
                )
        return [convert(next(iter(outputs.values()))) for outputs in replicates]

    return of_one_output if named is None else with_names


def _resolved(annotation: object, names: dict[str, Any]) -> Any:
    """Return an annotation without texts; names that only a type checker imports do not exist."""

    def holder() -> None: ...

    holder.__annotations__ = {"replicates": annotation}  # alone: other annotations of the function do not matter
    return get_type_hints(holder, globalns=names)["replicates"]


def _last_argument(annotation: Any, made: type) -> Any:
    """Return X of ``list[X]`` or ``dict[str, X]``, or of a generic type above it; None: it is another type."""
    origin = get_origin(annotation)
    return get_args(annotation)[-1] if inspect.isclass(origin) and issubclass(made, origin) else None
