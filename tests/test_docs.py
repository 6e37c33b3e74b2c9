"""The pages in step with the code: options, keys, fields, links, commands and examples."""

from __future__ import annotations

import dataclasses
import json
import re
import runpy
import shlex
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from fill_readme import fill_readme
from pages import (
    DOCS,
    METHOD_PAGES,
    PAGES,
    ROOT,
    anchors_of,
    blocks_of,
    commands_of,
    named,
    rows_of,
    section_of,
    text_of,
    words_outside_blocks,
)

import fedbm
from fedbm.cli import main
from fedbm.cli.main import make_parser
from fedbm.config.keys import SECTIONS, Key
from fedbm.config.options import type_words
from fedbm.errors import FedBMError
from fedbm.experiments.outcomes import read_outcome, read_outcomes
from fedbm.federation.deploy.settings_files import NodeSettings, read_settings
from fedbm.federation.federation_options import FederationOptions, read_run_file
from fedbm.methods import METHODS
from fedbm.methods.base import Facts, State, Task, size_of
from fedbm.methods.fedrep import FedRep
from fedbm.report.comparison import compare_outcome
from fedbm.report.experiment_tables import ladder_table, other_scores_table, rounds_table
from fedbm.report.format import mean_and_std
from fedbm.report.group import GroupRow
from fedbm.report.tables import METRICS, class_table
from fedbm.runs.method_comparison import list_methods, make_grid
from fedbm.runs.run_config import check_config, keys, make_config, to_sections
from fedbm.utils.statistics import paired, spread

PACKAGE = Path(fedbm.__file__).parent

# --- options and keys -----------------------------------------------------------------------------------------------


def shown_default(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not set" if value in (None, "") else f"{value:g}" if isinstance(value, float) else str(value)


def shown_range(options: type, name: str) -> str:
    """'≥ 1', '0 to 1' or the choices; '' where any value of the type will do."""
    kind = get_type_hints(options)[name]
    inner = next((k for k in get_args(kind) if k is not type(None)), kind) if get_origin(kind) is not Literal else kind
    if get_origin(inner) is Literal:
        return ", ".join(f"`{choice}`" if choice != "" else '`""`' for choice in get_args(inner))
    if inner is bool:
        return "yes or no"
    field = next(f for f in dataclasses.fields(options) if f.name == name)
    above, least, most, below = (field.metadata[bound] for bound in ("above", "least", "most", "below"))
    if least is not None and most is not None:
        return f"{least:g} to {most:.12g}"
    bounds = ((">", above), ("≥", least), ("≤", most), ("<", below))
    return ", ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)


def shown_options(method: type) -> list[list[str]]:
    return [[f"`{f.name}`", shown_default(f.default), shown_range(method, f.name)] for f in dataclasses.fields(method)]


@pytest.mark.parametrize("name", METHODS)
def test_a_page_for_every_method_with_every_option(name: str) -> None:
    method, page = METHODS[name], DOCS / "methods" / f"{name}.md"
    options = shown_options(method)
    if name != "fedavg":  # an option as FedAvg has it is on FedAvg's page
        options = [option for option in options if option not in shown_options(METHODS["fedavg"])]
    assert options == ([row[:3] for row in rows_of(section_of(page, "Options"))] if options else [])
    assert options or "## Options" not in text_of(page)
    leaves = re.search(r"^Facts that leave the site: (.*)\.$", text_of(page), re.MULTILINE)
    assert leaves
    assert leaves[1] == (", ".join(f"`{fact}`" for fact in method.shares) or "none")
    assert len(text_of(page).splitlines()) <= (60 if name != "fedbm" else 220)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "central"])
def test_a_page_cites_as_its_module_does(name: str) -> None:
    docstring = __import__(METHODS[name].__module__, fromlist=["__doc__"]).__doc__
    authors = re.search(r"^Reference: (.*?)\.", docstring, re.MULTILINE)
    assert authors
    assert section_of(DOCS / "methods" / f"{name}.md", "Reference").strip().startswith(f"{authors[1]}. ")


