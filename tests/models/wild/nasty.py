"""A model that misbehaves in the way that its parameter `what` names (see WAYS at the end).

With the optional parameter `when`, it misbehaves only with this seed.
"""

import ctypes
import math
import os
import re
import subprocess
import sys
import threading
import time

import numpy as np


def simulate(params, seed):
    """Misbehave, or return a good table."""
    if params.get("when", seed) != seed:
        return good()
    return WAYS[params.get("what", "good")]()


def good():
    return {"day": [0, 1, 2], "value": [0.5, 1.5, 2.5]}


# --- exceptions ---


class LockedError(Exception):
    """An exception that cannot be pickled, because it holds a lock."""

    def __init__(self, message):
        super().__init__(message)
        self.lock = threading.Lock()


class TwoArgumentsError(Exception):
    """An exception that cannot be unpickled, because its constructor needs more than `args` holds."""

    def __init__(self, code, detail):
        super().__init__(f"{code}: {detail}")


def raises():
    raise ValueError("the model does not like this: beta must be below 1")


def raises_locked():
    raise LockedError("this exception holds a lock")


def raises_local_class():
    class LocalError(Exception):
        pass

    raise LocalError("the class of this exception lives in a function")


def raises_two_arguments():
    raise TwoArgumentsError(7, "cannot be unpickled")


def raises_chained():
    try:
        {}["missing"]
    except KeyError as error:
        raise RuntimeError("while looking something up") from error


def raises_with_note():
    error = ValueError("the solver diverged")
    error.add_note("at step 17")
    raise error


def raises_group():
    raise ExceptionGroup("two solvers", [ValueError("the first diverged"), KeyError("the second")])


def raises_unprintable():
    class UnprintableError(Exception):
        def __str__(self):
            raise RuntimeError("its text cannot be read")

    raise UnprintableError


def raises_long():
    raise ValueError("x" * 10_000_000)


def recurses():
    return recurses()


def memory_error():
    raise MemoryError


# --- exits ---


def system_exit():
    raise SystemExit(3)


def keyboard_interrupt():
    raise KeyboardInterrupt


def os_exit():
    os._exit(7)


def segfault():
    ctypes.string_at(0)


def abort():
    os.abort()


# --- output ---


def prints():
    """Write to stdout and stderr from Python, to the descriptor and from a subprocess."""
    print("printed by Python")
    print("printed by Python to stderr", file=sys.stderr)
    os.write(1, b"written to descriptor 1\n")
    os.write(2, b"written to descriptor 2\n")
    subprocess.run([sys.executable, "-c", "print('printed by a subprocess')"], check=True)
    return good()


def prints_bytes():
    """Write bytes that are not UTF-8, without an end of line."""
    os.write(1, b"\xff\xfe not text")
    return good()


def reads_stdin():
    """Read from standard input, which is empty."""
    return {"answer": input("continue? ")}


# --- results ---


def returns_none():
    return None


def returns_five_wide_list():
    return [1, 2, 3, 4, 5]


def returns_ragged():
    return {"day": [0, 1, 2], "value": [0.5]}


def returns_objects():
    return {"day": [0, 1], "thing": np.array([object(), {"a": threading.Lock()}], dtype=object)}


def returns_mixed_column():
    return {"day": [0, 1], "value": [1.5, "one"]}


def returns_empty():
    return {}


def returns_generator():
    return ({"day": [day]} for day in range(3))


def returns_other_columns():
    return {"day": [0, 1, 2], "speed": [0.5, 1.5, 2.5]}


def returns_other_kind():
    return {"day": [0, 1, 2], "value": ["a", "b", "c"]}


def returns_integers():
    """Return a valid table with integers in place of floats."""
    return {"day": [0, 1, 2], "value": [0, 1, 2]}


def returns_nan():
    """Return a valid table with NaN and infinities."""
    return {"day": [0, 1, 2, 3], "value": [math.nan, math.inf, -math.inf, 1.0]}


def returns_nothing_in_rows():
    """Return a valid table without rows."""
    return {"day": np.array([], dtype=np.int64), "value": np.array([], dtype=np.float64)}


# --- simulations that never end ---


def endless():
    """Loop in Python, which lets other threads of the process run."""
    while True:
        pass


def endless_asleep():
    while True:
        time.sleep(3600)


def endless_holding_gil():
    """Hold the GIL in C, so that no other thread of the process runs again."""
    while True:
        ctypes.PyDLL(None).pause()


def endless_regex():
    """Match a regular expression that takes exponential time and holds the GIL."""
    return {"matched": re.match(r"(a+)+$", "a" * 64 + "b") is not None}


def endless_ignoring_sigterm():
    """Ignore SIGTERM."""
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(0.1)


# --- threads and descriptors ---


def leaves_thread():
    """Return while a thread still runs and keeps the interpreter from exiting."""
    threading.Thread(target=time.sleep, args=(60,)).start()
    return good()


def closes_descriptors():
    """Close every descriptor above stderr, including those of mops."""
    os.closerange(3, 256)
    return good()


WAYS = {
    way.__name__: way
    for way in (
        good,
        raises,
        raises_locked,
        raises_local_class,
        raises_two_arguments,
        raises_chained,
        raises_with_note,
        raises_group,
        raises_unprintable,
        raises_long,
        recurses,
        memory_error,
        system_exit,
        keyboard_interrupt,
        os_exit,
        segfault,
        abort,
        prints,
        prints_bytes,
        reads_stdin,
        returns_none,
        returns_five_wide_list,
        returns_ragged,
        returns_objects,
        returns_mixed_column,
        returns_empty,
        returns_generator,
        returns_other_columns,
        returns_other_kind,
        returns_integers,
        returns_nan,
        returns_nothing_in_rows,
        endless,
        endless_asleep,
        endless_holding_gil,
        endless_regex,
        endless_ignoring_sigterm,
        leaves_thread,
        closes_descriptors,
    )
}
