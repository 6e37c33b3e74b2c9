"""Whatever is typed, and however a command ends: one sentence or none, and never a traceback."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calling import Command, flags, one_sentence
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures import small_chars74k

from fedbm.cli.commands import COMMANDS
from fedbm.cli.commands.data import TASKS as DATA_TASKS
from fedbm.config.options import OPTION_NEEDS
from fedbm.errors import FedBMError
from fedbm.experiments import trials
from fedbm.federation.deploy import run_control as play
from fedbm.federation.server import run_setup as agreement
from fedbm.methods import FedBM
from fedbm.runs import batch, feature_map, plan, runner
from fedbm.runs.run_config import keys, make_config, to_sections


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("rnu", 'there is no command "rnu" (did you mean "run"?). See \'fedbm --help\'.'),
        ("--ruonds", "fedbm has no argument --ruonds. See 'fedbm --help'."),
        ("run --ruonds 3", 'run has no argument --ruonds (did you mean "--rounds"?). See '),
        ("data --sze 3 digits", 'data partition has no argument --sze (did you mean "--size"?). See '),
        ("data inspec", '"inspec" is neither a data set nor a task of fedbm data (did you mean "inspect"?)'),
        ("federation upp", 'there is no task "upp" (did you mean "up"?). See \'fedbm federation --help\'.'),
        ("completion fsh", "there is no shell"),
        ("run --ruonds=3", 'run has no argument --ruonds (did you mean "--rounds"?)'),
        ("run --rounds", "argument --rounds: expected one argument. See 'fedbm run --help'."),
        ("run --rounds many", 'rounds must be a whole number, not "many"'),
        ("run --rounds -3", "rounds must be at least 1, not -3"),
        ("run --beta 0", "beta must be above 0, not 0"),
        ("run --optimizer sdg", 'optimizer must be sgd, adam or adamw, not "sdg" (did you mean "sgd"?)'),
        ("run --generator maybe", 'generator must be yes or no for fedbm, not "maybe"'),
        (
            "run --method fednh --weighting size",
            'weighting must be equal for fednh, not "size"',
        ),
        (
            "run --method fedproto --weighting equal",
            'weighting must be size for fedproto, not "equal"',
        ),
        (
            "run --method scaffold --weighting equal",
            'weighting must be size for scaffold, not "equal"',
        ),
        ("run --method feddyn --weighting equal", 'weighting must be size for feddyn, not "equal"'),
        ("run --method ccvr --weighting x", 'weighting must be size or equal for ccvr, not "x"'),
        ("compare --methods fedavg,fednh --weighting size", 'weighting must be equal for fednh, not "size"'),
        ("run --method fedprox --mu -1", "mu must be at least 0 for fedprox, not -1"),
        ("run --method ccvr --mu 1", "mu is an option of fedprox, not of ccvr. Remove it, or use fedprox."),
        ("run --method fedmb", 'there is no method "fedmb" (did you mean "fedbm"?); choose fedavg'),
        ("run --method fedavg --temperature 3", "temperature is an option of fedbm"),
        ("run --data digts", 'no data set is called "digts" (did you mean "digits"?)'),
        ("run --data pbc", "the images of pbc are not here: run 'fedbm data get pbc'"),
        ("run --data ./nowhere", "nowhere does not exist or cannot be accessed"),
        ("run --data bad.toml", "bad.toml has an unknown format, or it is damaged"),
        ("run --device gpu", 'device must be cpu, cuda, cuda:N or auto, not "gpu"'),
        ("run --device cuda:99", "cuda:99"),
        ("run --clients 2000", "1258 training samples are too few for 2000 clients"),
        ("run --partition file", "partition = file needs partition_file"),
        ("run --init-weights nowhere.pth", "init_weights: nowhere.pth does not exist"),
        ("run digits", "there is no configuration file digits. Data sets and methods need a flag: --data,"),
        ("run .", "there is no configuration file .. Data sets and methods need a flag: --data,"),
        ("run bda.toml", 'there is no file bda.toml (did you mean "bad.toml"?)'),
        ("run bad.toml", '[train] in bad.toml has no key "ruonds" (did you mean "rounds"?)'),
        ("run section.toml", 'section.toml has no section "trian" (did you mean "train"?)'),
        ("run broken.toml", "broken.toml is not valid TOML: "),
        ("run bad.toml worse.toml", "run has no argument worse.toml"),
        ("show", "the following arguments are required: run. See 'fedbm show --help'."),
        (["show", ""], "the name of the run is empty"),
        (["predict", "", "x.png"], "the name of the run is empty"),
        (
            "show nothing",
            "there is no run \"nothing\" in runs and no such folder of a run; 'fedbm list runs' lists runs",
        ),
        ("report", "there are no runs in runs to report on"),
        ("report nothing", 'there is no run "nothing" in runs'),
        ("predict nothing x.png", 'there is no run "nothing" in runs'),
        ("concepts --data digits --encoder-dir nowhere", "nowhere"),
        ("concepts --data digts", 'no data set is called "digts" (did you mean "digits"?)'),
        ("data digts", 'no data set is called "digts" (did you mean "digits"?)'),
        ("data digits --partition file", "partition = file needs partition_file"),
        ("data digits --picture a.png", "--picture needs a name that ends in .svg, not a.png"),
        ("data digits --save scans.csv", "--save needs a name that ends in .json, not scans.csv"),
        ("concepts --data digits --save scans.csv", "--save needs a name that ends in .safetensors, not scans.csv"),
        ("data digits --save .", "--save needs a name that ends in .json, not ."),
        ("report --fromat csv", "report has no argument --fromat. See 'fedbm report --help'."),
        ("completion fisch", 'there is no shell "fisch". See'),
        ("sweep empty.toml --plan", "empty.toml describes no grid: it has none of methods, [all], [axes] and [[rows]]"),
        ("config --tmol", 'config has no argument --tmol (did you mean "--toml"?)'),
        ("config --toml --method fedmb", 'there is no method "fedmb" (did you mean "fedbm"?)'),
        ("compare --methods fedavg,fedmb", 'there is no method "fedmb" (did you mean "fedbm"?)'),
        (
            "compare --methods fedavg --temperature 3",
            "temperature is an option of fedbm, and no such method is chosen",
        ),
        ("compare --betas 0.1,x", 'beta must be a number, not "x"'),
        ("compare --beta 0.3 --betas 0.1,0.2", "--beta and --betas are both given. Give every β in --betas."),
        (
            "compare --partition iid --betas 0.1,0.5",
            "beta only applies if partition is dirichlet, balanced or quantity",
        ),
        (
            "compare --partition classes --beta 0.1",
            "beta only applies if partition is dirichlet, balanced or quantity",
        ),
        (
            "run --partition iid --beta 0.3",
            "beta only applies if partition is dirichlet, balanced or quantity",
        ),
        (
            "run --classes-per-client 3",
            "but it is dirichlet. Remove classes_per_client, or set partition to classes.",
        ),
        (
            "run --partition iid --classes-per-client 3",
            "only applies if partition is classes, but it is iid. Remove classes_per_client, or",
        ),
        (
            "run --optimizer adam --momentum 0.5",
            "momentum only applies if optimizer is sgd, but it is adam",
        ),
        (
            "run --classifier trained --temperature 3",
            "temperature only applies if classifier is distribution or mean, but it is trained.",
        ),
        (
            "run --generator no --lambda-dis 1",
            "lambda_dis only applies if generator is yes, but it is no. Remove lambda_dis, or set",
        ),
        (
            "compare --methods fedavg,fedbm --generator no --generator-lr 1",
            "generator_lr only applies if generator is yes",
        ),
        (
            "run --method fedavg --encoder bert",
            "encoder only applies to methods that read concepts. Remove encoder.",
        ),
        ("run --method central --encoder-dir nowhere", "encoder_dir only applies to methods that read concepts"),
        ("run --method fedetf --pooling cls", "pooling only applies to methods that read concepts"),
        ("run --method scaffold --concept-file nowhere", "concept_file only applies to methods that read concepts"),
        (
            "run --classifier random --generator no --prompt-fraction 0.5",
            "prompt_fraction only applies to methods that read concepts.",
        ),
        (
            "run fedavg.toml --prompt-fraction 0.5",
            "prompt_fraction only applies to methods that read concepts.",
        ),
        (
            "compare --methods fedavg,fednh --seeds 2 --encoder bert",
            "encoder only applies to methods that read concepts. Remove encoder.",
        ),
        (
            "compare --methods fedavg,fedbm --classifier trained --generator no --encoder bert",
            "encoder only applies to methods that read concepts.",
        ),
        (
            "data digits --partition iid --beta 0.3",
            "beta only applies if partition is dirichlet, balanced or quantity",
        ),
        ("run --method fedavg --mu 1", "mu is an option of fedprox, not of fedavg"),
        ("run --method fedprox --mu many", 'mu must be a number for fedprox, not "many"'),
        (
            "compare --methods fedavg --mu 1",
            "mu is an option of fedprox, and no such method is chosen. Remove it, or add one.",
        ),
        (
            "compare --seeds 0",
            "--seeds must be a count from 1 to 99, a range such as 3-12 or a list of up to 99 different seeds",
        ),
        ("compare --to page", "the format of page is unknown. Use a file name that ends in"),
        ("compare bad.toml", 'has no key "ruonds" (did you mean "rounds"?)'),
        ("compare absent.toml", "there is no file absent.toml"),
        ("compare digits", "there is no configuration file digits. Data sets and methods need a flag: --data,"),
        (f"run --method fedavg --init-weights {'n' * 300}", "nnn: File name too long"),
        ("demo --seeds two", 'such as 0,1,5, each at most 4294967295, not "two"'),
        ("demo --seeds ²", 'such as 0,1,5, each at most 4294967295, not "²"'),
        ("demo --rounds 0", "rounds must be at least 1, not 0"),
    ],
)
def test_mistakes(
    fedbm: Command, words: str | list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, status 2, and nothing written."""
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text("[train]\nruonds = 3\n")
    Path("empty.toml").write_text("")
    Path("section.toml").write_text("[trian]\nrounds = 3\n")
    Path("broken.toml").write_text("[train\n")
    Path("fedavg.toml").write_text('[method]\nname = "fedavg"\n')
    status, _, err = fedbm(*(words.split() if isinstance(words, str) else words))
    assert sentence in one_sentence(err)
    assert status == 2
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "bad.toml",
        "broken.toml",
        "empty.toml",
        "fedavg.toml",
        "section.toml",
    ]


