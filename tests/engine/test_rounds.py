"""The round loop: selection, identities between methods, refused updates, bytes, scores, bounded memory."""

import dataclasses
import gc
import math
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small import TinyBody

import fedbm
from fedbm.engine import round_loop as rounds
from fedbm.engine.evaluate import personal_score
from fedbm.engine.local_training import Samples
from fedbm.engine.round_loop import draw_lost, mean_losses, select_clients
from fedbm.engine.round_record import ClientRound, Dropped
from fedbm.errors import DivergenceError
from fedbm.methods import METHODS, FedAvg, FedBM, FedProto, FedRep
from fedbm.methods.base import Facts, copy_state, size_of
from fedbm.runs import runner as simulation
from fedbm.runs.plan import make_plan

TINY = {"size": 16, "batch": 128, "clients": 4, "beta": 0.5, "rounds": 3}
GENERATOR = {"generator_width": 8, "generator_steps": 4, "generator_every": 1, "generator_batch": 16}


def simulate(out, method="fedavg", **more):
    return fedbm.simulate("digits", method=method, **{"body": TinyBody, "out": str(out), **TINY, **more})


def weights(run):
    return load_file(run.path / "model.safetensors")


def saved_tensors(run):
    """All tensors on disk: the model, the checkpoint, and the states of the clients."""
    return {str(path.relative_to(run.path)): load_file(path) for path in run.path.rglob("*.safetensors")}


def equal(one, two):
    assert one.keys() == two.keys()
    return all(torch.equal(one[name], two[name]) for name in one)


def test_selection():
    assert select_clients(10, 0.5, seed=0, round_=1) == select_clients(10, 0.5, seed=0, round_=1)
    assert len(select_clients(100, 0.29, 0, 1)) == 29, "0.29 · 100 is 28.999… in floating point"
    assert len(select_clients(3, 0.1, 0, 1)) == 1
    assert select_clients(5, 1.0, 0, 7) == [0, 1, 2, 3, 4]
    rounds = [tuple(select_clients(10, 0.3, 0, r)) for r in range(1, 200)]
    assert rounds[0] == tuple(sorted(rounds[0]))
    assert 40 < sum(3 in chosen for chosen in rounds) < 80, "each client about three rounds in ten"


def test_same_configuration_same_result_to_the_last_bit(tmp_path):
    one, two = simulate(tmp_path / "a", "fedbm", **GENERATOR), simulate(tmp_path / "b", "fedbm", **GENERATOR)
    assert one.id == two.id
    assert equal(weights(one), weights(two))
    strip = [
        [{k: v for k, v in r.items() if k not in ("seconds", "clients")} for r in run.rounds] for run in (one, two)
    ]
    assert strip[0] == strip[1]
    assert not equal(weights(one), weights(simulate(tmp_path / "a", "fedbm", seed=1, **GENERATOR)))


def test_stripped_fedbm_is_fedavg_through_a_whole_run(tmp_path):
    plain = simulate(tmp_path)
    stripped = simulate(tmp_path, "fedbm", classifier="trained", generator=False)
    assert plain.id != stripped.id
    assert equal(weights(plain), weights(stripped))
    assert plain.summary["best"] == stripped.summary["best"]


FEDERATED = [name for name in METHODS if name != "central"]
EVERY_METHOD = [(name, GENERATOR if name == "fedbm" else {}) for name in FEDERATED]
SERVER_STEPS = [
    ("fedavg", {"server_optimizer": kind, "server_lr": 0.01 if kind != "momentum" else 1.0})
    for kind in ("momentum", "adam", "yogi")
]
each_method = pytest.mark.parametrize(
    ("name", "more"),
    [pytest.param(n, o, id=o.get("server_optimizer", n)) for n, o in EVERY_METHOD + SERVER_STEPS],
)


def spoilt(name, bad):
    """A method in which the updates of the clients *bad* turn to NaN."""

    class Spoilt(METHODS[name]):
        def finish_client(self, model, data, context, facts):
            upload, own = super().finish_client(model, data, context, facts)
            if facts.client in bad:
                next(value for value in upload.values() if value.is_floating_point())[0] = float("nan")
            return upload, own

    Spoilt.name = "spoilt"
    return Spoilt


def wide_body():
    """FedNH needs as many features as there are classes."""
    return TinyBody(features=12)


