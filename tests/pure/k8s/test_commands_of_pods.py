"""The modules that manifests and charts start exist under these names."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[3]
STARTS = re.compile(r"-m\s+(?:- )?(mops(?:\.\w+)+)")


def test_every_module_that_a_manifest_starts_exists() -> None:
    texts = [path.read_text() for folder in ("helm", "k8s") for path in (ROOT / folder).rglob("*.yaml")]
    texts += [path.read_text() for path in (ROOT / "helm").rglob("*.tpl")]
    found = {name for text in texts for name in STARTS.findall(text)}
    assert "mops.worker.retire" in found
    assert [name for name in found if find_spec(name) is None] == []
