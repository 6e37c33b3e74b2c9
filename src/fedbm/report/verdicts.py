"""Write verdicts: sentences computed from the numbers, with the same words whichever row is ahead."""

from __future__ import annotations

from collections.abc import Sequence

from fedbm.errors import join_words
from fedbm.experiments.paper_numbers import TRIALS
from fedbm.methods import METHODS, FedAvg
from fedbm.report.comparison import HEADLINE_METRIC, ComparedGroup, ComparedRow, data_title
from fedbm.report.contrasts import Contrast
from fedbm.report.format import NO_BREAK, effect, mean_and_std, p_value, percent, points
from fedbm.utils.statistics import MIN_SEEDS, MOST_SEEDS, Paired, seeds_needed, spread, welch
from fedbm.utils.text import format_count

LEVEL = 0.05
MAX_NAMED = 3  # rows that a sentence names
METHOD_TITLES = [method.title for method in METHODS.values()]


# --- in plain words -------------------------------------------------------------------------------------------------


def plain_verdict(comparison: ComparedGroup) -> tuple[str, ...]:
    """Return two sentences for readers without statistics.

    The first has the number of correct images of 100, also of the best row if that is ahead of the leading one at the
    same seeds. The second compares macro-F1 with the baseline, and states whether chance may explain the difference.
    """
    lead, rivals = comparison.leading, main_rivals(comparison)
    if lead is None or not lead.runs:
        return (_without_lead(lead),)
    correct = _whole_percent(lead, "accuracy", *rivals[-1:])
    first = f"With {lead.name}, {correct} of 100 test images were classified correctly"
    if not rivals:
        f1 = _whole_percent(lead, HEADLINE_METRIC)
        return (
            f"{first}; {_why_alone(comparison)}.",
            f"Macro-F1, in which rare classes count as much as common ones, is {f1} of 100.",
        )
    best, rival = rivals[0], rivals[-1]  # the rival is FedAvg, the baseline, or else the best other row
    third, same_seeds = "", set(best.by_seed()) == set(rival.by_seed()) == set(lead.by_seed())
    if best is not rival and same_seeds and best.tests["best"].paired.mean < 0:
        images = _whole_percent(best, "accuracy", lead)
        third = f"; with {best.name}, which has a higher macro-F1 than {lead.name}, {images}"
    found = rival.tests["best"].paired
    may = "is unlikely to" if _holds(rival.tests["best"].corrected, found) else "may"
    chance = f"with {_count_seeds(found.n)}, chance alone {may} explain this"
    return (
        f"{first}; with {rival.name}, {_whole_percent(rival, 'accuracy', lead)}{third}.",
        f"{lead.name}’s macro-F1, in which rare classes count as much as common ones, is "
        f"{_compare(found, rival.name)}; {chance}.",
    )


def planned_verdict(found: Sequence[ComparedGroup]) -> tuple[str, ...]:
    """Return sentences without symbols on an experiment with stated contrasts; () without a difference.

    A sentence per cell compares the leading row with other methods, or the first row of each contrast if the leading
    row is the first of none. Others name runs that diverged. After a test, one states what chance may explain.
    """
    lead = next((comparison.lead for comparison in found if comparison.lead), "")
    sentences: list[str] = []
    stated: list[tuple[str, Contrast, Paired]] = []  # with the cell's name
    for comparison, cell in zip(found, plain_names(found), strict=True):
        of_lead = [one for one in comparison.contrasts if one.first == lead] or comparison.contrasts
        some = [one for one in of_lead if one.second in METHOD_TITLES] or of_lead
        known = [(cell, one, one.found) for one in some if one.found is not None]
        for name in dict.fromkeys(one.first for _, one, _ in known):
            own = [(one, difference) for _, one, difference in known if one.first == name]
            words = join_words([_compare(difference, one.second) for one, difference in own], "and")
            chosen = [points(one.chosen.mean) for one, _ in own if one.chosen]
            if len(chosen) == len(own):
                moment = "at the round chosen on validation, without averaging over rounds"
                words += f" ({join_words(chosen, 'and')} {moment})"
            sentences.append(f"On {cell}, {name}’s macro-F1 was {words}.")
        sentences += [f"On {cell}, {sentence}" for sentence in _diverged(comparison) if known]
        stated += known
    if not stated:
        return ()
    about = "Macro-F1 counts rare findings as much as common ones."
    if not stated[0][1].tested:
        counts = [difference.n for *_, difference in stated]
        seeds = _count_seeds(max(counts)) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} seeds"
        clear = [difference.n > 1 and not difference.low <= 0 <= difference.high for *_, difference in stated]
        words = f"{'some of ' * any(clear)}these differences" if len(clear) > 1 else "this difference"
        means = ": it suggests, but does not prove." if all(clear) else f". Chance alone may explain {words}."
        return (*sentences, f"{about} This is an estimate from {seeds}, not a test{means}")
    by_chance = [
        f"to {one.second} on {cell}" if one.first == lead else f"between {one.first} and {one.second} on {cell}"
        for cell, one, difference in stated
        if not _holds(one.corrected, difference)
    ]
    several = len(stated) > 1
    if not by_chance:
        words = "any of these differences" if several else "this difference"
        chance = f"Chance alone is unlikely to explain {words}."
    elif len(by_chance) == len(stated):
        chance = f"Chance alone may explain {'these differences' if several else 'this difference'}."
    else:
        words, rest = join_words(by_chance, "and"), len(stated) - len(by_chance)
        chance = (
            f"Chance alone may explain the difference{'s' * (len(by_chance) > 1)} {words}; "
            f"for the other{'s' * (rest > 1)} this is unlikely."
        )
    return (*sentences, chance, f"{about} The comparison was fixed before these runs.")