def simulate_spoilt(out, name, more, bad, **options):
    """simulate() with a method as *name*, but with the updates of *bad* not finite."""
    own = {key: value for key, value in more.items() if key in GENERATOR}
    rest = {key: value for key, value in more.items() if key not in GENERATOR}
    return simulate(out, spoilt(name, bad)(**own), body=wide_body, **rest, **options)


@each_method
def test_an_update_that_is_not_finite_is_named_and_left_out(tmp_path, name, more):
    run = simulate_spoilt(tmp_path, name, more, (1,), participation=1.0)
    first = {"fedproto": "fedproto.means", "ccvr": "ccvr.trained.body.conv.weight"}.get(name, "body.conv.weight")
    assert [r.dropped for r in run.rounds] == [(Dropped(1, f"{first} is not finite"),)] * 3
    assert all([c["client"] for c in r["clients"]] == [0, 2, 3] for r in run.rounds)
    for tensors in saved_tensors(run).values():
        assert all(bool(value.isfinite().all()) for value in tensors.values())
    assert not list(run.path.glob("clients/1-*.safetensors")), "it continues from its former state"


@each_method
def test_or_stops_by_option(tmp_path, name, more):
    with pytest.raises(DivergenceError, match=r"round 1: the update of client 1 is unusable: \S+ is not finite"):
        simulate_spoilt(tmp_path, name, more, (1,), participation=1.0, on_nonfinite="stop", rounds=1)


@each_method
def test_a_round_without_a_usable_update_changes_nothing_and_the_run_continues(tmp_path, name, more):
    """One client a round, and the first round's alone is sound: rounds that ask another change nothing."""
    chosen = [select_clients(4, 0.25, 0, round_)[0] for round_ in range(1, 7)]
    used = [client == chosen[0] for client in chosen]
    assert len(set(chosen)) > 1
    bad = {0, 1, 2, 3} - {chosen[0]}
    run = simulate_spoilt(tmp_path, name, more, bad, participation=0.25, rounds=6)
    assert [len(r["clients"]) for r in run.rounds] == [int(one) for one in used]
    assert [len(r["dropped"]) for r in run.rounds] == [int(not one) for one in used]
    for before, after, changes in zip(run.rounds, run.rounds[1:], used[1:], strict=False):
        assert (before["val"] == after["val"]) is not changes


def test_lost_clients_are_drawn_one_by_one():
    assert draw_lost(range(10), 0.0, seed=0, round_=1) == set()
    lost = draw_lost(range(10), 0.4, seed=0, round_=1)
    assert draw_lost([3], 0.4, seed=0, round_=1) == lost & {3}, "whether a client fails does not depend on the others"
    count = sum(len(draw_lost(range(10), 0.3, 0, round_)) for round_ in range(200))
    assert 540 < count < 660, "three of ten clients a round"


@each_method
def test_lost_updates_change_nothing_and_are_recorded(tmp_path, name, more):
    """A run in which exactly these clients are not selected computes the same model.

    All clients fail in their first round, and most of them come back; in the third round all fail again.
    """
    options = {**more, "body": wide_body, "participation": 1.0, "rounds": 4, "seed": 47}
    lossy = simulate(tmp_path, name, drop_rate=0.7, **options)
    lost = [draw_lost(range(4), 0.7, 47, round_) for round_ in range(1, 5)]
    assert lost == [{0, 1, 2, 3}, {2}, {0, 1, 2, 3}, {0, 1, 2}]
    for record, missing in zip(lossy.rounds, lost, strict=True):
        assert record.selected == (0, 1, 2, 3)
        assert record.dropped == tuple(Dropped(client, rounds.LOST) for client in sorted(missing))
        assert [one.client for one in record.clients] == sorted({0, 1, 2, 3} - missing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "select_clients", lambda n, p, s, r, _: [c for c in range(4) if c not in lost[r - 1]])
        selected = simulate(tmp_path / "selected", name, **options)
    ours, theirs = saved_tensors(lossy), saved_tensors(selected)
    assert ours.keys() == theirs.keys()
    assert all(equal(ours[file], theirs[file]) for file in ours)
    assert lossy.rounds[2].val == lossy.rounds[1].val
    whole = simulate(tmp_path, name, **options)
    assert lossy.id != whole.id
    assert lossy.rounds[-1].loss != whole.rounds[-1].loss
    sent, received = ([getattr(record.bytes, way) for record in lossy.rounds] for way in ("sent", "received"))
    assert sent[0] == whole.rounds[0].bytes.sent, "the server sends before it knows who fails"
    each = whole.rounds[0].bytes.received // 4
    assert received == [0, 3 * each, 0, each]


