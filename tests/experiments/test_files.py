"""Experiments' files: those that are shipped, and what is said of one that is wrong."""

from __future__ import annotations

import csv
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import DOCS, blocks_of, rows_of, section_of

from fedbm.errors import FedBMError
from fedbm.experiments.paper_numbers import find_published
from fedbm.experiments.spec import (
    PAPER,
    find_experiment,
    paper_experiments,
    parse,
    read_experiment,
    shipped_experiments,
)
from fedbm.experiments.trials import Trial, choose_trials, trials
from fedbm.report.comparison import CENTRAL
from fedbm.report.group import leading_row
from fedbm.runs.run_config import check_config

SHARED = Path(__file__).resolve().parents[2].parent / "shared"

# runs of three seeds; central training at one β stands for both
RUNS = {
    "comparison-ham10000": 66,
    "comparison-kvasir": 66,
    "modules": 36,
    "generator-terms": 60,
    "classifier": 48,
    "prompt-share": 48,
    "lambda-div": 36,
    "lambda-dis": 36,
    "pseudo-batch": 84,
    "clients": 240,
    "comparison-pbc": 66,
    "comparison-femnist": 66,
    "comparison-oct-c8": 66,
    "language-models": 48,
    "search-ham10000": 54,
    "precision": 6,
}
EVIDENCE = {  # with each experiment's own seeds
    "confirmation": 60,
    "estimation": 30,
    "estimation-fednh": 40,
    "lesion-split": 9,
    "mechanism": 30,
    "real-sites": 15,
    "batchnorm": 80,
    "more-methods": 39,
    "recipe-search": 24,
    "recipe": 24,
    "pretrained": 18,
}
DIGITS = {"digits": 108, "digits-mechanism": 100}


def test_every_table_and_figure_has_a_file() -> None:
    assert paper_experiments() == list(RUNS)
    assert shipped_experiments() == [*RUNS, *EVIDENCE, *DIGITS]


@pytest.mark.parametrize("name", EVIDENCE)
def test_an_evidence_experiment_runs_seed_by_seed(name: str) -> None:
    """A sitting that ends early leaves whole seeds, with the protocol of the paper's comparisons."""
    experiment = find_experiment(name)
    found = trials(experiment, experiment.seeds, {})
    assert len(found) == EVIDENCE[name]
    rows = len({(trial.row, str(trial.at)) for trial in found})
    assert [trial.seed for trial in found] == [seed for seed in experiment.seeds for _ in range(rows)]
    for trial in found:
        check_config(trial.config)
        average = 0.0 if trial.row == "FedBN" else 0.9  # FedBN has no common model
        assert (trial.config.train.precision, trial.config.train.server_average) == ("bf16", average)
        assert trial.config.train.evaluate_every == 1
    assert experiment.confirmatory == (name == "confirmation")
    if experiment.search:
        assert experiment.analysis is None
    else:
        assert experiment.analysis is not None
        assert experiment.analysis.endpoint == "averaged last"


@pytest.mark.parametrize("name", DIGITS)
def test_an_experiment_on_digits_needs_nothing_but_the_package(name: str) -> None:
    experiment = find_experiment(name)
    found = trials(experiment, experiment.seeds, {})
    assert len(found) == DIGITS[name]
    for trial in found:
        check_config(trial.config)
        assert (trial.config.data.name, trial.config.train.rounds) == ("digits", 50)


def test_the_mechanism_on_digits_asks_the_questions_of_the_mechanism() -> None:
    small, full = find_experiment("digits-mechanism"), find_experiment("mechanism")
    assert list(small.rows)[:5] == list(full.rows)[:5]
    assert len(small.rows) == len(full.rows)
    assert small.analysis is not None
    assert full.analysis is not None
    assert [second for _, second in small.analysis.contrasts] == [second for _, second in full.analysis.contrasts]


