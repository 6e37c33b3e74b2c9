"""List the samples of class/*.jpg or train|val|test/class/*.jpg without opening a file.

Every visible file in a class folder is a sample, unless its name shows that it is a text or a document. Other files
that are not images are reported when they are decoded. Files in deeper folders are an error, because they may be many.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from posixpath import basename

import numpy as np

from fedbm.data.readers.file_tree import FileTree, is_document, normalize_name
from fedbm.data.readers.sample_index import SampleIndex, Source
from fedbm.data.splits import SPLIT_CODES
from fedbm.errors import FedBMError, did_you_mean, shorten_list
from fedbm.utils.io import digest_of

LAYOUT = "one folder of images per class, directly or inside train, val and test"
# Commands that are called in the folder write runs and inspections into it.
WRITTEN = re.compile(r"(runs/[^/]+/(lock|config\.toml)|inspect-[^/]*/inspect\.json)")


def find(tree: FileTree) -> Source:
    """Return the samples, sorted by subset, class and file name."""
    written = {path.partition("/")[0] for path in tree.files if WRITTEN.fullmatch(path)}
    files = [path for path in tree.files if path.partition("/")[0] not in written]
    tops = {path.partition("/")[0] for path in tree.folders} - written
    code_of = _find_subsets(tree.where, sorted(tops))
    depth = 2 if code_of else 1  # of class folders
    tops = set(code_of) or tops
    folders = [path for path in tree.folders if path.count("/") == depth - 1 and path.partition("/")[0] in tops]
    classes = tuple(sorted({normalize_name(basename(path)) for path in folders}))
    samples: list[str] = []
    deeper: list[str] = []
    ignored: list[str] = []
    for path in sorted(files, key=lambda path: path.split("/")):
        if is_document(path) or path.count("/") < depth:
            ignored.append(path)
        elif path.partition("/")[0] in tops:
            (samples if path.count("/") == depth else deeper).append(path)
    if deeper or not samples:
        near = did_you_mean(deeper[0].partition("/")[0].lower(), SPLIT_CODES) if deeper else ""
        raise FedBMError(
            f"{tree.where} should contain {LAYOUT}, but it has {len(samples)} images in such folders and "
            f"{len(deeper)} in deeper ones ({shorten_list(deeper, 1)}){near}: list images in deeper folders, such as "
            "one per patient, in a table path,label,patient; if a table has the labels, use --metadata TABLE "
            "--label-column COLUMN"
        )
    samples.sort(key=lambda path: code_of.get(path.partition("/")[0], 0))
    label_of = {name: label for label, name in enumerate(classes)}
    codes = [code_of.get(path.partition("/")[0], 0) for path in samples]
    ids = list(map(normalize_name, samples))
    shown = shorten_list(list(map(normalize_name, ignored)), 3)
    index = SampleIndex(
        classes=classes,
        labels=np.array([label_of[name.split("/")[-2]] for name in ids], dtype=np.int64),
        split=np.array(codes, dtype=np.uint8) if code_of else None,
        ids=ids,
        stream=lambda: tree.stream(samples),
        notes=(f"ignored files that are not images of a class: {len(ignored)} ({shown})",) if ignored else (),
    )
    stamps = [[name, *tree.files[path]] for name, path in zip(ids, samples, strict=True)]
    return Source(digest_of({"files": stamps, "classes": classes}), lambda: index)


def _find_subsets(where: str, tops: Sequence[str]) -> dict[str, int]:
    """Return the folders train, val and test with 0, 1 and 2, or nothing if *tops* are folders of classes."""
    code_of = {top: SPLIT_CODES[top.lower()] for top in tops if top.lower() in SPLIT_CODES}
    codes, others = sorted(code_of.values()), [top for top in tops if top not in code_of]
    if 0 not in codes and (others or not codes):
        return {}
    # Without val, some of train becomes val. Without test, choose_split() refuses the data.
    if 0 not in codes or len(set(codes)) < len(codes) or (len(codes) < 3 and others):
        near = did_you_mean(others[0].lower(), SPLIT_CODES) if others else ""
        raise FedBMError(
            f"{where} has the folders {', '.join(tops)}{near}: it should contain one train, one val and one test "
            "folder, or only folders of classes"
        )
    return code_of
