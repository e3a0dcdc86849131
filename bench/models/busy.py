"""A model that sleeps and notes when, to measure which share of the time a slot runs a simulation."""

import os
import struct
import time


def run(params, seed):
    """Sleep, note the begin and the end, and fail if the set says so."""
    began = time.time()
    time.sleep(params["seconds"])
    log = os.open(params["log"], os.O_WRONLY | os.O_APPEND)
    os.write(log, struct.pack("dd", began, time.time()))
    os.close(log)
    if params["fails"]:
        raise ValueError("this set fails")
    return {"y": seed % 1000}
