"""fedbm data list | get | prepare | inspect | partition: what is typed, what is read, what lies there afterwards."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calling import Command, flags, one_sentence
from PIL import Image
from rich.console import Console

from fedbm.cli.commands.data import TASKS as DATA_TASKS
from fedbm.data.catalog import download
from fedbm.runs.progress_display import show_decoding, show_download

SMALL = ("--size", 16, "--channels", 1)


@pytest.fixture
def sites(scans: Path) -> Path:
    """A table of the scans: those with an even number are Oslo's, of the others every third is Bern's."""
    paths = sorted(path.relative_to(scans.parent) for path in scans.rglob("*.png"))
    site_of = {0: "Oslo", 1: "Bern", 2: "Oslo", 3: "Oslo", 4: "Oslo", 5: "Rom"}
    lines = [f"{path},{path.parent.name},{site_of[int(path.stem) % 6]}" for path in paths]
    table = scans.parent / "sites.csv"
    table.write_text("\n".join(["path,label,site", *lines]), encoding="utf-8")
    return table


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDBM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


# --- list, get ------------------------------------------------------------------------------------------------------


def test_list(fedbm: Command, home: Path) -> None:
    status, out, err = fedbm("data", "list")
    assert (status, err) == (0, "")
    assert fedbm("data")[1] == out
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert " built in " in lines["digits"]
    assert " get " in lines["bloodmnist"]
    assert " by hand " in lines["kvasir"]
    (home / "downloads").mkdir(parents=True)
    (home / "downloads" / "kvasir.zip").touch()
    assert " here " in next(line for line in fedbm("data")[1].splitlines() if line.startswith("kvasir"))


def test_get_and_use_by_name(fedbm: Command, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that would come from the network is made here; then its name is enough for every other command."""

    def make(url: str, target: Path, md5: str, progress: Any) -> None:
        assert url == "https://zenodo.org/records/10519652/files/pneumoniamnist.npz?download=1"
        rng = np.random.default_rng(0)
        arrays = {}
        for side, count in (("train", 40), ("val", 10), ("test", 10)):
            arrays[f"{side}_images"] = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
            arrays[f"{side}_labels"] = (np.arange(count) % 2).reshape(-1, 1).astype(np.uint8)
        target.parent.mkdir(parents=True, exist_ok=True)
        np.savez(target, **arrays)
        progress(target.stat().st_size, 0)

    monkeypatch.setattr(download, "fetch", make)
    file = home / "downloads" / "pneumoniamnist.npz"
    status, out, err = fedbm("data", "get", "pneumoniamnist")
    assert (status, err) == (0, "")
    assert out.splitlines() == [f"here: {file}", "next: fedbm data inspect pneumoniamnist"]
    status, out, err = fedbm("data", "inspect", "pneumoniamnist", "--to", tmp_path / "seen")
    assert (status, err) == (0, "")
    assert out.startswith("pneumoniamnist: 60 images of (1, 28, 28)")
    assert fedbm("data", "pneumoniamnist", "--clients", 2)[0] == 0
    elsewhere = tmp_path / "elsewhere" / file.name
    status, out, _ = fedbm("data", "get", "pneumoniamnist", "--to", elsewhere.parent, "--size", "28")
    assert (status, out.splitlines()[-1]) == (0, f"next: fedbm data inspect {elsewhere}")


def test_what_must_be_done_by_hand(fedbm: Command, home: Path) -> None:
    status, out, err = fedbm("data", "get", "oct-c8")
    assert (status, out) == (2, "")
    assert one_sentence(err).endswith(f"download the archive and save it as {home}/downloads/oct-c8.zip")
    assert not home.exists()


# --- prepare, inspect -----------------------------------------------------------------------------------------------


