"""Configuration of the documentation site: ``make docs`` builds it into build/docs."""

from __future__ import annotations

import sys
from pathlib import Path

import mops

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "mops"
author = "the mops contributors"
copyright = "the mops contributors. Apache License 2.0"
version = release = mops.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx_copybutton", "from_code"]
exclude_patterns = ["_static", "_extensions"]
nitpicky = False  # docstrings name types of other libraries, whose inventories a build without a network cannot read

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
smartquotes = False  # "--local" is an option, not a dash
suppress_warnings = ["myst.header"]  # CHANGELOG.md is included below another heading

autodoc_typehints = "none"  # numpydoc's sections name the types
numpydoc_show_class_members = False
copybutton_prompt_text = "$ "

html_theme = "pydata_sphinx_theme"
html_title = "mops"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "mops"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "show_nav_level": 2,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}
