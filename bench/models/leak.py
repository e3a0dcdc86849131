"""A model that leaks native memory: nothing but its process's end gives it back.

| parameter | meaning |
|---|---|
| `mib` | what one simulation leaks, all of it written to |
"""

import ctypes
import os

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]


def simulate(params, seed):
    """Return which process has leaked."""
    n_bytes = params["mib"] << 20
    ctypes.memset(_libc.malloc(n_bytes), 1, n_bytes)
    return {"pid": os.getpid()}
