"""How records are stored as JSON: one codec for all kinds of records, and the types of their fields.

A record is a dataclass. Pydantic checks each value strictly against the dataclass's annotations and converts no value
to another type. It ignores fields that the dataclass lacks: a newer mops may add some.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, Field, GetPydanticSchema, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, core_schema

from mops.errors import CorruptRecord, OtherFormat, message_of, printable_path
from mops.storage.files import Files
from mops.study.column_families import Family, is_family
from mops.study.ranges import Ranges

T = TypeVar("T")

FORMAT = 2  # of every JSON record: raise it if fields change; mops refuses all others

RESTORE_HINT = "only mops writes this file: restore it from a backup or from the storage's own history"

_FAULTS_SHOWN = 3
_DAY_SECONDS = 86400.0


@dataclass(frozen=True)
class _Head:  # the fields that records of every format have
    format: int
    mops: Any = None  # the version that wrote the record, in job.json only


_HEAD = TypeAdapter(_Head)


class JsonCodec(Generic[T]):
    """Writes records of one kind as JSON, and reads them back: a dataclass, or a union with a discriminator.

    Methods that read raise OtherFormat if the record has another format, and CorruptRecord if mops did not write it.
    """

    def __init__(self, kind: Any, *, advisory: bool = False, without_defaults: bool = False):
        self._kind = kind
        # An advisory record with a value of a wrong type is written as it is: a reader then skips the record, where an
        # error would end the runner's job.
        self._warnings: Literal["none", "error"] = "none" if advisory else "error"
        self._without_defaults = without_defaults  # leave out fields that have their default values

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:  # built on first use: all of them take 0.1 s
        return TypeAdapter(self._kind)

    def encode(self, record: T, **head: object) -> bytes:
        """Return a record as JSON in UTF-8, with the fields of ``head`` in front.

        ValueError: a value has another type than its field, so :meth:`decode` would refuse the record.
        """
        # json writes the bytes: pydantic writes some floats differently (1e-7 for 1e-07).
        values = self._adapter.dump_python(record, warnings=self._warnings, exclude_defaults=self._without_defaults)
        fields = {"format": FORMAT, **head, **values}
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()

    def decode(self, data: bytes, where: str) -> T:
        """Return the record from its bytes; errors name ``where``."""
        try:
            head = _HEAD.validate_json(data, strict=True)
            if head.format != FORMAT:  # checked first: a record of another format may lack fields
                what = f"this record has format {head.format}, and this mops reads {FORMAT}"
                if head.format > FORMAT:
                    unnamed = "the version of mops-runner that runs the job, or a newer one"
                    hint = f"install {f'mops-runner {head.mops} or newer' if head.mops else unnamed}"
                else:
                    hint = f"use the mops that wrote it{f': mops-runner {head.mops}' if head.mops else ''}"
                raise OtherFormat(what, where=where, hint=hint)
            return self._adapter.validate_json(data, strict=True)
        except ValidationError as bad:
            errors = bad.errors(include_url=False, include_input=False, include_context=False)
            shown = []
            for error in errors[:_FAULTS_SHOWN]:
                field = printable_path(".".join(map(str, error["loc"])))
                shown.append(f"{field}: {message_of(error)}" if field else message_of(error))
            if (more := len(errors) - _FAULTS_SHOWN) > 0:
                shown.append(f"and {more} more")
            what = f"this record is not what mops wrote ({'; '.join(shown)})"
            raise CorruptRecord(what, where=where, hint=RESTORE_HINT) from bad

    def read(self, files: Files, path: str) -> T | None:
        """Return the record in a file; None: the file does not exist."""
        data = files.get_many([path])[0]
        return None if data is None else self.decode(data, f"{files.url}/{path}")


# Types of fields with further rules.

StoredCount: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
StoredNumber: TypeAlias = Annotated[float, Field(gt=-(2**63), lt=2**63, allow_inf_nan=False)]


def _past(time_s: float) -> float:
    if time_s > time.time() + _DAY_SECONDS:  # clocks of machines differ
        raise ValueError("is in the future")
    return time_s


# Seconds since the epoch.
StoredTime: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_past)]


def _family(value: Family) -> Family:
    if not is_family(value):
        raise ValueError("is not a family of column types")
    return value


StoredFamilies: TypeAlias = dict[str, dict[str, Annotated[Family, AfterValidator(_family)]]]


def _ranges(intervals: tuple[tuple[int, int], ...]) -> Ranges:
    if any(start >= stop for start, stop in intervals):
        raise ValueError("some are not intervals [start, stop] with start < stop")
    return Ranges.joined(intervals)


def _ranges_schema(_: object, schema_of: Callable[[Any], CoreSchema]) -> CoreSchema:
    intervals = core_schema.plain_serializer_function_ser_schema(attrgetter("intervals"))
    return core_schema.no_info_after_validator_function(
        _ranges, schema_of(tuple[tuple[int, int], ...]), serialization=intervals
    )


# A list of intervals: [[0, 200], [300, 301]].
StoredRanges: TypeAlias = Annotated[Ranges, GetPydanticSchema(_ranges_schema)]
