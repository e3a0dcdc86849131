"""Tests with kills are short and always the same, or long and random (``make soak``)."""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
SOAKING = os.environ.get("MOPS_SOAK", "") not in ("", "0")


def repeats(full: int) -> int:
    """Return the number of kills of a test: the full number, or a third of it without ``make soak``."""
    return full if SOAKING else math.ceil(full / 3)


def moments() -> Iterator[int]:
    """Yield the numbers 1, 2, 3 ... of the moments at which a test interferes; every third without ``make soak``."""
    return itertools.count(1, 1 if SOAKING else 3)


def spread(cases: Iterable[T], n: int) -> list[T]:
    """Return all cases; without ``make soak``, ``n`` of them, evenly spread, the first and the last among them."""
    found = list(cases)
    if SOAKING or n >= len(found):
        return found
    return [found[round(i * (len(found) - 1) / max(n - 1, 1))] for i in range(n)]


def generator(fixed_seed: int) -> random.Random:
    """Return a generator with the fixed seed, or with ``make soak`` with a random one, which is printed.

    ``MOPS_SOAK_SEED`` repeats a run. Pytest shows what a failed test printed.
    """
    seed = fixed_seed
    if SOAKING:
        seed = int(os.environ.get("MOPS_SOAK_SEED") or random.SystemRandom().getrandbits(32))
        print(f"MOPS_SOAK_SEED={seed}")
    return random.Random(seed)
