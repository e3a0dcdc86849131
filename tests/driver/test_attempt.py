"""Signals to a runner, in a process of its own: only what is asked of it is a stand-in. And what is installed, when."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from mops.driver.attempt import install_seconds
from mops.settings import Settings

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
