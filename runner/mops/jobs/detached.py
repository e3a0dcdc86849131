"""Starts a runner of its own, which outlives the terminal, and waits until it has begun.

What the runner does is the command ``mops jobs run``; what it prints goes to a file in the user's state folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mops.errors import RunnerEnded, UsageError
from mops.settings import PREFIX
from mops.storage.files import Files
from mops.storage.joblog.log import JobLog
from mops.storage.paths import JobPaths
from mops.system.user_folders import USER_FOLDERS

_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class DetachedRunner:
    """A runner that runs by itself.

    Parameters
    ----------
    log
        The file with what it prints.
    """

    job: str
    pid: int
    log: str


def refuse_memory(files: Files) -> None:
    """Refuse a storage that only this process has.

    Raises
    ------
    UsageError
        It is in memory.
    """
    if files.url.startswith("memory:"):
        raise UsageError(
            "a detached runner cannot see what is in this process's memory",
            where=files.url,
            hint="choose a folder or a URL that outlives this process with --storage, or do not detach",
        )


def open_log(job: str) -> BinaryIO:
    """Open the file for what a job's runner prints, at its end: ``mops/<job>.log`` in the user's state folder.

    Raises
    ------
    UsageError
        It cannot be written.
    """
    path = _state_folder() / f"{job}.log"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as refused:
        raise UsageError(
            f"the detached runner's output cannot be written ({refused.strerror})",
            where=str(path),
            hint="make the folder writable, or name another one by XDG_STATE_HOME",
        ) from refused


def _state_folder() -> Path:
    try:
        return USER_FOLDERS.user_state_path
    except RuntimeError as bad:
        raise UsageError(
            "there is no home folder for the detached runner's output",
            where="HOME",
            hint="set XDG_STATE_HOME to an absolute path",
        ) from bad


@contextmanager
def launcher(files: Files, job: str) -> Iterator[Callable[[Mapping[str, str], str], DetachedRunner]]:
    """Have everything but the job, which the body creates; yield what starts its runner.

    This is a :data:`mops.jobs.launch.Launcher`.

    Raises
    ------
    UsageError
        The runner would not see this storage, or what it prints cannot be written.
    """
    refuse_memory(files)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
    with open_log(job) as log:
        yield lambda environment, asked: start(files, job, log, inherited | dict(environment), asked)


def start(files: Files, job: str, log: BinaryIO, environment: Mapping[str, str], asked: str) -> DetachedRunner:
    """Start a job's runner in a session of its own; return when it has claimed the job.

    Parameters
    ----------
    log
        From :func:`open_log`.
    environment
        The runner's.
    asked
        The request that it carries out: :class:`mops.storage.joblog.records.Asked`, as text.

    Raises
    ------
    RunnerEnded
        It ended before that.
    """
    job_log, began_at = JobLog(files, JobPaths(job)), log.tell()
    command = ["jobs", "run", job, "--storage", files.url, "--asked", asked]
    attempt = job_log.read().attempt
    started: list[subprocess.Popen[bytes]] = []
    try:
        with _interrupts_held_back():
            process = subprocess.Popen(  # noqa: S603 - our own program, no shell
                # -P: a file of the working directory is not to shadow a module of ours.
                [sys.executable, "-P", "-m", "mops.cli.start", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                start_new_session=True,
            )
            started.append(process)
        _wait_for_claim(process, job_log, attempt, Path(log.name), began_at, job)
    except BaseException:  # Ctrl-C included: who is told of a fault is not to find a runner later
        for process in started:
            process.terminate()
        raise
    # In a program that lives on, somebody has to take note of the end, or a zombie stays.
    threading.Thread(target=process.wait, name="mops-detached", daemon=True).start()
    return DetachedRunner(job, process.pid, log.name)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Raise a Ctrl-C that comes in the body at its end: there is a process then, and it is known which.

    Not by blocking the signal: a process that is started inherits that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is interrupted
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def _wait_for_claim(
    process: subprocess.Popen[bytes], job_log: JobLog, attempt: int, path: Path, began_at: int, job: str
) -> None:
    while True:
        returncode = process.poll()
        if job_log.read().attempt > attempt:
            return
        if returncode is not None:
            said = path.read_bytes()[began_at:].decode(errors="replace")
            raise RunnerEnded(returncode, said, where=str(path), hint=f"when that is mended: mops jobs resume {job}")
        time.sleep(_LOOK_SECONDS)