def test_central_training_loses_no_round(tmp_path):
    one, two = (simulate(tmp_path, "central", drop_rate=rate) for rate in (0.0, 0.9))
    assert equal(weights(one), weights(two))
    assert not any(record.dropped for record in two.rounds)


def test_a_run_in_which_all_clients_fail_stops(tmp_path):
    """Its clients are lost, so the run has not diverged."""
    with pytest.raises(
        fedbm.FedBMError, match="no client sent a usable update .client .: no answer in time.*lower drop_rate"
    ) as caught:
        simulate(tmp_path, drop_rate=0.999999, rounds=1)
    assert not isinstance(caught.value, DivergenceError)


def test_a_run_in_which_all_updates_are_infinite_stops(tmp_path):
    with pytest.raises(DivergenceError, match="no client sent a usable update.*; a lower drop_rate, lr or server_lr"):
        simulate(tmp_path, lr=1e30, rounds=1)


@pytest.mark.parametrize(("method", "options"), [(FedProto, {}), (FedRep, {}), (FedRep, {"common_head": "vote"})])
def test_while_no_clients_model_is_usable_there_is_nothing_to_score(tmp_path, method, options):
    """Models made of clients' own: rounds before the first usable one have no score, and none of them is the best."""

    class Late(method):
        name = "late"

        def finish_client(self, model, data, context, facts):
            upload, own = super().finish_client(model, data, context, facts)
            if facts.client in (0, 1, 2):
                own = {
                    name: value * float("nan") if value.is_floating_point() else value for name, value in own.items()
                }
            return upload, own

    chosen = [select_clients(4, 0.25, 0, r)[0] for r in range(1, 20)]
    first = (
        chosen.index(3) + 1
    )  # the round in which the fourth client, which alone is sound, is asked for the first time
    assert first > 1
    run = simulate(tmp_path, Late(**options), participation=0.25, rounds=first + 1)
    assert [r["val"] is None for r in run.rounds] == [True] * (first - 1) + [False] * 2
    assert run.summary["best"]["round"] >= first
    with pytest.raises(fedbm.FedBMError, match=f"round {first - 1}, .*no client sent a usable update"):
        simulate(tmp_path, Late(**options), participation=0.25, rounds=first - 1)


def test_ten_such_rounds_running_stop_it_with_a_sentence_that_names_a_client(tmp_path):
    with pytest.raises(fedbm.FedBMError, match="round 10, 10 in a row: no client sent .*client"):
        simulate(tmp_path, spoilt("fedavg", (0, 1, 2, 3))(), rounds=12)
    [folder] = tmp_path.iterdir()
    assert not (folder / "summary.json").exists()
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 9


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_short_run_without_one_usable_update_is_no_result(tmp_path, rounds):
    """Its score would be that of the model as it was made."""
    with pytest.raises(DivergenceError, match=f"round {rounds}, {rounds} in a row: no client sent"):
        simulate(tmp_path, spoilt("fedavg", (0, 1, 2, 3))(), rounds=rounds)
    [folder] = tmp_path.iterdir()
    assert not (folder / "summary.json").exists()


def test_a_generator_that_diverges_stops_the_run(tmp_path):
    with pytest.raises(
        DivergenceError, match="round 1: the server's own training failed, generator.* a lower generator_lr"
    ):
        simulate(tmp_path, "fedbm", generator_lr=1e30, **GENERATOR)


def test_outputs_that_are_not_finite_are_never_a_score(tmp_path):
    with pytest.raises(DivergenceError, match="outputs are not finite|no client sent a usable"):
        simulate(tmp_path, lr=1e30, rounds=12)


def test_one_sample_that_cannot_be_normalised_is_a_sentence(tmp_path):
    with pytest.raises(fedbm.FedBMError, match="BatchNorm cannot normalise one value: use a larger batch"):
        simulate(tmp_path, body=None, width=4, batch=1, rounds=1)


