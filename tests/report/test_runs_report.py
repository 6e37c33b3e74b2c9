"""The report page: well formed, alone, true to the summaries, the same every time, and honest about what is missing."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from fake_runs import METRICS, edit, fake_run, plain, scored, two_methods

from fedbm.errors import FedBMError
from fedbm.report.verdicts import OTHER_SEEDS
from fedbm.report.write import write_report

VOID = {"meta", "link", "input", "br", "img", "hr"}


class Page(HTMLParser):
    """Checks nesting while it reads; keeps attributes, visible text and table rows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.rows: list[list[str]] = []  # of tables of class "results"
        self._results = False
        self.feed(text)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self._results = dict(attrs).get("class") == "results"
        if self._results and tag == "tr":
            self.rows.append([])
        if self._results and tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag
        if tag == "table":
            self._results = False

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)
        if self._results and self.open[-1] in ("td", "th", "span", "strong"):
            self.rows[-1][-1] += data

    def said(self) -> str:
        return " ".join(" ".join(self.text).split())

    def values(self, name: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(name)) is not None]


def page_of(runs: list[Path], tmp_path: Path, title: str | None = None) -> Page:
    return Page(write_report(runs, tmp_path / "page.html", title).read_text(encoding="utf-8"))


def test_the_page_is_well_formed_accessible_and_alone(tmp_path: Path) -> None:
    runs = two_methods(tmp_path / "a", seeds=2) + two_methods(tmp_path / "b", seeds=1, beta=None)
    page = page_of(runs, tmp_path)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    for address in ("http://", "https://", "//cdn", "@import", "<script"):
        assert address not in text
    links = page.values("src") + page.values("href") + page.values("xlink:href")
    assert all(link.startswith(("data:", "#")) for link in links)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert set(page.values("for")) | set(page.values("aria-labelledby")) <= set(ids)
    assert all(attributes.get("aria-label") for tag, attributes in page.tags if tag == "svg")
    assert all(attributes.get("alt") for tag, attributes in page.tags if tag == "img")
    assert all(attributes.get("scope") for tag, attributes in page.tags if tag == "th")
    assert sum(tag == "h1" for tag, _ in page.tags) == 1


def test_same_runs_same_bytes_in_whatever_order_they_are_given(tmp_path: Path) -> None:
    runs = two_methods(tmp_path / "runs", seeds=2, classes="ab", rounds=3)
    first = write_report(runs, tmp_path / "1.html").read_bytes()
    assert write_report(runs, tmp_path / "2.html").read_bytes() == first
    assert write_report([*reversed(runs), runs[0]], tmp_path / "3.html").read_bytes() == first


def test_into_a_folder_it_is_report_html(tmp_path: Path) -> None:
    assert write_report([fake_run(tmp_path / "runs")], tmp_path) == tmp_path / "report.html"


