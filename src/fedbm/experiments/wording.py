"""What an experiment says, in sentences computed from its numbers: the same words whoever is ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedbm.errors import listed
from fedbm.experiments.analysis import Column, Line
from fedbm.experiments.contrasts import Contrast
from fedbm.experiments.paper_numbers import TRIALS
from fedbm.report.grouping import NAMES
from fedbm.report.statistics import MOST_SEEDS, Paired, seeds_needed, spread, welch
from fedbm.report.text import HEADLINE_METRIC, NO_BREAK, mean_and_std, points, probability

LEVEL = 0.05
FEWEST = 3  # seeds that a verdict rests on: two leave one degree of freedom, and happen to agree too often
TUNED = {"temperature": "τ", "lambda_dis": "λ_dis", "pseudo_batch": "pseudo-batch"}  # by the paper's grid search, and τ

FEW = 3  # rows that are named


@dataclass(frozen=True)
class Verdict:
    """*holds*: the difference is more than chance would often make, after correction for the number of tests.

    *brief*: what an overview says of it; "" where that is nothing.
    """

    holds: bool
    sentence: str
    brief: str = ""


def verdicts(column: Column) -> list[Verdict]:
    """What tells of the leading row, or of the contrasts that are stated, and of all rows beside the paper's."""
    if column.contrasts:
        return [*map(_of_contrast, column.contrasts), *_diverged(column)] if column.lead else []
    return [*_of_the_lead(column), *_beside_the_paper(column)]


def _of_contrast(contrast: Contrast) -> Verdict:
    found = contrast.found
    if found is None:
        return _none(f"{contrast.name}: no seed has both runs.")
    where = {"averaged last": "averaged model, last round"}.get(contrast.endpoint, "round chosen on validation")
    points_of = f"{contrast.name}: {points(found.mean)}{NO_BREAK}points of macro-F1"
    said = [where, f"n{NO_BREAK}={NO_BREAK}{found.n}", *_bounds(found)]
    holds, tells, needs = False, "", ""
    if contrast.tested:
        assert contrast.corrected is not None
        holds = contrast.corrected < LEVEL
        tells = f" {_established(found, holds)}"
        said += [f"paired t-test p{NO_BREAK}{equals(found.p)}"] if found.p is not None else []
        said += [f"p{NO_BREAK}{equals(contrast.corrected)} after Holm’s correction over {contrast.tests} tests"]
        said += [f"sign-flip p{NO_BREAK}{equals(contrast.sign_flip)}"] if contrast.sign_flip is not None else []
        needs = "" if holds else _needed(found, contrast.tests)
    said += [f"d{NO_BREAK}={NO_BREAK}{effect(found.size)}"] if found.size is not None else []
    second = ""
    if contrast.chosen is not None:
        bounds = ", ".join(_bounds(contrast.chosen))
        at = f"{points(contrast.chosen.mean)}{NO_BREAK}points{f' ({bounds})' if bounds else ''}"
        second = f" At the round chosen on validation, without averaging: {at}."
    kind = "" if contrast.tested else " An estimate, not a test."
    return Verdict(holds, f"{points_of} ({', '.join(said)}).{tells}{needs}{kind}{second}", f"{points_of}.{tells}{kind}")


def _bounds(found: Paired) -> list[str]:
    return [f"95{NO_BREAK}% interval {points(found.low)} to {points(found.high)}"] if found.p is not None else []


def _established(found: Paired, holds: bool) -> str:
    if not holds:
        return "An advantage is not established."
    return f"{'An advantage' if found.mean > 0 else 'A disadvantage'} is established."


def _needed(found: Paired, tests: int) -> str:
    """How many seeds a claim of this size would need; nothing where the lead is not ahead."""
    if found.size is None or found.mean <= 0 or not tests:
        return ""
    seeds = seeds_needed(found.size, LEVEL / tests)
    many = f"about {seeds}" if seeds else f"more than {MOST_SEEDS:,}"
    level = f"level {LEVEL}/{tests}" if tests > 1 else f"level {LEVEL}"
    return (
        f" A difference of this size would need {many} seeds (80{NO_BREAK}% power at {level}; an estimate from the "
        f"spread of {found.n})."
    )


