"""``mops.sample()``: parameter sets from a space."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from mops.errors import UsageError, known_name
from mops.jobs.tables.scan import Computed, Selection
from mops.jobs.tables.table import Table
from mops.study.json_file import read_text
from mops.study.sampling.draw import Method
from mops.study.sampling.write import draw_sets


def sample(
    space: str | Path | Mapping[str, Any],
    n: int | None = None,
    *,
    method: Literal["sobol", "lhs", "grid"] = "sobol",
    seed: int = 0,
) -> Table:
    """Draw parameter sets from a space, as ``mops study sample`` does.

    Parameters
    ----------
    space
        Path of a space file, or a mapping with its keys: ``{"beta": {"min": 0.1, "max": 0.5}}``.
    n
        The number of parameter sets; None: a grid.
    method : {"sobol", "lhs", "grid"}
        How to draw; ``lhs`` is a Latin hypercube.
    seed
        The same seed gives the same sets in the same order.

    Returns
    -------
    Table
        A row for each set, and a column for each parameter (boolean, int64, float64 or string). Pass it to
        :func:`mops.submit` as ``sets``.

    Warns
    -----
    UserWarning
        Something about the sample that you may not have meant.

    Raises
    ------
    StudyError
        The space has problems; the error lists all of them.
    UsageError
        The method is unknown, or ``n`` is not possible for it.

    Examples
    --------
    >>> sets = mops.sample({"beta": {"min": 0.1, "max": 0.5}}, 64)
    >>> job = mops.submit(model=sir.simulate, targets=[sir.peak], sets=sets)
    """
    given = isinstance(space, Mapping)
    text, where = (json.dumps(space), "the space") if given else (read_text(Path(str(space)), "space"), str(space))
    if method not in tuple(Method):
        raise UsageError(f"the method {method!r} is unknown", where="mops.sample", hint=known_name(str(method), Method))
    drawn = draw_sets(text, where, method=Method(method), n=n, seed=seed)
    for note in drawn.notes:
        warnings.warn(note, UserWarning, stacklevel=2)
    return Table("sampled parameter sets", lambda: Computed(drawn.table, Selection()))
