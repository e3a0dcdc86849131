"""The web application: its addresses, and a thin function for each. docs/internals/ui.md has the design.

The functions of most addresses are not coroutines, so each runs in a thread of Starlette.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import parse_qsl, quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from mops.errors import InternalError, JobError, MopsError, UsageError
from mops.jobs.compare import Comparison, compare
from mops.jobs.job import Job
from mops.jobs.runners import Runners
from mops.report.render import render
from mops.storage.files import Files
from mops.storage.job_records import job_names
from mops.storage.paths import NamePaths
from mops.ui import pages
from mops.ui.access import Access, Guard
from mops.ui.reading import HAS_REPORT, JobList, JobNow, JobReader, ListQuery, ListReader
from mops.ui.views import ACTIONS, Action, job_view, jobs_view, list_query

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
_REPORT_SECONDS = 60.0  # a report is not kept longer: it shows also other jobs of a calibration
_MOST_JOBS, _MOST_REPORTS = 64, 8
_MOST_FORM_BYTES = 4096
_MOPS_BUG = "mops could not make this page: a defect of mops"
_BUG_HINT = "report it, with the traceback that mops ui has printed"

PageParts = Mapping[str, str]


@dataclass
class Site:
    """The objects that the functions of the addresses share."""

    files: Files
    access: Access
    local: bool  # whether jobs run on this machine even when connected to a service

    def __post_init__(self) -> None:
        self.runners = Runners(self.files, local=self.local)
        self._lists = ListReader(self.files, self.runners)
        self._reader = lru_cache(_MOST_JOBS)(self._new_reader)
        self._report = lru_cache(_MOST_REPORTS)(self._new_report)

    def page(self, template: str, status: int = 200, **variables: object) -> Response:
        """Return a page with what all pages show."""
        shown = {"storage": self.files.url, "read_only": self.access.read_only}
        return HTMLResponse(pages.render(template, **shown, **variables), status)

    def message(self, status: int, what: str, hint: str = "") -> Response:
        """Return a page that says what is not possible."""
        return self.page("message.html.j2", status, title="Not possible", what=what, hint=hint)

    def error_page(self, error: MopsError) -> Response:
        """Return the page for an error of mops."""
        where = f" (at {error.where})" if error.where else ""
        status = 404 if isinstance(error, JobError) else 400 if isinstance(error, UsageError) else 502
        return self.message(status, f"{error.what}{where}", f"Hint: {error.hint}" if error.hint else "")

    # The list of jobs

    def jobs(self, request: Request) -> Response:
        """Return the list of jobs."""
        query = _list_query(request)
        found = self._lists.read(query)
        parts = f"/parts?{list_query(query, query.page)}"
        return self.page("jobs.html.j2", view=jobs_view(found, query), parts=_list_parts(query, found), polled=parts)

    def jobs_parts(self, request: Request) -> Response:
        """Return the parts of the list of jobs that change."""
        query = _list_query(request)
        try:
            parts = _list_parts(query, self._lists.read(query))
        except Exception as error:  # noqa: BLE001 - _explained logs defects
            parts = {"jobs": pages.error_part(_explained(error))}
        return _parts_response(request, parts)

    # One job

    def job(self, request: Request) -> Response:
        """Return the page of a job."""
        name = _job_name(request)
        parts = self._job_parts(self._now(name))
        return self.page("job.html.j2", name=name, parts=parts, polled=f"/jobs/{quote(name)}/parts")

    def job_parts(self, request: Request) -> Response:
        """Return the parts of a job's page."""
        name = _job_name(request)
        try:
            parts = self._job_parts(self._now(name))
        except Exception as error:  # noqa: BLE001 - _explained logs defects
            # Of a job that no longer exists, the page shows nothing else.
            others = dict.fromkeys(pages.JOB_PARTS, "") if isinstance(error, JobError) else {}
            parts = others | {"error": pages.error_part(_explained(error))}
        return _parts_response(request, parts)

    def report(self, request: Request) -> Response:
        """Return the report of a job: a page for itself, which gets no access to the other pages."""
        name = _job_name(request)
        minute = time.monotonic() // _REPORT_SECONDS
        return HTMLResponse(self._report(name, self._now(name).version, minute), headers=REPORT_HEADERS)

    def _new_report(self, name: str, _version: tuple[object, ...], _minute: float) -> str:
        return render(self._job(name))

    def _now(self, name: str) -> JobNow:
        # The record is read each time: the name of a deleted job can get another job.
        return self._reader(name, Job(self.files.brief(), name).record.id).look()

    def _new_reader(self, name: str, _id: str) -> JobReader:
        return JobReader(Job(self.files.brief(), name, local=self.local), self.runners)

    def _job_parts(self, now: JobNow) -> PageParts:
        view = job_view(now, "--storage", self.files.url, *(["--local"] if self.local else []))
        shown = {
            "read_only": self.access.read_only,
            "has_report": HAS_REPORT,
            "causes_error": pages.error_part(now.causes_error),
        }
        parts = {name: pages.part(name, view=view, **shown) for name in pages.JOB_PARTS}
        return parts | {"error": pages.error_part(None)}

    # Two jobs

    def comparison(self, request: Request) -> Response:
        """Ask for two jobs, and compare their results."""
        names = [request.query_params.get(one, "").strip() for one in ("a", "b")]
        known = job_names(self.files.brief())
        rows: list[Comparison] = []
        error: MopsError | None = None
        if all(names):
            try:
                rows = compare(*(Job(self.files.brief(), NamePaths(name).job, local=self.local) for name in names))
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

    # Changes

    def confirm(self, request: Request) -> Response:
        """Ask for a confirmation."""
        action = _action(request)
        return self._confirmation(action, self._job(_job_name(request)))

    async def act(self, request: Request) -> Response:
        """Change a job, and go to the page that shows what happens next."""
        action = _action(request)
        form = await _form(request)
        if not self.access.is_form_token(form.get("form_token", "")):
            raise HTTPException(403, "This form is out of date.")
        return await run_in_threadpool(self._changed, action, self._job(_job_name(request)))

    def _changed(self, action: Action, job: Job) -> Response:
        try:
            shown = _CHANGES[action.verb](job)
        except MopsError as error:
            return self._confirmation(action, job, error)
        finally:
            self.runners.forget()
        return RedirectResponse(f"/jobs/{quote(shown)}", 303)

    def _job(self, name: str) -> Job:
        return Job(self.files, name, local=self.local)

    def _confirmation(self, action: Action, job: Job, error: MopsError | None = None) -> Response:
        return self.page(
            "confirm.html.j2",
            400 if error else 200,
            action=action,
            name=job.name,
            state=job.status().state,
            error=pages.error_part(error),
            form_token=self.access.form_token,
        )


