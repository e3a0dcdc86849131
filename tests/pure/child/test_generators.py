"""The global generators: seeded before each simulation and target, `random` only if something uses it."""

import importlib
import os
import random
from types import ModuleType

import numpy as np
import pytest

from mops.child import generators

WAYS = {
    "a function": lambda: random.random(),
    "an import from it": lambda: exec("from random import gauss; found = gauss()", found := {}) or found["found"],
    "a star import": lambda: exec("from random import *; found = random()", found := {}) or found["found"],
    "its dictionary": lambda: vars(random)["random"](),
    "its state": lambda: random.getstate(),
    "the hidden object": lambda: random._inst.random(),
}


@pytest.fixture(autouse=True)
def watched():
    state = random.getstate()
    generators.watch()
    yield
    generators._kept.clear()
    random.__class__ = ModuleType
    random.setstate(state)


def is_watched():
    return type(random) is not ModuleType


def expected(way, seed):
    random.__class__ = ModuleType
    random.seed(seed)
    return way()


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_the_first_use_finds_the_last_seed(way):
    for seed in (1, 2, 3):
        generators.seed_generators(seed)
    assert is_watched()
    found = way()
    assert not is_watched()
    assert found == expected(way, 3)


def test_processes_that_a_model_forks_draw_different_numbers():
    """With the seed that was kept for the model, all of them would draw the same."""
    generators.seed_generators(1)
    drawn = set()
    for _ in range(2):
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            os.write(write, repr(random.random()).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        drawn.add(os.read(read, 100))
        os.close(read)
        os.close(write)
    assert len(drawn) == 2
    assert random.random() == random.Random(1).random(), "the model's own process has the seed"


def test_after_the_first_use_each_seed_counts():
    generators.seed_generators(1)
    random.gauss(0, 1)  # which keeps a second value for the next call
    for seed in (2, 2**64 - 1):
        generators.seed_generators(seed)
        assert random.gauss(0, 1) == random.Random(seed).gauss(0, 1)


def test_a_use_during_the_import_of_the_model_does_not_seed():
    state = expected(random.getstate, 5)
    generators.watch()
    assert random.getstate() == state
    generators.seed_generators(6)
    assert random.random() == random.Random(6).random()


def test_imports_and_other_generators_do_not_count_as_use():
    generators.seed_generators(1)
    importlib.import_module("random")
    assert random.Random(5).random() == random.Random(5).random()
    assert random.__name__ == "random"
    assert is_watched()


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**32, 2**64 - 1])
def test_numpys_generator_is_seeded_at_once(seed):
    generators.seed_generators(seed)
    words = seed if seed < 2**32 else [seed & 0xFFFFFFFF, seed >> 32]
    assert np.random.standard_normal() == np.random.RandomState(words).standard_normal()  # noqa: NPY002