def test_the_confirmation_is_what_the_plan_says() -> None:
    experiment = find_experiment("confirmation")
    assert experiment.seeds == tuple(range(3, 13))
    assert experiment.analysis is not None
    assert experiment.analysis.seeds == experiment.seeds
    assert experiment.analysis.contrasts == (("FedBM", "FedAvg"), ("FedBM", "FedETF"))
    first = [(t.seed, t.at["data"], t.row, t.config.data.beta) for t in trials(experiment, experiment.seeds, {})[:7]]
    assert first == [
        *((3, "ham10000", row, 0.05) for row in ("FedBM", "FedAvg", "FedETF")),
        *((3, "kvasir", row, 0.05) for row in ("FedBM", "FedAvg", "FedETF")),
        (4, "ham10000", "FedBM", 0.05),
    ]
    assert experiment.chosen_seeds(None) == experiment.seeds
    assert experiment.chosen_seeds((3, 4, 5)) == (3, 4, 5)
    with pytest.raises(FedBMError, match="plans the seeds 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 only"):
        experiment.chosen_seeds((0, 1, 2))


@pytest.mark.parametrize("name", ["batchnorm", "more-methods", "recipe"])
def test_methods_are_runs_of_the_confirmation(name: str) -> None:
    """Rows with the paper's recipe have the settings of the confirmation, so their runs are not computed twice."""
    planned, found = (
        {t.row: t.config for t in trials(find_experiment(one), [3], {}) if t.config.data.name == "ham10000"}
        for one in ("confirmation", name)
    )
    shared = {"FedBM", "FedAvg", "FedETF"} & found.keys()
    assert {row: found[row] for row in shared} == {row: planned[row] for row in shared}
    assert len(shared) == (2 if name == "batchnorm" else 3)


def test_a_recipe_is_searched_and_measured_at_different_seeds() -> None:
    search, table = find_experiment("recipe-search"), find_experiment("recipe")
    assert not set(search.seeds) & set(table.seeds)
    modern = {t.row: t.config.train for t in trials(table, [3], {}) if t.row.endswith("modern")}
    tried = [t.config.train for t in trials(search, [3], {})]
    assert len(modern) == 4
    for train in modern.values():
        assert train in tried


def test_confirmation_and_paper_share_training_settings() -> None:
    """Only the average over rounds is added."""
    for data in ("ham10000", "kvasir"):
        paper = choose_trials(["beta=0.05"], trials(find_experiment(f"comparison-{data}"), [3], {}))
        theirs = {t.row: t.config for t in paper}
        for trial in choose_trials([f"data={data}"], trials(find_experiment("confirmation"), [3], {})):
            train = replace(trial.config.train, server_average=0.0)
            other = theirs[trial.row]
            assert (train, trial.config.data, trial.config.method) == (other.train, other.data, other.method)


def test_what_the_paper_prints_and_what_it_does_not() -> None:
    """Tables I to XII and the two figures that are of runs; a search and a check are about the paper, but not in it."""
    found = {name: find_experiment(name) for name in paper_experiments()}
    numbers = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII")
    printed = {name: one.shows for name, one in found.items() if one.shows.endswith(" of the paper")}
    wanted = {*(f"Table {number}" for number in numbers), "Figure 3", "Figure 4"}
    assert set(printed.values()) == {f"{one} of the paper" for one in wanted}
    assert [name for name in found if name not in printed] == ["search-ham10000", "precision"]
    assert found["modules"].shows == "Table VI of the paper"
    assert found["precision"].shows.startswith("whether the precision")


@pytest.mark.parametrize("name", RUNS)
def test_a_shipped_experiment_is_whole(name: str) -> None:
    experiment = find_experiment(name)
    assert experiment.title
    assert experiment.shows
    found = trials(experiment, range(3), {})
    assert len(found) == RUNS[name]
    for trial in found:
        check_config(trial.config)
        assert trial.config.train.precision == (trial.row if name == "precision" else "bf16")
    assert [trial.seed for trial in found[:3]] == [0, 1, 2]  # a cell's seeds stand together


@pytest.mark.parametrize("name", [name for name in RUNS if find_experiment(name).paper])
def test_rows_are_those_of_the_paper(name: str) -> None:
    """Every number of the paper's table has a row, and every row but those of our own has a number."""
    experiment = find_experiment(name)
    own = {"noise and label", "MiniLM"}
    found, asked = 0, set()
    for trial in trials(experiment, range(1), {}):
        data = trial.config.data.name
        beta = trial.at.get("beta")
        number = find_published(experiment.paper, data, beta, trial.row)
        found += number is not None
        asked.add(data)
        stands_in = data == "chars74k" or (experiment.paper in ("classifier", "prompt-share") and data == "kvasir")
        assert number is not None or trial.row in own or stands_in, trial.words
    lines = list(csv.DictReader(PAPER.joinpath("numbers.csv").read_text(encoding="utf-8").splitlines()))
    assert found == sum(line["table"] == experiment.paper and line["data"] in asked for line in lines)


