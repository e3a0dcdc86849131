"""Models and targets are found in every form that the documentation names, and are called with the right arguments."""

import math
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pytest

from mops.child.load import load_model, load_target
from mops.child.modules import CannotLoad
from mops.study.output_schema import InvalidOutput

PARAMS = {"beta": 0.3}
REPLICATES = [{"daily": pa.table({"n": [1, 2]})}, {"daily": pa.table({"n": [5, 0]})}]


WRAPPED = """
from functools import wraps
def timed(function):
    @wraps(function)
    def inner(*args, **kwargs): return function(*args, **kwargs)
    return inner
@timed
def f(beta, s): pass
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two texts of one length and second have one cache

    def forget():
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]

    def write(code, name="the_model.py"):
        forget()
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(code))
        return tmp_path

    yield write
    forget()


@pytest.fixture
def model(write):
    def load(code, text="the_model", scenario="baseline"):
        return load_model(text, scenario, [write(code)])

    return load


@pytest.fixture
def target(write):
    def load(code, text="the_model:target"):
        return load_target(text, [write(code)])

    return load


OBJECT = """
class Callable:
    def __call__(self, params, seed): return params, seed
f = Callable()
"""
BOUND_METHOD = """
class Model:
    def run(self, params, seed): return params, seed
f = Model().run
"""
HIDDEN_ARGUMENTS = """
def timed(function):
    def inner(*args, **kwargs): return function(*args, **kwargs)
    return inner
@timed
def f(params, seed): return params, seed
"""
PARTIAL = """
from functools import partial
def g(days, params, seed, scenario): return days, params, seed, scenario
"""
OTHER_ARGUMENTS = """
from functools import wraps
def of_params(function):
    @wraps(function)
    def inner(params, seed): return function(**params, seed=seed)
    return inner
