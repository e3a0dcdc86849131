"""A simulation gives the same rows wherever it runs: forked or spawned, with any neighbours and predecessors."""

from __future__ import annotations

import random
import sqlite3
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import mops
from soak import spread

# What the import of a model makes, and what its simulations compute with that. Each has a state that a simulation
# changes: an offset, a generator, a cache, a setting of the process. Simulated alone, each gives the same rows.
MADE = {
    "descriptor": ("FD = os.open('lines', os.O_RDONLY)", "[os.lseek(FD, 8 * k, 0), int(os.read(FD, 8))][1]"),
    "unbuffered": ("RAW = open('lines', 'rb', buffering=0)", "[RAW.seek(8 * k), int(RAW.read(8))][1]"),
    "buffered": ("BUFFERED = open('lines', 'rb')", "[BUFFERED.seek(8 * k), int(BUFFERED.readline())][1]"),
    "text": ("TEXT = open('lines')", "[TEXT.seek(8 * k), int(TEXT.readline())][1]"),
    "zip": ("ZIP = zipfile.ZipFile('zip')", "len(ZIP.read(f'{k % 5}.txt'))"),
    "npz": ("NPZ = np.load('npz.npz')", "int(NPZ['ab'[k % 2]][k])"),
    "mapped": ("MAP = np.memmap('lines', dtype='u1', mode='r')", "int(MAP[8 * k : 8 * k + 8].sum())"),
    "private map": ("OWN = np.memmap('lines', dtype='u1', mode='c')", "int(OWN[k:].sum() % 1000)"),
    "database": (
        "DB = sqlite3.connect('sqlite')",
        "DB.execute('select j from t where i = ?', (k,)).fetchone()[0]",
    ),
    "seeded for the import": ("TABLE = np.random.default_rng(5).permutation(2000)", "int(TABLE[k])"),
    "global generators": ("np.random.seed(5), random.seed(5)", "[random.randrange(99), int(np.random.randint(99))]"),
    "shared value": ("VALUE = multiprocessing.Value('i', 0)", "[setattr(VALUE, 'value', k), work(), VALUE.value][2]"),
    "connection": (
        "A, B = socket.socketpair()",
        "[A.send(k.to_bytes(4, 'big')), work(), int.from_bytes(B.recv(4), 'big')][2]",
    ),
    "helper": (
        "HELPER = subprocess.Popen(['cat'], stdin=-1, stdout=-1)",
        "[HELPER.stdin.write(b'%8d' % k), HELPER.stdin.flush(), work(), int(HELPER.stdout.read(8))][3]",
    ),
    "temporary folder": (
        "FOLDER = Path(tempfile.mkdtemp())",
        "[(FOLDER / 'x').write_text(str(k)), work(), int((FOLDER / 'x').read_text())][2]",
    ),
    "cache": ("@functools.cache\ndef square(n):\n    return n * n", "square(k)"),
    "environment": ("", "[os.environ.get('K'), os.environ.update(K=str(k))][0]"),
    "rounding": ("", "[str(decimal.Decimal(k) / 7), setattr(decimal.getcontext(), 'prec', 3 + k % 5)][0]"),
    "float errors": ("", "[float(np.float64(k) / np.float64(0)), np.seterr(divide='raise')][0]"),
    "warnings": ("", "[warnings.warn('x'), warnings.simplefilter('error')][0]"),
    "umask": ("", "[os.umask(0o77), 0][0]"),
    "streams": ("", "[type(sys.stdout).__name__, setattr(sys, 'stdout', io.StringIO())][0]"),
    "mutated": ("", "[params.pop('a'), params.update(b=1)][0]"),
}
WAYS = [("auto", "2"), ("auto", "1"), ("auto", "8"), ("spawn", "1"), ("spawn", "8"), ("spawn", "2")]
"""How the processes start, and the number of slots. Without ``make soak``, only the first and the last."""

MODEL = """
import decimal, functools, io, multiprocessing, os, random, socket, sqlite3, subprocess, sys, tempfile, time, warnings
import zipfile
from pathlib import Path
import numpy as np
np.seterr(all="ignore")

def work():
    time.sleep(0.002)

{imports}

def run(params, seed):
    found = []
    for step in range(20):
        k = (seed + 7919 * step) % 2000
{reads}
    return {{"rows": {{"found": found}}}}
"""


def write_project(folder: Path, made: list[str]) -> None:
    (folder / "lines").write_text("".join(f"{i:07d}\n" for i in range(2000)))
    np.savez(folder / "npz.npz", a=np.arange(2000), b=np.arange(2000) ** 2)
    with zipfile.ZipFile(folder / "zip", "w") as file:
        for i in range(5):
            file.writestr(f"{i}.txt", f"{i:07d}\n" * (100 * i))
    with sqlite3.connect(folder / "sqlite") as database:
        database.execute("create table t (i integer primary key, j integer)")
        database.executemany("insert into t values (?, ?)", ((i, i * i) for i in range(2000)))
    database.close()
    imports = "\n".join(MADE[name][0] for name in made)
    # Without an import, a simulation changes its process: only its first step finds the original state.
    lines = (
        f"        if {bool(imported)} or not step: found.append(repr({read}))"
        for imported, read in (MADE[name] for name in made)
    )
    (folder / "model.py").write_text(MODEL.format(imports=imports, reads="\n".join(lines)))
    (folder / "mops.toml").touch()


def rows_of(folder: Path, name: str, **variables: str) -> list[tuple[object, ...]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for variable, value in variables.items():
            patch.setenv(f"MODELOPS_JOB_{variable}", value)
        sets = [{"a": i} for i in range(4)]
        job = mops.submit(model="model:run", sets=sets, replicates=2, name=name, storage="storage", local=True)
    assert len(job.failures()) == 0
    table = job.outputs("rows").to_arrow()
    columns = [table[column].to_pylist() for column in ("param_id", "replicate", "seed", "found")]
    return sorted(zip(*columns, strict=True), key=lambda row: row[:2])


@settings(max_examples=1, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@example(made=sorted(MADE), tasks_per_child=3)
@given(
    made=st.lists(st.sampled_from(sorted(MADE)), min_size=1, max_size=5, unique=True),
    tasks_per_child=st.integers(0, 7),
)
def test_random_imports_give_the_same_rows_forked_and_spawned(made: list[str], tasks_per_child: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_project(folder, made)
        alone = rows_of(folder, "alone", START="spawn", SLOTS="1", TASKS_PER_CHILD="1")
        for start, slots in spread(WAYS, 2):
            limit = str(random.Random(tasks_per_child).randint(1, 8)) if tasks_per_child else "0"
            found = rows_of(folder, f"{start}-{slots}", START=start, SLOTS=slots, TASKS_PER_CHILD=limit)
            assert found == alone, (start, slots, limit)


def test_a_submit_warns_once_of_a_generator_without_a_seed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "model.py").write_text(
        "import numpy as np\nRNG = np.random.default_rng()\n\n"
        "def run(params, seed):\n    return {'rows': {'found': [RNG.random()]}}\n"
    )
    (tmp_path / "mops.toml").touch()
    rows = rows_of(tmp_path, "job", START="auto", SLOTS="2", TASKS_PER_CHILD="3")
    assert len({found for *_, found in rows}) == len(rows) == 8
    said = (
        "job: importing the model makes a random generator without a seed (model.RNG); a run that draws from it cannot"
    )
    assert caplog.text.count(said) == 1
