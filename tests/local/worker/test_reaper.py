"""Subprocesses that a model leaves, even in new sessions, end with the process that ran the simulation."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pool_lab import SEEN, PoolLab, values

import processes
from mops.child.channel import Channel, Message
from mops.system.process_tree import children_of
from mops.system.signals import STOP_SIGNALS
from mops.task import TaskResult
from mops.worker.processes import Process, Reaper
from mops.worker.reaper_main import _Reaper
from waiting import until

NO_FOLDER = Path("/no/such/folder")
# Starts a program in a new session and with an empty environment, and a daemon by a double fork without exec. Neither
# is in the process group of the simulation, and the daemon is not its child.
STARTS = """
import os, subprocess, sys, time
from pathlib import Path

def note(pid):
    with (HERE / "pids").open("a") as file:
        file.write(f"{pid}\\n")

def daemonize():
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    note(os.getpid())
    time.sleep(600)
    os._exit(0)

def start():
    before = len((HERE / "pids").read_text().split()) if (HERE / "pids").exists() else 0
    note(subprocess.Popen(["sleep", "600"], env={}, start_new_session=True).pid)
    daemonize()
    while len((HERE / "pids").read_text().split()) < before + 2:
        time.sleep(0.01)
"""
WAYS = """
def run(p, s):
    start()
    if p["then"] == "hangs":
        time.sleep(600)
    if p["then"] == "takes":
        held = b"x" * (600 << 20)
        time.sleep(600)
    if p["then"] == "dies":
        os.abort()
    return {"x": s}
"""


def noted(folder: Path) -> list[int]:
    file = folder / "pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if processes.alive(pid)]


@pytest.fixture(autouse=True)
def _leave_none(tmp_path: Path) -> Iterator[None]:
    """Kill the daemons of a failed test, which would sleep for ten minutes."""
    yield
    for pid in alive(noted(tmp_path)):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_subprocesses_of_a_simulation_end_with_its_process_however_it_ends(lab: PoolLab, start: str) -> None:
    """Regression: processes in new sessions survived a timeout, an `oom` and a crash, until the machine was full."""
    pool = lab.pool(STARTS + WAYS, start=start, retries=0, timeout_s=5.0, memory_bytes=500 << 20)
    result = lab.run(pool, [{"then": then} for then in ("dies", "takes", "hangs", "returns")])
    assert [failure.reason for failure in result.failures] == ["crashed", "oom", "timeout"]
    pids = noted(lab.folder)
    assert len(pids) == 8
    assert alive(pids[:6]) == []
    assert alive(pids[6:]) == pids[6:], "like a module's globals: a simulation may leave a server for the next one"
    pool.close()
    assert alive(pids) == []


def test_a_replaced_child_leaves_no_process(lab: PoolLab) -> None:
    lab.run(lab.pool(STARTS + WAYS, tasks_per_child=1), [{"then": "returns"}])
    assert len(noted(lab.folder)) == 2
    assert alive(noted(lab.folder)) == []


PARENT = """
import sys
from mops.study.groups import Group
from mops.task import JobContext, TaskRequest
from mops.worker.pool import Pool

