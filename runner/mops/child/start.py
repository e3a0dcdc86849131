"""Starts a module of mops in an interpreter that need not have mops: ``python -P start.py MODULE ARGUMENTS``.

``mops`` is made from the folder that this file lies in, and nothing is put on ``sys.path``: the interpreter may be
the modeller's own, with libraries of other versions than ours, and the two must never mix.
"""

import importlib
import importlib.util
import sys
from pathlib import Path


def main() -> None:
    """Run the ``main`` of the module that the first argument names; the others are its own."""
    _make_package(Path(__file__).parents[1])
    del sys.argv[0]
    importlib.import_module(sys.argv[0]).main()


def _make_package(folder: Path) -> None:
    """Import the package in this folder as ``mops``, also where the interpreter has a mops of its own."""
    spec = importlib.util.spec_from_file_location(
        "mops", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["mops"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    main()
