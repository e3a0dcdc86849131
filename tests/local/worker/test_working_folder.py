"""A simulation's working folder: the project is readable, new files are allowed, and mops removes them afterwards."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pool_lab import PoolLab, groups_of, request_for, values

from mops.child.working_folder import WorkingFolder, links_to
from mops.system.folders import make_read_only, remove, written_whole
from mops.task import TaskResult
from mops.worker.pool import Pool

WARM_CHILDREN = True


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a folder of data, read-only like a bundle."""
    root = tmp_path / "bundle"
    (root / "data").mkdir(parents=True)
    (root / "data" / "rates.csv").write_text("0.5\n")
    (root / "config.json").write_text("{}")
    return root


def pool_of(lab: PoolLab, project: Path, code: str, **fields: Any) -> Pool:
    (project / "model.py").write_text(code)
    make_read_only(project)
    return lab.pool(root=str(project), **fields)


def failures(result: TaskResult) -> list[str]:
    return [failure.message for failure in result.failures]


def content(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(root)): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in [root, *root.rglob("*")]
    }


SETS = [{"x": i} for i in range(8)]
COUNTS = """
from pathlib import Path

def run(params, seed):
    seen = {}
    for name in ("a.txt", "data/b.txt", "data/new/c.txt"):
        path = Path(name)
        path.parent.mkdir(exist_ok=True)
        seen[name] = len(path.read_text()) if path.exists() else 0
        with path.open("a") as file:
            file.write("x")
    return seen
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_simulation_does_not_see_files_of_another(lab: PoolLab, project: Path, start: str) -> None:
    """Regression: simulations ran in the bundle cache, so a counter in a file continued from one job to the next."""
    pool = pool_of(lab, project, COUNTS, start=start)
    before = content(project)
    for _ in range(2):
        result = lab.run(pool, SETS, 2)
        assert not result.failures
        for name in ("a.txt", "data/b.txt", "data/new/c.txt"):
            assert set(map(tuple, values(result, name).values())) == {(0,)}
    assert content(project) == before


def test_two_slots_do_not_share_a_folder(lab: PoolLab, project: Path) -> None:
    """Regression: two concurrent simulations wrote into the same file."""
    code = """
import time
from pathlib import Path

def run(params, seed):
    own = Path("mine.txt")
    own.write_text(str(params["x"]))
    Path(params["meeting"], str(params["x"])).touch()
    while len(list(Path(params["meeting"]).iterdir())) < 2:
        time.sleep(0.01)
    return {"x": int(own.read_text())}
"""
    meeting = project.parent / "meeting"
    meeting.mkdir()
    pool = pool_of(lab, project, code, slots=2)
    groups = groups_of([{"x": x, "meeting": str(meeting)} for x in range(2)], 1)
    with ThreadPoolExecutor() as threads:
        running = [
            threads.submit(pool.run, request_for(pool.context, (group,), number=group.index)) for group in groups
        ]
        results = [future.result() for future in running]
    assert [values(result, "x") for result in results] == [{(0, 0): [0]}, {(1, 0): [1]}]


def test_targets_do_not_see_files_of_simulations(lab: PoolLab, project: Path) -> None:
    code = """
from pathlib import Path

def run(params, seed):
    Path("out.txt").write_text("x")
    return {"x": 1}

def score(replicates):
    found = sum(Path(name).exists() for name in ("out.txt", "seen.txt"))
    Path("seen.txt").write_text("x")
    return found + len(Path("data/rates.csv").read_text())
"""
    result = lab.run(pool_of(lab, project, code, targets=("model:score", "model:score")), [{}], 2)
    assert [loss.loss for loss in result.losses] == [4.0, 4.0]


CHANGES = """
import os, shutil, subprocess, sys
from pathlib import Path

HERE = Path(__file__).parent

def by_link():
    open("data/rates.csv", "w")

def by_append():
    open("config.json", "a")

def by_file():
    open(HERE / "cache.json", "w")

