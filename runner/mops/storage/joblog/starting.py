"""Decides whether an attempt may begin, from what the log says."""

from __future__ import annotations

from mops.errors import JobError, Superseded
from mops.storage.joblog.records import Asked, By, Cancel, Claim, End, Record, State
from mops.storage.joblog.view import LogView


class NothingToRun(JobError):
    """There was nothing to claim: the job stands in ``state``, and nothing was written.

    Parameters
    ----------
    state
        ``succeeded`` or ``partial``: the job is complete. ``cancelled`` or ``failed``: only a person resumes.
    view
        The whole log.
    """

    def __init__(self, state: State, view: LogView, *, where: str):
        hint = "it is complete: mops jobs results" if view.complete else "mops jobs resume goes on"
        super().__init__(f"the job has ended: {state}", where=where, hint=hint)
        self.state = state
        self.view = view


class Overtaken(JobError):
    """What was asked for is void: somebody has cancelled, ended or claimed the job since. Nothing was written.

    Parameters
    ----------
    mark
        The record that came first.
    """

    exit_code = Superseded.exit_code

    def __init__(self, job: str, mark: Record, *, where: str):
        hint = f"mops jobs status {job} says where it stands; if it is to go on: mops jobs resume {job}"
        super().__init__(_what_overtook(job, mark), where=where, hint=hint)
        self.mark = mark


def _what_overtook(job: str, mark: Record) -> str:
    if isinstance(mark, Cancel):
        return f"job {job!r} was cancelled meanwhile by {mark.who}"
    if isinstance(mark, End):
        return f"attempt {mark.n} of job {job!r} ended meanwhile: {mark.state}"
    return f"attempt {mark.n} of job {job!r} was started meanwhile on {mark.host}"


def settled_state(view: LogView, by: By) -> State | None:
    """Decide whether a claim is out of place (rule 5): return the state to stop with; None: claim."""
    if view.complete or (by == "auto" and view.end):
        return view.state
    return "cancelled" if by == "auto" and isinstance(view.mark, Cancel) else None


def overtaking(view: LogView, asked: Asked) -> Record | None:
    """Decide whether a request is void (rule 5): return the record that came first; None: it stands.

    A request stands while no cancel, end or claim is behind what its maker had seen. Once a claim has carried it out,
    it stands while that claim, or another one of the same request, is the last.
    """
    behind = [mark for mark in view.marks if mark.k > asked.k]
    if any(_carries_out(mark, asked) for mark in behind):
        return None if view.claim and _carries_out(view.claim, asked) else view.claim
    return behind[0] if behind else None


def _carries_out(mark: Record, asked: Asked) -> bool:
    return isinstance(mark, Claim) and mark.asked is not None and mark.asked.nonce == asked.nonce


def check_start(view: LogView, by: By, asked: Asked | None, *, job: str, where: str) -> By:
    """Decide whether a runner may claim (rule 5); return by whom its claim is.

    A request is a person's once. A runner that is restarted to carry it out finds its own claim, and is automatic.

    Raises
    ------
    Settled
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