def _diverged(column: Column) -> list[Verdict]:
    """Which runs count with the last scores they had."""
    said = [
        f"{line.name}, seed {result.seed} ({100 * result.last[HEADLINE_METRIC]:.1f}{NO_BREAK}%)"
        for line in column.lines
        for result in line.missing
        if result.last is not None
    ]
    counts = "These runs diverged and count" if len(said) > 1 else "One run diverged and counts"
    return [Verdict(False, f"{counts} with the last averaged score: {listed(said, 'and')}.")] if said else []


def _beside_the_paper(column: Column) -> list[Verdict]:
    """Whose mean differs from the printed one by more than both spreads explain; nothing where none can be tested."""
    found = {line.name: test for line in column.lines if (test := _unlike_the_paper(line))}
    if not found:
        return []
    shown = {
        name: f"{name} ({points(difference)}{NO_BREAK}points, p{NO_BREAK}{equals(p)})"
        for name, (difference, p) in found.items()
    }
    apart = [name for name, (_, p) in found.items() if p < LEVEL]
    alike = [name for name in found if name not in apart]
    said, brief = [], ""
    if apart:
        names = listed((shown[name] for name in apart), "and")
        said += [f"{names} differ{'s' * (len(apart) == 1)} from the paper’s macro-F1"]
        brief = f"{said[0]}."
    if alike:
        nearest = min(alike, key=lambda name: found[name][1])
        many = f"any of {len(alike)} {'other ' * bool(apart)}rows, of which {shown[nearest]} has the lowest p"
        rows = many if len(alike) > FEW else listed((shown[name] for name in alike), "and")
        said += [f"{'no difference' if apart else 'No difference to the paper’s macro-F1'} is established for {rows}"]
    how = f"by Welch’s t-test against its three trials, level{NO_BREAK}{LEVEL}, not corrected"
    return [Verdict(False, f"{'; '.join(said)}, {how}; so few seeds show large differences alone.", brief)]


def _unlike_the_paper(line: Line) -> tuple[float, float] | None:
    """Ours − the paper's, and its p; nothing of fewer seeds than a verdict rests on."""
    difference = line.minus_paper(HEADLINE_METRIC)
    if difference is None or line.row is None or line.published is None:
        return None
    ours = spread(list(line.row.by_seed("best", HEADLINE_METRIC).values()))
    if ours.n < FEWEST:
        return None
    p = welch(ours, line.published.mean[HEADLINE_METRIC] / 100, line.published.std[HEADLINE_METRIC] / 100, TRIALS)
    return None if p is None else (difference, p)


def _of_the_lead(column: Column) -> list[Verdict]:
    """The leading row against the best other, and against FedAvg where that is another; nothing of a row by itself.

    The best is the one with the least lead − row over the seeds both have, and scores are means over these seeds.
    """
    if len(column.lines) == 1:
        return []
    lead = next((line for line in column.lines if line.name == column.lead), None)
    if lead is None:
        return [_none("No run is finished, so there is no result.")]
    if lead.row is None:
        return [_none(f"{lead.name} has no finished run, so no row is compared with it.")]
    others = [line for line in column.lines if line.against is not None]
    if not others:
        return [_none(f"{lead.name} stands alone: no row to compare has finished one of its seeds.")]
    best, *fedavg = foremost(column)
    assert best.against is not None
    more = f", the best of {len(others)} others" if len(others) > 1 else ""
    tests = column.tests
    found = [_verdict(lead, best, more, tests), *(_verdict(lead, line, "", tests) for line in fedavg)]
    ahead = best.against.mean > 0 and all(verdict.holds for verdict in found)
    return [*found, *_unequal(lead, others), *([] if ahead else _tried(lead))]


def _none(sentence: str) -> Verdict:
    return Verdict(False, sentence, sentence)


def foremost(column: Column) -> list[Line]:
    """The best of the other rows, and FedAvg where that is another; nobody where none can be compared."""
    others = [line for line in column.lines if line.against is not None and line.row is not None]
    best = min(others, key=lambda line: line.against.mean if line.against else 0.0, default=None)
    lead = next((line.row for line in column.lines if line.name == column.lead), None)
    alike = lead is not None and lead.method == "fedavg"  # among its own variants none stands for it
    fedavg = [line for line in others if line.row and line.row.method == "fedavg" and line is not best and not alike]
    return [*([best] if best else []), *fedavg[:1]]