def by_copy():
    shutil.copy("config.json", "run.json")
    open("run.json", "a")

def by_parent():
    open("../ours.txt", "w")

def by_program():
    subprocess.run([sys.executable, "-c", "open('config.json', 'w')"], check=True)

def by_replacing():
    Path("new.json").write_text("1")
    os.replace("new.json", "config.json")

def by_removing():
    shutil.rmtree("data")
    os.symlink("/tmp", "data")
    os.unlink("model.py")

def by_moving():
    os.rename("data", "moved")
    shutil.rmtree("../work", ignore_errors=True)

def by_content():
    shutil.copyfile("config.json", "run.json")
    open("run.json", "a")

def by_closing():
    os.mkdir("shut")
    Path("shut/file").touch()
    os.chmod("shut", 0)
    os.chmod("data", 0o500)

def run(params, seed):
    there = list(Path(".").rglob("*"))
    rates = Path("data/rates.csv").read_text()
    if params["way"]:
        globals()[params["way"]]()
    return {"there": len(there), "rates": rates}
"""


REFUSED = {
    "by_link": "data/rates.csv",
    "by_append": "config.json",
    "by_file": "cache.json",
    "by_copy": "run.json' (a copy keeps the mode of its source: use shutil.copyfile)",
    "by_parent": "ours.txt",
    "by_program": "exit status",
}
ALLOWED = ("by_replacing", "by_removing", "by_moving", "by_content", "by_closing")


def test_project_files_cannot_change_even_as_root(lab: PoolLab, project: Path) -> None:
    """File modes do not prevent root from writing through links into the files of the bundle."""
    pool = pool_of(lab, project, CHANGES)
    before = content(project)
    result = lab.run(pool, [{"way": way, "n": n} for n, way in enumerate(flatten([*REFUSED, *ALLOWED]))])
    assert [failure.group for failure in result.failures] == list(range(0, 2 * len(REFUSED), 2))
    for message, named in zip(failures(result), REFUSED.values(), strict=True):
        assert named in message
    assert "the project's files are read-only" in failures(result)[0]
    assert set(map(tuple, values(result, "there").values())) == {(4,)}
    assert set(map(tuple, values(result, "rates").values())) == {("0.5\n",)}
    assert content(project) == before


def flatten(ways: list[str]) -> list[str]:
    """Return each way, followed by a simulation that changes nothing."""
    return [way for name in ways for way in (name, "")]


LEAVES = """
import os, shutil, time
from pathlib import Path

def by_link(elsewhere):
    made = os.stat(".")
    shutil.rmtree("data")
    os.symlink(elsewhere, "data")
    os.utime(".", ns=(made.st_atime_ns, made.st_mtime_ns))

def by_link_for_all(elsewhere):
    os.chmod("..", 0o700)
    os.rename("../work", "../moved")
    os.symlink(elsewhere, "../work")

def by_copied_time(elsewhere):
    Path("state.txt").touch()
    shutil.copytree("data", ".", dirs_exist_ok=True)

def by_kept_time(elsewhere):
    made = os.stat(".")
    time.sleep(0.05)
    Path("state.txt").touch()
    os.utime(".", ns=(made.st_atime_ns, made.st_mtime_ns))

def by_mode(elsewhere):
    os.chmod("data", 0o500)

def run(params, seed):
    there = sorted(map(str, Path(".").rglob("*")))
    if params["way"]:
        globals()[params["way"]](params["elsewhere"])
    else:
        Path("data/new.txt").touch()
    return {"there": " ".join(there)}
