"""Local training as CUDA graphs on concurrent streams: the same methods, the same numbers, without Python in between.

A *slot* holds one model and, per phase of training, one captured step: gather a batch, the method's loss, backward, the
method's adjustment, the optimiser's step. A step's inputs lie in static buffers of CHUNK rows and a counter on the
device says which row is next, so nothing is captured again when clients, learning rate or round change. Slots replay on
their own streams; the longest clients start first. Memory grows with slots, not with clients.

The plain loop in `local.py` is the reference: same batches, same draws, equal to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedbm.engine.checkpoint import ClientStates, Progress
from fedbm.engine.cohort import Answer, LocalCohort
from fedbm.engine.device import computing
from fedbm.engine.local import CHUNK, Chunk, Samples, descend, saved_optimizer, schedule, without_optimizer
from fedbm.methods.base import Batch, Facts, Method, Part, State, Task, Upload, train_only
from fedbm.options import TrainOptions

WARM_UP = 3  # steps before a capture: libraries choose their kernels, optimisers make their state
DRAW = "draw."


class CapturedStep:
    """One optimiser step as a graph over static rows; `replay()` takes the next row."""

    def __init__(
        self,
        loss: Callable[[State], dict[str, Tensor]],
        optimizer: torch.optim.Optimizer,
        adjust: Callable[[], None],
        rows: State,
        stream: torch.cuda.Stream,
    ) -> None:
        self.optimizer, self._stream = optimizer, stream
        self._next = torch.zeros(1, dtype=torch.int64, device=stream.device)
        self._rows = rows
        self.sums: dict[str, Tensor] = {}

        def step() -> None:
            row = {name: value.index_select(0, self._next)[0] for name, value in self._rows.items()}
            for name, term in descend(loss(row), optimizer, adjust).items():
                self.sums.setdefault(name, torch.zeros_like(term)).add_(term)
            self._next.add_(1)

        for _ in range(WARM_UP):
            self._next.zero_()
            step()
        self._next.zero_()
        self._graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self._graph, stream=stream):
            step()
        self.reset()

    def fill(self, rows: State) -> None:
        """Put the next rows in place, on the slot's stream; pinned memory, so that the host does not wait."""
        for name, value in rows.items():
            target = self._rows[name]
            pinned = value.to(target.dtype).pin_memory()
            target[: len(value)].copy_(pinned, non_blocking=True)
        self._next.zero_()

    def replay(self) -> None:
        self._graph.replay()

    def reset(self) -> None:
        """As before the first step: no momentum, no sums."""
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()
        for total in self.sums.values():
            total.zero_()


def static_rows(rows: State, device: torch.device, dtype: torch.dtype, count: int) -> State:
    """Buffers of *count* rows like *rows*, which are fewer or as many."""
    made = {}
    for name, value in rows.items():
        kind = dtype if value.is_floating_point() else value.dtype
        made[name] = torch.zeros(count, *value.shape[1:], dtype=kind, device=device)
        made[name][: len(value)].copy_(value)
    return made


@dataclass
class Job:
    """One client's training in a slot: what it needs, and what came of it."""

    facts: Facts
    data: Samples
    received: State
    client: State
    upload: Upload | None = None
    own: State = field(default_factory=dict)
    sums: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0
    times: tuple[torch.cuda.Event, torch.cuda.Event] | None = None


