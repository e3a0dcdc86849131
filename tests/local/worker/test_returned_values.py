"""Return values of models go through real child processes and a whole job, and arrive unchanged or are refused."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from pool_lab import PoolLab, values

import mops
from mops.settings import Settings

WARM_CHILDREN = True
# Overwrites one array in each simulation, and returns it in the form of the parameter.
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


def test_a_model_may_overwrite_one_array_in_all_its_simulations(lab: PoolLab) -> None:
    """Regression: every row, and every replicate of a target, had the values of the last simulation."""
    sets = [{"form": form} for form in ("numpy", "table", "slice", "array", "reader")]
    pool = lab.pool(textwrap.dedent(REUSED), targets=("model:seen",))
    result = lab.run(pool, sets, n_replicates=3)
    assert not result.failures
    found = values(result, "x")
    assert len(found) == 15
    losses = {(loss.group, int(loss.name)): loss.loss for loss in result.losses}
    for simulation, column in found.items():
        assert column == [losses[simulation]] * 3
    assert len(set(losses.values())) == 15  # the seeds differ


# Regression: these values killed the runner. Parquet cannot store the type or the time, or the data crash the reader.
ODD = """
    import numpy as np
    import pyarrow as pa

    offsets = pa.py_buffer(np.array([0, 2**30, 3], np.int32))
    ODD = {
        "empty struct": lambda: pa.array([{}], pa.struct([])),
        "offsets": lambda: pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"abc")]),
        "seconds": lambda: pa.array([2**60], pa.timestamp("s")),
    }
    GOOD = {"runs": lambda: pa.RunEndEncodedArray.from_arrays([1], ["a"])}

    def run(params, seed):
        made = (ODD | GOOD).get(params["what"], lambda: pa.array(["a"]))
        return pa.table({"x": made()})
"""
ODD_SETS, GOOD_SETS = ["empty struct", "offsets", "seconds"], ["runs", "anything else"]


@pytest.mark.timeout(120)
def test_no_value_kills_the_runner(tmp_path: Path) -> None:
    """Regression: one parameter set of 60 interrupted the job in every attempt."""
    (tmp_path / "mops.toml").touch()
    (tmp_path / "model.py").write_text(textwrap.dedent(ODD))
    sets = [{"what": what} for what in ("plain", *ODD_SETS, *GOOD_SETS)]
    study = tmp_path / "study.json"
    study.write_text(json.dumps({"model": "model:run", "parameter_sets": sets}))
    job = mops.submit(study, settings=Settings(slots=1, storage=str(tmp_path / "storage")))
    assert job.status().state == "partial"
    failures = job.failures().to_arrow().to_pylist()
    assert {row["reason"] for row in failures} == {"invalid_output"}
    assert [row["group"] for row in failures] == list(range(1, 1 + len(ODD_SETS)))
    assert all("column 'x'" in row["message"] for row in failures)
    assert job.outputs("output").to_arrow()["x"].to_pylist() == ["a"] * (1 + len(GOOD_SETS))


CHANGES_ITS_ARGUMENTS = """
def run(params, seed):
    seen = {"x": [params["x"]], "n": [len(params)]}
    params["x"] += 10
    params["new"] = seed
    params.pop("removed")
    return seen

def first(params, replicates):
    found = look(params, replicates)
    params["x"] += 10
    params["new"] = 1
    params.pop("removed")
    for tables in replicates:
        tables["added"] = tables.pop("output")
    replicates.reverse()
    replicates.append({})
    return found

def second(params, replicates):
    return look(params, replicates)

def look(params, replicates):
    tables = [tables["output"] for tables in replicates]
    return {"x": params["x"], "n": len(params), "replicates": len(replicates), "outputs": sum(map(len, replicates)),
            "rows": sum(table["x"][0].as_py() + table["n"][0].as_py() for table in tables)}
"""


def test_no_later_step_sees_what_a_model_or_a_target_changes_in_its_arguments(lab: PoolLab) -> None:
    """The next replicate, the targets, and the next target get the parameters and the replicates of the set."""
    pool = lab.pool(CHANGES_ITS_ARGUMENTS, targets=("model:first", "model:second"))
    sets = [{"x": 1, "removed": "a"}, {"x": 2, "removed": "b"}]
    result = lab.run(pool, sets, n_replicates=3)
    assert not result.failures
    expected = {(group, i): group + 1 for group in (0, 1) for i in range(3)}
    assert values(result, "x") == {key: [x] for key, x in expected.items()}
    assert values(result, "n") == {key: [2] for key in expected}
    for group in (0, 1):
        for target in ("model:first", "model:second"):
            found = {loss.name: loss.loss for loss in result.losses if (loss.group, loss.target) == (group, target)}
            assert found == {"x": group + 1, "n": 2, "replicates": 3, "outputs": 3, "rows": 3 * (group + 1 + 2)}