context = JobContext("job", "1", "bundle", "storage", "model:run", "baseline", (), None, slots=1)
request = TaskRequest(context, 1, (Group(0, "a", {"then": "hangs"}, (1,)),), None, 600.0, 1 << 40)
Pool(context, sys.argv[1], 1).run(request)
"""


def test_after_kill_9_of_the_runner_no_process_is_alive(lab: PoolLab) -> None:
    (lab.folder / "model.py").write_text(SEEN + STARTS + WAYS)
    with subprocess.Popen([sys.executable, "-c", PARENT, str(lab.folder)], start_new_session=True) as parent:
        until(lambda: len(noted(lab.folder)) == 2, 60)
        below = [process.pid for process in psutil.Process(parent.pid).children(recursive=True)]
        assert set(noted(lab.folder)) <= set(below), "they stay below, whatever session they are in"
        os.killpg(parent.pid, signal.SIGKILL)
    until(lambda: not alive(below))


def test_processes_of_the_models_import_stay_for_its_simulations(lab: PoolLab) -> None:
    code = (
        STARTS + "\nstart()\n\ndef run(p, s):\n    if p['dies']:\n        os.abort()\n"
        "    return {'x': [int(line) for line in (HERE / 'pids').read_text().split()]}\n"
    )
    pool = lab.pool(code, retries=0, start="fork")
    result = lab.run(pool, [{"dies": True}, {"dies": False}])
    assert len(result.failures) == 1
    pids = values(result, "x")[1, 0]
    assert alive(pids)[-2:] == pids[-2:], "each process has imported the model"
    pool.close()
    assert alive(pids) == []


def test_processes_whose_template_was_killed_finish_with_a_known_exit_code(lab: PoolLab) -> None:
    """The reaper kills the orphans of a dead process, but the orphans of a template are the child processes."""
    code = (
        "import os, time\nfrom pathlib import Path\n\ndef run(p, s):\n    (HERE / f'in-{p[\"a\"]}').touch()\n"
        "    while not (HERE / f'go-{p[\"a\"]}').exists():\n        time.sleep(0.01)\n"
        "    if p['a'] == 'dies':\n        os._exit(7)\n    return {'x': s}\n"
    )
    pool = lab.pool(code, slots=3, retries=0)
    pool.check()
    got: dict[str, TaskResult] = {}

    def run(what: str) -> threading.Thread:
        thread = threading.Thread(target=lambda: got.__setitem__(what, lab.run(pool, [{"a": what}])), daemon=True)
        thread.start()
        until((lab.folder / f"in-{what}").exists)
        return thread

    threads = {what: run(what) for what in ("lives", "dies")}
    assert pool.slots.template() is not None
    os.kill(pool.slots.template().pid, signal.SIGKILL)
    threads["other"] = run("other")  # with a separate template
    for what in ("dies", "other", "lives"):
        (lab.folder / f"go-{what}").touch()
        threads[what].join(60)
    assert [got[what].failures for what in ("lives", "other")] == [[], []]
    (failure,) = got["dies"].failures
    assert "ended with exit code 7" in failure.message


def test_a_reaper_that_is_killed_is_replaced(lab: PoolLab) -> None:
    pool = lab.pool("def run(p, s):\n    return {'x': s}\n", start="spawn", tasks_per_child=1)
    assert lab.run(pool, [{"a": 1}]).done == {0}
    assert pool._starter._reaper is not None
    os.kill(pool._starter._reaper.pid, signal.SIGKILL)
    assert lab.run(pool, [{"a": 2}]).done == {0}


@pytest.fixture
def reaper() -> Iterator[Reaper]:
    made = Reaper()
    yield made
    made.close()


def spawn(reaper: Reaper, *argv: str, env: dict[str, str] | None = None) -> int:
    with Path(os.devnull).open("wb") as null:
        return reaper.spawn([*argv], dict(os.environ) if env is None else env, [null.fileno()] * 4, NO_FOLDER)


def test_a_reaper_that_cannot_start_a_program_says_why_and_keeps_the_others(reaper: Reaper) -> None:
    """Regression: an error that was not an OSError ended the reaper, which killed the children in all other slots."""
    pid = spawn(reaper, "sleep", "600")
    with pytest.raises(FileNotFoundError):
        spawn(reaper, "/no/such/python", env={})
    with pytest.raises(OSError, match="null"):
        spawn(reaper, "true", env={"A": "\0"})
    assert alive([pid]) == [pid]
    assert reaper.lives


@pytest.mark.parametrize("n_free", range(6))
def test_a_reaper_without_free_descriptors_says_so_and_keeps_the_others(reaper: Reaper, n_free: int) -> None:
    """Regression: the error ended the reaper, which killed the children in all other slots."""
    pid = spawn(reaper, "sleep", "600")
    limits = resource.prlimit(reaper.pid, resource.RLIMIT_NOFILE)
    taken = {int(fd.name) for fd in Path(f"/proc/{reaper.pid}/fd").iterdir()}
    free = [number for number in range(len(taken) + n_free + 1) if number not in taken]
    resource.prlimit(reaper.pid, resource.RLIMIT_NOFILE, (free[n_free], limits[1]))
    with pytest.raises(OSError, match="Too many open files"):
        spawn(reaper, "true")
    resource.prlimit(reaper.pid, resource.RLIMIT_NOFILE, limits)
    assert reaper.lives
    assert alive([pid]) == [pid]
    other = spawn(reaper, "sh", "-c", "exit 7")
    until(lambda: not alive([other]))
    assert reaper.wait(other) == 7, "every message was taken for what it was"


def test_a_reaper_learns_exit_codes_even_if_its_worker_ignores_sigchld() -> None:
    """Regression: the kernel freed their pids at once, so a signal could have reached another process."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        reaper = Reaper()
    finally:
        signal.signal(signal.SIGCHLD, before)
    try:
        pid = spawn(reaper, "sh", "-c", "exit 7")
        until(lambda: not alive([pid]))
        assert reaper.wait(pid) == 7
    finally:
        reaper.close()


def orphan(reaper: Reaper, folder: Path, then: str) -> int:
    """Return a process whose parent has ended, so that the reaper is its new parent."""
    pid = spawn(reaper, "sh", "-c", f"({then}) & echo $! > {folder}/pid")
    until(lambda: not alive([pid]))
    return int((folder / "pid").read_text())


