"""A study whose model uses too much memory finishes within its memory, and reports the sets that cannot run."""

from __future__ import annotations

import json
import re
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from study_lab import StudyLab, wait_for

import mops
from mops.jobs import submit
from mops.storage.params_file import encode_groups

MIB = 1 << 20
LIMIT = 400
N, GREEDY, LARGE = 200, 77, 111
TAKES = """
import time

def run(params, seed):
    held = []
    for _ in range(params["mib"] // 8):
        held.append(b"x" * (8 << 20))
        time.sleep(0.05 if params["mib"] > 8 else 0.008)
    return {"x": [seed]}
"""


@pytest.fixture
def lab(lab: StudyLab) -> StudyLab:
    lab.warm = False  # the limits below are for the memory of a command that has imported only what it needs
    return lab


@pytest.fixture
def study(lab: StudyLab) -> StudyLab:
    lab.write("takes:run", [{"mib": {GREEDY: 1200, LARGE: 600}.get(i, 8), "i": i} for i in range(N)])
    (lab.project / "takes.py").write_text(TAKES)
    return lab


@pytest.mark.timeout(180)
def test_a_greedy_set_is_oom_and_every_other_set_succeeds_one_of_them_alone(study: StudyLab) -> None:
    runner = study.run(exit_code=3, SIM_MEMORY=f"{LIMIT}MiB", SLOTS=2)
    job = study.job()
    assert job.status().state == "partial"
    (failure,) = job.failures().to_arrow().to_pylist()
    # Alone on the worker, the set had the memory of both slots, which was also too little.
    assert (failure["group"], failure["reason"], failure["attempts"]) == (GREEDY, "oom", 2)
    assert (failure["limit_bytes"], failure["peak_at_least"]) == (2 * LIMIT * MIB, True)
    assert 1 < failure["peak_bytes"] / failure["limit_bytes"] <= 1.25
    assert sorted(job.outputs("output").to_arrow()["group"].to_pylist()) == [i for i in range(N) if i != GREEDY]
    used = re.search(rf"group {LARGE} ran alone on its worker and used (\d+) MiB", job.logs())
    assert used is not None
    assert 500 < int(used[1]) < 2 * LIMIT
    assert "retrying at the end of the job, alone on its worker" in runner.said
    assert "window:" not in runner.said, "the window is not halved for it"
    study.assert_sound()


@pytest.mark.timeout(180)
def test_an_attempt_after_an_out_of_memory_attempt_starts_with_half_the_window(
    lab: StudyLab, cgroup_of: Callable[[int], Path]
) -> None:
    lab.write("fills:run", [{"i": i} for i in range(12)])
    code = (
        "import time\nfrom pathlib import Path\n\ndef run(params, seed):\n    held = b'x' * (200 << 20)\n"
        f"    while params['i'] > 3 and not Path({str(lab.folder / 'go')!r}).exists():\n        time.sleep(0.05)\n"
        "    return {'x': [seed]}\n"
    )
    (lab.project / "fills.py").write_text(code)
    settings = {"SLOTS": 2, "SIM_MEMORY": "400MiB", "BATCH_SIZE": 12, "CHECKPOINT_SECONDS": 0}
    runner = lab.submit(**settings)
    (cgroup_of(720 * MIB) / "cgroup.procs").write_text(str(runner.process.pid))

    def full() -> bool:
        path = lab.storage / lab.paths().live(1) if lab.exists() else None
        found = json.loads(path.read_text()) if path is not None and path.exists() else {}
        return bool(found) and found["memory_bytes"] > 0.8 * found["limit_bytes"]

    wait_for(full, of=runner)
    runner.signal(signal.SIGKILL)
    runner.wait()
    (lab.folder / "go").touch()
    again = lab.resume(take_over=True, **settings)
    assert again.wait() == 0, again.said
    said = " ".join(again.said.split())
    assert "it probably ran out of memory; window: 6 parameter sets (before: 12)" in said
    assert "MODELOPS_JOB_BATCH_SIZE=6" in said
    assert json.loads((lab.storage / lab.paths().live(2)).read_text())["window"] >= 6
    lab.assert_sound()


@pytest.mark.timeout(180)
def test_auto_runs_as_many_simulations_as_memory_allows(lab: StudyLab, cgroup_of: Callable[[int], Path]) -> None:
    """Four concurrent simulations would use 1.6 GiB of 1.3 GiB, so each would exceed a quarter of the memory."""
    lab.write("heavy:run", [{"i": i} for i in range(16)])
    code = (
        "import time\n\ndef run(params, seed):\n    held = []\n    for _ in range(35):\n"
        "        held.append(b'x' * (10 << 20))\n        time.sleep(0.01)\n    return {'x': list(range(5000))}\n"
    )
    (lab.project / "heavy.py").write_text(code)
    runner = lab.submit(SLOTS=4, BATCH_SIZE="auto", CHECKPOINT_SECONDS=1)
    (cgroup_of(1300 * MIB) / "cgroup.procs").write_text(str(runner.process.pid))
    assert runner.wait() == 0, runner.said
    said = " ".join(runner.said.split())
    assert re.search(
        r"batch size: 1 of \d+ simulations at once \(up to [34]\d\d MiB each, [\d.,]+ [MG]iB on a worker\)", said
    ), said
    assert len(lab.job().outputs("output")) == 16 * 5000
    live = json.loads((lab.storage / lab.paths().live(1)).read_text())
    assert live["sizing"] in said
    assert live["window"] == int(re.search(r"; (\d+) parameter sets in flight", live["sizing"])[1])  # type: ignore[index]
    assert live["sizing"] in lab.job().logs()
    # The first simulation runs alone on its worker, so none is postponed as too large.
    assert "out of memory" not in said
    assert "retrying" not in said
    lab.assert_sound()


def test_a_study_is_not_held_while_its_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reference and no uncollected cycle keeps the study, whose million sets use 85 MiB."""
    (tmp_path / "mops.toml").touch()
    (tmp_path / "slow.py").write_text("import time\n\ndef run(params, seed):\n    time.sleep(0.2)\n    return seed\n")
    study = tmp_path / "study.json"
    study.write_text(json.dumps({"model": "slow:run", "parameter_sets": [{"i": i} for i in range(6)]}))
    groups: list[weakref.ref[object]] = []
    held: list[bool] = []

    def encode(its: Any, spool: Any) -> Any:
        groups.append(weakref.ref(its))
        return encode_groups(its, spool)

    monkeypatch.setattr(submit, "encode_groups", encode)
    mops.submit(
        study,
        storage=str(tmp_path / "storage"),
        on_progress=lambda _: held.append(groups[0]() is not None),
    )
    assert held
    assert not any(held)
