"""The place of the figures on the page of a job, if there are none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mops.ui import pages


@pytest.mark.parametrize(("has_report", "said"), [(True, "need 5 samples"), (False, "mops-runner[plots]")])
def test_a_page_without_figures_says_why(has_report: bool, said: str) -> None:
    assert said in pages.part("charts", view=SimpleNamespace(figures=()), has_report=has_report)
