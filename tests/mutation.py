"""Changes the pure modules in small ways, one at a time, and looks whether their tests notice: ``make soak``.

mutmut takes sources from ``src``, so that it works on a copy, in ``build/mutation``. There is the state of a run too: a
second run goes on from it. Add ``--fresh`` after a change.
"""

from __future__ import annotations

import argparse
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
    "study/ids.py": "tests/study/test_ids.py",
    "study/ranges.py": "tests/study/test_ranges.py",
    "study/grouping.py": "tests/study/test_grouping.py",
    "study/groups.py": "tests/study/test_grouping.py",
    "study/values.py": "tests/study/test_schema.py",
    "study/schema.py": "tests/study/test_schema.py",
    "study/space.py": "tests/study/test_sampling.py",
    "study/sampling.py": "tests/study/test_sampling.py",
    "study/entry.py": "tests/study/test_entry.py",
    "study/project.py": "tests/study/test_project.py",
    "driver/plan.py": "tests/driver/test_plan.py",
    "driver/window.py": "tests/driver/test_window_size.py",
    "driver/sizing.py": "tests/driver/test_sizing.py",
    "driver/shares.py": "tests/driver/test_shares.py",
    "driver/half_done.py": "tests/driver/test_half_done.py",
    "driver/tracebacks.py": "tests/driver/test_tracebacks.py",
    "storage/paths.py": "tests/storage/test_storage_listing.py",
    "k8s/phase.py": "tests/k8s/test_phase.py",
    "worker/verdict.py": "tests/worker/test_work.py",
    "worker/work.py": "tests/worker/test_work.py",
}
"""Each module, and the tests that are to notice; those of the others run for it too, where they call it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="as study/ids.py; all if none is given")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run found")
    parser.add_argument("--least", type=float, default=0.0, metavar="PERCENT", help="fail if tests notice less")
    asked = parser.parse_args()
    modules = asked.modules or list(MODULES)
    if asked.fresh:
        shutil.rmtree(WORK, ignore_errors=True)
    lay(modules)
    command = [sys.executable, "-m", "mutmut"]
    subprocess.run([*command, "run"], cwd=WORK, check=False, env=os.environ | {"COLUMNS": "80"})
    results = subprocess.run(
        [*command, "results", "--all", "true"], cwd=WORK, check=True, capture_output=True, text=True
    )
    noticed = report(results.stdout)
    if noticed < asked.least:
        sys.exit(f"tests notice {noticed:.1f} % of the changes, less than {asked.least} %")


def lay(modules: list[str]) -> None:
    """Copy sources and tests to where mutmut looks for them."""
    for source, target in ((ROOT / "runner" / "mops", WORK / "src" / "mops"), (ROOT / "tests", WORK / "tests")):
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    project = (ROOT / "pyproject.toml").read_text()
    pytest_options = project[project.index("[tool.pytest.ini_options]") :]
    tests = sorted({MODULES[module] for module in modules})
    (WORK / "pyproject.toml").write_text(
        "[tool.mutmut]\n"
        'source_paths = ["src/mops"]\n'
        f"only_mutate = {[f'src/mops/{module}' for module in modules]}\n"
        f"pytest_add_cli_args_test_selection = {tests}\n"
        'pytest_add_cli_args = ["-p", "no:cacheprovider"]\n'
        "use_git_change_detection = false\n\n" + pytest_options
    )


def report(results: str) -> float:
    """Print what survived, and the share of changes that tests noticed, by module; return that of all."""
    found = re.findall(r"^\s*(\S+): (.+)$", results, re.MULTILINE)
    by_module: dict[str, Counter[str]] = {}
    for name, how in found:
        by_module.setdefault(name.rpartition(".")[0], Counter())[how] += 1
        if how not in ("killed", "timeout", "caught by type check"):
            print(f"{how}: {name} (cd {WORK.relative_to(ROOT)}; mutmut show {name})")
    everything: Counter[str] = sum(by_module.values(), Counter())
    for module, counts in [*sorted(by_module.items()), ("all", everything)]:
        print(f"{noticed_percent(counts):5.1f} % of {counts.total():4d}  {module}")
    return noticed_percent(everything)


def noticed_percent(counts: Counter[str]) -> float:
    return 100.0 * sum(counts[how] for how in ("killed", "timeout", "caught by type check")) / max(counts.total(), 1)


if __name__ == "__main__":
    main()
