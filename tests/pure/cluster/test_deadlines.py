"""Every call to Dask that waits for an answer has a deadline: one module makes these calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import mops

PACKAGE = Path(mops.__file__).parent
HOME = "cluster/dask_calls.py"

# Methods of Dask's clients, schedulers' proxies and futures that wait for another process.
WAITS = {
    *("run", "run_on_scheduler", "sync", "gather", "scatter", "compute", "persist", "close", "shutdown", "restart"),
    *("scheduler_info", "identity", "nthreads", "ncores", "who_has", "has_what", "processing", "get_events"),
    *("get_metadata", "set_metadata", "register_plugin", "unregister_worker_plugin", "retire_workers", "broadcast"),
    *("wait_for_workers", "result", "exception", "traceback", "get_data_from_worker", "wait", "as_completed"),
}
OWNERS = {"client", "_client", "scheduler", "future", "dask_scheduler", "sync", "wait", "get_data_from_worker"}
DEADLINES = {"timeout", "callback_timeout"}


def calls(tree: ast.AST) -> Iterator[tuple[str, str, ast.Call]]:
    """Yield each call outside of ``wait_for`` as (the name before the last dot, the last name, the call)."""
    if isinstance(tree, ast.Call):
        *before, name = ast.unparse(tree.func).split(".")
        if name == "wait_for":
            return
        yield before[-1] if before else name, name, tree
    for node in ast.iter_child_nodes(tree):
        yield from calls(node)


def without_deadline(source: str) -> list[str]:
    found = []
    for owner, name, call in calls(ast.parse(source)):
        has_deadline = DEADLINES & {keyword.arg for keyword in call.keywords}
        waits = name == "Client" or (name in WAITS and owner in OWNERS)
        if waits and not has_deadline:
            found.append(f"{call.lineno}: {ast.unparse(call)}")
    return found


def test_calls_without_a_deadline_are_found() -> None:
    wrong = "client.run(f)\nself._client.sync(f)\nfutures[0].client.sync(f)\nself.client.scheduler.who_has()\nClient(a)"
    assert len(without_deadline(wrong)) == 5
    assert without_deadline("calls.run(f)\nClient(a, timeout=5)\nsync(loop, f, callback_timeout=1)\nloop.run()") == []


def test_only_one_module_waits_for_dask_and_each_of_its_calls_has_a_deadline() -> None:
    """Regression: a frozen nanny stopped the start of a job, its watching thread, and its end."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name, source = path.relative_to(PACKAGE).as_posix(), path.read_text()
        if name != HOME and ("import distributed" in source or "from distributed" in source):
            found[name] = without_deadline(source)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
    assert "cluster/external.py" in found
