"""The entry point of the command ``mops``: prepares the process, and hides pandas."""

from __future__ import annotations

import gc
import importlib
import sys

from mops.cli.process import interruptible, prepare_streams

_YOUNG_OBJECTS = 50_000


def main() -> None:
    """Import the command line, then run it."""
    prepare_streams()
    gc.set_threshold(_YOUNG_OBJECTS)  # imports make 100,000 objects and no garbage
    sys.meta_path.insert(0, WithoutPandas)
    try:
        with interruptible():
            command = importlib.import_module("mops.cli.main")
        command.main()
    finally:
        gc.freeze()  # or Python's last collection would read every object


class WithoutPandas:
    """Hides pandas from this process, which needs no data frames: child processes import the models.

    If pandas is installed, pyarrow imports it at the first value that it converts (pyarrow 26,
    ``_PandasAPIShim._check_import``). bench/tricks.py, mops jobs status: -30 % of CPU time, -25 % of memory. pyarrow
    needs pandas only for Python objects of times with nanoseconds, which mops does not make
    (``jobs.compare.without_times``).
    """

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        """Refuse pandas, and leave other modules to other finders (``importlib.abc.MetaPathFinder``)."""
        if name == "pandas" and "SALib" not in sys.modules:  # which imports pandas, for the Sobol indices of a report
            raise ModuleNotFoundError("mops does not use pandas", name=name)


if __name__ == "__main__":
    main()
