"""Which changes of a project may change what a model computes: a table of edits, and what each must count as."""

from __future__ import annotations

from pathlib import Path

import pytest

from cases import case_folder
from mops.project.bundle import pack
from mops.project.difference import Difference
from mops.project.project import ModelSpec

# A file with a model and a target, as in README.md, and a helper module of each.
MODEL = '''"""A walk."""
import math
import numpy as np
import helper
import scoring
from functools import lru_cache

SCALE = 2.0
LIMIT = 20
OBSERVED = np.array([1.0, 2.0])
STATE = {}


class Walker:
    """Walks."""

    def __init__(self, step=1.0):
        self.step = step

    def steps(self, n):
        return [helper.grow(self.step)] * n


@lru_cache
def table(n):
    return Walker().steps(n)


def run(params, seed, scale=SCALE):
    """Run it."""
    total = scale * sum(table(3))
    return {"output": {"x": [total]}}


def unused():
    return math.pi


def end(replicates):
    found = scoring.loss(replicates, LIMIT)
    return abs(found - OBSERVED[0])
'''
HELPER = """RATE = 0.5

def grow(step):
    return step * RATE

def shrink(step):
    return step / RATE
"""
SCORING = "def loss(replicates, limit):\n    return limit\n"
FILES = {
    "model.py": MODEL,
    "helper.py": HELPER,
    "scoring.py": SCORING,
    "submit.py": "import model\n",
    "rates.csv": "1\n",
    "requirements.txt": "numpy==1.0\n",
    "README.md": "",
    "run.log": "",
    "walks.ipynb": "{}",
    "a.rst": "",
    ".mopsignore": "",
    ".modelops-bundle/registry.yaml": "",
    "mops.toml": "",
    "sets.csv": "beta\n1\n",
    "study.json": '{"model": "model:run", "parameter_sets": "sets.csv"}',
}
SPEC = ModelSpec("model:run", "baseline", ("model:end",), None)


def of_model(tmp_path: Path, old: dict[str, str], new: dict[str, str], spec: ModelSpec = SPEC) -> list[str]:
    """Return the files that may belong to the model, after a look in both directions."""
    found = []
    for number, (one, other) in enumerate([(old, new), (new, old)]):
        folders = [tmp_path / f"{number}{side}" for side in "ab"]
        for folder, files in zip(folders, (one, other), strict=True):
            for name, text in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)
        found.append(Difference(folders[0], pack(folders[1]), folders[1], spec, spec.targets).of_model())
    if old.keys() == new.keys():
        assert found[0] == found[1], "the same in both directions"
    return found[0]


def edited(name: str, old: str, new: str) -> dict[str, str]:
    assert FILES[name].count(old) == 1, (name, old)
    return FILES | {name: FILES[name].replace(old, new)}


