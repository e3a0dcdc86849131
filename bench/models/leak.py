"""A model that leaks native memory. Only the end of its process frees the memory.

| parameter | meaning |
|---|---|
| `mib` | MiB that one simulation leaks; it writes to every page |
"""

import ctypes
import os

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]


def simulate(params, seed):
    """Return the id of the process that leaked."""
    n_bytes = params["mib"] << 20
    ctypes.memset(_libc.malloc(n_bytes), 1, n_bytes)
    return {"pid": os.getpid()}
