"""Data of one name that are not the same data are never averaged."""

import json

from fake_runs import fake_run

from fedbm.report.grouping import compare
from fedbm.runs.reader import read_runs


def with_checksum(path, checksum):
    file = path / "partition.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "of": {"data": "scans", "checksum": checksum}}))
    return path


def test_other_images_under_the_same_name_are_another_group(tmp_path):
    one = with_checksum(fake_run(tmp_path, "fedavg", 0), "a" * 64)
    two = with_checksum(fake_run(tmp_path, "fedavg", 1), "b" * 64)
    three = with_checksum(fake_run(tmp_path, "fedavg", 2), "b" * 64)
    first, second = compare(read_runs([one, two, three]))
    assert [len(group.rows[0].runs) for group in (first, second)] == [1, 2]
    assert first.title.endswith(", data aaaaaaaa")
    assert second.title.endswith(", data bbbbbbbb")
    [alone] = compare(read_runs([two, three]))
    assert "data bbbb" not in alone.title
