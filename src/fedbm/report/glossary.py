"""Explain the terms of a report."""

from __future__ import annotations

TERMS = (
    (
        "Chosen on validation",
        "The round with the highest validation accuracy plus macro-F1, the earliest on ties. A column Round has its "
        "range over the seeds. The test images have no influence on it. The last round is shown as well, because a "
        "method that needs a lucky round is worse there. Tables of experiments also have the mean over the last "
        "quarter of the rounds, because a single round may vary by as much as methods differ.",
    ),
    ("Accuracy", "Share of correctly classified test images."),
    (
        "Macro-F1, recall, precision",
        "Computed for each class that occurs in the test images, then averaged, so that a rare class counts as much as "
        "a common one.",
    ),
    (
        "AUC",
        "Area under the ROC curve of each class that occurs against the rest, averaged; chance is 50. “–” where it is "
        "not defined for every seed.",
    ),
    (
        "Mean ± std",
        "Over n seeds, with n − 1 in the denominator. A seed changes the partition, the clients selected, the initial "
        "weights and every batch. Bold marks the highest mean of a column, without Central, which has all data in one "
        "place; it does not mean that the difference is more than chance.",
    ),
    (
        "Leading row",
        "The row that the others are compared with, wherever it ranks: the one the experiment’s file names, else "
        "FedBM, else the first row of the first contrast, else the first row. In tables of experiments it is tinted.",
    ),
    (
        "Lead − row, p, Holm, d",
        "The leading row’s macro-F1 minus this row’s, within each seed, then averaged. p: two-sided paired t-test "
        "over the seeds. Holm’s correction covers all tests of an experiment that have data; in a report of runs, "
        "those of one data set and partition. By chance alone, a corrected p is below 0.05 in at most one of twenty "
        "such sets of tests; tests that finish later can raise it. d: mean difference divided by its standard "
        "deviation over seeds (Cohen’s d_z). Three seeds detect only large and steady differences: “not established” "
        "does not mean “equal”. Two seeds establish nothing, whatever their p.",
    ),
)
PAPER = (  # with the paper's numbers
    (
        "Paper, Δ",
        "The paper’s mean ± std over three trials, and ours minus the paper’s in points. Differences are tested by "
        "Welch’s t-test, level 0.05, not corrected for the number of rows; three seeds detect only large differences.",
    ),
)
