"""Play runs in the tests' own process, stop them where wanted, and compare what they leave on disk."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from small import TinyBody

from fedbm.engine.checkpoint import load_tensors
from fedbm.engine.round_loop import Event
from fedbm.methods.base import Method
from fedbm.runs import runner as simulation
from fedbm.runs.plan import Plan, make_plan
from fedbm.runs.run_config import make_config, to_sections

# lines of config.toml that change no result
ENGINE = ("out =", "device =", "checkpoint_every =", "workers =", "data_on =", "on =")


def plan_of(
    settings: Mapping[str, Any], out: Path, own: Method | None = None, *, body: Any = None, **more: Any
) -> Plan:
    config = make_config(to_sections({**settings, **more, "out": str(out)}))
    return make_plan(config if own is None else dataclasses.replace(config, method=own), make_body=body)


def small_plan_of(settings: Mapping[str, Any], out: Path, own: Method | None = None, **more: Any) -> Plan:
    """plan_of() with a body of two layers; the command line cannot ask for it."""
    return plan_of(settings, out, own, body=TinyBody, **more)


def folder_of(plan: Plan) -> Path:
    return simulation.run_path(plan)


def play(plan: Plan, until: Callable[[Event], bool] = lambda event: False) -> list[Event]:
    """Run to the end, or stop for good at the first event *until* accepts, as a driver may."""
    seen = []
    rounds = simulation.run(plan)
    for event in rounds:
        seen.append(event)
        if until(event):
            rounds.close()
    return seen


def after_round(number: int) -> Callable[[Event], bool]:
    return lambda event: event.record is not None and event.round == number


def stop_after(number: int, plan: Plan) -> Path:
    play(plan, until=after_round(number))
    return folder_of(plan)


def command(settings: Mapping[str, Any], out: Path) -> list[str]:
    """The words after `fedbm` that ask for this run."""
    words = [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    return ["run", *words, "--keep-optimizer", "--out", str(out)]


def timeless(value: Any) -> Any:
    """*value* without what no two runs share: the seconds it took, and what the engine had to say."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in ("seconds", "notes")}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def contents(folder: Path) -> dict[str, bytes]:
    """Every file's bytes; the lock, always empty, left out."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def assert_same_run(left: Path, right: Path) -> None:
    """Every file of both, tensors bit for bit; but for seconds, the environment and where it was written."""
    assert sorted(contents(left)) == sorted(contents(right))
    for name in contents(left):
        a, b = left / name, right / name
        if name.endswith(".safetensors") and name != "concepts.safetensors":
            assert_same_tensors(a, b)
        elif name.endswith(".jsonl"):
            assert records_of(a) == records_of(b)
        elif name == "config.toml":
            assert without_out(a) == without_out(b)
        elif name == "environment.json":
            continue
        elif name.endswith(".json"):
            assert timeless(json.loads(a.read_text())) == timeless(json.loads(b.read_text())), name
        else:
            assert a.read_bytes() == b.read_bytes(), name


def assert_same_tensors(left: Path, right: Path) -> None:
    (a, notes_a), (b, notes_b) = load_tensors(left), load_tensors(right)
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert value.dtype == b[name].dtype, f"{left.name}: {name}"
        assert torch.equal(value, b[name]), f"{left.name}: {name} differs"
    assert timeless(notes_a) == timeless(notes_b)


def records_of(path: Path) -> list[Any]:
    return [timeless(json.loads(line)) for line in path.read_text().splitlines()]


def without_out(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if not line.startswith(ENGINE)]