SAME = {
    "a comment": ("model.py", "total = scale", "# twice\n    total = scale"),
    "a docstring": ("model.py", '"""Run it."""', '"""Run it once."""'),
    "the docstring of the module": ("model.py", '"""A walk."""', '"""Walks."""'),
    "the form of a number": ("model.py", "SCALE = 2.0", "SCALE = 2.00"),
    "the target": ("model.py", "abs(found", "100 + abs(found"),
    "an unused function": ("model.py", "math.pi", "math.e"),
    "a value of the target": ("model.py", "LIMIT = 20", "LIMIT = 30"),
    "an array of the target": ("model.py", "[1.0, 2.0]", "[1.0, 3.0]"),
    "a new function": ("model.py", "def unused", "def more():\n    return 1\n\n\ndef unused"),
    "a plain import": ("model.py", "import math\n", "import math\nimport pandas as pd\n"),
    "a module of the target": ("scoring.py", "return limit", "return 2 * limit"),
    "another function of a used module": ("helper.py", "step / RATE", "step / RATE / 2"),
    "a program": ("submit.py", "import model", "import model, helper"),
    "what only a program runs": ("helper.py", "RATE = 0.5\n", 'RATE = 0.5\nif __name__ == "__main__":\n    print(1)\n'),
    "a text": ("README.md", "", "x"),
    "a log": ("run.log", "", "x"),
    "a notebook": ("walks.ipynb", "{}", "{ }"),
    "a page": ("a.rst", "", "x"),
    "what mops ignores": (".mopsignore", "", "*.tmp"),
    "the registry": (".modelops-bundle/registry.yaml", "", "# x"),
    "the study": ("study.json", "sets.csv", "others.csv"),
    "the parameter sets": ("sets.csv", "1\n", "2\n"),
    "observed data": ("mops.toml", "", '[[observed]]\noutput = "output"\n'),
}
CHANGED = {
    "the model": ("model.py", '{"x": [total]}', '{"x": [total + 1]}'),
    "a default argument": ("model.py", "step=1.0", "step=2.0"),
    "the default of the model": ("model.py", "scale=SCALE", "scale=3.0"),
    "a global constant": ("model.py", "SCALE = 2.0", "SCALE = 3.0"),
    "1 and 1.0": ("model.py", "SCALE = 2.0", "SCALE = 2"),
    "a decorator": ("model.py", "@lru_cache\n", ""),
    "a method of a used class": ("model.py", "* n", "* (n + 1)"),
    "a used helper": ("helper.py", "step * RATE", "step * RATE * 2"),
    "a constant of a used helper": ("helper.py", "RATE = 0.5", "RATE = 0.6"),
    "a statement of the module": ("model.py", "STATE = {}", "STATE = {}\nnp.random.seed(1)"),
    "a statement of an imported module": ("scoring.py", "def loss", "print(1)\n\ndef loss"),
    "a name that the model uses has another value": ("model.py", "STATE = {}", "def sum(values):\n    return 0"),
    "a function that writes a used value": (
        "model.py",
        "math.pi",
        "math.pi\n\n\ndef other():\n    global SCALE\n    SCALE = 4",
    ),
    "an import of another library": ("model.py", "import math\n", "import math\nimport torch\n"),
    "an import of the same name": ("model.py", "import helper\n", "import scoring as helper\n"),
    "a future import": ("model.py", "import math\n", "from __future__ import annotations\nimport math\n"),
    "an unknown decorator": ("model.py", "def unused", "@register\ndef unused"),
    "a subclass": ("model.py", "def unused", "class Runner(Walker):\n    pass\n\n\ndef unused"),
    "data": ("rates.csv", "1", "2"),
    "the version of a dependency": ("requirements.txt", "1.0", "2.0"),
    "data outside of the project": ("mops.toml", "", '[data]\npaths = ["/data/rates"]\n'),
}