def _compare(difference: Paired, name: str) -> str:
    """Return '17.1 points higher than FedAvg’s', '3.0 points lower than FedAvg’s' or 'equal to FedAvg’s'."""
    size = abs(100 * difference.mean)
    if round(size, 9) == 0:
        return f"equal to {name}’s"
    amount = f"{size:.1f}" if round(size, 1) else "less than 0.1"
    return f"{amount} points {'higher' if difference.mean > 0 else 'lower'} than {name}’s"


def plain_names(found: Sequence[ComparedGroup]) -> list[str]:
    """Return the data set of every cell, with other settings only if several cells have the same data set."""
    names = [data_title(comparison.data) for comparison in found]
    settings = [" and ".join(f"{key} {value}" for key, value in c.at.items() if key != "data") for c in found]
    return [
        f"{name} with {words}" if words and names.count(name) > 1 else name
        for name, words in zip(names, settings, strict=True)
    ]


def main_rivals(comparison: ComparedGroup) -> list[ComparedRow]:
    """Return the best of the other rows, and FedAvg's row if it is a different one; [] if none can be compared."""
    others = [row for row in comparison.rows if "best" in row.tests]
    if not others:
        return []
    best = min(others, key=lambda row: row.tests["best"].paired.mean)
    if comparison.leading is not None and comparison.leading.method == FedAvg.name:
        return [best]  # among FedAvg's own variants, none is the baseline
    return [best, *[row for row in others if row.method == FedAvg.name and row is not best][:1]]


def _whole_percent(row: ComparedRow, metric: str, *others: ComparedRow) -> str:
    """Return the mean score in whole percent, over the seeds that the other rows have too; "?" if there are none."""
    seeds = [set(other.by_seed()) for other in others]
    scores = [score for seed, score in row.by_seed("best", metric).items() if all(seed in some for some in seeds)]
    return f"{100 * spread(scores).mean:.0f}" if scores else "?"


def _count_seeds(seeds: int) -> str:
    return f"{seeds} seeds" if seeds > 1 else "one seed"


# --- with statistics ------------------------------------------------------------------------------------------------


def verdicts(comparison: ComparedGroup) -> list[str]:
    """Return the results for the leading row or the stated contrasts, and for all rows against the paper."""
    if comparison.contrasts:
        tested = [_contrast_verdict(one) for one in comparison.contrasts if one.tested]
        return [*(tested or _ladder_verdict(comparison)), *_diverged(comparison)] if comparison.lead else []
    return [*_lead_verdicts(comparison), *_paper_verdicts(comparison)]


def _lead_verdicts(comparison: ComparedGroup) -> list[str]:
    """Compare the leading row with the best other row, and with FedAvg if that is another."""
    lead = comparison.leading
    if len(comparison.rows) == 1:
        return []
    if lead is None or not lead.runs:
        return [_without_lead(lead)]
    others = [row for row in comparison.rows if "best" in row.tests]
    if not others:
        return [f"{lead.name} cannot be compared: {_why_alone(comparison)}."]
    best, *fedavg = main_rivals(comparison)
    more = f", the best of {len(others)} others," if len(others) > 1 else ""
    found = [_verdict(lead, best, more, comparison.tests)]
    found += [_verdict(lead, row, "", comparison.tests) for row in fedavg]
    unequal = [row.name for row in others if set(row.by_seed()) != set(lead.by_seed())]
    if unequal:
        words = f"{join_words(unequal, 'and')} {'has' if len(unequal) == 1 else 'have'} other seeds than {lead.name}"
        found.append(f"{words}: compare the difference over the seeds that both have, not the means.")
    return [*found, *_tuned_values(lead)]


