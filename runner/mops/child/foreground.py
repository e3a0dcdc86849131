"""The program of ``mops study run``: runs simulations of one parameter set at the user's terminal, then the targets.

Seeds, environment and working folder are those of a job. Standard streams are those of the terminal, so that prints
appear at once and a debugger can read commands. Runs in children: the standard library, numpy, pyarrow and the user's
code only.
"""

from __future__ import annotations

import functools
import json
import os
import pdb
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from mops.child.blocks import table_of
from mops.child.buffers import Tables
from mops.child.channel import Message
from mops.child.load import UserCode, enter_import_folder
from mops.child.main import prepare_process
from mops.child.modules import CannotLoad
from mops.child.outputs import Results
from mops.child.task_run import score, simulate
from mops.child.texts import failure_of, failure_of_target, flush_prints
from mops.study.output_schema import InvalidOutput
from mops.system.clock import monotonic

T = TypeVar("T")


def main() -> None:
    """Run what the request asks for and write the report; the arguments are the files of both."""
    request, report = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    prepare_process()
    ForegroundRun(request, report).run()


class _Failed(Exception):
    """A step has failed, and the report says why."""


class ForegroundRun:
    """Runs the replicates of one parameter set in order, then the targets if all replicates ran."""

    def __init__(self, request: Message, report: Path):
        # What to load, as for a child process of a worker; and `param_id`, `params`, `seeds` by replicate, `reference`,
        # `runs_targets`, `debug` and `outputs`.
        self._request, self._path = request, report
        self._report: dict[str, Any] = {
            "running": "the import of the model",
            "replicates": [],
            "losses": [],
            "failure": None,
        }

    def run(self) -> None:
        """Run the replicates and the targets; the first failure ends the run."""
        request = self._request
        results = Results(request["reference"])
        try:
            code = self._step("the import of the model", lambda: UserCode(request, enter_import_folder(request)))
            replicates = [self._simulate(code, results, replicate, seed) for replicate, seed in request["seeds"]]
            for target in range(len(code.targets)) if request["runs_targets"] else ():
                self._score(code, target, replicates)
            self._report["running"] = ""
        except _Failed:
            pass
        self._write()

    def _simulate(self, code: UserCode, results: Results, replicate: int, seed: int) -> Tables:
        def tables_of_model() -> Tables:
            outputs = results.read(simulate(code, dict(self._request["params"]), seed), seed)
            return {name: table_of(output) for name, output in outputs.items()}

        began = monotonic()
        _enter(code)
        tables = self._step(f"replicate {replicate} (seed {seed})", tables_of_model)
        kept = self._request["outputs"]
        outputs = [_summary(name, table) for name, table in tables.items() if kept is None or name in kept]
        self._report["replicates"].append(
            {"replicate": replicate, "seed": seed, "seconds": monotonic() - began, "outputs": outputs}
        )
        return tables

    def _score(self, code: UserCode, target: int, replicates: list[Tables]) -> None:
        name, params, param_id = code.target_names[target], self._request["params"], self._request["param_id"]
        _enter(code)
        describe = functools.partial(failure_of_target, params=params, replicates=replicates)
        losses = self._step(f"target {name}", lambda: score(code, target, params, param_id, replicates), describe)
        self._report["losses"] += [{"target": name, "name": key, "loss": loss} for key, loss in losses.items()]

    def _step(self, what: str, step: Callable[[], T], describe: Callable[..., dict[str, str]] = failure_of) -> T:
        self._report["running"] = what
        self._write()  # before each step, so that a crash leaves the steps before it
        try:
            return step()
        except CannotLoad as refused:
            message = "\nalso: ".join([str(refused), *refused.others])
            self._report["failure"] = {"reason": "error", "message": message, "traceback": ""}
        except BaseException as error:  # noqa: BLE001 - the model may raise anything, SystemExit too
            is_debugged = self._request["debug"] and not isinstance(error, InvalidOutput)
            failure = self._report["failure"] = describe(error, keep_frames=is_debugged)
            if is_debugged:
                flush_prints()
                sys.stderr.write(failure["traceback"].replace(f"{self._request['root']}/", ""))
                pdb.post_mortem(error.__traceback__)
        finally:
            flush_prints()
        raise _Failed

    def _write(self) -> None:
        self._path.write_text(json.dumps(self._report, default=str))


def _enter(code: UserCode) -> None:
    """Undo what the previous step has changed in this process, and enter the working folder without its files."""
    code.state.restore()
    code.folder.renew()
    os.chdir(code.folder.path)


def _summary(name: str, table: pa.Table) -> dict[str, Any]:
    columns = [{"name": field.name, "type": str(field.type)} for field in table.schema]
    return {"name": name, "rows": table.num_rows, "columns": columns, "head": table.slice(0, 5).to_pylist()}
