"""A report as an object that a notebook shows."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mops.errors import not_written
from mops.jobs.job import Job
from mops.report.render import render


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
            raise not_written(Path(path), "the report", bad, hint="name another file with --out") from bad
        return Path(path)

    def _repr_html_(self) -> str:
        # In a frame, the styles of the notebook and of the report do not mix.
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" title="report of job {html.escape(self.job)}" '
            'style="width: 100%; height: 720px; border: 1px solid #8a95a3; border-radius: 6px"></iframe>'
        )
