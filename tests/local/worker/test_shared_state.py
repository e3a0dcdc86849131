"""What the import of a model leaves in its process, and whether child processes fork from that process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pool_lab import PoolLab, values

# Adds to `found` what a process reads; counts the imports; tells which process ran.
MODEL = """
import os
with (HERE / "imports").open("a") as file:
    file.write("x")
{imports}

def run(params, seed):
    found = {reads}
    return {{"found": [repr(found)], "pid": [os.getpid()]}}
"""

# What the import opens, and what a process then reads of it.
READ_FILES = {
    "a raw descriptor": (
        "RAW = os.open(HERE / 'text', os.O_RDONLY)\nos.read(RAW, 5)",
        "[os.read(RAW, 3), os.read(RAW, 3)]",
    ),
    "a raw descriptor of a removed file": (
        "os.link(HERE / 'text', HERE / 'link')\nLINK = os.open(HERE / 'link', os.O_RDONLY)\nos.remove(HERE / 'link')",
        "os.read(LINK, 3)",
    ),
    "an unbuffered file": ("UNBUFFERED = open(HERE / 'text', 'rb', buffering=0)", "UNBUFFERED.read(7)"),
    "a buffered file": (
        "BUFFERED = open(HERE / 'text', 'rb')\nBUFFERED.read(3)",
        "[BUFFERED.read(3), BUFFERED.seek(9000), BUFFERED.read(4)]",
    ),
    "a text file": ("TEXT = open(HERE / 'text')\nTEXT.readline()", "[TEXT.readline() for _ in range(1000)][-1]"),
    "a zip archive": (
        "import zipfile\nZIP = zipfile.ZipFile(HERE / 'zip')",
        "[ZIP.read(name)[-9:] for name in ZIP.namelist()]",
    ),
    "arrays in an npz file": (
        "import numpy as np\nNPZ = np.load(HERE / 'npz.npz')",
        "[NPZ[name].sum() for name in 'ab']",
    ),
    "a memory-mapped array": (
        "MAPPED = np.memmap(HERE / 'text', dtype='u1', mode='r')",
        "[MAPPED[:9].sum(), MAPPED[-9:].sum()]",
    ),
    "an HDF5 file": ("import h5py\nH5 = h5py.File(HERE / 'h5', 'r')", "H5['x'][:].sum()"),
    "a NetCDF 3 file": (
        "from scipy.io import netcdf_file\nNETCDF = netcdf_file(HERE / 'nc', 'r', mmap=False)",
        "NETCDF.variables['x'][:].sum()",
    ),
    "a database": (
        "import sqlite3\nDB = sqlite3.connect(f'file:{HERE}/sqlite?mode=ro', uri=True).execute('select i from t')",
        "[DB.fetchmany(3), DB.connection.execute('select sum(i) from t').fetchall()]",
    ),
    "a folder": ("FOLDER = os.open(HERE, os.O_RDONLY)", "len(os.listdir(FOLDER)) > 3"),
}


@pytest.fixture
def files(tmp_path: Path) -> None:
    import sqlite3
    import zipfile

    import h5py
    import numpy as np
    from scipy.io import netcdf_file

    (tmp_path / "text").write_text("".join(f"{i:07d}\n" for i in range(20_000)))
    np.savez(tmp_path / "npz.npz", a=np.arange(50_000), b=np.ones(50_000))
    with zipfile.ZipFile(tmp_path / "zip", "w") as file:
        for i in range(5):
            file.writestr(f"{i}.txt", f"{i:07d}\n" * 5000)
    with h5py.File(tmp_path / "h5", "w") as file:
        file.create_dataset("x", data=np.arange(50_000), chunks=(1000,), compression="gzip")
    with netcdf_file(tmp_path / "nc", "w") as file:
        file.createDimension("x", 1000)
        file.createVariable("x", "i", ("x",))[:] = np.arange(1000)
    database = sqlite3.connect(tmp_path / "sqlite")
    database.execute("create table t (i integer)")
    database.executemany("insert into t values (?)", ((i,) for i in range(1000)))
    database.commit()
    database.close()


def ran(lab: PoolLab, imports: str, reads: str = "0", **fields: object) -> tuple[list[str], int, str]:
    """Run two simulations in two processes: what each found, the number of imports, and how processes start."""
    pool = lab.pool(MODEL.format(imports=imports, reads=reads), tasks_per_child=1, **fields)
    result = lab.run(pool, [{"a": i} for i in range(2)])
    assert not result.failures
    assert len({pid for (pid,) in values(result, "pid").values()}) == 2
    return (
        [found for (found,) in values(result, "found").values()],
        len((lab.folder / "imports").read_text()),
        result.children,
    )


@pytest.mark.usefixtures("files")
def test_each_forked_process_reads_a_file_of_the_import_as_if_it_had_opened_it(lab: PoolLab) -> None:
    """Regression: forked processes shared one offset, so simulations read each other's rows and succeeded."""
    imports = "\n".join(opens for opens, _ in READ_FILES.values())
    reads = "".join(f"{what!r}: {reads}, " for what, (_, reads) in READ_FILES.items())
    found, n_imports, how = ran(lab, imports, f"{{{reads}}}")
    assert n_imports == 1, how
    (lab.folder / "imports").unlink()
    alone, n_imports, _ = ran(lab, imports, f"{{{reads}}}", start="spawn")
    assert n_imports == 2
    assert [*found] == [*alone]
    assert len(set(found)) == 1


