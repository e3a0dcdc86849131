"""A model whose parameter `do` says what happens: `work`, `fill` memory, or `crash`."""

import os
import signal
import time

import paced


def run(params, seed):
    """Work for a moment, use 600 MiB, or end by a segmentation fault."""
    match params["do"]:
        case "fill":
            filled = bytearray(600 << 20)
            time.sleep(5)
            return {"x": float(len(filled))}
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(params["seconds"] if paced.is_slow() else 0.1)
    return {"x": 1.0}