def test_dropout_draws_from_the_clients_stream(tmp_path):
    def body():
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, 8), torch.nn.Dropout(0.5), torch.nn.ReLU())

    runs = [simulate(tmp_path / n, body=body) for n in ("a", "b")]
    assert runs[0].id == runs[1].id
    assert equal(weights(runs[0]), weights(runs[1]))


def test_bytes_are_counted_by_version(tmp_path):
    run = simulate(tmp_path, "fedbm", participation=1.0, rounds=4, **{**GENERATOR, "generator_every": 2})
    method = FedBM(**GENERATOR)
    plan = make_plan(
        fedbm.runs.run_config.make_config(
            fedbm.runs.run_config.to_sections({"data": "digits", "method": "fedbm", **TINY, **GENERATOR})
        ),
        make_body=TinyBody,
    )
    server = method.server_init(method.model(plan.task))
    sizes = {
        name: size_of({k: v for k, v in server.items() if k.partition(".")[0] in parts})
        for name, parts in {
            "model": ("body", "project"),
            "concepts": ("head", "concepts"),
            "generator": ("generator", "generator_round"),
        }.items()
    }
    model, concepts, generator = sizes["model"], sizes["concepts"], sizes["generator"]
    assert [r["bytes"]["sent"] for r in run.rounds] == [
        4 * (model + concepts),
        4 * model,
        4 * (model + generator),
        4 * model,
    ], "concepts once, the generator in the round after it was trained"
    assert [r["bytes"]["received"] for r in run.rounds] == [4 * model] * 4
    assert run.summary["bytes"]["sent"] == sum(r["bytes"]["sent"] for r in run.rounds)


def test_evaluation_every_n_rounds_and_always_the_last(tmp_path):
    run = simulate(tmp_path, rounds=5, evaluate_every=2)
    assert [r["round"] for r in run.rounds if r["test"]] == [2, 4, 5]
    assert run.summary["last"]["round"] == 5
    best = max((r for r in run.rounds if r["val"]), key=lambda r: r["val"]["accuracy"] + r["val"]["f1"])
    assert run.summary["best"] == {"round": best["round"], **best["test"]}


def test_clients_of_one_sample_and_of_one_class(tmp_path):
    run = simulate(tmp_path, clients=20, beta=0.001, min_samples=1, participation=1.0, rounds=1)
    sizes = [c["n"] for c in run.rounds[0]["clients"]]
    assert min(sizes) == 1
    assert sum(sizes) == sum(map(sum, run.client_partition["counts"]))
    assert sum(np.count_nonzero(row) == 1 for row in run.client_partition["counts"]) >= 10


def test_memory_grows_neither_with_rounds_nor_with_clients(tmp_path):
    """The number of tensors alive after a round is the same at round 2 and at round 4, with 3 clients or 30."""

    def alive(clients):
        counts = []

        def look(event):
            if event.record is not None:
                gc.collect()
                counts.append(sum(1 for o in gc.get_objects() if type(o) in (torch.Tensor, torch.nn.Parameter)))

        # a checkpoint a round: between two of them the best model so far is held, once
        options = {"rounds": 4, "clients": clients, "min_samples": 1, "checkpoint_every": 1}
        simulate(tmp_path, FedBNLike(), on_event=look, **options)
        return counts

    few, many = alive(3), alive(30)
    assert few[1] == few[3]
    assert many[1] == many[3]
    # a client's share of the data is one index tensor; its state is on disk
    assert many[3] - few[3] <= 2 * 27


@dataclasses.dataclass(frozen=True)
class FedBNLike(FedAvg):
    """Keeps BatchNorm with the client."""

    name: ClassVar[str] = "fedbnlike"
    personalises: ClassVar[bool] = True

    def client_init(self, task, facts):
        return {name: value for name, value in copy_state(self.model(task)).items() if "bn" in name}

    def start_client(self, model, received, client, facts):
        return super().start_client(model, {**received, **client}, {}, facts)

    def finish_client(self, model, data, context, facts):
        upload, _ = super().finish_client(model, data, context, facts)
        own = {name: upload.pop(name) for name in list(upload) if "bn" in name}
        return upload, own

    def global_states(self, server, clients):
        for client in clients:
            yield {**server, **clients[client]}


