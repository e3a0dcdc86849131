"""Stores the records of a calibration: what it fits, the sets that each round asks for, and the losses told back.

::

    calibrations/<name>/calibration.json
    calibrations/<name>/rounds/00000001-asked.json  00000001-told.json  00000002-asked.json  ...
    calibrations/<name>/scoring/00000001.json  ...
    calibrations/<name>/data/00000001.json  ...

All are create-only. Round ``k`` begins with its record "asked", its sets run as the job ``<name>-r<k>``, and it ends
with its record "told". A call that weighs sets in another way adds a record "scoring", and a call that accepts changed
data files adds a record "data". Of these two kinds, the last record counts. docs/internals/calibration.md says why no
kill between two records loses anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
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
    """The settings of a calibration that must not change between two rounds.

    Parameters
    ----------
    created
        When the calibration began (UTC, ISO 8601).
    seed
        The seed of the draws.
    space
        The space, as in space.json.
    files
        A checksum of each file of the project, without the files of the space and of the study.
    """

    calibration: str
    created: str
    method: str
    seed: int
    space: dict[str, Any]
    spec: ModelSpec
    n_replicates: int
    files: dict[str, str]


@dataclass(frozen=True)
class Asked:
    """The parameter sets of one round.

    Parameters
    ----------
    k
        The round; the first is 1.
    job
        The job that runs the sets.
    state
        What the method needs at replay besides the sets, such as the distribution from which it drew them.
    kept_seeds
        The earlier round whose seeds a set has, by its param_id. The seeds of the other sets are those of this round.
    """

    k: int
    job: str
    sets: tuple[dict[str, Any], ...]
    state: dict[str, Any]
    kept_seeds: dict[str, int] = field(default_factory=dict)

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
    """How a call weighs the sets. Each call of a calibration may have other values.

    Parameters
    ----------
    weights
        The weight of each loss that counts, by its label; None: the sum of all losses.
    temperature
        The total loss is divided by it.
    ess
        The smallest effective sample size for a posterior.
    objectives
        The losses that the call names as objectives.
    """

    weights: dict[str, float] | None
    temperature: float
    ess: float
    objectives: tuple[str, ...] = ()


@dataclass(frozen=True)
class AcceptedData:
    """The project that a call has accepted although data files differ from those of the rounds before.

    Parameters
    ----------
    files
        As in :class:`CalibrationRecord`.
    """

    files: dict[str, str]


@dataclass(frozen=True)
class Told:
    """The outcomes of one round, in the order of its sets."""

    k: int
    job: str
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class Round:
    """A round that has ended."""

    asked: Asked
    told: Told


_CALIBRATION, _ASKED, _TOLD, _SCORING, _DATA = (
    JsonCodec[CalibrationRecord](CalibrationRecord),
    JsonCodec[Asked](Asked),
    JsonCodec[Told](Told),
    JsonCodec[Scoring](Scoring),
    JsonCodec[AcceptedData](AcceptedData),
)


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

        Raises
        ------
        CorruptRecord
            A record is damaged, or a record of an earlier round is missing.
        """
        folder = f"{self.folder}/rounds"
        told = [entry.path for entry in self.files.list(folder) if entry.path.endswith("-told.json")]
        ks = range(1, len(told) + 1)
        found = [
            Round(*pair)
            for pair in zip(
                self._decoded(_ASKED.decode, [self._round(k, "asked") for k in ks]),
                self._decoded(_TOLD.decode, [self._round(k, "told") for k in ks]),
                strict=True,
            )
        ]
        for each in found:
            if len(each.asked.sets) != len(each.told.outcomes):
                what = f"round {each.asked.k} has {len(each.asked.sets)} sets and {len(each.told.outcomes)} outcomes"
                raise CorruptRecord(what, where=f"{self.files.url}/{folder}", hint=RESTORE_HINT)
        return found

    def scoring(self) -> Scoring | None:
        """Return how the last call weighs the sets; None: no round has ended."""
        return self._last(_SCORING, "scoring")

    def keep_scoring(self, scoring: Scoring) -> None:
        """Store how this call weighs the sets, if the last call had other values."""
        self._append(_SCORING, "scoring", scoring)

    def accepted_data(self) -> AcceptedData | None:
        """Return the project of the last call that has accepted changed data files; None: there was none."""
        return self._last(_DATA, "data")

    def accept_data(self, data: AcceptedData) -> None:
        """Store that data files have changed and that the user accepts it."""
        self._append(_DATA, "data", data)

    def begun(self) -> list[int]:
        """Return the rounds that have a record, in their order. The record may be damaged."""
        return sorted({k for k, _ in self._present()})

    def open_job(self) -> str | None:
        """Return the name of the job of the round that has begun and not ended; None: there is no such round."""
        present = self._present()
        opened = sorted(k for k, what in present if what == "asked" and (k, "told") not in present)
        return self.job(opened[0]) if opened else None

    def remove(self) -> None:
        """Remove all records.

        The last is removed first, one after the other. So after a kill, the calibration has fewer rounds and is not
        damaged.
        """
        entries = [*self.files.list(self.folder), *self.files.scraps(self.folder, 0)]
        for path in sorted({entry.path for entry in entries} - {self._begin}, reverse=True):
            self.files.remove([path])
        self.files.remove([self._begin])
        self.files.prune(self.folder)

    def begin(self, record: CalibrationRecord) -> None:
        """Store what the calibration fits; raises as :meth:`ask`."""
        self._put(self._begin, _CALIBRATION.encode(record))

    def ask(self, asked: Asked) -> None:
        """Store the sets of a round.

        Raises
        ------
        JobError
            Another process has stored other sets for this round.
        """
        self._put(self._round(asked.k, "asked"), _ASKED.encode(asked))

    def tell(self, told: Told) -> None:
        """Store the outcomes of a round; raises as :meth:`ask`."""
        self._put(self._round(told.k, "told"), _TOLD.encode(told))

    @property
    def _begin(self) -> str:
        return f"{self.folder}/calibration.json"

    def _round(self, k: int, what: str) -> str:
        return f"{self.folder}/rounds/{k:08d}-{what}.json"

    def _present(self) -> set[tuple[int, str]]:
        """Return the round of each record, and whether it is "asked" or "told"."""
        names = (entry.path.rpartition("/")[2] for entry in self.files.list(f"{self.folder}/rounds"))
        return {(int(found[1]), found[2]) for name in names if (found := _ROUND.fullmatch(name))}

    def _decoded(self, decode: Callable[[bytes, str], T], paths: list[str]) -> list[T]:
        found = []
        for path, data in zip(paths, self.files.get_many(paths), strict=True):
            where = f"{self.files.url}/{path}"
            if data is None:
                raise CorruptRecord("a record of this calibration is missing", where=where, hint=RESTORE_HINT)
            found.append(decode(data, where))
        return found

    def _last(self, codec: JsonCodec[T], kind: str) -> T | None:
        """Return the last record of a kind; None: there is none."""
        number = self._last_number(kind)
        return codec.read(self.files, self._numbered(kind, number)) if number else None

    def _append(self, codec: JsonCodec[T], kind: str, record: T) -> None:
        """Store a record of a kind as the last one, unless the last one is the same."""
        content = codec.encode(record)
        while self._last(codec, kind) != record:
            self.files.put_new(self._numbered(kind, self._last_number(kind) + 1), content)

    def _last_number(self, kind: str) -> int:
        paths = (entry.path for entry in self.files.list(f"{self.folder}/{kind}"))
        return max((int(found[1]) for path in paths if (found := _NUMBERED.search(path))), default=0)

    def _numbered(self, kind: str, number: int) -> str:
        return f"{self.folder}/{kind}/{number:08d}.json"

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
