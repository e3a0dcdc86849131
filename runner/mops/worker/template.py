"""A template: a child process that has imported the model, forks other child processes, and tells how they end.

:mod:`mops.worker.child_starter` decides whether children fork from a template.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence

from mops.child.channel import Message
from mops.task import JobContext
from mops.worker.child_process import ChildProcess
from mops.worker.processes import ANSWER_SECONDS, Reaper, Scratch


class Template(ChildProcess):
    """A template. If the model does not allow a fork (``fork_refusal``), the pool uses it as an ordinary child."""

    def __init__(self, context: JobContext, root: str, scratch: Scratch, reaper: Reaper):
        super().__init__(context, root, scratch, reaper)
        self._asking = threading.Lock()
        """Held by the thread that asks, because the answer is for that thread."""
        self._is_forking = False

    def fork(self) -> ChildProcess:
        """Fork a child.

        A TimeoutError: the template waits for the model's fork handlers and does not answer, so mops has killed it.
        Another OSError or an EOFError: it has ended or is closed, or the system has no room for another process.
        """
        return ChildProcess(self._context, self._root, self._scratch, self._reaper, template=self)

    def start_fork(self, fds: Sequence[int]) -> int:
        """Fork a process with the descriptors of its socket, lifeline, page and output; return its number."""
        answer = self._ask({"kind": "fork"}, *fds)
        if answer["kind"] == "not_forked":
            raise OSError(answer["message"])
        self.has_forked = True
        self._reaper.forked(answer["pid"])
        return int(answer["pid"])

    def _ask(self, question: Message, *fds: int) -> Message:
        """Ask, once with each descriptor or once without any; meanwhile read what the template prints."""
        deadline = time.monotonic() + ANSWER_SECONDS
        if not self._asking.acquire(timeout=ANSWER_SECONDS):
            raise TimeoutError
        try:
            self._is_forking = question["kind"] == "fork"
            for fd in fds or (None,):
                self._channel.send(question, fd)
            while True:
                ready = {key.fileobj for key, _ in self._selector.select(max(deadline - time.monotonic(), 0.0))}
                if self._process.output in ready:
                    self._prints.read()
                if self._channel in ready:
                    return self._channel.receive()[0]
                if time.monotonic() >= deadline:
                    self.kill()  # a later answer would be taken for the answer to another question
                    raise TimeoutError
        except ValueError as closed:  # what selectors and files raise while another thread closes this template
            raise ConnectionError("this template is closed") from closed
        finally:
            self._is_forking = False
            self._asking.release()

    def wait(self, pid: int) -> int | None:
        """Take the return code of a process that this template has forked, and end what that process has left."""
        found: int | None = None
        with contextlib.suppress(OSError, EOFError):  # this template has ended
            found = self._ask({"kind": "wait", "pid": pid})["returncode"]
        left = self._reaper.wait(pid)
        return left if found is None else found

    def kill_if_it_starts(self) -> None:
        """Kill it if it imports the model or forks. An idle template stays, and tells how its children end."""
        if self._is_forking or not self.loaded:
            self.kill()

    def take_prints(self) -> str:
        """Return what it has printed since the last call, when it imported the model or when it forked."""
        with self._asking:
            return super().take_prints()
