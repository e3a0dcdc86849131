"""The project, the storage and the runner processes of a system test."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from mops.jobs.job import Job, open_job
from mops.storage.joblog.log import JobLog
from mops.storage.joblog.records import Commit, LogView, Record, decode_record
from mops.storage.joblog.verify import verify
from mops.storage.paths import JobPaths, NamePaths
from mops.study.ids_and_seeds import param_id, replicate_seed
from programs import environment
from rows import Rows, serial_rows
from waiting import until
from warm import WarmProcess, warm

HERE = Path(__file__).parent
WILD = HERE.parents[1] / "models" / "wild"
MOPS = WARM = Path(sys.executable).with_name("mops")
PATIENCE_SECONDS = 90.0
"""The timeout for an expected event: far longer than necessary, because the machine may be busy."""

GONE_SECONDS = 30.0
"""The timeout for the end of a process; the simulations of these tests last longer."""

T = TypeVar("T")


def wait_for(what: Callable[[], T], *, patience_s: float = PATIENCE_SECONDS, of: Runner | None = None) -> T:
    """Poll until ``what()`` is true. If the time is up or the runner ``of`` ends, fail with its output."""

    def look() -> T:
        ended = of is not None and of.process.poll() is not None
        found = what()
        assert found or not ended, f"the runner ended with {of.process.returncode} meanwhile\n{of.said}"  # type: ignore[union-attr]
        return found

    return until(look, patience_s, said=lambda: of.said if of is not None else "")


@dataclass
class Runner:
    """A running mops command. Its process leads a session, as a shell's foreground job leads its group."""

    process: subprocess.Popen[bytes] | WarmProcess
    calls_file: Path
    marker: str
    stderr_file: Path
    env: dict[str, str]

    @property
    def said(self) -> str:
        """The text that the command has written to stderr so far."""
        return self.stderr_file.read_text(errors="replace")

    @property
    def calls(self) -> list[tuple[str, int, int]]:
        """The model's calls so far: parameters as JSON, seed, process id."""
        if not self.calls_file.exists():
            return []
        lines = self.calls_file.read_text().splitlines()
        return [(key, int(seed), int(pid)) for key, seed, pid in map(str.split, lines)]

    def wait(self, patience_s: float = PATIENCE_SECONDS) -> int:
        """Return the exit code."""
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {patience_s:g} s\n{self.said}") from None

    def signal(self, number: int, *, whole_group: bool = False) -> None:
        """Send a signal to the runner's process, or to its process group."""
        (os.killpg if whole_group else os.kill)(self.process.pid, number)

    def alive(self) -> dict[int, str]:
        """Return the processes of this command that are alive, found by an inherited variable: pid and command line."""
        found = dict(_with_marker(self.marker))
        if isinstance(self.process, WarmProcess) and self.process.poll() is None:
            found[self.process.pid] = " ".join(self.process.arguments)
        return found

    def children(self) -> list[int]:
        """Return the child processes without the template process."""
        return leaves([pid for pid, line in _with_marker(self.marker) if "mops.child.main" in line])

    def hold_after(self, n_calls: int) -> None:
        """Let only the first ``n_calls`` calls of the model finish."""
        hold_after(Path(self.env["MOPS_TEST_HOLD"]), n_calls)

    def let_go(self) -> None:
        """Release all held calls."""
        Path(self.env["MOPS_TEST_HOLD"]).unlink(missing_ok=True)

    def kill_all(self) -> None:
        """Kill all remaining processes at the end of a test."""
        for pid in self.alive():
            _kill(pid)
        self.process.wait()


def hold_after(path: Path, n_calls: int) -> None:
    """Write the file of the held model (project/held.py) atomically."""
    beside = path.with_suffix(".new")
    beside.write_text(str(n_calls))
    beside.replace(path)


def _with_marker(marker: str) -> Iterator[tuple[int, str]]:
    wanted = f"MOPS_TEST_MARKER={marker}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if wanted not in folder.joinpath("environ").read_bytes().split(b"\0"):
                continue
            line = folder.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # the process has ended, or belongs to another user
            continue
        yield int(folder.name), line


def leaves(pids: list[int]) -> list[int]:
    """Return the processes that have no child among these."""
    parents = {_parent(pid) for pid in pids}
    return [pid for pid in pids if pid not in parents]


