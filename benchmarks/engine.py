"""python benchmarks/engine.py: what a client step and a round cost in each engine, as Markdown tables and JSON.

FedAvg and FedBM; time, images/s, TFLOP/s, share of the bound measured in the same run, peak memory, and how the cost
grows with clients, image size and generated images. Every section is printed, and the JSON rewritten, when it is done.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import workload
from measure import Bench, Engine, bound_of_step, engines_of, flops_of_step, has_compile, play_rounds, time_steps

import fedbm
from fedbm.engine.device import find_device
from fedbm.engine.environment import environment
from fedbm.files import write_json

FORMAT = 1
METHODS = ("fedavg", "fedbm")
SIDE_BY_SIDE = (6, 12)  # clients in slots, beside one alone
GENERATOR_EVERY = 5  # FedBM's own: a round's share of a generator training is a fifth
WARM_UP = 2  # rounds: the first is without generated images, the second captures the step with them


def main(arguments: Sequence[str] | None = None) -> int:
    found = parse(arguments)
    try:
        device = find_device(found.device)
        if found.compile and not (has_compile() and device.type == "cuda"):
            raise fedbm.FedBMError("--compile needs a CUDA device and an engine that has the option compile")
        with tempfile.TemporaryDirectory() as folder:
            measure(found, device, Path(folder))
    except fedbm.FedBMError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, help="packed JPEGs (.npz) to measure on; without it smooth noise shaped like HAM10000")
    add("--quick", action="store_true", help="small images and models: to see that all works, or on a CPU")
    add("--device", default="auto", help="cpu, cuda, cuda:N or auto (default)")
    add("--methods", type=words, default=METHODS, help="which of fedavg,fedbm")
    add("--sections", type=words, default=tuple(SECTIONS), help=f"which of {','.join(SECTIONS)}")
    add("--compile", action="store_true", help="also the captured engine with torch.compile, which takes a while")
    add("--size", type=int, help="side of the images (128; quick: 32)")
    add("--images", type=int, help="how many images of noise (10,015; quick: 400)")
    add("--steps", type=int, help="steps of a client in one measurement (64; quick: 4)")
    add("--rounds", type=int, help=f"rounds measured, after {WARM_UP} to warm up (2; quick: 1)")
    add("--json", type=Path, default=Path("benchmark.json"), help="where the numbers go (benchmark.json)")
    found = parser.parse_args(arguments)
    for name, (whole, quick) in {
        "size": (128, 32),
        "images": (10_015, 400),
        "steps": (64, 4),
        "rounds": (2, 1),
    }.items():
        if getattr(found, name) is None:
            setattr(found, name, quick if found.quick else whole)
    for given, known in ((found.methods, METHODS), (found.sections, SECTIONS)):
        if strange := [word for word in given if word not in known]:
            parser.error(f"there is no {strange[0]}: choose from {', '.join(known)}")
    found.command = shlex.join(["python", "benchmarks/engine.py", *(sys.argv[1:] if arguments is None else arguments)])
    return found


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def measure(found: argparse.Namespace, device: torch.device, folder: Path) -> None:
    started = time.perf_counter()
    work = workload.load(found.data, found.size, found.images, folder, device)
    options = {"batch": 8, "lr": 0.001, "seed": 0}
    generator: dict[str, Any] = {"pseudo_batch": 16}
    if found.quick:
        options |= {"width": 8}
        generator |= {"pseudo_batch": 4, "generator_width": 8, "generator_steps": 2, "generator_batch": 8}
    bench = Bench(work, device, options, generator, found.steps, repeats=1 if found.quick else 3)
    engines = engines_of(device, found.compile)
    result: dict[str, Any] = {
        "format": FORMAT,
        "environment": {**environment(device), "command": found.command},
        "data": work.words(),
        "options": options,
        "fedbm": generator,
        "sections": {},
    }
    about = result["environment"]
    print(
        f"`{found.command}`\n\nfedbm {about['fedbm']}, torch {about['torch']}, {about['device']}, {about['processor']}"
    )
    print(f"\nData: {work.words()}; batch {bench.batch}, {generator['pseudo_batch']} generated images in FedBM.\n")
    for name in found.sections:
        title, section = SECTIONS[name]
        print(f"## {title}\n")
        result["sections"][name] = section(bench, engines, found)
        result["seconds"] = time.perf_counter() - started
        write_json(found.json, result)
    print(f"{result['seconds']:.0f} s in all; the numbers are in {found.json}")


# --- sections --------------------------------------------------------------------------------------------------------


def steps(bench: Bench, engines: Sequence[Engine], found: argparse.Namespace) -> list[dict[str, Any]]:
    """Each engine's client step, one client alone and several side by side, against the bound at its precision."""
    rows: list[dict[str, Any]] = []
    for method in found.methods:
        flops = flops_of_step(bench, method)
        bounds: dict[str, float] = {}
        for engine in engines:
            if engine.precision not in bounds:
                bounds[engine.precision] = bound_of_step(bench, method, engine)
            for clients in clients_of(engine):
                row = {"method": method, "engine": engine.name, **time_steps(bench, method, engine, clients)}
                row["tflops"] = flops / row["seconds"] / 1e12
                row["bound_seconds"] = bounds[engine.precision]
                row["share_of_bound"] = row["bound_seconds"] / row["seconds"]
                row["speed_up"] = first_of(rows, method, row)["seconds"] / row["seconds"]
                rows.append(row)
    columns: dict[str, Column] = {
        "method": lambda row: row["method"],
        "engine": lambda row: row["engine"],
        "clients at once": lambda row: row["clients"],
        "ms a step": lambda row: f"{1000 * row['seconds']:.2f}",
        "images/s": lambda row: f"{row['images_per_second']:,.0f}",
        "TFLOP/s": lambda row: f"{row['tflops']:.3g}",
        "bound, ms": lambda row: f"{1000 * row['bound_seconds']:.2f}",
        "share of the bound": lambda row: f"{100 * row['share_of_bound']:.0f} %",
        "× baseline": lambda row: f"{row['speed_up']:.1f}",
        "peak": peak_words,
        "warm-up, s": lambda row: f"{row['warm_up_seconds']:.1f}",
    }
    print_table(columns, rows)
    return rows


