"""Reads and writes JSON records; refuses those of a newer mops."""

from __future__ import annotations

import json
import math
import time
from typing import Any

from mops.errors import CorruptRecord, NewerFormat
from mops.storage.files import Files

FORMAT = 1

_DAY_SECONDS = 86400.0


def is_count(value: object) -> bool:
    """Tell whether a JSON value counts something."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def is_number(value: object) -> bool:
    """Tell whether a JSON value is a number that can be reckoned with."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63 and math.isfinite(value)
    )


def is_time(value: object) -> bool:
    """Tell whether a JSON value is a time that somebody can have noted, in seconds since the epoch."""
    return is_number(value) and 0 <= value < time.time() + _DAY_SECONDS  # type: ignore[operator]


_INSTALL_NEWER = "install the version of mops-runner that runs the job, or a newer one"


def read_record(files: Files, path: str) -> dict[str, Any]:
    """Return a JSON record.

    Raises
    ------
    FileNotFoundError
        There is none.
    NewerFormat, CorruptRecord
        It is of a newer mops, or no JSON object.
    """
    return parse_object(files.get(path), f"{files.url}/{path}")


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """Return the JSON record that these bytes are; raises as :func:`read_record`."""
    try:
        fields = json.loads(data)
        newer = fields["format"] > FORMAT
    except (ValueError, KeyError, TypeError, RecursionError) as bad:
        raise CorruptRecord("this record is not what mops wrote", where=where) from bad
    if newer:
        raise NewerFormat(
            f"this record has format {fields['format']}, and this mops reads {FORMAT}",
            where=where,
            hint=f"install mops-runner {fields['mops']} or newer" if "mops" in fields else _INSTALL_NEWER,
        )
    return dict(fields)


def encode_json(record: object) -> bytes:
    """Return a record as JSON in UTF-8, without spaces."""
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()
