"""What requests share: reads and changes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mops.errors import JobError
from mops.storage.files import Files
from mops.ui.access import Access
from mops.ui.app import Site
from mops.ui.reading import SharedReads


def test_pages_of_one_job_share_a_read_and_an_error_is_not_kept() -> None:
    recent: SharedReads[int] = SharedReads(seconds=3600, most=2)
    n_read, seen = 0, list[int | None]()

    def read(before: int | None) -> int:
        nonlocal n_read
        n_read += 1
        seen.append(before)
        if n_read == 1:
            raise JobError("gone", where="here", hint="look")
        return n_read

    with pytest.raises(JobError):
        recent.get("a", read)
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: recent.get("a", read), range(32))) == {2}
    assert [recent.get(key, read) for key in "abcb"] == [2, 3, 4, 3]
    assert recent.get("a", read) == 5, "the oldest one was forgotten"
    recent.forget()
    assert recent.get("a", read) == 6
    assert seen == [None] * 5 + [5], "a reader that reads only what is new continues after a change"


def test_a_read_that_hangs_holds_up_no_other_key() -> None:
    recent: SharedReads[str] = SharedReads(seconds=0, most=9)
    started, go_on = threading.Event(), threading.Event()

    def hang(_: str | None) -> str:
        started.set()
        go_on.wait()
        return "late"

    with ThreadPoolExecutor(1) as other:
        hanging = other.submit(recent.get, "a", hang)
        started.wait()
        assert recent.get("b", lambda _: "other") == "other"
        recent.forget()
        assert recent.get("a", lambda _: "after the change") == "after the change"
        go_on.set()
        assert hanging.result() == "late"


def test_a_form_that_is_sent_twice_makes_one_change() -> None:
    site, made, together = (
        Site(Files.open("memory://once"), Access(1, read_only=False), local=True),
        [],
        threading.Barrier(3),
    )

    def change() -> str:
        made.append(f"job {len(made)}")
        if len(made) == 2:
            raise JobError("refused", where="here", hint="look")
        return made[0]

    def send(value: str) -> str:
        together.wait()
        return site.once(("job", "retry", value), change)

    with ThreadPoolExecutor(3) as threads:
        assert set(threads.map(send, "aaa")) == {"job 0"}
    for _ in range(2):
        with pytest.raises(JobError, match="refused"):
            site.once(("job", "retry", "b"), change)
    assert made == ["job 0", "job 1"]
