"""Applies the decisions of access.py to every request, and adds the headers that browsers act on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mops.ui.access import Access, Answer, Refusal, Request, without_token

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer, with which browsers send forms with the origin "null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """An ASGI application that passes on only allowed requests."""

    # ``render`` gets the name of a template, and its variables.
    def __init__(self, app: ASGIApp, access: Access, render: Callable[..., str]):
        self._app, self._access, self._render = app, access, render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        decision = self._access.decide(_asked(HttpRequest(scope), self._access))
        app = self._app if decision is Answer.SERVE else self._answer(decision, HttpRequest(scope))

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, with_headers)

    def _answer(self, decision: Any, request: HttpRequest) -> Response:
        if isinstance(decision, Refusal):
            text = self._render("message.html.j2", title="Refused", what=decision.what, hint=decision.hint)
            return Response(text, decision.status, media_type="text/html")
        path, query = without_token(request.url.path, request.query_params)
        # Not a redirect: after a link from another site, browsers would follow it without the cookie.
        text = self._render("enter.html.j2", url=path + (f"?{urlencode(query)}" if query else ""))
        return Response(text, headers={"Set-Cookie": self._access.cookie}, media_type="text/html")


def _asked(request: HttpRequest, access: Access) -> Request:
    return Request(
        method=request.method,
        path=request.scope["path"],
        host=request.headers.get("host", ""),
        origin=request.headers.get("origin", ""),
        token=request.query_params.get("token", ""),
        cookie=request.cookies.get(access.cookie_name, ""),
    )
