"""Collects the problems of several options, so that one error lists all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mops.errors import OptionsError, Problem, SettingsError, StudyError, UsageError


class WrongOptions:
    """Collects what is wrong with options."""

    def __init__(
        self,
        what: str,  # what the options cannot do, for the error that lists several problems
        where: str,  # the job
    ):
        self._what, self._where = what, where
        self._errors: list[UsageError] = []
        self._problems: list[Problem] = []

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Keep an error of the body as one of this option, unless the error itself lists problems with their places."""
        try:
            yield
        except UsageError as bad:
            self._errors.append(bad)
            self._problems += _problems_of(bad, place)

    def raise_if_any(self) -> None:
        """Raise the only UsageError as it is, or one OptionsError that lists the problems of all."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise OptionsError(self._problems, what=self._what, where=self._where)


def _problems_of(bad: UsageError, place: str) -> list[Problem]:
    if isinstance(bad, StudyError | SettingsError | OptionsError):
        return list(bad.problems)
    return [Problem(place, f"{bad.what}; {bad.hint}" if bad.hint else bad.what)]
