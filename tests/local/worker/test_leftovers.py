"""mops removes the state that a simulation or target leaves in its process, as far as possible."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pool_lab import PoolLab, request_for, values

from mops.study.groups import Group
from mops.study.ids_and_seeds import param_id
from mops.task import TaskResult

WARM_CHILDREN = True
Run = Callable[..., TaskResult]
DRAWS = """
import random
import numpy as np

def run(params, seed):
    random.random(), np.random.standard_normal()  # an odd number, so that numpy keeps a second one for the next call
    return {"x": 1}

def first(params, replicates):
    return {"random": random.gauss(0, 1), "numpy": np.random.standard_normal()}

def second(params, replicates):
    return first(params, replicates)
"""
ALARMS = """
import signal, time

def run(params, seed):
    if params["starts"]:
        exec(params["starts"])
    else:
        time.sleep(2.5)
        sum(range(10**7))
    return {"x": params["a"]}
"""


@pytest.fixture
def run(lab: PoolLab) -> Run:
    """Return what runs sets of a model in a new pool. All sets have the same seeds."""

    def run(code: str, sets: list[dict[str, Any]], n_replicates: int = 1, targets: tuple[str, ...] = ()) -> TaskResult:
        pool = lab.pool(code, targets=targets, retries=0)
        groups = tuple(Group(i, param_id(s), s, tuple(range(n_replicates))) for i, s in enumerate(sets))
        return pool.run(request_for(pool.context, groups))

    return run


def losses(result: TaskResult, target: str) -> dict[int, tuple[float, float]]:
    found: dict[int, dict[str, float]] = {}
    for loss in result.losses:
        if loss.target == target:
            found.setdefault(loss.group, {})[loss.name] = loss.loss
    return {group: (named["random"], named["numpy"]) for group, named in found.items()}


def test_a_target_draws_the_same_numbers_after_any_other_target(run: Run) -> None:
    """Regression: a target that uses numpy.random gave another loss in another order of the study."""
    sets = [{"a": 1}, {"a": 2}]
    there = run(DRAWS, sets, targets=("model:first", "model:second"))
    back = run(DRAWS, sets[::-1], n_replicates=3, targets=("model:second", "model:first"))
    for target in ("model:first", "model:second"):
        assert losses(there, target) == dict(zip((0, 1), (losses(back, target)[i] for i in (1, 0)), strict=True))


def test_targets_and_sets_draw_different_numbers(run: Run) -> None:
    result = run(DRAWS, [{"a": 1}, {"a": 2}], targets=("model:first", "model:second"))
    drawn = {*losses(result, "model:first").values(), *losses(result, "model:second").values()}
    assert len(drawn) == 4


def test_a_timer_that_a_simulation_left_does_not_end_the_next(run: Run) -> None:
    """Regression: the timer killed the process in the next simulation, which mops recorded as crashed."""
    starts = [
        "signal.setitimer(signal.ITIMER_REAL, 2)",
        "signal.setitimer(signal.ITIMER_REAL, 2, 0.1)",
        "signal.signal(signal.SIGPROF, print); signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)",
    ]
    sets = [{"starts": what, "a": i} for i, what in enumerate(each for start in starts for each in (start, ""))]
    result = run(ALARMS, sets)
    assert (result.done, result.failures) == ({*range(6)}, [])


# A simulation does the first; the next one in the process returns the second as text.
RESTORED = {
    "current folder": ("os.chdir('/')", "Path.cwd().name"),
    "files in the working folder": ("Path('x').touch()", "[name for name in os.listdir() if name != '__pycache__']"),
    "environment variables": (
        "os.environ.update(PATH='x', NEW='x'); del os.environ['HOME']",
        "[*map(os.environ.get, ('PATH', 'NEW', 'HOME')), subprocess.run('echo $NEW', shell=True, capture_output=True)]",
    ),
    "umask": ("import colorsys; os.umask(0o777)", "os.umask(0o22)"),
    "signal handlers": (
        "[signal.signal(n, signal.SIG_IGN) for n in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGUSR1)]",
        "[signal.getsignal(n) for n in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGUSR1)]",
    ),
    "filters of warnings": ("warnings.simplefilter('error'); warnings.filters.append(('x',))", "warnings.filters"),
    "decimal context": (
        "C = decimal.getcontext(); C.prec = 3; C.Emax = 5; C.traps[decimal.Inexact] = True",
        "decimal.Decimal(1) / 3",
    ),
    "floating-point errors and print options of numpy": (
        "np.seterr(all='raise'); np.set_printoptions(precision=2)",
        "[np.float64(1) / np.float64(0), str(np.array([1 / 3]))]",
    ),
    "context variables (`contextvars`)": ("VARIABLE.set(7)", "VARIABLE.get()"),
    "locale": ("locale.setlocale(locale.LC_ALL, 'C.UTF-8')", "locale.setlocale(locale.LC_ALL)"),
    "`sys.stdout` and `sys.stderr`": ("sys.stdout = sys.stderr = io.StringIO()", "[type(sys.stdout), sys.stderr.name]"),
    "limits (`resource.setrlimit`)": (
        "[resource.setrlimit(n, (9, resource.getrlimit(n)[1])) for n in LIMITS]",
        "[resource.getrlimit(n) for n in LIMITS]",
    ),
    "state of `random` and `numpy.random`": (
        "random.seed(5); np.random.seed(5)",
        "[random.random(), np.random.random(), random.gauss(0, 1), np.random.normal()]",
    ),
    "`params`": ("params.update(a=7, b=8)", "sorted(params)"),
}
KEPT = {
    "globals, class attributes and caches": ("CACHE.append(1)", "len(CACHE)"),
    "`sys.path` and imported modules": ("sys.path.append('x')", "'x' in sys.path"),
    "options of libraries": ("pd.set_option('display.precision', 2)", "pd.get_option('display.precision')"),
    "other generators": ("RNG.random(5)", "RNG.bit_generator.state"),
    "threads": (
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "threading.active_count()",
    ),
    "open files": ("CACHE.append(os.open('/', os.O_RDONLY))", "len(os.listdir('/proc/self/fd'))"),
    "processes": ("CACHE.append(subprocess.Popen(['sleep', '600']))", "len(children_of(os.getpid()))"),
    "temporary files, `/dev/shm`": ("tempfile.mkdtemp(prefix='left')", "len(os.listdir(os.environ['TMPDIR']))"),
}
LEAVES = """
import contextvars, decimal, io, locale, os, random, resource, signal, subprocess, sys, tempfile, threading, time
import warnings
from pathlib import Path
import numpy as np
import pandas as pd
from mops.system.process_tree import children_of
np.seterr(all="ignore")
LIMITS = (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
CACHE, RNG, VARIABLE = [], np.random.default_rng(5), contextvars.ContextVar("x", default=5)

def run(params, seed):
    if params["leaves"]:
        exec(params["leaves"])
    return {"x": ["" if params["leaves"] else repr(eval(params["shows"]))]}
"""


def shown(run: Run, cases: dict[str, tuple[str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    """Return what a simulation finds before and after another one of its process that leaves something, by case."""
    sets = [{"shows": shows, "leaves": what} for leaves, shows in cases.values() for what in ("", leaves, "")]
    result = run(LEAVES, [{"step": i, **params} for i, params in enumerate(sets)])
    assert not result.failures
    found = [value for _, (value,) in sorted(values(result, "x").items())]
    return dict(zip(cases, found[::3], strict=True)), dict(zip(cases, found[2::3], strict=True))


def test_what_a_simulation_changes_is_undone(run: Run) -> None:
    before, after = shown(run, RESTORED)
    assert after == before


def test_what_the_next_simulation_of_a_process_sees(run: Run) -> None:
    before, after = shown(run, KEPT)
    assert {what for what in KEPT if after[what] == before[what]} == set()


def test_the_reference_has_what_is_undone_and_what_is_not() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "models.md").read_text()
    section = text.partition("## What one simulation leaves to the next")[2].partition("\n## ")[0]
    rows = {row.split("|")[1].strip(): row.split("|")[2].strip() for row in section.splitlines() if row[:2] == "| "}
    assert {name for name, then in rows.items() if then.startswith(("restored", "removed", "a copy"))} == {*RESTORED}
    assert {name for name, then in rows.items() if then.startswith("stay")} == {*KEPT}


def test_what_a_module_sets_that_a_simulation_imports_stays(run: Run, tmp_path: Path) -> None:
    """A process imports a module once: undone, its settings would be there in the first simulation only."""
    (tmp_path / "late.py").write_text(
        "import contextvars, os\nos.environ['LATE'] = 'x'\nV = contextvars.ContextVar('v')\nV.set('y')\n"
    )
    code = "import os\n\ndef run(p, s):\n    import late\n    return {'x': [os.environ['LATE'] + late.V.get()]}\n"
    result = run(code, [{"a": i} for i in range(3)])
    assert not result.failures


def test_a_decimal_context_that_the_import_keeps_is_the_one_of_each_simulation(run: Run) -> None:
    code = (
        "import decimal\nC = decimal.getcontext()\nC.prec = 9\n\ndef run(p, s):\n    before = C.prec\n"
        "    C.prec = p['a']\n    return {'x': [f'{before} {decimal.Decimal(1) / 3}']}\n"
    )
    result = run(code, [{"a": i} for i in (2, 3)])
    assert [value for (value,) in values(result, "x").values()] == ["9 0.33", "9 0.333"]


def test_the_generator_of_torch_has_the_seed_of_the_simulation(run: Run, tmp_path: Path) -> None:
    """Regression: it starts with the same seed in each process, so replicates of different processes were equal."""
    # In place of the library of 2 GB.
    (tmp_path / "torch.py").write_text("SEEDS = []\n\ndef manual_seed(seed):\n    SEEDS.append(seed)\n")
    code = "import torch\n\ndef run(p, s):\n    return {'x': [torch.SEEDS[-1] - s, len(torch.SEEDS)]}\n"
    assert values(run(code, [{"a": 1}], n_replicates=2), "x") == {(0, 0): [0, 1], (0, 1): [0, 2]}


def test_a_limit_that_a_module_sets_when_a_simulation_imports_it_stays(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lowers.py").write_text(
        "import resource\n_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))\n"
    )
    code = (
        "import resource\n\ndef run(p, s):\n    import lowers\n"
        "    return {'x': [resource.getrlimit(resource.RLIMIT_NOFILE)[0]]}\n"
    )
    assert values(run(code, [{"a": 1}, {"a": 2}]), "x") == {(0, 0): [512], (1, 0): [512]}


def test_a_simulation_may_put_another_object_in_place_of_the_environment(run: Run) -> None:
    code = "import os\n\ndef run(p, s):\n    os.environ = {'A': 'x'}\n    return {'x': [len(os.environ)]}\n"
    assert values(run(code, [{"a": 1}, {"a": 2}]), "x") == {(0, 0): [1], (1, 0): [1]}


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_temporary_folder_that_the_import_chooses_stays(lab: PoolLab, start: str) -> None:
    code = (
        "import os, tempfile\ntempfile.tempdir = os.environ['TMPDIR'] = str(HERE)\n\n"
        "def run(p, s):\n    return {'x': [tempfile.gettempdir() == os.environ['TMPDIR'] == str(HERE)]}\n"
    )
    assert values(lab.run(lab.pool(code, start=start), [{"a": 1}]), "x") == {(0, 0): [True]}


# How a simulation closes its streams. None of them closes the descriptor.
CLOSES = (
    "sys.stdout.close(); sys.stderr.close()",
    "sys.stdout.buffer.close(); sys.stderr.buffer.close()",
    "sys.stdout.detach(); sys.stderr.detach()",
    "sys.stdout = io.TextIOWrapper(sys.stdout.buffer); sys.stderr = io.TextIOWrapper(sys.stderr.detach())",
    "[stream.__exit__() for stream in (sys.stdout, sys.stderr)]",
)


@pytest.mark.usefixtures("real_children")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_simulation_that_closes_its_streams_does_not_close_those_of_others(
    lab: PoolLab, monkeypatch: pytest.MonkeyPatch, unbuffered: str
) -> None:
    """Regression: the prints of later simulations raised a ValueError, and the simulations failed."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    code = (
        "import io, logging, sys\nOUT = sys.stdout\nlogging.basicConfig(stream=sys.stderr)\n\ndef run(p, s):\n"
        "    for name in ('out', 'err'):\n"
        "        print(name, p['a'], 'before', end='', file=getattr(sys, f'std{name}'))\n"
        "    exec(p['closes'])\n    print('kept', p['a'], file=OUT)\n    logging.warning('log %d', p['a'])\n"
        "    print('after', p['a'])\n    return {'x': 1}\n"
    )
    result = lab.run(lab.pool(code), [{"a": a, "closes": closes} for a, closes in enumerate((*CLOSES, ""))])
    assert not result.failures
    for a in range(len(CLOSES) + 1):
        for text in (f"out {a} before", f"err {a} before", f"kept {a}", f"WARNING:root:log {a}", f"after {a}"):
            assert result.prints.count(text) == 1
    assert "error" not in result.prints.lower()
