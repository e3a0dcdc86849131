"""Renders the pages and their parts from the templates in the folder ``page``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mops.errors import MopsError

# The parts of a job's page that change while the job runs.
JOB_PARTS = ("state", "actions", "head", "charts", "failures", "log")

MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def render(template: str, **variables: Any) -> str:
    """Return a page as HTML."""
    return _environment().get_template(template).render(variables)


def part(name: str, **variables: Any) -> Markup:
    """Return a part of a page as HTML."""
    return Markup(render(f"parts/{name}.html.j2", **variables))  # noqa: S704 - the template has escaped it


def error_part(error: MopsError | None) -> Markup:
    """Return an error as HTML; None: nothing."""
    return part("error", error=error) if error is not None else Markup("")


@cache
def static_files() -> Mapping[str, tuple[bytes, str]]:
    """Return the content and the media type of each static file, by name. The report has the colours of both."""
    files = [*resources.files("mops.ui").joinpath("page").iterdir()]
    files.append(resources.files("mops.report").joinpath("page", "look.css"))
    found = {one.name: (one, MEDIA_TYPES.get(Path(one.name).suffix)) for one in files}
    return {name: (one.read_bytes(), kind) for name, (one, kind) in found.items() if kind}


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("mops.ui", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
