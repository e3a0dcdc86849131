"""Runs mutation tests of the pure modules: ``make soak``.

mutmut changes a copy of the sources in ``build/mutation``, one small change at a time, and runs the tests for each.
That folder also holds the state of a run, and a second run continues from it. Add ``--fresh`` after a change of the
sources. Changes of texts for people do not count, because a test of their wording would only repeat them.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "mutation"
MODULES = {
    "study/ids_and_seeds.py": ["tests/pure/study/test_ids.py"],
    "study/ranges.py": ["tests/pure/study/test_ranges.py"],
    "study/column_families.py": ["tests/pure/study/test_column_types.py"],
    "study/column_types.py": ["tests/pure/study/test_column_types.py"],
    "parquet/schemas.py": ["tests/pure/parquet/test_schemas.py"],
    "study/casts.py": ["tests/pure/study/test_casts.py"],
    "study/groups.py": ["tests/pure/study/test_group_builder.py"],
    "study/checks.py": ["tests/pure/study/test_study.py"],
    "study/study_file.py": ["tests/pure/study/test_study.py"],
    "study/sampling/space.py": ["tests/pure/study/test_sampling.py"],
    "study/sampling/draw.py": ["tests/pure/study/test_sampling.py"],
    "study/entry_point.py": ["tests/pure/study/test_entry.py"],
    "jobs/comparisons.py": ["tests/pure/jobs/test_conditions.py"],
    "project/project.py": ["tests/pure/project/test_project.py"],
    "attempt/plan.py": ["tests/pure/attempt/test_plan.py"],
    "attempt/sizing.py": [
        "tests/pure/attempt/test_plan.py",
        "tests/pure/attempt/test_window_size.py",
        "tests/pure/attempt/test_batch_size.py",
    ],
    "cluster/shares.py": ["tests/pure/cluster/test_shares.py"],
    "attempt/partial_groups.py": ["tests/pure/attempt/test_partial_groups.py"],
    "attempt/commit.py": ["tests/pure/attempt/test_kept_tracebacks.py"],
    "storage/paths.py": ["tests/pure/storage/test_job_paths.py"],
    "k8s/job_phase.py": ["tests/pure/k8s/test_job_phase.py"],
    "recovery.py": ["tests/pure/test_recovery.py"],
    "worker/task_progress.py": ["tests/pure/worker/test_task_progress.py"],
}
"""Each module and its tests. Tests of other modules also run for it if they call it."""

EQUIVALENT: dict[str, dict[str, str]] = {
    "mops.attempt.plan": {
        "self._stopped = None": "as false as False",
    },
    "mops.attempt.sizing": {
        "left_s = n_left * (self.seconds_per_group or 1.0)": "no budget applies before a measurement",
        "self._halved = None": "as false as False",
    },
}
"""Equivalent changes by module, with the reason. They do not count."""

NOTICED = ("killed", "timeout")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="as study/ids_and_seeds.py; all if none is given")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run found")
    parser.add_argument("--least", type=float, default=0.0, metavar="PERCENT", help="fail if tests notice less")
    asked = parser.parse_args()
    modules = asked.modules or list(MODULES)
    if asked.fresh:
        shutil.rmtree(WORK, ignore_errors=True)
    lay(modules)
    run()
    noticed = report(mutmut("results", "--all", "true"))
    if noticed < asked.least:
        sys.exit(f"tests notice {noticed:.1f} % of the changes, less than {asked.least} %")


def lay(modules: list[str]) -> None:
    """Copy sources and tests to the folders that mutmut expects."""
    for source, target in ((ROOT / "runner" / "mops", WORK / "src" / "mops"), (ROOT / "tests", WORK / "tests")):
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for module in modules:
        path = WORK / "src" / "mops" / module
        path.write_text(with_errors_kept(path.read_text()))
    project = (ROOT / "pyproject.toml").read_text()
    pytest_options = project[project.index("[tool.pytest.ini_options]") :]
    tests = sorted({test for module in modules for test in MODULES[module]})
    (WORK / "pyproject.toml").write_text(
        "[tool.mutmut]\n"
        'source_paths = ["src/mops"]\n'
        f"only_mutate = {[f'src/mops/{module}' for module in modules]}\n"
        f"pytest_add_cli_args_test_selection = {tests}\n"
        'pytest_add_cli_args = ["-p", "no:cacheprovider"]\n'
        "use_git_change_detection = false\n\n" + pytest_options
    )


def with_errors_kept(source: str) -> str:
    """Mark each line of a raise statement, so that mutmut does not change it."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise):
            for at in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[at] += "  # pragma: no mutate"
    return "\n".join(lines) + "\n"


def run() -> None:
    """Run mutmut, and write its output, a line per change, to a file."""
    log = WORK / "mutmut.log"
    env = os.environ | {"HYPOTHESIS_PROFILE": "mutation"}
    with log.open("w") as out:
        ended = subprocess.run(
            [sys.executable, "-m", "mutmut", "run"], cwd=WORK, check=False, env=env, stdout=out, stderr=out
        )
    if ended.returncode:
        sys.exit(f"{log.read_text()[-10_000:]}\nmutmut ended with {ended.returncode}")


def mutmut(*arguments: str) -> str:
    command = [sys.executable, "-m", "mutmut", *arguments]
    return subprocess.run(command, cwd=WORK, check=True, capture_output=True, text=True).stdout


def report(results: str) -> float:
    """Print the surviving changes and the share of noticed changes by module; return the total share."""
    found = re.findall(r"^\s*(\S+): (.+)$", results, re.MULTILINE)
    by_module: dict[str, Counter[str]] = {}
    for name, how in found:
        module = name.rpartition(".")[0]
        kept = how if how in NOTICED else unnoticed(module, name, how)
        by_module.setdefault(module, Counter())[kept] += 1
    everything: Counter[str] = sum(by_module.values(), Counter())
    for module, counts in [*sorted(by_module.items()), ("all", everything)]:
        beside = f", {counts['equivalent']} equivalent" if counts["equivalent"] else ""
        print(f"{noticed_percent(counts):5.1f} % of {n_changes(counts):4d}  {module}{beside}")
    return noticed_percent(everything)


def unnoticed(module: str, name: str, how: str) -> str:
    """Print a change that no test noticed, unless it does not count; return its kind."""
    diff = mutmut("show", name)
    before = re.findall(r"^-(?!--)(.*)", diff, re.MULTILINE)
    after = re.findall(r"^\+(?!\+\+)(.*)", diff, re.MULTILINE)
    known = EQUIVALENT.get(module, {})
    if any(line.strip() in known for line in after) or without_words(before) == without_words(after):
        return "equivalent"
    print(f"{how}: {name}", *(f"- {line}" for line in before), *(f"+ {line}" for line in after), sep="\n")
    return how


def without_words(lines: list[str]) -> list[str]:
    """Return the lines without texts for people, which are literals with a space."""
    return [re.sub(r'"[^"]*"', lambda literal: '""' if " " in literal[0] else literal[0], line) for line in lines]


def n_changes(counts: Counter[str]) -> int:
    return counts.total() - counts["equivalent"]


def noticed_percent(counts: Counter[str]) -> float:
    return 100.0 * sum(counts[how] for how in NOTICED) / max(n_changes(counts), 1)


if __name__ == "__main__":
    main()
