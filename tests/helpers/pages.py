"""The documentation as tests read it: sections, tables, fenced blocks, headings and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *sorted(DOCS.rglob("*.md"))]
METHOD_PAGES = sorted((DOCS / "methods").glob("*.md"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def section_of(page: Path, heading: str) -> str:
    """What stands under '## heading', up to the next heading of that level."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text_of(page), re.MULTILINE | re.DOTALL)
    assert found, f'{named(page)} has no section "{heading}"'
    return found[1]


def rows_of(text: str) -> list[list[str]]:
    """The cells of every table row, without the heading and the line below it."""
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    return [row for number, row in enumerate(rows) if not is_rule(row) and not is_rule([*rows, []][number + 1])]


def is_rule(row: list[str]) -> bool:
    return bool(row) and set(row) == {"---"}


def blocks_of(page: Path, *kinds: str) -> list[str]:
    return re.findall(rf"^```(?:{'|'.join(kinds)})\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)


def runnable_of(page: Path, *kinds: str) -> list[tuple[str, str]]:
    """The kind and text of every block that is not marked by a line <!-- not run: REASON --> above it."""
    pattern = rf"^(<!-- not run: [^\n]+ -->\n)?```({'|'.join(kinds)})\n(.*?)^```"
    found = re.findall(pattern, text_of(page), re.MULTILINE | re.DOTALL)
    return [(kind, block) for mark, kind, block in found if not mark]


def words_outside_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    """Headings as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", words_outside_blocks(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands_of(text: str) -> Iterator[list[str]]:
    """The words after 'fedbm' of every such command; comments, pipes, redirections and variables before it apart."""
    for line in text.replace("\\\n", " ").splitlines():
        if "fedbm" not in line:  # what other programs print need not be a shell's words
            continue
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;<>()"):
                while command and (command[0] in ("do", "then", "time") or re.match(r"\w+=", command[0])):
                    command.pop(0)
                if command and Path(command[0]).name == "fedbm":
                    yield command[1:]
                command = ["redirected"] if word[0] in "<>" else []
            else:
                command.append(word)