"""


@pytest.mark.parametrize("way", ["by_link", "by_link_for_all", "by_copied_time", "by_kept_time", "by_mode"])
def test_the_folder_is_restored_after_any_change_of_times_or_links(lab: PoolLab, project: Path, way: str) -> None:
    """Regression: mops followed a link and removed files outside the job, and missed a file with a copied time."""
    elsewhere = project.parent / "elsewhere"
    (elsewhere / "data" / "deep").mkdir(parents=True)
    (elsewhere / "data" / "deep" / "precious.txt").write_text("years of work")
    before = content(elsewhere)
    pool = pool_of(lab, project, LEAVES)
    result = lab.run(pool, [{"way": each, "elsewhere": str(elsewhere)} for each in (way, "")])
    assert not result.failures
    there = ("config.json data data/rates.csv model.py",)
    assert set(map(tuple, values(result, "there").values())) == {there}
    assert content(elsewhere) == before


def test_a_folder_is_entered_only_while_it_is_the_working_directory_and_unchanged(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mops looks at relative paths. A folder like it, and a link in it, must not pass for it."""
    folder, other = (WorkingFolder(tmp_path / name, links_to(project)) for name in ("own", "other"))
    monkeypatch.chdir(tmp_path)
    for one in (folder, other):
        one.renew()
        assert not one.is_entered
    os.chdir(other.path)
    assert other.is_entered
    assert not folder.is_entered
    os.chdir(folder.path)
    assert folder.is_entered
    Path("data").rename("moved")
    Path("data").symlink_to("moved")
    assert not folder.is_entered
    folder.renew()
    assert folder.is_entered
    (folder.path / "data" / "new.txt").touch()
    assert not folder.is_entered
    folder.renew()
    shutil.rmtree(tmp_path / "own")
    assert not folder.is_entered
    folder.renew()
    assert not folder.is_entered
    os.chdir(folder.path)
    assert folder.is_entered


def test_written_files_are_not_searched_behind_a_link(tmp_path: Path) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for root in (project, elsewhere):
        (root / "data" / "deep").mkdir(parents=True)
    (elsewhere / "deep").mkdir()
    (elsewhere / "deep" / "precious.txt").touch()
    folder = WorkingFolder(tmp_path / "own", links_to(project))
    folder.renew()
    shutil.rmtree(folder.path / "data")
    (folder.path / "data").symlink_to(elsewhere)
    assert folder.written() == ["data"]


def test_files_of_the_import_are_readable_and_unchanged_in_every_simulation(lab: PoolLab, project: Path) -> None:
    code = """
import os
from pathlib import Path

os.makedirs("out", exist_ok=True)
Path("table.txt").write_text("imported")
os.makedirs("links", exist_ok=True)
Path("links/real.csv").touch()
os.symlink("real.csv", "links/latest.csv")
os.symlink("/does/not/exist", "links/broken.csv")
ABSOLUTE = Path("out").resolve()

def run(params, seed):
    n = len(os.listdir("out"))
    Path("out/mine.txt").touch()
    if params["x"] == 1:
        open("table.txt", "a")
    if params["x"] == 2:
        (ABSOLUTE / "ours.txt").touch()
    return {"n": n, "text": Path("table.txt").read_text(), "rates": (ABSOLUTE.parent / "data/rates.csv").read_text()}
"""
    result = lab.run(pool_of(lab, project, code), SETS[:4])
    assert [failure.group for failure in result.failures] == [1, 2]
    assert all(message.startswith("PermissionError") for message in failures(result))
    assert values(result, "n") == {(0, 0): [0], (3, 0): [0]}
    assert values(result, "text") == {(0, 0): ["imported"], (3, 0): ["imported"]}
    assert values(result, "rates") == {(0, 0): ["0.5\n"], (3, 0): ["0.5\n"]}


@pytest.mark.usefixtures("real_children")
def test_an_import_leaves_no_compiled_files_in_the_bundle(lab: PoolLab, project: Path) -> None:
    (project / "helper.py").write_text("X = 1\n")
    pool = pool_of(lab, project, "from helper import X\n\ndef run(params, seed):\n    return {'x': X}\n")
    assert values(lab.run(pool, [{}]), "x") == {(0, 0): [1]}
    assert not list(project.rglob("__pycache__"))