def test_names_are_text_whatever_they_hold(tmp_path: Path) -> None:
    classes = ["<script>alert(1)</script>", "核 & <b>Kern</b>", "$x$"]
    run = fake_run(tmp_path / "runs", classes=classes, data="<i>data</i>")
    page = page_of([run], tmp_path, title="<img src=x onerror=alert(1)>")
    assert {"script", "i", "b"}.isdisjoint(tag for tag, _ in page.tags)
    assert "x" not in page.values("src")
    assert page.values("onerror") == []
    for name in (*classes, "<i>data</i>", "<img src=x onerror=alert(1)>"):
        assert name in page.said()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_a_browser_shows_it_without_complaint(tmp_path: Path) -> None:
    path = write_report(two_methods(tmp_path / "runs", seeds=1), tmp_path / "page.html")
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--disable-quic", "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'chromium'}",
    ]  # fmt: skip
    shown = subprocess.run(
        ["chromium", *flags, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert "With FedBM, " in shown.stdout
    assert "CONSOLE" not in shown.stderr


def test_every_number_of_the_table_comes_from_the_summaries(tmp_path: Path) -> None:
    runs = two_methods(tmp_path / "runs")
    rows = [row for row in page_of(runs, tmp_path).rows if len(row) == 8 and row[0] != "Method"]
    summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
    expected = []
    for moment in ("best", "last"):
        for method, name in (("fedavg", "FedAvg"), ("fedbm", "FedBM")):
            own = [summary[moment] for summary in summaries if summary["method"] == method]
            rounds = sorted({one["round"] for one in own})
            cells = [
                f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f}"
                for values in ([one[metric] for one in own] for metric in METRICS)
            ]
            expected.append([name, "3", "–".join(map(str, dict.fromkeys((rounds[0], rounds[-1])))), *cells])
    assert rows == expected


def test_bold_marks_the_highest_mean_and_central_is_no_competitor(tmp_path: Path) -> None:
    runs = scored(tmp_path, "fedavg", [0.7]) + scored(tmp_path, "fedbm", [0.6]) + scored(tmp_path, "central", [0.9])
    text = write_report(runs, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<strong>70.0</strong>" in text
    assert "<strong>60.0</strong>" not in text
    assert "<strong>90.0</strong>" not in text


def test_an_undefined_auc_is_a_dash_and_no_mean_over_some_seeds(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path, seed=seed, rounds=3, best={"auc": auc}) for seed, auc in enumerate((None, 0.9))]
    rows = page_of(runs, tmp_path).rows
    assert rows[2][5] == "–"
    assert rows[4][5] != "–"


def test_one_seed_has_no_plus_minus(tmp_path: Path) -> None:
    page = page_of([fake_run(tmp_path / "runs", best={"f1": 0.9})], tmp_path)
    assert page.rows[2][4] == "90.0"


def test_an_unfinished_run_is_named_and_counted_nowhere(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path / "runs", seed=seed, rounds=6) for seed in (0, 1)]
    counted = page_of(runs, tmp_path).rows
    runs.append(fake_run(tmp_path / "runs", seed=2, rounds=6, done=4))
    page = page_of(runs, tmp_path)
    assert page.rows == counted
    assert "FedBM, seed 2, unfinished, 4 of 6 rounds" in page.said()


@pytest.mark.parametrize("name", ["report.html", "report.csv"])
def test_a_run_that_was_stopped_between_its_details_and_its_summary_is_unfinished(tmp_path: Path, name: str) -> None:
    write_report([fake_run(tmp_path, leave_out=["summary.json"])], tmp_path / name)
    assert "unfinished, 6 of 6 rounds" in (tmp_path / name).read_text(encoding="utf-8")


def test_a_page_of_unfinished_runs_only(tmp_path: Path) -> None:
    page = page_of([fake_run(tmp_path / "runs", seed=seed, done=seed) for seed in (0, 1)], tmp_path)
    assert page.rows == []
    assert "No run has finished" in page.said()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("partition.json", "No run with clients has partition.json."),
        ("details.json", "No finished run has details.json."),
        ("environment.json", "has no environment.json."),
        ("generated.png", "No run here has generated images."),
        ("rounds.jsonl", "No run here has recorded a round."),
    ],
)
def test_a_missing_file_costs_its_section_and_the_section_says_so(tmp_path: Path, name: str, reason: str) -> None:
    assert reason in page_of([fake_run(tmp_path / "runs", leave_out=[name])], tmp_path).said()


def test_methods_without_texts_or_generator_say_so(tmp_path: Path) -> None:
    said = page_of([fake_run(tmp_path / "runs", "fedavg")], tmp_path).said()
    assert "No run here has similarities of class texts." in said
    assert "No run here has generated images." in said


def test_personal_scores_stand_apart(tmp_path: Path) -> None:
    said = page_of([fake_run(tmp_path / "runs", "fedrep", seed) for seed in (0, 1)], tmp_path).said()
    assert "FedRep: 88.0 ± 0.0 % accuracy of clients’ own models in their own label mix" in plain(said)


