"""What the numbers say, in sentences computed from them: the same words whichever row is ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedbm.errors import join_words
from fedbm.experiments.contrasts import HEADLINE_METRIC, Contrast
from fedbm.experiments.paper_numbers import TRIALS
from fedbm.methods import METHODS, FedAvg
from fedbm.report.comparison import ComparedRow, Comparison
from fedbm.report.format import NO_BREAK, effect, equals, mean_and_std, points
from fedbm.utils.statistics import MOST_SEEDS, Paired, seeds_needed, spread, welch

LEVEL = 0.05
FEWEST = 3  # seeds behind a verdict: two leave one degree of freedom, and agree too often by chance
MOST_NAMED = 3  # rows that a sentence names


@dataclass(frozen=True)
class Verdict:
    """*holds*: the difference is larger than chance often makes, after correction for the number of tests."""

    holds: bool
    sentence: str
    brief: str = ""  # for an overview; "" if that needs nothing


def plain_verdict(comparisons: Sequence[tuple[str, Comparison]]) -> tuple[str, ...]:
    """Return two sentences for readers without statistics, on one data set under one or more (named) settings.

    The first says how many images of 100 are right, the second compares macro-F1 with the baseline and says whether
    chance explains the difference.
    """
    found = [(name, c, c.leading) for name, c in comparisons if c.leading is not None and c.leading.runs is not None]
    if not found:
        return ("No run is finished, so there is no result yet.",)
    lead = found[0][1].lead
    rivals = [row for _, c, _ in found if (row := _main_rival(c)) is not None]
    right = _by_setting([(name, _of_100(row)) for name, _, row in found])
    first = f"With {lead}, {right} of 100 test images were classified correctly"
    if not rivals or len(rivals) < len(found):
        f1 = _by_setting([(name, f"{100 * spread(list(row.by_seed().values())).mean:.0f}") for name, _, row in found])
        return (
            f"{first}; there is no finished run of another method to compare with.",
            f"Macro-F1, in which rare classes count as much as common ones, is {f1} of 100.",
        )
    rival = rivals[0].name if len({row.name for row in rivals}) == 1 else "the best other method"
    theirs = _by_setting([(name, _of_100(row)) for (name, _, _), row in zip(found, rivals, strict=True)])
    tests = [row.tests["best"] for row in rivals]
    apart = _by_setting([(name, points(t.paired.mean)) for (name, _, _), t in zip(found, tests, strict=True)])
    holds = [_holds(row) for row in rivals]
    seeds = max(t.paired.n for t in tests)
    which = [name for (name, _, _), known in zip(found, holds, strict=True) if known]
    repeated = f"{seeds} repetitions" if seeds > 1 else "one repetition"
    if all(holds):
        chance = "chance alone hardly explains this"
    elif which:
        chance = f"chance alone hardly explains this for {join_words(which, 'and')}, but may explain the rest"
    else:
        chance = f"with {repeated}, chance alone may explain this"
    return (
        f"{first}; with {rival}, {theirs}.",
        f"{lead}’s macro-F1, in which rare classes count as much as common ones, differs from {rival}’s by {apart} "
        f"points; {chance}.",
    )


def _main_rival(comparison: Comparison) -> ComparedRow | None:
    """Return FedAvg's row, the baseline; without it the best other row; None if no row can be compared."""
    compared = foremost(comparison)
    return compared[-1] if compared else None


def _of_100(row: ComparedRow) -> str:
    score = row.score("best", "accuracy")
    return f"{100 * score.mean:.0f}" if score else "?"


def _by_setting(values: Sequence[tuple[str, str]]) -> str:
    """Return '73 (β = 0.1) and 74 (β = 0.05)', or '73' if it is the same in all settings."""
    if len({value for _, value in values}) == 1:
        return values[0][1]
    return join_words([f"{value} ({name})" for name, value in values], "and")


def verdicts(comparison: Comparison) -> list[Verdict]:
    """Return what is found for the leading row or the stated contrasts, and for all rows against the paper."""
    if comparison.contrasts:
        return [*map(_contrast_verdict, comparison.contrasts), *_diverged(comparison)] if comparison.lead else []
    return [*_lead_verdicts(comparison), *_paper_verdicts(comparison)]


def foremost(comparison: Comparison) -> list[ComparedRow]:
    """Return the best of the other rows, and FedAvg if that is another; [] if none can be compared."""
    others = [row for row in comparison.rows if "best" in row.tests]
    if not others:
        return []
    best = min(others, key=lambda row: row.tests["best"].paired.mean)
    lead = comparison.leading
    if lead is not None and lead.runs is not None and lead.runs.method == FedAvg.name:
        return [best]  # among FedAvg's own variants, none is the baseline
    return [best, *[row for row in others if row.runs and row.runs.method == FedAvg.name and row is not best][:1]]


