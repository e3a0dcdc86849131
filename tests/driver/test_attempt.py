"""Signals to a runner, in a process of its own: only what is asked of the runner is a stand-in."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import time
from mops.driver.attempt import stopping_on_signals


class Asked:
    def stop(self, grace_s, *, to_go_on):
        print(f"stop {grace_s:g}{' to go on' if to_go_on else ''}", flush=True)


with stopping_on_signals(Asked()):
    print("ready", flush=True)
    while True:  # as when a commit waits for a storage that does not answer
        time.sleep(0.05)
"""


def test_ctrl_c_asks_for_a_good_end_then_for_a_quick_one_then_ends_the_process() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stop 10\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stop 0\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130


def test_sigterm_asks_for_an_end_after_which_the_job_goes_on() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stop 10 to go on\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stop 0 to go on\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 143
