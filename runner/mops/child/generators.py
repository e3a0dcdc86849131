"""Seeds the global generators of ``random`` and numpy before each simulation and each target.

Seeding ``random`` takes 4 us, and most models use only the generators of numpy. So until something reads a name of
``random``, mops keeps the seed, and seeds when that happens. mops does not do the same for numpy: it would save 1.5 us,
and each use of ``numpy.random.default_rng`` or ``numpy.random.Generator`` would take longer.

Runs in children: the standard library and numpy only.
"""

from __future__ import annotations

import os
import random
from types import ModuleType

import numpy as np

_APART = frozenset({"Random", "SystemRandom"})
"""Names of ``random`` that do not lead to the global generator; numpy reads them when it is imported."""

_kept: list[int] = []
"""The last seed, if nothing has read a name of ``random`` since."""

# Python gives ``random`` a new seed in a process that a model forks, so that processes draw different numbers.
os.register_at_fork(after_in_child=_kept.clear)


class _Unused(ModuleType):
    """The class of the module ``random`` until something reads a name that may lead to the global generator."""

    def __getattribute__(self, name: str) -> object:
        is_of_import_system = name.startswith("__") and name != "__dict__"
        if not is_of_import_system and name not in _APART:
            while _kept:
                ModuleType.__getattribute__(self, "seed")(_kept.pop())
            random.__class__ = ModuleType
        return ModuleType.__getattribute__(self, name)


def watch() -> None:
    """Seed ``random`` only if something uses it from now on. Call this before the import of the model."""
    random.__class__ = _Unused


def seed_generators(seed: int) -> None:
    """Seed the generator of ``random``, now or at its first use, and the legacy generator of numpy."""
    if type(random) is _Unused:
        _kept[:] = [seed]
    else:
        random.seed(seed)
    # numpy takes 32 bits, or a list of them.
    np.random.seed(seed if seed < 2**32 else [seed & 0xFFFFFFFF, seed >> 32])  # noqa: NPY002