def test_the_papers_numbers_are_typed_right() -> None:
    path = SHARED / "paper" / "tables.csv"
    if not path.exists():
        pytest.skip("needs ../shared/paper/tables.csv")
    with path.open(encoding="utf-8") as stream:
        theirs = [
            tuple(float(line[f"{metric}_{part}"]) for metric in ("accuracy", "f1") for part in ("mean", "std"))
            for line in csv.DictReader(stream)
        ]
    ours = [
        tuple(float(line[key]) for key in ("accuracy", "accuracy_std", "f1", "f1_std"))
        for line in csv.DictReader(PAPER.joinpath("numbers.csv").read_text(encoding="utf-8").splitlines())
    ]
    assert ours == theirs
    fedbm = find_published("comparison", "kvasir", 0.05, "FedBM")
    assert fedbm is not None
    assert (fedbm.mean["f1"], fedbm.std["f1"]) == (0.6951, 0.0411)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[axis]\nbeta = [1]", 'g: there is no key axis (did you mean "axes"?)'),
        ("[axes]\nbeta = 1", "g: axes.beta must be a list, not 1"),
        ("[axes]\nbeta = [1, 1]", "g: the axis beta has a value twice"),
        ("[axes]\nbeta = [1, '0.1']", 'g: axes.beta[1] must be a number from 0, not "0.1"'),
        ("[all]\nbeta = '0.1'", 'g: all.beta must be a number from 0, not "0.1"'),
        ("[axes]\nbeat = [1]", 'g: there is no setting "beat" (did you mean "beta"?)'),
        ("[all]\nseed = 1", "g: seed cannot be set here"),
        ("[[rows]]\nmethod = 'fedavg'", "g: rows[0].name is missing"),
        (
            "[[rows]]\nname = 'a'\nmethod = 'fedavgg'",
            'g: row "a": there is no method "fedavgg" (did you mean "fedavg"?)',
        ),
        ("[[rows]]\nname = 'a'\nmethod = ['fedavg']", "there is no method \"['fedavg']\""),
        ("[[rows]]\nname = 'a'\nmethod = 'fedavg'\nmu = 1", 'g: row "a": mu is an option of fedprox, not of fedavg'),
        ("[[rows]]\nname = 'a'\nbeat = 1", 'g: row "a": there is no setting "beat" (did you mean "beta"?)'),
        ("[[rows]]\nname = 'a'\nseed = 1", "g: seed cannot be set here"),
        (
            "[[rows]]\nname = 'a'\n[[rows]]\nname = 'a'",
            'g: every row needs a name of its own, but "a" is empty or used twice',
        ),
        ("methods = 'all'", "g: methods must be a list"),
        ("methods = [3]", "g: methods[0] must be a text, not 3"),
        ("figure = 'clients'", 'g: "clients" is not an axis'),
        ("[search]\nchose = ['beta']", "g: search.choose is missing, but there is chose"),
        ("[search]\nchoose = ['beta']", 'g: "beta" is not an axis'),
        ("title = 3", "g: title must be a text, not 3"),
        ("rows = 3", "g: rows must be a list, not 3"),
        ("all = 3", "g: all must be an object with keys, not 3"),
        ("[all]\nmu = 0.1", "g: mu is an option of fedprox, and no such"),
        ("[axes]\nmu = [0.1, 1]\nmethod = ['fedavg']", "g: mu is an option of fedprox, and no such"),
        ("lead = 'b'\n[[rows]]\nname = 'a'", 'g: "b" is not a row of the experiment; choose a'),
        ("title = ", "g is not valid TOML"),
        ("seeds = '5-3'", "g: seeds must be a count from 1 to 99, a range"),
        ("order = 'seeds'", 'g: order must be "cell" or "seed", not "seeds"'),
        ("endpoint = 'last'", 'g: endpoint must be "chosen" or "averaged last", not "last"'),
        ("contrasts = [['a']]", "g: contrasts[0] must have 2 entries, not 1"),
        ("contrasts = [['FedBM', 'a']]", 'g: "a" is not a row of the experiment; choose FedBM'),
        ("confirmatory = 'yes'", "g: confirmatory must be true or false"),
        (
            "contrasts = [['FedBM', 'FedAvg']]\n[search]\nchoose = ['row']",
            "g: an experiment with [search] cannot have contrasts",
        ),
        ("confirmatory = true", "g: confirmatory and endpoint need contrasts, and there are none"),
        (
            "confirmatory = true\nseeds = '3-4'\ncontrasts = [['FedBM', 'FedAvg']]",
            "g: a confirmatory experiment must state at least 3 seeds",
        ),
        ("endpoint = 'averaged last'", "g: confirmatory and endpoint need contrasts"),
    ],
)
def test_a_mistake_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(FedBMError) as caught:
        parse(text, "g", "g")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[rows]]\nname = 'a'\n[[rows]]\nname = 'b'\nmethod = 'fedprox'\nmu = -3", 'g: row "b": mu must be at least'),
        ("[axes]\nbeta = [0.1, 0]", 'g: row "FedBM": beta must be above 0, not 0'),
        ("[all]\nrounds = 'many'", 'g: row "FedBM": rounds must be a whole number, not "many"'),
    ],
)
def test_a_wrong_value_is_said_with_its_file_and_row(text: str, sentence: str) -> None:
    with pytest.raises(FedBMError) as caught:
        trials(parse(text, "g", "g"), range(1), {})
    assert sentence in str(caught.value)