def test_an_ended_process_of_an_import_is_reaped(reaper: Reaper, tmp_path: Path) -> None:
    """Regression: each ended process stayed a zombie until the close of the pool."""
    left = orphan(reaper, tmp_path, "sleep 600")
    reaper.keep()
    other = spawn(reaper, "true")
    os.kill(left, signal.SIGKILL)
    until(lambda: not alive([left, other]))
    reaper.wait(other)
    assert not psutil.pid_exists(left)


def test_no_other_wait_takes_the_return_code_of_a_forked_process(
    reaper: Reaper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: of two processes that ended after their template, the second had no return code."""
    # It ends later than its parent: a shell takes the return code of a process that ends before it.
    forked = orphan(reaper, tmp_path, f"until [ -e {tmp_path}/end ]; do sleep 0.01; done; exit 7")
    reaper.forked(forked)
    (tmp_path / "end").touch()
    other = spawn(reaper, "true")
    until(lambda: not alive([forked, other]))
    ask = reaper._ask

    def ask_later(question: Message) -> Message:
        monkeypatch.undo()
        reaper.wait(other)  # as another thread does first
        return ask(question)

    monkeypatch.setattr(reaper, "_ask", ask_later)
    assert reaper.wait(forked) == 7


def test_a_reaped_process_gets_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may have its pid."""
    with subprocess.Popen(["true"]) as ended:
        pass
    asked: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: pytest.fail(f"signal {number} to {pid}"))
    with Path(os.devnull).open("rb", buffering=0) as output, pytest.raises(ProcessLookupError):
        Process(ended.pid, output, lambda pid: asked.append(pid))
    assert asked == [ended.pid], "the process counts as alive"


class Sweeps:
    """A reaper in this process and two leftover processes. No signal reaches the first one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refusal: type[OSError] | None):
        ours, self._theirs = socket.socketpair()
        self._reaper, self._others = _Reaper(Channel(ours)), children_of(os.getpid())
        self.lasting, self.leftover = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
        kill = os.kill

        def kill_others(pid: int, number: int) -> None:
            if pid != self.lasting.pid:
                kill(pid, number)
            elif refusal is not None:
                raise refusal

        monkeypatch.setattr(os, "kill", kill_others)

    def sweep(self, within_s: float) -> None:
        self._reaper.end_leftovers(but=self._others, within_s=within_s)

    def takes_all(self) -> bool:
        self.sweep(within_s=600)
        return not psutil.pid_exists(self.lasting.pid)


def test_a_process_of_another_user_is_kept_and_all_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: PermissionError ended the reaper, and with it the children in all other slots."""
    sweeps = Sweeps(monkeypatch, PermissionError)
    sweeps.sweep(within_s=600)
    monkeypatch.undo()
    assert alive([sweeps.lasting.pid, sweeps.leftover.pid]) == [sweeps.lasting.pid]
    until(sweeps.takes_all)  # as soon as a signal reaches the process


def test_only_one_sweep_waits_for_a_process_that_the_kernel_cannot_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the pool waited two more seconds for each ended process in turn."""
    sweeps = Sweeps(monkeypatch, None)
    sweeps.sweep(within_s=0.5)
    sweeps.sweep(within_s=600)
    monkeypatch.undo()
    assert alive([sweeps.lasting.pid, sweeps.leftover.pid]) == [sweeps.lasting.pid]
    until(sweeps.takes_all)


def test_a_reaper_survives_the_signals_that_stop_a_service(reaper: Reaper) -> None:
    """Regression: `systemctl stop` and `scancel` ended the reaper before it had killed leftover processes."""
    pid = spawn(reaper, "sleep", "600")
    for number in (signal.SIGINT, *STOP_SIGNALS):
        os.kill(reaper.pid, number)
    reaper.keep()
    assert reaper.lives
    os.kill(pid, signal.SIGTERM)
    assert reaper.wait(pid) == -signal.SIGTERM, "what it starts has the signals' own effects"


ORPHANS = """
import os, subprocess, psutil, time

def run(p, s):
    subprocess.run(["sh", "-c", "for i in $(seq 40); do true & done"])
    while not all(child.status() == "zombie" for child in psutil.Process().children()):
        time.sleep(0.01)
    return {"x": os.getpid()}
