"""How an engine is measured: through its own cohort for steps, through whole runs for rounds.

A step is what one client does with B real (and P generated) images. Its time is that of a cohort's exchange in which
every client takes the same number of steps, divided by all their steps; the first exchange warms up and is given apart.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode
from workload import Workload

from fedbm.data.dataset import Dataset
from fedbm.data.partition import Partition
from fedbm.engine.clients.cohort import LocalSetup
from fedbm.engine.clients.sequential import LocalCohort
from fedbm.engine.device import explain_memory_errors, numeric_settings
from fedbm.engine.local_training import Samples
from fedbm.engine.round_loop import RoundLoop
from fedbm.engine.run_folder import RunFolder
from fedbm.runs.plan import Plan, make_plan
from fedbm.runs.run_config import make_config, to_sections
from fedbm.runs.runner import prepare_round_loop, run

BOUND_IMAGES = 576  # of the one large batch: 24 times 8 real and 16 generated


@dataclass(frozen=True)
class Engine:
    """One way to run clients: its name in the tables, and the options that choose it."""

    name: str
    options: dict[str, Any]
    decodes: bool = False  # the baseline: images are decoded from JPEG whenever they are used

    @property
    def precision(self) -> str:
        return str(self.options["precision"])


@dataclass(frozen=True)
class Bench:
    """What all measurements share."""

    workload: Workload
    device: torch.device
    options: dict[str, Any]  # flags of every run: batch, width, …
    generator: dict[str, Any] = field(default_factory=dict)  # flags of FedBM alone
    steps: int = 64  # each client takes in one exchange
    repeats: int = 3

    def plan(self, method: str, engine: Engine, partition: Partition | None, out: Path, **more: Any) -> Plan:
        dataset: Dataset = more.pop("dataset", self.workload.dataset)
        own = self.generator if method == "fedbm" else {}
        flags = {"method": method, "device": str(self.device), "out": str(out), "checkpoint_every": 10_000}
        flags |= self.options | own | engine.options | more
        return make_plan(make_config(to_sections(flags)), dataset=dataset, partition=partition)

    @property
    def batch(self) -> int:
        return int(self.options["batch"])

    def generated(self, method: str, more: dict[str, Any]) -> int:
        """Generated images in a step."""
        return int({**self.generator, **more}["pseudo_batch"]) if method == "fedbm" else 0


def engines_of(device: torch.device, compiled: bool) -> list[Engine]:
    """The baseline first, then from slow to fast."""
    found = [Engine("baseline: eager fp32 NCHW, JPEG", plain("fp32"), decodes=True)]
    if device.type == "cpu":
        cores = torch.get_num_threads()
        found.append(Engine("reference fp32", plain("fp32")))
        return [*found, Engine(f"{cores} workers fp32", plain("fp32") | {"workers": cores})] if cores > 1 else found
    found.append(Engine("reference tf32", plain("tf32")))
    found += [Engine(f"captured {p}", {"engine": "captured", "precision": p}) for p in ("tf32", "bf16")]
    if compiled:
        options = {"engine": "captured", "precision": "bf16", "compile": True}
        found.append(Engine("captured and compiled bf16", options))
    return found


def plain(precision: str) -> dict[str, Any]:
    return {"engine": "reference", "precision": precision, "workers": 1}


def bounding(engine: Engine, device: torch.device) -> Engine:
    """What runs the one large batch at the engine's precision: a captured step where there are graphs."""
    captured = {"engine": "captured"} if device.type == "cuda" else {}
    return Engine(f"bound {engine.precision}", plain(engine.precision) | captured)


@contextmanager
def assembled(bench: Bench, plan: Plan, engine: Engine) -> Iterator[RoundLoop]:
    """The run of *plan* in memory, under its numeric settings; it is freed afterwards."""
    folder = RunFolder(Path(plan.config.engine.out) / plan.id)
    with numeric_settings(plan.config.engine, plan.config.train.precision), explain_memory_errors(bench.device):
        federation = prepare_round_loop(plan, folder, bench.device)
        if engine.decodes:
            federation = decoding(bench, plan, federation)
            free(bench.device)  # of the decoded images, which it does not use
        with closing(federation.cohort):
            yield federation
    del federation
    free(bench.device)


