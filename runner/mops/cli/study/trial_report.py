"""Shows a trial for ``mops study check``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from mops import units
from mops.cli import terminal
from mops.jobs.trial import Trial, why
from mops.study.ids_and_seeds import short_id

_DIFFERENCES_SHOWN = 5
_ADVICE = {
    "unseeded": "fresh processes differ too, so something is not seeded: seed each generator with the model's seed, "
    "like numpy.random.default_rng(seed)",
    "kept": "fresh processes agree, so the process keeps an object of an earlier simulation: create it in each "
    "simulation",
}
_FRESH_ADVICE = ", or set MODELOPS_JOB_TASKS_PER_CHILD=1"
_SEED_ADVICE = (
    "pass the seed to the model's generator, numpy.random.default_rng(seed); "
    "if the model draws no random numbers, one replicate is enough"
)
_READS_ADVICE = (
    "in a job each simulation starts in a folder with the project's files only: return what you need as an output"
)
_TARGET_ADVICE = "draw from random or numpy.random, which mops seeds, or from a generator with a fixed seed"


def to_json(trial: Trial) -> dict[str, Any]:
    """Return a trial as JSON values."""
    varying = trial.varying
    return {
        "param_id": trial.group.param_id,
        "seed": trial.group.seeds[0],
        "import_seconds": trial.import_seconds,
        "first_seconds": trial.first_seconds,
        "warm_seconds": trial.warm_seconds,
        "outputs": [asdict(output) for output in trial.outputs],
        "losses": [{"target": target, "name": name, "loss": loss} for (target, name), loss in trial.losses.items()],
        "failures": [failure._asdict() for failure in trial.failures],
        "other_failure": trial.other._asdict() if trial.other else None,
        "reproducible": None if trial.warm_seconds is None else varying is None,
        "varying": asdict(varying) if varying else None,
        "varying_losses": [asdict(difference) for difference in trial.varying_losses],
        "reads_written": list(trial.reads_written),
        "equal_replicates": trial.equal_replicates,
        "prints": trial.prints,
    }


def fields_of(trial: Trial) -> Iterator[tuple[str, str]]:
    """Yield the results of a trial."""
    yield "tried", f"seed {trial.group.seeds[0]} of the first parameter set ({short_id(trial.group.param_id)})"
    yield "import", units.duration(trial.import_seconds)
    warm = "" if trial.warm_seconds is None else f", {_seconds(trial.warm_seconds)} again in the same process"
    yield "one simulation", f"{_seconds(trial.first_seconds)} in a fresh process{warm}"
    for output in trial.outputs:
        yield f"output {output.name}", f"{units.counted(output.rows, 'row')}, {terminal.size(output.bytes)} as Arrow"
    for (target, name), loss in trial.losses.items():
        yield f"target {target}", f"{name} = {loss:g}"
    if trial.warm_seconds is not None:
        yield "reproducible", "no" if trial.varying or trial.varying_losses else "yes"


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else units.duration(seconds)


def say_warnings(trial: Trial) -> None:
    """Print what differs between runs, and what to do."""
    if trial.varying is not None:
        terminal.say(
            f"warning: the model is not reproducible: the same simulation differs when it runs {trial.varying.when}"
        )
        _say_differences(list(map(str, trial.varying.differences)))
        # If replicates are equal in fresh processes, a fresh process for each simulation makes all of them equal.
        fresh = _FRESH_ADVICE if trial.varying.cause == "kept" and not trial.equal_replicates else ""
        terminal.say(f"hint: {_ADVICE[trial.varying.cause]}{fresh}")
    if trial.equal_replicates:
        equal = (
            f"the first {trial.equal_replicates} replicates are equal in fresh processes although their seeds differ"
        )
        terminal.say(f"warning: {equal}: the outputs of this set do not depend on the seed")
        terminal.say(f"hint: {_SEED_ADVICE}")
    if trial.reads_written:
        shown, more = trial.reads_written[:_DIFFERENCES_SHOWN], len(trial.reads_written) - _DIFFERENCES_SHOWN
        others = f" and {units.counted(more, 'other file')}" if more > 0 else ""
        terminal.say(f"warning: the model reads files that it wrote before: {', '.join(shown)}{others}")
        terminal.say(f"hint: {_READS_ADVICE}")
    if trial.varying_losses:
        terminal.say("warning: a target is not reproducible: it scores the same tables differently")
        _say_differences(list(map(str, trial.varying_losses)))
        terminal.say(f"hint: {_TARGET_ADVICE}")
    if trial.other is not None:
        terminal.say(f"warning: the other simulation of the trial failed: {why(trial.other)}")


def _say_differences(lines: list[str]) -> None:
    for line in lines[:_DIFFERENCES_SHOWN]:
        terminal.say(f"  {line}")
    if len(lines) > _DIFFERENCES_SHOWN:
        terminal.say(f"  and {units.counted(len(lines) - _DIFFERENCES_SHOWN, 'other difference')}")
