"""The documentation site: `make docs` builds it from the Markdown pages that are read in the repository, too.

Pages open without a network: formulas become MathML, mermaid pictures are stored as SVG, and the theme brings its fonts
and scripts. The source folder is the repository, so that links between README.md, docs/ and results/ hold as they are.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/fedbm/fedbm"
NAVIGATION = {
    "Getting started": ["Introduction <self>", "All pages </docs/index>"],
    "Tutorials": ["/docs/tutorials/first-ten-minutes", "/docs/your-data", "/docs/your-method"],
    "How-to": [
        "/docs/recipes",
        "/docs/reproducing",
        "/docs/engine",
        "/docs/scale-out",
        "/docs/deploying",
        "/docs/containers",
    ],
    "Reference": ["/docs/api", "/docs/configuration", "/docs/records", "/docs/scripting", "/docs/federation-protocol"],
    "Methods": ["/docs/methods/index"],
    "Results": [
        "All results </results/README>",
        "/results/mechanism",
        "/docs/comparison-digits",
        "Digits in full </results/digits/README>",
        "/docs/evidence-plan",
    ],
    "Project": ["/docs/architecture", "/CONTRIBUTING", "/SECURITY", "/CHANGELOG"],
}
METHOD_PAGES = sorted(f"/docs/methods/{path.stem}" for path in (ROOT / "docs/methods").glob("[!i]*.md"))

project = "FedBM"
root_doc = "README"
include_patterns = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "results/**.md", "docs/**"]
exclude_patterns = [".*", "build", "src", "tests", "tools", "benchmarks", "runs"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "force"  # the site shows the outputs, the repository does not
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True

add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
default_role = "py:obj"  # `name` in a docstring links to the name if it is documented, and is code otherwise
napoleon_numpy_docstring = False
napoleon_attr_annotations = False
python_maximum_signature_line_length = 80

html_theme = "furo"
html_title = "FedBM"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": ""}
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
copybutton_exclude = ".linenos, .gp, .go"


def toctree(pages: list[str], caption: str = "") -> str:
    """Return a hidden table of contents, which the theme shows in its sidebar."""
    title = f":caption: {caption}\n" if caption else ""
    return "\n".join(["", "```{toctree}", f":hidden:\n{title}", *pages, "```", ""])


def picture_of(diagram: str) -> Path:
    """Return the picture of a mermaid diagram, named by the digest of its text."""
    path = ROOT / "docs/images" / f"mermaid-{hashlib.sha256(diagram.encode()).hexdigest()[:8]}.svg"
    if not path.exists():
        raise FileNotFoundError(
            f"{path.name} is missing in docs/images, because a diagram is new. Save its text as new.mmd and run: "
            f"npx @mermaid-js/mermaid-cli -t neutral -b transparent -i new.mmd -o docs/images/{path.name}"
        )
    return path


def adapt_source(_: Any, page: str, source: list[str]) -> None:
    """Add the navigation, show stored pictures of diagrams, and point links to pages here or to the repository.

    A badge becomes its text, because its picture would come from another server.
    """
    text, folder = source[0], (ROOT / page).parent
    text = re.sub(r"\[!\[([^\]]*)\]\(https?:[^)]*\)\]", r"[\1]", text)
    text = re.sub(rf"\]\({REPOSITORY}/blob/main/([\w/-]+\.md)\)", r"](/\1)", text)
    if page == root_doc:
        text += "".join(toctree(pages, caption) for caption, pages in NAVIGATION.items())
    elif page == "docs/methods/index":
        text += toctree(METHOD_PAGES)
    text = re.sub(
        r"^```mermaid\n(.*?)^```$",
        lambda found: f"![diagram](/docs/images/{picture_of(found[1]).name})",
        text,
        flags=re.MULTILINE | re.DOTALL,
    )

    def link(found: re.Match[str]) -> str:
        target = (folder / found[1]).resolve()
        is_page = target.suffix in (".md", ".ipynb", ".png", ".svg") and "benchmarks" not in target.parts
        return (
            found[0]
            if is_page or not target.exists()
            else f"]({REPOSITORY}/blob/main/{target.relative_to(ROOT)}{found[2] or ''})"
        )

    source[0] = re.sub(r"\]\(([\w./-]+)(#[\w-]+)?\)", link, text)


def render_math(self: Any, node: Any) -> None:
    """Write a formula as MathML, which browsers draw without a script."""
    from docutils.nodes import SkipNode
    from latex2mathml.converter import convert
    from sphinx.util.logging import getLogger

    markup = convert(node.astext(), display="block" if node.tagname == "math_block" else "inline")
    if "\\" in markup:  # the converter keeps commands that it does not know
        getLogger(__name__).warning("cannot convert the formula %s", node.astext(), location=node)
    self.body.append(markup)
    raise SkipNode


def copy_home(app: Any, error: Exception | None) -> None:
    """Make the first page index.html as well, which servers and people open."""
    if error is None:
        shutil.copy(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Any) -> None:
    """Register the functions above."""
    app.add_html_math_renderer("mathml", inline_renderers=(render_math, None), block_renderers=(render_math, None))
    app.connect("source-read", adapt_source)
    app.connect("build-finished", copy_home)