def _without_lead(lead: ComparedRow | None) -> str:
    if lead is None:
        return "No run is finished, so there is no result yet."
    return f"{lead.name} has no finished run, so no row is compared with it."


def _why_alone(comparison: ComparedGroup) -> str:
    """Return why no row can be compared with the leading one."""
    others = [row for row in comparison.rows if row.runs and row.name != comparison.lead]
    names = [row.name for row in others if not row.central]
    if names:
        return f"{join_words(names, 'and')} share{'s' * (len(names) == 1)} no seed with {comparison.lead}"
    if others:
        return "the only other results are those of central training, which is not compared"
    return "no other method or setting has a finished run"


def _holds(corrected: float | None, found: Paired) -> bool:
    """Return whether a difference is established: p after correction is small, from enough seeds."""
    return corrected is not None and corrected < LEVEL and found.n >= MIN_SEEDS


def _verdict(lead: ComparedRow, other: ComparedRow, more: str, tests: int) -> str:
    """Compare two rows over the seeds both have."""
    test, ours, theirs = other.tests["best"], lead.by_seed(), other.by_seed()
    found, holds = test.paired, _holds(test.corrected, test.paired)
    both = [seed for seed in ours if seed in theirs]
    means = [mean_and_std(spread([scores[seed] for seed in both])) for scores in (ours, theirs)]
    if found.p is None:
        result = f"{'One pair of seeds' if found.n == 1 else 'Differences that do not vary'} cannot be tested."
    elif found.n < MIN_SEEDS:
        result = "Two seeds cannot establish a difference."
    else:
        result = _established(found, holds)
    needed = "" if holds else _describe_seeds_needed(found, tests)
    corrected = [] if test.corrected is None else [f"{p_value(test.corrected)} after Holm’s correction"]
    quarter = other.tests["last_quarter"].paired if "last_quarter" in other.tests else None
    last = ""
    if quarter is not None and quarter.p is not None:  # single rounds vary, a mean over many of them less
        evidence = f"{_interval(quarter)}, {p_value(quarter.p)}, not corrected"
        last = f" Over the last quarter of the rounds, the difference is {_points(quarter)} ({evidence})."
    return (
        f"{lead.name} has {means[0]} macro-F1; {other.name}{more} has {means[1]}. The difference is {_points(found)} "
        f"({_evidence(found, *corrected)}). {result}{needed}{last}"
    )


def _ladder_verdict(comparison: ComparedGroup) -> list[str]:
    """State what each step of a ladder adds, and which steps are clear; [] without a ladder or if a step is missing."""
    steps = [(one.first, one.found) for one in comparison.ladder if one.found is not None]
    if len(steps) < max(2, len(comparison.ladder)):
        return []
    words = join_words([f"{name} {_points(found)}" for name, found in steps], "and")
    sentences = [f"Step by step from {comparison.baseline.name} to {comparison.lead}, in macro-F1: {words}."]
    interval = f"95{NO_BREAK}% interval"
    clear = [name for name, found in steps if found.n > 1 and not found.low <= 0 <= found.high]
    single = [name for name, found in steps if found.n == 1]
    if len(single) == len(steps):
        sentences.append(f"Each step has one seed, so there is no {interval}.")
    else:
        sentences.append(
            f"Steps with a {interval} without zero: {join_words(clear, 'and')}."
            if clear
            else f"No step has a {interval} without zero."
        )
        if single:
            have = "has" if len(single) == 1 else "have"
            sentences.append(f"{join_words(single, 'and')} {have} one seed and so no interval.")
    if len({tuple(one.by_seed) for one in comparison.ladder}) > 1:
        sentences.append("The steps have different seeds, so they do not add up to the whole difference.")
    return [" ".join(sentences)]


def _contrast_verdict(contrast: Contrast) -> str:
    """Return a planned difference with the result of its test. A table has the rest."""
    found = contrast.found
    if found is None:
        return f"{contrast.name}: no seed has both runs."
    assert contrast.corrected is not None
    holds = _holds(contrast.corrected, found)
    corrected = f"{p_value(contrast.corrected)} after Holm’s correction over {format_count(contrast.tests, 'test')}"
    result = f"{contrast.name}: {_points(found)} of macro-F1, {corrected}. {_established(found, holds)}"
    return result if holds else result + _describe_seeds_needed(found, contrast.tests)


def _points(found: Paired) -> str:
    return f"{points(found.mean)}{NO_BREAK}points"


