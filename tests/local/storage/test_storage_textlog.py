"""The text log of a job is read in order: whole, its last lines, or as it grows."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st
from made import ID, claimed, commit, created, ended, finished, lives, on_disk, texts

from mops.jobs import following
from mops.jobs.following import last_of, read_log
from mops.jobs.job import Job


def whole(files, **options) -> str:
    return "".join(read_log(Job(files, "job"), **options))


def two_attempts(files) -> None:
    record = created(files, "job")
    claimed(files)
    texts(files, "job", a1_2="one\n", a1_10="two\nthr", a1_11="ee\n")
    log = claimed(files)
    texts(files, "job", a2_1="four\n")
    files.put(f"jobs/job/{ID}/logs/notes.txt", b"mine\n")
    ended(files, log, record, "cancelled")


def test_pieces_are_read_in_the_order_of_their_numbers(files):
    two_attempts(files)
    assert whole(files) == "one\ntwo\nthree\nfour\n"


@on_disk
def test_the_last_lines_may_come_from_several_pieces(files):
    two_attempts(files)
    ends = ["", "four\n", "three\nfour\n", "two\nthree\nfour\n", "one\ntwo\nthree\nfour\n"]
    assert [whole(files, tail=n) for n in range(5)] == ends
    assert whole(files, tail=1000) == whole(files)


@given(st.lists(st.text("a\n", max_size=6)), st.integers(0, 10))
def test_the_last_lines_are_those_of_the_whole_log(pieces, n):
    lines = "".join(pieces).splitlines(keepends=True)
    assert last_of(reversed(pieces), n) == "".join(lines[len(lines) - min(n, len(lines)) :])


@on_disk
def test_a_missing_log_is_empty(files):
    created(files, "job")
    assert whole(files) == whole(files, tail=3) == ""


@on_disk
def test_invalid_utf8_is_replaced(storage, files):
    finished(files)
    storage.lay(f"jobs/job/{ID}/logs/1-12.txt", b"caf\xe9\n")
    assert whole(files) == "began\nended\ncaf\N{REPLACEMENT CHARACTER}\n"


@on_disk
def test_following_a_log_ends_after_its_last_line(files, monkeypatch):
    monkeypatch.setattr(following, "LOG_SECONDS", 0.01)
    record = created(files, "job")
    log, shown = claimed(files), []
    texts(files, "job", a1_1="old\n", a1_2="one\n")
    lives(files, "job", 1, age_s=0)
    came = {text: threading.Event() for text in ("one\n", "two\n")}

    def follow() -> None:
        for text in read_log(Job(files, "job"), tail=1, follow=True):
            shown.append(text)
            if text in came:
                came[text].set()

    follower = threading.Thread(target=follow)
    follower.start()
    assert came["one\n"].wait(30)
    texts(files, "job", a1_5="two\n")
    assert came["two\n"].wait(30)
    commit(files, log, "job", 0, 1, 2)
    texts(files, "job", a1_6="three\n")
    ended(files, log, record, "succeeded")
    follower.join(30)
    assert not follower.is_alive()
    assert "".join(shown) == "one\ntwo\nthree\n"


def test_following_ends_when_the_job_has_ended(files, monkeypatch):
    monkeypatch.setattr(following, "LOG_SECONDS", 0.01)
    finished(files, "job")
    assert whole(files, follow=True) == "began\nended\n"
    created(files, "killed")
    claimed(files, "killed")
    lives(files, "killed", 1, age_s=1000)
    assert list(read_log(Job(files, "killed"), follow=True)) == []