class Slot:
    """A model, its captured steps and a stream."""

    def __init__(self, method: Method, task: Task, train: TrainOptions, like: Tensor) -> None:
        self._method, self._task, self._train = method, task, train
        model = method.model(task).to(like.device, like.dtype)
        self._model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        device = like.device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._context: State = {}
        self._steps: dict[tuple[int, tuple[str, ...]], CapturedStep] = {}
        self._lr = torch.zeros((), dtype=torch.float32, device=device)  # what the fused kernels read

    def play(self, round_: int, job: Job) -> Iterator[None]:
        """Issue the job's steps; yields after every chunk so that other slots get theirs."""
        home = torch.cuda.current_stream()
        method, train = self._method, self._train
        own, kept = without_optimizer(job.client)
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._stream.wait_stream(home)
        with torch.cuda.stream(self._stream):
            started.record()
            self._hold(method.begin(self._model, job.received, own, job.facts))
            for step in self._steps.values():
                step.reset()
        indices = job.data.indices.cpu()
        used: dict[int, CapturedStep] = {}
        for chunk in schedule(method, self._task, train, round_, job.facts):
            count = len(chunk.positions)
            drawn = method.draws(self._model, self._task, job.received, count, chunk.rng)
            rows = {"index": indices[chunk.positions], **{DRAW + name: value for name, value in drawn.items()}}
            with torch.cuda.stream(self._stream):
                step = self._step_for(chunk, rows, job.data)
                if chunk.phase not in used:
                    self._load_optimizer(step, chunk, kept)
                    used[chunk.phase] = step
                self._lr.fill_(chunk.lr)
                step.fill(rows)
                for _ in range(count):
                    step.replay()
            job.steps += count
            yield
        with torch.cuda.stream(self._stream):
            ended.record()
        job.times = (started, ended)
        home.wait_stream(self._stream)
        with computing(job.data.labels.device, train.precision):
            upload, job.own = method.finish(self._model, job.data, self._context, job.facts)
        job.upload = Upload(job.facts.client, job.facts.n, upload)
        for phase, step in used.items():
            for name, total in step.sums.items():
                job.sums[name] = job.sums[name] + total if name in job.sums else total.clone()
            if train.keep_optimizer:
                trained = self._trained(method.phases(train.epochs)[phase].train)
                job.own |= saved_optimizer(step.optimizer, trained, phase)

    def _step_for(self, chunk: Chunk, rows: State, data: Samples) -> CapturedStep:
        """The captured step of this phase and kind of input; captured when it is first needed."""
        key = (chunk.phase, tuple(rows))
        if key not in self._steps:
            with computing(data.labels.device, self._train.precision):
                self._steps[key] = self._capture(chunk.train, rows, data)
        return self._steps[key]

    def _hold(self, context: State) -> None:
        """Copy a client's context into the tensors the graphs know."""
        if not self._context:
            self._context = {name: value.clone() for name, value in context.items()}
        for name, value in context.items():
            self._context[name].copy_(value)

    def _trained(self, parts: tuple[str, ...]) -> list[tuple[str, nn.Parameter]]:
        return [(n, p) for n, p in self._model.named_parameters() if n.partition(".")[0] in parts]

    def _capture(self, parts: tuple[str, ...], rows: State, data: Samples) -> CapturedStep:
        """Capture a step; warming up trains the model, so its state is put back afterwards."""
        held = [*self._model.state_dict().values(), *self._context.values()]
        before = [value.clone() for value in held]
        trained = train_only(self._model, parts)
        like = trained[0][1]

        def loss(row: State) -> dict[str, Tensor]:
            chosen = row["index"]
            draws = {name.removeprefix(DRAW): value for name, value in row.items() if name != "index"}
            batch = Batch(data.normalise.pixels(data.images[chosen]), data.labels[chosen], draws)
            return self._method.loss(self._model, batch, self._context)

        step = CapturedStep(
            loss,
            capturable_optimizer(self._train, [p for _, p in trained], self._lr),
            lambda: self._method.adjust(self._model, self._context),
            static_rows(rows, like.device, like.dtype, CHUNK),
            self._stream,
        )
        for value, old in zip(held, before, strict=True):
            value.copy_(old)
        return step

    def _load_optimizer(self, step: CapturedStep, chunk: Chunk, kept: State) -> None:
        for name, parameter in self._trained(chunk.train):
            for slot, value in step.optimizer.state[parameter].items():
                if isinstance(value, Tensor) and f"{chunk.phase}.{slot}.{name}" in kept:
                    value.copy_(kept[f"{chunk.phase}.{slot}.{name}"])


def capturable_optimizer(train: TrainOptions, parameters: list[nn.Parameter], lr: Tensor) -> torch.optim.Optimizer:
    """The reference's optimiser with its learning rate in a tensor, so that a graph reads it anew each replay."""
    if train.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=train.weight_decay, capturable=True)
    momentum, decay = train.momentum, train.weight_decay
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay, fused=True)


