"""The shapes of a run's files and of its record, as docs/records.md tells them; check() compares."""

from __future__ import annotations

from typing import Any

from fedbm.data.partition import SETTINGS
from fedbm.utils.schema import PLAIN, SCALAR, TEXT, Lengths, Schema, each, keys, number, or_null, whole

COUNT = whole(0, 2**53)
SCORE = number(0, 1 + 1e-9)  # a weighted mean of ones may round to a little more
SECONDS = number(0, 1e12)
POINT = each(number(-1e30, 1e30), 2)
SIDES = ("val", "test", "averaged.val", "averaged.test")  # whose scores curves hold
PHASES = ("train", "aggregate", "generator", "evaluate", "checkpoint", "total")

SCORES = {**dict.fromkeys(("accuracy", "f1", "recall", "precision"), SCORE), "auc": or_null(SCORE)}
BYTES = keys({"sent": COUNT, "received": COUNT})
TERMS = keys({}, or_null(number()))  # of a loss; null: not finite

EPSILONS = keys(dict.fromkeys(("epsilon", "epsilon_all_runs"), or_null(number(0))))  # null: no finite bound
PRIVACY = keys({"delta": number(0, 1), "clients": keys({}, EPSILONS)})

TUNED = ("temperature?", "lambda_dis?", "pseudo_batch?", "generator_every?")  # of FedBM


def _method(others: Schema | None) -> Schema:
    """A method of one's own may have options of the same names that are no numbers."""
    ours, any_other = keys({"name": TEXT, **dict.fromkeys(TUNED, number())}, others), keys({"name": TEXT}, others)

    def fits(value: Any, at: str, lengths: Lengths) -> str:
        named = isinstance(value, dict) and value.get("name") == "fedbm"
        return (ours if named else any_other)(value, at, lengths)

    return fits


def _config(others: Schema | None) -> Schema:
    """Sections alone, and in them what is said of every run; *others*: the shape of every other setting."""
    return keys(
        {
            "data": keys({"name": TEXT, "partition": TEXT, "beta": number(), "clients": whole()}, others),
            "method": _method(others),
            "train": keys({"rounds": whole(), "seed": whole(), "keep_optimizer?": SCALAR}, others),
        },
        keys({}, others),
    )


CONFIG = _config(None)  # TOML has dates and infinities too
ENVIRONMENT = keys({"command?": TEXT}, PLAIN)
SUMMARY = keys(
    {
        **dict.fromkeys(("id", "label", "method", "data", "partition"), TEXT),
        "seed": whole(0),
        "rounds": whole(1),
        "clients": whole(1),
        "beta": or_null(number(0)),
        **dict.fromkeys(("best", "last"), keys({"round": whole(1), **SCORES})),
        "averaged?": or_null(keys({"round": whole(1), **SCORES})),
        "personal?": keys(dict.fromkeys(("best", "last"), or_null(SCORE))),
        "bytes": BYTES,
        "seconds": SECONDS,
        "privacy?": or_null(PRIVACY),
    }
)
DETAILS = keys(
    {
        "classes": each(TEXT, "classes", least=1),
        "concepts": or_null(each(TEXT, "classes")),
        "encoder": or_null(TEXT),
        "similarity": or_null(each(each(number(), "classes"), "classes")),
        "confusion": keys(dict.fromkeys(("best", "last", "averaged?"), each(each(COUNT, "classes"), "classes"))),
    }
)
FEATURES = keys(
    {
        "classes": each(TEXT, "classes", least=1),
        "labels": each(COUNT, "images"),
        "points": each(POINT, "images"),
        "anchors": or_null(each(POINT, "classes")),
    }
)
_DEALT = {
    "kind": TEXT,
    "settings": SETTINGS,
    "classes": each(TEXT, "classes", least=1),
    "counts": each(each(COUNT, "classes"), "clients", least=1),
    "moved?": each(PLAIN),
}
PARTITION = keys({**_DEALT, "clients": each(PLAIN, "clients"), "of?": keys({"data": TEXT, "checksum?": TEXT})})
FEDERATION = keys({"options": keys({"nodes": whole(1)})})
ROUND = keys(
    {
        "round": whole(1),
        "lr?": or_null(number()),
        "loss": TERMS,
        **dict.fromkeys(("val", "test"), or_null(keys(SCORES))),
        "averaged?": or_null(keys(dict.fromkeys(("val", "test"), keys(SCORES)))),
        "personal": or_null(keys({"accuracy": SCORE, "clients?": keys({}, SCORE)})),
        "generator": or_null(TERMS),
        "dropped": each(PLAIN),
        "bytes": BYTES,
        "seconds": keys({"total": SECONDS}, SECONDS),
    }
)

RECORD = keys(
    {
        "run": TEXT,
        "config": _config(PLAIN),
        "environment": or_null(ENVIRONMENT),
        "summary": SUMMARY,
        **dict.fromkeys(("last_quarter?", "averaged_last_quarter?"), or_null(keys(SCORES))),
        "partition": or_null(keys({**_DEALT, "digest": TEXT})),
        "checksum": TEXT,
        "details": or_null(DETAILS),
        "features": or_null(FEATURES),
        "generated_rounds": each(whole(1)),
        "curves": keys(
            {
                "round": each(whole(1), "rounds", least=1),
                **dict.fromkeys(
                    (*(f"{side}.{score}?" for side in SIDES for score in ("accuracy", "f1")), "personal?"),
                    each(or_null(SCORE), "rounds"),
                ),
                **dict.fromkeys(("bytes.sent?", "bytes.received?", "dropped?"), each(COUNT, "rounds")),
                **{f"seconds.{phase}?": each(SECONDS, "rounds") for phase in PHASES},
            },
            each(or_null(number()), "rounds"),
        ),
    }
)
