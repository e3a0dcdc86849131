"""Values that models return, through real children and a whole job: they arrive unchanged, or fail by name."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from pool_lab import PoolLab, values

import mops
from mops.settings import Settings

# Fills one workspace again and again, and returns it in the form that the parameter names.
REUSED = """
    import numpy as np
    import pyarrow as pa

    memory = np.zeros(3)
    FORMS = {
        "numpy": lambda: {"x": memory},
        "table": lambda: pa.table({"x": memory}),
        "slice": lambda: pa.table({"x": memory}).slice(0, 3),
        "array": lambda: {"x": pa.array(memory)},
        "reader": lambda: pa.table({"x": memory}).to_reader(),
    }

    def run(params, seed):
        memory[:] = seed
        return FORMS[params["form"]]()

    def seen(params, replicates):
        return {str(i): tables["output"]["x"].to_pylist()[0] for i, tables in enumerate(replicates)}
"""


def test_a_model_may_fill_one_workspace_for_all_its_simulations(lab: PoolLab) -> None:
    """Every row had the values of the last simulation, and so had every replicate that a target saw."""
    sets = [{"form": form} for form in ("numpy", "table", "slice", "array", "reader")]
    pool = lab.pool(textwrap.dedent(REUSED), targets=("model:seen",))
    result = lab.run(pool, sets, n_replicates=3)
    assert not result.failures
    found = values(result, "x")
    assert len(found) == 15
    losses = {(loss.group, int(loss.name)): loss.loss for loss in result.losses}
    for simulation, column in found.items():
        assert column == [losses[simulation]] * 3
    assert len(set(losses.values())) == 15  # seeds differ


# What used to end the runner: with a type that Parquet cannot hold, or with data that crash their reader.
ODD = """
    import numpy as np
    import pyarrow as pa

    def text(offsets, data=b"abc"):
        return pa.Array.from_buffers(
            pa.string(), len(offsets) - 1, [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(data)]
        )

    ODD = {
        "empty struct": lambda: pa.array([{}], pa.struct([])),
        "union": lambda: pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
        "interval": lambda: pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
        "offsets": lambda: text([0, 2**30, 3]),
        "no text": lambda: text([0, 2], b"\\xff\\xfe"),
        "categories": lambda: pa.DictionaryArray.from_arrays(pa.array([2**30]), ["a"], safe=False),
        "seconds": lambda: pa.array([2**60], pa.timestamp("s")),
    }
    GOOD = {
        "runs": lambda: pa.RunEndEncodedArray.from_arrays([1], ["a"]),
        "categories of text": lambda: pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["a"])),
    }

    def run(params, seed):
        made = (ODD | GOOD).get(params["what"], lambda: pa.array(["a"]))
        return pa.table({"x": made()})
"""
ODD_SETS = ["empty struct", "union", "interval", "offsets", "no text", "categories", "seconds"]
GOOD_SETS = ["runs", "categories of text", *(f"plain {i}" for i in range(5))]


@pytest.mark.timeout(120)
def test_no_value_ends_the_runner(tmp_path: Path) -> None:
    """One such parameter set of 60 ended the job as interrupted, and every resume of it."""
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(textwrap.dedent(ODD))
    sets = [{"what": what} for what in ("plain", *ODD_SETS, *GOOD_SETS)]
    study = tmp_path / "study.json"
    study.write_text(json.dumps({"model": "model:run", "parameter_sets": sets}))
    job = mops.submit(study, settings=Settings(slots=1, storage=str(tmp_path / "storage")))
    assert job.status().state == "partial"
    failures = job.failures().to_pylist()
    assert {row["reason"] for row in failures} == {"invalid_output"}
    assert [row["group"] for row in failures] == list(range(1, 1 + len(ODD_SETS)))
    assert all("column 'x'" in row["message"] for row in failures)
    assert job.outputs("output").to_table()["x"].to_pylist() == ["a"] * (1 + len(GOOD_SETS))