@of_params
def f(beta, seed): return beta, seed
"""
CALLED = {
    "params and seed": ("def f(params, seed): return params, seed", "baseline", (PARAMS, 7)),
    "the scenario": (
        "def f(params, seed, scenario): return params, seed, scenario",
        "lockdown",
        (PARAMS, 7, "lockdown"),
    ),
    "the scenario under any name": ("def f(params, seed, which): return which", "lockdown", "lockdown"),
    "a scenario with a default": ("def f(params, seed, scenario='none'): return scenario", "lockdown", "lockdown"),
    "defaults": ("def f(params, seed, days=60, *, log=False): return days, log", "baseline", (60, False)),
    "a default after the scenario": (
        "def f(p, seed, scenario, days=6): return scenario, days",
        "lockdown",
        ("lockdown", 6),
    ),
    "any names": ("def f(theta, s, which='x'): return theta, s", "baseline", (PARAMS, 7)),
    "an object": (OBJECT, "baseline", (PARAMS, 7)),
    "a bound method": (BOUND_METHOD, "baseline", (PARAMS, 7)),
    "a decorator that hides the arguments": (HIDDEN_ARGUMENTS, "baseline", (PARAMS, 7)),
    "a decorator with other arguments": (OTHER_ARGUMENTS, "baseline", (0.3, 7)),
    "a partial function": (f"{PARTIAL}f = partial(g, 60)", "lockdown", (60, PARAMS, 7, "lockdown")),
    "a partial scenario": (f"{PARTIAL}f = partial(g, 60, scenario='mine')", "baseline", (60, PARAMS, 7, "mine")),
}


class TestFunctions:
    def test_a_function_gets_params_and_seed_and_the_scenario_if_it_takes_one(
        self, write, subtests: pytest.Subtests
    ) -> None:
        for case, (code, scenario, expected) in CALLED.items():
            with subtests.test(case):
                assert load_model("the_model:f", scenario, [write(code)], ["beta"])(PARAMS, 7) == expected

    def test_arguments_that_are_not_params_and_seed_are_refused(self, write, subtests: pytest.Subtests) -> None:
        """The model got the dict for beta, the seed for gamma and the scenario for the seed, and computed with them."""
        for code, says in [
            ("def f(beta, gamma, seed): pass", "has 'seed' where mops passes the scenario"),
            ("def f(beta=0.1, gamma=0.2, seed=0): pass", "does not have 'seed' where"),
            ("def f(beta, seed): pass", "argument 'beta', which is a parameter of the study.*take params\\['beta'\\]"),
            ("def f(params, beta): pass", "argument 'beta', which is a parameter"),
            ("def f(params, seed, beta): pass", "argument 'beta', which is a parameter"),
            ("f = lambda beta, s: 0", "argument 'beta', which is a parameter"),
            ("def f(beta, *others): pass", "takes 1 argument;|argument 'beta'"),
            ("def f(p, s, *, beta): pass", "needs an argument 'beta' as well"),
            ("def f(p, s, scenario, days): pass", "needs an argument 'days' as well"),
            ("def f(seed, params): pass", "has 'seed' where mops passes the params"),
            ("def f(scenario, params, seed): pass", "has 'scenario' where mops passes the params"),
            ("def f(**names): pass", "takes 0 arguments"),
            ("from functools import partial\ndef g(beta, gamma, seed): pass\nf = partial(g, gamma=1)", "takes 1 arg"),
            ("from functools import partial\ndef g(days, beta, s): pass\nf = partial(g, 3)", "argument 'beta', which"),
            (WRAPPED, "argument 'beta', which"),
            ("class f:\n    def simulate(self, beta, seed): pass", "argument 'beta', which"),
            ("class f:\n    @staticmethod\n    def simulate(beta, seed): pass", "argument 'beta', which"),
            ("class f:\n    @classmethod\n    def simulate(cls, beta, seed): pass", "argument 'beta', which"),
            ("class f:\n    def simulate(self, seed, params): pass", "has 'seed' where"),
            ("class f:\n    def simulate_scenario(self, params, seed, scenario): pass", "has 'params' where"),
            ("class g:\n    def __call__(self, beta, seed): pass\nf = g()", "argument 'beta', which"),
        ]:
            with subtests.test(str((code, says))), pytest.raises(CannotLoad, match=says):
                load_model("the_model:f", "baseline", [write(code)], ["beta", "gamma"])

    def test_a_parameter_name_that_only_a_later_set_has_fails_its_simulations(self, model):
        run = model("def f(beta, seed): return seed", "the_model:f")
        assert run({"rate": 1}, 7) == 7
        with pytest.raises(CannotLoad, match="argument 'beta', which is a parameter"):
            run({"beta": 1}, 7)


ONE_METHOD = "class Model:\n    def simulate(self, params, seed): return params, seed"
BOTH_METHODS = """
class Model:
    def simulate(self, params, seed): return "the wrong one"
    def simulate_scenario(self, scenario, params, seed): return scenario, params, seed
"""
NAMED_TUPLE = """
from typing import NamedTuple
class Model(NamedTuple):
    days: int = 3
    def simulate(self, params, seed): return self.days
"""
ONLY_CLASS = """
class _Hidden:
    def simulate(self, params, seed): pass
class Helper: pass
class Model:
    def simulate(self, params, seed): return seed
def run(params, seed): return "the wrong one"
"""
TWO_CLASSES = """
class First:
    def simulate(self, params, seed): pass
class Second(First): pass
"""
CONSTRUCTED = """
class Model:
    def __init__(self, {needs}, scale=1): pass
    def simulate(self, params, seed): pass
