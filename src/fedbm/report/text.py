"""What the numbers say, in sentences computed from them, whoever is ahead."""

from __future__ import annotations

from fedbm.report.grouping import Group, Row
from fedbm.report.statistics import Spread, spread

HEADLINE_METRIC = "f1"
NO_BREAK = "\N{NO-BREAK SPACE}"


def percent(value: float) -> str:
    """
    >>> percent(0.91249), percent(-0.0002)
    ('91.2', '0.0')
    """
    return f"{round(100 * value, 1) + 0.0:.1f}"  # + 0.0 turns −0.0 into 0.0


def points(value: float) -> str:
    """A difference of two shares, with its sign: '+17.2', '−3.0'."""
    return f"{round(100 * value, 1) + 0.0:+.1f}".replace("-", "−")


def probability(p: float) -> str:
    """
    >>> probability(0.00004), probability(0.0312), probability(0.7)
    ('< 0.001', '0.031', '0.70')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def mean_and_std(value: Spread) -> str:
    """'91.2 ± 0.8 %', held together by no-break spaces; without ± for one seed."""
    plus_minus = f" ± {percent(value.std)}" if value.std is not None else ""
    return f"{percent(value.mean)}{plus_minus} %".replace(" ", NO_BREAK)


def headline(group: Group) -> str:
    """One sentence on macro-F1 at the validation-chosen round: FedBM, or the best, against the best other."""
    if not group.rows:
        return "No run has finished, so there is no result yet."
    lead = leading_row(group)
    rival, others = _rival(group, lead)
    ours = _f1(lead)
    reached = f"{lead.name} reaches {mean_and_std(ours)} macro-F1"
    if rival is None:
        return f"{reached} ({_seeds(ours.n)}); no other method stands beside it."
    theirs = _f1(rival)
    if ours.mean < theirs.mean:
        reached = f"{lead.name} stays below: {mean_and_std(ours)} macro-F1"
    best_of = f", the best of the other {others}" if others > 1 else ""
    seeds = _seeds(ours.n) if ours.n == theirs.n else f"{ours.n} against {theirs.n} seeds"
    return f"{reached} against {rival.name}’s {mean_and_std(theirs)}{best_of} ({seeds})."


def seed_by_seed(group: Group) -> str:
    """The headline's difference within each seed both have, where partition and initial weights are equal."""
    if not group.rows:
        return ""
    lead = leading_row(group)
    rival, _ = _rival(group, lead)
    ours = lead.by_seed("best", HEADLINE_METRIC)
    theirs = rival.by_seed("best", HEADLINE_METRIC) if rival is not None else {}
    both = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if len(both) < 2:
        return ""
    apart = spread(both)
    return (
        f"Seed by seed the difference is {points(apart.mean)} points on average, "
        f"from {points(apart.low)} to {points(apart.high)}."
    )


def leading_row(group: Group) -> Row:
    """FedBM where it takes part, else the row with the highest macro-F1; Central, a ceiling, only if alone."""
    rows = [row for row in group.rows if row.method != "central"] or group.rows
    return next((row for row in rows if row.method == "fedbm"), max(rows, key=mean_f1))


def _rival(group: Group, lead: Row) -> tuple[Row | None, int]:
    """The best other method, and of how many; without one, the best other row.

    Variants of the lead's own method come second, and Central last: with all data in one place it is a ceiling.
    """
    others = [row for row in group.rows if row is not lead]
    methods = [row for row in others if row.method not in (lead.method, "central")]
    rivals = methods or [row for row in others if row.method != "central"] or others
    return (max(rivals, key=mean_f1), len(rivals)) if rivals else (None, 0)


def _f1(row: Row) -> Spread:
    return spread(list(row.by_seed("best", HEADLINE_METRIC).values()))


def mean_f1(row: Row) -> float:
    return _f1(row).mean


def _seeds(n: int) -> str:
    return f"{n} seeds" if n > 1 else "one seed, which shows no spread"