"""


@pytest.mark.parametrize("growth_bytes", [0, 1 << 30])
def test_a_process_with_many_zombies_is_replaced(lab: PoolLab, growth_bytes: int) -> None:
    """Regression: the zombies stayed while the process was alive, until the system had no free pid."""
    pool = lab.pool(ORPHANS, growth_bytes=growth_bytes)
    result = lab.run(pool, [{"a": a} for a in range(3)])
    assert len({pid for (pid,) in values(result, "x").values()}) == 3
    assert pool._starter._reaper is not None
    below = psutil.Process(pool._starter._reaper.pid).children(recursive=True)
    assert [process for process in below if process.status() == psutil.STATUS_ZOMBIE] == []


def test_a_resource_tracker_that_starts_slowly_removes_what_is_left(tmp_path: Path) -> None:
    """Regression: on a busy machine it was killed after 1 s, before it had removed the shared memory."""
    ours, theirs = socket.socketpair()
    others = children_of(os.getpid())
    code = "import sys, time; time.sleep(1.5); open(sys.argv[1], 'w').close()"
    with theirs, subprocess.Popen([sys.executable, "-c", code, tmp_path / "removed", "resource_tracker"]):
        _Reaper(Channel(ours)).end_leftovers(but=others, within_s=60)
    assert (tmp_path / "removed").exists()


def test_a_process_that_starts_its_program_may_become_a_resource_tracker() -> None:
    """Regression: its command line is empty for a moment, and it was killed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reaper = _Reaper(Channel(ours))
        for _ in range(100):
            with subprocess.Popen(["/bin/sh", "-c", "read line", "resource_tracker"], stdin=subprocess.PIPE) as process:
                assert reaper._is_spared(process.pid)


FORGETS = """
import multiprocessing, multiprocessing.shared_memory, os, tempfile, time

def run(p, s):
    block = multiprocessing.shared_memory.SharedMemory(create=True, size=1 << 20)
    folder = tempfile.mkdtemp()
    open(folder + "/x", "w").close()
    (HERE / "made").write_text(f"/dev/shm/{block.name}\\n{folder}")
    time.sleep(p["a"])
    return {"x": 1}
"""


@pytest.mark.parametrize(("seconds", "start"), [(0, "fork"), (600, "fork"), (600, "spawn")])
def test_shared_memory_and_temporary_files_of_a_process_are_removed(lab: PoolLab, seconds: int, start: str) -> None:
    """Regression: the tracker that removes them was killed too, and a small /dev/shm filled up."""
    pool = lab.pool(FORGETS, timeout_s=2.0, start=start)
    result = lab.run(pool, [{"a": seconds}])
    assert [failure.reason for failure in result.failures] == (["timeout"] if seconds else [])
    assert all("resource_tracker" not in failure.traceback for failure in result.failures)
    pool.close()
    memory, folder = (Path(line) for line in (lab.folder / "made").read_text().splitlines())
    assert not memory.exists()
    assert not folder.exists()


def test_files_of_a_killed_worker_are_removed_at_once(tmp_path: Path) -> None:
    """Regression: they stayed until another worker started on the machine, at least a minute later."""
    (tmp_path / "model.py").write_text(SEEN + FORGETS)
    code = (
        "import sys, pool_lab\nfrom pathlib import Path\nlab = pool_lab.PoolLab(Path(sys.argv[1]))\n"
        "pool = lab.pool(root=sys.argv[1])\nlab.run(pool, [{'a': 600}])\n"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    worker = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=env)
    until((tmp_path / "made").exists)
    until(lambda: len((tmp_path / "made").read_text().splitlines()) == 2)
    _, folder = (tmp_path / "made").read_text().splitlines()
    scratch = Path(folder).parents[1]
    assert scratch.name.startswith("mops-work-")
    worker.kill()
    worker.wait()
    until(lambda: not scratch.exists())


def test_each_process_has_a_temporary_folder_of_its_own(lab: PoolLab) -> None:
    code = (
        "import os, subprocess, tempfile\n\ndef run(p, s):\n"
        "    shown = subprocess.run(['sh', '-c', 'echo $TMPDIR'], capture_output=True, text=True).stdout.strip()\n"
        "    return {'x': [tempfile.gettempdir(), shown, os.environ['JOBLIB_TEMP_FOLDER']]}\n"
    )
    pool = lab.pool(code, tasks_per_child=1)
    found = [set(folders) for folders in values(lab.run(pool, [{"a": i} for i in range(2)]), "x").values()]
    assert [len(folders) for folders in found] == [1, 1]
    assert found[0] != found[1]


def test_a_reaper_that_does_not_answer_is_not_called_ended(reaper: Reaper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mops.worker.processes.ANSWER_SECONDS", 0.3)
    os.kill(reaper.pid, signal.SIGSTOP)
    for _ in range(2):
        with pytest.raises(ConnectionError, match="the reaper does not answer within"):
            reaper.spawn(["true"], {}, (), NO_FOLDER)
    assert not reaper.lives, "the pool takes another one"
