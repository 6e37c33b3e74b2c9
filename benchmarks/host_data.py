"""python benchmarks/host_data.py: images per second with the data set on the GPU and in host memory.

ResNet-18 at 128 px, batches of 8, bf16, on smooth noise in the shape of HAM10000: local training of FedAvg and FedBM in
the plain loop and with six captured clients in parallel, and one evaluation. Images include FedBM's generated ones. The
last column is the rate relative to the row above.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import workload
from measure import Bench, Engine, plain, play_rounds, time_steps

import fedbm
from fedbm.engine.device import find_device
from fedbm.engine.environment import environment

CLIENTS = 6  # in parallel


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N or auto (default)")
    parser.add_argument("--quick", action="store_true", help="small images and models: to see that all works")
    found = parser.parse_args(arguments)
    try:
        device = find_device(found.device)
        with tempfile.TemporaryDirectory() as folder:
            size, images = (16, 80) if found.quick else (128, workload.IMAGES)
            work = workload.load(None, size, images, Path(folder), device)
            options = {"batch": 8, "lr": 0.001, "seed": 0, "width": 8 if found.quick else 64}
            generator = {"pseudo_batch": 16, "generator_width": 8 if found.quick else 128, "generator_steps": 2}
            bench = Bench(work, device, options, generator, steps=2 if found.quick else 128)
            about = environment(device)
            print(f"fedbm {about['fedbm']}, torch {about['torch']}, {about['device']}, {about['processor']}; ", end="")
            print(f"{work.words()}\n\n| what | data | images/s | relative |\n| --- | --- | ---: | ---: |", flush=True)
            before = None
            for what, place, rate in measure(bench):
                relative = f"{rate / before[1]:.2f}" if before and before[0] == what else ""
                print(f"| {what} | {place} | {rate:,.0f} | {relative} |", flush=True)
                before = what, rate
    except fedbm.FedBMError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    return 0


def measure(bench: Bench) -> Iterator[tuple[str, str, float]]:
    """Yield what was measured, where the data were, and the images per second."""
    engines = {"reference": plain("bf16")}
    if bench.device.type == "cuda":
        engines["captured"] = {"engine": "captured", "precision": "bf16"}
    for name, options in engines.items():
        for method in ("fedavg", "fedbm"):
            for engine in placed(name, options, bench.device):
                clients = CLIENTS if name == "captured" else 1
                row = time_steps(bench, method, engine, clients)
                yield f"{method}, {name}", engine.options["data_on"], row["images_per_second"]
    scored = sum(len(bench.workload.dataset.indices(side)) for side in ("val", "test"))
    for engine in placed(name, options, bench.device):
        records, _ = play_rounds(bench, "fedavg", engine, 2, clients=10, beta=0.1)
        yield "evaluation", engine.options["data_on"], scored / records[1].seconds["evaluate"]


def placed(name: str, options: dict[str, str], device: torch.device) -> list[Engine]:
    places = ("gpu", "host") if device.type == "cuda" else ("host",)
    return [Engine(name, {**options, "data_on": place}) for place in places]


if __name__ == "__main__":
    sys.exit(main())