HARMLESS = {
    "a log file": "import logging\nlogging.basicConfig(filename=HERE / 'log')\nlogging.warning('x')",
    "a source of random bytes": "F = open('/dev/urandom', 'rb')",
    "generators with a seed": "from numpy.random import *\nF = default_rng(5), RandomState(5), PCG64(5)",
    "a generator of the system": "import random\nF = random.SystemRandom()",
    "the global generators": "import random, numpy\nrandom.random(), numpy.random.random()",
    "temporary files that are removed": "import tempfile\nwith tempfile.TemporaryDirectory() as F: pass",
    "private maps of memory": "import numpy as np\nF = np.memmap(HERE / 'model.py', dtype='u1', mode='c')",
    "a process that has ended": "import subprocess\nsubprocess.run(['true'], check=True)",
    "a database in memory": "import sqlite3\nF = sqlite3.connect(':memory:')",
    "joblib": "import joblib",
    "a lock": "import threading\nF = threading.Lock(), threading.local(), threading.Event()",
}


def test_processes_fork_if_they_share_nothing(lab: PoolLab) -> None:
    _, n_imports, how = ran(lab, "\n".join(HARMLESS.values()))
    assert n_imports == 1, how


REFUSED = {
    "a file for writing": ("F = open(HERE / 'out', 'w')", "opens {here}/out for writing"),
    "a temporary file": ("import tempfile\nF = tempfile.TemporaryFile()", "for writing"),
    "a temporary folder": ("import tempfile\nF = tempfile.mkdtemp(prefix='solver-')", "makes temporary files: solver-"),
    "a connection": ("import socket\nF = socket.socketpair()", "opens a connection"),
    "a pipe": ("F = os.pipe()", "opens a pipe"),
    "an event loop": ("import asyncio\nF = asyncio.new_event_loop()", "opens a connection, an event loop"),
    "a process": ("import subprocess\nF = subprocess.Popen(['sleep', '600'])", "starts processes: sleep 600"),
    "a manager": (
        "import multiprocessing\nF = multiprocessing.Manager().dict()",
        "starts processes: a copy of this one",
    ),
    "a value that processes share": (
        "import multiprocessing\nF = multiprocessing.Value('i', 0)",
        "pym-",
    ),
    "memory that processes share": (
        "import mmap\nF = mmap.mmap(-1, 4096)",
        "maps shared memory for writing: /dev/zero",
    ),
    "a writable memory-mapped array": (
        "import numpy as np\nF = np.memmap(HERE / 'map', dtype='u1', mode='w+', shape=9)",
        "{here}/map",
    ),
    "a thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True, name='waits').start()",
        "a fork would leave behind: waits",
    ),
    "a generator without a seed": ("import numpy as np\nRNG = np.random.default_rng()", "model.RNG"),
    "an old generator without a seed": ("import numpy as np\nRNG = np.random.RandomState()", "model.RNG"),
    "a duplicated descriptor": (
        "F = open(HERE / 'model.py')\nG = os.dup(F.fileno())",
        "opens {here}/model.py (two descriptors with one offset)",
    ),
    "a sequence of seeds without a seed": ("import numpy as np\nSEEDS = np.random.SeedSequence()", "model.SEEDS"),
    "a bit generator without a seed": ("import numpy as np\nBITS = np.random.PCG64()", "model.BITS"),
    "a generator inside of an object": (
        "import numpy as np\nclass Town: pass\nTOWN = Town()\nTOWN.rng = np.random.default_rng()",
        "a Generator inside of an object",
    ),
    "a generator of the standard library": ("import random\nRNG = random.Random()", "model.RNG"),
}


