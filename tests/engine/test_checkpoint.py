"""A checkpoint names all files of its round. Other files are removed, and damaged files are reported."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbm.engine.checkpoint import (
    ClientStates,
    Progress,
    best_path,
    load_best,
    load_checkpoint,
    load_tensors,
    rounds_behind,
    save_checkpoint,
    save_tensors,
)
from fedbm.engine.round_record import Evaluation
from fedbm.errors import FedBMError
from fedbm.utils.metrics import NAMES


def evaluation(round_: int) -> Evaluation:
    scores = dict.fromkeys(NAMES, 0.5)
    return Evaluation(round=round_, val=scores, test=scores, confusion=((1, 0), (0, 1)))


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.safetensors")}


def state(value: float) -> dict[str, torch.Tensor]:
    return {"body.weight": torch.full((2, 3), value), "body.count": torch.tensor(int(value))}


def test_tensors_and_notes_return_as_they_were(tmp_path: Path) -> None:
    saved = {
        "half": torch.tensor([0.1, -0.0], dtype=torch.float16),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "turned": torch.arange(6.0).view(2, 3).T,  # not contiguous
        "empty": torch.zeros(0, 4),
    }
    save_tensors(tmp_path / "a.safetensors", saved, {"classes": ("zyste", "größe"), "round": 3, "nothing": None})
    found, notes = load_tensors(tmp_path / "a.safetensors")
    assert found.keys() == saved.keys()
    assert all(torch.equal(found[name], saved[name]) and found[name].dtype == saved[name].dtype for name in saved)
    assert notes == {"classes": ["zyste", "größe"], "round": 3, "nothing": None}


@pytest.mark.parametrize("place", [1, 20])  # of the last bytes: a weight, and the integer counter
def test_a_flipped_bit_is_noticed(tmp_path: Path, place: int) -> None:
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(tmp_path, "run", state(1), Progress(round=3))
    written = bytearray(path.read_bytes())
    written[-place] ^= 4
    path.write_bytes(written)
    with pytest.raises(FedBMError, match="checksum does not match"):
        load_checkpoint(tmp_path, "run", "cpu")


def test_the_round_after_which_a_run_resumes(tmp_path: Path) -> None:
    """Of a checkpoint that cannot be read the run complains itself; a plan counts on beginning again."""
    assert rounds_behind(tmp_path) == 0
    save_checkpoint(tmp_path, "run", state(1), Progress(round=3))
    assert rounds_behind(tmp_path) == 3
    for content in (b"", b"no tensors", (tmp_path / "checkpoint.safetensors").read_bytes()[:40]):
        (tmp_path / "checkpoint.safetensors").write_bytes(content)
        assert rounds_behind(tmp_path) == 0
    save_tensors(tmp_path / "checkpoint.safetensors", state(1), {"progress": [3]})
    assert rounds_behind(tmp_path) == 0


def test_another_format_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file(state(1), tmp_path / "a.safetensors")
    with pytest.raises(FedBMError, match="has format unknown; this version of fedbm reads format 1"):
        load_tensors(tmp_path / "a.safetensors")
    save_file(state(1), tmp_path / "a.safetensors", {"format": "2"})
    with pytest.raises(FedBMError, match="has format 2; this version"):
        load_tensors(tmp_path / "a.safetensors")
    save_file(state(1), tmp_path / "a.safetensors", {"format": "1", "round": "{"})
    with pytest.raises(FedBMError, match="cannot read"):
        load_tensors(tmp_path / "a.safetensors")


def test_new_states_are_held_until_saved_or_too_many(tmp_path: Path) -> None:
    room = 2 * sum(value.nbytes for value in state(0).values())
    states = ClientStates(tmp_path, "cpu", {}, room)
    mine = state(1)
    states.put(1, 1, mine)
    mine["body.weight"].zero_()  # the caller's own, not what is held
    states.put(2, 1, state(2))
    assert names(tmp_path) == set()
    assert torch.equal(states[1]["body.weight"], state(1)["body.weight"])
    states.put(3, 1, state(3))
    assert names(tmp_path) == {f"{client}-1.safetensors" for client in (1, 2, 3)}
    states.save()
    states.put(1, 2, state(4))
    assert "1-2.safetensors" in names(tmp_path), "no more states are held"
    again = ClientStates(tmp_path, "cpu", dict.fromkeys((1, 2, 3), 1))  # as the last checkpoint names them
    for client in (1, 2, 3):
        assert torch.equal(again[client]["body.weight"], state(client)["body.weight"])
    assert torch.equal(states[1]["body.weight"], state(4)["body.weight"])


def test_states_are_the_reader_s_own(tmp_path: Path) -> None:
    states = ClientStates(tmp_path, "cpu", {}, cache_bytes=10**6)
    states.put(1, 1, state(1))
    states[1]["body.weight"].zero_()
    assert torch.equal(states[1]["body.weight"], state(1)["body.weight"])


def test_a_replaced_state_goes_unless_a_checkpoint_names_it(tmp_path: Path) -> None:
    states = ClientStates(tmp_path, "cpu", {})
    states.put(1, 1, state(1))
    states.save()
    states.put(1, 2, state(2))
    states.put(1, 3, state(3))
    assert names(tmp_path) == {"1-1.safetensors", "1-3.safetensors"}
    states.save()
    states.put(1, 4, state(4))
    assert names(tmp_path) == {"1-1.safetensors", "1-3.safetensors", "1-4.safetensors"}  # the first: save_checkpoint's


def test_without_memory_for_a_new_state_the_former_is_kept(tmp_path: Path) -> None:
    class Full(torch.Tensor):
        def detach(self) -> torch.Tensor:
            raise torch.OutOfMemoryError

    states = ClientStates(tmp_path, "cpu", {}, cache_bytes=10**6)
    states.put(1, 1, state(1))
    for client in (1, 7):
        with pytest.raises(torch.OutOfMemoryError):
            states.put(client, 2, {"body.weight": torch.zeros(1).as_subclass(Full)})
    assert dict(states.rounds) == {1: 1}
    assert states.drop_from_memory()
    assert not states.drop_from_memory()
    assert names(tmp_path) == {"1-1.safetensors"}
    states.put(1, 2, state(2))
    assert names(tmp_path) == {"1-2.safetensors"}  # no checkpoint had named the first


def test_progress_returns_with_its_numbers_as_keys(tmp_path: Path) -> None:
    progress = Progress(2, evaluation(1), evaluation(2), {3: 1, 10: 2}, {3: {"model": 1}}, 1.5, 100, 50)
    save_checkpoint(tmp_path, "me", state(2), progress)
    found = load_checkpoint(tmp_path, "me", "cpu")
    assert found is not None
    assert found[1] == progress
    assert torch.equal(found[0]["body.weight"], state(2)["body.weight"])


def test_a_missing_checkpoint_is_allowed_but_not_one_of_another_run(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path, "me", "cpu") is None
    save_checkpoint(tmp_path, "other", state(1), Progress(1))
    with pytest.raises(FedBMError, match="it is not the checkpoint of me; put the file back, or remove it"):
        load_checkpoint(tmp_path, "me", "cpu")
    save_tensors(tmp_path / "checkpoint.safetensors", state(1), {"run": "me"})  # a model, put in its place
    with pytest.raises(FedBMError, match="cannot resume from .*progress"):
        load_checkpoint(tmp_path, "me", "cpu")


@pytest.mark.parametrize("key", ["round", "client_rounds", "holds", "best", "empty_rounds"])
def test_damaged_progress_is_refused(tmp_path: Path, key: str) -> None:
    """The checksum is of the tensors only."""
    progress = {**vars(Progress(1)), key + "?": 1}
    del progress[key]
    save_tensors(tmp_path / "checkpoint.safetensors", state(1), {"run": "me", "progress": progress})
    with pytest.raises(FedBMError, match=r"cannot resume from .*; put the file back, or remove it to start this run"):
        load_checkpoint(tmp_path, "me", "cpu")


def test_a_checkpoint_keeps_what_it_names_and_removes_the_rest(tmp_path: Path) -> None:
    progress = Progress(1, best=evaluation(1))
    states = ClientStates(tmp_path / "clients", "cpu", progress.client_rounds)
    states.put(0, 1, state(1))
    states.put(4, 1, state(2))
    states.save()
    save_tensors(best_path(tmp_path, 1), state(1), {})
    save_checkpoint(tmp_path, "me", state(1), progress)
    before = {"checkpoint.safetensors", "best-1.safetensors", "clients/0-1.safetensors", "clients/4-1.safetensors"}
    assert names(tmp_path) == before

    states.put(4, 2, state(3))  # the next round, first without its checkpoint: a kill now loses nothing
    save_tensors(best_path(tmp_path, 2), state(3), {})
    assert names(tmp_path) >= before
    found = load_checkpoint(tmp_path, "me", "cpu")
    assert found is not None
    again = ClientStates(tmp_path / "clients", "cpu", found[1].client_rounds)
    assert torch.equal(again[4]["body.weight"], state(2)["body.weight"])

    progress.round, progress.best = 2, evaluation(2)
    save_checkpoint(tmp_path, "me", state(3), progress)
    assert names(tmp_path) == {
        "checkpoint.safetensors",
        "best-2.safetensors",
        "clients/0-1.safetensors",
        "clients/4-2.safetensors",
    }
    assert torch.equal(states[4]["body.weight"], state(3)["body.weight"])


def test_client_states_are_a_mapping_in_client_order(tmp_path: Path) -> None:
    states = ClientStates(tmp_path, "cpu", {})
    assert len(states) == 0
    for client in (10, 2):
        states.put(client, 1, state(client))
    assert list(states) == [2, 10]
    assert 2 in states
    assert 3 not in states
    assert int(states[10]["body.count"]) == 10
    (tmp_path / "2-1.safetensors").unlink()
    with pytest.raises(FedBMError, match=r"cannot read .*2-1\.safetensors"):
        states[2]


def test_the_best_state_is_found_before_and_after_a_run_is_finished(tmp_path: Path) -> None:
    save_tensors(best_path(tmp_path, 3), state(3), {})
    assert float(load_best(tmp_path, 3)["body.count"]) == 3
    best_path(tmp_path, 3).rename(tmp_path / "model.safetensors")
    assert float(load_best(tmp_path, 3)["body.count"]) == 3
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FedBMError, match=r"cannot read .*best-3\.safetensors"):
        load_best(tmp_path, 3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("whole")
    save_checkpoint(folder, "me", state(1), Progress(1))
    return (folder / "checkpoint.safetensors").read_bytes()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 2000), junk=st.binary(max_size=40))
def test_half_a_checkpoint_or_junk_is_refused(tmp_path: Path, whole: bytes, cut: int, junk: bytes) -> None:
    path = tmp_path / "checkpoint.safetensors"
    for data in (whole[: cut % len(whole)], whole[: cut % len(whole)] + junk, junk):
        if len(data) == len(whole):  # tensors of the right size but other values are not told from true ones
            continue
        path.write_bytes(data)
        with pytest.raises(FedBMError, match=r"checkpoint\.safetensors.*remove it to start this run over"):
            load_checkpoint(tmp_path, "me", "cpu")