def decoding(bench: Bench, plan: Plan, federation: RoundLoop) -> RoundLoop:
    """The same federation on images that are decoded whenever they are used."""
    config, jpegs = plan.config, bench.workload.jpegs
    labels = federation.sets["test"].labels
    own = [torch.from_numpy(indices) for indices in plan.partition.clients]  # on the host, where a loader has them
    cohort = LocalCohort(
        LocalSetup(
            method=config.method,
            task=plan.task,
            train=config.train,
            model=federation.model,
            images=jpegs,  # type: ignore[arg-type]
            labels=labels,
            clients=own,
            states=federation.states,
            progress=federation.progress,
        )
    )
    sets = {
        name: Samples(jpegs, labels, samples.indices.cpu(), samples.normalise)  # type: ignore[arg-type]
        for name, samples in federation.sets.items()
    }
    return dataclasses.replace(federation, cohort=cohort, sets=sets)


def free(device: torch.device) -> None:
    if device.type == "cuda":
        gc.collect()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> int | None:
    """Bytes the process has held on the GPU since free(), graphs' own pools included."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None


def timed(device: torch.device, work: Callable[[], None]) -> float:
    """Seconds that *work* takes, from an idle device to an idle device."""
    if device.type != "cuda":
        started = time.perf_counter()
        work()
        return time.perf_counter() - started
    with torch.cuda.device(device):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        work()
        torch.cuda.synchronize()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000


def exchange(federation: RoundLoop, round_: int) -> None:
    """A round's local training of every client, with generated images where the method has a generator."""
    server = dict(federation.server)
    if "generator_round" in server:
        server["generator_round"] = torch.ones_like(server["generator_round"])
    pieces = federation.method.broadcast(server, round_)
    for _ in federation.cohort.exchange(round_, sorted(federation.cohort.census()), pieces):
        pass


def equal_clients(dataset: Dataset, clients: int, samples: int) -> Partition:
    train = dataset.indices("train")
    return Partition(tuple(np.resize(train, (clients, samples))), "iid")


def time_steps(bench: Bench, method: str, engine: Engine, clients: int = 1, **more: Any) -> dict[str, Any]:
    """Seconds of a client step with *clients* in parallel, and what goes with it."""
    batch = int(more.get("batch", bench.batch))
    steps = int(more.pop("steps", bench.steps))
    partition = equal_clients(more.get("dataset", bench.workload.dataset), clients, steps * batch)
    free(bench.device)
    slots = {"slots": clients} if engine.options.get("engine") == "captured" else {}
    with tempfile.TemporaryDirectory() as out:
        plan = bench.plan(method, engine, partition, Path(out), participation=1.0, epochs=1, **slots, **more)
        with assembled(bench, plan, engine) as federation:
            first = timed(bench.device, lambda: exchange(federation, 1))
            later = [
                timed(bench.device, lambda round_=number: exchange(federation, round_))
                for number in range(2, 2 + bench.repeats)
            ]
            held = peak(bench.device)
    usual = statistics.median(later)
    seconds = usual / (clients * steps)
    images = batch + bench.generated(method, more)
    return {
        "clients": clients,
        "seconds": seconds,
        "images_per_second": images / seconds,
        "warm_up_seconds": max(0.0, first - usual),
        "peak_bytes": held,
    }


def flops_of_step(bench: Bench, method: str) -> int:
    """Floating-point operations of one client step, counted once in the plain loop."""
    engine, partition = Engine("counted", plain("fp32")), equal_clients(bench.workload.dataset, 1, bench.batch)
    with tempfile.TemporaryDirectory() as out:
        plan = bench.plan(method, engine, partition, Path(out), participation=1.0, epochs=1)
        with assembled(bench, plan, engine) as federation, FlopCounterMode(display=False) as counter:
            exchange(federation, 1)
    return int(counter.get_total_flops())


def bound_of_step(bench: Bench, method: str, engine: Engine) -> float:
    """Seconds a step would take if its images were part of one large batch of one model, at the same precision."""
    generated = bench.generated(method, {})
    factor = max(2, BOUND_IMAGES // (bench.batch + generated)) if bench.device.type == "cuda" else 4
    larger = {"batch": factor * bench.batch, **({"pseudo_batch": factor * generated} if generated else {})}
    found = time_steps(bench, method, bounding(engine, bench.device), steps=max(2, bench.steps // 8), **larger)
    return float(found["seconds"]) / factor


def play_rounds(
    bench: Bench, method: str, engine: Engine, rounds: int, partition: Partition | None = None, **more: Any
) -> tuple[list[dict[str, Any]], int | None]:
    """The records of a run of *rounds* rounds, and the most memory it held."""
    free(bench.device)
    with tempfile.TemporaryDirectory() as out:
        plan = bench.plan(method, engine, partition, Path(out), rounds=rounds, **more)
        if engine.decodes:
            with assembled(bench, plan, engine) as federation:
                events = [event for event in federation.rounds() if event is not None]
                held = peak(bench.device)
        else:
            events = list(run(plan))
            held = peak(bench.device)
    free(bench.device)
    return [event.record for event in events if event.record is not None], held
