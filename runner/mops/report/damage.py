"""Tells damaged parts of a job from defects of mops, when rows cannot be read."""

from __future__ import annotations

import pyarrow as pa

from mops.errors import CorruptRecord
from mops.jobs.data import JobData, verify
from mops.storage.dataset import part_damaged

# What reading a damaged part raises. Changed bytes may still be pages that Arrow reads, with values that are wrong.
READING_FAULTS = (CorruptRecord, pa.ArrowException, UnicodeDecodeError)


def damage_of(data: JobData, fault: Exception) -> CorruptRecord:
    """Return what is damaged. Raises the fault again if all parts are as mops has written them."""
    if isinstance(fault, CorruptRecord):
        return fault
    problems = verify(data.files, data.name)
    if not problems:
        raise fault
    return part_damaged(data.name, problems[0])
