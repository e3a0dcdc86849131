"""Remembers what is known of a type, because a model returns the same few types again and again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar, cast

Found = TypeVar("Found")

_MOST_TYPES = 128


def by_type(function: Callable[[type], Found]) -> Callable[[type], Found]:
    """Return a function of a type that computes each result once. A model may make classes without end."""
    return cast(Callable[[type], Found], functools.lru_cache(_MOST_TYPES)(function))
