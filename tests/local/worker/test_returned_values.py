"""What a model or a target changes in its arguments, in real child processes."""

from __future__ import annotations

from pool_lab import PoolLab, values

WARM_CHILDREN = True
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