class CapturedCohort(LocalCohort):
    """Clients in slots of one GPU, side by side."""

    def __init__(
        self,
        method: Method,
        task: Task,
        train: TrainOptions,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        clients: Sequence[Tensor],
        states: ClientStates,
        progress: Progress,
        slots: int,
    ) -> None:
        super().__init__(method, task, train, model, images, labels, clients, states, progress)
        for data in self._data:
            data.normalise.memory_format = torch.channels_last
        self._like, self._limit = self._data[0].normalise.mean, slots
        self._slots: list[Slot] = []

    def exchange(self, round_: int, clients: Sequence[int], parts: Mapping[str, Part]) -> Iterator[Answer | None]:
        received = {name: value for part in parts.values() for name, value in part.state.items()}
        few = len(clients) <= 4 * self._limit  # then all answers may wait for the last; else they are handed on
        waiting = sorted(clients, key=lambda c: (-self._facts[c].n, c)) if few else list(clients)
        unanswered = list(clients)
        playing: dict[int, tuple[Job, Iterator[None]]] = {}
        done: dict[int, Job] = {}
        while waiting or playing:
            while waiting and len(playing) < self._limit:
                number = next(i for i in range(self._limit) if i not in playing)
                if number == len(self._slots):
                    self._slots.append(Slot(self._method, self._task, self._train, self._like))
                client = waiting.pop(0)
                job = Job(self._facts[client], self._data[client], received, self._state_of(client))
                playing[number] = (job, self._slots[number].play(round_, job))
            for number, (job, steps) in list(playing.items()):
                if next(steps, StopIteration) is StopIteration:
                    done[job.facts.client] = job
                    del playing[number]
            yield None
            while not few and unanswered and unanswered[0] in done:
                yield self._finished(round_, done.pop(unanswered.pop(0)), parts)
        for client in unanswered:
            yield self._finished(round_, done.pop(client), parts)

    def _finished(self, round_: int, job: Job, parts: Mapping[str, Part]) -> Answer:
        assert job.upload is not None
        assert job.times is not None
        job.upload.losses = {name: float(total) / job.steps for name, total in job.sums.items()}
        job.upload.seconds = job.times[0].elapsed_time(job.times[1]) / 1000
        return self._answer(round_, job.upload, job.own, parts)


class CapturedSteps:
    """`Steps` by graph: a loop is captured once and replayed for every training after it."""

    def __init__(self) -> None:
        self._captured: dict[tuple[str, ...], CapturedStep] = {}

    def __call__(
        self,
        model: nn.Module,
        parts: tuple[str, ...],
        loss: Callable[[State], dict[str, Tensor]],
        optimizer: Callable[[list[nn.Parameter], bool], torch.optim.Optimizer],
        draws: State,
    ) -> dict[str, float]:
        count = len(next(iter(draws.values())))
        home = torch.cuda.current_stream()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(home)
        with torch.cuda.stream(stream):
            if parts not in self._captured:
                self._captured[parts] = self._capture(model, parts, loss, optimizer, draws, stream)
            step = self._captured[parts]
            step.reset()
            step.fill(draws)
            for _ in range(count):
                step.replay()
        home.wait_stream(stream)
        return {name: float(total) / count for name, total in step.sums.items()}

    @staticmethod
    def _capture(
        model: nn.Module,
        parts: tuple[str, ...],
        loss: Callable[[State], dict[str, Tensor]],
        optimizer: Callable[[list[nn.Parameter], bool], torch.optim.Optimizer],
        draws: State,
        stream: torch.cuda.Stream,
    ) -> CapturedStep:
        held = list(model.state_dict().values())
        before = [value.clone() for value in held]
        trained = train_only(model, parts)
        like = trained[0][1]
        rows = static_rows(draws, like.device, like.dtype, len(next(iter(draws.values()))))
        step = CapturedStep(loss, optimizer([p for _, p in trained], True), lambda: None, rows, stream)
        for value, old in zip(held, before, strict=True):
            value.copy_(old)
        return step
