"""Signals to a runner, in a process of its own: only what is asked of it is a stand-in. And what is installed, when."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from mops.attempt.attempt import install_seconds
from mops.settings import Settings

PROGRAM = """
import os, time
from mops.attempt.attempt import as_command, stopping_on_signals


class Asked:
    def stop(self, grace_s, *, to_go_on):
        os.write(1, f"stop {grace_s:g}{' to go on' if to_go_on else ''}\\n".encode())


with as_command(), stopping_on_signals(Asked(), "job", 10.0):
    os.write(1, b"ready\\n")  # print() may be interrupted by a handler that prints
    while True:  # as when a commit waits for a storage that does not answer
        time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("number", "how", "code"), [(signal.SIGINT, "", 130), (signal.SIGTERM, " to go on", 143)], ids=["ctrl-c", "sigterm"]
)
def test_a_signal_asks_for_a_good_end_then_for_a_quick_one_then_ends_the_process(
    number: int, how: str, code: int
) -> None:
    """Ctrl-C ends the job; after SIGTERM it goes on."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == f"stop 10{how}\n"
        process.send_signal(number)
        assert process.stdout.readline() == f"stop 0{how}\n"
        process.send_signal(number)
        assert process.wait(timeout=30) == code


@pytest.mark.parametrize(
    ("install", "scheduler", "seconds"),
    [
        ("auto", None, None),
        ("auto", "tcp://host:8786", 90),
        ("always", None, 90),
        ("always", "tcp://host:8786", 90),
        ("never", None, None),
        ("never", "tcp://host:8786", None),
    ],
)
def test_dependencies_are_installed_on_a_cluster_unless_it_is_said_otherwise(
    install: str, scheduler: str | None, seconds: float | None
) -> None:
    given = Settings.model_validate({"install": install, "install_timeout": 90, "scheduler": scheduler})
    assert install_seconds(given) == seconds
