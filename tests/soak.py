"""How long and how random tests with kills are: short and always the same, or full and at random (``make soak``)."""

from __future__ import annotations

import math
import os
import random

SOAKING = os.environ.get("MOPS_SOAK", "") not in ("", "0")


def repeats(full: int) -> int:
    """Return how often a test kills: a third of its full number, unless tests soak."""
    return full if SOAKING else math.ceil(full / 3)


def generator(fixed_seed: int) -> random.Random:
    """Return a generator of the fixed seed; while tests soak, of another one each time, which is printed.

    ``MOPS_SOAK_SEED`` repeats a run: pytest shows what a failed test printed.
    """
    seed = fixed_seed
    if SOAKING:
        seed = int(os.environ.get("MOPS_SOAK_SEED") or random.SystemRandom().getrandbits(32))
        print(f"MOPS_SOAK_SEED={seed}")
    return random.Random(seed)
