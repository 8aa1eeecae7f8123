"""Settings of the site; ``make docs`` builds it into build/site."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import vmg

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parents[1]

project = "vmg"
author = "The vmg developers"
copyright = "The vmg developers, Apache-2.0"
version = release = vmg.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]

# Pages
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "docs-cache")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True

# Examples: each becomes a page with what it prints and draws
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "abort_on_example_error": True,
    "capture_repr": (),
    "download_all_examples": False,
    "show_signature": False,
}
exclude_patterns = ["gallery/*.ipynb"]  # downloads, not pages

# Reference
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_rtype = False

# Looks
html_theme = "pydata_sphinx_theme"
html_title = "vmg"
html_static_path = ["_static"]
html_extra_path = ["_extra"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "vmg"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 8,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {page: [] for page in ("start", "api", "gallery/index", "playground", "limits")}

# Docstrings hold mathematics: |U| is a determinant, [*batch_shape] a shape, n_features_in_ a name; none is markup.
LITERAL = re.compile(r"(``.+?``|:\w+:`.+?`|`.+?`)")
SIGNS = re.compile(r"(?<!\\)(\||(?<=[\[( ])\*(?=[a-z])|(?<=\w)_(?=[\s,.;)\]]|$))")


def escape_mathematics(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape signs of mathematics outside literals; code examples stay as they are."""
    for i, line in enumerate(lines):
        if line.lstrip().startswith((">>>", "...", "..")):
            continue
        parts = LITERAL.split(line)
        lines[i] = "".join(part if n % 2 else SIGNS.sub(r"\\\1", part) for n, part in enumerate(parts))


def setup(app: Any) -> None:
    """Run after napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", escape_mathematics, priority=600)
