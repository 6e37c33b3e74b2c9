"""A slot: one model that trains clients with captured CUDA graphs on its own stream.

Each phase of training has one captured step: gather a batch, compute the loss, backward, adjust gradients, optimiser
step. A phase has a second one if BatchNorm is frozen from some round on. Inputs that are not trained (generated images)
are precomputed for several steps at once on a second stream, in parallel with the training. Threads draw the random
numbers. They also gather images in host memory, which are copied to the device for a chunk of steps at once. The host
only issues work and never waits for the device.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedbm.config.options import TrainOptions
from fedbm.engine.augmentation import PREFIX, augment
from fedbm.engine.checkpoint import OPTIMIZER_PREFIX, split_by_prefix
from fedbm.engine.clients.graph_capture import (
    ROWS_PER_REPLAY,
    CapturedRows,
    CapturedStep,
    allocate_rows,
    copy_rows,
    pin_rows,
)
from fedbm.engine.device import autocast
from fedbm.engine.local_training import (
    ADAMS,
    CHUNK,
    Chunk,
    Samples,
    finish_client,
    save_optimizer,
    schedule,
)
from fedbm.methods.base import Batch, Facts, Method, State, Task, Upload, copy_all, train_only

StepKey = tuple[int, bool, tuple[str, ...]]  # phase, whether BatchNorm is frozen, names of the random draws
MAX_CHUNKS_AHEAD = 8  # issued to a slot and not finished: keeps the device busy and bounds the host's memory
MAX_IMAGE_CHUNKS_AHEAD = 2  # the same if chunks contain images
INDEX, IMAGES = "index", "batch.images"  # the rows of a step next to its random draws


@dataclass
class Job:
    """One client's training in a slot: its inputs and, later, its results."""

    facts: Facts
    data: Samples
    received: State
    state: State
    ready: torch.cuda.Event  # the inputs above are on the device
    upload: Upload | None = None
    new_state: State = field(default_factory=dict)
    sums: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0
    times: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    @property
    def done(self) -> bool:
        return self.times is not None and self.times[1].query()  # type: ignore[no-untyped-call]


def step_terms(
    method: Method, model: nn.Module, data: Samples, context: State, smoothing: float, row: State
) -> dict[str, Tensor]:
    """Return the loss terms of one step; *row* has sample indices, images on the host, augmentation, random draws."""
    chosen = row[INDEX]
    draws = {name: v for name, v in row.items() if name not in (INDEX, IMAGES) and not name.startswith(PREFIX)}
    images = data.normalise.pixels(augment(row[IMAGES] if IMAGES in row else data.images[chosen], row))
    return method.loss(model, Batch(images, data.labels[chosen], draws, smoothing), context)


