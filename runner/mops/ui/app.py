"""The web application: its addresses, and a thin function for each. docs/internals/ui.md has the design."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from urllib.parse import parse_qsl, quote, urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from mops.errors import InternalError, JobError, MopsError, UsageError
from mops.jobs.compare import Comparison, compare
from mops.jobs.job import Job
from mops.report.render import render
from mops.storage.files import Files
from mops.storage.job_records import job_names
from mops.storage.paths import NamePaths
from mops.ui import pages
from mops.ui.access import Access
from mops.ui.facts import JobList, JobNow, ListQuery
from mops.ui.guard import Guard
from mops.ui.one_time import OneTimeChanges, one_time_value
from mops.ui.read_threads import ReadThreads
from mops.ui.reading import JobReader, ListReader
from mops.ui.runners import Runners
from mops.ui.shared_poll import Polls, SharedPoll
from mops.ui.views.job import job_view
from mops.ui.views.jobs import jobs_view
from mops.ui.views.states import ACTIONS, Action

logger = logging.getLogger(__name__)

# The document allows its script by a hash. The sandbox gives it an origin without cookies.
REPORT_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts allow-downloads"
    ),
    # With another value, the HTML standard makes a page with a sandbox a network error.
    "Cross-Origin-Opener-Policy": "unsafe-none",
}
JOB_SECONDS = 2.0
LIST_SECONDS = 3.0
_MOST_FORM_BYTES = 4096
_MOPS_BUG = "mops could not make this page: a defect of mops"
_BUG_HINT = "report it, with the traceback that mops ui has printed"

PageParts = Mapping[str, str]


@dataclass
class Site:
    """The objects that the handlers share."""

    files: Files
    access: Access
    local: bool  # whether jobs run on this machine even when connected to a service
    stopping: Callable[[], bool]  # tells whether the server ends

    def __post_init__(self) -> None:
        self.polls, self.threads, self.changes = Polls(), ReadThreads(), OneTimeChanges()
        self.runners = Runners(self.files, local=self.local)
        self.lists = ListReader(self.files, self.runners)

    def page(self, template: str, status: int = 200, **variables: object) -> Response:
        """Return a page with what all pages show."""
        shown = {"storage": self.files.url, "read_only": self.access.read_only}
        return HTMLResponse(pages.render(template, **shown, **variables), status)

    def error_page(self, error: MopsError) -> Response:
        """Return the page for an error of mops."""
        where = f" (at {error.where})" if error.where else ""
        what, hint = f"{error.what}{where}", f"Hint: {error.hint}" if error.hint else ""
        status = 404 if isinstance(error, JobError) else 400 if isinstance(error, UsageError) else 502
        return self.page("message.html.j2", status, title="Not possible", what=what, hint=hint)

    # The list of jobs

    async def jobs(self, request: Request) -> Response:
        """Return the list of jobs."""
        query = _list_query(request)
        found = await self.threads.run(self.lists.read, query)
        view = jobs_view(found, query)
        events = "/events?" + urlencode({"name": query.name, "state": query.state, "page": query.page})
        return self.page("jobs.html.j2", view=view, parts=_list_parts(query, found), events=events)

    async def jobs_events(self, request: Request) -> Response:
        """Send the list of jobs at each change."""
        query = _list_query(request)

        def read() -> PageParts:
            try:
                return _list_parts(query, self.lists.read(query))
            except Exception as error:  # noqa: BLE001 - _explained logs defects
                return {"jobs": pages.error_part(_explained(error))}

        return self._stream(query, lambda: read, LIST_SECONDS)

    # One job

    async def job(self, request: Request) -> Response:
        """Return the page of a job."""
        name = _job_name(request)
        parts = self._job_parts(await self.threads.run(lambda: self._reader(name).look()))
        return self.page("job.html.j2", name=name, parts=parts, events=f"/jobs/{quote(name)}/events")

    async def job_events(self, request: Request) -> Response:
        """Send the parts of a job's page at each change."""
        name = _job_name(request)
        return self._stream(name, partial(self._opened, name), JOB_SECONDS)

    async def report(self, request: Request) -> Response:
        """Return the report of a job: a page for itself, which gets no access to the other pages."""
        job = self._job(_job_name(request))
        return HTMLResponse(await self.threads.run(render, job), headers=REPORT_HEADERS)

    def _reader(self, name: str) -> JobReader:
        return JobReader(Job(self.files.brief(), name, local=self.local), self.runners)

    def _opened(self, name: str) -> Callable[[], PageParts]:
        """Return the function that reads the parts of a job's page."""
        # The function opens the job again after an error, and when the name has got another job.
        readers: list[JobReader] = []

        def read() -> PageParts:
            try:
                if readers and not readers[0].is_current():
                    readers.clear()
                if not readers:
                    readers.append(self._reader(name))
                return self._job_parts(readers[0].look())
            except Exception as error:  # noqa: BLE001 - _explained logs defects
                readers.clear()
                # Of a job that no longer exists, the page shows nothing else.
                others = dict.fromkeys(pages.JOB_PARTS, "") if isinstance(error, JobError) else {}
                return others | {"error": pages.error_part(_explained(error))}

        return read

    def _job_parts(self, now: JobNow) -> PageParts:
        view = job_view(now, "--storage", self.files.url, *(["--local"] if self.local else []))
        shown = {
            "read_only": self.access.read_only,
            "has_report": find_spec("vl_convert") is not None,
            "causes_error": pages.error_part(now.causes_error),
        }
        parts = {name: pages.part(name, view=view, **shown) for name in pages.JOB_PARTS}
        return parts | {"error": pages.error_part(None)}

    def _stream(self, key: Hashable, opened: Callable[[], Callable[[], PageParts]], seconds: float) -> Response:
        def new() -> SharedPoll[PageParts]:
            return SharedPoll(opened, seconds, self.stopping, self.threads)

        return StreamingResponse(_events(self.polls, key, new), media_type="text/event-stream")

    # Two jobs

    async def comparison(self, request: Request) -> Response:
        """Ask for two jobs, and compare their results."""
        names = [request.query_params.get(one, "").strip() for one in ("a", "b")]
        known = await self.threads.run(job_names, self.files.brief())
        rows: list[Comparison] = []
        error: MopsError | None = None
        if all(names):
            try:
                rows = await self.threads.run(self._compared, *names)
            except MopsError as refused:
                error = refused
        return self.page(
            "compare.html.j2",
            400 if error else 200,
            a=names[0],
            b=names[1],
            names=known,
            rows=rows,
            equal=all(row.is_equal for row in rows),
            error=pages.error_part(error),
        )

    def _compared(self, a: str, b: str) -> list[Comparison]:
        return compare(*(Job(self.files.brief(), NamePaths(name).job, local=self.local) for name in (a, b)))

    # Changes

    async def confirm(self, request: Request) -> Response:
        """Ask for a confirmation."""
        action = _action(request)
        job = self._job(_job_name(request))
        state = (await self.threads.run(job.status)).state
        return self._confirmation(action, job.name, state)

    async def act(self, request: Request) -> Response:
        """Change a job, and go to the page that shows what happens next."""
        action = _action(request)
        form = await _form(request)
        value = form.get("one_time", "")
        if not (value and self.access.is_form_token(form.get("form_token", ""))):
            raise HTTPException(403, "This form is out of date.")
        job = self._job(_job_name(request))
        change = partial(self.threads.run, _CHANGES[action.verb], job)
        try:
            shown = await self.changes.once((job.name, action.verb, value), change)
            self.runners.forget()
        except MopsError as error:
            state = (await self.threads.run(job.status)).state
            return self._confirmation(action, job.name, state, error)
        return RedirectResponse(f"/jobs/{quote(shown)}", 303)

    def _job(self, name: str) -> Job:
        return Job(self.files, name, local=self.local)

    def _confirmation(self, action: Action, name: str, state: str, error: MopsError | None = None) -> Response:
        return self.page(
            "confirm.html.j2",
            400 if error else 200,
            action=action,
            name=name,
            state=state,
            error=pages.error_part(error),
            form_token=self.access.form_token,
            one_time=one_time_value(),
        )