def test_of_more_than_three_partitions_three_are_shown(tmp_path: Path) -> None:
    said = page_of([fake_run(tmp_path / "runs", seed=seed, rounds=2) for seed in range(4)], tmp_path).said()
    assert "Seeds shown: 3 of 4." in said


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.toml", "[data", "is not valid TOML"),
        ("config.toml", "train = 3", "data is missing"),
        ("summary.json", "{", "cannot read"),
        ("summary.json", '{"format": 1}', "id is missing. Remove the file"),
        ("summary.json", "", "Remove the file; the command that made the run writes it again"),
        ("summary.json", '{"format": 99}', "this version of fedbm reads format 1$"),
        ("summary.json", "{}", "states no format, so fedbm did not write it. Remove the file"),
        ("rounds.jsonl", '{"round": 1\n{"round": 2}\n', "line 1 of"),
        ("rounds.jsonl", '{"round": 1}\n', "line 1 of .*: loss is missing"),
        ("rounds.jsonl", "", "rounds 1 to 3 of a finished run, but has 0 of them"),
        ("generated.png", "no picture", "cannot read"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: str, words: str) -> None:
    run = fake_run(tmp_path / "runs", rounds=3)
    (run / name).write_text(content)
    with pytest.raises(FedBMError, match=words) as caught:
        write_report([run], tmp_path / "page.html")
    assert name in str(caught.value)
    assert not (tmp_path / "page.html").exists()


def test_a_finished_run_whose_rounds_were_cut_off_is_refused(tmp_path: Path) -> None:
    """Its last quarter would be a mean over other rounds, and the accuracy it reached another."""
    run = fake_run(tmp_path / "runs", rounds=3)
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text("".join(lines[:2]) + lines[2][:30])
    with pytest.raises(FedBMError, match="must contain rounds 1 to 3 of a finished run, but has 2 of them"):
        write_report([run], tmp_path / "page.html")


@pytest.mark.parametrize("score", [None, "high"])
def test_a_summary_without_a_score_is_no_result(tmp_path: Path, score: object) -> None:
    run = fake_run(tmp_path / "runs", rounds=3)
    summary = json.loads((run / "summary.json").read_text())
    summary["best"]["f1"] = score
    (run / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(
        FedBMError, match=r"summary\.json: best\.f1 must be a number from 0 to 1, not (null|\"high\")\. Remove the file"
    ):
        write_report([run], tmp_path / "page.html")


def test_pictures_of_the_wrong_shape_are_refused(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "runs", rounds=3)
    shutil.copy(fake_run(tmp_path / "other", classes="abcde", rounds=3) / "generated.png", run / "generated.png")
    with pytest.raises(FedBMError, match="not 8 square tiles for each of 3 classes"):
        write_report([run], tmp_path / "page.html")


def opening(runs: list[Path], tmp_path: Path) -> list[str]:
    """The first sentences of a report."""
    text = write_report(runs, tmp_path / "page.md").read_text(encoding="utf-8")
    return [plain(line) for line in text.split("\n## ")[0].splitlines()[1:] if line]


def test_rows_with_unequal_settings_get_no_headline(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path, "fedavg", rounds=4), fake_run(tmp_path, "fedbm", rounds=6)]
    first, more = opening(runs, tmp_path)
    assert first == "Differences other than the method: train.rounds (4, 6)."
    assert more == "So this page does not say which row is ahead."
    assert "The difference is" not in (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "**" not in (tmp_path / "page.md").read_text(encoding="utf-8")
    equal = [fake_run(tmp_path / "b", method, rounds=4) for method in ("fedavg", "fedbm")]
    assert opening(equal, tmp_path)[0].startswith("With FedBM, ")
    assert "**" in (tmp_path / "page.md").read_text(encoding="utf-8")


def test_only_shared_seeds_are_compared(tmp_path: Path) -> None:
    """FedAvg's second seed is as good as can be, and does not count."""
    fedavg = [
        fake_run(tmp_path, "fedavg", seed, rounds=3, best={"accuracy": score, "f1": score})
        for seed, score in enumerate((0.4, 1.0))
    ]
    fedbm = fake_run(tmp_path, "fedbm", rounds=3, best={"accuracy": 0.6, "f1": 0.6})
    first, more = opening([*fedavg, fedbm], tmp_path)
    assert first == "With FedBM, 60 of 100 test images were classified correctly; with FedAvg, 40."
    assert "is 20.0 points above FedAvg’s" in more
    assert more.endswith(OTHER_SEEDS)  # the table has 70 for FedAvg


@pytest.mark.parametrize(("method", "seed"), [("central", 0), ("fedprox", 1)])
def test_a_row_that_cannot_be_compared_has_the_reason(tmp_path: Path, method: str, seed: int) -> None:
    runs = [fake_run(tmp_path, "fedavg", rounds=3), fake_run(tmp_path, method, seed, rounds=3)]
    first, *_ = opening(runs, tmp_path)
    assert re.fullmatch(r"With FedAvg, \d+ of 100 test images were classified correctly\.", first)
    text = plain((tmp_path / "page.md").read_text(encoding="utf-8"))
    assert "- FedAvg is not compared: no other row, apart from central training, has a run at the same seeds." in text


def test_the_correction_covers_one_partition_as_the_page_says(tmp_path: Path) -> None:
    """Each β has one test, so p does not change."""
    for beta in (0.1, 0.5):
        scored(tmp_path, "fedavg", [0.5, 0.52, 0.51], beta=beta)
        scored(tmp_path, "fedbm", [0.6, 0.61, 0.63], beta=beta)
    said = plain(page_of(list(tmp_path.glob("*-0.*")), tmp_path).said())
    assert len(re.findall(r"paired t-test (p = 0\.\d+), d = [\d.]+, \1 after Holm’s correction over 1 test", said)) == 2
    assert "in a report of runs, those of one data set and partition." in said


def test_options_are_a_note_if_a_method_has_one_row(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path, "fedavg", rounds=3), fake_run(tmp_path, "fedbm", rounds=3, options={"tau": 5})]
    text = write_report(runs, tmp_path / "page.md").read_text(encoding="utf-8")
    assert "- Options of FedBM that are not the default: tau=5." in text
    assert "Options of FedAvg" not in text
    assert "| FedBM | 1 |" in text


def test_classes_by_method_in_every_format(tmp_path: Path) -> None:
    runs = two_methods(tmp_path / "runs", seeds=2, rounds=3, classes=("nevus", "cyst"))
    for run, hits in zip(runs, (6, 8, 9, 9), strict=True):
        matrix = [[hits, 10 - hits], [2, 18]]
        details = json.loads((run / "details.json").read_text())
        edit(run / "details.json", confusion={**details["confusion"], "best": matrix})
    page, markdown, latex, table = (
        write_report(runs, tmp_path / f"page{ending}").read_text(encoding="utf-8")
        for ending in (".html", ".md", ".tex", ".csv")
    )
    # FedAvg, nevus: recall 60 and 80; precision 6/8 and 8/10; F1 12/18 and 16/20
    row = "| FedAvg | 10 | 77.5 ± 3.5 | 70.0 ± 14.1 | 73.3 ± 9.4 |"
    assert row in markdown
    assert "<summary>Class by class, at the round chosen on validation</summary>" in markdown
    assert "Class by class, at the round chosen on validation" in page
    assert "77.5 ± 3.5 & 70.0 ± 14.1 & 73.3 ± 9.4" in latex
    lines = list(csv.DictReader(table.splitlines()))
    first = next(one for one in lines if (one["method"], one["seed"], one["moment"]) == ("fedavg", "0", "best"))
    found = [first[f"{key}: nevus"] for key in ("n", "precision", "recall", "f1")]
    assert found == ["10", "0.75", "0.6", str(12 / 18)]


def test_a_class_without_test_images_has_no_score(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", rounds=3, classes=("a", "b"))
    edit(run / "details.json", confusion={key: [[4, 1], [0, 0]] for key in ("best", "last")})
    text = write_report([run], tmp_path / "page.md").read_text(encoding="utf-8")
    assert "| FedBM | 5 | 100.0 | 80.0 | 88.9 |" in text
    assert "| FedBM | 0 | – | – | – |" in text


def test_convergence_is_judged(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", "fedavg", rounds=20)
    short = fake_run(tmp_path / "short", "fedavg", rounds=6)
    for path, judged in ((run, True), (short, False)):
        text = write_report([path], tmp_path / "page.md").read_text(encoding="utf-8")
        assert ("- Convergence, by validation macro-F1 over the last quarter of the rounds" in text) == judged
        assert bool(re.search(r"points\): FedAvg (still rises|falls|swings|is settled) \(", text)) == judged


def test_a_flag_in_advice_stays_in_one_line(tmp_path: Path) -> None:
    """The chosen round is made to be the last one."""
    run = fake_run(tmp_path / "run", "fedavg", rounds=3)
    best = json.loads((run / "summary.json").read_text())["best"]
    edit(run / "summary.json", best={**best, "round": 3})
    page = write_report([run], tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'use more <span class="flag">--rounds</span>.' in page
