"""Refuse words and file names that the project no longer uses; add a line to RETIRED to extend the list."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "docs", "tools", "benchmarks", "containers")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
SUFFIXES = {".py", ".md", ".toml", ".j2"}
RETIRED = {  # word → what to write instead
    "anew": "again",
    "goes on": "continues, resumes",
    "played": "run",
    "twins": "duplicate images",
    "courier": "requests",
    "strikes": "missed deadlines",
    "fairness": "comparison checks",
    "beside": "next to, alongside",
    "alike": "similar, in the same way",
    "lacking": "missing",
    "dealt": "partitioned",
    "federation deal": "federation partition",
    "side by side": "in parallel, next to each other",
}
RETIRED_FILES = {"along", "beside", "courier", "deal", "dealt", "fitting", "keeping", "left", "shapes", "told", "twins"}


def find_retired(root: Path = ROOT) -> list[str]:
    """Return a line for every retired word or file name below *root*."""
    pattern = re.compile(rf"\b({'|'.join(RETIRED)})\b", re.IGNORECASE)
    pages = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*")) if path.suffix in SUFFIXES]
    found = []
    for path in [*pages, *(root / name for name in PAGES)]:
        if path.name == Path(__file__).name or not path.is_file():
            continue
        if path.stem in RETIRED_FILES:
            found.append(f"{path.relative_to(root)}: give the file another name")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            where = f"{path.relative_to(root)}:{number}"
            found += [f'{where}: "{word}": write {RETIRED[word.lower()]}' for word in pattern.findall(line)]
    return found


def main() -> int:
    """Print what was found and return 1 if there is anything."""
    found = find_retired()
    print("\n".join(found), end="\n" * bool(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
