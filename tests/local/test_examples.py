"""What the pages of the examples say. `test_docs.py` runs their commands and compares what these print."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = [folder for folder in sorted((ROOT / "examples").iterdir()) if any(folder.glob("*.*"))]


def test_an_example_has_a_page_that_runs_it_and_shows_its_files(subtests: pytest.Subtests) -> None:
    for folder in EXAMPLES:
        with subtests.test(folder=folder):
            text = (ROOT / "docs" / "examples" / f"{folder.name}.md").read_text()
            if folder.name == "notebook":
                return  # test_notebook.py runs it
            if folder.name == "sir":
                text = (folder / "README.md").read_text()
                assert "<!-- copy of: examples/sir -->" in text
                return
            assert f"<!-- copy of: examples/{folder.name} -->" in text
            shown = [path for path in folder.iterdir() if path.suffix in (".py", ".json", ".c")]
            missing = [
                path.name
                for path in shown
                if f"{{literalinclude}} ../../examples/{folder.name}/{path.name}" not in text
            ]
            assert not missing
