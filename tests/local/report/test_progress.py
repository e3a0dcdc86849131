"""The progress of a job in its report: commits are steps, and few samples are no course."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mops.report.content import Block, Gallery, Section
from mops.report.progress import progress
from mops.storage.progress_record import Progress
from mops.storage.samples import as_table
from mops.verdicts import Counts


def section_of(rates: list[float], n: int) -> Section:
    """Return the section of a job with these samples, 10 s apart, with a commit of all simulations after each third."""
    rows, done, durable = [], 0, 0
    for i, rate in enumerate(rates):
        done += int(10 * rate)
        durable = done if i % 3 == 2 else durable
        rows.append(
            (1, Progress(10.0 * i, Counts(done), durable=Counts(durable), rate=rate, memory_bytes=2**30, slots=4))
        )
    record = SimpleNamespace(n_simulations=n)
    data = SimpleNamespace(samples=as_table(rows), record=record, last_live=None)
    facts: Any = SimpleNamespace(data=data)
    return progress(facts)


def test_committed_simulations_are_steps() -> None:
    """A straight line between two samples showed commits that had not been made."""
    (gallery,) = section_of([1.0] * 8, 80).parts
    assert isinstance(gallery, Gallery)
    assert [figure.title for figure in gallery.figures] == ["Progress", "Memory", "Rate"]
    assert gallery.figures[1].caption.startswith("Resident memory of the runner, and of the runner with all its child")
    _, simulations, committed = gallery.figures[0].spec["layer"]
    assert committed["mark"]["interpolate"] == "step-after"
    assert "interpolate" not in simulations["mark"]
    durable = gallery.figures[0].data["durable"].to_pylist()
    assert durable == [0, 0, 30, 30, 30, 60, 60, 60]
    assert "A commit makes many simulations durable at once." in gallery.figures[0].caption


def test_fewer_than_five_samples_have_no_figure(subtests: pytest.Subtests) -> None:
    for n in [0, 1, 4]:
        with subtests.test(n=n):
            (note,) = section_of([1.0] * n, 80).parts
            assert isinstance(note, Block)
            samples = "1 sample" if n == 1 else f"{n} samples"
            assert note.data == (
                f"The progress record of this job has {samples}, and a figure needs 5. "
                "A runner takes a sample about every 10 s."
            )


def test_a_figure_with_too_few_known_values_is_left_out() -> None:
    """The first sample of an attempt has no rate."""
    section = section_of([1.0] * 5, 80)
    (gallery,) = section.parts
    assert isinstance(gallery, Gallery)
    assert [figure.title for figure in gallery.figures] == ["Progress", "Memory"]
    assert section.intro.endswith("Too few samples for a figure of the rate (4): it needs 5.")
