"""Write verdicts: fixed sentences computed from the numbers, with the same words whichever row is ahead."""

from __future__ import annotations

from collections.abc import Sequence

from fedbm.experiments.paper_numbers import TRIALS
from fedbm.methods import METHODS, FedAvg
from fedbm.report.format import NO_BREAK, effect, format_interval, p_value, percent, points
from fedbm.report.group import HEADLINE_METRIC, LEVEL, Contrast, Group, GroupRow
from fedbm.utils.statistics import MIN_SEEDS, MOST_SEEDS, Paired, seeds_needed, spread, welch
from fedbm.utils.text import format_count

MAX_NAMED = 3  # rows that are compared with the paper in words
METHOD_TITLES = [method.title for method in METHODS.values()]
NO_RESULT = "Nothing is compared yet: no run of the leading row is finished."
OTHER_SEEDS = (
    "Rows differ in their seeds: a difference is over the seeds that both rows have, a mean in the table over all "
    "seeds of its row."
)
RARE_CLASSES = "in which rare classes count as much as common ones"
RARE_FINDINGS = "Macro-F1 counts rare findings as much as common ones."
FIXED_BEFORE = "The comparison was fixed before these runs."
ESTIMATED = "These are estimates, not tests. Their intervals show how much chance alone may explain."


# --- in plain words -------------------------------------------------------------------------------------------------


def plain_verdict(comparison: Group) -> tuple[str, ...]:
    """Return sentences for readers without statistics: correct images of 100, and the difference in macro-F1.

    The leading row is compared with the baseline. If the best other row is ahead at the same seeds, it is named too.
    Where seeds differ, a last sentence says so.
    """
    lead, rivals = comparison.leading, main_rivals(comparison)
    if lead is None or not lead.runs:
        return (NO_RESULT,)
    baseline = rivals[-1:]  # FedAvg, or else the best other row
    better = [row for row in rivals[:-1] if row.tests["best"].paired.mean < 0 and row.seeds == lead.seeds]
    named = [*baseline, *better]
    seeds = lead.seeds.intersection(*(row.seeds for row in named))
    others = "".join(f"; with {row.name}, {_whole_percent(row, 'accuracy', seeds)}" for row in named)
    correct = _whole_percent(lead, "accuracy", seeds)
    first = f"With {lead.name}, {correct} of 100 test images were classified correctly{others}."
    if not rivals:
        return (first, f"Macro-F1, {RARE_CLASSES}, is {_whole_percent(lead, HEADLINE_METRIC, seeds)} of 100.")
    return (first, *(_plain_difference(lead, row) for row in named), *_other_seeds(lead, named))


def _other_seeds(lead: GroupRow, rows: Sequence[GroupRow]) -> list[str]:
    """Return why differences are not those of the means in the table; [] if they are."""
    return [OTHER_SEEDS] if any(row.seeds != lead.seeds for row in rows) else []


def _plain_difference(lead: GroupRow, row: GroupRow) -> str:
    found = row.tests["best"].paired
    may = "is unlikely to" if row.tests["best"].established else "may"
    return (
        f"{lead.name}’s macro-F1, {RARE_CLASSES}, is {_gap(found)} {row.name}’s; "
        f"with {format_count(found.n, 'seed')}, chance alone {may} explain this."
    )


def planned_verdict(found: Sequence[Group]) -> tuple[str, ...]:
    """Return sentences in plain words on an experiment with stated contrasts; () without a difference.

    A sentence per cell compares the leading row with other methods. If it is not compared with a method, the sentence
    has all contrasts.
    """
    sentences: list[str] = []
    by_chance: list[str] = []
    tested = False
    for comparison in found:
        known = [one for one in comparison.contrasts if one.found is not None]
        main = [one for one in known if one.first == comparison.lead and one.second in METHOD_TITLES] or known
        if main:
            tested = main[0].tests > 0
            by_chance += [f"{one.name} on {comparison.title}" for one in main if not _is_clear(one)]
            score = "Macro-F1 of the averaged model" if comparison.moment == "averaged" else "Macro-F1"
            sentences.append(f"{score} on {comparison.title}: {'; '.join(map(_plain_contrast, main))}.")
            sentences += [f"On {comparison.title}, {sentence}" for sentence in _diverged(comparison)]
    if not sentences:
        return ()
    chance = "Chance alone is unlikely to explain these differences."
    if by_chance:
        chance = f"Chance alone may explain: {'; '.join(by_chance)}."
    said = (chance,) if tested or by_chance else ()  # an estimate does not rule out chance
    return (*sentences, *said, f"{RARE_FINDINGS} {FIXED_BEFORE if tested else ESTIMATED}")


def _is_clear(contrast: Contrast) -> bool:
    """Return whether the test establishes a difference or, for an estimate, whether its interval is without zero."""
    found = contrast.paired
    return contrast.established if contrast.tests else found.n > 1 and not found.low <= 0 <= found.high


def _plain_contrast(contrast: Contrast) -> str:
    chosen = f" ({points(contrast.chosen.mean)} at the round chosen on validation)" if contrast.chosen else ""
    return f"{contrast.first} is {_gap(contrast.paired)} {contrast.second}{chosen}"


def _gap(difference: Paired) -> str:
    """Return '17.1 points above' or '3.0 points below'."""
    amount = points(difference.mean)
    return f"{amount.lstrip('+−')} points {'below' if amount.startswith('−') else 'above'}"


