"""Starts a detached runner, ``mops jobs run``, which outlives the terminal, and waits until it has claimed the job."""

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
from mops.storage.job_records import load_job
from mops.storage.joblog.log import JobLog
from mops.system.user_folders import state_path

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class DetachedRunner:
    """A runner in a detached process."""

    job: str
    pid: int
    log: str  # the file with its output


def open_log(job: str) -> BinaryIO:
    """Open the file for the output of a job's runner at its end: ``<job>.log`` in the user's folder for state."""
    path: Path | None = None
    try:
        path = state_path() / f"{job}.log"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as refused:
        raise UsageError(
            f"the detached runner's output cannot be written ({refused.strerror})",
            where=str(path or refused.filename),
            hint="make the folder writable, or set XDG_STATE_HOME to another folder",
        ) from refused


@contextmanager
def launcher(files: Files, job: str) -> Iterator[Callable[[Mapping[str, str], str], DetachedRunner]]:
    """Prepare a detached runner for a job, which the body creates; yield what starts it (a ``Launcher``)."""
    if files.url.startswith("memory:"):
        raise UsageError(
            "a detached runner cannot reach a storage in this process's memory",
            where=files.url,
            hint="use --storage with a folder or a URL",
        )
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
    inherited["TTY_COMPATIBLE"] = "0"  # or rich writes control codes into the log if FORCE_COLOR is set
    with open_log(job) as log:
        yield lambda environment, asked: start(files, job, log, inherited | dict(environment), asked)


def start(
    files: Files,
    job: str,
    log: BinaryIO,  # from `open_log`
    environment: Mapping[str, str],  # of the runner
    asked: str,  # the request that it carries out: `mops.storage.joblog.records.RunRequest`, as text
) -> DetachedRunner:
    """Start a job's runner in a new session; return when it has claimed the job, or raise RunnerEnded."""
    job_log, output_start = JobLog(files, load_job(files, job).paths), log.tell()
    command = ["jobs", "run", job, "--storage", files.url, "--asked", asked]
    attempt = job_log.read().attempt
    started: list[subprocess.Popen[bytes]] = []
    try:
        with _interrupts_delayed():
            process = subprocess.Popen(  # noqa: S603 - our own program, no shell
                # -P, so that no file of the working directory shadows one of our modules.
                [sys.executable, "-P", "-m", "mops.cli.start", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                start_new_session=True,
            )
            started.append(process)
        _wait_for_claim(process, job_log, attempt, Path(log.name), output_start, job)
    except BaseException:  # also Ctrl-C: after an error no runner may be left
        for process in started:
            process.terminate()
        raise
    # Without this thread, a program that keeps running would keep the ended runner as a zombie.
    threading.Thread(target=process.wait, name="mops-detached", daemon=True).start()
    return DetachedRunner(job, process.pid, log.name)


@contextmanager
def _interrupts_delayed() -> Iterator[None]:
    """Delay Ctrl-C until the end of the body, when the process that the body starts is known."""
    # This does not block the signal, because the new process would inherit that.
    if threading.current_thread() is not threading.main_thread():
        yield  # Ctrl-C interrupts the main thread only
        return
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        signal.raise_signal(signal.SIGINT)


def _wait_for_claim(
    process: subprocess.Popen[bytes], job_log: JobLog, last_attempt: int, output: Path, output_start: int, job: str
) -> None:
    while True:
        returncode = process.poll()  # before the log: a runner may claim and then end
        if job_log.read().attempt > last_attempt:
            return
        if returncode is not None:
            text = output.read_bytes()[output_start:].decode(errors="replace")
            hint = f"correct the cause, then continue the job: mops jobs resume {job}"
            raise RunnerEnded(returncode, text, where=str(output), hint=hint)
        time.sleep(_POLL_SECONDS)