def _lead_verdicts(comparison: Comparison) -> list[Verdict]:
    """Compare the leading row with the best other, and with FedAvg if that is another. A single row has no verdict.

    The best other row has the least lead − row over the seeds both have; scores are means over these seeds.
    """
    if len(comparison.rows) == 1:
        return []
    lead = comparison.leading
    if lead is None:
        return [_none("No run is finished, so there is no result.")]
    if lead.runs is None:
        return [_none(f"{lead.name} has no finished run, so no row is compared with it.")]
    others = [row for row in comparison.rows if "best" in row.tests]
    if not others:
        return [_none(f"{lead.name} cannot be compared: no other row has finished one of its seeds.")]
    best, *fedavg = foremost(comparison)
    more = f", the best of {len(others)} others" if len(others) > 1 else ""
    tests = comparison.tests
    found = [_verdict(lead, best, more, tests), *(_verdict(lead, row, "", tests) for row in fedavg)]
    ahead = best.tests["best"].paired.mean > 0 and all(verdict.holds for verdict in found)
    return [*found, *_other_seeds(lead, others), *([] if ahead else _tuned_values(lead))]


def _none(sentence: str) -> Verdict:
    return Verdict(False, sentence, sentence)


def _holds(row: ComparedRow) -> bool:
    test = row.tests["best"]
    return test.corrected is not None and test.corrected < LEVEL and test.paired.n >= FEWEST


def _verdict(lead: ComparedRow, other: ComparedRow, more: str, tests: int) -> Verdict:
    test = other.tests["best"]
    found, corrected, scores = test.paired, test.corrected, (lead.by_seed(), other.by_seed())
    both = sorted(set(scores[0]) & set(scores[1]))
    ours, theirs = (spread([by_seed[seed] for seed in both]) for by_seed in scores)
    opening = (
        f"{lead.name} has {mean_and_std(ours)} macro-F1 against {other.name}’s {mean_and_std(theirs)}{more}: "
        f"{points(found.mean)}{NO_BREAK}points{_test_words(found, corrected)}."
    )
    if found.p is None:
        result = f"{'One pair of seeds' if found.n == 1 else 'Differences that do not vary'} cannot be tested."
    elif found.n < FEWEST:
        result = "Two seeds cannot establish a difference."
    else:
        result = _established(found, _holds(other))
    after = "" if corrected is None else f", p{NO_BREAK}{equals(corrected)} after Holm’s correction"
    brief = f"{lead.name} − {other.name}{more}: {points(found.mean)}{NO_BREAK}points{after}. {result}"
    needed = _needed(found, tests) if found.n >= FEWEST and not _holds(other) else ""
    quarter = other.tests.get("last_quarter")
    last = _last_quarter(quarter.paired if quarter else None)
    return Verdict(_holds(other), f"{opening} {result}{needed}{last}", brief)


def _contrast_verdict(contrast: Contrast) -> Verdict:
    """Return a stated difference with its interval, and its test if the experiment is confirmatory."""
    found = contrast.found
    if found is None:
        return _none(f"{contrast.name}: no seed has both runs.")
    where = {"averaged last": "averaged model, last round"}.get(contrast.endpoint, "round chosen on validation")
    difference = f"{contrast.name}: {points(found.mean)}{NO_BREAK}points of macro-F1"
    said = [where, f"n{NO_BREAK}={NO_BREAK}{found.n}", *_interval(found)]
    holds, result = False, " An estimate, not a test."
    if contrast.tested:
        assert contrast.corrected is not None
        holds = contrast.corrected < LEVEL
        result = f" {_established(found, holds)}"
        said += [f"paired t-test p{NO_BREAK}{equals(found.p)}"] if found.p is not None else []
        said += [f"p{NO_BREAK}{equals(contrast.corrected)} after Holm’s correction over {contrast.tests} tests"]
        said += [f"sign-flip p{NO_BREAK}{equals(contrast.sign_flip)}"] if contrast.sign_flip is not None else []
    said += [f"d{NO_BREAK}={NO_BREAK}{effect(found.size)}"] if found.size is not None else []
    needed = _needed(found, contrast.tests) if contrast.tested and not holds else ""
    chosen = ""
    if contrast.chosen is not None:
        bounds = ", ".join(_interval(contrast.chosen))
        at = f"{points(contrast.chosen.mean)}{NO_BREAK}points{f' ({bounds})' if bounds else ''}"
        chosen = f" At the round chosen on validation, without averaging: {at}."
    return Verdict(holds, f"{difference} ({', '.join(said)}).{result}{needed}{chosen}", f"{difference}.{result}")


def _interval(found: Paired) -> list[str]:
    return [f"95{NO_BREAK}% interval {points(found.low)} to {points(found.high)}"] if found.p is not None else []


def _established(found: Paired, holds: bool) -> str:
    if not holds:
        return "An advantage is not established."
    return f"{'An advantage' if found.mean > 0 else 'A disadvantage'} is established."


def _needed(found: Paired, tests: int) -> str:
    """Return how many seeds a claim of this size would need; "" if the lead is not ahead."""
    if found.size is None or found.mean <= 0 or not tests:
        return ""
    seeds = seeds_needed(found.size, LEVEL / tests)
    many = f"about {seeds}" if seeds else f"more than {MOST_SEEDS:,}"
    level = f"level {LEVEL}/{tests}" if tests > 1 else f"level {LEVEL}"
    return (
        f" A difference of this size would need {many} seeds (80{NO_BREAK}% power at {level}; an estimate from the "
        f"spread of {found.n})."
    )


