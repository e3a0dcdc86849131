"""The phases of runners that all pages share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mops.jobs.runners import Runners
from mops.k8s.job_phase import Phase
from mops.storage.files import Files


def test_a_change_during_a_read_is_read_at_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the end of the read delayed the next one, so old phases stayed."""
    answers = iter([Phase("failed"), Phase("pending"), Phase("running")])
    changes = [lambda: runners.forget()]

    def phases() -> dict[str, Phase]:
        found = {"waves": next(answers)}
        for change in changes:  # another thread, while Kubernetes answers
            change()
        changes.clear()
        return found

    monkeypatch.setattr("mops.jobs.runners.service_with", lambda *_, **__: SimpleNamespace(phases=phases))
    runners = Runners(Files.open("memory://runners"), local=False)
    runners.phases()
    assert runners.phases() == {"waves": Phase("pending")}
    assert runners.phases() == {"waves": Phase("pending")}, "known for a few seconds"
