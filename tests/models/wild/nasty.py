"""A model that misbehaves in the way that its parameter `what` names (see WAYS at the end).

`when` (optional) is the seed at which it does so; with any other seed it behaves.
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
    """An exception that no pickle carries: it holds a lock."""

    def __init__(self, message):
        super().__init__(message)
        self.lock = threading.Lock()


class TwoArgumentsError(Exception):
    """An exception that pickles but cannot be unpickled: its constructor wants more than `args` holds."""

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
            raise RuntimeError("not even its text can be had")

    raise UnprintableError


def raises_long():
    raise ValueError("x" * 10_000_000)


def recurses():
    return recurses()


def memory_error():
    raise MemoryError


# --- ways out ---


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


# --- talk ---


def prints():
    """Write to stdout and stderr by every way there is: Python, the descriptor, a child process."""
    print("printed by Python")
    print("printed by Python to stderr", file=sys.stderr)
    os.write(1, b"written to descriptor 1\n")
    os.write(2, b"written to descriptor 2\n")
    subprocess.run([sys.executable, "-c", "print('printed by a subprocess')"], check=True)
    return good()


def prints_bytes():
    """Write what is not UTF-8, without an end of line."""
    os.write(1, b"\xff\xfe not text")
    return good()


def prints_much():
    """Write 5 MB, more than any pipe holds."""
    for _ in range(50_000):
        print("x" * 99)
    return good()


def reads_stdin():
    """Ask the user, who is not there."""
    return {"answer": input("continue? ")}


# --- nonsense as a result ---


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
    """A good result: where others return floats, these are integers."""
    return {"day": [0, 1, 2], "value": [0, 1, 2]}


def returns_nan():
    """A good result: NaN and infinities are numbers that a model may return."""
    return {"day": [0, 1, 2, 3], "value": [math.nan, math.inf, -math.inf, 1.0]}


def returns_nothing_in_rows():
    """A good result: the columns are there, the rows are none."""
    return {"day": np.array([], dtype=np.int64), "value": np.array([], dtype=np.float64)}


# --- no end ---


def endless():
    """Loop in Python: other threads of the process still get their turn."""
    while True:
        pass


def endless_asleep():
    while True:
        time.sleep(3600)


def endless_holding_gil():
    """Stay in C without giving up the GIL: no other thread of the process runs again."""
    while True:
        ctypes.PyDLL(None).pause()


def endless_regex():
    """Match catastrophically: `re` holds the GIL, and this takes longer than the universe has."""
    return {"matched": re.match(r"(a+)+$", "a" * 64 + "b") is not None}


def endless_ignoring_sigterm():
    """Loop, deaf to polite requests."""
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(0.1)


# --- what is left behind ---


def leaves_subprocess():
    """Return while a process of its own goes on (for a minute: nobody should have to hunt it)."""
    child = subprocess.Popen(["sleep", "60"])
    return {"pid": child.pid}


def leaves_thread():
    """Return while a thread of its own goes on and keeps the interpreter from ending."""
    threading.Thread(target=time.sleep, args=(60,)).start()
    return good()


def changes_directory():
    os.chdir("/")
    return good()


def closes_descriptors():
    """Close every descriptor above stderr, the runner's own among them."""
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
        prints_much,
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
        leaves_subprocess,
        leaves_thread,
        changes_directory,
        closes_descriptors,
    )
}
