"""Loads functions that a notebook or program defined, and gave to mops at the submit.

mops copies this file into the job's bundle, as mops_functions.py. So it imports only the standard library and
cloudpickle, which the pickle needs.
"""

import json
import linecache
import pickle
import sys
from pathlib import Path
from typing import Any


def load(file: str) -> dict[str, Any]:
    """Return the functions by name, from the files next to this one. Tracebacks show their source."""
    record = json.loads(Path(file).with_suffix(".json").read_text(encoding="utf-8"))
    version = record["python"]
    if version.split(".")[:2] != [str(number) for number in sys.version_info[:2]]:
        raise ImportError(
            f"the functions of this job were defined in Python {version}, and this is Python "
            f"{sys.version.partition(' ')[0]}; use the same version, or write the functions to a file of the project"
        )
    try:
        import cloudpickle  # noqa: F401, PLC0415 - for a clear error
    except ModuleNotFoundError as missing:
        raise ImportError(
            f"the functions of this job need cloudpickle, which is not installed in {sys.prefix}"
        ) from missing
    for name, text in record["sources"].items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    functions: dict[str, Any] = pickle.loads(Path(file).with_suffix(".pickle").read_bytes())  # noqa: S301 - the user's
    return functions