def clients_of(engine: Engine) -> tuple[int, ...]:
    """How many clients are measured at once: one alone where they take turns anyway."""
    if engine.options["engine"] == "captured":
        return 1, *SIDE_BY_SIDE
    return (max(1, int(engine.options["workers"])),)


def rounds(bench: Bench, engines: Sequence[Engine], found: argparse.Namespace) -> list[dict[str, Any]]:
    """Whole rounds of a run with 10 clients, β = 0.1, half of them a round: the mean over the same rounds for all."""
    rows: list[dict[str, Any]] = []
    for method in found.methods:
        every = {"generator_every": 1} if method == "fedbm" else {}
        for engine in engines:
            records, held = play_rounds(bench, method, engine, WARM_UP + found.rounds, clients=10, beta=0.1, **every)
            seconds = {key: [record["seconds"][key] for record in records] for key in records[0]["seconds"]}
            row: dict[str, Any] = {"method": method, "engine": engine.name, "peak_bytes": held}
            for phase in ("train", "aggregate", "generator", "evaluate"):
                row[phase] = statistics.mean(seconds[phase][WARM_UP:])
            row["seconds"] = row["train"] + row["aggregate"] + row["evaluate"] + row["generator"] / GENERATOR_EVERY
            taken = [
                sum(-(-client["n"] // bench.batch) for client in record["clients"]) for record in records[WARM_UP:]
            ]
            row["steps"] = statistics.mean(taken)
            row["images_per_second"] = row["steps"] * (bench.batch + bench.generated(method, {})) / row["train"]
            row["warm_up_seconds"] = sum(seconds["total"][:WARM_UP])
            row["speed_up"] = first_of(rows, method, row)["seconds"] / row["seconds"]
            rows.append(row)
    columns: dict[str, Column] = {
        "method": lambda row: row["method"],
        "engine": lambda row: row["engine"],
        "s a round": lambda row: f"{row['seconds']:.2f}",
        "× baseline": lambda row: f"{row['speed_up']:.1f}",
        "training": lambda row: f"{row['train']:.2f}",
        "averaging": lambda row: f"{row['aggregate']:.3f}",
        "generator, once": lambda row: f"{row['generator']:.2f}",
        "evaluation": lambda row: f"{row['evaluate']:.2f}",
        "steps": lambda row: f"{row['steps']:.0f}",
        "images/s": lambda row: f"{row['images_per_second']:,.0f}",
        "peak": peak_words,
        f"first {WARM_UP} rounds, s": lambda row: f"{row['warm_up_seconds']:.1f}",
    }
    print_table(columns, rows)
    print(
        f"A round counts 1/{GENERATOR_EVERY} of a generator training: FedBM has one every {GENERATOR_EVERY} rounds.\n"
    )
    return rows


def fastest(engines: Sequence[Engine]) -> Engine:
    """What the costs of growing are measured in; not compiled, for every shape would be compiled anew."""
    return [engine for engine in engines if not engine.options.get("compile")][-1]


def clients(bench: Bench, engines: Sequence[Engine], found: argparse.Namespace) -> list[dict[str, Any]]:
    """FedAvg with the same images dealt to more and more clients, half of them a round, in the fastest engine."""
    rows = []
    train = bench.workload.dataset.indices("train")
    engine = fastest(engines)
    for number in (10, 40) if found.quick else (10, 100, 1000):
        dealt = fedbm.iid(train, number, seed=0)
        records, held = play_rounds(bench, "fedavg", engine, 3, dealt, evaluate_every=3)
        rows.append({"clients": number, "seconds": records[1]["seconds"]["train"], "peak_bytes": held})
    columns: dict[str, Column] = {
        "clients": lambda row: f"{row['clients']:,}",
        "training, s a round": lambda row: f"{row['seconds']:.2f}",
        "peak": peak_words,
    }
    print(f"FedAvg, {engine.name}, half of the clients a round, the second round.\n")
    print_table(columns, rows)
    return rows


def sizes(bench: Bench, engines: Sequence[Engine], found: argparse.Namespace) -> list[dict[str, Any]]:
    """A FedBM step as images grow."""
    several = (16, 32) if found.quick else (32, 64, 128, 224)
    changes = {size: {"dataset": workload.resized(bench.workload.dataset, size)} for size in several}
    return growing(bench, fastest(engines), "image size", changes)


def generated(bench: Bench, engines: Sequence[Engine], found: argparse.Namespace) -> list[dict[str, Any]]:
    """A FedBM step as more generated images join it."""
    several = (2, 8) if found.quick else (8, 16, 32, 64)
    return growing(
        bench, fastest(engines), "generated images", {number: {"pseudo_batch": number} for number in several}
    )


def growing(bench: Bench, engine: Engine, what: str, changes: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    count = clients_of(engine)[-2:][0]
    rows = [{what: value, **time_steps(bench, "fedbm", engine, count, **change)} for value, change in changes.items()]
    columns: dict[str, Column] = {
        what: lambda row: row[what],
        "ms a step": lambda row: f"{1000 * row['seconds']:.2f}",
        "images/s": lambda row: f"{row['images_per_second']:,.0f}",
        "peak": peak_words,
    }
    print(f"FedBM, {engine.name}, {count} {'client' if count == 1 else 'clients'} at once.\n")
    print_table(columns, rows)
    return rows


Section = Callable[[Bench, Sequence[Engine], argparse.Namespace], list[dict[str, Any]]]
SECTIONS: dict[str, tuple[str, Section]] = {
    "step": ("A client step", steps),
    "round": ("A round", rounds),
    "clients": ("More clients", clients),
    "size": ("Larger images", sizes),
    "generated": ("More generated images", generated),
}


# --- tables ----------------------------------------------------------------------------------------------------------

Column = Callable[[dict[str, Any]], Any]


def first_of(rows: Iterable[dict[str, Any]], method: str, otherwise: dict[str, Any]) -> dict[str, Any]:
    """The baseline's row of this method: the first."""
    return next((row for row in rows if row["method"] == method), otherwise)


def peak_words(row: dict[str, Any]) -> str:
    return "–" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.2f} GiB"


def print_table(columns: dict[str, Column], rows: Iterable[dict[str, Any]]) -> None:
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    for row in rows:
        print("| " + " | ".join(str(column(row)) for column in columns.values()) + " |")
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
