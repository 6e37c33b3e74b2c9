"""FedBM's own rounds: the fastest engine for the device."""

from __future__ import annotations

from work import Counts, Measured, Settings, counting, plan_of

from fedbm.engine.device import find_device
from fedbm.runs.runner import run


def measure(settings: Settings, warm_up: int) -> Measured:
    on_cpu = find_device(settings.device).type == "cpu"
    plan = plan_of(settings, workers=1)
    measured = Measured(f"fedbm {settings.precision}")
    counts = Counts()
    scored = sum(len(plan.dataset.indices(name)) for name in ("val", "test"))
    with counting(counts):
        for event in run(plan):
            if (record := event.record) is None:
                continue
            if not on_cpu:  # a CUDA graph replays steps without calling the model, so they follow from the record
                steps = sum(-(-client.n // settings.batch) for client in record.clients)
                counts.steps, counts.trained, counts.evaluated = steps, steps * settings.batch, scored
            counts.clients = len(record.clients)
            if record.round > warm_up:
                measured.counts.append(Counts(**vars(counts)))
                measured.seconds.append(record.seconds["total"])
                measured.training.append(record.seconds["train"])
            counts.steps = counts.trained = counts.evaluated = 0
    return measured