def test_the_overview_lists_every_method_in_order() -> None:
    rows = rows_of(text_of(DOCS / "methods" / "index.md"))
    assert [row[0] for row in rows] == [f"[`{name}`]({name}.md)" for name in METHODS]
    assert [row[5] for row in rows] == ["yes" if method.personalises else "no" for method in METHODS.values()]


def key_tables() -> str:
    """The heading and the table of every section; options of methods are on the pages of the methods."""
    lines = []
    for section in dict.fromkeys(key.section for key in keys()):
        lines += [f"### `[{section}]`", "| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        for key in keys():
            is_option = bool(key.methods) and key.name != "name" and set(key.methods) != set(METHODS)
            if key.section == section and not is_option:
                cells = (f"`{key.name}`", key_type(key), shown_default(key.default))
                lines.append(f"| {' | '.join(cells)} | {key.meaning} |")
    lines += ["| method | more options |", "| --- | --- |"]
    for name in METHODS:
        options = [f"`{key.name}`" for key in keys() if name in key.methods and set(key.methods) != set(METHODS)]
        lines += [f"| [{name}](methods/{name}.md#options) | {', '.join(options)} |"] if options else []
    return "\n".join(lines)


def key_type(key: Key) -> str:
    if key.name == "name" and key.section == "method":
        return ", ".join(f"`{name}`" for name in METHODS)
    options = SECTIONS.get(key.section) or METHODS[key.methods[0]]
    limits = shown_range(options, key.name)
    is_choice = "`" in limits or limits == "yes or no"
    return limits if is_choice else f"{key.type} {limits}".strip()


def test_the_federation_table_is_in_step() -> None:
    """[federation] stands in a table of its own: a run in one process does not have it."""
    rows = rows_of(section_of(DOCS / "configuration.md", "Between machines"))
    hints = get_type_hints(FederationOptions)
    expected = []
    for field in dataclasses.fields(FederationOptions):
        limits = shown_range(FederationOptions, field.name)
        kind = limits if "`" in limits else f"{type_words(hints[field.name])} {limits}".strip()
        expected.append([f"`{field.name}`", kind, shown_default(field.default), field.metadata["meaning"]])
    lines = "\n".join(f"| {' | '.join(row)} |" for row in expected)
    assert rows == expected, f"the table should be:\n\n{lines}\n"


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    site = runpy.run_path(str(DOCS / "conf.py"))
    listed = [page.partition("<")[2].rstrip(">") or page for pages in site["NAVIGATION"].values() for page in pages]
    pages = {f"/{page.relative_to(ROOT).with_suffix('')}" for page in {*PAGES, ROOT / "CHANGELOG.md"}}
    assert {*listed, *site["METHOD_PAGES"]} >= pages - {"/README"}


def test_the_key_tables_are_in_step() -> None:
    lines = section_of(DOCS / "configuration.md", "Every key").splitlines()
    printed = [line for line in lines if line.startswith(("|", "###"))]
    expected = key_tables()
    assert printed == expected.splitlines(), f"the tables should be:\n\n{expected}\n"


def test_a_flag_is_the_name_of_its_key_with_dashes() -> None:
    """The page says so instead of a column of flags."""
    flags = {key.switch: f"--{key.name.replace('_', '-')}" for key in keys() if key.name != "name"}
    assert list(flags) == list(flags.values())
    assert [key.switch for key in keys() if key.name == "name"] == ["--data", "--method"]


# --- what travels ---------------------------------------------------------------------------------------------------


class ThreeImages:
    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield torch.zeros(3, 3, 128, 128), torch.tensor([0, 1, 2])


def test_sizes_in_the_overview() -> None:
    """Bytes down and up of every method on ResNet-18, 8 classes, 128 px, as multiples of FedAvg's model."""
    classes = tuple(f"class {k}" for k in range(8))
    embeddings = torch.randn(8, 24, 384, generator=torch.Generator().manual_seed(0))
    concepts = fedbm.ConceptDistribution.fit(classes, classes, embeddings, {})
    task = Task(classes, (3, 128, 128), (0.5,) * 3, (0.5,) * 3, 0, fedbm.ResNet18, concepts)
    facts = Facts(0, 3, (1, 1, 1, 0, 0, 0, 0, 0))
    found: dict[str, list[list[int]]] = {}
    for name, kind in METHODS.items():
        method = kind()
        model = method.model(task)
        server = method.server_init(model)
        if name == "fedbm":
            server["generator_round"].fill_(5)
        if name == "fedgen":
            server["teachers.weight"].fill_(1)
        pieces = method.broadcast(server, 6)
        received = {key: value for piece in pieces.values() for key, value in piece.state.items()}
        context = method.start_client(model, received, method.client_init(task, facts), facts)
        upload, _ = method.finish_client(model, ThreeImages(), context, facts)
        found[name] = [[size_of(piece.state) for piece in pieces.values()], [size_of(upload)]]
    page = DOCS / "methods" / "index.md"
    [[whole], _] = found["fedavg"]
    assert f"{whole:,} bytes" in text_of(page)
    for (_, _, down, up, *_), name in zip(rows_of(text_of(page)), METHODS, strict=True):
        expected = [" + ".join(f"{size / whole:.4f}" for size in sizes) for sizes in found[name]]
        assert [down, up] == (["none", "none"] if name == "central" else expected), name


# --- records --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Spoilt(FedRep):
    """Personal heads, and a client whose update is refused: a run with every field a record can have."""

    name: ClassVar[str] = "spoilt"

    def finish_client(self, model: Any, data: Any, context: State, facts: Facts) -> tuple[State, State]:
        upload, own = super().finish_client(model, data, context, facts)
        if facts.client == 1:
            upload["body.conv1.weight"][0] = float("nan")
        return upload, own


@pytest.fixture(scope="module")
def folders(tiny: dict[str, Any], tiny_fedbm: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = str(tmp_path_factory.mktemp("runs"))
    own = {key: value for key, value in tiny.items() if key not in ("data", "method")}
    # three classes over four clients at this β: one always has too few, and samples are moved to it
    spoilt = {**own, "rounds": 2, "participation": 1.0, "beta": 0.001, "evaluate_every": 2}
    shifted = {**own, "rounds": 1, "held_out": 1, "feature_shift": "blur", "server_average": 0.9, "method": "fedavg"}
    made = {key: value for key, value in tiny_fedbm.items() if key != "data"}
    scans = fedbm.load(tiny["data"], size=16, channels=1)
    sites = dataclasses.replace(scans, columns={"site": np.resize(np.array(["a", "b"]), len(scans.labels))})
    own = {key: value for key, value in own.items() if key not in ("size", "channels", "clients")}
    column = {"method": "fedavg", "partition": "column", "partition_column": "site", "server_average": 0.9}
    return [
        fedbm.simulate(sites, out=out, **own, **column).path,
        fedbm.simulate(tiny["data"], method=Spoilt(), out=out, **spoilt).path,
        fedbm.simulate(tiny["data"], out=out, **shifted).path,
        fedbm.simulate(tiny["data"], out=out, **made, server_average=0.9).path,
    ]


# objects whose names are the run's own
FREE = {"loss": "<term>", "generator": "<term>", "clients": "<client>", "settings": "<name>"}


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """The paths of all that is no object or list, such as clients[].n and loss.<term>."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            shown = FREE.get(path.rpartition(".")[2], name)
            any_value = shown == "<name>"  # a setting may be a list
            yield from leaves(None if any_value else item, f"{path}.{shown}".lstrip("."))
    elif isinstance(value, list) and value:
        for item in value:
            yield from leaves(item, f"{path}[]")
    else:
        yield path


def fields_of(records: list[Any]) -> set[str]:
    """The leaves of any record, but for null or [] where another record has more."""
    found = {path for record in records for path in leaves(record)}
    return {path for path in found if not any(other.startswith((f"{path}.", f"{path}[")) for other in found)}


@pytest.mark.parametrize("file", ["rounds.jsonl", "summary.json", "details.json", "environment.json", "partition.json"])
def test_documented_fields_are_those_of_a_run(file: str, folders: list[Path]) -> None:
    texts = [(folder / file).read_text(encoding="utf-8") for folder in folders]
    records = [json.loads(part) for text in texts for part in (text.splitlines() if ".jsonl" in file else [text])]
    rows = rows_of(section_of(DOCS / "records.md", f"`{file}`"))
    documented = [name for row in rows for name in re.findall("`([^`]+)`", row[0])]
    assert sorted(documented) == sorted(fields_of(records))


def test_documented_files_are_those_of_a_run(folders: list[Path]) -> None:
    documented = {row[0].strip("`") for row in rows_of(section_of(DOCS / "records.md", "The folder"))}
    files = {str(p.relative_to(folder)) for folder in folders for p in folder.rglob("*") if p.is_file()}
    found = {re.sub(r"^clients/\d+-\d+", "clients/<client>-<round>", file) for file in files}
    # the best becomes the model of a finished run; others come after five rounds, when asked for, or after a failure
    rare = {"best-<round>.safetensors", "generated/<round>.png", "features.json", "failed.json"}
    assert found | rare == documented


def test_the_file_that_compare_shares_is_taken_as_the_page_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last file before the command is the one that the command names."""
    before, _, after = text_of(DOCS / "configuration.md").partition("fedbm compare ")
    command = shlex.split(after.splitlines()[0])
    monkeypatch.chdir(tmp_path)
    Path(command[0]).write_text(re.findall(r"```toml\n(.*?)```", before, re.DOTALL)[-1], encoding="utf-8")
    assert f"`{command[0]}`" in before
    planned: list[Any] = []

    def stop(configs: Any, *_: Any) -> None:
        planned.extend(configs)
        raise FedBMError("stopped")

    monkeypatch.setattr("fedbm.runs.method_comparison.plan_jobs", stop)
    assert main(["compare", *command]) == 2
    assert "stopped" in capsys.readouterr().err
    assert len(planned) == 3 * 2 * 3  # methods, β, seeds


def test_the_results_in_the_readmes_are_those_of_the_records(tmp_path: Path) -> None:
    """By the command the page names; what it writes is what stands there."""
    page = tmp_path / "README.md"
    page.write_text(text_of(ROOT / "README.md"), encoding="utf-8")
    fill_readme(read_outcomes(ROOT / "results"), page)
    assert text_of(page) == text_of(ROOT / "README.md")
    assert main(["report", str(ROOT / "results"), "--to", str(page)]) == 0
    assert text_of(page) == text_of(ROOT / "results" / "README.md")
    assert pictures_of(page) == pictures_of(ROOT / "results" / "README.md")


def pictures_of(page: Path) -> dict[str, str]:
    return {path.name: text_of(path) for path in (page.parent / f"{page.stem}-figures").iterdir()}


@pytest.mark.parametrize(
    ("records", "page"),
    [
        (["digits"], "digits/README.md"),
        (["mechanism.json"], "mechanism.md"),
    ],
)
def test_other_pages_of_results_are_those_of_the_records(records: list[str], page: str, tmp_path: Path) -> None:
    written = tmp_path / Path(page).name
    assert main(["report", *(str(ROOT / "results" / name) for name in records), "--to", str(written)]) == 0
    assert text_of(written) == text_of(ROOT / "results" / page)
    assert pictures_of(written) == pictures_of(ROOT / "results" / page)


def test_the_caveats_in_the_readme_are_those_of_the_records() -> None:
    """By the tables of the planned comparison, whose numbers have tests of their own."""
    comparison = compare_outcome(read_outcome(ROOT / "results" / "confirmation.json"))[0]
    rows = ("FedETF", "FedBM", "FedAvg")
    classes = class_table(comparison, "classes", dict.fromkeys(rows, 0), comparison.moment)
    assert classes is not None
    recall = {row.name: row.cells["recall"].value for row in classes.rows if row.block == "mel"}
    found = [f"{100 * float(recall[row] or 0):.0f}" for row in rows]
    scores = other_scores_table(comparison, "scores").rows[1]
    assert scores.name == "FedBM − FedETF"
    words = " ".join(text_of(ROOT / "README.md").split())
    assert "FedETF found {} of 100 melanomas, FedBM {}, FedAvg {} (".format(*found) in words
    assert (scores.cells["Accuracy, averaged"].value, scores.cells["Mean recall of classes, averaged"].value) == (
        "+11.0 (+4.2 to +17.7)",
        "+2.1 (−2.8 to +6.9)",
    )
    assert "11 points of accuracy, but 2 points of mean recall (interval −3 to 7)" in words
    by_round = rounds_table(comparison, "rounds").rows[1].cells
    assert [by_round[f"Round {number}"].value for number in (50, 100)] == ["−0.5 (−3.4 to +2.4)", "+0.4 (−4.0 to +4.8)"]
    assert "no lead over FedETF after 50 and 100 of the 200 rounds" in words


def flat(page: Path) -> str:
    return " ".join(text_of(page).split())


def means_of(rows: Mapping[str, Mapping[int, float]]) -> dict[str, str]:
    return {name: f"{100 * spread(list(by_seed.values())).mean:.1f}" for name, by_seed in rows.items() if by_seed}


def difference(first: Mapping[int, float], second: Mapping[int, float], words: str) -> str:
    """The words with the mean difference and its 95 % interval, in points."""
    found = paired(first, second)
    assert found is not None
    return words.format(*(f"{100 * value:.1f}".replace("-", "−") for value in (found.mean, found.low, found.high)))


def test_the_controls_on_kvasir_in_the_docs_are_those_of_the_records() -> None:
    outcome = read_outcome(ROOT / "results" / "mechanism.json")
    [comparison] = compare_outcome(outcome)
    scores = {row.name: row.by_seed("averaged") for row in comparison.rows}
    mean, readme, recipes = means_of(scores), flat(ROOT / "README.md"), flat(DOCS / "recipes.md")
    images, fixbn, group = "images in statistics", "FedAvg, FixBN", "FedAvg, GroupNorm"
    assert all(set(scores[name]) == {0, 1, 2} for name in ("FedAvg", images, fixbn, group))
    done = f"{sum(one.run is not None for one in outcome.results)} of {len(outcome.results)} runs finished"
    assert f"seeds 0–2, {done}: FedAvg had {mean['FedAvg']}. Generated images that enter" in recipes
    assert f"gave {mean[images]}, without language." in recipes
    assert f"from round 100 on gave {mean[fixbn]}, and GroupNorm gave {mean[group]}, without" in recipes
    gains = {one.first: one for one in comparison.contrasts if one.second == "FedAvg" and one.found and one.chosen}
    assert all(gains[name].found.low < 0 for name in (images, fixbn, group)), "the intervals include zero"
    points = [f"{100 * gains[name].chosen.mean:.0f}" for name in (images, fixbn, group)]
    assert "At the chosen round, the gains are {}, {} and {} points.".format(*points) in recipes
    two = means_of({name: {seed: by_seed[seed] for seed in (0, 1)} for name, by_seed in scores.items()})
    assert set(scores["FedBM"]) == set(scores["FedBM, GroupNorm"]) == {0, 1}
    both = f"FedAvg had {two[group]} and FedBM {two['FedBM, GroupNorm']}"
    assert f"seeds 0 and 1: FedAvg had {two['FedAvg']} and FedBM {two['FedBM']}. With GroupNorm, {both};" in recipes
    assert f"with global BatchNorm statistics, FedAvg had {two[fixbn]}." in recipes
    assert f"macro-F1 of {two['FedAvg']}, with GroupNorm {two[group]}, and FedBM {two['FedBM']}." in readme
    modules = compare_outcome(read_outcome(ROOT / "results" / "modules.json"))[0]
    scores = means_of({row.name: row.by_seed() for row in modules.rows if len(row.runs) == 3})
    assert f"FedBM had {scores['w/o LKCC']}, with it {scores['FedBM']}." in recipes


def test_the_controls_on_digits_in_the_docs_are_those_of_the_records() -> None:
    [comparison] = compare_outcome(read_outcome(ROOT / "results" / "digits" / "digits-mechanism.json"))
    scores = {row.name: row.by_seed("averaged") for row in comparison.rows}
    assert {len(by_seed) for by_seed in scores.values()} == {10}
    mean = means_of(scores)
    readme, page, recipes = (
        flat(file) for file in (ROOT / "README.md", DOCS / "comparison-digits.md", DOCS / "recipes.md")
    )
    fedavg, fedbm, fixbn, group, images = (
        mean[name] for name in ("FedAvg", "FedBM", "FedAvg, FixBN", "FedAvg, GroupNorm", "images in statistics")
    )
    assert f"digits, FedAvg had {fedavg}, FedBM {fedbm}, and generated images without language, in" in readme
    assert f"in the batch statistics alone, gave {images}." in readme
    assert f"had {fedavg}, with global BatchNorm statistics {fixbn}, with GroupNorm {group}, and FedBM had" in recipes
    assert f"had {fedbm}. Generated images in the batch statistics alone, without language, gave {images}." in recipes
    gains = {one.first: one.found for one in comparison.contrasts if one.second == "FedAvg" and one.found is not None}
    for name in ("FedAvg, FixBN", "FedAvg, GroupNorm", "images in statistics", "FedBM"):
        assert gains[name].low > 0, "the intervals exclude zero"
    assert f"FedAvg had a macro-F1 of {fedavg}, and FedBM {fedbm}." in page
    words = f"had {images}. FedBM minus this is {{}} points (interval {{}} to {{}};"
    assert difference(scores["FedBM"], scores["images in statistics"], words) in page
    words = "language added {} points (interval {} to {};"
    assert difference(scores["FedBM"], scores["images in the loss"], words) in recipes
    assert difference(scores["FedBM"], scores["images in the loss"], "[language added {} points]") in page


def test_the_share_of_other_normalisation_in_the_recipes_is_that_of_the_records() -> None:
    shares = []
    for name in ("mechanism", "digits/digits-mechanism"):
        [comparison] = compare_outcome(read_outcome(ROOT / "results" / f"{name}.json"))
        rows = {
            row.name: row.cells
            for row in ladder_table(comparison, "", dict.fromkeys((row.name for row in comparison.rows), 0)).rows
        }
        shares += [float(rows[row]["share"].value or 0) for row in ("FedAvg, FixBN", "FedAvg, GroupNorm")]
    words = f"they gave {100 * min(shares):.0f} to {100 * max(shares):.0f} % of"
    assert words in flat(DOCS / "recipes.md")


def test_the_tables_of_the_comparison_on_digits_are_those_of_the_records() -> None:
    page = DOCS / "comparison-digits.md"
    for comparison in compare_outcome(read_outcome(ROOT / "results" / "digits" / "digits.json")):
        shown = {row[0]: row[1:] for row in rows_of(section_of(page, f"β = {comparison.at['beta']}"))[2:]}
        found = {row.name: [str(len(row.runs)), *scores_on_digits(row)] for row in comparison.rows}
        assert {name: [cell.strip("*") for cell in cells] for name, cells in shown.items()} == found


def scores_on_digits(row: GroupRow) -> Iterator[str]:
    for moment, metric in (*(("best", metric) for metric in list(METRICS)[:3]), ("last", "accuracy"), ("last", "f1")):
        score = row.score(moment, metric)
        assert score is not None
        yield mean_and_std(score).replace("\N{NO-BREAK SPACE}", " ").removesuffix(" %")


# --- links, commands, files ---------------------------------------------------------------------------------------


def test_every_page_that_another_links_to_is_part_of_the_site() -> None:
    included = runpy.run_path(str(DOCS / "conf.py"))["include_patterns"]
    for page in PAGES:
        for target in re.findall(r"\]\(([\w./-]+\.md)[)#]", words_outside_blocks(page)):
            path = (page.parent / target).resolve().relative_to(ROOT)
            known = path.parts[0] == "benchmarks" or any(fnmatch(str(path), pattern) for pattern in included)
            assert known, f"{named(page)} links to {path}, which include_patterns in docs/conf.py leave out"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_relative_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", words_outside_blocks(page)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        place = (page.parent / file).resolve() if file else page
        assert place.exists(), f"{named(page)} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors_of(place), f"{named(page)} links to {target}, which is no heading"


def test_files_that_the_architecture_names_exist() -> None:
    paths = set(re.findall(r"`([\w/]+/\w+\.(?:py|toml))`", text_of(DOCS / "architecture.md")))
    assert len(paths) > 40
    assert [path for path in sorted(paths) if not any((root / path).exists() for root in (ROOT, PACKAGE))] == []


def try_command(words: list[str]) -> None:
    """Parse, and check every value given; FedBMError where the command line would refuse them. A $variable is 1."""
    own = r"\w+\.py:\w+|^fedavgm$"  # FILE.py:CLASS, or the plug-in of a page
    words = [re.sub(own, "fedavg", re.sub(r"\$\w+", "1", word)) for word in words]
    if {"--help", "--version"} & set(words):
        with pytest.raises(SystemExit, match="0"):
            make_parser(words[0]).parse(words)
        return
    found = make_parser(words[0]).parse(words)
    given = found.settings
    if found.command == "compare":
        for config in make_grid({}, given, list_methods(found.methods), [None], [0]):
            check_config(config)
    else:
        check_config(make_config(to_sections(given)))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_are_understood(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks_of(page, "sh", "console"):
        for words in commands_of(block):
            try_command(words)


def test_commands_are_found_where_shells_find_them() -> None:
    text = "$ OMP_NUM_THREADS=1 .venv/bin/fedbm run \\\n  --seed 1  # fedbm no\nfedbm list | head\nls fedbm\n"
    text += "cd x && fedbm config > y\nfor seed in 0 1; do fedbm run --seed $seed; done"
    assert list(commands_of(text)) == [["run", "--seed", "1"], ["list"], ["config"], ["run", "--seed", "$seed"]]


@pytest.mark.parametrize("page", METHOD_PAGES, ids=named)
def test_options_in_the_text_are_understood(page: Path) -> None:
    for span in re.findall(r"`(--[^`]+)`", words_outside_blocks(page)):
        words = shlex.split(span)
        if words != ["--method"]:
            method = [] if "--method" in words or page.stem not in METHODS else ["--method", page.stem]
            try_command(["run", *method, *words])


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_configuration_files_are_valid(page: Path, tmp_path: Path) -> None:
    for block in blocks_of(page, "toml"):
        if block.startswith("[policy]"):
            (tmp_path / "node.toml").write_text(f"format = 1\n{block}", encoding="utf-8")
            read_settings(tmp_path, NodeSettings)
            continue
        (tmp_path / "page.toml").write_text(block, encoding="utf-8")
        check_config(read_run_file(tmp_path / "page.toml")[0])


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").glob("*.toml")), ids=named)
def test_configuration_files_of_benchmarks_are_valid(file: Path) -> None:
    check_config(read_run_file(file)[0])
