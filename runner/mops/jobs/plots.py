"""``job.plot``: pictures of a job, drawn by matplotlib."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from mops.errors import MopsError, UsageError
from mops.figures.fan import Fan, fans_caption
from mops.figures.log_axes import Decades
from mops.figures.losses import TOTAL, ScoredSets, distribution, shown_sets
from mops.figures.profiles import pairs, profile, telling_parameters
from mops.figures.sensitivity import LEAST_SETS
from mops.figures.sobol import LEAST_BLOCKS
from mops.jobs.conditions import Where
from mops.jobs.data import JobData
from mops.jobs.figure_data import (
    Wanted,
    axes_of,
    best_groups,
    course_of,
    data_of,
    declared,
    fans_of,
    measured_of,
    scored_of,
    sensitivity_of,
    sobol_of,
    timeline_of,
)
from mops.jobs.ranking import require_total
from mops.jobs.status import JobState
from mops.project.mops_toml import Observed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_MOST_PROFILES = 9
_UNFIT_DATA = " The figure has no data, because 'where' chooses rows of the output and not of the data."


class Plots:
    """Pictures of a job.

    Each method reads what is committed now, and returns a ``matplotlib.figure.Figure``, which a notebook shows.
    ``figure.savefig("plot.png")`` writes it. The caption below the axes says what the picture shows. The methods need
    matplotlib: ``pip install 'mops-runner[plots]'``.

    Methods with ``ax`` can draw one picture on axes that you have made, without a caption.
    """

    def __init__(self, job: JobState):
        self._job = job

    def _data(self) -> JobData:
        return JobData.read(self._job.files, self._job.name)

    def losses(
        self, loss: str | None = None, *, weights: Mapping[str, float] | None = None, ax: Axes | None = None
    ) -> Figure:
        """Draw how the losses are spread over the parameter sets.

        Parameters
        ----------
        loss
            The label of a loss, as in :meth:`Job.best`. None: the weighted sum, if there are weights, then each loss;
            with ``ax`` only the first of them.
        weights
            As for :meth:`Job.best`.
        ax
            The axes on which to draw.

        Raises
        ------
        UsageError
            The job has no losses, or none with this label; or matplotlib is not installed.

        Examples
        --------
        >>> job.plot.losses().savefig("losses.png")
        """
        drawing, style = _matplotlib()
        scored = self._scored(loss, weights)
        labels = [TOTAL] if loss is not None else list(scored.shown_labels)
        figures = [distribution(scored, label) for label in (labels if ax is None else labels[:1])]
        with style.look():
            plot, axes = style.panels(len(figures)) if ax is None else (ax.get_figure(), [ax])
            for one, figure in zip(axes, figures, strict=True):
                drawing.draw_distribution(one, figure)
            if ax is None:
                style.add_caption(plot, " ".join(figure.caption for figure in figures))
        return _figure(plot)

    def profile(
        self,
        parameters: str | Sequence[str] | None = None,
        loss: str | None = None,
        *,
        weights: Mapping[str, float] | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Draw the least and the median loss over each parameter, and parameter sets as points.

        Parameters
        ----------
        parameters
            The parameters. None: the 9 that explain most of the variance of the loss's ranks; with ``ax`` the first
            of them.
        loss
            The label of a loss, as in :meth:`Job.best`; None: the only loss, or the weighted sum.
        weights
            As for :meth:`Job.best`.
        ax
            The axes on which to draw.

        Raises
        ------
        UsageError
            The job has no losses, or several without weights, or a parameter is unknown; or matplotlib is not
            installed.
        """
        drawing, style = _matplotlib()
        scored = self._with_total(loss, weights)
        names = _names(scored, parameters) or telling_parameters(scored, most=_MOST_PROFILES if ax is None else 1)
        if not names:
            raise _no_parameters(self._job)
        sets = shown_sets(scored, best=200, others=1_800)
        figures = [profile(scored, name) for name in names]
        with style.look():
            plot, axes = style.panels(len(figures)) if ax is None else (ax.get_figure(), [ax])
            for one, figure in zip(axes, figures, strict=ax is None):
                drawing.draw_profile(one, figure, sets)
            axes[0].legend()
            if ax is None:
                style.add_caption(plot, f"{sets.caption} The lines have the least and the median loss in each bin.")
        return _figure(plot)

    def pairs(
        self,
        parameters: Sequence[str] | None = None,
        loss: str | None = None,
        *,
        weights: Mapping[str, float] | None = None,
    ) -> Figure:
        """Draw the parameter sets over each pair of parameters, coloured by their loss.

        Parameters
        ----------
        parameters
            At least two parameters. None: the 6 that explain most of the variance of the loss's ranks.
        loss
            The label of a loss, as in :meth:`Job.best`; None: the only loss, or the weighted sum.
        weights
            As for :meth:`Job.best`.

        Raises
        ------
        UsageError
            The job has no losses, or several without weights, or a parameter is unknown; or matplotlib is not
            installed.
        """
        drawing, style = _matplotlib()
        scored = self._with_total(loss, weights)
        figure = pairs(scored, parameters=_names(scored, parameters))
        if not figure.parameters:
            raise _no_parameters(self._job)
        profiles = [profile(scored, name) for name in figure.parameters]
        with style.look():
            return _figure(drawing.draw_pairs(figure, profiles))

    def fan(
        self,
        output: str | None = None,
        *,
        x: str | None = None,
        y: str | Sequence[str] | None = None,
        by: str | Sequence[str] | Literal[False] | None = None,
        where: Where | None = None,
        best: int | None = None,
        weights: Mapping[str, float] | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Draw the course of an output: the median and the middle 50 % and 90 % of all simulations.

        Data that ``[[observed]]`` of the project's ``mops.toml`` names for ``output``, ``x`` and ``y`` are points.

        Parameters
        ----------
        output
            The name of the output. None: the first one that has a column such as ``day`` or ``t``.
        x
            The column of the horizontal axis: numbers, dates or times. None: the first column with a name such as
            ``t``, ``time``, ``day``, ``date``, ``week``, ``month``, ``year``, ``step`` or ``age``.
        y
            One or several columns of numbers. None: those that have data, then the first others, until there are three;
            with ``ax`` the first of them.
        by
            The parameters and the columns of the output for whose values the fans are drawn apart; there are at most 6
            values. None: if simulations have several rows for an ``x``, such as one for each region, the columns that
            tell these rows apart; else the first parameter that is a text or a boolean with 2 to 6 values. False: no
            parameter.
        where
            Only these rows, by a condition as for :meth:`Job.outputs`. None: all rows.
        best
            Only this number of parameter sets with the least loss. None: all sets.
        weights
            As for :meth:`Job.best`, for ``best``.
        ax
            The axes on which to draw.

        Raises
        ------
        UsageError
            An output, column or parameter is unknown, or no output has a column such as ``day``; simulations have
            several rows for an ``x`` that the fan does not draw apart; or matplotlib is not installed.

        Notes
        -----
        The quantiles are those of numpy's rule ``linear``. Each simulation counts once, without weights. Values that
        are not finite do not count. Of a large job, the picture shows a random sample of its parameter sets, always the
        same: at most 2,000 sets and about 2 million values.

        The vertical axes are logarithmic if linear ones would hide half of a median line of each column, because it is
        below 1 % of the greatest value. ``ax.set_yscale("linear")`` changes this.

        Examples
        --------
        >>> job.plot.fan("daily", x="day", y="infected")
        >>> job.plot.fan("daily", y="infected", where="region == 'north'")
        """
        drawing, style = _matplotlib()
        ys = [y] if isinstance(y, str) else list(y or ())
        data = self._data()
        observed = data.observed
        course = course_of(data, output, x, ys, declared(observed), by, where)
        if course is None:
            names = ", ".join(data.output_names) or "none"
            what = f"no output of job {self._job.name!r} has a column such as 'day' or 't'"
            raise UsageError(
                what, where=f"outputs: {names}", hint="name the columns: job.plot.fan(OUTPUT, x=..., y=...)"
            )
        groups = None if best is None else best_groups(scored_of(data, weights=weights), best)
        figures = fans_of(data, course, by, groups, where)[: None if ax is None else 1]
        is_fitting = [where is None or not _other_columns(data, figure) for figure in figures]
        points = [data_of(observed, one) if fits else None for one, fits in zip(figures, is_fitting, strict=True)]
        scales = axes_of(figures, points)
        with style.look():
            plot, axes = style.panels(len(figures), columns=1, share=True) if ax is None else (ax.get_figure(), [ax])
            for one, figure, its, scale in zip(axes, figures, points, scales, strict=True):
                drawing.draw_fan(one, figure, its, scale)
                if its is not None:
                    one.legend()
            axes[0].legend()
            if ax is None:
                for one in axes:
                    one.label_outer()
                chosen = f" Only the {best:,} sets with the least loss." if best is not None else ""
                unfit = "" if all(is_fitting) else _UNFIT_DATA
                notes = f"{fans_caption(figures)}{chosen}{_notes_of(scales, figures)}{_without_data(observed)}{unfit}"
                style.add_caption(plot, notes)
        if ax is not None and (missing := _without_data(observed)):
            warnings.warn(missing.strip(), stacklevel=2)
        return _figure(plot)

    def timeline(self) -> Figure:
        """Draw the progress, the rate and the memory over the running time of the job.

        The pauses between attempts are left out, and a line marks where each attempt starts.

        Raises
        ------
        UsageError
            matplotlib is not installed.
        """
        drawing, style = _matplotlib()
        figure = timeline_of(self._data())
        with style.look():
            return _figure(drawing.draw_timeline(figure))

    def sensitivity(
        self, output: str | None = None, *, y: str | Sequence[str] | None = None, where: Where | None = None
    ) -> Figure:
        """Draw Spearman's rank correlation of each parameter with each loss and with the last values of the outputs.

        Parameters
        ----------
        output
            Only the results of this output. None: at most 8 measures: the losses, then the outputs with one row for
            each simulation, then the last values of the others. The caption names the results that are left out.
        y
            One or several columns of the output. None: its first 24 columns of numbers.
        where
            Only these rows of the output, by a condition as for :meth:`Job.outputs`. None: all rows.

        Raises
        ------
        UsageError
            The job has fewer than 8 parameter sets, or no numbers that vary; the output or a column is unknown; or
            matplotlib is not installed.

        Notes
        -----
        If simulations have several last rows, such as one for each region, each value of the column that tells them
        apart has a measure.
        """
        drawing, style = _matplotlib()
        measured = measured_of(self._data(), _wanted(output, y, where))
        found = sensitivity_of(measured)
        figure, notes = found.known(), [*found.notes, *measured.notes]
        if figure.n_sets < LEAST_SETS:
            what = f"a rank correlation needs {LEAST_SETS} parameter sets with results"
            at = f"job {self._job.name!r}, which has {figure.n_sets}"
            raise UsageError(what, where=at, hint="run more parameter sets: mops jobs extend")
        if not len(figure.table):
            what = f"job {self._job.name!r} has no parameters and results that vary and are numbers"
            hint = " ".join(notes) or "job.params() shows the parameters"
            raise UsageError(what, where="job.plot.sensitivity", hint=hint)
        with style.look():
            return _figure(drawing.draw_sensitivity(figure, notes))

    def sobol(
        self, output: str | None = None, *, y: str | Sequence[str] | None = None, where: Where | None = None
    ) -> Figure:
        """Draw the first-order and the total Sobol index of each parameter, with 95 % intervals.

        There is a picture for each loss and for the last values of the outputs. The parameter sets must be a Saltelli
        design, as ``SALib.sample.sobol.sample`` makes it, with all its sets in their order.

        Parameters
        ----------
        output, y, where
            As for :meth:`sensitivity`.

        Raises
        ------
        UsageError
            The parameter sets are not a Saltelli design, or too few of them have a value; the output or a column is
            unknown; or matplotlib is not installed.

        Notes
        -----
        The first-order index is the share of the variance that a parameter causes alone (Saltelli et al. 2010). The
        total index is its share together with the other parameters (Jansen 1999). The intervals are those of a
        bootstrap over the blocks of the design.
        """
        drawing, style = _matplotlib()
        measured = measured_of(self._data(), _wanted(output, y, where))
        figure = sobol_of(measured)
        if figure is None:
            what = f"the parameter sets of job {self._job.name!r} are not a Saltelli design"
            hint = "draw the sets with SALib.sample.sobol.sample, and keep their order"
            raise UsageError(what, where="job.plot.sobol", hint=hint)
        if not figure.measures:
            what = f"job {self._job.name!r} has no result with Sobol indices"
            blocks = f"{LEAST_BLOCKS} blocks of {figure.design.size} parameter sets"
            hint = f"a result must vary, and have a value for each set of {blocks}"
            raise UsageError(what, where="job.plot.sobol", hint=hint)
        with style.look():
            return _figure(drawing.draw_sobol(figure, [*figure.notes, *measured.notes]))

    def _with_total(self, loss: str | None, weights: Mapping[str, float] | None) -> ScoredSets:
        scored = self._scored(loss, weights)
        require_total(scored, "job.plot")
        return scored

    def _scored(self, loss: str | None, weights: Mapping[str, float] | None) -> ScoredSets:
        """Return the sets; the total is the loss with this label, if one is named."""
        scored = scored_of(self._data(), weights=weights)
        if not scored.labels:
            what = f"job {self._job.name!r} has no losses"
            raise UsageError(what, where="job.plot", hint="losses come from targets: mops jobs extend adds some")
        if loss is not None and loss not in (TOTAL, *scored.labels):
            labels = ", ".join(map(repr, scored.labels))
            raise UsageError(f"no loss has the label {loss!r}", where="job.plot", hint=f"the labels are {labels}")
        return scored if loss in (None, TOTAL) else scored.only(loss)


def _notes_of(axes: Sequence[Decades | None], figures: Sequence[Fan]) -> str:
    """Return which vertical axes are logarithmic."""
    known = {figure.y: axis for figure, axis in zip(figures, axes, strict=True) if axis is not None}
    return "".join(
        f" {axis.note('The vertical axis' if len(axes) == 1 else f'The axis of {y!r}')}" for y, axis in known.items()
    )


def _other_columns(data: JobData, figure: Fan) -> set[str]:
    """Return the columns of the output that the data of a figure have too, and by which the figure is not divided."""
    observed = data_of(data.observed, figure)
    own = set(data.dataset("outputs", figure.output).schema.names)
    return set() if observed is None else own & set(observed.table.column_names) - {figure.x, figure.y, *figure.keys}


def _without_data(observed: list[Observed] | MopsError) -> str:
    """Return why the figure has no data, if the project declares data that cannot be shown."""
    return "" if isinstance(observed, list) else f" The figure has no data: {observed.what} ({observed.where})."


def _wanted(output: str | None, y: str | Sequence[str] | None, where: Where | None) -> Wanted:
    if output is None and (y is not None or where is not None):
        raise UsageError("'y' and 'where' need the name of an output", where="job.plot", hint="name it first")
    return Wanted(output, (y,) if isinstance(y, str) else tuple(y or ()), where)


def _names(scored: ScoredSets, parameters: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if parameters is None:
        return None
    names = (parameters,) if isinstance(parameters, str) else tuple(parameters)
    if unknown := [name for name in names if name not in scored.parameters]:
        hint = f"the parameters are {', '.join(scored.parameters)}"
        raise UsageError(f"the job has no parameter {unknown[0]!r}", where="job.plot", hint=hint)
    return names


def _no_parameters(job: JobState) -> UsageError:
    what = "every parameter has one value in all sets with a loss"
    return UsageError(what, where=f"job {job.name!r}", hint="job.params() shows the parameters of all sets")


def _figure(found: Any) -> Figure:
    figure: Figure = found
    return figure


def _matplotlib() -> tuple[Any, Any]:
    """Import what draws; raise UsageError if matplotlib is not installed."""
    try:
        return importlib.import_module("mops.jobs.drawing"), importlib.import_module("mops.jobs.drawing")
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != "matplotlib":
            raise
        hint = "pip install 'mops-runner[plots]'"
        raise UsageError("matplotlib is not installed", where="job.plot", hint=hint) from missing
