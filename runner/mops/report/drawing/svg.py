"""Turns a Vega-Lite specification into SVG for a page."""

from __future__ import annotations

import html
import itertools
import re
from typing import Any

from mops.errors import UsageError
from mops.report.drawing.look import CONFIG

_START = re.compile(r"<svg\b[^>]*>")
_VIEW_BOX = re.compile(r'viewBox="[^"]*"')
_GROUP = re.compile(r"<g\b[^>]*>")
_ROLE = re.compile(r' (?:role|aria-[a-z]+)="[^"]*"')
_ID = re.compile(r'(\bid="|url\(#|href="#)')
_numbers = itertools.count(1)


def check_libraries() -> None:
    """Raise UsageError if a library is missing that draws figures or fills in the page."""
    try:
        import jinja2  # noqa: F401, PLC0415 - an optional extra
        import vl_convert  # noqa: F401, PLC0415 - an optional extra
    except ModuleNotFoundError as missing:
        raise UsageError(
            f"a report needs the library {missing.name}, which is not installed",
            where="this Python environment",
            hint="install it: pip install 'mops-runner[plots]'",
        ) from None


def drawn(spec: dict[str, Any], size: tuple[int, int], alt: str, css_class: str = "") -> str:
    """Return a Vega-Lite specification without a size as an SVG element; the size in pixels includes the axes."""
    import vl_convert  # noqa: PLC0415 - an optional extra, which takes 0.1 s

    width, height = size
    whole = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": width,
        "height": height,
        "autosize": {"type": "fit", "contains": "padding"},
        "padding": 2,
        "config": CONFIG,
        **spec,
    }
    svg: str = vl_convert.vegalite_to_svg(whole, allowed_base_urls=[])
    return _for_page(svg, alt, css_class)


def _for_page(svg: str, alt: str, css_class: str) -> str:
    """Return an SVG document as an element that other SVG elements of the page do not disturb."""
    start = _START.search(svg)
    assert start is not None
    box = _VIEW_BOX.search(start[0])
    assert box is not None
    # Vega gives roles to marks also without texts for them, which screen readers would announce.
    inner = _GROUP.sub(lambda group: _ROLE.sub("", group[0]), svg[start.end() :])
    inner = _ID.sub(rf"\g<1>f{next(_numbers)}-", inner)
    class_ = f' class="{css_class}"' if css_class else ""
    return f'<svg{class_} role="img" aria-label="{html.escape(alt)}" {box[0]}>{inner}'
