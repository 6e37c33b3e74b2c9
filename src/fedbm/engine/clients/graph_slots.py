"""A slot: one model whose local training is captured as CUDA graphs, on a stream of its own.

Per phase of training there is one captured step: gather a batch, the method's loss, backward, the method's adjustment,
the optimiser's step. What a step needs but does not train (generated images) is precomputed for many steps at once on a
second stream, beside the training; threads draw the random numbers. The host only issues work and never waits.
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
from fedbm.engine.clients.graph_capture import UNIT, CapturedRows, CapturedStep, fill, pinned, static_rows
from fedbm.engine.device import autocast
from fedbm.engine.local_training import CHUNK, Chunk, Samples, save_optimizer, schedule, split_optimizer_state
from fedbm.methods.base import Batch, Facts, Method, State, Task, Upload, copy_all, train_only

AHEAD = 8  # chunks a slot may have issued and not done: the device does not wait for the host, whose memory is bounded


@dataclass
class Job:
    """One client's training in a slot: what it needs, and what came of it."""

    facts: Facts
    data: Samples
    received: State
    client: State
    ready: torch.cuda.Event  # when the above lie on the device
    upload: Upload | None = None
    own: State = field(default_factory=dict)
    sums: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0
    times: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    @property
    def done(self) -> bool:
        return self.times is not None and self.times[1].query()  # type: ignore[no-untyped-call]


def step_terms(method: Method, model: nn.Module, data: Samples, context: State, row: State) -> dict[str, Tensor]:
    """The terms of one step's loss: the samples *row* names, and its share of the draws."""
    chosen = row["index"]
    draws = {name: value for name, value in row.items() if name != "index"}
    images = data.normalise.pixels(data.images[chosen])
    return method.loss(model, Batch(images, data.labels[chosen], draws), context)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """*function* by torch.compile, once for each shape of its inputs and kind of model."""
    torch._dynamo.config.recompile_limit = 64  # a process may run many methods; beyond it, plain code would run unsaid
    # combo_kernels: small independent kernels, such as the casts of all weights, as one
    made: Callable[..., Any] = torch.compile(function, dynamic=False, options={"combo_kernels": True})
    return made


