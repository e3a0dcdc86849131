"""Starts a module of mops in an interpreter in which mops is not installed: ``python -P start.py MODULE ARGUMENTS``.

The package ``mops`` comes from this file's folder, and nothing is added to ``sys.path``: the interpreter may be the
user's, and its libraries must not mix with those of mops.
"""

import importlib
import importlib.util
import sys
from pathlib import Path


def main() -> None:
    """Run the ``main`` of the module that the first argument names, with the other arguments."""
    # The package of this file, even if the interpreter has another mops.
    folder = Path(__file__).parents[1]
    spec = importlib.util.spec_from_file_location(
        "mops", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["mops"] = package
    spec.loader.exec_module(package)
    del sys.argv[0]
    importlib.import_module(sys.argv[0]).main()


if __name__ == "__main__":
    main()
