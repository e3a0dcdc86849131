"""``mops jobs list``, ``logs``, ``verify``, ``clean``, ``delete`` and ``resume --take-over``, as a user types them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import mops
from job_folders import folder_of
from waiting import until

from .command_lab import MOPS, CommandLab, Process

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"


@contextmanager
def running(lab: CommandLab, name: str = "runs") -> Iterator[Process]:
    """A job that runs until the body ends, with at least one committed group."""
    sets = [{"x": x, "sleep": 0.3} for x in range(4000)]  # more than any test waits for
    lab.write_study(parameter_sets=sets, n_replicates=1)
    with lab.start("jobs", "submit", lab.study, "--name", name, MODELOPS_JOB_CHECKPOINT_SECONDS="0") as runner:
        try:
            wait_until(lab, name, lambda status: status.live is not None and status.groups)
            yield runner
        finally:
            runner.kill()
            runner.communicate()


def wait_until(lab: CommandLab, name: str, true) -> None:
    job = lab.storage / "jobs" / name / "job.json"
    until(lambda: job.exists() and true(mops.open_job(name, str(lab.storage)).status()))


def leave_a_part(lab: CommandLab, job: str, name: str = "1-99.parquet") -> Path:
    """Write the part that a runner leaves if it is killed before the commit."""
    path = folder_of(lab.storage, job) / "outputs" / "daily" / name
    path.write_bytes(b"left")
    return path


# list


def test_a_list_has_a_line_per_job_and_the_newest_is_first(lab: CommandLab) -> None:
    ran = lab.run("jobs", "list")
    assert (ran.code, ran.out, ran.err) == (0, "", f"no jobs in {lab.storage}\n")
    assert lab.run("jobs", "list", "--json").json == []
    assert lab.run("jobs", "list", "--state", "running").err == f"no running jobs in {lab.storage}\n"
    lab.write_study(parameter_sets=[{"x": 1}, {"x": -1}])
    lab.submit("--name", "a-old")
    lab.write_study()
    lab.submit("--name", "b-new")
    lines = lab.run("jobs", "list").out.splitlines()
    assert lines[0].split() == ["job", "state", "sets", "finished", "durable", "failed", "submitted"]
    assert [line.split()[:6] for line in lines[1:]] == [
        ["b-new", "succeeded", "2/2", "4/4", "4", "0"],
        ["a-old", "partial", "2/2", "4/4", "4", "2"],
    ]
    assert re.search(r" \d{4}-\d\d-\d\d \d\d:\d\d$", lines[1])
    assert [job["job"] for job in lab.run("jobs", "list", "--state", "failed,partial", "--json").json] == ["a-old"]
    for n, names in (("1", ["b-new"]), (str(10**30), ["b-new", "a-old"])):
        assert [job["job"] for job in lab.run("jobs", "list", "-n", n, "--json").json] == names


def test_a_job_that_cannot_be_read_is_listed_with_its_error(done: CommandLab) -> None:
    record = done.storage / "jobs" / "bad" / "job.json"
    record.parent.mkdir()
    record.write_text("{")
    ran = done.run("jobs", "list")
    assert ran.code == 0
    assert [line.split()[:2] for line in ran.out.splitlines()[1:]] == [["done", "succeeded"], ["bad", "unreadable"]]
    assert "warning: job bad cannot be read: this record is not what mops wrote" in ran.err
    assert f"\n  at: {record}\n" in ran.err


# logs


BEGINS = re.compile(
    rf"{STAMP} INFO (\S+): attempt 1 by process \d+ on \S+: (\d+) of \2 parameter sets are left; slots: \d\n"
)


CHILDREN = re.compile(rf"{STAMP} INFO \S+: child processes fork from a template that has imported the model\n")


def test_the_log_has_the_start_and_end_of_an_attempt_and_the_models_output(
    finished: tuple[CommandLab, str],
) -> None:
    lab, job = finished
    ran = lab.run("jobs", "logs", job)
    children, first, *printed, last = ran.out.splitlines(keepends=True)
    assert (ran.code, ran.err, printed[1::2]) == (0, "", ["a model prints\n"] * 4)
    assert all(re.fullmatch(r"group \d+ \([0-9a-f]{12}\) replicate \d printed:\n", line) for line in printed[::2])
    assert CHILDREN.fullmatch(children), children  # mops loads the model before it claims the job
    assert BEGINS.fullmatch(first), first
    assert re.fullmatch(rf"{STAMP} INFO {job}: attempt 1 ends: every simulation has run\n", last)
    assert lab.run("jobs", "logs", job, "-n", "1").out == last
    assert lab.run("jobs", "logs", job, "--tail", "0").out == ""
    followed = lab.run("jobs", "logs", job, "-f")
    assert (followed.out, followed.err) == (ran.out, "job done is succeeded\n")


def test_following_a_log_ends_with_the_job(lab: CommandLab) -> None:
    with running(lab) as runner:
        with lab.start("jobs", "logs", "runs", "--follow") as follower:
            assert CHILDREN.fullmatch(follower.stdout.readline())
            assert BEGINS.fullmatch(follower.stdout.readline())
            assert follower.stdout.readline().endswith(" printed:\n")
            assert follower.stdout.readline() == "a model prints\n"
            runner.send_signal(signal.SIGINT)
            out, err = follower.communicate(timeout=60)
        runner.wait(60)
    assert "SIGINT: running simulations get" in out
    assert out.endswith("runs: attempt 1 ends: stopped\n")
    assert err == "job runs is cancelled\n"
    assert follower.returncode == 0


def test_ctrl_c_ends_following_and_not_the_job(lab: CommandLab) -> None:
    with running(lab):
        with lab.start("jobs", "logs", "runs", "-f", "-n", "1") as follower:
            assert follower.stdout.readline() == "a model prints\n"
            follower.send_signal(signal.SIGINT)
            _, err = follower.communicate(timeout=60)
        assert follower.returncode == 130
        assert err == "stopped following; the job continues: mops jobs status runs\n"
        assert mops.open_job("runs", str(lab.storage)).status().state == "running"


def test_a_reader_of_the_log_may_close_the_pipe_early(finished: tuple[CommandLab, str]) -> None:
    lab, job = finished
    pieces = folder_of(lab.storage, job) / "logs"
    (pieces / "1-99.txt").write_text("a line of some length\n" * 100_000)
    piped = f"{MOPS} jobs logs {job} | head -n 1"
    try:
        ran = subprocess.run(piped, shell=True, capture_output=True, text=True, env=lab.environment, timeout=120)
    finally:
        (pieces / "1-99.txt").unlink()
    assert CHILDREN.fullmatch(ran.stdout)
    assert ran.stderr == ""


def test_the_log_and_the_status_have_the_reason_of_a_failed_job(lab: CommandLab) -> None:
    lab.write_study(outputs=["dayly"])
    assert lab.submit("--name", "bad").code == 2
    assert re.search(r"\nwhy +mops jobs logs bad --tail 50\n", lab.run("jobs", "status", "bad").out)
    said = lab.run("jobs", "logs", "bad").out
    assert re.search(
        r" attempt 1 ends: UsageError: the model has no output 'dayly'; it has: daily, summary\n  at: \$\.outputs\n",
        said,
    )


# verify


def test_verify_reports_a_sound_job_and_names_a_changed_part(done: CommandLab) -> None:
    ran = done.run("jobs", "verify", "done")
    assert (ran.code, ran.out, ran.err) == (0, "", "job done has no problems\n")
    part = next((folder_of(done.storage, "done") / "outputs" / "daily").iterdir())
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    ran = done.run("jobs", "verify", "done")
    problem = f"{part.relative_to(done.storage)}: its SHA-256 differs from the committed one"
    assert (ran.code, ran.out, ran.err) == (1, problem + "\n", "job done has 1 problem\n")
    ran = done.run("jobs", "verify", "done", "--json")
    assert (ran.code, ran.json) == (1, {"job": "done", "problems": [problem]})


# compact

A_COMMIT_EACH = {"MODELOPS_JOB_CHECKPOINT_SECONDS": "0", "MODELOPS_JOB_BATCH_SIZE": "1"}


def test_compact_prints_the_parts_before_and_after(lab: CommandLab) -> None:
    lab.write_study(parameter_sets=[{"x": x} for x in range(6)], n_replicates=1)
    for name in ("one", "two"):
        assert lab.submit("--name", name, **A_COMMIT_EACH).code == 0
    size = r"[\d.]+ (B|KiB)"
    ran = lab.run("jobs", "compact", "one", "two", "--json")
    assert ran.code == 0
    assert [(done["job"], done["parts_before"], done["parts"]) for done in ran.json] == [("one", 12, 2), ("two", 12, 2)]
    assert re.fullmatch(
        rf"job one: had 12 parts \({size}\), has 2 parts \({size}\); to remove the small ones: mops jobs clean one\n"
        rf"job two: had 12 parts \({size}\), has 2 parts \({size}\); to remove the small ones: mops jobs clean two\n",
        ran.err,
    )
    ran = lab.run("jobs", "compact", "one")
    assert (ran.code, ran.out) == (0, "")
    assert re.fullmatch(rf"job one: no small parts to merge \(2 parts, {size}\)\n", ran.err)


def test_compact_refuses_a_job_that_is_not_complete(lab: CommandLab) -> None:
    with running(lab):
        ran = lab.run("jobs", "compact", "runs")
    assert ran.code == 2
    assert ran.err == (
        "error: job 'runs' is not complete: only the parts of a complete job can be merged\n"
        f"  at: {lab.storage}\n"
        "hint: show its state: mops jobs status runs\n"
    )


# clean


def test_clean_lists_the_removed_files(done: CommandLab) -> None:
    left = leave_a_part(done, "done")
    name = left.relative_to(done.storage).as_posix()
    ran = done.run("jobs", "clean", "done", "--dry-run")
    assert (ran.code, ran.out, ran.err) == (0, f"{name}\n", "would remove 1 file, 4 B\n")
    assert left.exists()
    ran = done.run("jobs", "clean", "done")
    assert (ran.code, ran.out, ran.err) == (0, f"{name}\n", "removed 1 file, 4 B\n")
    assert not left.exists()
    assert done.run("jobs", "verify", "done").code == 0
    ran = done.run("jobs", "clean", "done", "--json")
    assert ran.json == {"job": "done", "paths": [], "bytes": 0, "kept": 0, "dry_run": False}


def test_cleaning_a_killed_job_keeps_parts_that_may_count_and_hints_at_the_option(lab: CommandLab) -> None:
    with running(lab):
        leave_a_part(lab, "runs", "1-9999.parquet")
        ran = lab.run("jobs", "clean", "runs", "--last-attempt")
        assert ran.code == 2
        assert re.fullmatch(
            r"error: job 'runs' is running: process \d+ on \S+, last seen \d+ s ago\n"
            rf"  at: {lab.storage}\n"
            r"hint: leave out --last-attempt to clean a job while it runs: mops jobs clean runs\n",
            ran.err,
        )
    ran = lab.run("jobs", "clean", "runs")
    assert re.search(
        r"removed 0 files, 0 B\nkept \d+ files? that a runner or mops jobs compact may still need", ran.err
    )
    ran = lab.run("jobs", "clean", "runs", "--last-attempt")
    assert "/outputs/daily/1-9999.parquet\n" in ran.out
    status = mops.open_job("runs", str(lab.storage)).status()
    assert (status.state, status.attempt) == ("cancelled", 2)
    assert lab.run("jobs", "verify", "runs").code == 0


# clean --older-than


def age(lab: CommandLab, name: str, days: float) -> None:
    """Let a job have been submitted, and have ended, this many days earlier."""
    folder = folder_of(lab.storage, name)
    for path in (*(folder / "log").iterdir(), folder / "finished.json", *(folder / "live").iterdir()):
        record = json.loads(path.read_text())
        key = "at" if path.parent.name == "live" else "time"
        path.write_text(json.dumps(record | {key: record[key] - days * 86400}))
    path = folder.parent / "job.json"
    record = json.loads(path.read_text())
    created = datetime.fromisoformat(record["created"]) - timedelta(days=days)
    path.write_text(json.dumps(record | {"created": created.isoformat()}))


def test_old_jobs_are_listed_and_deleted_with_their_results(done: CommandLab) -> None:
    lab = done
    for name in ("old", "older"):
        lab.submit("--name", name)
    age(lab, "old", 31)
    age(lab, "older", 400)
    before = lab.stored()
    ran = lab.run("jobs", "clean", "--older-than", "30d", "--dry-run")
    assert re.fullmatch(
        r"job +state +ended +files +size\n"
        r"old +succeeded +31 days ago +\d+ +\d+ KiB\n"
        r"older +succeeded +400 days ago +\d+ +\d+ KiB\n",
        ran.out,
    )
    assert (ran.code, lab.stored()) == (0, before)
    assert re.fullmatch(r"would delete 2 jobs, \d+ KiB\n", ran.err)
    ran = lab.run("jobs", "clean", "--older-than", "30d")
    assert (ran.code, lab.stored()) == (2, before)
    assert "because stdin is not a terminal\n  at: stdin\nhint: add --yes\n" in ran.err
    code, shown = lab.at_a_terminal("jobs", "clean", "--older-than", "365d", answer="n\n")
    assert (code, lab.stored()) == (1, before)
    assert re.search(r"delete 1 job, \d+ KiB permanently\? \[y/N\]", shown)
    ran = lab.run("jobs", "clean", "--older-than", "30d", "--state", "failed,cancelled", "--yes", "--json")
    assert (ran.json["jobs"], lab.stored()) == ([], before)
    ran = lab.run("jobs", "clean", "--older-than", "30d", "--yes")
    assert ran.code == 0
    assert re.fullmatch(r"deleted job old\ndeleted job older\ndeleted 2 jobs, \d+ KiB\n", ran.err)
    assert [job["job"] for job in lab.run("jobs", "list", "--json").json] == ["done"]
    ran = lab.run("jobs", "clean", "--older-than", "30d", "--yes")
    assert (ran.code, ran.out, ran.err) == (0, "", "no job is older: nothing was deleted\n")


# delete


def test_a_deletion_asks_at_a_terminal_and_accepts_no(done: CommandLab) -> None:
    lab, before = done, done.stored()
    for answer in ("n\n", "\n", "\x04"):
        code, shown = lab.at_a_terminal("jobs", "delete", "done", answer=answer)
        assert re.search(r"job done: succeeded, \d+ files, \d+ KiB", shown)
        assert "delete 1 job permanently? [y/N]" in shown
        assert (code, "nothing was deleted" in shown) == (1, True)
        assert lab.stored() == before
    code, shown = lab.at_a_terminal("jobs", "delete", "done", answer="y\n")
    assert (code, "deleted job done" in shown) == (0, True)
    assert [name.partition("/")[0] for name in lab.stored()] == ["bundles"]
    assert lab.submit("--name", "done").code == 0


def test_without_a_terminal_or_yes_nothing_is_deleted(finished: tuple[CommandLab, str]) -> None:
    lab, job = finished
    before = lab.stored()
    with subprocess.Popen(
        [MOPS, "jobs", "delete", job],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=lab.environment,
    ) as process:
        out, err = process.communicate("y\n", timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.partition("\n")[2] == (
        "error: the command cannot ask for confirmation, because stdin is not a terminal\n"
        "  at: stdin\nhint: add --yes\n"
    )
    assert lab.stored() == before


def test_a_running_job_is_not_deleted_and_a_killed_one_is(lab: CommandLab) -> None:
    with running(lab):
        ran = lab.run("jobs", "delete", "runs", "--yes")
        assert (ran.code, ran.out) == (2, "")
        assert re.fullmatch(
            r"error: job 'runs' is running: process \d+ on \S+, last seen \d+ s ago\n"
            rf"  at: {lab.storage}\n"
            r"hint: stop the job first: mops jobs cancel runs\n",
            ran.err,
        )
    assert lab.run("jobs", "delete", "runs", "--yes").code == 0
    assert [name.partition("/")[0] for name in lab.stored()] == ["bundles"]


# resume


def test_a_running_job_is_resumed_only_with_take_over(lab: CommandLab) -> None:
    with running(lab) as runner:
        ran = lab.run("jobs", "resume", "runs")
        assert ran.code == 2
        assert re.fullmatch(
            rf"error: job 'runs' is running: process {runner.pid} on \S+, last seen \d+ s ago\n"
            rf"  at: {lab.storage}\n"
            r"hint: stop the job with 'mops jobs cancel runs', or replace its runner with --take-over\n",
            ran.err,
        )
        assert mops.open_job("runs", str(lab.storage)).status().attempt == 1
        with lab.start("jobs", "resume", "runs", "--take-over") as second:
            _, err = runner.communicate(timeout=60)
            second.send_signal(signal.SIGINT)
            second.communicate(timeout=60)
    assert runner.returncode == 5
    assert "superseded by attempt 2" in err
    assert second.returncode == 130


VERBS_OF_A_JOB = ("logs", "verify", "clean", "failures", "watch", "report", "results", "status", "delete --yes")
WRONG = {
    "an unknown state": (
        ["list", "--state", "runing"],
        ("error: unknown state: 'runing'\n  at: --state\nhint: did you mean 'running'?\n"),
    ),
    **{
        f"{verb} of no job": (
            [*verb.split(), "dome"],
            "error: job 'dome' does not exist\n  at: {storage}\nhint: use the name of an existing job: done\n",
        )
        for verb in VERBS_OF_A_JOB
    },
    "an age without a unit": (
        ["clean", "--older-than", "30"],
        (
            "error: '30' is not an age\n  at: --older-than\n"
            "hint: write a number of days or hours: --older-than 30d, or --older-than 30h\n"
        ),
    ),
    "an age of nothing": (
        ["clean", "--older-than", "0d", "--yes"],
        (
            "error: '0d' is not an age\n  at: --older-than\n"
            "hint: write a number of days or hours: --older-than 30d, or --older-than 30h\n"
        ),
    ),
    "neither a job nor an age": (
        ["clean"],
        (
            "error: the command does not say which job to clean\n  at: the options\n"
            "hint: name a job: mops jobs clean JOB; to delete old jobs, add --older-than, like --older-than 30d\n"
        ),
    ),
    "a job and an age": (
        ["clean", "done", "--older-than", "30d"],
        (
            "error: --older-than is for all jobs of a storage, so it takes no JOB\n  at: --older-than\n"
            "hint: leave out one of the two\n"
        ),
    ),
    "the state of one job": (
        ["clean", "done", "--state", "failed"],
        ("error: this option needs --older-than\n  at: --state\nhint: add --older-than, like --older-than 30d\n"),
    ),
    "running jobs by their age": (
        ["clean", "--older-than", "30d", "--state", "running"],
        (
            "error: mops deletes no running jobs by their age\n  at: --state\n"
            "hint: choose from: interrupted, succeeded, partial, failed, cancelled\n"
        ),
    ),
    "several at once": (
        ["delete", "dome", "../x", "done", "--yes"],
        (
            "error: 2 jobs cannot be deleted:\n  job 'dome' does not exist\n  no job can be named '../x'\n"
            "  at: {storage}\nhint: list the jobs and their states: mops jobs list\n"
        ),
    ),
}


def test_wrong_input_gives_an_error_of_three_lines(finished: tuple[CommandLab, str], subtests: pytest.Subtests) -> None:
    lab, _ = finished
    before = lab.stored()
    for name, (arguments, said) in WRONG.items():
        with subtests.test(name):
            ran = lab.run("jobs", *arguments)
            assert (ran.code, ran.out, ran.err) == (2, "", said.format(storage=lab.storage))
    assert lab.stored() == before


@pytest.mark.parametrize("arguments", [["list", "-n", "0"], ["logs", "done", "--tail", "-1"], ["delete"]])
def test_unreadable_arguments(lab: CommandLab, arguments: list[str]) -> None:
    ran = lab.run("jobs", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "Error: " in ran.err


@pytest.mark.parametrize("verb", ["list", "clean"])
def test_help_fits_a_terminal(lab: CommandLab, verb: str) -> None:
    ran = lab.run("jobs", verb, "--help", COLUMNS="80")
    assert (ran.code, ran.err) == (0, "")
    assert all(len(line) <= 80 for line in ran.out.splitlines())
