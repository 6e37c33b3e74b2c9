"""How unequal clients fare: accuracy in each client's own label mix.

    accuracy of client i = Σ_k p_ik · recall_k

p_ik is class k's share of the client's training samples, recall_k from the test confusion matrix at the round chosen on
validation: the test set, weighted to what the client sees. It is that of the global model, or of a method without one
the sum over clients' models, so that recall_k is their mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedbm.report.figures.curves import NARROW, WIDE, Dots, dots
from fedbm.report.grouping import Group
from fedbm.report.sections import CENTRAL_ALONE, Panel, Picture, Section, without_global_model
from fedbm.runs.reader import RunView


def client_scores(counts: Sequence[Sequence[int]], confusion: Sequence[Sequence[int]]) -> list[float]:
    """One accuracy per client; classes without a test image do not count, a client with none of the rest is left out.

    >>> [round(score, 3) for score in client_scores([[3, 1], [0, 4]], [[8, 2], [5, 5]])]
    [0.725, 0.5]
    """
    recall = [row[k] / sum(row) if sum(row) else None for k, row in enumerate(confusion)]
    scores = []
    for held in counts:
        known = [(n, r) for n, r in zip(held, recall, strict=True) if r is not None and n]
        if known:
            scores.append(sum(n * r for n, r in known) / sum(n for n, _ in known))
    return scores


def per_client(group: Group, colours: Mapping[str, int]) -> Section:
    drawn = [
        Dots(row.name, colours[row.name], tuple(100 * score for run in row.runs for score in _scores(run, group)))
        for row in group.rows
    ]
    drawn = [row for row in drawn if row.values]
    names = without_global_model(group)
    instead = f" (of {names}, without one: the mean over all clients’ models)" if names else ""
    note = (
        f"A dot is a client at a seed: the global model’s accuracy{instead} on test images in the client’s own label "
        "mix, at the round chosen on validation. The tick is their mean. A wide row leaves some clients behind."
    )
    if not drawn:
        clients = any(run.method != "central" for run in group.runs)
        why = "No run with clients holds details.json and partition.json." if clients else CENTRAL_ALONE
        return Section("Client by client", note, (), why)
    title = f"Accuracy in every client's label mix; {group.title}"
    wide, narrow = (dots(drawn, title, "accuracy in a client’s label mix, %", width) for width in (WIDE, NARROW))
    return Section("Client by client", note, (Panel("Clients", (Picture(wide, narrow=narrow),)),), wide=True)


def _scores(run: RunView, group: Group) -> list[float]:
    """Central training has no clients: it is judged by those of the others' at its seed."""
    dealt = group.dealt.get(run.seed) if run.method == "central" else run.dealt
    if run.details is None or dealt is None:
        return []
    return client_scores(dealt["counts"], run.details["confusion"]["best"])