def _diverged(comparison: Comparison) -> list[Verdict]:
    """Name the runs that count with the last scores they had."""
    said = [
        f"{row.name}, seed {result.seed} ({100 * result.last[HEADLINE_METRIC]:.1f}{NO_BREAK}%)"
        for row in comparison.rows
        for result in row.missing
        if result.last is not None
    ]
    counts = "These runs diverged and count" if len(said) > 1 else "One run diverged and counts"
    return [Verdict(False, f"{counts} with the last averaged score: {join_words(said, 'and')}.")] if said else []


def _test_words(found: Paired, corrected: float | None) -> str:
    if found.p is None or found.size is None:
        return f" (n = {found.n})".replace(" ", NO_BREAK)
    after = f", p{NO_BREAK}{equals(corrected)} after Holm’s correction" if corrected is not None else ""
    return (
        f" (n{NO_BREAK}={NO_BREAK}{found.n}, 95{NO_BREAK}% interval {points(found.low)} to {points(found.high)}, "
        f"paired t-test p{NO_BREAK}{equals(found.p)}{after}, d{NO_BREAK}={NO_BREAK}{effect(found.size)})"
    )


def _last_quarter(found: Paired | None) -> str:
    """Return a second look that is not corrected: single rounds vary, a mean over many of them less."""
    if found is None or found.p is None:
        return ""
    return (
        f" Over the last quarter of the rounds: {points(found.mean)}{NO_BREAK}points (95{NO_BREAK}% interval "
        f"{points(found.low)} to {points(found.high)}, p{NO_BREAK}{equals(found.p)}, not corrected)."
    )


def _other_seeds(lead: ComparedRow, others: Sequence[ComparedRow]) -> list[Verdict]:
    """Warn about means over other seeds than the leading row's: seeds differ more than methods."""
    unequal = [row.name for row in others if set(row.by_seed()) != set(lead.by_seed())]
    if not unequal:
        return []
    words = f"{join_words(unequal, 'and')} {'has' if len(unequal) == 1 else 'have'} other seeds than {lead.name}"
    return [Verdict(False, f"{words}: compare the difference over the seeds both have, not the means.")]


def _tuned_values(lead: ComparedRow) -> list[Verdict]:
    """State with which values of its tuned options a method was run, if its advantage is not established."""
    assert lead.runs is not None
    method, values = METHODS.get(lead.runs.method), lead.runs.runs[0].config["method"]
    if method is None or not method.tuned or lead.name != method.title or not set(method.tuned) <= set(values):
        return []
    words = join_words([f"{name}{NO_BREAK}{values[key]:g}" for key, name in method.tuned.items()], "and")
    return [Verdict(False, f"{lead.name} was run with {words} only.")]


def _paper_verdicts(comparison: Comparison) -> list[Verdict]:
    """State which means differ from the printed ones by more than both spreads explain; [] if none can be tested."""
    found = {row.name: test for row in comparison.rows if (test := _against_paper(row))}
    if not found:
        return []
    shown = {
        name: f"{name} ({points(difference)}{NO_BREAK}points, p{NO_BREAK}{equals(p)})"
        for name, (difference, p) in found.items()
    }
    differ = [name for name, (_, p) in found.items() if p < LEVEL]
    others = [name for name in found if name not in differ]
    said = []
    if differ:
        names = join_words((shown[name] for name in differ), "and")
        said.append(f"{names} differ{'s' * (len(differ) == 1)} from the paper’s macro-F1")
    brief, smallest = f"{said[0]}." if said else "", ""
    if others:
        nearest = min(others, key=lambda name: found[name][1])
        rows = join_words((shown[name] for name in others), "and")
        if len(others) > MOST_NAMED:
            rows = f"any of the {'other ' * bool(differ)}{len(others)} rows"
            difference, p = found[nearest]
            smallest = f"; smallest p: {nearest}, {points(difference)}{NO_BREAK}points, p{NO_BREAK}{equals(p)}"
        opening = "no difference" if differ else "No difference from the paper’s macro-F1"
        said.append(f"{opening} is established for {rows}")
    how = f"Welch’s t-test against its three trials, α{NO_BREAK}={NO_BREAK}{LEVEL}, uncorrected{smallest}"
    return [Verdict(False, f"{'; '.join(said)} ({how}).", brief)]


def _against_paper(row: ComparedRow) -> tuple[float, float] | None:
    """Return ours − the paper's and its p; None for fewer seeds than a verdict needs."""
    difference = row.minus_paper(HEADLINE_METRIC)
    if difference is None or row.published is None or row.n < FEWEST:
        return None
    ours = spread(list(row.by_seed().values()))
    p = welch(ours, row.published.mean[HEADLINE_METRIC], row.published.std[HEADLINE_METRIC], TRIALS)
    return None if p is None else (difference, p)