def main_rivals(comparison: Group) -> list[GroupRow]:
    """Return the best of the other rows, and FedAvg's row if it is a different one; [] if none can be compared."""
    others = [row for row in comparison.rows if "best" in row.tests]
    if not others:
        return []
    best = min(others, key=lambda row: row.tests["best"].paired.mean)
    return [best, *[row for row in others if row.method == FedAvg.name and row is not best][:1]]


def _whole_percent(row: GroupRow, metric: str, seeds: frozenset[int]) -> str:
    scores = row.by_seed("best", metric)
    return f"{100 * spread([scores[seed] for seed in seeds]).mean:.0f}"


# --- with statistics ------------------------------------------------------------------------------------------------


def verdicts(comparison: Group) -> list[str]:
    """Return the results of tests: of the stated contrasts, or of the leading row, and all rows against the paper."""
    if comparison.contrasts:
        tested = [
            _difference_verdict(one) if one.found else f"{one.name}: no seed has the planned score of both rows."
            for one in comparison.contrasts
            if one.tests and comparison.lead
        ]
        return [*tested, *_diverged(comparison)]
    return [*_lead_verdicts(comparison), *_paper_verdicts(comparison)]


def _lead_verdicts(comparison: Group) -> list[str]:
    """Compare the leading row with the best other row, and with FedAvg if that is another."""
    lead, rivals = comparison.leading, main_rivals(comparison)
    if len(comparison.rows) < 2:
        return []
    if lead is None or not lead.runs:
        return [NO_RESULT]
    if not rivals:
        return [f"{lead.name} is not compared: no other row, apart from central training, has a run at the same seeds."]
    found = []
    for row in rivals:
        verdict = _difference_verdict(row.tests["best"], ", the best other row" if row is rivals[0] else "")
        quarter = row.tests["last_quarter"].paired if "last_quarter" in row.tests else None
        if quarter is not None and quarter.p is not None:  # single rounds vary, a mean over many of them less
            evidence = f"{_interval(quarter)}, {p_value(quarter.p)}, not corrected"
            verdict += f" Over the last quarter of the rounds: {_points(quarter)} ({evidence})."
        found.append(verdict)
    return [*found, *_other_seeds(lead, [row for row in comparison.rows if "best" in row.tests])]


def _difference_verdict(one: Contrast, more: str = "") -> str:
    """Return a difference with its evidence, whether it is established, and otherwise how many seeds it would need."""
    found = one.paired
    evidence = [f"n{NO_BREAK}={NO_BREAK}{found.n}"]
    if found.p is not None and found.size is not None:
        evidence += [_interval(found), f"paired t-test {p_value(found.p)}"]
        evidence.append(f"d{NO_BREAK}={NO_BREAK}{effect(found.size)}")
    if one.corrected is not None:
        evidence.append(f"{p_value(one.corrected)} after Holm’s correction over {format_count(one.tests, 'test')}")
    result = f"{one.name}{more}: {_points(found)} of macro-F1 ({', '.join(evidence)})."
    if one.established:
        return f"{result} {'An advantage' if found.mean > 0 else 'A disadvantage'} is established."
    power, seeds = f"80{NO_BREAK}% power at level {LEVEL}/{one.tests}", count_seeds_needed(one)
    needed = f" Seeds needed to show a difference of this size, with {power}: {seeds}." if seeds else ""
    return f"{result} The difference is not established.{needed}"


def _points(found: Paired) -> str:
    return f"{points(found.mean)}{NO_BREAK}points"


def _interval(found: Paired) -> str:
    return f"95{NO_BREAK}% interval {format_interval(found, points)}"


def count_seeds_needed(contrast: Contrast) -> str:
    """Return how many seeds would show a difference of this size; "" if the lead is not ahead or it is unknown.

    Two seeds do not show how much differences vary.
    """
    found = contrast.paired
    if found.size is None or found.mean <= 0 or found.n < MIN_SEEDS:
        return ""
    seeds = seeds_needed(found.size, LEVEL / max(contrast.tests, 1))
    return f"about {seeds}" if seeds else f"more than {MOST_SEEDS:,}"


def _diverged(comparison: Group) -> list[str]:
    """Return a sentence for each diverged run, with the score with which it counts."""
    return [
        f"{row.name} diverged at seed {seed} and counts there with a macro-F1 of {percent(score)} of 100."
        for row in comparison.rows
        for seed, score in row.diverged.items()
    ]


def _paper_verdicts(comparison: Group) -> list[str]:
    """Name the rows that differ most surely from the paper; [] without a row of enough seeds."""
    found = []
    for row in comparison.rows:
        difference = row.minus_paper(HEADLINE_METRIC)
        if difference is not None and row.published is not None and len(row.runs) >= MIN_SEEDS:
            ours = spread(list(row.by_seed().values()))
            p = welch(ours, row.published.mean[HEADLINE_METRIC], row.published.std[HEADLINE_METRIC], TRIALS)
            found += [(p, f"{row.name} ({points(difference)}{NO_BREAK}points, {p_value(p)})")] if p is not None else []
    how = "Welch’s t-test with the paper’s three trials, not corrected"
    smallest = ", ".join(words for _, words in sorted(found)[:MAX_NAMED])
    return [f"Ours minus the paper’s macro-F1, smallest p of {len(found)} ({how}): {smallest}."] if found else []
