"""Progress, rate and memory, over the time of the job."""

from __future__ import annotations

from mops.figures import course_charts
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
    at, n_rates = ["attempt", "running_seconds"], len(points) - points["rate"].null_count
    figures = [
        Figure(course_charts.progress(line), points, "half", 230),
        Figure(course_charts.memory(line), points.select([*at, "memory_bytes", "runner_bytes"]), "half", 230),
    ]
    intro = f"The runner took {n:,} samples over {duration(points['running_seconds'][-1].as_py())} of running time."
    if n_rates < _LEAST_SAMPLES:
        intro += f" Too few samples for a figure of the rate ({n_rates}): it needs {_LEAST_SAMPLES}."
    else:
        figures.append(Figure(course_charts.rate(line), points.select([*at, "rate"]), "half", 230))
    return Section("progress", "Progress and memory", [Gallery(figures)], intro)
