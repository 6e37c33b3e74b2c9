"""python benchmarks/engine.py: what a client step and a round cost in each engine, as Markdown tables and JSON.

FedAvg and FedBM; time, images/s, TFLOP/s, share of the bound measured in the same run, peak memory, and how the cost
grows with clients, image size and generated images. Every row is printed, and the JSON rewritten, when it is done.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import workload
from measure import Bench, engines_of
from sections import SECTIONS, WARM_UP

import fedbm
from fedbm.engine.device import find_device
from fedbm.engine.environment import environment
from fedbm.utils.io import write_json

FORMAT = 1
METHODS = ("fedavg", "fedbm")


def main(arguments: Sequence[str] | None = None) -> int:
    found = parse(arguments)
    try:
        device = find_device(found.device)
        if found.compile and device.type != "cuda":
            raise fedbm.FedBMError("--compile is of the captured engine, which needs a CUDA device")
        with tempfile.TemporaryDirectory() as folder:
            measure(found, device, Path(folder))
    except fedbm.FedBMError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
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
        section, rows = SECTIONS[name], result["sections"].setdefault(name, [])
        print(
            f"## {section.title}\n\n| {' | '.join(section.columns)} |\n|{' --- |' * len(section.columns)}", flush=True
        )
        for row in section.rows(bench, engines, found):
            print(f"| {' | '.join(str(column(row)) for column in section.columns.values())} |", flush=True)
            rows.append(row)
            result["seconds"] = time.perf_counter() - started
            write_json(found.json, result)
        print()
    print(f"{result['seconds']:.0f} s in all; the numbers are in {found.json}")


if __name__ == "__main__":
    sys.exit(main())