@pytest.mark.usefixtures("real_children")
def test_a_model_sees_the_command_line_of_a_script_without_arguments(lab: PoolLab, project: Path) -> None:
    """Regression: sys.argv had descriptor numbers of mops, so a model that parses arguments on import failed."""
    code = """
import argparse, sys

parser = argparse.ArgumentParser()
parser.add_argument("files", nargs="*")
FILES = parser.parse_args().files

def run(params, seed):
    return {"argv": " ".join(sys.argv), "files": len(FILES), "first": sys.path[0]}
"""
    result = lab.run(pool_of(lab, project, code), [{}])
    assert values(result, "argv") == {(0, 0): [str(project / "model.py")]}
    assert values(result, "first") == {(0, 0): [str(project)]}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder that no other test uses."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


WRITES = "from pathlib import Path\n\ndef run(p, s):\n    Path('out').mkdir()\n    return {'x': 1}\n"


@pytest.mark.usefixtures("real_children")
def test_a_child_and_a_pool_leave_no_folder(lab: PoolLab, project: Path, temporary: Path) -> None:
    dies = WRITES.replace("    return", "    if p['x'] == 1: import os; os._exit(3)\n    return")
    pool = pool_of(lab, project, dies, tasks_per_child=1, start="spawn", retries=0)
    assert [failure.reason for failure in lab.run(pool, SETS[:3]).failures] == ["crashed"]
    assert [list(folder.iterdir()) for folder in temporary.iterdir()] == [[]]
    pool.close()
    assert list(temporary.iterdir()) == []


def test_a_pool_makes_its_folder_again(lab: PoolLab, project: Path, temporary: Path) -> None:
    """Another program may remove it, and a child may have made it again by then."""
    pool = pool_of(lab, project, WRITES, tasks_per_child=1, start="spawn")
    for make in (lambda path: None, Path.mkdir):
        lab.run(pool, SETS[:1])
        (folder,) = temporary.iterdir()
        remove(folder)
        make(folder)
        assert values(lab.run(pool, SETS[:1]), "x") == {(0, 0): [1]}
        assert list(temporary.iterdir()) == [folder]
        fd = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):  # a lock keeps systemd-tmpfiles away
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)


def test_without_a_usable_temporary_folder_the_error_has_a_hint() -> None:
    """Regression: the error handler used the temporary folder again, and a bare FileNotFoundError was raised."""
    program = """
import resource
from mops.worker.processes import Scratch
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file can be written in any folder
Scratch().path
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"TMPDIR": "/mine"},
        capture_output=True,
        text=True,
        check=False,
    )
    last = ended.stderr.split("ClusterError: ")[-1]
    assert "cannot be made (No usable temporary directory" in last
    assert "/mine" in last
    assert "set TMPDIR" in last


def test_a_folder_is_lost_while_a_file_to_which_it_links_is_missing(tmp_path: Path) -> None:
    """Regression: a process that was forked between the removal and the repair took the damage for the normal state."""
    file = tmp_path / "data" / "rates.csv"
    file.parent.mkdir()
    file.write_text("1")
    of_template = WorkingFolder(tmp_path / "1", links_to(file.parent))
    file.unlink()
    of_fork = of_template.of(tmp_path / "2")
    for folder in (of_template, of_fork):
        folder.renew()
        assert folder.is_lost
    file.write_text("1")
    assert not of_template.is_lost
    assert not of_fork.is_lost


def test_two_writers_of_a_file_do_not_meet(tmp_path: Path) -> None:
    """Regression: two exports to the same folder wrote into the same partial file."""
    path = tmp_path / "d.csv"
    with written_whole(path) as slow:
        slow.write_text("slow")
        with written_whole(path) as quick:
            quick.write_text("quick")
        assert path.read_text() == "quick"
    assert path.read_text() == "slow"
    with pytest.raises(ZeroDivisionError), written_whole(path) as failed:
        failed.write_text(str(1 // 0))
    assert [one.name for one in tmp_path.iterdir()] == ["d.csv"]
