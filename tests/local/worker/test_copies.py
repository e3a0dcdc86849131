"""A process that a model forks ends where the model ends, and runs none of the task that it would have copied."""

from __future__ import annotations

import pytest
from pool_lab import PoolLab, values

from mops.errors import ClusterError

WARM_CHILDREN = True
# How a copy leaves the model, and its exit code.
LEAVES = {
    "pass": 0,
    "os.fork()": 0,
    "sys.exit()": 0,
    "sys.exit(3)": 3,
    "sys.exit('no')": 1,
    "raise KeyboardInterrupt": 1,
    "os.execvp('no-such-program', ['no-such-program'])": 1,
}
# The model waits until the copy has ended: before the repair, the copy ran the rest of the task first.
COPIED = """
import os, sys
import pyarrow as pa

def copied(leaves):
    if (pid := os.fork()) == 0:
        print("printed by the copy")
        exec(leaves)
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def run(params, seed):
    return {"k": [params["k"]], "code": [copied(params["leaves"]) if params["in"] == "model" else 0]}

class Lazy:
    def __init__(self, params):
        self.params = params

    def __arrow_c_stream__(self, requested_schema=None):
        found = pa.table({"k": [self.params["k"]], "code": [copied(self.params["leaves"])]})
        return found.__arrow_c_stream__(requested_schema)

def lazy(params, seed):
    return Lazy(params)

def target(params, replicates):
    return {"k": params["k"], "code": copied(params["leaves"]) if params["in"] == "target" else 0}
"""


def sets_of(where: str) -> list[dict[str, object]]:
    return [{"k": k, "in": where, "leaves": leaves} for k, leaves in enumerate(LEAVES)]


@pytest.mark.parametrize(("where", "model"), [("model", "run"), ("a lazy table", "lazy")])
def test_a_copy_of_the_process_ends_with_the_model(lab: PoolLab, where: str, model: str) -> None:
    """Regression: the copy ran the rest of the task too, and the worker took its results for those of the next task."""
    pool = lab.pool(COPIED, model=f"model:{model}")
    for _ in range(2):
        result = lab.run(pool, sets_of(where))
        assert not result.failures
        assert values(result, "k") == {(k, 0): [k] for k in range(len(LEAVES))}
        assert values(result, "code") == {(k, 0): [code] for k, code in enumerate(LEAVES.values())}
        assert result.prints.count("printed by the copy") == len(LEAVES)
        assert "FileNotFoundError" in result.prints


def test_a_copy_of_the_process_ends_with_the_target(lab: PoolLab) -> None:
    pool = lab.pool(COPIED, targets=("model:target",))
    for _ in range(2):
        result = lab.run(pool, sets_of("target"))
        assert not result.failures
        found = {(loss.group, loss.name): loss.loss for loss in result.losses}
        assert found == {(k, "k"): k for k in range(len(LEAVES))} | {
            (k, "code"): code for k, code in enumerate(LEAVES.values())
        }


@pytest.mark.parametrize("leaves", LEAVES)
def test_a_copy_of_the_process_ends_with_the_import(lab: PoolLab, leaves: str) -> None:
    """Regression: the copy answered its worker too, so that each further answer was that to an earlier question."""
    pool = lab.pool(
        COPIED + f"\nCODE = copied({leaves!r})\n\ndef code(params, seed):\n    return {{'x': [CODE]}}\n",
        model="model:code",
    )
    result = lab.run(pool, [{"a": 1}, {"a": 2}])
    assert values(result, "x") == {(0, 0): [LEAVES[leaves]], (1, 0): [LEAVES[leaves]]}


def test_a_model_may_use_processes_that_multiprocessing_forks(lab: PoolLab) -> None:
    code = (
        "import multiprocessing, os\n\ndef square(x):\n    return x * x\n\ndef run(p, s):\n"
        "    context = multiprocessing.get_context('fork')\n"
        "    with context.Pool(2) as pool:\n        squares = pool.map(square, [p['a'], 2])\n"
        "    process = context.Process(target=os.abort)\n    process.start()\n    process.join()\n"
        "    return {'x': [*squares, process.exitcode]}\n"
    )
    result = lab.run(lab.pool(code), [{"a": 3}, {"a": 4}])
    assert values(result, "x") == {(0, 0): [9, 4, -6], (1, 0): [16, 4, -6]}


@pytest.mark.parametrize("kind", ["results", "ended", "file"])
def test_a_worker_refuses_what_is_not_for_its_task(lab: PoolLab, kind: str) -> None:
    """Regression: positions of one task were read as those of another, so rows got the parameter set of others."""
    code = (
        "import gc\n\ndef run(p, s):\n"
        "    (channel,) = (each for each in gc.get_objects() if type(each).__name__ == 'Channel')\n"
        "    channel.send({'kind': p['kind'], 'name': 'mops-part-sim-other-1.'})\n    return {'x': [1]}\n"
    )
    with pytest.raises(ClusterError, match="sent results of another task"):
        lab.run(lab.pool(code), [{"kind": kind}])
