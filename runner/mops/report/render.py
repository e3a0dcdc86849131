"""Makes the HTML page of a job's report."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import mops
from mops.jobs.job import Job
from mops.project.bundle import MARK
from mops.report.content import Block, Section
from mops.report.damage import READING_FAULTS, damage_of
from mops.report.drawing.svg import check_libraries
from mops.report.facts import Facts
from mops.report.sections.failures import failures
from mops.report.sections.fitting import fitting
from mops.report.sections.head import head
from mops.report.sections.influence import influence
from mops.report.sections.losses import losses
from mops.report.sections.outputs import outputs
from mops.report.sections.progress import progress

if TYPE_CHECKING:
    from jinja2 import Environment


def render(job: Job, target: str | None = None, weights: Mapping[str, float] | None = None) -> str:
    """Return the report of a job, which may still run or have failed, as one HTML document."""
    # The document needs no network and no other file. Browsers keep to that by its content security policy.
    check_libraries()
    facts = Facts.of(job, target, weights)
    script = _file("page.js")
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            facts=facts,
            made=f"{datetime.fromtimestamp(facts.data.time_s).astimezone():%Y-%m-%d %H:%M}",
            head=head(facts),
            sections=_sections(facts),
            style=_file("look.css") + _file("page.css"),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            version=mops.__version__,
            mark=MARK,
        )
    )


def _sections(facts: Facts) -> list[Section]:
    sections = [_section(facts, *named) for named in _SECTIONS]
    return [section for section in sections if section is not None]


def _section(facts: Facts, anchor: str, title: str, make: Callable[[Facts], Section | None]) -> Section | None:
    """Return a section, or what to do if a part that it reads is damaged. The others may be whole."""
    try:
        return make(facts)
    except READING_FAULTS as fault:
        damaged = damage_of(facts.data, fault)
        text = f"This section is missing: {damaged.what} ({damaged.where}). List all damaged parts, to restore them "
        data = {"text": f"{text}from a backup:", "command": facts.command("verify")}
        return Section(anchor, title, [Block("damaged", data)])


_SECTIONS: tuple[tuple[str, str, Callable[[Facts], Section | None]], ...] = (
    ("failures", "Failures", failures),
    ("calibration", "Calibration", fitting),
    ("losses", "Losses", losses),
    ("outputs", "Outputs", outputs),
    ("sensitivity", "Sensitivity", influence),
    ("progress", "Progress and memory", progress),
)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - an optional extra

    loader = PackageLoader("mops.report", "page")
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    found.policies["json.dumps_kwargs"] = {"sort_keys": False}
    return found


def _file(name: str) -> str:
    return resources.files("mops.report").joinpath("page", name).read_text(encoding="utf-8")
