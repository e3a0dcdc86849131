"""Ends copies of this process that user code has forked, before they run the rest of the task.

``os.fork`` returns in both processes. If the copy does not end by itself, it would run the same simulations as this
process and use the same socket. Runs in children: the standard library and pyarrow only.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from mops.child.texts import describe, flush_prints


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    """Run user code in the body, which only the process that has entered it leaves."""
    pid = os.getpid()
    try:
        yield
    finally:
        end_copy_of(pid)


def end_copy_of(pid: int) -> None:
    """End this process if it is not the process ``pid``, in which the user code was called that has just returned.

    Call it in a ``finally`` clause. The exit code is that of a script which ends in this way.
    """
    if os.getpid() == pid:  # os.register_at_fork would not notice a fork of native code
        return
    error = sys.exc_info()[1]
    exit_code = 0 if error is None else 1
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        exit_code = error.code or 0
    elif error is not None:
        with contextlib.suppress(Exception):  # the model may have put anything there
            sys.stderr.write(describe(error)["traceback"])
    flush_prints()
    os._exit(exit_code & 0xFF)  # not the exit handlers, which libraries have registered for the first process
