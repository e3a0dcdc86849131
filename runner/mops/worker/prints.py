"""The output of a child process, as its worker reads it from a pipe."""

from __future__ import annotations

import os
import selectors
from pathlib import Path
from typing import IO

from mops.child.prints import without_headings

_FRAME_OF_MOPS = f'  File "{Path(__file__).parents[1]}/'  # as faulthandler writes it
_WHERE = "where it was when mops stopped it (most recent call first):"


class Prints:
    """The output of a process: the last 64 KiB since it was taken, and its last words."""

    LIMIT_BYTES = 64 << 10
    READS_LEFT = 32  # of 64 KiB: more than a pipe holds. Limited, because a process may never stop printing.
    LAST_WORDS_BYTES = 4 << 10
    FATAL_BYTES = 32 << 10  # faulthandler's hundred frames of each thread

    def __init__(self, output: IO[bytes], selector: selectors.BaseSelector):
        self._output, self._selector = output, selector
        self._text, self._tail = bytearray(), bytearray()
        self._n_printed = 0  # bytes since the text was taken, with those that are not kept
        os.set_blocking(output.fileno(), False)
        selector.register(output, selectors.EVENT_READ)

    def read(self) -> None:
        """Read what is there, at most 64 KiB."""
        try:
            text = os.read(self._output.fileno(), 65536)
        except BlockingIOError:
            return
        if not text:
            self._selector.unregister(self._output)
            return
        self._n_printed += len(text)
        self._text = (self._text + text)[-self.LIMIT_BYTES :]
        self._tail = (self._tail + text)[-self.FATAL_BYTES :]

    def read_rest(self) -> None:
        """Read what is left of a process that has ended."""
        for _ in range(self.READS_LEFT):
            before = self._n_printed
            if self._selector.get_map().get(self._output) is not None:
                self.read()
            if self._n_printed == before:
                return

    def take(self) -> str:
        """Return what was printed since the last call, the last 64 KiB of it."""
        self.read_rest()
        dropped = self._n_printed - len(self._text)
        text = self._text.decode(errors="replace")
        self._n_printed = 0
        self._text.clear()
        return f"({dropped} bytes of output left out)\n{text}" if dropped > 0 else text

    def last_words(self, *, was_aborted: bool = False) -> str:
        """Return the end of what was printed; if faulthandler wrote, its start, which names the line.

        Parameters
        ----------
        was_aborted
            Whether mops has sent SIGABRT, to see where the process hangs. Then the signal is no news.
        """
        printed = without_headings(self._tail.decode(errors="replace"))
        _, fatal, trace = printed.rpartition("Fatal Python error: ")
        if not fatal:
            return printed[-self.LAST_WORDS_BYTES :].strip()
        # Other threads come before the thread that died; the names of all extension modules, maybe hundreds, after it.
        what, _, frames = trace.partition("\nExtension modules:")[0].partition("\n\n")
        others, current, own = frames.partition("Current thread")
        text = f"{fatal}{what}\n\n{current}{own or others}"
        if was_aborted:
            _, _, calls = (own or others).partition("\n")
            text = f"{_WHERE}\n{calls}"
        users = (line for line in text.splitlines() if not line.startswith(_FRAME_OF_MOPS))
        return "\n".join(users)[: self.LAST_WORDS_BYTES].strip()
