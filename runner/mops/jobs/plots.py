"""``job.plot``: charts of a job, by Altair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from mops.errors import MopsError, UsageError
from mops.figures.fan import Fan, have_decades
from mops.figures.losses import TOTAL, ScoredSets, distribution
from mops.figures.profiles import pairs, profile, telling_parameters
from mops.figures.sensitivity import LEAST_SETS
from mops.figures.sobol import LEAST_BLOCKS
from mops.jobs.conditions import Where
from mops.jobs.data import JobData
from mops.jobs.figure_data import (
    MeasuredSets,
    best_groups,
    course_of,
    data_of,
    declared,
    fans_of,
    measured_of,
    points_of,
    scored_of,
    sensitivity_of,
    sobol_of,
    timeline_of,
)
from mops.jobs.ranking import require_total
from mops.jobs.status import JobState
from mops.project.mops_toml import Observed

if TYPE_CHECKING:
    from mops.figures.charts import Chart

_UNFIT_DATA = " The chart has no data, because 'where' chooses rows of the output and not of the data."


class Plots:
    """Charts of a job.

    Each method reads what is committed now, and returns an Altair chart, which a notebook shows and you can change,
    layer and concatenate. ``chart.save("plot.png")`` writes it, also as ``.svg``, ``.json`` or ``.html``; with
    ``inline=True`` the HTML file needs no network. The text below the title says what the chart shows. The methods need
    Altair: ``pip install 'mops-runner[plots]'``.
    """

    def __init__(self, job: JobState):
        self._job = job

    def _data(self) -> JobData:
        return JobData.read(self._job.files, self._job.name)

    def losses(self, loss: str | None = None, *, weights: Mapping[str, float] | None = None) -> Chart:
        """Draw how the losses are spread over the parameter sets.

        Parameters
        ----------
        loss
            The label of a loss, as in :meth:`Job.best`. None: the weighted sum, if there are weights, then each loss.
        weights
            As for :meth:`Job.best`.

        Raises
        ------
        UsageError
            The job has no losses, or none with this label; or Altair is not installed.

        Examples
        --------
        >>> job.plot.losses().save("losses.png")
        """
        charts, _ = _charts()
        scored = self._scored(loss, weights)
        labels = [TOTAL] if loss is not None else list(scored.shown_labels)
        return _chart(charts.beside([charts.distribution(distribution(scored, label)) for label in labels]))

    def pairs(
        self,
        parameters: Sequence[str] | None = None,
        loss: str | None = None,
        *,
        weights: Mapping[str, float] | None = None,
    ) -> Chart:
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
            The job has no losses, or several without weights, or a parameter is unknown; or Altair is not installed.
        """
        charts, _ = _charts()
        scored = self._with_total(loss, weights)
        names = _names(scored, parameters)
        if names is None:
            names = telling_parameters(scored)
        if not names:
            raise _no_parameters(self._job)
        found = pairs(scored, names)
        return _chart(charts.pairs(scored, found, [profile(scored, name) for name in names]))

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
    ) -> Chart:
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
            One or several columns of numbers. None: those that have data, then the first others, until there are three.
        by
            The parameters and the columns of the output for whose values the fans are drawn apart; there are at most 6
            values. None: if simulations have several rows for an ``x``, such as one for each region, the columns that
            tell these rows apart; else the first parameter that is a text or a boolean with 2 to 6 values; else the
            only parameter that varies, if it has 2 to 6 values. False: no parameter.
        where
            Only these rows, by a condition as for :meth:`Job.outputs`. None: all rows.
        best
            Only this number of parameter sets with the least loss. None: all sets.
        weights
            As for :meth:`Job.best`, for ``best``.

        Raises
        ------
        UsageError
            An output, column or parameter is unknown, or no output has a column such as ``day``; simulations have
            several rows for an ``x`` that the fan does not draw apart; or Altair is not installed.

        Notes
        -----
        The quantiles are those of numpy's rule ``linear``. Each simulation counts once, without weights. Values that
        are not finite do not count. Of a large job, the chart shows a random sample of its parameter sets, always the
        same: at most 2,000 sets and about 2 million values.

        The vertical axes are logarithmic if linear ones would hide half of a median line of each column, because it is
        below 1 % of the greatest value.

        Examples
        --------
        >>> job.plot.fan("daily", x="day", y="infected")
        >>> job.plot.fan("daily", y="infected", where="region == 'north'")
        """
        charts, courses = _charts()
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
        figures = fans_of(data, course, by, groups, where)
        decades, chosen = have_decades(figures), f" Only the {best:,} sets with the least loss." if best else ""
        drawn = []
        for one in figures:
            its, note = data_of(observed, one), "" if isinstance(observed, list) else _without_data(observed)
            if its is not None and where is not None and _other_columns(data, one, its):
                its, note = None, _UNFIT_DATA
            options = {"data_name": its.file if its else "", "has_decades": decades, "note": f"{chosen}{note}"}
            drawn.append(courses.fan(one, points_of(its), **options))
        return _chart(charts.beside(drawn, columns=1))

    def timeline(self) -> Chart:
        """Draw the progress, the rate and the memory over the running time of the job.

        The pauses between attempts are left out, and a line marks where each attempt starts.

        Raises
        ------
        UsageError
            Altair is not installed.
        """
        charts, courses = _charts()
        line = timeline_of(self._data())
        return _chart(charts.beside([courses.progress(line), courses.rate(line), courses.memory(line)], columns=1))

    def sensitivity(
        self, output: str | None = None, *, y: str | Sequence[str] | None = None, where: Where | None = None
    ) -> Chart:
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
            Altair is not installed.

        Notes
        -----
        If simulations have several last rows, such as one for each region, each value of the column that tells them
        apart has a measure.
        """
        charts, _ = _charts()
        measured = self._measured(output, y, where)
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
        names = figure.table["measure"].unique().to_pylist()
        drawn = charts.beside([charts.sensitivity(figure, name) for name in names])
        return _chart(charts.noted(drawn, [*notes, *figure.texts]))

    def sobol(
        self, output: str | None = None, *, y: str | Sequence[str] | None = None, where: Where | None = None
    ) -> Chart:
        """Draw the first-order and the total Sobol index of each parameter, with 95 % intervals.

        There is a chart for each loss and for the last values of the outputs. The parameter sets must be a Saltelli
        design, as ``SALib.sample.sobol.sample`` makes it, with all its sets in their order.

        Parameters
        ----------
        output, y, where
            As for :meth:`sensitivity`.

        Raises
        ------
        UsageError
            The parameter sets are not a Saltelli design, or too few of them have a value; the output or a column is
            unknown; or Altair is not installed.

        Notes
        -----
        The first-order index is the share of the variance that a parameter causes alone (Saltelli et al. 2010). The
        total index is its share together with the other parameters (Jansen 1999). The intervals are those of a
        bootstrap over the blocks of the design.
        """
        charts, _ = _charts()
        measured = self._measured(output, y, where)
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
        drawn = charts.beside([charts.sobol(figure, name) for name in figure.measures])
        return _chart(charts.noted(drawn, [*figure.notes, *measured.notes]))

    def _measured(self, output: str | None, y: str | Sequence[str] | None, where: Where | None) -> MeasuredSets:
        if output is None and (y is not None or where is not None):
            raise UsageError("'y' and 'where' need the name of an output", where="job.plot", hint="name it first")
        return measured_of(self._data(), output, (y,) if isinstance(y, str) else tuple(y or ()), where)

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


