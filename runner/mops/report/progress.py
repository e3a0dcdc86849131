"""Progress, rate, memory and time per simulation, over the time of the job."""

from __future__ import annotations

from mops.figures import course_charts
from mops.figures.timeline import slot_time
from mops.jobs.figure_data import timeline_of
from mops.report.content import Block, Figure, Gallery, Section
from mops.report.facts import Facts
from mops.units import counted, duration

_LEAST_SAMPLES = 5  # a line through fewer would look like a course


def progress(facts: Facts) -> Section:
    """Return the section about the course of a job."""
    line = timeline_of(facts.data)
    n, points = sum(line.points["samples"].to_pylist()), line.points
    if n < _LEAST_SAMPLES:
        text = f"The progress record of this job has {counted(n, 'sample')}, and a figure needs {_LEAST_SAMPLES}. "
        every = "A runner takes a sample about every 10 s."
        return Section("progress", "Progress and memory", [Block("note", f"{text}{every}")])
    at, times = ["attempt", "running_seconds"], slot_time(points).table
    rates = points.select([*at, "rate", "slots"])
    figures = [
        Figure(course_charts.progress(line), points, "half", 230),
        Figure(course_charts.memory(line), points.select([*at, "memory_bytes", "runner_bytes"]), "half", 230),
    ]
    missing = []
    for name, n_known, draw, data in (
        ("the rate", len(points) - points["rate"].null_count, course_charts.rate, rates),
        ("the time per simulation", times.num_rows, course_charts.slot_times, times),
    ):
        if n_known < _LEAST_SAMPLES:
            missing.append(f"{name} ({n_known})")
        else:
            figures.append(Figure(draw(line), data, "half", 230))
    intro = f"The runner took {n:,} samples over {duration(points['running_seconds'][-1].as_py())} of running time."
    if missing:
        intro += f" Too few samples for a figure of {' and of '.join(missing)}: it needs {_LEAST_SAMPLES}."
    return Section("progress", "Progress and memory", [Gallery(figures)], intro)