"""
FOUND = {
    "the method simulate": (ONE_METHOD, ":Model", "baseline", (PARAMS, 7)),
    "simulate_scenario": (BOTH_METHODS, ":Model", "lockdown", ("lockdown", PARAMS, 7)),
    "a named tuple": (NAMED_TUPLE, ":Model", "baseline", 3),
    "the only class": (ONLY_CLASS, "", "baseline", 7),
    **{
        f"the only function named {name}": (
            f"def {name}(params, seed): return seed\ndef helper(a, b): pass",
            "",
            "baseline",
            7,
        )
        for name in ("run", "simulate", "model")
    },
    "no imported class": ("from the_base import Base\nclass Model(Base): pass", "", "baseline", 7),
}
NO_MODEL = {
    "a callable without a signature": ("f = min", ":f", "does not reveal its arguments; wrap it in a function"),
    "one argument": ("def f(params): pass", ":f", r"takes [01] arguments?;.*f\(params, seed\)"),
    "no argument": ("def f(): pass", ":f", r"takes [01] arguments?;.*f\(params, seed\)"),
    "a number": ("f = 3", ":f", "is a int, neither a function nor a class"),
    "a function of no scenario": ("def f(params, seed): pass", ":f lockdown", "only be 'baseline', not 'lockdown'"),
    "a class of no scenario": (ONE_METHOD, ":Model lockdown", "only be 'baseline'"),
    **{
        f"a constructor that needs {needs}": (
            CONSTRUCTED.format(needs=needs),
            ":Model",
            "needs 'days'; mops makes it without arguments",
        )
        for needs in ("days", "*, days")
    },
    "a class that cannot simulate": ("class Model: pass", ":Model", "neither simulate"),
    "two classes": (TWO_CLASSES, "", r"name one: 'the_model:First', 'the_model:Second'"),
    "two functions": (
        "def simulate(params, seed): pass\ndef run(params, seed): pass",
        "",
        r"'the_model:run', 'the_model:simulate'",
    ),
    "no known name": ("def helper(params, seed): pass", "", "run, simulate, model"),
}


class TestModels:
    def test_a_model_is_found_and_called(self, model, write, subtests: pytest.Subtests) -> None:
        for case, (code, name, scenario, expected) in FOUND.items():
            with subtests.test(case):
                write("class Base:\n    def simulate(self, params, seed): return seed", "the_base.py")
                assert model(code, f"the_model{name}", scenario)(PARAMS, 7) == expected

    def test_what_is_no_model_is_refused(self, model, subtests: pytest.Subtests) -> None:
        for case, (code, asked, says) in NO_MODEL.items():
            with subtests.test(case):
                name, _, scenario = asked.partition(" ")
                with pytest.raises(CannotLoad, match=says):
                    model(code, f"the_model{name}", scenario or "baseline")

    @pytest.mark.parametrize(
        "method", ["simulate(self, params, seed)", "simulate_scenario(self, scenario, params, seed)"]
    )
    def test_every_simulation_has_a_new_instance(self, model, method):
        code = f"""
            class Model:
                def __init__(self): self.calls = 0
                def {method}:
                    self.calls += 1
                    return self.calls
        """
        run = model(code, "the_model:Model")
        assert [run(PARAMS, seed) for seed in range(3)] == [1, 1, 1]


class TestModulesAndFiles:
    def test_a_module_in_a_package(self, model, write):
        write("", "package/__init__.py")
        root = write("def f(params, seed): return seed", "package/inner.py")
        assert load_model("package.inner:f", "baseline", [root])(PARAMS, 7) == 7

    def test_a_file_with_a_dataclass(self, write):
        code = """
            from __future__ import annotations
            from dataclasses import dataclass

            @dataclass
            class Model:
                n: int = 3
                def simulate(self, params, seed): return seed + self.n
        """
        root = write(code, "models/the_file.py")
        assert load_model("models/the_file.py:Model", "baseline", [root])(PARAMS, 7) == 10
        assert load_model("models/the_file.py", "baseline", [root])(PARAMS, 7) == 10

    def test_files_of_one_name_in_two_folders_are_two_modules(self, write):
        write("def f(params, seed): return 'a'", "a/same.py")
        root = write("def f(params, seed): return 'b'", "b/same.py")
        found = [load_model(f"{folder}/same.py:f", "baseline", [root])(PARAMS, 7) for folder in ("a", "b")]
        assert found == ["a", "b"]

    def test_a_module_or_file_is_taken_from_the_first_folder_that_has_it(self, write, monkeypatch):
        write("def f(params, seed): return 'src'", "src/deep_one/walk.py")
        root = write("def f(params, seed): return 'root'", "walk.py")
        folders = [root, root / "src"]
        monkeypatch.syspath_prepend(root / "src")
        monkeypatch.syspath_prepend(root)
        assert load_model("walk:f", "baseline", folders)(PARAMS, 7) == "root"
        assert load_model("deep_one.walk:f", "baseline", folders)(PARAMS, 7) == "src"
        assert load_model("deep_one/walk.py:f", "baseline", folders)(PARAMS, 7) == "src"

    def test_an_installed_module_does_not_run_in_place_of_the_projects_file(self, write):
        root = write("def f(params, seed): return 1", "pytest.py")
        with pytest.raises(CannotLoad, match=r"module 'pytest' of 'pytest:f' is .*pytest/__init__.py, not pytest"):
            load_model("pytest:f", "baseline", [root])

    def test_a_missing_file_is_refused(self, tmp_path):
        with pytest.raises(CannotLoad, match=r"the project has no file 'models/sir.py'"):
            load_model("models/sir.py:run", "baseline", [tmp_path])

    def test_a_missing_name_is_refused_with_the_names_that_exist(self, model):
        code = "def run(p, s): pass\ndef walk(p, s): pass\n_hidden = 1"
        with pytest.raises(CannotLoad, match="no 'swim'; it has: run, walk"):
            model(code, "the_model:swim")
        with pytest.raises(CannotLoad, match=r"no 'rum'; did you mean 'run'\?"):
            model(code, "the_model:rum")
        with pytest.raises(CannotLoad, match=r"no 'WALK'; did you mean 'walk'\?"):
            model(code, "the_model:WALK")

    def test_an_error_in_the_module_is_raised(self, model):
        with pytest.raises(ZeroDivisionError):
            model("1 / 0")


class TestTargets:
    def test_a_target_gets_params_and_replicates_in_order(self, target, subtests: pytest.Subtests) -> None:
        for code, losses in [
            (
                "def target(params, replicates): return params['beta'] + replicates[1]['daily']['n'][0].as_py()",
                {"loss": 5.3},
            ),
            ("def target(replicates): return len(replicates)", {"loss": 2.0}),
            ("def target(params, replicates, scale=10): return scale * len(replicates)", {"loss": 20.0}),
            ("def target(params, replicates): return {'low': 1, 'high': 2.5}", {"low": 1.0, "high": 2.5}),
        ]:
            with subtests.test(str((code, losses))):
                assert target(code)(PARAMS, REPLICATES) == losses

    def test_arguments_that_are_not_params_and_replicates_are_refused(self, write, subtests: pytest.Subtests) -> None:
        for code, says in [
            ("def target(params): pass", "has 'params' where mops passes the replicates"),
            ("def target(replicates, params): pass", "has 'replicates' where mops passes the params"),
            ("def target(beta, replicates): pass", "argument 'beta', which is a parameter"),
            ("def target(beta): pass", "argument 'beta', which is a parameter"),
            ("def target(replicates, *, scale): pass", "needs an argument 'scale' as well"),
        ]:
            with subtests.test(str((code, says))), pytest.raises(CannotLoad, match=says):
                load_target("the_model:target", [write(code)], ["beta"])

    def test_a_number_of_numpy_is_a_loss(self, target, subtests: pytest.Subtests) -> None:
        for value in ["np.float32(1.5)", "np.array(1.5)", "np.int64(1) + 0.5", "1.5"]:
            with subtests.test(str(value)):
                loss = target(f"import numpy as np\ndef target(params, replicates): return {value}")(
                    PARAMS, REPLICATES
                )["loss"]
                assert (loss, type(loss)) == (1.5, float)

    def test_a_loss_without_a_name_or_a_finite_number_is_refused(self, target, subtests: pytest.Subtests) -> None:
        for value, says in {
            "float('nan')": "'loss' is nan",
            "float('inf')": "'loss' is inf",
            "{'a': 1.0, 'b': float('-inf')}": "'b' is -inf",
            "'good'": "'good'",
            "True": "a bool",
            "None": "a NoneType",
            "[1.0, 2.0]": r"\[1.0, 2.0\]",
            "{}": "empty mapping",
            "1j": "a complex",
            "{'': 1.0}": "cannot name a loss",
            r"{'a\nb': 1.0}": "cannot name a loss",
            r"{'caf\udce9': 1.0}": "cannot name a loss",
            "{1: 1.0, '1': 2.0}": "two losses named '1'",
        }.items():
            with subtests.test(str((value, says))):
                found = target(f"def target(params, replicates): return {value}")
                with pytest.raises(InvalidOutput, match=says):
                    found(PARAMS, REPLICATES)

    def test_code_that_is_not_a_target_is_refused(self, target, subtests: pytest.Subtests) -> None:
        for code, says in [
            ("target = 3", "is a int, not a function"),
            ("def target(a, b, c): pass", "needs 3 arguments"),
            ("def target(): return 3", "returned int"),
            ("other = 3", "no 'target'; it has: other"),
        ]:
            with subtests.test(str((code, says))), pytest.raises(CannotLoad, match=says):
                target(code)

    def test_a_target_without_a_name_is_refused(self, target):
        with pytest.raises(CannotLoad, match="module:function"):
            target("", "the_model")


FACTORY = """
    import math
    import types
    import numpy as np
    import polars as pl

    class Target:
        def evaluate(self, replicates):
            assert all(isinstance(one["daily"], pl.DataFrame) for one in replicates)
            sums = [float(one["daily"]["n"].sum()) for one in replicates]
            return {result}

    def target(data=None):
        return Target()
