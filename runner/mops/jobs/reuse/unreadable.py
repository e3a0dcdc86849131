"""What happens to a job that cannot be read: a reuse leaves it out, with a warning."""

from __future__ import annotations

import logging

import pyarrow as pa

from mops.errors import BundleError, CorruptRecord, JobError, OtherFormat

logger = logging.getLogger(__name__)

UNREADABLE = (CorruptRecord, OtherFormat, JobError, BundleError, OSError, pa.ArrowInvalid)
"""The errors of one damaged or just deleted job. OSError and ArrowInvalid come from a missing or damaged file."""


def warn_unreadable(job: str, bad: Exception) -> None:
    """Say that a job is left out."""
    logger.warning("job %s is not reused, because it cannot be read: %s", job, bad)