def test_prepare(fedbm: Command, scans: Path, tmp_path: Path) -> None:
    status, out, err = fedbm("data", "prepare", scans, *SMALL, "--cache", tmp_path)
    assert (status, err) == (0, "")
    assert out.startswith("scans: 90 images of (1, 16, 16)")
    place = re.fullmatch(r"prepared: (.*) \(0 MB, every byte checked\)", out.splitlines()[-1])
    assert place
    assert (Path(place[1]) / "manifest.json").exists()
    assert Path(place[1]).parent == tmp_path
    assert fedbm("data", "prepare", scans, *SMALL, "--cache", tmp_path) == (0, out, "")
    images = Path(place[1]) / "images.npy"
    sound = images.read_bytes()
    images.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    status, again, err = fedbm("data", "prepare", scans, *SMALL, "--cache", tmp_path)
    assert (status, err) == (0, "")
    assert [line for line in again.splitlines() if "was damaged" not in line] == out.splitlines()
    assert f"note: the prepared copy {place[1]} was damaged" in again
    assert images.read_bytes() == sound


def test_inspect(fedbm: Command, scans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = fedbm("data", "inspect", scans, *SMALL)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert any(line.startswith("pixels: mean 0.") for line in lines)
    assert "duplicates: 0 pairs of equal images, 0 of them in different subsets" in lines
    assert "warning: classes with fewer than 5 val images: cyst (3), normal (3), polyp (3)" in lines
    assert lines[-2:] == ["drawn: inspect-scans/samples.png", "saved: inspect-scans/inspect.json"]
    assert json.loads(Path("inspect-scans/inspect.json").read_text())["name"] == "scans"
    assert Image.open("inspect-scans/samples.png").size[1] == 3 + 3 * 67


def test_inspect_names_what_cannot_be_read(fedbm: Command, scans: Path, tmp_path: Path) -> None:
    shutil.copytree(scans, tmp_path / "scans")
    (tmp_path / "scans" / "cyst" / "notes").write_text("not an image")
    words = ["data", "inspect", tmp_path / "scans", *SMALL, "--to", tmp_path / "seen"]
    status, _, err = fedbm(*words)
    assert status == 2
    assert "1 of 91 images cannot be read, the first is cyst/notes (not an image)" in one_sentence(err)
    assert not (tmp_path / "seen").exists()
    status, out, err = fedbm(*words, "--on-bad-file", "skip")
    assert (status, err) == (0, "")
    assert "note: skipped unreadable images: 1, the first is cyst/notes" in out.splitlines()


def test_inspect_counts_shared_sites(fedbm: Command, sites: Path, tmp_path: Path) -> None:
    status, out, err = fedbm("data", "inspect", sites, *SMALL, "--to", tmp_path)
    assert (status, err) == (0, "")
    assert "site: 3 of 3 values are in more than one subset" in out.splitlines()


# --- partition ------------------------------------------------------------------------------------------------------


def test_data_path_is_short_for_partition(fedbm: Command, scans: Path) -> None:
    own = [*SMALL, "--clients", 3]
    status, out, err = fedbm("data", "partition", scans, *own)
    assert (status, err) == (0, "")
    assert fedbm("data", scans, *own) == (0, out, "")
    assert fedbm("data", *own, scans) == (0, out, "")


@pytest.mark.parametrize(
    ("more", "kind", "clients"),
    [
        (["--partition", "iid", "--clients", 3], "iid", 3),
        (["--partition", "quantity", "--beta", 0.5, "--clients", 3], "quantity", 3),
        (["--partition", "balanced", "--beta", 0.5, "--clients", 3], "balanced", 3),
        (["--partition", "classes", "--classes-per-client", 1, "--clients", 3], "classes", 3),
        (["--partition", "shards", "--shards-per-client", 2, "--clients", 3], "shards", 3),
        (["--partition", "column", "--partition-column", "site"], "column", 3),
    ],
)
def test_partition(fedbm: Command, sites: Path, tmp_path: Path, more: list[Any], kind: str, clients: int) -> None:
    saved, drawn = tmp_path / "p.json", tmp_path / "p.svg"
    status, out, err = fedbm("data", "partition", sites, *SMALL, *more, "--save", saved, "--picture", drawn)
    assert (status, err) == (0, "")
    (sentence,) = (line for line in out.splitlines() if line.startswith(f"{clients} clients ({kind})"))
    assert re.search(r"total variation, .*\), Jensen–Shannon 0\.\d\d bits\.$", sentence)
    if kind == "classes":
        assert "Clients with one class only: 3" in sentence
    if kind == "column":
        assert [line.split()[0] for line in out.splitlines() if re.match("(Bern|Oslo|Rom) ", line)] == [
            "Bern",
            "Oslo",
            "Rom",
        ]
    assert "<svg" in drawn.read_text()
    counts = json.loads(saved.read_text())["counts"]
    assert np.array(counts).sum() == 63
    again = fedbm("data", sites, *SMALL, "--partition", "file", "--partition-file", saved)[1]
    assert sentence in again.splitlines()


@pytest.mark.parametrize(
    ("more", "names"),
    [
        (["--clients", 3, "--held-out", 2], ["3", "4"]),
        (["--partition", "column", "--partition-column", "site", "--held-out-values", "Rom, Oslo"], ["Rom", "Oslo"]),
        (["--partition", "column", "--partition-column", "site", "--held-out-values", 'Rom, "Oslo"'], ["Rom", "Oslo"]),
    ],
)
def test_held_out_clients_and_a_shift_are_shown_and_saved(
    fedbm: Command, sites: Path, tmp_path: Path, more: list[Any], names: list[str]
) -> None:
    saved, shift = tmp_path / "p.json", ["--feature-shift", "noise", "--shift-strength", 0.5]
    status, out, err = fedbm("data", "partition", sites, *SMALL, *more, *shift, "--save", saved)
    assert (status, err) == (0, "")
    below = out.partition("held out, never trained on:")[2].splitlines()
    assert [line.split()[0] for line in below[2:4]] == names
    assert "Feature shift (noise) of the clients' images, the held-out clients last: +" in out
    value = json.loads(saved.read_text())
    assert len(value["held_out"]) == 2
    assert len(value["shift"]["levels"]) == 2 + len(value["clients"])
    again = fedbm("data", sites, *SMALL, "--partition", "file", "--partition-file", saved)[1]
    assert again.splitlines()[-2:] == out.splitlines()[-3:-1]


def test_a_run_by_column(fedbm: Command, sites: Path, tiny: dict[str, Any], tmp_path: Path) -> None:
    """The column says how many clients there are; the run's own file says so too, and is found again by it."""
    own = {key: value for key, value in tiny.items() if key not in ("data", "clients")}
    words = flags({**own, "data": sites, "rounds": 1, "partition": "column", "partition_column": "site"})
    status, _, err = fedbm("run", *words, "--out", tmp_path)
    assert (status, err) == (0, "")
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "summary.json").read_text())["clients"] == 3
    assert "\nclients = 3\n" in (folder / "config.toml").read_text()
    assert "this run is finished" in fedbm("run", folder / "config.toml")[1]
    status, _, err = fedbm("run", *words, "--clients", 5, "--out", tmp_path)
    assert status == 2
    assert one_sentence(err) == 'clients is 5, but the column "site" has 3. Remove clients.'


