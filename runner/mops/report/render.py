"""Makes the report of a job: one HTML page, which a notebook shows."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from typing import TYPE_CHECKING

import mops
from mops.errors import UsageError, not_written
from mops.jobs.job import Job
from mops.report.facts import READING_FAULTS, Facts, damage_of

if TYPE_CHECKING:
    from jinja2 import Environment

    from mops.report.content import Section

LIBRARIES = ("altair", "jinja2", "vl_convert")  # draw figures, or fill in the page


@dataclass(frozen=True)
class Report:
    """The report of a job as one HTML document. A notebook shows it.

    Parameters
    ----------
    html
        The document, which needs no network and no other file.
    """

    job: str
    html: str = field(repr=False)

    @classmethod
    def of(cls, job: Job, target: str | None = None, weights: Mapping[str, float] | None = None) -> Report:
        """Return the report of a job; arguments and errors are those of :func:`mops.report.render.render`."""
        return cls(job.name, render(job, target, weights))

    def save(self, path: str | Path) -> Path:
        """Write the document to a file, and return its path.

        Raises
        ------
        UsageError
            The path is wrong: its folder does not exist, for example.
        StorageError
            The disk is full, or fails.
        """
        try:
            Path(path).write_text(self.html, encoding="utf-8")
        except OSError as bad:
            raise not_written(Path(path), "the report", bad, hint="name another file with --to") from bad
        return Path(path)

    def _repr_html_(self) -> str:
        # In a frame, the styles of the notebook and of the report do not mix.
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" title="report of job {html.escape(self.job)}" '
            'style="width: 100%; height: 720px; border: 1px solid #8a95a3; border-radius: 6px"></iframe>'
        )


def render(job: Job, target: str | None = None, weights: Mapping[str, float] | None = None) -> str:
    """Return the report of a job, which may still run or have failed, as one HTML document."""
    # The document needs no network and no other file. Browsers keep to that by its content security policy.
    _check_libraries()
    from mops.report.head import head  # noqa: PLC0415 - this and the sections need the optional libraries

    facts = Facts.of(job, target, weights)
    try:
        sections, top = _sections(facts), head(facts)
    except READING_FAULTS as fault:
        raise damage_of(fault, *facts.read) from fault
    is_live = any(part.kind == "parallel" for section in sections for part in section.parts)
    script = (_vega() if is_live else "") + _file("page.js")
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            facts=facts,
            made=f"{datetime.fromtimestamp(facts.data.time_s).astimezone():%Y-%m-%d %H:%M}",
            head=top,
            sections=sections,
            style=_file("look.css") + _file("page.css"),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            version=mops.__version__,
        )
    )


def _check_libraries() -> None:
    """Raise UsageError if a library is missing that draws figures or fills in the page."""
    for name in LIBRARIES:
        try:
            import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name != name:
                raise
            what = f"a report needs the library {name}, which is not installed"
            hint = "install it: pip install 'mops-runner[plots]'"
            raise UsageError(what, where="this Python environment", hint=hint) from None


@cache
def _vega() -> str:
    """Return Vega as one script, for the figures that a reader can filter."""
    import vl_convert  # noqa: PLC0415 - an optional extra, which takes 0.1 s

    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    return bundle.replace("</script", "<\\/script") + "\n"


def _sections(facts: Facts) -> list[Section]:
    """Return the sections that the job has."""
    from mops.report import calibration, failures, influence, losses, outputs, progress  # noqa: PLC0415

    every: tuple[Callable[[Facts], Section | None], ...] = (
        failures.failures,
        calibration.fitting,
        losses.losses,
        outputs.outputs,
        influence.influence,
        progress.progress,
    )
    return [section for make in every if (section := make(facts)) is not None]


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - an optional extra

    loader = PackageLoader("mops.report", "page")
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    found.policies["json.dumps_kwargs"] = {"sort_keys": False}
    return found


def _file(name: str) -> str:
    return resources.files("mops.report").joinpath("page", name).read_text(encoding="utf-8")
