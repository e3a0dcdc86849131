"""docs/explanation/what-mops-prints.md shows what a job prints when something fails; real jobs print the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dask_processes import DaskProcesses, dask_in
from study_lab import Runner, StudyLab, wait_for

from mops.units import without_varying
from small_disk import small_disk

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "what-mops-prints.md"


def sets(**special: str) -> list[dict[str, object]]:
    """Return eight parameter sets, of which the sixth is special."""
    return [{"i": i, "do": "work"} | (special if i == 5 else {}) for i in range(8)]


def one_fails(lab: StudyLab, do: str, **settings: object) -> str:
    lab.write("events:run", sets(do=do))
    runner = lab.submit("waves", SLOTS=2, **settings)
    assert runner.wait() == 3, runner.said
    return runner.said


@contextmanager
def running(lab: StudyLab, n_sets: int) -> Iterator[tuple[DaskProcesses, Runner]]:
    """Run sets of half a second on two workers: yield when some are committed, then let the rest run quickly."""
    with dask_in(lab.folder / "dask", MALLOC_TRIM_THRESHOLD_="65536") as dask:
        dask.pace_file.touch()
        lab.more_env = {"MODELOPS_SCHEDULER": dask.address}
        lab.write("events:run", [{"i": i, "do": "work", "seconds": 0.5} for i in range(n_sets)])
        runner = lab.submit("waves")
        wait_for(lambda: lab.exists("waves") and lab.view("waves").committed, of=runner)
        yield dask, runner
        dask.let_go()
        assert runner.wait() == 0, runner.said


def worker_dies(lab: StudyLab) -> str:
    with running(lab, 60) as (dask, runner):
        wait_for(lambda: len(dask.running()) == 2, of=runner)
        dask.kill(dask.workers[0])
    return runner.said


def scheduler_restarts(lab: StudyLab) -> str:
    with running(lab, 40) as (dask, runner):
        assert dask.scheduler is not None
        dask.kill(dask.scheduler)
        for worker in list(dask.workers):
            dask.await_end(worker)
        wait_for(lambda: "does not answer" in runner.said, of=runner)
        dask.start_scheduler()
        dask.add_worker()
        dask.add_worker()
    return runner.said


def disk_is_full(lab: StudyLab) -> str:
    with small_disk(lab.storage, 16) as disk:
        lab.write("events:run", [{"i": i, "do": "work"} for i in range(60)])
        runner = lab.submit("waves", SLOTS=2, CHECKPOINT_SECONDS=0)
        wait_for(lambda: lab.exists("waves") and len(lab.view("waves").committed) > 5, of=runner)
        disk.fill()
        assert runner.wait() == 4, runner.said
    return runner.said


EVENTS: dict[str, Callable[[StudyLab], str]] = {
    "A simulation is out of memory": lambda lab: one_fails(lab, "fill", SIM_MEMORY="256MiB"),
    "A simulation crashes": lambda lab: one_fails(lab, "crash"),
    "A worker dies": worker_dies,
    "The scheduler restarts": scheduler_restarts,
    "The disk is full": disk_is_full,
}


def kinds(text: str) -> list[str]:
    """Return the different lines of an output, without what changes from run to run."""
    text = re.sub(r"tcp://\S+?(?=[ :;,]|$)", "tcp://ADDRESS", text, flags=re.MULTILINE)
    text = re.sub(r"( on )\S+?(;)", r"\1HOST\2", text)
    text = re.sub(r"(?m)(results go to|at:) \S+$", r"\1 FOLDER", text)
    text = re.sub(r"\([0-9a-f]{12}\)", "(PARAM_ID)", text)
    lines = [without_varying(line) for line in text.splitlines()]
    # The last one comes if the runner reaches a new scheduler before its workers do.
    by_time = (" of # simulations,", "has no workers; waiting")
    return list(dict.fromkeys(line for line in lines if not any(part in line for part in by_time)))


@pytest.mark.timeout(200)
@pytest.mark.parametrize("title", EVENTS)
def test_a_job_prints_what_the_page_shows(lab: StudyLab, title: str) -> None:
    said = EVENTS[title](lab)
    _, _, section = PAGE.read_text().partition(f"## {title}\n")
    shown = re.search(r"```text\n(.*?)```", section, re.DOTALL)
    assert shown is not None, f"no section, or no text, for\n{said}"
    assert kinds(shown[1]) == kinds(said), said
