"""Progress, rate, memory and time per simulation, over the time of the job."""

from __future__ import annotations

from typing import Any

from mops.figures.timeline import Timeline, slot_time
from mops.jobs.figure_data import timeline_of
from mops.report.content import Block, Figure, Gallery, Key, Section, Width
from mops.report.drawing.axes import byte_unit, time_unit, values
from mops.report.drawing.look import AXIS, BLUE, GREEN, GREY, VERMILION
from mops.report.facts import Facts
from mops.units import bytes_text, counted, duration, rate

_SIZE: tuple[Width, int] = ("half", 230)
_FEW_POINTS = 30
_LEAST_SAMPLES = 5  # a line through fewer would look like a course
_EVERY = "A runner takes a sample about every 10 s."
_LIMIT_SHOWN = 3.0  # times the peak memory: a line much higher would press the curve to the bottom


def progress(facts: Facts) -> Section:
    """Return the section about the course of a job."""
    line = timeline_of(facts.data)
    n = sum(line.points["samples"].to_pylist())
    if n < _LEAST_SAMPLES:
        text = f"The progress record of this job has {counted(n, 'sample')}, and a figure needs {_LEAST_SAMPLES}. "
        return Section("progress", "Progress and memory", [Block("note", f"{text}{_EVERY}")])
    figures, missing = [_progress(line), _memory(line)], []
    for name, n_known, draw in (
        ("the rate", len(line.points) - line.points["rate"].null_count, _rate),
        ("the time per simulation", slot_time(line.points).table.num_rows, _slot_time),
    ):
        if n_known < _LEAST_SAMPLES:
            missing.append(f"{name} ({n_known})")
        else:
            figures.append(draw(line))
    few = f" Too few samples for a figure of {' and of '.join(missing)}: it needs {_LEAST_SAMPLES}." if missing else ""
    return Section("progress", "Progress and memory", [Gallery(figures)], f"{_intro(line, n)}{few}")


def _intro(line: Timeline, n_samples: int) -> str:
    running = duration(line.points["running_seconds"][-1].as_py())
    return f"The runner took {n_samples:,} samples over {running} of running time."


def _rows(line: Timeline) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the points with the field ``t``, and the axis of time."""
    unit_s, unit = time_unit(line.points["running_seconds"][-1].as_py())
    rows = [row | {"t": row["running_seconds"] / unit_s} for row in line.points.drop_columns(["time"]).to_pylist()]
    axis = {"title": f"{unit} since the first sample", "tickCount": 5}
    return rows, {"field": "t", "type": "quantitative", "axis": axis, "scale": {"nice": False}}


def _mark(kind: str, line: Timeline, **more: Any) -> dict[str, Any]:
    return {"type": kind, **more} | ({"point": {"size": 18}} if len(line.points) < _FEW_POINTS else {})


def _progress(line: Timeline) -> Figure:
    rows, time = _rows(line)
    last = rows[-1]
    n_failed = last["failed"]
    y = {"type": "quantitative", "scale": {"domain": [0, line.n_simulations]}, "title": "simulations"}
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "rule", "strokeDash": [4, 3], "color": AXIS},
            "encoding": {"y": {"datum": line.n_simulations}},
        },
        {
            "mark": {"type": "area", "color": BLUE, "opacity": 0.18},
            "encoding": {"x": time, "y": y | {"field": "simulations"}},
        },
        {"mark": _mark("line", line, color=BLUE), "encoding": {"x": time, "y": y | {"field": "simulations"}}},
        {
            "mark": {"type": "line", "color": GREEN, "strokeDash": [2, 2], "interpolate": "step-after"},
            "encoding": {"x": time, "y": y | {"field": "durable"}},
        },
    ]
    keys = [Key(BLUE, "finished"), Key(GREEN, "committed")]
    if n_failed:
        failed = {"x": time, "y": y | {"field": "failed"}}
        layers.append({"mark": {"type": "line", "color": VERMILION}, "encoding": failed})
        keys.append(Key(VERMILION, "failed"))
    alt = f"{last['simulations']:,} of {line.n_simulations:,} simulations have finished, {n_failed:,} of them failed."
    spec = {**values(rows), "layer": layers}
    return Figure("Progress", line.caption, alt, spec, line.points, keys, *_SIZE)


def _rate(line: Timeline) -> Figure:
    rows, time = _rows(line)
    y = {"field": "rate", "type": "quantitative", "title": "simulations per second", "scale": {"zero": True}}
    rates = [row["rate"] for row in rows if row["rate"] is not None]
    spec = {**values(rows), "mark": _mark("line", line, color=BLUE), "encoding": {"x": time, "y": y}}
    caption = "Good and failed simulations that reached the runner, per second, between two samples."
    alt = f"The rate is between {rate(min(rates))} and {rate(max(rates))}."
    data = line.points.select(["attempt", "running_seconds", "rate", "slots"])
    return Figure("Rate", caption, alt, spec, data, (), *_SIZE)


def _memory(line: Timeline) -> Figure:
    rows, time = _rows(line)
    peak = max(row["memory_bytes"] for row in rows)
    unit_bytes, unit = byte_unit(peak)
    for row in rows:
        row |= {name: row[f"{name}_bytes"] / unit_bytes for name in ("memory", "runner")}
    y = {"type": "quantitative", "title": f"memory ({unit})", "scale": {"zero": True}}
    layers: list[dict[str, Any]] = [
        {"mark": _mark("line", line, color=colour), "encoding": {"x": time, "y": y | {"field": name}}}
        for name, colour in (("memory", BLUE), ("runner", GREY))
    ]
    keys = [Key(BLUE, "runner and its child processes"), Key(GREY, "runner alone")]
    caption = line.memory_caption
    if line.limit_bytes and line.limit_bytes < _LIMIT_SHOWN * peak:
        limit = {"y": {"datum": line.limit_bytes / unit_bytes, "type": "quantitative"}}
        layers.append({"mark": {"type": "rule", "color": VERMILION, "strokeDash": [4, 3]}, "encoding": limit})
        keys.append(Key(VERMILION, "limit"))
    elif line.limit_bytes:
        caption += " The limit is far above the figure."
    alt = f"The memory of the runner and its child processes is at most {bytes_text(peak)}."
    data = line.points.select(["attempt", "running_seconds", "memory_bytes", "runner_bytes"])
    return Figure("Memory", caption, alt, {**values(rows), "layer": layers}, data, keys, *_SIZE)


def _slot_time(line: Timeline) -> Figure:
    found = slot_time(line.points)
    unit_s, _ = time_unit(line.points["running_seconds"][-1].as_py())
    _, time = _rows(line)
    is_short = found.mean < 1
    rows = [
        {"t": row["running_seconds"] / unit_s, "y": row["seconds"] * (1000 if is_short else 1)}
        for row in found.table.to_pylist()
    ]
    title = f"{'milliseconds' if is_short else 'seconds'} per simulation"
    y = {"field": "y", "type": "quantitative", "title": title, "scale": {"zero": True}}
    spec = {
        **values(rows),
        "mark": _mark("line", line, color=BLUE),
        "encoding": {"x": time | {"scale": {"nice": False}}, "y": y},
    }
    alt = f"A simulation took {found.mean:.3g} s of a slot on average."
    return Figure("Time per simulation", found.caption, alt, spec, found.table, (), *_SIZE)