def test_edits_that_leave_the_model_as_it_is(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for what in SAME:
        with case_folder(subtests, tmp_path, what) as folder:
            assert of_model(folder, FILES, edited(*SAME[what])) == []


def test_edits_that_may_change_the_model(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for what in CHANGED:
        with case_folder(subtests, tmp_path, what) as folder:
            assert of_model(folder, FILES, edited(*CHANGED[what])) == [CHANGED[what][0]]


# Code of the model with which another function of its file may be called by a text. Then every edit counts.
UNBOUNDED = {
    "a computed import": (
        "total = scale",
        "import importlib as i\n    i.import_module('xy')\n    total = scale",
    ),
    "eval": ("total = scale", "eval('unused()')\n    total = scale"),
    "globals": ("total = scale", "globals()['unu' + 'sed']()\n    total = scale"),
    "its own module": ("total = scale", "import sys\n    sys.modules[__name__]\n    total = scale"),
    "a path for imports": ("import math", "import sys\nsys.path.append('x')\nimport math"),
    "sys with another name": ("import math", "import sys as s\ns.path.append('x')\nimport math"),
    "an unpickled function": ("total = scale", "import pickle\n    total = scale"),
    "another program": ("total = scale", "open('unused.py')\n    total = scale"),
    "a module that another program runs": ("import math", "import subprocess\nsubprocess.run(['-m', 'model'])"),
    "a function that names its attributes": (
        "def unused",
        "def __getattr__(n):\n    return globals()[n]\n\n\ndef unused",
    ),
    "no Python": ("import math", "import math import"),
}


def test_a_model_that_finds_code_by_texts_may_use_all_code(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for what in UNBOUNDED:
        with case_folder(subtests, tmp_path, what) as folder:
            old, new = UNBOUNDED[what]
            before = edited("model.py", old, new)
            after = before | {"submit.py": "import helper\n", "more.csv": ""}
            assert of_model(folder, before, after) == ["submit.py", "more.csv"]


MODULES = {
    "a module as a value": ("getattr(helper, 'shr' + 'ink')(1)\n    total = scale", "helper.py"),
    "an alias": ("import helper as h\n    h.shrink(1)\n    total = scale", "helper.py"),
    "a star": ("total = scale", "helper.py"),
    "a name of a module": ("from helper import shrink as s\n    s(1)\n    total = scale", "helper.py"),
}


def test_all_ways_to_reach_a_function_of_another_module(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for what in MODULES:
        with case_folder(subtests, tmp_path, what) as folder:
            text = MODEL.replace("total = scale", MODULES[what][0])
            if what == "a star":
                text = text.replace("import helper\n", "import helper\nfrom helper import *\n")
            before = FILES | {"model.py": text}
            after = before | {"helper.py": HELPER.replace("step / RATE", "step / RATE / 2")}
            assert of_model(folder, before, after) == ["helper.py"]


PACKAGE = {
    "pkg/__init__.py": "from .rates import RATE as RATE\n",
    "pkg/model.py": "from . import RATE\nfrom .parts import walk\nfrom pkg import util\n\ndef run(params, seed):\n"
    "    return walk.step(RATE) + util.add(1)\n",
    "pkg/parts/__init__.py": "",
    "pkg/parts/walk.py": "def step(n):\n    return n\n\ndef back(n):\n    return -n\n",
    "pkg/rates.py": "RATE = 1\nOTHER = 2\n",
    "pkg/util.py": "def add(n):\n    return n\n\ndef take(n):\n    return n\n",
    "pkg/score.py": "from pkg import util\n\ndef end(replicates):\n    return util.take(1)\n",
}
OF_PACKAGE = ModelSpec("pkg.model:run", "baseline", ("pkg.score:end",), None)


def test_packages(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for src in ["", "src/"]:
        for name, old, new, counts in [
            ("pkg/parts/walk.py", "return n", "return 2 * n", True),
            ("pkg/parts/walk.py", "-n", "-2 * n", False),
            ("pkg/rates.py", "RATE = 1", "RATE = 2", True),
            ("pkg/rates.py", "OTHER = 2", "OTHER = 3", False),
            ("pkg/__init__.py", "RATE as", "OTHER as", True),
            ("pkg/parts/__init__.py", "", "print(1)\n", True),
            ("pkg/util.py", "def take(n):\n    return n", "def take(n):\n    return 2 * n", False),
            ("pkg/util.py", "def add(n):\n    return n", "def add(n):\n    return 2 * n", True),
            ("pkg/score.py", "take(1)", "take(2)", False),
            # On import, the module of a target may change the model.
            ("pkg/score.py", "import util\n", "import util\nutil.add = None\n", True),
            ("pkg/score.py", "import util\n", "import util\nsetattr(util, 'add', None)\n", True),
        ]:
            with subtests.test(str((src, name, old, new, counts))):
                folder = tmp_path / str(sum(1 for _ in tmp_path.iterdir()))
                folder.mkdir()
                before = {src + file: text for file, text in PACKAGE.items()}
                after = before | {src + name: PACKAGE[name].replace(old, new, 1)}
                spec = ModelSpec(OF_PACKAGE.model, "baseline", OF_PACKAGE.targets, None, (".", "src"))
                assert of_model(folder, before, after, spec) == ([src + name] if counts else [])


# A model that reads a value of another module, which the import of a target or of a third module may change.
READS = {
    "model.py": "import rates\ndef run(params, seed):\n    return {'x': [rates.BETA]}\n",
    "rates.py": "BETA = 1\nTABLE = {'a': 1}\n",
    "patches.py": "import rates\nrates.BETA = 5\n",
    "others.py": "import rates\nrates.BETA = 6\n",
    "helpers.py": "TABLE = {}\nTABLE['x'] = 5\n",
    "targets.py": "def end(replicates):\n    return 1.0\n",
}
OF_READS = ModelSpec("model:run", "baseline", ("targets:end",), None)
IMPORTS = {
    "a module that patches another one": ({}, {"model.py": "import patches\n"}, True),
    "a target's module that patches": ({}, {"targets.py": "import patches\n"}, True),
    "the order of two imports": (
        {"model.py": "import patches\nimport others\n"},
        {"model.py": "import others\nimport patches\n"},
        True,
    ),
    "a function that a target's module calls": (
        {"targets.py": "import rates\ndef set_it():\n    rates.BETA = 5\nset_it()\n"},
        {"targets.py": "import rates\ndef set_it():\n    rates.BETA = 6\nset_it()\n"},
        True,
    ),
    "another name of a module": (
        {"targets.py": "import rates\nx = rates\nx.BETA = 5\n"},
        {"targets.py": "import rates\nx = rates\nx.BETA = 6\n"},
        True,
    ),
    "the body of a class": (
        {"targets.py": "import rates\nclass P:\n    rates.BETA = 5\n"},
        {"targets.py": "import rates\nclass P:\n    rates.BETA = 6\n"},
        True,
    ),
    "a star": (
        {"targets.py": "from rates import *\nTABLE['a'] = 2\n"},
        {"targets.py": "from rates import *\nTABLE['a'] = 3\n"},
        True,
    ),
    "a generator that the model may share": (
        {"targets.py": "import numpy as np\nnp.random.seed(1)\n"},
        {"targets.py": "import numpy as np\nnp.random.seed(2)\n"},
        True,
    ),
    "a library of the target": ({}, {"targets.py": "import sklearn.metrics as m\n"}, False),
    "a decorator of a library": (
        {"targets.py": "from calabaria import target\n@target('a')\ndef old(r):\n    return 1\n"},
        {"targets.py": "from calabaria import target\n@target('a')\ndef old(r):\n    return 2\n"},
        False,
    ),
    "data that a target's module reads": (
        {"targets.py": "import pandas as pd\nDATA = pd.read_csv('a')\n"},
        {"targets.py": "import pandas as pd\nDATA = pd.read_csv('a', sep=';')\n"},
        False,
    ),
}


def test_what_an_import_runs(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for what in IMPORTS:
        with case_folder(subtests, tmp_path, what) as folder:
            old, new, counts = IMPORTS[what]
            before, after = (READS | {name: text + READS[name] for name, text in some.items()} for some in (old, new))
            found = of_model(folder, before, after, OF_READS)
            assert (next(iter(new)) in found) == counts, found


def test_a_value_that_a_target_writes_into_the_model_counts(tmp_path: Path) -> None:
    before = READS | {"targets.py": f"import rates, helpers\nrates.BETA = helpers.TABLE['x']\n{READS['targets.py']}"}
    after = before | {"helpers.py": READS["helpers.py"].replace("5", "6")}
    assert of_model(tmp_path, before, after, OF_READS) == ["helpers.py"]


def test_the_targets_of_each_job_are_imported_in_it(tmp_path: Path) -> None:
    for folder, notes in (("before", ""), ("now", "x")):
        (tmp_path / folder).mkdir()
        for name, text in (READS | {"README.md": notes}).items():
            (tmp_path / folder / name).write_text(text)
    bundle, now = pack(tmp_path / "now"), tmp_path / "now"
    assert Difference(tmp_path / "before", bundle, now, OF_READS, ("targets:end",)).of_model() == []
    # `patches.py` did not change, but only the old job imported it.
    assert Difference(tmp_path / "before", bundle, now, OF_READS, ("patches",)).of_model() == ["patches.py"]


TEXTS = {
    "a query": ("df.query('age > @ADULT')", ""),
    "an annotation in quotes": ("1", "class P:\n    rate: 'Rates'\n"),
    "a frame": ("sys._getframe().f_globals['x']", "import sys\n"),
    "a mock": ("mock.patch('model.ADULT', 1)", "from unittest import mock\n"),
    "a formula": ("smf.ols('y ~ x')", "import statsmodels.formula.api as smf\n"),
    "an unpickled network": ("torch.load('m.pt')", "import torch\n"),
    "a program": ("sp.run(['python', '-m', 'model'])", "import subprocess as sp\n"),
    "a function that starts programs": ("run(['sh', 'run.sh'])", "from subprocess import run\n"),
    "a shell": ("os.system('python -m model')", "import os\n"),
}


def test_code_that_a_text_names(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for what in TEXTS:
        with case_folder(subtests, tmp_path, what) as folder:
            call, head = TEXTS[what]
            body = "P" if "P:" in head else call
            text = f"{head}ADULT = 18\nclass Rates:\n    beta = 1\ndef run(params, seed):\n    {body}\n"
            before, after = (
                READS | {"model.py": text},
                READS | {"model.py": text.replace("18", "21").replace("beta = 1", "beta = 2")},
            )
            assert of_model(folder, before, after, OF_READS) == ["model.py"]


def test_bytes_that_are_no_utf_8_and_folders_with_the_names_of_files(tmp_path: Path) -> None:
    for folder, letter in (("before", b"\xe9"), ("now", b"\xe8")):
        (tmp_path / folder / "x.py").mkdir(parents=True)
        (tmp_path / folder / "x.json").mkdir()
        (tmp_path / folder / "model.py").write_bytes(b"def run(p, s):\n    return {'" + letter + b"': [1]}\n")
    difference = Difference(tmp_path / "before", pack(tmp_path / "now"), tmp_path / "now", OF_READS, ())
    assert difference.of_model() == ["model.py"]


def test_added_files_count_if_the_model_may_find_them(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for files, model, counts in [
        ({"helper.abi3.so": ""}, "", ["helper.abi3.so"]),  # hides helper.py
        ({"uv.lock": ""}, "", ["uv.lock"]),
        ({"notes.md": ""}, "folder.glob('*.md')", ["notes.md"]),
        ({"notes.log": ""}, "open(f'{seed}.log')", ["notes.log"]),
        ({"numpy.py": ""}, "", ["numpy.py"]),  # hides the library that the model imports
        ({"new/rates.csv": ""}, "", []),
        ({"new/rates.csv": ""}, "open('new/rates.' + 'csv')", ["new/rates.csv"]),
        ({"new/rates.csv": ""}, "open(f'{seed}.csv')", ["new/rates.csv"]),
        ({"new/rates.csv": ""}, "folder.glob('x')", ["new/rates.csv"]),
        ({"new/rates.csv": ""}, "scan('m*')", ["new/rates.csv"]),
        ({"new/rates.csv": ""}, "dataset('new')", ["new/rates.csv"]),
        ({"notes.md": ""}, "open('notes.md')", ["notes.md"]),
        ({"other.json": FILES["study.json"]}, "", []),
        ({"other.json": FILES["study.json"]}, "open('other.json')", ["other.json"]),
        ({"rates.json": "[1]"}, "", []),
    ]:
        with case_folder(subtests, tmp_path, (files, model, counts)) as here:
            before = FILES | {"model.py": MODEL.replace("total = scale", f"{model or 'pass'}\n    total = scale")}
            assert of_model(here, before, before | files) == counts


def test_parameter_sets_that_other_data_names_count(tmp_path: Path) -> None:
    before = FILES | {"config.yaml": "cases: sets.csv\n"}
    assert of_model(tmp_path, before, before | {"sets.csv": "beta\n2\n"}) == ["sets.csv"]


@pytest.mark.parametrize("model", ["library.walk:run", "mops_functions:run"])
def test_a_model_without_a_file_in_the_project_may_use_every_file(tmp_path: Path, model: str) -> None:
    spec = ModelSpec(model, "baseline", SPEC.targets, None)
    assert of_model(tmp_path, FILES, FILES | {"submit.py": ""}, spec) == ["submit.py"]


def test_a_file_that_mopsignore_leaves_out_does_not_count(tmp_path: Path) -> None:
    for folder in ("before", "now"):
        for name, text in FILES.items():
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_text(text)
    (tmp_path / "now" / ".mopsignore").write_text("rates.csv\n")
    (tmp_path / "now" / "helper.py").unlink()
    difference = Difference(tmp_path / "before", pack(tmp_path / "now"), tmp_path / "now", SPEC, SPEC.targets)
    assert difference.of_model(tmp_path / "now") == ["helper.py"]
    assert difference.of_model() == ["helper.py", "rates.csv"]