# --- help and mistakes ----------------------------------------------------------------------------------------------


def test_help_teaches(fedbm: Command) -> None:
    status, out, err = fedbm("data", "--help")
    assert (status, err) == (0, "")
    assert all(re.search(rf"^    {task}\s", out, re.MULTILINE) for task in DATA_TASKS)
    assert "examples:\n  fedbm data list" in out
    for task in DATA_TASKS:
        status, out, err = fedbm("data", task, "--help")
        assert (status, err) == (0, "")
        assert out.startswith(f"usage: fedbm data {task} ")
    assert "--accept-licence" in fedbm("data", "get", "-h")[1]
    assert "run's seed (default 0)" in " ".join(fedbm("data", "prepare", "-h")[1].split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("inspct digits", '"inspct" is neither a data set nor a task of fedbm data (did you mean "inspect"?)'),
        ("get", "the following arguments are required: NAME. See 'fedbm data get --help'."),
        ("get pcb", 'no data set is called "pcb" (did you mean "pbc"?)'),
        ("get pbc", "Mendeley Data needs a browser"),
        ("get digits", "digits is built into scikit-learn, nothing to download"),
        ("get bloodmnist --size big", 'size must be a whole number, not "big"'),
        ("get bloodmnist --size 100", "bloodmnist is published at 28, 64, 128 or 224 pixels, not at 100"),
        (
            "get dermamnist",
            "dermamnist has the licence CC BY-NC 4.0, not for commercial use: add",
        ),
        ("get bloodmnist --too x", 'data get has no argument --too (did you mean "--to"?)'),
        ("list digits", "data list has no argument digits"),
        ("prepare", "the following arguments are required: what. See 'fedbm data prepare --help'."),
        ("prepare ./nowhere", "nowhere does not exist or cannot be accessed"),
        ("prepare digits --clients 3", "data prepare has no argument --clients"),
        ("inspect pbc", "the images of pbc are not here: run 'fedbm data get pbc'"),
        ("inspect digits --label-column dx", "path_column and label_column have no effect on digits: remove them"),
        ("inspect digits --value-range -5,x", 'value_range must be a number, not "x"'),
        ("inspect digits --value-range -5,-9", "value_range must be LOW,HIGH, such as 0,4095, not -5,-9"),
        ("inspect digits --mean 0.5 --std 0.1,0.1", "mean and std must have one number per channel, here 1"),
        ("inspect digits --normalise self", "normalise must be fixed or own"),
        ("inspect digits --size 30", "image size 30 is not supported: use a multiple of 4 from 16 up"),
        (
            "partition digits --partition colum",
            "partition must be dirichlet, balanced, iid, quantity, classes, shards, column or file",
        ),
        ("partition digits --partition column", "partition = column needs partition_column"),
        (
            "partition digits --partition-column site",
            "partition_column only applies if partition is column, but it is dirichlet. Remove",
        ),
        (
            "partition digits --partition column --partition-column site",
            'the data has no column "site": there are none',
        ),
        (
            "digits --partition classes --classes-per-client 11",
            "classes_per_client is 11, but with 10 clients and 10 classes it must be from 1 to 10",
        ),
        (
            "digits --partition classes --clients 3",
            "classes_per_client is 2, but with 3 clients and 10 classes it must be from 4 to 10",
        ),
        ("digits --partition shards --shards-per-client 200", "1258 training samples cannot be cut into 2000 shards"),
        ("digits --partition shards --classes-per-client 2", "only applies if partition is classes, but it is shards"),
        ("digits --held-out -1", "held_out must be at least 0, not -1"),
        ("digits --held-out-values Oslo", "held_out_values only applies if partition is column"),
        ("digits --shift-strength 0.5", "shift_strength only applies if feature_shift is brightness, contrast, blur"),
        ("digits --feature-shift colour", "feature_shift must be none, brightness, contrast, blur or noise"),
        ("digits --feature-shift blur --shift-strength 2", "shift_strength must be at most 1, not 2"),
        ("digits --clients 2000", "1258 training samples are too few for 2000 clients"),
        ("--save x.json", "the following arguments are required: what. See 'fedbm data partition --help'."),
    ],
)
def test_mistakes(
    fedbm: Command, words: str, sentence: str, home: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, status 2, and nothing written but the prepared digits."""
    monkeypatch.chdir(tmp_path)
    cached = ["--cache", str(cache)] if "digits" in words and "get" not in words and "list" not in words else []
    status, _, err = fedbm("data", *words.split(), *(cached if "inspct" not in words else []))
    assert sentence in one_sentence(err)
    assert status == 2
    assert list(tmp_path.rglob("*")) == []


# --- progress -------------------------------------------------------------------------------------------------------


def test_a_line_now_and_then_in_a_log() -> None:
    log = Console(file=io.StringIO(), width=80)
    assert isinstance(log.file, io.StringIO)
    with show_decoding(log) as progress:
        for done in range(1, 12_001):
            progress(done, 12_000)
    with show_download(log) as progress:
        for megabytes in (50, 150, 199, 250):
            progress(megabytes * 10**6, 250 * 10**6)
        progress(400 * 10**6, 0)
    assert log.file.getvalue().splitlines() == [
        "decoding: 5,000 of 12,000 images",
        "decoding: 10,000 of 12,000 images",
        "getting: 150 of 250 MB",
        "getting: 250 of 250 MB",
        "getting: 400 MB",
    ]


def test_a_bar_in_a_terminal_that_goes_again() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=100)
    assert isinstance(screen.file, io.StringIO)
    with show_decoding(screen) as progress:
        progress(30, 90)
        progress(90, 90)
    assert "90 of 90 images" in screen.file.getvalue()
    with show_download(screen) as progress:
        progress(1_000_000, 0)
        progress(2_000_000, 4_000_000)
    assert "2 of 4 MB" in screen.file.getvalue()
