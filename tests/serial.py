"""Runs a study in one plain process: `python serial.py PROJECT STUDY FOLDER` writes FOLDER/<output>.parquet.

It uses only the identities and seeds of mops. Tests compare the rows of every job with its rows.
"""

import importlib
import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mops.study.ids_and_seeds import param_id, replicate_seed


def main(project: str, study_path: str, folder: str) -> None:
    study = json.loads(Path(study_path).read_text())
    os.chdir(project)
    sys.path.insert(0, project)
    model = load(study["model"])
    targets = {name: load(name) for name in study.get("targets") or []}
    outputs: dict[str, list[pa.Table]] = {}
    losses = []
    for group, params in enumerate(study["parameter_sets"]):
        identity = param_id(params)
        replicates = []
        for replicate in range(study.get("n_replicates", 1)):
            seed = replicate_seed(identity, replicate)
            tables = {name: pa.table(columns) for name, columns in model(dict(params), seed).items()}
            replicates.append(tables)
            for name, table in tables.items():
                outputs.setdefault(name, []).append(identified(table, identity, group, replicate, seed))
        for target, score in targets.items():
            result = score(dict(params), replicates)
            named = result if isinstance(result, dict) else {"loss": result}
            losses += [
                {"group": group, "target": target, "name": name, "loss": float(loss)}
                | {"n_replicates": len(replicates), "param_id": identity}
                for name, loss in named.items()
            ]
    for name, tables in outputs.items():
        pq.write_table(pa.concat_tables(tables), Path(folder, f"{name}.parquet"))
    pq.write_table(pa.Table.from_pylist(losses), Path(folder, "losses.parquet"))


def load(text: str):
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)


def identified(table: pa.Table, identity: str, group: int, replicate: int, seed: int) -> pa.Table:
    def same(value, type_=None):
        return pa.array([value] * table.num_rows, type_)

    front = {"group": same(group), "replicate": same(replicate)}
    back = {"seed": same(seed, pa.uint64()), "param_id": same(identity)}
    return pa.table(front | {name: table.column(name) for name in table.column_names} | back)


if __name__ == "__main__":
    main(*sys.argv[1:])
