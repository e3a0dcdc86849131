"""Decides from the log whether an attempt may start."""

from __future__ import annotations

from mops.errors import JobError, Superseded
from mops.storage.joblog.records import Asked, By, Cancel, Claim, End, Record, State
from mops.storage.joblog.view import LogView


class NothingToRun(JobError):
    """There is nothing to claim: the job is in ``state``, and mops wrote nothing.

    Parameters
    ----------
    state
        ``succeeded`` or ``partial``: the job is complete. ``cancelled`` or ``failed``: only a person may resume it.
    view
        The whole log.
    """

    def __init__(self, state: State, view: LogView, *, where: str):
        hint = "read the results: mops jobs results" if view.complete else "continue the job: mops jobs resume"
        super().__init__(f"the job has ended: {state}", where=where, hint=hint)
        self.state = state
        self.view = view


class Overtaken(JobError):
    """The request is void: a cancel, an end or a claim came before it. mops wrote nothing.

    Parameters
    ----------
    mark
        The cancel, end or claim.
    """

    exit_code = Superseded.exit_code

    def __init__(self, job: str, mark: Record, *, where: str):
        hint = f"show its state: mops jobs status {job}; continue the job: mops jobs resume {job}"
        if isinstance(mark, Cancel):
            what = f"job {job!r} was cancelled meanwhile by {mark.who}"
        elif isinstance(mark, End):
            what = f"attempt {mark.n} of job {job!r} ended meanwhile: {mark.state}"
        else:
            what = f"attempt {mark.n} of job {job!r} was started meanwhile on {mark.host}"
        super().__init__(what, where=where, hint=hint)
        self.mark = mark


def settled_state(view: LogView, by: By) -> State | None:
    """Return the state of a job that this start must not claim (rule 5); None: the start may claim it."""
    if view.complete or (by == "auto" and view.end):
        return view.state
    return "cancelled" if by == "auto" and isinstance(view.mark, Cancel) else None


def overtaking(view: LogView, asked: Asked) -> Record | None:
    """Return the record that makes a request void (rule 5); None: the request is valid.

    A request is valid while no cancel, end or claim follows the records that its maker had read. After a claim has
    carried it out, it is valid while the last claim belongs to it.
    """
    behind = [mark for mark in view.marks if mark.k > asked.k]
    if any(_carries_out(mark, asked) for mark in behind):
        return None if view.claim and _carries_out(view.claim, asked) else view.claim
    return behind[0] if behind else None


def _carries_out(mark: Record, asked: Asked) -> bool:
    return isinstance(mark, Claim) and mark.asked is not None and mark.asked.nonce == asked.nonce


def check_start(view: LogView, by: By, asked: Asked | None, *, job: str, where: str) -> By:
    """Decide whether a runner may claim (rule 5); return the claim's ``by``.

    Only the first claim of a request counts as a person's. A restarted runner finds that claim, and starts by ``auto``.

    Raises
    ------
    NothingToRun
        There is nothing to run.
    Overtaken
        The request is void.
    """
    if asked and any(_carries_out(mark, asked) for mark in view.marks):
        by = "auto"
    if not view.complete and asked and (mark := overtaking(view, asked)):
        raise Overtaken(job, mark, where=where)
    if (state := settled_state(view, by)) is not None:
        raise NothingToRun(state, view, where=where)
    return by
