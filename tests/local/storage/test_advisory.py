"""A damaged live record, sample, text log or copy of the end is ignored with one warning.

Regression: a damaged live record made `resume` impossible, and a read-only live record killed its runner.
"""

from __future__ import annotations

import itertools
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from made import ID, claimed, commit, created, ended, finished, lives, refusing, texts
from typer.testing import CliRunner

import mops
from mops.attempt.sizing import start_size
from mops.cli.main import app
from mops.jobs import submit
from mops.jobs.following import read_log as read_texts
from mops.jobs.job import Job
from mops.jobs.launch import Launch
from mops.jobs.listing import list_jobs
from mops.settings import Settings
from mops.storage import advisory
from mops.storage.files import Files
from mops.storage.joblog.log import JobLog
from mops.storage.json_records import FORMAT
from mops.storage.paths import JobPaths
from mops.storage.progress_record import read_live

PATHS = JobPaths("job", ID)
LIVE = {
    "format": FORMAT,
    "at": 1.0,
    "host": "elsewhere",
    "pid": 7,
    "finished": {"simulations_good": 1, "verdicts": {"oom": 1}},
    "rate": 1.0,
    "memory_bytes": 1,
    "settings": {},
}
GARBAGE = {
    "empty": b"",
    "bytes": b"\xff\x00\xfe",
    "half": f'{{"format": {FORMAT}, "at"'.encode(),
    "a list": b"[]",
    "null": b"null",
    "deep": b"[" * 100_000,
    "a newer format": b'{"format": 99}',
    "an older format": b'{"format": 1}',
    "a format that is none": b'{"format": "2"}',
    "without fields": f'{{"format": {FORMAT}}}'.encode(),
}
WRONG = {
    "at": ["now", None, float("nan"), float("inf"), -1, 1e300, 4_000_000_000],
    "pid": ["7", -1, 0, 2**40, 1.5, None],
    "host": [7, None],
    "finished": [None, [], {"simulations_good": "1"}, {"other": 1}, {"verdicts": {"oom": "1"}}, {"verdicts": []}],
    "rate": ["1", float("inf")],
    "memory_bytes": [None, "1", 10**400],
    "settings": [None, [], "x"],
    "seconds": ["1", None],
    "peak_bytes": [-1.5, "x"],
    "best": [{}, "x"],
    "lines": ["x", [1], None],
    "window": ["1", None],
    "children": [1],
    "sizing": [[]],
}
DAMAGES = GARBAGE | {
    f"{name}={value!r:.20}": json.dumps(LIVE | {name: value}).encode() for name, some in WRONG.items() for value in some
}


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the warnings of the test."""
    monkeypatch.setattr(advisory, "_told", set())
    told: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("mops").addHandler(handler)
    yield told
    logging.getLogger("mops").removeHandler(handler)


def interrupted(files: Files) -> Job:
    created(files, "job")
    commit(files, claimed(files), "job", 0)
    return Job(files, "job")


def run(*arguments: str, storage: str) -> int:
    return CliRunner().invoke(app, [*arguments, "--storage", storage], catch_exceptions=False).exit_code


def read_in_every_way(job: Job) -> None:
    """Call everything that reads a live record."""
    assert job.status().state == "interrupted"
    assert job.follower()().groups == 1
    assert [listed.state for listed in list_jobs(job.files)] == ["interrupted"]
    view = job.require_no_runner("wait").view
    submit.changed_settings(job, view, Launch.of({"settings": Settings(), "local": True}))
    assert start_size(read_live(job.files, PATHS, 1), ended=False) is None


def test_a_damaged_live_record_is_ignored_with_one_warning(memory, warnings, subtests: pytest.Subtests):
    job = interrupted(Files.open(memory.url))
    for damage, data in DAMAGES.items():
        with subtests.test(damage):
            advisory._told.clear()
            warnings.clear()
            memory.lay(PATHS.live(1), data)
            read_in_every_way(job)
            assert len(warnings) == 1, warnings
            assert "live/1.json is left out: " in warnings[0]


def test_a_live_record_that_the_storage_refuses_is_ignored(memory, warnings):
    files = Files.open(memory.url)
    interrupted(files)
    lives(files, "job", 1)
    read_in_every_way(Job(refusing(files, PATHS.live(1)), "job"))
    assert len(warnings) == 1


def test_unknown_fields_of_a_live_record_are_ignored(memory, warnings):
    files = Files.open(memory.url)
    interrupted(files)
    memory.lay(PATHS.live(1), json.dumps(LIVE | {"more": 1, "expected": {"rows": 1}}).encode())
    assert read_live(files, PATHS, 1).host == "elsewhere"
    assert warnings == []


@pytest.mark.parametrize("damage", ["empty", "a list", "a newer format", "a folder"])
def test_every_command_works_with_damaged_advisory_records(local, warnings, damage):
    files = Files.open(local.url)
    interrupted(files)
    record = finished(files, "whole")
    assert record.job == "whole"
    places = ("live/1.json", "events/1-1.json", "logs/1-1.txt", "finished.json")
    for name, place in itertools.product(("job", "whole"), places):
        path = Path(local.url, JobPaths(name, ID).root, place)
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        if damage == "a folder":
            (path / "within").mkdir(parents=True)
        else:
            path.write_bytes(GARBAGE[damage])
    for verb, code in {"status": 0, "logs": 0, "watch": 1, "verify": 4, "clean": 0, "cancel": 0}.items():
        assert run("jobs", verb, "job", storage=local.url) in (0, code), verb
    assert run("jobs", "watch", "whole", storage=local.url) == 0
    assert run("jobs", "list", storage=local.url) == 0
    assert {listed.job: listed.state for listed in list_jobs(files)} == {"job": "cancelled", "whole": "succeeded"}
    assert Job(files, "job").samples().to_arrow().num_rows == 0
    assert run("jobs", "clean", "job", "--last-attempt", storage=local.url) == 0
    assert run("jobs", "delete", "job", "whole", "--yes", storage=local.url) == 0
    assert list_jobs(files) == []


SAMPLE = {
    "at": 1.0,
    "finished": {"simulations_good": 1, "simulations_failed": 1, "verdicts": {"oom": 1}},
    "durable": {"simulations_good": 1},
    **dict.fromkeys(("rate", "memory_bytes", "runner_bytes", "in_flight", "slots", "open_bytes"), 1),
}


def test_damaged_samples_are_ignored_and_the_others_read(memory, warnings, subtests: pytest.Subtests):
    job = interrupted(Files.open(memory.url))
    memory.lay(PATHS.events(10**15, 1), json.dumps({"format": FORMAT, "samples": [SAMPLE]}).encode())
    for change in [
        {"at": 1e300},
        {"at": None},
        {"durable": "1"},
        {"durable": {"simulations_good": 10**30}},
        {"slots": 2**40},
        {"rate": float("nan")},
        {"memory_bytes": 10**30},
        {"finished": {"verdicts": {"oom": "1"}}},
        {"finished": {"verdicts": {"oom": 10**30}}},
        {"finished": 1},
    ]:
        with subtests.test(str(change)):
            advisory._told.clear()
            warnings.clear()
            for number, sample in enumerate([SAMPLE, SAMPLE | change, SAMPLE], start=1):
                memory.lay(PATHS.events(1, number), json.dumps({"format": FORMAT, "samples": [sample]}).encode())
            assert job.samples().to_arrow().num_rows == 2
            assert len(warnings) == 1


def test_a_log_of_which_the_storage_refuses_a_piece_is_left_out(memory, warnings):
    files = Files.open(memory.url)
    interrupted(files)
    texts(files, "job", a1_1="first\n", a1_2="second\n", a1_3="third\n")
    assert "".join(read_texts(Job(refusing(files, PATHS.text(1, 2)), "job"))) == ""
    assert len(warnings) == 1


def test_a_copy_of_the_end_that_cannot_be_read_does_not_stop_the_list(memory, warnings):
    files = Files.open(memory.url)
    finished(files, "job")
    finished(files, "other")
    record = created(files, "third")
    ended(files, claimed(files, "third"), record, "cancelled")
    found = list_jobs(refusing(files, PATHS.finished))
    assert {one.job: one.state for one in found} == {"job": "succeeded", "other": "succeeded", "third": "cancelled"}
    assert len(warnings) == 1


MODEL = "def simulate(params, seed):\n    print('a line for the log')\n    return {'out': {'x': [params['a']]}}\n"


def test_a_job_succeeds_even_if_no_advisory_record_can_be_written(tmp_path, local, warnings, monkeypatch):
    monkeypatch.setattr("mops.jobs.prepare.new_job_id", lambda: ID)
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(MODEL)
    study = tmp_path / "study.json"
    study.write_text(json.dumps({"model": "model:simulate", "parameter_sets": [{"a": i} for i in range(6)]}))
    root = Path(local.url, PATHS.root)
    for path in ("live/1.json/within", "live/2.json/within", "finished.json/within"):
        (root / path).mkdir(parents=True)
    for path in ("events", "logs"):  # files, so that nothing can be created below them
        (root / path).write_bytes(b"")

    one_by_one = Settings(slots=1, batch_size=1, checkpoint_seconds=0)
    job = mops.submit(study, name="job", storage=local.url, settings=one_by_one)
    assert job.status().state == "succeeded"
    assert sorted(job.outputs("out").to_arrow()["x"].to_pylist()) == list(range(6))
    assert job.verify() == []
    refused = [said for said in warnings if "the job continues without it" in said]
    kinds = [said.split(" cannot be written")[0] for said in refused]
    assert kinds.count("the copy of the job's end, for quick listing,") == 1
    assert 1 <= kinds.count("the sign of life") <= 2, "once in each attempt"
    assert 1 <= kinds.count("the text log") <= 2
    shutil.rmtree(root / "finished.json")
    assert JobLog(job.files, PATHS).read().complete
