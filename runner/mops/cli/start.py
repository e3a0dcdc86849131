"""The first lines of the command ``mops``: Ctrl-C means the same from its first moment on, and pandas stays away."""

from __future__ import annotations

import importlib
import sys

from mops.cli.interrupt import interruptible


def main() -> None:
    """Import the command line, then run it."""
    sys.meta_path.insert(0, WithoutPandas)
    with interruptible():
        command = importlib.import_module("mops.cli.main")
    command.main()


class WithoutPandas:
    """Hides pandas from this process, which never has a frame: models are imported by others.

    pyarrow imports pandas, where it is installed, at the first value that it converts (pyarrow 26,
    ``_PandasAPIShim._check_import``): a quarter of a second of each command, and 35 MB of each runner. It needs it only
    for Python objects of times with nanoseconds, of which mops makes none (``jobs.trial.compare._without_times``).
    """

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        """Refuse pandas, and leave all others to those who know them (``importlib.abc.MetaPathFinder``)."""
        if name == "pandas":
            raise ModuleNotFoundError("mops itself does without pandas", name=name)


if __name__ == "__main__":
    main()
