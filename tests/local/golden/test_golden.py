"""What others see of a job stays as it is: JSON output, stored records, Parquet files, exit codes.

``MOPS_GOLDEN=write`` writes what is found to golden.json, where a change of a format is meant.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from job_folders import folder_of
from programs import Ran
from warm import warm

GOLDEN = Path(__file__).with_name("golden.json")
MODEL = """
def run(params, seed):
    if params["x"] == 3:
        raise ValueError("three is too many")
    daily = {"day": [0, 1], "value": [params["x"] + seed % 7, params["x"] * 0.5]}
    return {"daily": daily, "total": {"sum": [seed % 11]}}


def score(replicates):
    return {"loss": float(len(replicates)), "other": 0.25}
"""
STUDY = {
    "model": "model:run",
    "n_replicates": 2,
    "targets": ["model:score"],
    "parameter_sets": [
        {"x": 1, "place": "here"},
        {"params": {"x": 2, "place": "there"}, "seed": 7},
        {"x": 3, "place": "é"},
    ],
}
COMMANDS = (
    ["jobs", "status", "one", "--json"],
    ["jobs", "status", "one", "--losses", "--json"],
    ["jobs", "list", "--json"],
    ["jobs", "results", "one", "--json"],
    ["settings", "--json"],
    ["study", "check", "study.json", "--json"],
    ["doctor", "one", "--json"],
    ["jobs", "verify", "one"],
    ["jobs", "status", "two", "--json"],
    ["jobs", "submit", "missing.json"],
    ["jobs", "submit", "--bogus"],
    ["jobs", "retry", "one", "--verdict", "error", "--name", "again"],
    ["jobs", "clean", "one", "--json"],
    ["jobs", "delete", "again", "one", "--yes", "--json"],
)


def shape(value: Any) -> Any:
    """Return names and types; of a list one shape for all that is in it."""
    match value:
        case dict():
            return {key: shape(value[key]) for key in sorted(value)}
        case list():
            return [merged([shape(item) for item in value])] if value else []
        case None:
            return "null"
        case _:
            return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def merged(shapes: list[Any]) -> Any:
    """Return what any of them may be."""
    if all(isinstance(one, dict) for one in shapes):
        keys = sorted({key for one in shapes for key in one})
        return {key: merged([one[key] for one in shapes if key in one]) for key in keys}
    if all(isinstance(one, list) for one in shapes):
        inner = [item for one in shapes for item in one]
        return [merged(inner)] if inner else []
    return " or ".join(sorted({one if isinstance(one, str) else json.dumps(one) for one in shapes}))


def said(text: str) -> Any:
    """Return the shape of the last line or of the whole, if that is JSON."""
    for candidate in (text, text.strip().rpartition("\n")[2]):
        try:
            return shape(json.loads(candidate))
        except ValueError:
            continue
    return re.sub(r"[\d.,]+", "N", text.strip())[:200] if text.strip() else ""


def record_of(path: Path) -> Any:
    return shape(json.loads(path.read_text()))


def look(folder: Path) -> dict[str, Any]:
    project = folder / "project"
    project.mkdir()
    (project / "mops.toml").touch()
    (project / "model.py").write_text(MODEL)
    (project / "study.json").write_text(json.dumps(STUDY))
    env = {key: value for key, value in os.environ.items() if not key.startswith("MODELOPS_")}
    env |= {"MODELOPS_STORAGE": str(folder / "storage"), "MODELOPS_JOB_SLOTS": "2"}
    env |= {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_CONFIG_HOME": str(folder / "config")}

    def run(*arguments: str) -> Ran:
        return Ran(*warm().run(list(arguments), env, project, timeout_s=120))

    found: dict[str, Any] = {"exit code of a partial job": run("jobs", "submit", "study.json", "--name", "one").code}
    job = folder / "storage" / "jobs" / "one"
    record, job = job / "job.json", folder_of(folder / "storage", "one")
    files = sorted({re.sub(r"\d+", "N", path.relative_to(job).as_posix()) for path in job.rglob("*") if path.is_file()})
    found["files"] = [name for name in files if not name.startswith("samples")]
    found["bundle"] = sorted(path.suffix for path in (folder / "storage" / "bundles").iterdir())
    found["job.json"] = record_of(record)
    found["schema.json"] = json.loads((job / "schema.json").read_text())
    found["live"] = record_of(max(job.glob("live/*.json")))
    records = [json.loads(path.read_text()) for path in sorted(job.glob("log/*.json"))]
    kinds = sorted({record["kind"] for record in records})
    found["log"] = {kind: merged([shape(record) for record in records if record["kind"] == kind]) for kind in kinds}
    tables = {}
    for path in sorted(job.rglob("*.parquet")):
        kind = re.sub(r"/?[^/]*$", "", path.relative_to(job).as_posix()) or path.name
        table = pq.read_table(path)
        keys = [name for name in ("group", "replicate", "day", "target", "name") if name in table.column_names]
        rows = table.sort_by([(key, "ascending") for key in keys]).to_pylist()
        known = {
            "message",
            "loss",
            "value",
            "sum",
            "param_id",
            "seed",
            "seeds",
            "params",
            "reason",
            "group",
            "replicate",
        }
        known_rows = [{key: row[key] for key in row if key in known} for row in rows]
        tables.setdefault(kind, {"schema": str(table.schema.remove_metadata()), "rows": []})["rows"] += known_rows
    for table in tables.values():
        table["rows"].sort(key=str)
    found["tables"] = tables
    for arguments in COMMANDS:
        ran = run(*arguments)
        found[f"mops {' '.join(arguments)}"] = {"exit code": ran.code, "stdout": said(ran.out)}
    return json.loads(json.dumps(found, default=str))


@pytest.mark.timeout(600)
def test_what_others_see_is_as_it_was(tmp_path: Path) -> None:
    found = look(tmp_path)
    if os.environ.get("MOPS_GOLDEN") == "write":
        GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert found.keys() == golden.keys()
    for name, what in golden.items():
        assert found[name] == what, name
