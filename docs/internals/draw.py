"""Draws the floors of the code as they are: ``python docs/internals/draw.py`` writes architecture.svg.

The purpose of a package is the first sentence of its docstring; arrows and processes are read from the imports.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "runner" / "mops"
FLOORS = (
    *(
        "cli",
        "ui",
        "report",
        "calibration",
        "jobs",
        "service",
        "attempt",
        "cluster",
        "worker",
        "storage",
        "recovery",
        "task",
        "k8s",
        "project",
        "child",
    ),
    *("parquet", "figures", "study", "options", "settings", "waiting", "system", "verdicts", "units", "errors"),
)
PROCESSES = {
    "command": "cli.submit",
    "runner": "attempt.attempt",
    "worker": "worker.run_task",
    "child": "child.main",
}
"""The module with which a process begins; the command is ``mops jobs submit``."""

ROW, TOP, NAME_WIDTH, CELL, LEFT = 34, 92, 590, 26, 16


def main() -> None:
    (HERE / "architecture.svg").write_text(drawing())


def drawing() -> str:
    """Return the picture as SVG."""
    arrows = {floor: floors_below(floor) for floor in FLOORS}
    inside = {process: reached(f"mops.{entry}") for process, entry in PROCESSES.items()}
    matrix = LEFT + NAME_WIDTH
    processes = matrix + CELL * len(FLOORS) + 24
    width, height = processes + 64 * len(PROCESSES), TOP + ROW * len(FLOORS) + 44
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *text(LEFT, 26, "mops: packages, what each imports, and the processes in which it is loaded", size=16),
        *text(matrix, TOP - 14, "imports", colour="#555555"),
        *text(processes, TOP - 14, "is loaded in", colour="#555555"),
    ]
    for row, floor in enumerate(FLOORS):
        y = TOP + row * ROW
        out += [
            f'<rect x="{LEFT}" y="{y}" width="{NAME_WIDTH - 12}" height="{ROW - 6}" rx="4" fill="#eef3f8"/>',
            *text(LEFT + 8, y + 19, floor, weight="bold"),
            *text(LEFT + 84, y + 19, purpose(floor), size=11),
            f'<line x1="{matrix}" y1="{y + ROW - 3}" x2="{width - 8}" y2="{y + ROW - 3}" stroke="#e4e4e4"/>',
        ]
        for column, below in enumerate(FLOORS):
            x = matrix + CELL * column + CELL / 2
            if below == floor:
                out.append(f'<rect x="{x - 7}" y="{y + 7}" width="14" height="14" fill="#c9d6e4"/>')
            elif below in arrows[floor]:
                out.append(f'<circle cx="{x}" cy="{y + 14}" r="5" fill="#1f5f99"/>')
        for column, process in enumerate(PROCESSES):
            if any(module.split(".")[1] == floor for module in inside[process]):
                out.append(f'<circle cx="{processes + 64 * column + 20}" cy="{y + 14}" r="5" fill="#b35900"/>')
    for column, below in enumerate(FLOORS):
        x, y = matrix + CELL * column + CELL / 2 + 4, TOP + ROW * len(FLOORS) + 6
        out.append(f'<text x="{x}" y="{y}" font-size="10" transform="rotate(50 {x} {y})">{below}</text>')
    for column, process in enumerate(PROCESSES):
        out += text(processes + 64 * column, TOP - 1, process, size=11)
    return "\n".join([*out, "</svg>", ""])


def text(
    x: float, y: float, words: str, *, size: int = 13, weight: str = "normal", colour: str = "#111111"
) -> list[str]:
    font = f'font-size="{size}" font-weight="{weight}" fill="{colour}"'
    return [f'<text x="{x}" y="{y}" {font}>{escape(words)}</text>']


def purpose(floor: str) -> str:
    """Return the first sentence of what a package or module says of itself."""
    said = ast.get_docstring(ast.parse(file_of(f"mops.{floor}").read_text())) or ""
    return re.split(r"(?<=\.)\s|\n\n", said.replace("``", ""))[0].replace("\n", " ")


def floors_below(floor: str) -> set[str]:
    """Return the floors from which a floor imports."""
    own = [f"mops.{floor}"] + [name for name in modules() if name.startswith(f"mops.{floor}.")]
    return {below.split(".")[1] for name in own for below in imported(name)} - {floor}


def reached(entry: str) -> set[str]:
    """Return the modules that are loaded where this one is."""
    found, todo = {entry}, [entry]
    while todo:
        for name in imported(todo.pop(), at_once=True):
            if name not in found:
                found.add(name)
                todo.append(name)
    return found


def imported(name: str, *, at_once: bool = False) -> Iterator[str]:
    """Yield the modules of mops that a module imports; ``at_once``: when it is loaded, not in a function's body."""
    tree = ast.parse(file_of(name).read_text())
    for node in tree.body if at_once else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "mops":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if is_module(inner):
                    yield inner
                elif node.module != "mops":
                    yield node.module


def modules() -> Iterator[str]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name != "__init__.py":
            yield ".".join(("mops", *path.relative_to(PACKAGE).with_suffix("").parts))


def is_module(name: str) -> bool:
    return file_of(name).is_file()


def file_of(name: str) -> Path:
    path = PACKAGE.joinpath(*name.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


if __name__ == "__main__":
    main()
