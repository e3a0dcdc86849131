"""Decides whether a request may read or change anything; docs/internals/ui.md has the threats.

``Access`` decides, without side effects. ``Guard`` applies its decisions to every request, and adds the headers that
browsers act on.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SAFE_METHODS = ("GET", "HEAD")
STATIC = "/static/"
_TOKEN_BYTES = 24


class Answer(Enum):
    """What happens with a request that is not refused."""

    SERVE = "serve"
    ENTER = "enter"  # the token is right: set the cookie, and continue at the address without the token


@dataclass(frozen=True)
class Refusal:
    """Why a request is refused."""

    status: int
    what: str  # what is wrong, as a sentence
    hint: str  # what the reader can do, as a sentence


Decision: TypeAlias = Answer | Refusal

NO_TOKEN = Refusal(
    403,
    "This page needs the token of the program that serves it.",
    "Open the whole URL that mops ui printed. It ends with ?token=... Each start of mops ui makes a new token.",
)
WRONG_HOST = Refusal(403, "mops ui does not serve this host name.", "Open the URL that mops ui printed.")
WRONG_ORIGIN = Refusal(403, "Another site sent this form.", "Use the buttons of the page of mops ui.")
READ_ONLY = Refusal(403, "This page is read-only.", "Start mops ui without --read-only, or use the mops command.")


@dataclass(frozen=True)
class Request:
    """The parts of a request that the decision needs. Absent headers and fields are empty."""

    method: str
    path: str
    host: str
    origin: str
    token: str
    cookie: str


@dataclass(frozen=True)
class Access:
    """Who may use the page."""

    port: int  # part of the cookie's name, because all ports of a host share their cookies
    read_only: bool  # whether every request that changes something is refused
    # Whether a proxy in front has checked who asks: then every request may read, at any host name, without a token.
    # Nothing can be changed.
    behind_login: bool = False
    token: str = field(default_factory=lambda: secrets.token_urlsafe(_TOKEN_BYTES))  # the secret of this process

    @property
    def cookie_name(self) -> str:
        """The name of the cookie that holds the token."""
        return f"mops-ui-{self.port}"

    @property
    def cookie(self) -> str:
        """The header that sets the cookie. Scripts cannot read it, and other sites' pages do not send it."""
        return f"{self.cookie_name}={self.token}; HttpOnly; SameSite=Strict; Path=/"

    @property
    def form_token(self) -> str:
        """The token in forms. Nobody learns the token of the cookie from it."""
        return hmac.new(self.token.encode(), b"form", hashlib.sha256).hexdigest()

    @property
    def hosts(self) -> frozenset[str]:
        """The values of the Host header that browsers on this machine send."""
        return frozenset(f"{name}:{self.port}" for name in ("127.0.0.1", "localhost"))

    def decide(self, request: Request) -> Decision:
        """Return what happens with a request."""
        if self.behind_login:
            return Answer.SERVE if request.method in SAFE_METHODS else READ_ONLY
        if request.host.lower() not in self.hosts:
            return WRONG_HOST
        if request.path.startswith(STATIC) and request.method in SAFE_METHODS:
            return Answer.SERVE  # the same files for everyone; the page of a refusal needs them
        if request.method not in SAFE_METHODS and request.origin.lower() != f"http://{request.host}".lower():
            return WRONG_ORIGIN
        if not self._is_token(request.cookie):
            entering = request.method == "GET" and self._is_token(request.token)
            return Answer.ENTER if entering else NO_TOKEN
        if request.method not in SAFE_METHODS and self.read_only:
            return READ_ONLY
        return Answer.ENTER if request.token and request.method == "GET" else Answer.SERVE

    def is_form_token(self, given: str) -> bool:
        """Tell whether a form comes from a page of this process."""
        return hmac.compare_digest(given.encode(), self.form_token.encode())

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())


def without_token(path: str, query: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the address to continue at: an absolute path of this server, and the query without the token."""
    return "/" + path.lstrip("/"), {name: value for name, value in query.items() if name != "token"}


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

    def _answer(self, decision: Decision, request: HttpRequest) -> Response:
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