def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile *function* with torch.compile, once for each input shape and kind of model."""
    # a process may run many methods, and beyond this limit PyTorch silently stops compiling
    torch._dynamo.config.recompile_limit = 256
    # combo_kernels: merge small independent kernels, such as the casts of all weights
    compiled: Callable[..., Any] = torch.compile(function, dynamic=False, options={"combo_kernels": True})
    return compiled


class Slot:
    """A model, its captured steps, a stream for training and a stream for precomputed inputs."""

    def __init__(
        self,
        method: Method,
        task: Task,
        train: TrainOptions,
        like: Tensor,
        compile_: bool,
        priority: int,
        threads: ThreadPoolExecutor,
    ) -> None:
        self._method, self._task, self._train, self._like, self._threads = method, task, train, like, threads
        model = method.model(task).to(like.device, like.dtype)
        self._model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._stream = torch.cuda.Stream(like.device, priority=priority)  # type: ignore[no-untyped-call]
        self._input_stream = torch.cuda.Stream(like.device)  # type: ignore[no-untyped-call]
        self._terms = compile_function(step_terms) if compile_ else step_terms
        self._precompute = compile_function(method.precompute) if compile_ else method.precompute
        self._context: State = {}
        self._sample_rows: State = {}  # indices, images on the host and augmentation, for all steps
        self._rows: dict[tuple[str, ...], CapturedRows] = {}
        self._steps: dict[StepKey, CapturedStep] = {}
        self._lr = torch.zeros((), dtype=torch.float32, device=like.device)  # read by the fused kernels
        self.capture_seconds = 0.0

    def run(self, round_: int, job: Job) -> Iterator[bool]:
        """Issue the job's work. Yield True after each chunk, and False while the slot has to wait."""
        method, train = self._method, self._train
        own, saved = split_by_prefix(job.state, OPTIMIZER_PREFIX)
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._stream.wait_event(job.ready)
        with torch.cuda.stream(self._stream):
            started.record()
            self._load_context(method.start_client(self._model, job.received, own, job.facts))
            for step in self._steps.values():
                step.reset()
        begun = self._stream.record_event()
        in_flight: deque[torch.cuda.Event] = deque()
        used: dict[int, CapturedStep] = {}
        ahead = MAX_IMAGE_CHUNKS_AHEAD if job.data.images.is_cpu else MAX_CHUNKS_AHEAD
        for number, (chunk, drawing) in enumerate(self._draw_chunks(round_, job)):
            while not drawing.done() or (len(in_flight) >= ahead and not in_flight[0].query()):  # type: ignore[no-untyped-call]
                yield False
            first = CHUNK * (number % 2)  # training reads one half of the rows while the other is written
            self._input_stream.wait_event(in_flight[-2] if len(in_flight) > 1 else begun)
            step, ready = self._issue(job.data, chunk, drawing.result(), first)
            if chunk.phase not in used:
                with torch.cuda.stream(self._stream):
                    self._load_optimizer(step, chunk, saved)
                used[chunk.phase] = step
            with torch.cuda.stream(self._stream):
                self._lr.fill_(chunk.lr)
                step.start(first)
                for done in range(len(chunk.positions)):
                    if done % ROWS_PER_REPLAY == 0 and ready:
                        self._stream.wait_event(ready.popleft())
                    step.replay()
            in_flight.append(self._stream.record_event())
            if len(in_flight) > ahead:
                in_flight.popleft()
            job.steps += len(chunk.positions)
            yield True
        with torch.cuda.stream(self._stream), autocast(job.data.labels.device, train.precision):
            upload, job.new_state = finish_client(method, self._model, job.data, self._context, job.facts)
            job.upload = Upload(job.facts.client, job.facts.n, upload)
            for phase, step in used.items():
                for name, total in step.sums.items():
                    job.sums[name] = job.sums[name] + total if name in job.sums else total.clone()
                if train.keep_optimizer:
                    trained = self._trained(method.phases(train.epochs)[phase].train)
                    job.new_state |= save_optimizer(step.optimizer, trained, phase)
            ended.record()
        job.times = (started, ended)

    def _draw_chunks(self, round_: int, job: Job) -> Iterator[tuple[Chunk, Future[tuple[State, State]]]]:
        """Yield the job's chunks with their rows: samples and random draws. Threads draw a few chunks ahead."""

        def draw(chunk: Chunk) -> tuple[State, State]:
            samples = {INDEX: job.data.indices_on_host[chunk.positions], **chunk.augmentation}
            if job.data.images.is_cpu:
                samples[IMAGES] = job.data.gather(samples[INDEX])
            draws = self._method.sample_randomness(
                self._model, self._task, job.received, len(chunk.positions), chunk.rng
            )
            return pin_rows(samples, self._like.dtype), pin_rows(draws, self._like.dtype)

        pending: deque[tuple[Chunk, Future[tuple[State, State]]]] = deque()
        for chunk in schedule(self._method, self._task, self._train, round_, job.facts):
            pending.append((chunk, self._threads.submit(draw, chunk)))
            if len(pending) > 2:
                yield pending.popleft()
        yield from pending

    def _issue(
        self, data: Samples, chunk: Chunk, rows: tuple[State, State], first: int
    ) -> tuple[CapturedStep, deque[torch.cuda.Event]]:
        """Copy a chunk's rows into the buffers from row *first* on, and precompute inputs from them.

        Returns: the step that reads them, captured on first use, and an event for each ROWS_PER_REPLAY rows.
        """
        samples, drawn = rows
        names = tuple(drawn)
        key = (chunk.phase, chunk.freeze_batchnorm, names)
        if key not in self._steps:
            self._capture(key, chunk, samples, drawn, data)
        step = self._steps[key]
        with torch.cuda.stream(self._input_stream):
            copy_rows(step.rows, samples, first)
            if not drawn:
                return step, deque([self._input_stream.record_event()])
            copy_rows(self._rows[names].rows, drawn)
            return step, deque(self._rows[names].replay(len(chunk.positions), first))

    def _capture(self, key: StepKey, chunk: Chunk, samples: State, drawn: State, data: Samples) -> None:
        """Capture a phase's step for this kind of input, and the computation of its inputs.

        Other work on the device has to finish first. Warming up trains the model, so its state is restored afterwards.
        """
        began = time.perf_counter()
        torch.cuda.synchronize()
        tensors = [*self._model.state_dict().values(), *self._context.values()]
        before = [value.clone() for value in tensors]
        trained = train_only(self._model, chunk.train, chunk.freeze_batchnorm)
        names = tuple(drawn)
        like, smoothing = trained[0][1], self._train.label_smoothing
        with autocast(like.device, self._train.precision):
            if drawn and names not in self._rows:
                with torch.no_grad(), torch.cuda.stream(self._input_stream):
                    self._rows[names] = CapturedRows(
                        lambda rows: self._precompute(self._model, rows, self._context),
                        allocate_rows(drawn, like, CHUNK),
                        2 * CHUNK,
                        self._input_stream,
                    )
            precomputed = self._rows[names].results if drawn else {}
            self._sample_rows = self._sample_rows or allocate_rows(samples, like, 2 * CHUNK)
            torch.cuda.synchronize()
            with torch.cuda.stream(self._stream):
                self._steps[key] = CapturedStep(
                    lambda row: self._terms(self._method, self._model, data, self._context, smoothing, row),
                    capturable_optimizer(self._train, [p for _, p in trained], self._lr),
                    lambda: self._method.adjust_gradients(self._model, self._context),
                    {**self._sample_rows, **precomputed},
                    self._stream,
                )
                copy_all(tensors, before)
        torch.cuda.synchronize()
        self.capture_seconds += time.perf_counter() - began

    def _load_context(self, context: State) -> None:
        """Copy a client's context into the tensors that the graphs read; those with 4 dimensions are channels_last."""
        if not self._context:
            self._context = {
                name: value.clone(memory_format=torch.channels_last if value.dim() == 4 else torch.preserve_format)
                for name, value in context.items()
            }
        copy_all([self._context[name] for name in context], list(context.values()))

    def _trained(self, parts: tuple[str, ...]) -> list[tuple[str, nn.Parameter]]:
        return [(n, p) for n, p in self._model.named_parameters() if n.partition(".")[0] in parts]

    def _load_optimizer(self, step: CapturedStep, chunk: Chunk, saved: State) -> None:
        for name, parameter in self._trained(chunk.train):
            for slot, value in step.optimizer.state[parameter].items():
                if isinstance(value, Tensor) and f"{chunk.phase}.{slot}.{name}" in saved:
                    value.copy_(saved[f"{chunk.phase}.{slot}.{name}"])


def capturable_optimizer(train: TrainOptions, parameters: list[nn.Parameter], lr: Tensor) -> torch.optim.Optimizer:
    """Return the optimiser of local_training with the learning rate in a tensor, which a graph reads at each replay."""
    if train.optimizer != "sgd":
        return ADAMS[train.optimizer](parameters, lr=lr, weight_decay=train.weight_decay, capturable=True)
    momentum, decay = train.momentum, train.weight_decay
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay, fused=True)
