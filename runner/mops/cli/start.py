"""The first lines of the command ``mops``: Ctrl-C means the same from its first moment on."""

from __future__ import annotations

import importlib
import signal


def main() -> None:
    """Import the command line, then run it.

    The import takes most of a second. An interrupt in it would show a traceback of somebody's import, or be swallowed
    by one; with the signal's plain meaning the process is gone, as a shell user expects.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    command = importlib.import_module("mops.cli.main")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command.main()


if __name__ == "__main__":
    main()
