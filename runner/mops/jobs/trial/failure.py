"""The error for a trial that failed."""

from __future__ import annotations

from mops.child.texts import without_headings
from mops.errors import TrialFailed
from mops.jobs.trial.trial import Trial
from mops.study.ids_and_seeds import canonical_json
from mops.task import Failure

_LAST_PRINTS = 2_000  # characters
_PARAMS_SHOWN = 200  # characters


def raise_failure(trial: Trial) -> None:
    """Raise TrialFailed with the reason and the last output if a simulation or target of the first set failed."""
    if not trial.failures:
        return
    lines = []
    for failure in trial.failures:
        if failure.target == "*":  # the consequence of a failed simulation
            continue
        what = f"the simulation with seed {failure.seed}" if failure.target is None else f"target {failure.target}"
        lines.append(f"the trial failed: {what}: {why(failure)}")
    # The error has the traceback of a crash.
    last_prints = without_headings(trial.prints).partition("Fatal Python error")[0].strip()
    traces = [failure.traceback.rstrip() for failure in trial.failures if failure.traceback]
    output = [f"its last output: {last_prints[-_LAST_PRINTS:]}"] if last_prints else []
    raise TrialFailed(
        "\n".join([*lines, *traces[:1], *output]),
        where=f"the first parameter set, {canonical_json(trial.group.params)[:_PARAMS_SHOWN]}",
    )


def why(failure: Failure) -> str:
    """Return the verdict and the message of a failure."""
    return f"{failure.reason}: {failure.message}"