def _cancel(job: Job) -> str:
    if not job.cancel():
        hint = "go back to the job to see how it ended"
        raise JobError(f"job {job.name!r} was complete already", where=job.files.url, hint=hint)
    return job.name


def _resume(job: Job) -> str:
    return job.resume(wait=False).name


def _retry(job: Job) -> str:
    return job.retry(wait=False).name


# What each action does with a job; returns the name of the job to show.
_CHANGES: Mapping[str, Callable[[Job], str]] = {"cancel": _cancel, "resume": _resume, "retry": _retry}


def application(site: Site) -> Guard:
    """Return the application of a storage."""
    changes = [] if site.access.read_only else ["POST"]

    async def failed(_: Request, error: Exception) -> Response:
        assert isinstance(error, MopsError)
        return site.error_page(error)

    async def not_served(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        what = "This page does not exist." if error.status_code == 404 else str(error.detail)
        return site.page("message.html.j2", error.status_code, title="Not possible", what=what, hint="")

    async def broken(_: Request, error: Exception) -> Response:  # the server logs the traceback
        found = {"what": f"{_MOPS_BUG} ({type(error).__name__}).", "hint": f"Hint: {_BUG_HINT}."}
        return site.page("message.html.j2", 500, title="Not possible", **found)

    app = Starlette(
        routes=[
            Route("/", site.jobs),
            Route("/events", site.jobs_events),
            Route("/compare", site.comparison),
            Route("/static/{name}", static),
            Route("/jobs/{job}", site.job),
            Route("/jobs/{job}/events", site.job_events),
            Route("/jobs/{job}/report", site.report),
            Route("/jobs/{job}/{verb}", site.confirm, methods=["GET"]),
            *(Route("/jobs/{job}/{verb}", site.act, methods=changes) for _ in changes),
        ],
        exception_handlers={MopsError: failed, HTTPException: not_served, Exception: broken},
    )
    return Guard(app, site.access, pages.render)


async def static(request: Request) -> Response:
    """Return a static file of the package."""
    found = pages.static_files().get(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    content, media_type = found
    return Response(content, media_type=media_type)


async def _events(polls: Polls, key: Hashable, new: Callable[[], SharedPoll[PageParts]]) -> AsyncIterator[str]:
    """Yield server-sent events, each with the parts that have changed since the last one."""
    sent: PageParts = {}
    async with aclosing(polls.follow(key, new)) as values:  # type: ignore[type-var]
        async for parts in values:
            changed = {name: html for name, html in parts.items() if sent.get(name) != html}
            sent = {**sent, **parts}
            # A comment when nothing has changed, which finds out that a client has left.
            yield f"event: parts\ndata: {json.dumps(changed)}\n\n" if changed else ": nothing new\n\n"


async def _form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form. Starlette's own parser needs another library."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_FORM_BYTES:
            raise HTTPException(413, "This form is too long.")
    return dict(parse_qsl(body.decode("utf-8", "replace")))


def _explained(error: Exception) -> MopsError:
    """Return the error to show. A defect is logged with its traceback, which no page shows."""
    if isinstance(error, MopsError):
        return error
    logger.error("%s", _MOPS_BUG, exc_info=error)
    return InternalError(f"{_MOPS_BUG} ({type(error).__name__})", hint=_BUG_HINT)


def _list_parts(query: ListQuery, found: JobList) -> PageParts:
    error = pages.error_part(found.kubernetes_error)
    return {"jobs": pages.part("jobs", view=jobs_view(found, query), kubernetes_error=error)}


def _list_query(request: Request) -> ListQuery:
    given = request.query_params
    page = given.get("page", "1")
    if not (page.isascii() and page.isdigit() and 1 <= int(page[:6]) <= 100_000):
        raise UsageError(f"{page!r} is not a page", where="page", hint="use a whole number from 1")
    return ListQuery(given.get("name", "").strip(), given.get("state", ""), int(page[:6]))


def _job_name(request: Request) -> str:
    """Return the name of the job. Raises JobError if the name is not valid for a job: it never becomes another path."""
    return NamePaths(request.path_params["job"]).job


def _action(request: Request) -> Action:
    action = ACTIONS.get(request.path_params["verb"])
    if action is None:
        raise HTTPException(404)
    return action
