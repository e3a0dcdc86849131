"""Stores the records of a calibration: what it fits, the sets that each round asks for, and the losses told back.

All are create-only. Round ``k`` begins with "asked", its sets run as the job ``<name>-r<k>``, and it ends with "told".
Of "scoring", the last record counts. docs/internals/calibration.md says why no kill loses anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, TypeVar

from pydantic import Field

from mops.errors import CorruptRecord, JobError
from mops.project.project import ModelSpec
from mops.storage.backends.base import Put
from mops.storage.files import Files
from mops.storage.json_records import RESTORE_HINT, JsonCodec
from mops.study.ids_and_seeds import param_id

CALIBRATIONS = "calibrations"

T = TypeVar("T")

_ROUND = re.compile(r"(\d{8})-(asked|told)\.json")
_NUMBERED = re.compile(r"/(\d{8})\.json$")


@dataclass(frozen=True)
class CalibrationRecord:
    """The settings of a calibration that must not change between two rounds: ``calibration.json``."""

    calibration: str
    created: str  # UTC, ISO 8601
    method: str
    seed: int  # of the draws
    space: dict[str, Any]  # as in space.json
    spec: ModelSpec
    n_replicates: int

    @property
    def identity(self) -> str:
        """The name and the time, in the records of its jobs: another calibration may get the name."""
        return f"{self.calibration}/{self.created}"


def name_in(identity: str) -> str:
    """Return the name of the calibration with an identity; empty: the identity is empty."""
    return identity.partition("/")[0]


@dataclass(frozen=True)
class Asked:
    """The parameter sets of one round: ``rounds/<k>-asked.json``; the first ``k`` is 1."""

    k: int
    job: str  # which runs the sets
    sets: tuple[dict[str, Any], ...]
    state: dict[str, Any]  # what the method needs at replay besides the sets, such as their distribution
    kept_seeds: dict[str, int] = field(default_factory=dict)  # by param_id: the earlier round whose seeds the set has

    @cached_property
    def param_ids(self) -> tuple[str, ...]:
        """The param_id of each set."""
        return tuple(map(param_id, self.sets))

    def seeds_of_round(self, identity: str) -> int:
        """Return the round whose seeds a set has."""
        return self.kept_seeds.get(identity, self.k)


@dataclass(frozen=True)
class Outcome:
    """The losses of one parameter set by their labels, or the verdict of its failure.

    A failed set has no losses. Nothing stands for them, in particular no infinity.
    """

    losses: dict[str, Annotated[float, Field(allow_inf_nan=False)]]
    failure: str | None = None


@dataclass(frozen=True)
class Scoring:
    """How a call weighs the sets: ``scoring/<number>.json``. Each call may have other values."""

    weights: dict[str, float] | None  # of each loss that counts, by its label; None: the sum of all losses
    temperature: float  # the total loss is divided by it
    ess: float  # the smallest effective sample size for a posterior
    objectives: tuple[str, ...] = ()  # the losses that the call names as objectives


@dataclass(frozen=True)
class Told:
    """The outcomes of one round, in the order of its sets: ``rounds/<k>-told.json``."""

    k: int
    job: str
    bundle: str = ""  # the digest of the job's project, with which later calls compare; empty: unknown
    outcomes: tuple[Outcome, ...] = field(kw_only=True)


@dataclass(frozen=True)
class Round(Asked):
    """A round that has ended: both of its records."""

    outcomes: tuple[Outcome, ...] = field(kw_only=True)  # in the order of the sets
    bundle: str = field(default="", kw_only=True)


_CALIBRATION = JsonCodec[CalibrationRecord](CalibrationRecord)
_ASKED = JsonCodec[Asked](Asked)
_TOLD = JsonCodec[Told](Told)
_SCORING = JsonCodec[Scoring](Scoring)


@dataclass(frozen=True)
class CalibrationRecords:
    """The records of one calibration."""

    files: Files
    name: str

    @property
    def folder(self) -> str:
        """The folder of the records."""
        return f"{CALIBRATIONS}/{self.name}"

    def job(self, k: int) -> str:
        """Return the name of the job of round ``k``."""
        return f"{self.name}-r{k}"

    def calibration(self) -> CalibrationRecord | None:
        """Return what the calibration fits; None: it does not exist."""
        return _CALIBRATION.read(self.files, self._begin)

    def asked(self, k: int) -> Asked | None:
        """Return the sets of round ``k``; None: it has not begun."""
        return _ASKED.read(self.files, self._round(k, "asked"))

    def rounds(self) -> list[Round]:
        """Return the rounds that have ended, in their order.

        CorruptRecord: a record is damaged, or a record of an earlier round is missing.
        """
        folder = f"{self.folder}/rounds"
        told = [entry.path for entry in self.files.list(folder) if entry.path.endswith("-told.json")]
        ks = range(1, len(told) + 1)
        asked = self._decoded(_ASKED, [self._round(k, "asked") for k in ks])
        ended = self._decoded(_TOLD, [self._round(k, "told") for k in ks])
        found = [
            Round(
                **{one.name: getattr(each, one.name) for one in fields(each)}, outcomes=its.outcomes, bundle=its.bundle
            )
            for each, its in zip(asked, ended, strict=True)
        ]
        for each in found:
            if len(each.sets) != len(each.outcomes):
                what = f"round {each.k} has {len(each.sets)} sets and {len(each.outcomes)} outcomes"
                raise CorruptRecord(what, where=f"{self.files.url}/{folder}", hint=RESTORE_HINT)
        return found

    def scoring(self) -> Scoring | None:
        """Return how the last call weighs the sets; None: no round has ended."""
        number = self._last_scoring()
        return _SCORING.read(self.files, self._scoring(number)) if number else None

    def keep_scoring(self, scoring: Scoring) -> None:
        """Store how this call weighs the sets, if the last call had other values."""
        while self.scoring() != scoring:
            self.files.put_new(self._scoring(self._last_scoring() + 1), _SCORING.encode(scoring))

    def begun(self) -> list[int]:
        """Return the rounds that have a record, in their order. The record may be damaged."""
        return sorted({k for k, _ in self._present()})

    def open_job(self) -> str | None:
        """Return the name of the job of the round that has begun and not ended; None: there is no such round."""
        present = self._present()
        opened = sorted(k for k, what in present if what == "asked" and (k, "told") not in present)
        return self.job(opened[0]) if opened else None

    def remove(self) -> None:
        """Remove all records."""
        # The last first, one after the other: after a kill, the calibration has fewer rounds and is not damaged.
        for path in sorted({entry.path for entry in self.files.list(self.folder)} - {self._begin}, reverse=True):
            self.files.remove([path])
        self.files.remove([self._begin])
        self.files.prune(self.folder)

    def begin(self, record: CalibrationRecord) -> None:
        """Store what the calibration fits. JobError: another process has stored something else."""
        self._put(self._begin, _CALIBRATION.encode(record))

    def ask(self, asked: Asked) -> None:
        """Store the sets of a round; raises as :meth:`begin`."""
        self._put(self._round(asked.k, "asked"), _ASKED.encode(asked))

    def tell(self, asked: Asked, bundle: str, outcomes: tuple[Outcome, ...]) -> None:
        """Store the outcomes of a round; raises as :meth:`begin`."""
        self._put(self._round(asked.k, "told"), _TOLD.encode(Told(asked.k, asked.job, bundle, outcomes=outcomes)))

    @property
    def _begin(self) -> str:
        return f"{self.folder}/calibration.json"

    def _round(self, k: int, what: str) -> str:
        return f"{self.folder}/rounds/{k:08d}-{what}.json"

    def _present(self) -> set[tuple[int, str]]:
        names = (entry.path.rpartition("/")[2] for entry in self.files.list(f"{self.folder}/rounds"))
        return {(int(found[1]), found[2]) for name in names if (found := _ROUND.fullmatch(name))}

    def _decoded(self, codec: JsonCodec[T], paths: list[str]) -> list[T]:
        found = []
        for path, data in zip(paths, self.files.get_many(paths), strict=True):
            where = f"{self.files.url}/{path}"
            if data is None:
                raise CorruptRecord("a record of this calibration is missing", where=where, hint=RESTORE_HINT)
            found.append(codec.decode(data, where))
        return found

    def _last_scoring(self) -> int:
        paths = (entry.path for entry in self.files.list(f"{self.folder}/scoring"))
        return max((int(found[1]) for path in paths if (found := _NUMBERED.search(path))), default=0)

    def _scoring(self, number: int) -> str:
        return f"{self.folder}/scoring/{number:08d}.json"

    def _put(self, path: str, content: bytes) -> None:
        if self.files.put_new(path, content) is Put.OTHER:
            raise JobError(
                f"another process also runs calibration {self.name!r}",
                where=f"{self.files.url}/{path}",
                hint="wait until the other process has ended, then repeat the command",
            )


def calibration_names(files: Files) -> list[str]:
    """Return the names of the calibrations of a storage."""
    return sorted(files.folders(CALIBRATIONS))