# Forks for each case, imports a model that makes what processes would share, and prints what mops finds.
FINDS = """
import json, os, signal, sys, tempfile, types
from pathlib import Path
from mops.child.shared_state import BeforeImport

found = {}
for what, imports in json.load(sys.stdin).items():
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory() as temporary:
        if (pid := os.fork()) == 0:
            os.setsid()
            tempfile.tempdir = temporary
            model = sys.modules["model"] = types.ModuleType("model")
            model.os, model.HERE = os, Path(sys.argv[1])
            before = BeforeImport()
            exec(imports, vars(model))
            os.write(writing, before.shared(Path(temporary)).refusal.encode())
            os._exit(0)
        os.close(writing)
        found[what] = os.read(reading, 4096).decode()
        os.close(reading)
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
print(json.dumps(found))
"""


def test_what_processes_would_share_is_found_and_named(tmp_path: Path) -> None:
    """Regression: simulations got answers to the questions of others, or drew the same numbers, and succeeded."""
    (tmp_path / "model.py").touch()
    asked = json.dumps({what: imports for what, (imports, _) in REFUSED.items()})
    line = [sys.executable, "-c", FINDS, str(tmp_path)]
    ran = subprocess.run(line, input=asked, capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(ran.stdout)
    reasons = {what: reason.format(here=tmp_path) for what, (_, reason) in REFUSED.items()}
    assert {what: found[what] for what, reason in reasons.items() if reason not in found[what]} == {}
    assert {why.partition(" ")[0] for why in found.values()} == {"importing"}


def test_each_process_imports_the_model_if_processes_would_share_something(lab: PoolLab) -> None:
    _, n_imports, how = ran(lab, "F = open(HERE / 'out', 'w')")
    assert n_imports == 2
    assert f"each import the model: importing the model opens {lab.folder}/out for writing" in how


def test_parallel_code_of_numba_that_the_import_runs_is_not_forked(lab: PoolLab) -> None:
    """Regression: with one thread no thread is seen, and the OpenMP layer ends each forked process."""
    imports = (
        "import numba, numpy as np\n@numba.njit(parallel=True)\ndef total(a):\n    s = 0.0\n"
        "    for i in numba.prange(a.size):\n        s += a[i]\n    return s\ntotal(np.ones(10))"
    )
    pool = lab.pool(MODEL.format(imports=imports, reads="total(np.ones(10))"))
    result = lab.run(pool, [{"a": 1}])
    assert not result.failures
    assert "each import the model" in result.children


def test_draws_of_processes_differ(lab: PoolLab) -> None:
    """Regression: forked processes drew the same numbers, so replicates were equal, without a sign."""
    found, _, _ = ran(lab, "import numpy as np\nRNG = np.random.default_rng()", "RNG.random()")
    assert len(set(found)) == 2


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_check_finds_a_generator_without_a_seed(lab: PoolLab, start: str) -> None:
    code = "import numpy as np\nRNG = np.random.default_rng()\n\ndef run(p, s):\n    return {'x': 1}\n"
    pool = lab.pool(code, start=start)
    pool.check()
    assert pool.unseeded == ["model.RNG"]