def _parent(pid: int) -> int | None:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).ppid()
    return None


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@dataclass
class StudyLab:
    """A project folder with a study, and a storage, for one test."""

    folder: Path
    study: dict[str, Any] = field(default_factory=dict)
    runners: list[Runner] = field(default_factory=list)
    more_env: dict[str, str] = field(default_factory=dict)
    warm: bool = True
    """Whether commands start from a process that has imported mops. Their memory is then not that of a command."""

    def __post_init__(self) -> None:
        shutil.copytree(WILD, self.project)
        shutil.copytree(HERE / "project", self.project, dirs_exist_ok=True)

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def storage(self) -> Path:
        return self.folder / "storage"

    def write(self, model: str, parameter_sets: list[dict[str, Any]], **more: Any) -> Path:
        """Write the project's study.json."""
        self.study = {"model": model, "parameter_sets": parameter_sets, **more}
        path = self.project / "study.json"
        path.write_text(json.dumps(self.study))
        return path

    def start(
        self,
        *arguments: str,
        program: Sequence[str | Path] = (),
        stdin: int = subprocess.DEVNULL,
        **settings: object,
    ) -> Runner:
        """Start ``mops jobs ...``, or another program; settings are MODELOPS_JOB_ variables without that prefix."""
        program = program or (MOPS, "jobs")
        number = len(self.runners) + 1
        calls = self.folder / f"calls-{number}.txt"
        env = environment()
        env |= {
            "MODELOPS_STORAGE": str(self.storage),
            "MOPS_TEST_CALLS": str(calls),
            "MOPS_TEST_HOLD": str(self.folder / f"hold-{number}.txt"),
            "MOPS_TEST_MARKER": f"{self.folder.name}-{os.getpid()}-{time.monotonic_ns()}",
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            **self.more_env,
            "XDG_STATE_HOME": str(self.folder / "state"),
            **{f"MODELOPS_JOB_{name}": str(value) for name, value in settings.items() if name != "hold"},
        }
        if (hold := settings.get("hold")) is not None:
            Path(env["MOPS_TEST_HOLD"]).write_text(str(hold))
        stderr = self.folder / f"stderr-{number}.txt"
        process: subprocess.Popen[bytes] | WarmProcess
        with stderr.open("wb") as err, (self.folder / f"stdout-{number}.txt").open("wb") as out:
            is_warm = self.warm and stdin == subprocess.DEVNULL and program[0] in (WARM, sys.executable)
            if is_warm and not any(name.startswith("PYTHON") for name in self.more_env):
                process = warm().start([*map(str, program[1:]), *arguments], env, self.folder, out=out, err=err)
            else:
                process = subprocess.Popen(
                    [*program, *arguments],
                    stdin=stdin,
                    stdout=out,
                    stderr=err,
                    env=env,
                    cwd=self.folder,
                    start_new_session=True,
                )
        self.runners.append(Runner(process, calls, env["MOPS_TEST_MARKER"], stderr, env))
        return self.runners[-1]

    def submit(self, name: str = "job", **settings: object) -> Runner:
        """Start ``mops jobs submit``."""
        return self.start("submit", str(self.project / "study.json"), "--name", name, **settings)

    def resume(self, name: str = "job", *, take_over: bool = False, **settings: object) -> Runner:
        """Start ``mops jobs resume``."""
        return self.start("resume", name, *(["--take-over"] if take_over else []), **settings)

    def run(self, name: str = "job", *, exit_code: int = 0, **settings: object) -> Runner:
        """Submit a job and wait for its end."""
        runner = self.submit(name, **settings)
        assert runner.wait() == exit_code, runner.said
        return runner

    def job(self, name: str = "job") -> Job:
        return open_job(name, str(self.storage))

    def exists(self, name: str = "job") -> bool:
        return (self.storage / NamePaths(name).record).is_file()

    def paths(self, name: str = "job") -> JobPaths:
        """Return the paths of a job that exists."""
        return self.job(name).record.paths

    def view(self, name: str = "job") -> LogView:
        """Return the current view of the log."""
        return JobLog(self.job(name).files, self.paths(name)).read()

    def records(self, name: str = "job") -> list[Record]:
        """Return the log's records in their order."""
        paths = sorted((self.storage / self.paths(name).log).glob("*.json"))
        return [decode_record(path.read_bytes(), k, str(path)) for k, path in enumerate(paths, start=1)]

    def assert_sound(self, name: str = "job") -> None:
        """Verify the log and its parts, and check that no group is in two commits."""
        files = self.job(name).files
        assert verify(files, self.paths(name), len(self.study["parameter_sets"])) == []
        commits = [record for record in self.records(name) if isinstance(record, Commit)]
        groups = Counter(group for commit in commits for group in commit.ranges)
        assert set(groups.values()) <= {1}

    def called(self, runner: Runner) -> Counter[tuple[int, int]]:
        """Count a runner's calls of the model by (group, replicate)."""
        places = {
            seed: (group, replicate) for group, seeds in enumerate(self.seeds()) for replicate, seed in enumerate(seeds)
        }
        return Counter(places[seed] for _, seed, _ in runner.calls)

    def seeds(self) -> list[list[int]]:
        """Return each group's seeds."""
        n_replicates = self.study.get("n_replicates", 1)
        return [[replicate_seed(identity, i) for i in range(n_replicates)] for identity in self.ids()]

    def ids(self) -> list[str]:
        """Return each group's param_id."""
        return [param_id(params) for params in self.study["parameter_sets"]]

    def serial(self) -> Rows:
        """Run the study in one plain process."""
        return serial_rows(self.project / "study.json", self.folder / "serial")

    def assert_nothing_lives(self, runner: Runner, *, but: int | None = None) -> None:
        """Check that all processes of this command, but one, end soon, before any of them would end by itself."""

        def living() -> dict[int, str]:
            return {pid: line for pid, line in runner.alive().items() if pid != but}

        deadline = time.monotonic() + GONE_SECONDS
        while time.monotonic() < deadline and living():
            time.sleep(0.02)
        left = living()  # read after the deadline, because reading takes time
        assert not left, f"alive {GONE_SECONDS:g} s after the kill: {left}"


@contextmanager
def lab_in(folder: Path) -> Iterator[StudyLab]:
    """Yield a lab, and kill the processes that a failed test leaves."""
    lab = StudyLab(folder)
    try:
        yield lab
    finally:
        for runner in lab.runners:
            runner.kill_all()


def betas(n: int, **more: float) -> list[dict[str, float]]:
    """Return ``n`` parameter sets of the counted model."""
    return [{"beta": round(0.2 + 0.4 * i / n, 6), **more} for i in range(n)]
