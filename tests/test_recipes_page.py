"""The page of recipes: its time on a GPU is measured, and its messages are messages of the package."""

from __future__ import annotations

import re

from pages import DOCS, ROOT, rows_of, section_of

PAGE = DOCS / "recipes.md"


def test_messages_are_those_of_the_package() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    rows = rows_of(section_of(PAGE, "If something is wrong"))
    assert len(rows) > 5
    for message, *_ in rows:
        for part in re.findall("`([^`]+)`", message):
            assert part in source, part


def test_the_time_on_a_gpu_is_that_of_the_engine_page() -> None:
    engine = (DOCS / "engine.md").read_text(encoding="utf-8")
    [time] = re.findall(r"On one H200, [^:]* took ([\d.]+) s", section_of(PAGE, "How long it takes"))
    assert f"**{time}**" in engine
