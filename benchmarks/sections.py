"""The sections of the benchmark: what is measured, row by row, and the columns it is shown in."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import workload
from measure import Bench, Engine, bound_of_step, flops_of_step, play_rounds, time_steps

import fedbm

PARALLEL = (6, 12)  # clients in slots, next to one alone
GENERATOR_EVERY = 5  # FedBM's own: a round's share of a generator training is a fifth
WARM_UP = 2  # rounds: the first is without generated images, the second captures the step with them

Row = dict[str, Any]
Column = Callable[[Row], Any]


@dataclass(frozen=True)
class Section:
    title: str
    rows: Callable[[Bench, Sequence[Engine], argparse.Namespace], Iterator[Row]]
    columns: dict[str, Column]


def steps(bench: Bench, engines: Sequence[Engine], found: argparse.Namespace) -> Iterator[Row]:
    """Each engine's client step, one client alone and several in parallel, against the bound at its precision."""
    for method in found.methods:
        flops = flops_of_step(bench, method)
        bounds: dict[str, float] = {}
        baseline = 0.0
        for engine in engines:
            if engine.precision not in bounds:
                bounds[engine.precision] = bound_of_step(bench, method, engine)
            for number in clients_of(engine):
                row = {"method": method, "engine": engine.name, **time_steps(bench, method, engine, number)}
                baseline = baseline or row["seconds"]  # the first engine is the baseline
                row["tflops"] = flops / row["seconds"] / 1e12
                row["bound_seconds"] = bounds[engine.precision]
                row["share_of_bound"] = row["bound_seconds"] / row["seconds"]
                row["speed_up"] = baseline / row["seconds"]
                yield row


def clients_of(engine: Engine) -> tuple[int, ...]:
    """How many clients are measured at once: one alone where they take turns anyway."""
    if engine.options["engine"] == "captured":
        return 1, *PARALLEL
    return (max(1, int(engine.options["workers"])),)


def rounds(bench: Bench, engines: Sequence[Engine], found: argparse.Namespace) -> Iterator[Row]:
    """Whole rounds of a run with 10 clients, β = 0.1, half of them a round: the mean over the same rounds for all."""
    for method in found.methods:
        every = {"generator_every": 1} if method == "fedbm" else {}
        baseline = 0.0
        for engine in engines:
            records, held = play_rounds(bench, method, engine, WARM_UP + found.rounds, clients=10, beta=0.1, **every)
            measured = records[WARM_UP:]
            row: Row = {"method": method, "engine": engine.name, "peak_bytes": held}
            for phase in ("train", "aggregate", "generator", "evaluate"):
                row[phase] = statistics.mean(record["seconds"][phase] for record in measured)
            row["seconds"] = row["train"] + row["aggregate"] + row["evaluate"] + row["generator"] / GENERATOR_EVERY
            row["steps"] = statistics.mean(
                sum(-(-client["n"] // bench.batch) for client in record["clients"]) for record in measured
            )
            row["images_per_second"] = row["steps"] * (bench.batch + bench.generated(method, {})) / row["train"]
            row["warm_up_seconds"] = sum(record["seconds"]["total"] for record in records[:WARM_UP])
            baseline = baseline or row["seconds"]
            row["speed_up"] = baseline / row["seconds"]
            yield row


def clients(bench: Bench, engines: Sequence[Engine], found: argparse.Namespace) -> Iterator[Row]:
    """The same images partitioned among more and more clients, half of them a round: the second round of FedAvg."""
    engine, train = fastest(engines), bench.workload.dataset.indices("train")
    for number in (10, 40) if found.quick else (10, 100, 1000):
        parts = fedbm.iid(train, number, seed=0)
        records, held = play_rounds(bench, "fedavg", engine, 2, parts, evaluate_every=2)
        seconds = records[1]["seconds"]["train"]
        yield {"method": "fedavg", "engine": engine.name, "clients": number, "seconds": seconds, "peak_bytes": held}


def sizes(bench: Bench, engines: Sequence[Engine], found: argparse.Namespace) -> Iterator[Row]:
    """A FedBM step as images grow."""
    for size in (16, 32) if found.quick else (32, 64, 128, 224):
        dataset = workload.resized(bench.workload.dataset, size)
        yield {"size": size, **growing(bench, fastest(engines), dataset=dataset)}


def generated(bench: Bench, engines: Sequence[Engine], found: argparse.Namespace) -> Iterator[Row]:
    """A FedBM step as more generated images join it."""
    for number in (2, 8) if found.quick else (8, 16, 32, 64):
        yield {"generated": number, **growing(bench, fastest(engines), pseudo_batch=number)}


def growing(bench: Bench, engine: Engine, **change: Any) -> Row:
    several = clients_of(engine)[:2][-1]
    return {"method": "fedbm", "engine": engine.name, **time_steps(bench, "fedbm", engine, several, **change)}


def fastest(engines: Sequence[Engine]) -> Engine:
    """What the costs of growing are measured in; not compiled, for every shape would be compiled again."""
    return [engine for engine in engines if not engine.options.get("compile")][-1]


def peak_words(row: Row) -> str:
    return "–" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.2f} GiB"


WHAT: dict[str, Column] = {"method": lambda row: row["method"], "engine": lambda row: row["engine"]}
STEP: dict[str, Column] = {
    "clients at once": lambda row: row["clients"],
    "ms a step": lambda row: f"{1000 * row['seconds']:.2f}",
    "images/s": lambda row: f"{row['images_per_second']:,.0f}",
    "peak": peak_words,
}

SECTIONS = {
    "step": Section(
        "A client step",
        steps,
        WHAT
        | STEP
        | {
            "TFLOP/s": lambda row: f"{row['tflops']:.3g}",
            "bound, ms": lambda row: f"{1000 * row['bound_seconds']:.2f}",
            "share of the bound": lambda row: f"{100 * row['share_of_bound']:.0f} %",
            "× baseline": lambda row: f"{row['speed_up']:.1f}",
            "warm-up, s": lambda row: f"{row['warm_up_seconds']:.1f}",
        },
    ),
    "round": Section(
        f"A round, with 1/{GENERATOR_EVERY} of a generator training",
        rounds,
        WHAT
        | {
            "s a round": lambda row: f"{row['seconds']:.2f}",
            "× baseline": lambda row: f"{row['speed_up']:.1f}",
            "training": lambda row: f"{row['train']:.2f}",
            "averaging": lambda row: f"{row['aggregate']:.3f}",
            "generator training": lambda row: f"{row['generator']:.2f}",
            "evaluation": lambda row: f"{row['evaluate']:.2f}",
            "steps": lambda row: f"{row['steps']:.0f}",
            "images/s": lambda row: f"{row['images_per_second']:,.0f}",
            "peak": peak_words,
            f"first {WARM_UP} rounds, s": lambda row: f"{row['warm_up_seconds']:.1f}",
        },
    ),
    "clients": Section(
        "More clients",
        clients,
        WHAT
        | {
            "clients": lambda row: f"{row['clients']:,}",
            "training, s a round": lambda row: f"{row['seconds']:.2f}",
            "peak": peak_words,
        },
    ),
    "size": Section("Larger images", sizes, WHAT | {"image size": lambda row: row["size"]} | STEP),
    "generated": Section(
        "More generated images", generated, WHAT | {"generated images": lambda row: row["generated"]} | STEP
    ),
}
