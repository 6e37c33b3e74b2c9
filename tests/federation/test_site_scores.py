"""Scores by site: in the run's files and in its report, with each site's own model where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from one_process import deploy

from fedbm.report.document import Section, Table
from fedbm.report.runs_report import runs_report
from fedbm.runs.run_view import read_run


def test_sites_are_scored_apart_and_their_own_models_too(tiny: dict[str, Any], tmp_path: Path) -> None:
    settings = {**tiny, "method": "fedrep", "clients": 3, "rounds": 2, "participation": 1.0, "beta": 0.5}
    deployed = deploy(tmp_path, settings, {"evaluate": "nodes"})
    deployed.serve()
    [folder] = (deployed.state / "runs").iterdir()
    run = read_run(folder)
    assert run.details is not None
    sources = run.details.sources
    assert sources is not None
    assert [source.name for source in sources] == ["client 0", "client 1", "client 2"]
    assert np.array_equal(sum(np.array(source.last) for source in sources), run.details.confusion.last)
    personal = run.rounds[-1].personal
    assert personal is not None
    assert {str(i): source.personal for i, source in enumerate(sources)} == dict(personal.clients)
    sections = [section for part in runs_report([run]).parts for section in part.blocks if isinstance(section, Section)]
    [section] = [section for section in sections if section.heading == "Source by source"]
    [table] = [item for item in section.blocks if isinstance(item, Table)]
    assert table.columns[-1].title == "Accuracy, site’s own model, last round"
    assert [row.block.split(",")[0] for row in table.rows] == ["client 0", "client 1", "client 2"]
    assert table.rows[0].cells["own model"].value == sources[0].personal