def _cancel(job: Job) -> str:
    if not job.cancel():
        hint = "go back to the job to see how it ended"
        raise JobError(f"job {job.name!r} was complete already", where=job.files.url, hint=hint)
    return job.name


# What each action does with a job; returns the name of the job to show.
_CHANGES: Mapping[str, Callable[[Job], str]] = {
    "cancel": _cancel,
    "resume": lambda job: job.resume(wait=False).name,
    "retry": lambda job: job.retry(wait=False).name,
}


def application(site: Site) -> Guard:
    """Return the application of a storage."""
    changes = [] if site.access.read_only else ["POST"]

    async def failed(_: Request, error: Exception) -> Response:
        assert isinstance(error, MopsError)
        return site.error_page(error)

    async def not_served(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        what = "This page does not exist." if error.status_code == 404 else str(error.detail)
        return site.message(error.status_code, what)

    async def broken(_: Request, error: Exception) -> Response:  # the server logs the traceback
        return site.message(500, f"{_MOPS_BUG} ({type(error).__name__}).", f"Hint: {_BUG_HINT}.")

    app = Starlette(
        routes=[
            Route("/", site.jobs),
            Route("/parts", site.jobs_parts),
            Route("/compare", site.comparison),
            Route("/static/{name}", static),
            Route("/jobs/{job}", site.job),
            Route("/jobs/{job}/parts", site.job_parts),
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


def _parts_response(request: Request, parts: PageParts) -> Response:
    """Return parts of a page as JSON, or 304 if the browser has them."""
    body = json.dumps(parts).encode()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return Response(body, media_type="application/json", headers={"ETag": tag})


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
