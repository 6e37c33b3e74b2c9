"""Advise what to change after a run, and judge whether training has converged. Each statement has its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedbm.methods import METHODS, FedAvg, is_central
from fedbm.report.format import NO_BREAK, percent, points
from fedbm.runs.run_view import RunView

SWING = 0.2  # change of accuracy between two evaluations; methods differ by less
MIN_SWINGS, MIN_SWING_SHARE = 2, 0.1  # a single swing may be chance; a long run needs one per ten evaluations
MIN_PREDICTED_SHARE = 0.95  # of one class: the model ignores the other classes
MAX_TRUE_SHARE = 0.8  # a class with more of the images may rightly be predicted that often
LARGE_CLIENT = 0.5  # share of the images: a client with more outweighs all others together
MIN_EVALUATIONS = 5  # in the last quarter; the error of a line through fewer points is not known
MIN_RISE = 0.01  # of macro-F1 over a quarter of the rounds; a smaller change does not matter
NOISY = 0.05  # of macro-F1 between rounds; methods differ by about as much


@dataclass(frozen=True)
class Advice:
    """What a run shows, and what to do about it."""

    evidence: str
    action: str

    @property
    def sentence(self) -> str:
        return f"{self.evidence[0].upper()}{self.evidence[1:]}. {self.action}"


def advise(run: RunView) -> list[Advice]:
    """Return advice on a finished run; [] if nothing needs attention."""
    if not run.finished:
        return []
    found = (_one_class(run), _chose_last_round(run), _swings(run), _large_client(run))
    return [advice for advice in found if advice is not None]


def _one_class(run: RunView) -> Advice | None:
    """Find a class that the model predicts for nearly every test image."""
    if run.details is None:
        return None
    matrix = np.array(run.details.confusion.best)
    predicted, true = matrix.sum(axis=0) / matrix.sum(), matrix.sum(axis=1) / matrix.sum()
    most = int(predicted.argmax())
    if predicted[most] < MIN_PREDICTED_SHARE or true[most] > MAX_TRUE_SHARE:
        return None
    evidence = f"{100 * predicted[most]:.0f} % of the test images are predicted as {run.details.classes[most]}"
    action = "The model has learnt little: use more --rounds, a larger --beta, or another --method."
    return Advice(evidence, action)


def _chose_last_round(run: RunView) -> Advice | None:
    assert run.summary is not None
    rounds = [record.round for record in run.rounds if record.val]
    if len(rounds) < 2 or run.summary.best.round != rounds[-1]:
        return None
    return Advice(f"the chosen round is the last one, {rounds[-1]}", "More training may help: use more --rounds.")


def _swings(run: RunView) -> Advice | None:
    """Count large changes of validation accuracy between evaluations in the second half of the rounds."""
    scores = [record.val["accuracy"] for record in run.rounds if record.val and record.round > run.final_round / 2]
    changes = [abs(after - before) for before, after in pairwise(scores) if before is not None and after is not None]
    large = sum(change >= SWING for change in changes)
    if large < max(MIN_SWINGS, MIN_SWING_SHARE * len(changes)) or not METHODS.get(run.method, FedAvg)().common_model:
        return None
    evidence = f"between rounds, validation accuracy changed by {100 * SWING:.0f} points or more"
    times = f"{large} of {len(changes)} times in the second half"
    action = "The score of a single round varies by chance: use an averaged model (--server-average 0.9)."
    return Advice(f"{evidence}, {times}", action)


def _large_client(run: RunView) -> Advice | None:
    """Find a client with more than half of the images, and more than twice an equal share."""
    if run.client_partition is None or is_central(run.method):
        return None
    sizes = [sum(counts) for counts in run.client_partition.counts]
    share = max(sizes) / sum(sizes)
    if share <= max(LARGE_CLIENT, 2 / len(sizes)):
        return None
    evidence = f"one client has {100 * share:.0f} % of the training images"
    return Advice(evidence, "Its updates outweigh all others. A larger --beta makes simulated clients more even.")


def judge_convergence(runs: Sequence[RunView]) -> str:
    """Return whether validation macro-F1 still rises, falls, swings or is settled; "" without enough evaluations.

    A line is fitted to the last quarter of the rounds, with one slope for all seeds. The slope counts if it is larger
    than twice its standard error.
    """
    numbers, scores = [], []
    for run in runs:
        late = [(r.round, r.val["f1"]) for r in run.rounds if r.val and r.round > 0.75 * run.final_round]
        if len(late) < MIN_EVALUATIONS:
            return ""
        number, score = np.array(late, dtype=float).T
        numbers.append(number - number.mean())
        scores.append(score - score.mean())
    x, y = np.concatenate(numbers), np.concatenate(scores)
    slope, length = float(x @ y / (x @ x)), float(np.ptp(x))
    noise = float(np.sqrt(((y - slope * x) ** 2).sum() / (len(x) - len(runs) - 1)))
    rise = slope * length
    if abs(rise) > max(MIN_RISE, 2 * noise * length / float(np.sqrt(x @ x))):
        state = "still rises" if rise > 0 else "falls"
    else:
        state = "swings" if noise > NOISY else "is settled"
    return f"{state} ({points(rise)}, noise{NO_BREAK}{percent(noise)})"
