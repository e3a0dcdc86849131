"""The actions that a person can choose for a job, by its state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Action:
    """A change of a job that a person confirms."""

    verb: str  # the last segment of its address
    label: str  # of its button on the page of the job
    confirm: str  # of the button that confirms it
    question: str  # what the confirmation asks
    effect: str  # what the confirmation explains
    states: tuple[str, ...]  # in which it makes sense
    is_final: bool = False  # whether it ends something


ACTIONS = {
    action.verb: action
    for action in (
        Action(
            "cancel",
            "Cancel",
            "Cancel the job",
            "Cancel this job?",
            "The runner commits what is finished, and stops within seconds. You can resume the job later.",
            ("submitted", "running"),
            is_final=True,
        ),
        Action(
            "resume",
            "Resume",
            "Resume the job",
            "Resume this job?",
            "A new runner runs the parameter sets that are not committed, with the settings of mops ui.",
            ("submitted", "interrupted", "cancelled", "failed"),
        ),
        Action(
            "retry",
            "Retry failures",
            "Retry in a new job",
            "Retry the failed parameter sets of this job?",
            "A new job runs the parameter sets with failures again. It takes over all other results.",
            ("partial",),
        ),
    )
}


def actions_for(state: str) -> list[Action]:
    """Return the actions that make sense for a job in this state."""
    return [action for action in ACTIONS.values() if state in action.states]