def _other_columns(data: JobData, figure: Fan, observed: Observed) -> set[str]:
    """Return the columns of the output that the data of a figure have too, and by which the figure is not divided."""
    own = set(data.dataset("outputs", figure.output).schema.names)
    return own & set(observed.table.column_names) - {figure.x, figure.y, *figure.keys}


def _without_data(wrong: MopsError) -> str:
    return f" The chart has no data: {wrong.what} ({wrong.where})."


def _names(scored: ScoredSets, parameters: Sequence[str] | None) -> tuple[str, ...] | None:
    if parameters is None:
        return None
    names = tuple(parameters)
    if unknown := [name for name in names if name not in scored.parameters]:
        hint = f"the parameters are {', '.join(scored.parameters)}"
        raise UsageError(f"the job has no parameter {unknown[0]!r}", where="job.plot", hint=hint)
    return names


def _no_parameters(job: JobState) -> UsageError:
    what = "every parameter has one value in all sets with a loss"
    return UsageError(what, where=f"job {job.name!r}", hint="job.params() shows the parameters of all sets")


def _chart(found: Any) -> Chart:
    chart: Chart = found
    return chart


def _charts() -> tuple[Any, Any]:
    """Import what draws; raise UsageError if Altair is not installed."""
    try:
        from mops.figures import charts, course_charts  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError as missing:
        if missing.name != "altair":
            raise
        hint = "pip install 'mops-runner[plots]'"
        raise UsageError("no charts: Altair is not installed", where="job.plot", hint=hint) from missing
    return charts, course_charts
