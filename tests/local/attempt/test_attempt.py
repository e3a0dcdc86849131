"""Signals to the process of a runner, and when dependencies are installed."""

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


class Runner:
    def stop(self, grace_s, *, by):
        os.write(1, f"stop {grace_s:g} by {by}\\n".encode())


with as_command(), stopping_on_signals(Runner(), "job", 10.0):
    os.write(1, b"ready\\n")  # print() may be interrupted by a handler that prints
    while True:  # like a commit that waits for a storage
        time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("number", "by", "code"),
    [(signal.SIGINT, None, 130), (signal.SIGTERM, 15, 143)],
    ids=["ctrl-c", "sigterm"],
)
def test_the_first_signal_stops_the_runner_the_second_at_once_and_the_third_kills_it(
    number: int, by: int | None, code: int
) -> None:
    """Ctrl-C cancels the job. The other signals leave it to the next runner."""
    with subprocess.Popen(
        ["env", "--default-signal", sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == f"stop 10 by {by}\n"
        process.send_signal(number)
        assert process.stdout.readline() == f"stop 0 by {by}\n"
        process.send_signal(number)
        assert process.wait(timeout=30) == code


def test_dependencies_are_installed_on_a_cluster_or_as_the_setting_says(subtests: pytest.Subtests) -> None:
    for install, scheduler, seconds in [
        ("auto", None, None),
        ("auto", "tcp://host:8786", 90),
        ("always", None, 90),
        ("always", "tcp://host:8786", 90),
        ("never", None, None),
        ("never", "tcp://host:8786", None),
    ]:
        with subtests.test(str((install, scheduler, seconds))):
            given = Settings.model_validate({"install": install, "install_timeout": 90, "scheduler": scheduler})
            assert install_seconds(given) == seconds