class Slot:
    """A model, its captured steps, a stream for training and one for what can be computed ahead of it."""

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
        self._ahead = torch.cuda.Stream(like.device)  # type: ignore[no-untyped-call]
        self._terms = compiled(step_terms) if compile_ else step_terms
        self._precompute = compiled(method.precompute) if compile_ else method.precompute
        self._context: State = {}
        self._rows: dict[tuple[str, ...], CapturedRows] = {}
        self._steps: dict[tuple[int, tuple[str, ...]], CapturedStep] = {}
        self._lr = torch.zeros((), dtype=torch.float32, device=like.device)  # what the fused kernels read
        self.capturing = 0.0  # seconds spent on it

    def play(self, round_: int, job: Job) -> Iterator[bool]:
        """Issue the job's work, chunk by chunk; yields after each, or False where enough is under way already."""
        method, train = self._method, self._train
        own, kept = split_optimizer_state(job.client)
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._stream.wait_event(job.ready)
        with torch.cuda.stream(self._stream):
            started.record()
            self._hold(method.start_client(self._model, job.received, own, job.facts))
            for step in self._steps.values():
                step.reset()
        begun = self._stream.record_event()
        flying: deque[torch.cuda.Event] = deque()
        used: dict[int, CapturedStep] = {}
        for number, (chunk, drawing) in enumerate(self._drawn(round_, job)):
            while not drawing.done() or (len(flying) >= AHEAD and not flying[0].query()):  # type: ignore[no-untyped-call]
                yield False
            first = CHUNK * (number % 2)  # one half of the rows is written while the other is trained on
            self._ahead.wait_event(flying[-2] if len(flying) > 1 else begun)
            step, made = self._issue(job.data, chunk, drawing.result(), first)
            if chunk.phase not in used:
                with torch.cuda.stream(self._stream):
                    self._load_optimizer(step, chunk, kept)
                used[chunk.phase] = step
            with torch.cuda.stream(self._stream):
                self._lr.fill_(chunk.lr)
                step.start(first)
                for done in range(len(chunk.positions)):
                    if done % UNIT == 0 and made:
                        self._stream.wait_event(made.popleft())
                    step.replay()
            flying.append(self._stream.record_event())
            if len(flying) > AHEAD:
                flying.popleft()
            job.steps += len(chunk.positions)
            yield True
        with torch.cuda.stream(self._stream), autocast(job.data.labels.device, train.precision):
            upload, job.own = method.finish_client(self._model, job.data, self._context, job.facts)
            job.upload = Upload(job.facts.client, job.facts.n, upload)
            for phase, step in used.items():
                for name, total in step.sums.items():
                    job.sums[name] = job.sums[name] + total if name in job.sums else total.clone()
                if train.keep_optimizer:
                    trained = self._trained(method.phases(train.epochs)[phase].train)
                    job.own |= save_optimizer(step.optimizer, trained, phase)
            ended.record()
        job.times = (started, ended)

    def _drawn(self, round_: int, job: Job) -> Iterator[tuple[Chunk, Future[tuple[State, State]]]]:
        """The job's chunks, each with the rows it needs; threads draw a few chunks ahead."""

        def draw(chunk: Chunk) -> tuple[State, State]:
            index = {"index": job.data.indices_on_host[chunk.positions]}
            draws = self._method.sample_randomness(
                self._model, self._task, job.received, len(chunk.positions), chunk.rng
            )
            return pinned(index, self._like.dtype), pinned(draws, self._like.dtype)

        coming: deque[tuple[Chunk, Future[tuple[State, State]]]] = deque()
        for chunk in schedule(self._method, self._task, self._train, round_, job.facts):
            coming.append((chunk, self._threads.submit(draw, chunk)))
            if len(coming) > 2:
                yield coming.popleft()
        yield from coming

    def _issue(
        self, data: Samples, chunk: Chunk, rows: tuple[State, State], first: int
    ) -> tuple[CapturedStep, deque[torch.cuda.Event]]:
        """Put a chunk's rows in place, from *first* on; the step that takes them, and when each UNIT of them is there.

        The step is captured when it is first needed.
        """
        index, drawn = rows
        key = (chunk.phase, tuple(drawn))
        if key not in self._steps:
            self._capture(key, chunk, index, drawn, data)
        step = self._steps[key]
        with torch.cuda.stream(self._ahead):
            fill(step.rows, index, first)
            if not drawn:
                return step, deque([self._ahead.record_event()])
            fill(self._rows[key[1]].rows, drawn)
            return step, deque(self._rows[key[1]].replay(len(chunk.positions), first))

    def _capture(
        self, key: tuple[int, tuple[str, ...]], chunk: Chunk, index: State, drawn: State, data: Samples
    ) -> None:
        """Capture a phase's step for this kind of input, and what is computed ahead of it.

        Warming up trains the model and another graph may be running: all is still, and put back afterwards.
        """
        began = time.perf_counter()
        torch.cuda.synchronize()
        held = [*self._model.state_dict().values(), *self._context.values()]
        before = [value.clone() for value in held]
        trained = train_only(self._model, chunk.train)
        like = trained[0][1]
        with autocast(like.device, self._train.precision):
            if drawn and key[1] not in self._rows:
                with torch.no_grad(), torch.cuda.stream(self._ahead):
                    self._rows[key[1]] = CapturedRows(
                        lambda rows: self._precompute(self._model, rows, self._context),
                        static_rows(drawn, like, CHUNK),
                        2 * CHUNK,
                        self._ahead,
                    )
            made = self._rows[key[1]].made if drawn else {}
            torch.cuda.synchronize()
            with torch.cuda.stream(self._stream):
                self._steps[key] = CapturedStep(
                    lambda row: self._terms(self._method, self._model, data, self._context, row),
                    capturable_optimizer(self._train, [p for _, p in trained], self._lr),
                    lambda: self._method.adjust_gradients(self._model, self._context),
                    {**static_rows(index, like, 2 * CHUNK), **made},
                    self._stream,
                )
                copy_all(held, before)
        torch.cuda.synchronize()
        self.capturing += time.perf_counter() - began

    def _hold(self, context: State) -> None:
        """Copy a client's context into the tensors the graphs know, those like convolutions' weights in their order."""
        if not self._context:
            self._context = {
                name: value.clone(memory_format=torch.channels_last if value.dim() == 4 else torch.preserve_format)
                for name, value in context.items()
            }
        copy_all([self._context[name] for name in context], list(context.values()))

    def _trained(self, parts: tuple[str, ...]) -> list[tuple[str, nn.Parameter]]:
        return [(n, p) for n, p in self._model.named_parameters() if n.partition(".")[0] in parts]

    def _load_optimizer(self, step: CapturedStep, chunk: Chunk, kept: State) -> None:
        for name, parameter in self._trained(chunk.train):
            for slot, value in step.optimizer.state[parameter].items():
                if isinstance(value, Tensor) and f"{chunk.phase}.{slot}.{name}" in kept:
                    value.copy_(kept[f"{chunk.phase}.{slot}.{name}"])


def capturable_optimizer(train: TrainOptions, parameters: list[nn.Parameter], lr: Tensor) -> torch.optim.Optimizer:
    """The reference's optimiser with its learning rate in a tensor, so that a graph reads it again each replay."""
    if train.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=train.weight_decay, capturable=True)
    momentum, decay = train.momentum, train.weight_decay
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay, fused=True)