def _interval(found: Paired) -> str:
    return f"95{NO_BREAK}% interval {points(found.low)} to {points(found.high)}"


def _evidence(found: Paired, *corrected: str) -> str:
    """Return n, the interval, p and the effect size, without those that need a spread if there is none."""
    words = [f"n{NO_BREAK}={NO_BREAK}{found.n}"]
    words += [_interval(found), f"paired t-test {p_value(found.p)}"] if found.p is not None else []
    words += [*corrected, *([f"d{NO_BREAK}={NO_BREAK}{effect(found.size)}"] if found.size is not None else [])]
    return ", ".join(words)


def _established(found: Paired, holds: bool) -> str:
    if not holds:
        return "The difference is not established."
    return f"{'An advantage' if found.mean > 0 else 'A disadvantage'} is established."


def _describe_seeds_needed(found: Paired, tests: int) -> str:
    seeds = count_seeds_needed(found, tests)
    level = f"level {LEVEL}/{tests}" if tests > 1 else f"level {LEVEL}"
    power = f"80{NO_BREAK}% power at {level}; estimated from {found.n} seeds"
    return f" A difference of this size would need {seeds} seeds ({power})." if seeds and tests else ""


def count_seeds_needed(found: Paired, tests: int) -> str:
    """Return how many seeds would show a difference of this size; "" if the lead is not ahead or it is unknown.

    Two seeds do not show how much differences vary.
    """
    if found.size is None or found.mean <= 0 or found.n < MIN_SEEDS:
        return ""
    seeds = seeds_needed(found.size, LEVEL / max(tests, 1))
    return f"about {seeds}" if seeds else f"more than {MOST_SEEDS:,}"


def _diverged(comparison: ComparedGroup) -> list[str]:
    """Return a sentence for each row with diverged runs, and each score with which they count."""
    seeds: dict[tuple[str, float], list[str]] = {}
    for row in comparison.rows:
        for result in row.missing:
            if result.last is not None:
                seeds.setdefault((row.name, result.last[HEADLINE_METRIC]), []).append(str(result.seed))
    return [
        f"{name} diverged at seed{'s' * (len(some) > 1)} {join_words(some, 'and')} and counts there "
        f"{f'with the last averaged macro-F1, {percent(score)} of 100' if score else 'as 0'}."
        for (name, score), some in seeds.items()
    ]


def _tuned_values(lead: ComparedRow) -> list[str]:
    """State the values of the leading method's tuned options."""
    method, values = METHODS.get(lead.method), lead.runs[0].config["method"]
    if method is None or not method.tuned or lead.name != method.title:
        return []
    if not all(isinstance(values.get(key), int | float) for key in method.tuned):  # of another version, or damaged
        return []
    words = ", ".join(f"{name}{NO_BREAK}{values[key]:g}" for key, name in method.tuned.items())
    return [f"{lead.name} was run with one setting ({words}); others may give other scores."]


def _paper_verdicts(comparison: ComparedGroup) -> list[str]:
    """State which means differ from the paper's by more than both spreads explain; [] if none can be tested."""
    found = {row.name: test for row in comparison.rows if (test := _against_paper(row))}
    words = {name: f"{name} ({points(d)}{NO_BREAK}points, {p_value(p)})" for name, (d, p) in found.items()}
    differ = [name for name, (_, p) in found.items() if p < LEVEL]
    others = [name for name in found if name not in differ]
    sentences = []
    if differ:
        names = join_words((words[name] for name in differ), "and")
        sentences.append(f"{names} differ{'s' * (len(differ) == 1)} from the paper’s macro-F1.")
    if others:
        rows = join_words((words[name] for name in others), "and")
        if len(others) > MAX_NAMED:
            nearest = min(others, key=lambda name: found[name][1])
            rows = f"{len(others)} {'other ' * bool(differ)}rows; {words[nearest]} has the smallest p"
        sentences.append(f"No difference from the paper’s macro-F1 is established for {rows}.")
    how = f"The test is Welch’s t-test against the paper’s three trials, α{NO_BREAK}={NO_BREAK}{LEVEL}, uncorrected."
    return [" ".join([*sentences, how])] if found else []


def _against_paper(row: ComparedRow) -> tuple[float, float] | None:
    """Return ours − the paper's and its p; None for fewer seeds than a verdict needs."""
    difference = row.minus_paper(HEADLINE_METRIC)
    if difference is None or row.published is None or len(row.runs) < MIN_SEEDS:
        return None
    ours = spread(list(row.by_seed().values()))
    p = welch(ours, row.published.mean[HEADLINE_METRIC], row.published.std[HEADLINE_METRIC], TRIALS)
    return None if p is None else (difference, p)