"""


class TestFactories:
    def result(self, target, result):
        return target(FACTORY.replace("{result}", result))(PARAMS, REPLICATES)

    def test_the_target_gets_polars_frames_and_returns_a_loss_or_likelihoods(
        self, target, subtests: pytest.Subtests
    ) -> None:
        """The loss has priority; likelihoods are averaged."""
        for result, loss in {
            "types.SimpleNamespace(loss=sum(sums))": 8.0,
            "sum(sums)": 8.0,
            "types.SimpleNamespace(loss=2.0, loglik_per_rep=[0.0])": 2.0,
            "types.SimpleNamespace(loglik_per_rep=[math.log(0.1), math.log(0.3)])": pytest.approx(-math.log(0.2)),
            "types.SimpleNamespace(loss=None, loglik_per_rep=[math.log(0.1), math.log(0.3)])": pytest.approx(
                -math.log(0.2)
            ),
            # Too small for exp, and one that is impossible.
            "types.SimpleNamespace(loglik_per_rep=np.array([-2000.0, -2001.0]))": pytest.approx(
                2000 - math.log((1 + math.exp(-1)) / 2)
            ),
            "types.SimpleNamespace(loglik_per_rep=[-math.inf, 0.0])": pytest.approx(np.log(2)),
        }.items():
            with subtests.test(str((result, loss))):
                assert self.result(target, result) == {"loss": loss}

    def test_likelihoods_without_a_finite_mean_are_refused(self, target, subtests: pytest.Subtests) -> None:
        for logliks in ["[-math.inf, -math.inf]", "[math.nan, 0.0]", "[]"]:
            with subtests.test(str(logliks)), pytest.raises(InvalidOutput, match="finite number"):
                self.result(target, f"types.SimpleNamespace(loglik_per_rep={logliks})")

    def test_a_loss_that_is_nan_is_refused(self, target):
        with pytest.raises(InvalidOutput, match="'loss' is nan"):
            self.result(target, "types.SimpleNamespace(loss=math.nan)")
