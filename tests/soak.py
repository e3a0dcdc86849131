"""Tests with kills are short and always the same, or long and random (``make soak``)."""

from __future__ import annotations

import math
import os
import random

SOAKING = os.environ.get("MOPS_SOAK", "") not in ("", "0")


def repeats(full: int) -> int:
    """Return the number of kills of a test: the full number, or a third of it without ``make soak``."""
    return full if SOAKING else math.ceil(full / 3)


def generator(fixed_seed: int) -> random.Random:
    """Return a generator with the fixed seed, or with ``make soak`` with a random one, which is printed.

    ``MOPS_SOAK_SEED`` repeats a run. Pytest shows what a failed test printed.
    """
    seed = fixed_seed
    if SOAKING:
        seed = int(os.environ.get("MOPS_SOAK_SEED") or random.SystemRandom().getrandbits(32))
        print(f"MOPS_SOAK_SEED={seed}")
    return random.Random(seed)