def test_personal_and_global_scores_are_kept_apart(tmp_path):
    run = simulate(tmp_path, FedBNLike(), participation=1.0, rounds=2)
    personal = run.rounds[-1]["personal"]
    assert set(personal["clients"]) == {"0", "1", "2", "3"}
    assert personal["accuracy"] == pytest.approx(np.mean(list(personal["clients"].values())))
    assert run.summary["personal"]["last"] == personal["accuracy"]
    assert personal["accuracy"] != run.rounds[-1]["test"]["accuracy"]
    assert simulate(tmp_path).rounds[-1]["personal"] is None


def test_personal_scores_are_of_rounds_that_may_be_reported(tmp_path):
    run = simulate(tmp_path, FedBNLike(), participation=1.0, rounds=16, lr=0.3)
    reached, expected = -1.0, []
    for record in run.rounds:
        found = record["val"]["accuracy"] + record["val"]["f1"]
        expected.append(found > reached or record["round"] == 16)
        reached = max(reached, found)
    assert [record["personal"] is not None for record in run.rounds] == expected
    assert not all(expected)
    assert run.summary["personal"]["best"] == run.rounds[run.summary["best"]["round"] - 1]["personal"]["accuracy"]


def test_personal_score_by_hand():
    """Recall of class 0 is 1, of class 1 one half; a client with labels 3 : 1 scores ¾·1 + ¼·½."""

    class Fixed(FedAvg):
        personalises = True

        def personal_state(self, server, client):
            return server

    class Scripted(torch.nn.Linear):
        def forward(self, images):
            return torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])

    model = Scripted(1, 1)
    images = torch.zeros(3, 4, 4, 1, dtype=torch.uint8)
    data = Samples(images, torch.tensor([0, 1, 1]), torch.arange(3), fedbm.models.normalize.Normalise((0.0,), (1.0,)))
    found = personal_score(Fixed(), model, copy_state(model), {7: {}}, {7: Facts(7, 4, (3, 1))}, data)
    assert found == {"accuracy": 0.875, "clients": {"7": 0.875}}


def test_mean_losses_are_weighted_by_samples():
    clients = [ClientRound(0, 1, {"a": 4.0}, 1.0), ClientRound(1, 3, {"a": 8.0, "b": 4.0}, 1.0)]
    assert mean_losses(clients) == {"a": 7.0, "b": 3.0}


@pytest.mark.parametrize(
    ("every", "share", "expected"),
    [(0, math.inf, [1, 2, 3, 4, 5]), (0, 1e-9, [1, 5]), (2, math.inf, [2, 4, 5])],
    ids=["by time, cheap", "by time, dear", "by rounds"],
)
def test_when_checkpoints_are_written(every, share, expected, tmp_path, monkeypatch):
    """The first tells what one costs; the last round's is always written."""
    written, save = [], rounds.save_checkpoint
    monkeypatch.setattr(rounds, "MAX_CHECKPOINT_SHARE", share)
    monkeypatch.setattr(rounds, "save_checkpoint", lambda *given: (written.append(given[-1].round), save(*given)))
    simulate(tmp_path, rounds=5, checkpoint_every=every)
    assert written == expected


@pytest.mark.parametrize("slow", ["whoever is told a note", "the disk"])
def test_checkpoints_go_on_where_something_is_slow(slow, tmp_path, monkeypatch):
    """By a clock that counts looks at it: what a run waits for is not its checkpoint's, and a slow disk has a bound."""
    now, written, save = [0.0], [], rounds.save_checkpoint
    prepare_round_loop = simulation.prepare_round_loop

    def look():
        now[0] += 1
        return now[0]

    def saved(*given):
        now[0] += 1000 if slow == "the disk" else 0
        written.append(given[-1].round)
        save(*given)

    def told(event):
        now[0] += 1000 if event.note and slow != "the disk" else 0

    def with_a_note(*given):
        federation = prepare_round_loop(*given)
        federation.notes.append("captured in 3 s")
        return federation

    monkeypatch.setattr(rounds, "time", SimpleNamespace(perf_counter=look))
    monkeypatch.setattr(rounds, "save_checkpoint", saved)
    monkeypatch.setattr(simulation, "prepare_round_loop", with_a_note)
    run = simulate(tmp_path, rounds=30, checkpoint_every=0, on_event=told)
    assert len(written) >= 4
    assert run.rounds[1]["seconds"]["checkpoint"] == (1001 if slow == "the disk" else 1)
