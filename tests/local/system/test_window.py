"""The window bounds memory. The test looks for each task that is in memory."""

from __future__ import annotations

import logging
import weakref
from typing import Any

import pytest
from study_lab import StudyLab, betas

from mops.attempt.attempt import job_context, started_children
from mops.attempt.claimed_job import ClaimedJob
from mops.attempt.main_loop import MainLoop
from mops.attempt.text_log import collecting
from mops.cluster.embedded import EmbeddedCluster, start_embedded
from mops.jobs.prepare import make_record, prepare
from mops.settings import Settings
from mops.storage.files import Files
from mops.storage.job_options import NO_OPTIONS
from mops.storage.job_records import create_job
from mops.storage.joblog.log import JobLog
from mops.storage.params_file import encode_groups, load_groups
from mops.task import TaskRequest

WARM_CHILDREN = True
SLOTS, BATCH = 2, 12


class Watch:
    """Records the groups of tasks that are in memory, each time the runner sends a task."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.most_groups = 0
        self._sent: weakref.WeakSet[Any] = weakref.WeakSet()
        self._submit = cluster.submit

    def submit(self, task: Any, request: TaskRequest, given: Any, avoid: frozenset[str]) -> Any:
        """Stand in for the cluster's method, which it calls."""
        sent = self._submit(task, request, given, avoid)
        self._sent.add(sent)
        self.most_groups = max(self.most_groups, len({group for groups in self.live().values() for group in groups}))
        return sent

    def live(self) -> dict[str, tuple[int, ...]]:
        """Return the groups of each task that the cluster keeps, by its key."""
        requests = [request for sent in list(self._sent) if (request := sent.request) is not None]
        return {request.key: tuple(group.index for group in request.groups) for request in requests}


@pytest.mark.parametrize("checkpoint_seconds", [0.0, 30.0])
def test_groups_in_memory_never_exceed_the_batch(
    lab: StudyLab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, checkpoint_seconds: float
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(lab.folder / "cache"))
    caplog.set_level(logging.DEBUG, "mops")
    n_groups = 5 * BATCH
    prepared = prepare(lab.write("counted:simulate", betas(n_groups, sleep=0.005), targets=["scores:order"]))
    settings = Settings(batch_size=BATCH, slots=SLOTS, checkpoint_seconds=checkpoint_seconds, task_seconds=0.02)
    drained = (
        f"job: batch {n_groups // BATCH} is drained"  # a checkpoint may complete several groups; the check is for all
    )
    files = Files.open(str(lab.storage))
    record = make_record("job", prepared, NO_OPTIONS)
    context = job_context("job", prepared.bundle.digest, files.url, prepared.spec, settings, job_id=record.id)
    create_job(files, record, prepared.bundle, prepared.text, encode_groups(prepared.study.groups, files.spool()))
    with started_children(context), start_embedded(context.run_id, SLOTS) as cluster, collecting() as text:
        watch = Watch(cluster)
        monkeypatch.setattr(cluster, "submit", watch.submit)
        log = JobLog(files, record.paths)
        log.claim(by="person")
        job = ClaimedJob(files, record, load_groups(files, record.paths), log, context, settings)
        runner = MainLoop(cluster, job, text)
        drained_before: list[bool] = []
        finish = cluster.finish
        monkeypatch.setattr(cluster, "finish", lambda: (drained_before.append(drained in caplog.text), finish()))
        assert runner.run() == "succeeded"
    assert drained_before[0]  # the children are checked before they end
    assert not [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert BATCH / 2 < watch.most_groups <= BATCH
    assert watch.live() == {}
