"""One life of a runner, from its children to its end: what submit and resume have in common."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from mops.driver.cluster import embedded, embedded_slots
from mops.driver.drive import GRACE_SECONDS, Runner
from mops.driver.joblog import collecting
from mops.driver.progress import Snapshot
from mops.settings import Settings
from mops.storage.files import Files
from mops.storage.jobs import JobRecord, load_groups
from mops.storage.log import By, JobLog
from mops.storage.paths import JobPaths
from mops.study.project import ModelSpec
from mops.worker.order import Context
from mops.worker.pool import Pool
from mops.worker.task import close_pool, pool_of

logger = logging.getLogger(__name__)


def context_of(job: str, root: str, spec: ModelSpec, settings: Settings) -> Context:
    """Return what the job's orders share."""
    return Context(
        job=job,
        root=root,
        model=spec.model,
        scenario=spec.scenario,
        targets=spec.targets,
        outputs=spec.outputs,
        slots=embedded_slots(settings),
        threads=settings.sim_threads,
        timeout_s=settings.sim_timeout,
        retries=settings.retries,
        # What the runner itself may hold (an open checkpoint and a queue) and as much again.
        held_bytes=4 * settings.checkpoint_bytes,
    )


@contextmanager
def children(context: Context, *, warm: bool = True) -> Iterator[Pool]:
    """Start the job's children, which import the model side by side; end them in any case."""
    pool = pool_of(context)
    try:
        if warm:
            pool.warm()
        yield pool
    finally:
        close_pool(context.job)


@dataclass(frozen=True)
class Attempt:
    """What a runner needs for one life.

    Parameters
    ----------
    create
        Called once the model is imported and before anything else is written: a new job's records.
    on_progress
        Called with a :class:`Snapshot` about four times a second.
    by
        Who claims: with ``auto``, a job that has ended stays so.
    """

    files: Files
    record: JobRecord
    context: Context
    settings: Settings
    create: Callable[[], None] = lambda: None
    on_progress: Callable[[Snapshot], None] = lambda _: None
    by: By = "person"

    def create_only(self) -> None:
        """Import the model and create the job, for a runner that is started by itself.

        Raises
        ------
        ModelError
            The model cannot be imported; nothing was written.
        """
        with children(self.context, warm=False) as pool:
            pool.check()
            self.create()

    def run(self) -> str:
        """Run until the job ends or is stopped; return the state.

        Raises
        ------
        ModelError
            The model cannot be imported; nothing was written.
        JobError
            The job is complete already.
        Superseded, StorageError, JobFailed
            As in :meth:`mops.driver.drive.Runner.run`.
        """
        with children(self.context) as pool, embedded(self.context.slots) as client:
            pool.check()
            self.create()
            log = JobLog(self.files, JobPaths(self.record.job), host=socket.gethostname())
            log.claim(self.by)
            groups = load_groups(self.files, self.record.job)
            with collecting() as text_log:
                runner = Runner(
                    client,
                    self.files,
                    self.record,
                    groups,
                    log,
                    self.context,
                    self.settings,
                    text_log,
                    on_progress=self.on_progress,
                )
                with stopping_on_signals(runner):
                    return runner.run()


@contextmanager
def stopping_on_signals(runner: Runner) -> Iterator[None]:
    """Let Ctrl-C (or SIGTERM) stop the runner in good order; a second one at once; a third without a commit.

    The third is for a storage that does not answer. Nothing that is committed is harmed by it: it is no worse than a
    kill, and the children end with this process. Only in the main thread: elsewhere (a notebook's worker thread)
    signals are the application's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = 0

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        name = signal.Signals(number).name
        if asked == 1:
            logger.warning("%s: running simulations get %g s, then what is finished is committed", name, GRACE_SECONDS)
            runner.stop(GRACE_SECONDS)
        elif asked == 2:
            logger.warning("%s again: simulations are ended, what is finished is committed", name)
            runner.stop(0.0)
        else:
            os._exit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