def test_partition_flags_for_data_with_their_own_partition(
    fedbm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chars74K is partitioned by writer unless another partition is given, so the flags would change nothing."""
    monkeypatch.chdir(tmp_path)
    np.savez("chars74k_hnd_16.npz", **small_chars74k())
    for command, options in (
        ("run --data chars74k --data-dir . --rounds 1", ("--beta 0.3", "--classes-per-client 3")),
        (
            "compare --data chars74k --data-dir . --rounds 1",
            ("--beta 0.3", "--betas 0.3,0.5", "--classes-per-client 3"),
        ),
        ("data chars74k_hnd_16.npz", ("--beta 0.3", "--classes-per-client 3")),
    ):
        for option in options:
            status, _, err = fedbm(*command.split(), *option.split(), "--cache", "cache")
            flag = option.split()[0].removeprefix("--").replace("-", "_").replace("betas", "beta")
            kinds = "classes" if "classes" in flag else "dirichlet, balanced or quantity"
            assert one_sentence(err) == (
                f"{flag} only applies if partition is {kinds}, but it is column. "
                f"Remove {flag}, or set partition to {kinds.partition(',')[0]}."
            )
            assert status == 2, (command, option)
    assert not Path("runs").exists()
    assert fedbm("data", "chars74k_hnd_16.npz", "--partition", "dirichlet", "--beta", "0.3", "--cache", "cache")[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        "run --prompt-fraction 0.5",
        "run --classifier trained --prompt-fraction 0.5",  # its generator reads them
        "run --generator no --classifier mean --prompt-fraction 0.5",
        "run fedavg.toml",  # may stand in a file
        "run fedavg.toml --method fedbm --prompt-fraction 0.25",
        "compare --methods fedavg,fedbm --prompt-fraction 0.5",
        "compare language.toml --methods fedavg,fedprox",
        "concepts fedavg.toml --prompt-fraction 0.25",  # shows them, whatever the method
    ],
)
def test_flags_of_language_where_they_matter(
    fedbm: Command, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> Any:
        raise FedBMError("as far as to the data")

    monkeypatch.chdir(tmp_path)
    for module, name in ((runner, "make_plan"), (batch, "make_plan"), (plan, "concepts_for")):
        monkeypatch.setattr(module, name, stop)
    Path("language.toml").write_text('[language]\nencoder = "bert"\nprompt_fraction = 0.5\n')
    Path("fedavg.toml").write_text('[method]\nname = "fedavg"\n' + Path("language.toml").read_text())
    assert one_sentence(fedbm(*words.split())[2]) == "as far as to the data"


def test_names_that_look_like_markup(fedbm: Command, tiny: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "[/red] :heart: 100 %"
    status, text, err = fedbm("run", *flags({**tiny, "rounds": 1}), "--out", out)
    assert (status, err) == (0, "")
    (folder,) = out.iterdir()
    assert f"run: {folder}" in text.splitlines()
    assert fedbm("show", folder)[0] == 0
    (tmp_path / "[/none]").mkdir()
    assert fedbm("list", "--out", tmp_path / "[/none]") == (
        0,
        f"There are no runs in {tmp_path}/[/none]. 'fedbm run' makes one, and 'fedbm show' shows one.\n",
        "",
    )


def test_interrupted_while_looking(fedbm: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Called from Python the status tells, and Ctrl-C is heard afterwards as before: the process continues."""
    heard = signal.getsignal(signal.SIGINT)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedbm.cli.commands.compare.execute", interrupt)
    status, _, err = fedbm("compare")
    assert status == 130
    assert one_sentence(err) == "interrupted; run the same command again to continue"
    assert signal.getsignal(signal.SIGINT) is heard


def test_a_reader_that_leaves() -> None:
    """fedbm list --help | head: quiet, though so little would only be flushed at the very end."""
    command = [sys.executable, "-m", "fedbm", "list", "--help"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=buffered)
    assert process.stdout is not None
    process.stdout.close()
    assert (process.communicate()[1], process.returncode) == (b"", 0)


def test_a_reader_that_leaves_a_table(fedbm: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert fedbm("config")[0] == 0


def test_a_terminal_that_knows_no_greek(fedbm: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    assert fedbm("config")[0] == 0
    assert b"Dirichlet concentration ?" in shown.getvalue()


COMPUTING = (plan, batch, runner, feature_map, trials, agreement, play)  # what begins to, or names it
words = st.lists(
    st.sampled_from(
        [
            *COMMANDS,
            *DATA_TASKS,
            *(key.switch for key in keys()),
            "--save",
            "--to",
            "--help",
            "--",
            "-x",
            "digits",
        ]
    )
    | st.sampled_from(["digits", "0", "1", "-1", "0.5", "yes", "cpu", "fedavg", "fedbm", "dirichlet", "="])
    | st.text(max_size=6),
    max_size=6,
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=words | st.tuples(st.sampled_from(sorted(COMMANDS)), words).map(lambda pair: [pair[0], *pair[1]]))
def test_any_words(words: list[str], fedbm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is typed: done, or one sentence. What would compute or write is stopped where it would begin."""

    def stop(*_: Any, **__: Any) -> Any:
        raise FedBMError("stopped")

    monkeypatch.chdir(tmp_path)
    for module in COMPUTING:
        for name in {"make_plan", "load_dataset", "concepts_for"} & set(vars(module)):
            monkeypatch.setattr(module, name, stop)
    status, _, err = fedbm(*words)
    others = [sys.modules[name] for name in list(sys.modules) if name.startswith("fedbm.")]
    keeping = [m.__name__ for m in others if m not in COMPUTING and any(value is stop for value in vars(m).values())]
    assert not keeping, "imported first by these words, they would keep stop() for the tests to come"
    assert status in (0, 2)
    if status == 2:
        one_sentence(err)
    else:
        assert err == ""
    assert list(tmp_path.iterdir()) == []


def test_option_needs_name_existing_keys_and_values() -> None:
    """A renamed option must not leave a rule without effect."""
    for flag, (key, values) in (OPTION_NEEDS | FedBM.option_needs).items():
        assert flag in [one.flag for one in keys()]
        for value in values:
            made = make_config(to_sections({"method": "fedbm", key: value}))
            sections = (made.data, made.model, made.train, made.method)
            assert any(value in vars(section).values() for section in sections)
