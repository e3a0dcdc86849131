"""Compare two artefacts row for row: `python bench/check_artefact.py OUT_A OUT_B` (exit code 1: they differ).

Rows may come in any order and in any number of files; integers and dictionaries may differ in width.
"""

import argparse
import sys
from pathlib import Path

import pyarrow as pa
from pyarrow.dataset import dataset

COLUMN_TYPES = {"param_id": pa.string(), "replicate": pa.int64(), "seed": pa.uint64(), "target": pa.string()}
PARTS = {"outputs": ("param_id", "replicate", "day"), "losses": ("param_id", "target")}


def differences(first: Path, second: Path) -> list[str]:
    """Return the differences between two artefacts, as sentences; nothing if the artefacts are the same."""
    found = []
    for part, key in PARTS.items():
        found += part_differences(part, read_sorted(first / part, key), read_sorted(second / part, key))
    return found


def read_sorted(folder: Path, key: tuple[str, ...]) -> pa.Table:
    """Read one part of an artefact in the order of its key, in types that do not depend on the writer."""
    table = dataset(folder).to_table()
    columns = {name: table[name].cast(COLUMN_TYPES.get(name, pa.float64())) for name in table.column_names}
    return pa.table(columns).sort_by([(name, "ascending") for name in key])


def part_differences(part: str, first: pa.Table, second: pa.Table) -> list[str]:
    """Compare one part: columns, then the number of rows, then values."""
    if first.column_names != second.column_names:
        return [f"{part}: the columns are {first.column_names} and {second.column_names}"]
    if first.num_rows != second.num_rows:
        return [f"{part}: {first.num_rows} and {second.num_rows} rows"]
    return [
        f"{part}: column {name} differs"
        for name in first.column_names
        if not first[name].combine_chunks().equals(second[name].combine_chunks())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    arguments = parser.parse_args()
    found = differences(arguments.first, arguments.second)
    print("\n".join(found) or "the same")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
