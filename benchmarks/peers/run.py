"""python benchmarks/peers/run.py: rounds of FedAvg in FedBM, pfl-research and Flower's simulation, in one run.

Each simulator runs in a process of its own, one after the other, on the same partition, clients, model and images.
Prints a Markdown table, and exits with 1 if the simulators did not do the same work.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from work import Counts, Measured, Settings, share_settings, shared_work  # noqa: E402
from workload import write_noise  # noqa: E402

SIMULATORS = {"fedbm": "fedbm_rounds", "pfl": "pfl_rounds", "flower": "flower_rounds"}


def main(arguments: Sequence[str] | None = None) -> int:
    found = parse(arguments)
    if found.one:
        settings = Settings(**json.loads(found.settings))
        measured = importlib.import_module(SIMULATORS[found.one]).measure(settings, found.warm_up)
        found.one_to.write_text(json.dumps(asdict(measured)), encoding="utf-8")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        data = found.data
        if data is None:
            data = Path(folder, "noise.npz")
            write_noise(data, found.images, found.size)
        rows = []
        for simulator in found.only.split(","):
            for precision in found.precision.split(",") if simulator == "fedbm" else ("tf32",):
                settings = Settings(
                    str(data.resolve()), folder, found.device, found.size, found.width, found.rounds + found.warm_up,
                    precision=precision,
                )  # fmt: skip
                rows.append(run_one(simulator, settings, found.warm_up, Path(folder, "measured.json")))
                print("\n" + row_of(rows[-1]), flush=True)
        share_settings(settings)
        print(f"\n{describe(rows, shared_work().device)}")
    same = all(row.counts == rows[0].counts for row in rows)
    if len(rows) == 1:
        return 0
    print("All did the same work." if same else "They did not do the same work: the rows cannot be compared.")
    return not same


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, help="packed JPEGs (.npz); without it, noise with the classes and split of HAM10000")
    add("--only", default=",".join(SIMULATORS), help="which simulators, with commas (default all)")
    add("--precision", default="tf32", help="FedBM's precisions with commas; the others use PyTorch's default (tf32)")
    add("--device", default="auto", help="cpu, cuda or auto (default)")
    add("--size", type=int, default=128, help="side of the images (128)")
    add("--width", type=int, default=64, help="channels of ResNet-18's first block (64)")
    add("--images", type=int, default=10_015, help="how many images of noise (10,015)")
    add("--rounds", type=int, default=4, help="rounds that are measured (4)")
    add("--warm-up", type=int, default=2, help="rounds before them (2)")
    for flag, kind in (("--one", str), ("--one-to", Path), ("--settings", str)):  # of this command's own processes
        add(flag, type=kind, help=argparse.SUPPRESS)
    found = parser.parse_args(arguments)
    if unknown := set(found.only.split(",")) - set(SIMULATORS):
        parser.error(f"there is no simulator {min(unknown)}: choose from {', '.join(SIMULATORS)}")
    return found


def run_one(simulator: str, settings: Settings, warm_up: int, to: Path) -> Measured:
    words = [sys.executable, __file__, "--one", simulator, "--one-to", str(to), "--warm-up", str(warm_up)]
    subprocess.run([*words, "--settings", json.dumps(asdict(settings))], check=True)
    values = json.loads(to.read_text(encoding="utf-8"))
    return Measured(**{**values, "counts": [Counts(**one) for one in values["counts"]]})


def describe(rows: Sequence[Measured], device: object) -> str:
    head = [
        "simulator",
        "s a round",
        "images/s, whole round",
        "images/s, training",
        "clients",
        "steps",
        "trained",
        "scored",
    ]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join([f"Device: {device}. Means over {len(rows[0].seconds)} rounds.", "", *lines, *map(row_of, rows)])


def row_of(row: Measured) -> str:
    trained = sum(one.trained for one in row.counts)
    whole = [f"{mean(row.seconds):.2f}", f"{trained / sum(row.seconds):,.0f}"]
    training = f"{trained / sum(row.training):,.0f}" if row.training else "–"
    work = [
        f"{mean(getattr(one, key) for one in row.counts):,.0f}" for key in ("clients", "steps", "trained", "evaluated")
    ]
    return f"| {' | '.join([row.name, *whole, training, *work])} |"


if __name__ == "__main__":
    sys.exit(main())