def _unequal(lead: Line, others: Sequence[Line]) -> list[Verdict]:
    """A mean over other seeds than the leading row's is not to be held against it: seeds differ more than methods."""
    assert lead.row is not None
    seeds = {line.name: set(line.row.by_seed("best", HEADLINE_METRIC)) for line in (lead, *others) if line.row}
    apart = [line.name for line in others if seeds[line.name] != seeds[lead.name]]
    if not apart:
        return []
    have = "has" if len(apart) == 1 else "have"
    words = f"{listed(apart, 'and')} {have} other seeds than {lead.name}"
    return [Verdict(False, f"{words}: what tells is the difference over the seeds both have, not the means.")]


def _tried(lead: Line) -> list[Verdict]:
    """Where FedBM's advantage is not established: with which of the values it is tuned by it was tried."""
    assert lead.row is not None
    values = lead.row.runs[0].config["method"]
    if lead.name != NAMES["fedbm"] or not all(key in values for key in TUNED):
        return []
    words = listed([f"{name}{NO_BREAK}{values[key]:g}" for key, name in TUNED.items()], "and")
    return [Verdict(False, f"{lead.name} was tried here with {words} alone.")]


def _verdict(lead: Line, other: Line, more: str, tests: int) -> Verdict:
    assert lead.row is not None
    assert other.row is not None
    assert other.against is not None
    found, scores = other.against, [line.row.by_seed("best", HEADLINE_METRIC) for line in (lead, other) if line.row]
    both = sorted(set(scores[0]) & set(scores[1]))
    ours, theirs = (spread([of_row[seed] for seed in both]) for of_row in scores)
    holds = other.corrected is not None and other.corrected < LEVEL
    opening = (
        f"{lead.name} has {mean_and_std(ours)} macro-F1 against {other.name}’s {mean_and_std(theirs)}{more}: "
        f"{points(found.mean)}{NO_BREAK}points{_test(found, other.corrected)}."
    )
    if found.p is None:
        tells = f"{'One pair of seeds' if found.n == 1 else 'Differences that do not vary'} cannot be tested."
    elif found.n < FEWEST:
        tells = "Two seeds cannot establish a difference."
    else:
        tells = _established(found, holds)
    after = "" if other.corrected is None else f", p{NO_BREAK}{equals(other.corrected)} after Holm’s correction"
    brief = f"{lead.name} − {other.name}{more}: {points(found.mean)}{NO_BREAK}points{after}. {tells}"
    needs = _needed(found, tests) if found.n >= FEWEST and not holds else ""
    return Verdict(holds and found.n >= FEWEST, f"{opening} {tells}{needs}{_late(other.last_quarter)}", brief)


def _late(found: Paired | None) -> str:
    """A second look, not corrected for many: rounds swing, and a mean over many of them less."""
    if found is None or found.p is None:
        return ""
    return (
        f" Over the last quarter of the rounds: {points(found.mean)}{NO_BREAK}points (95{NO_BREAK}% interval "
        f"{points(found.low)} to {points(found.high)}, p{NO_BREAK}{equals(found.p)}, not corrected)."
    )


def _test(found: Paired, corrected: float | None) -> str:
    if found.p is None or found.size is None:
        return f" (n = {found.n})".replace(" ", NO_BREAK)
    after = f", p{NO_BREAK}{equals(corrected)} after Holm’s correction" if corrected is not None else ""
    return (
        f" (n{NO_BREAK}={NO_BREAK}{found.n}, 95{NO_BREAK}% interval {points(found.low)} to {points(found.high)}, "
        f"paired t-test p{NO_BREAK}{equals(found.p)}{after}, d{NO_BREAK}={NO_BREAK}{effect(found.size)})"
    )


def effect(size: float) -> str:
    """
    >>> effect(-0.44), effect(-0.01)
    ('−0.4', '0.0')
    """
    return f"{round(size, 1) + 0.0:.1f}".replace("-", "−")


def equals(p: float) -> str:
    shown = probability(p)
    return shown.replace(" ", NO_BREAK) if shown.startswith("<") else f"={NO_BREAK}{shown}"
