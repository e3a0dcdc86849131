"""What requests share: threads, polls and changes."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing

from mops.ui.one_time import OneTimeChanges
from mops.ui.read_threads import ReadThreads
from mops.ui.shared_poll import Polls, SharedPoll


def test_a_client_that_leaves_with_a_value_leaves_no_poll() -> None:
    async def leave_and_come_back() -> list[str]:
        polls, threads, made = Polls(), ReadThreads(), []

        def new() -> SharedPoll[str]:
            made.append("poll")
            return SharedPoll(lambda: lambda: f"value {len(made)}", 0.0, lambda: False, threads)

        values = []
        for _ in range(2):
            async with aclosing(polls.follow("key", new)) as followed:  # type: ignore[type-var]
                values.append(await anext(followed))
        assert threads.end(60)
        return values

    assert asyncio.run(leave_and_come_back()) == ["value 1", "value 2"]


def test_a_form_that_is_sent_twice_makes_one_change() -> None:
    async def send() -> tuple[list[str], list[str]]:
        changes, made = OneTimeChanges(), []

        async def change() -> str:
            made.append(f"job {len(made)}")
            return made[-1]

        answers = await asyncio.gather(*(changes.once(key, change) for key in ("a", "a", "b")))
        return [*answers, await changes.once("a", change)], made

    answers, made = asyncio.run(send())
    assert made == ["job 0", "job 1"]
    assert answers == ["job 0", "job 0", "job 1", "job 0"]


def test_a_thread_that_hangs_is_told_and_does_not_stop_the_event_loop() -> None:
    started, go_on, threads = threading.Event(), threading.Event(), ReadThreads()

    def hang_until_told() -> None:
        started.set()
        go_on.wait()

    async def hang() -> str:
        hanging = asyncio.create_task(threads.run(hang_until_told))
        await threads.run(started.wait)
        other = await threads.run(lambda: "other")
        hanging.cancel()
        return other

    assert asyncio.run(hang()) == "other"
    assert not threads.end(0)
    go_on.set()
    assert threads.end(60)