def test_a_file_of_ones_own_does_not_take_the_name_of_a_shipped_one(tmp_path: Path) -> None:
    file = tmp_path / "comparison-kvasir.toml"
    file.write_text('[all]\ndata = "digits"\n', encoding="utf-8")
    with pytest.raises(FedBMError, match="has the name of a shipped experiment") as caught:
        read_experiment(file)
    assert str(caught.value).endswith("with 'fedbm reproduce comparison-kvasir'.")


def test_a_name_that_is_nearly_right() -> None:
    with pytest.raises(FedBMError, match='there is no experiment "module" \\(did you mean "modules"\\?\\)'):
        find_experiment("module")
    with pytest.raises(FedBMError, match=r"there is no file nowhere\.toml"):
        read_experiment(Path("nowhere.toml"))


@given(st.text(alphabet="abc=[]{}'\"\n#. 01", max_size=60))
def test_any_text_is_an_experiment_or_refused(text: str) -> None:
    with suppress(FedBMError):
        assert parse(text, "g", "g").rows


def test_the_page_s_own_grid_is_one() -> None:
    (text,) = blocks_of(DOCS / "reproducing.md", "text")
    found = parse(text, "grid", "grid")
    assert len(trials(found, range(1), {})) == 12
    assert found.search == ("temperature", "lambda_dis")


def test_the_page_counts_right() -> None:
    rows = rows_of(section_of(DOCS / "reproducing.md", "The experiments"))
    assert [row[0].strip("`") for row in rows] == paper_experiments()
    for name, _, runs in rows:
        once = {str((t.config.method, t.config.data, t.config.language, t.config.train)) for t in trials_of(name)}
        assert int(runs) == len(once), name


def trials_of(name: str) -> list[Trial]:
    return trials(find_experiment(name.strip("`")), range(3), {})


@pytest.mark.parametrize("name", paper_experiments())
def test_the_leading_row_is_what_the_paper_proposes(name: str) -> None:
    """Each of its ablations asks what FedBM, or LKCC, as proposed has over a part of it; never the other way round."""
    proposed = {
        "classifier": "Embedding (Distribution)",
        "prompt-share": "LKCC (100%)",
        "lambda-div": "λ_div = 1",
        "lambda-dis": "λ_dis = 0.1",
        "language-models": "BiomedCLIP",
        "precision": "bf16",
    }
    experiment = find_experiment(name)
    rows = list(experiment.rows)
    assert leading_row(rows, CENTRAL, experiment.lead) == proposed.get(name, "FedBM")


def test_an_axis_of_methods_makes_rows() -> None:
    found = parse('[axes]\nmethod = ["fedavg", "fedbm"]\nbeta = [0.1]\n', "g", "g")
    assert list(found.rows) == ["FedAvg", "FedBM"]
    assert list(found.axes) == ["beta"]
    assert list(parse('[all]\nmethod = "scaffold"\n', "g", "g").rows) == ["SCAFFOLD"]
