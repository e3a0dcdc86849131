"""What a job says if few of its groups may be in flight."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from claimed_jobs import claimed_job, groups_of
from mops.attempt.concurrency import Concurrency
from mops.cluster.shares import ClusterCapacity


def said(
    caplog: pytest.LogCaptureFixture, batch_size: int | None, slots: list[int], n_groups: int = 1_000
) -> list[str]:
    """Return the warnings of a job while its cluster has these slots, one after the other."""
    caplog.clear()
    cluster: Any = SimpleNamespace(slots=slots[0], workers=1, timeout_s=300.0, other_jobs=lambda request: [])
    url = f"memory://idle-{batch_size}-{'-'.join(map(str, slots))}-{n_groups}"
    job = claimed_job(url, groups_of([1] * n_groups), batch_size=batch_size)
    capacity = ClusterCapacity(cluster, job.settings, job.name)
    concurrency = Concurrency(job, cluster, capacity, pods=None)
    for cluster.slots in slots:
        assert concurrency.limit(capacity.share(1, useful_slots=1)).slots == cluster.slots
    return [record.message for record in caplog.records if record.levelname == "WARNING"]


def test_a_batch_size_that_idles_slots_is_a_warning_and_again_when_the_slots_have_doubled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    what = "job: MODELOPS_JOB_BATCH_SIZE=30 is too small for %d slots; set at least %d, or leave it out"
    assert said(caplog, 30, [8, 15]) == []
    assert said(caplog, 30, [16, 20, 4, 31, 32, 63]) == [what % (16, 32), what % (32, 64)]
    assert said(caplog, None, [8, 100]) == []
    assert said(caplog, 30, [16], n_groups=20) == [], "the job has no more"
