"""What an experiment says, in sentences computed from its numbers: the same words whoever is ahead."""

from __future__ import annotations

from dataclasses import dataclass

from fedbm.experiments.analysis import Column, Line
from fedbm.results.statistics import Paired
from fedbm.results.wording import NO_BREAK, mean_and_std, mean_f1, points, probability

LEVEL = 0.05


@dataclass(frozen=True)
class Verdict:
    """*holds*: the difference is more than chance would often make, after correction for the number of tests."""

    holds: bool
    sentence: str


def verdicts(column: Column) -> list[Verdict]:
    """The leading row against the best other, and against FedAvg where that is another."""
    lead = next((line for line in column.lines if line.name == column.lead), None)
    if lead is None:
        return [Verdict(False, "No run is finished, so there is no result.")]
    others = [line for line in column.lines if line.against is not None and line.row is not None]
    if not others:
        return [Verdict(False, f"{lead.name} stands alone: no other row is finished.")]
    best = max(others, key=lambda line: mean_f1(line.row) if line.row else 0.0)
    shown = [_verdict(lead, best, f", the best of {len(others)} others" if len(others) > 1 else "")]
    fedavg = next((line for line in others if line.row and line.row.method == "fedavg"), None)
    return [*shown, _verdict(lead, fedavg, "")] if fedavg and fedavg is not best else shown


def _verdict(lead: Line, other: Line, more: str) -> Verdict:
    assert lead.row is not None
    assert other.row is not None
    assert other.against is not None
    ours, theirs, found = lead.row.score("best", "f1"), other.row.score("best", "f1"), other.against
    assert ours is not None
    assert theirs is not None
    holds = other.corrected is not None and other.corrected < LEVEL
    opening = (
        f"{lead.name} has {mean_and_std(ours)} macro-F1 against {other.name}’s {mean_and_std(theirs)}{more}: "
        f"{points(found.mean)}{NO_BREAK}points{_test(found, other.corrected)}."
    )
    if found.p is None:
        why = "One pair of seeds" if found.n == 1 else "Differences that do not vary"
        return Verdict(False, f"{opening} {why} cannot be tested.")
    if not holds:
        return Verdict(False, f"{opening} An advantage is not established.")
    return Verdict(True, f"{opening} {'An advantage' if found.mean > 0 else 'A disadvantage'} is established.")


def _test(found: Paired, corrected: float | None) -> str:
    if found.p is None or found.size is None:
        return f" (n = {found.n})".replace(" ", NO_BREAK)
    after = f", p{NO_BREAK}{equals(corrected)} after Holm’s correction" if corrected is not None else ""
    return (
        f" (n{NO_BREAK}={NO_BREAK}{found.n}, 95{NO_BREAK}% interval {points(found.low)} to {points(found.high)}, "
        f"paired t-test p{NO_BREAK}{equals(found.p)}{after}, d{NO_BREAK}={NO_BREAK}{found.size:.1f})"
    )


def equals(p: float) -> str:
    shown = probability(p)
    return shown.replace(" ", NO_BREAK) if shown.startswith("<") else f"={NO_BREAK}{shown}"
