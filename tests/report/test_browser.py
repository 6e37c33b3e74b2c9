"""The page of all experiments in a real browser: it asks for nothing, fits, and is light, dark or printed."""

from __future__ import annotations

import re
import shutil
import subprocess
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from fake_outcomes import fake_outcome
from fake_runs import fake_run
from PIL import Image

from fedbm.experiments.outcomes import Outcome
from fedbm.experiments.spec import parse
from fedbm.methods import METHODS
from fedbm.report.experiments_report import experiments_report
from fedbm.report.figures.palette import assign_colours
from fedbm.report.figures.svg import SERIES
from fedbm.report.write import save_report, write_report

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run", "--hide-scrollbars", "--virtual-time-budget=5000"),
)

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    root = tmp_path_factory.mktemp("outcomes")
    absent = {"oct-c8": "the images of oct-c8 are not here"}
    return [
        fake_outcome(root / "a", "modules", rounds=6, absent=absent, missing={("FedBM", 2): ("failed", "it broke")}),
        fake_outcome(root / "b", "pseudo-batch", rounds=3, seeds=2, absent=absent),
    ]


@pytest.fixture(scope="module")
def page(outcomes: list[Outcome], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_experiments(outcomes, tmp_path_factory.mktemp("page") / "page.html")


def write_experiments(outcomes: list[Outcome], path: Path) -> Path:
    return save_report(experiments_report(outcomes), path)


def browse(page: Path, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = [CHROMIUM, *QUIET, f"--user-data-dir={folder / 'profile'}", *more, page.as_uri()]
    return subprocess.run(words, capture_output=True, text=True, timeout=180, check=True)


def shot(page: Path, folder: Path, name: str, width: int, *more: str) -> np.ndarray:
    to = folder / f"{name}.png"
    browse(page, folder, f"--window-size={width},2400", f"--screenshot={to}", *more)
    with Image.open(to) as picture:
        return np.asarray(picture.convert("RGB"), dtype=float)


def test_nothing_is_fetched(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", text)
    assert not re.search(r"@import|url\((?!#)", text)
    assert "<script" not in text


def test_the_document_is_read_as_it_was_meant(page: Path, tmp_path: Path) -> None:
    seen = browse(page, tmp_path, "--dump-dom").stdout
    for words in ("it broke", "the images of oct-c8 are not here", "all rows", "Kvasir v1"):
        assert words in seen
    text = page.read_text(encoding="utf-8")
    for tag in ("<table", "<svg", "<section", "<details"):  # a parser that mends a broken page would move or drop some
        assert seen.count(tag) == text.count(tag), tag


def test_light_dark_and_narrow(page: Path, tmp_path: Path) -> None:
    light = shot(page, tmp_path, "light", 1300)
    dark = shot(page, tmp_path, "dark", 1300, "--blink-settings=preferredColorScheme=0")
    assert light[:20].mean() > 240
    assert dark[:20].mean() < 60
    for picture in (light, dark):
        assert picture.std() > 5  # something is drawn
        assert np.abs(np.diff(picture[:, -12:], axis=0)).max() == 0  # nothing runs into the right margin
    narrow = shot(page, tmp_path, "narrow", 500)
    assert np.abs(np.diff(narrow[:, -3:], axis=0)).max() == 0


@pytest.mark.parametrize("of", ["experiments", "runs"])
def test_on_a_wide_screen_every_column_of_every_table_is_seen(of: str, outcomes: list[Outcome], tmp_path: Path) -> None:
    """The last columns are those that a table too wide hides."""
    page = tmp_path / "page.html"
    if of == "experiments":
        write_experiments(outcomes, page)
    else:
        classes = ("0", 40 * "long name", "2")
        root = tmp_path / "runs"
        write_report([fake_run(root, method, seed, classes=classes) for method in METHODS for seed in (0, 1)], page)
    look = """<script>
    document.querySelectorAll("details").forEach(one => one.open = true);
    const tables = [...document.querySelectorAll(".scroll")].filter(one => one.querySelector("table"));
    document.title = tables.length + " tables, too wide: " +
        tables.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.ariaLabel).join("; ");
    </script></body>"""
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", look), encoding="utf-8")
    seen = browse(page, tmp_path, "--window-size=1280,2400", "--dump-dom").stdout
    found = re.search(r"<title>(\d+) tables, too wide: (.*?)</title>", seen)
    assert found
    assert int(found[1]) > 2
    assert found[2] == ""


@pytest.mark.parametrize("font", ["sans-serif", "Helvetica, Arial"])
def test_no_word_of_a_figure_is_cut_or_lies_on_another(font: str, tmp_path: Path) -> None:
    """In the browser's own fonts; tests of the figures know only estimated widths."""
    runs = [fake_run(tmp_path / "runs", method, seed) for method in METHODS for seed in (0, 1)]
    page = write_report(runs, tmp_path / "page.html")
    look = """<script>
    document.querySelectorAll("details").forEach(one => one.open = true);
    const edges = one => one.getBoundingClientRect();
    const cut = (a, b) => a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1;
    const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0.5 &&
        Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
    let found = [], count = 0;
    for (const figure of document.querySelectorAll("svg.figure")) {
        const words = [...figure.querySelectorAll("text")].filter(one => one.textContent);
        const level = words.filter(one => !one.getAttribute("transform"));
        found.push(...words.filter(one => cut(edges(one), edges(figure))).map(one => one.textContent));
        level.forEach((one, place) => level.slice(place + 1).filter(other => over(edges(one), edges(other)))
            .forEach(other => found.push(one.textContent + " on " + other.textContent)));
        count += words.length;
    }
    document.title = count + " words, not right: " + found.join("; ");
    </script></body>"""
    text = page.read_text(encoding="utf-8").replace("</body>", f"<style>:root {{ --sans: {font} }}</style>{look}")
    page.write_text(text, encoding="utf-8")
    seen = browse(page, tmp_path, "--window-size=1280,2400", "--dump-dom").stdout
    found = re.search(r"<title>(\d+) words, not right: (.*?)</title>", seen)
    assert found
    assert int(found[1]) > 200
    assert found[2] == ""


@pytest.mark.parametrize("scheme", [(), ("--blink-settings=preferredColorScheme=0",)], ids=["light", "dark"])
def test_on_a_narrow_screen_a_shade_says_that_a_table_goes_on(page: Path, tmp_path: Path, scheme: list[str]) -> None:
    """At its right edge, until the end is reached; a table that fits has none."""
    alone = """<script>
    const it = document.querySelector(".scroll:has(table.measured)");
    document.querySelector(".page").replaceChildren(it);
    document.querySelector(".page").style.padding = 0;
    MORE
    </script></body>"""

    def edges(width: int, more: str = "") -> np.ndarray:
        one = tmp_path / "one.html"
        text = page.read_text(encoding="utf-8").replace("</body>", alone.replace("MORE", more))
        one.write_text(text, encoding="utf-8")
        seen = shot(one, tmp_path, "one", width, *scheme)[:500]
        return np.abs(seen[:, -2:] - seen[-1, 0]).max(axis=(1, 2))  # how far each line's end is from the page's colour

    shaded = np.median(edges(500)[150:300])
    assert shaded > 15
    assert np.median(edges(500, "it.scrollLeft = it.scrollWidth;")[150:300]) < 2
    assert np.median(edges(1300)[150:300]) < 2


def test_names_that_cannot_break_do_not_widen_the_page(tmp_path: Path) -> None:
    rows = "".join(f'[[rows]]\nname = "{letter * 90}"\nmethod = "fedavg"\n' for letter in "ab")
    long = fake_outcome(tmp_path / "runs", parse(f'title = "{"t" * 90}"\n{rows}', "long", "long.toml"), rounds=3)
    page = write_experiments([long], tmp_path / "page.html")
    narrow = shot(page, tmp_path, "narrow", 500)
    assert np.abs(np.diff(narrow[:, -3:], axis=0)).max() == 0


@pytest.mark.parametrize("scheme", [(), ("--blink-settings=preferredColorScheme=0",)], ids=["light", "dark"])
def test_print_has_every_curve_in_the_light_colours(outcomes: list[Outcome], tmp_path: Path, scheme: list[str]) -> None:
    """On screen the curves of an ablation wait behind a summary; on paper nobody can open it."""
    page = write_experiments(outcomes[:1], tmp_path / "page.html")
    browse(page, tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={tmp_path / 'page.pdf'}", *scheme)
    drawn = stroked(tmp_path / "page.pdf")
    for number in assign_colours(outcomes[0].rows).values():
        assert SERIES[number] in drawn
    assert "#4fa8e8" not in drawn  # FedBM's on a dark screen


@pytest.mark.parametrize("of", ["experiments", "runs"])
def test_print_is_that_of_a_page_on_which_everything_is_opened(
    of: str, outcomes: list[Outcome], tmp_path: Path
) -> None:
    """Seed by seed, which runs are missing, the text of each class, every run's settings."""
    page, opened = tmp_path / "page.html", tmp_path / "opened.html"
    if of == "experiments":
        write_experiments(outcomes[:1], page)
    else:
        write_report(
            [fake_run(tmp_path / "runs", method, seed) for method in ("fedavg", "fedbm") for seed in (0, 1)], page
        )
    text = page.read_text(encoding="utf-8")
    assert "<details open" not in text
    opened.write_text(text.replace("<details", "<details open"), encoding="utf-8")
    drawn = []
    for one in (page, opened):
        browse(one, tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={tmp_path / 'page.pdf'}")
        drawn.append(streams(tmp_path / "page.pdf"))
    assert drawn[0] == drawn[1]


def streams(pdf: Path) -> list[bytes]:
    """What a PDF's compressed streams hold."""
    written, found = pdf.read_bytes(), []
    assert written.startswith(b"%PDF")
    for start in re.finditer(rb"stream\r?\n", written):
        with suppress(zlib.error):  # a stream that is not compressed holds no drawing
            found.append(zlib.decompressobj().decompress(written[start.end() :]))
    return found


def stroked(pdf: Path) -> set[str]:
    """The colours in which a PDF draws lines."""
    found: set[tuple[bytes, ...]] = set()
    for content in streams(pdf):
        pieces = re.split(rb"(?m)^([\d.]+ [\d.]+ [\d.]+) RG", content)
        found |= {tuple(c.split()) for c, then in zip(pieces[1::2], pieces[2::2], strict=True) if b"\nS\n" in then}
    return {"#" + "".join(f"{round(255 * float(part)):02x}" for part in colour) for colour in found}
