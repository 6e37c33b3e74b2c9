"""What a GPU does in one round: where its time goes, how busy it is, and where the host waits for it.

    python benchmarks/profile_round.py --data ham10000_128.npz --method fedbm --precision bf16 --compile yes

Takes the flags of `fedbm run`. The rounds before the last are run unobserved; the last one is profiled.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from typing import Any

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from fedbm.cli.flags import read_config
from fedbm.cli.main import make_parser
from fedbm.engine.device import find_device
from fedbm.runs.plan import make_plan
from fedbm.runs.runner import run

WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
KINDS = {
    "convolutions and products": ("xmma", "cutlass", "gemm", "nvjet", "conv", "cudnn"),
    "fused by the compiler": ("triton",),
    "optimiser": ("multi_tensor", "fused_sgd", "fused_adam"),
    "normalisation": ("batch_norm", "welford"),
    "copies": ("memcpy", "memset", "copy"),
}


def kind_of(kernel: str) -> str:
    name = kernel.lower()
    return next((kind for kind, words in KINDS.items() if any(word in name for word in words)), "others")


def busy(spans: list[tuple[int, int]]) -> int:
    """Nanoseconds covered by at least one span."""
    covered, end = 0, 0
    for start, stop in sorted(spans):
        covered += max(0, stop - max(start, end))
        end = max(end, stop)
    return covered


def main() -> None:
    with tempfile.TemporaryDirectory() as out:
        found = make_parser().parse(["run", *sys.argv[1:], "--out", out])
        plan = make_plan(read_config(found))
        if find_device(plan.config.engine.device).type != "cuda":
            raise SystemExit("profile_round.py: there is no CUDA device to profile here")
        events = run(plan)
        last = plan.config.train.rounds
        for event in events:
            if event.round == last - 1 and event.record is not None:
                break
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
            record = next(event.record for event in events if event.record is not None)
        report(profiler.profiler.kineto_results.events(), record, plan.config.train.batch)
        for _ in events:
            pass


def while_issuing(waits: list[int], launches: list[int]) -> int:
    """How many of the waits began between the first and the last launch of a graph."""
    return sum(min(launches) < wait < max(launches) for wait in waits) if launches else 0


def report(events: list[Any], record: dict[str, Any], batch: int) -> None:
    spans, by_kind, waits = [], defaultdict(int), defaultdict(lambda: [0, 0])
    kernels: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    waited, launched = [], []
    for event in events:
        if event.device_type() == DeviceType.CUDA:
            spans.append((event.start_ns(), event.start_ns() + event.duration_ns()))
            by_kind[kind_of(event.name())] += event.duration_ns()
            kernels[event.name()][0] += 1
            kernels[event.name()][1] += event.duration_ns()
        elif event.name() in WAITS:
            waits[event.name()][0] += 1
            waits[event.name()][1] += event.duration_ns()
            waited.append(event.start_ns())
        elif event.name().startswith("cudaGraphLaunch"):
            launched.append(event.start_ns())
    steps = sum(-(-client["n"] // batch) for client in record["clients"])
    length = max(stop for _, stop in spans) - min(start for start, _ in spans)
    total = sum(by_kind.values())
    print(f"round {record['round']}: {steps} local steps of {len(record['clients'])} clients, {length / 1e6:.0f} ms")
    print(f"kernels: {len(spans)} ({len(spans) / steps:.0f} a step), {total / 1e6:.0f} ms in all streams together")
    print(f"the device is busy {100 * busy(spans) / length:.0f} % of the round, {total / length:.1f} streams deep\n")
    print("| kind | ms | share |\n| --- | ---: | ---: |")
    for kind, time in sorted(by_kind.items(), key=lambda pair: -pair[1]):
        print(f"| {kind} | {time / 1e6:.1f} | {100 * time / total:.0f} % |")
    print("\n| kernel | times | ms |\n| --- | ---: | ---: |")
    for name, (count, time) in sorted(kernels.items(), key=lambda pair: -pair[1][1])[:12]:
        print(f"| {name[:90]} | {count} | {time / 1e6:.1f} |")
    print("\n| the host waits in | times | ms |\n| --- | ---: | ---: |")
    for name, (count, time) in waits.items():
        print(f"| {name} | {count} | {time / 1e6:.1f} |")
    print(f"\n{while_issuing(waited, launched)} of these waits began while {len(launched):,} graphs were launched")
    print(f"\nseconds: { {phase: round(value, 3) for phase, value in record['seconds'].items()} }")


if __name__ == "__main__":
    main()
