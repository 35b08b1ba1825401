"""Records: what was measured is kept with its provenance, and goes stale with its code."""

import json

import pytest
from tokenlife import provenance
from tokenlife.catalog import read_record, record_names
from tokenlife.provenance import ProvenanceError, code_hash, is_stale, write_record


def test_a_record_says_when_where_and_what(tmp_path):
    written = write_record(tmp_path / "run.json", {"rate": 1.5}, ["costs", "units.py"])
    read = json.loads((tmp_path / "run.json").read_text())
    assert read == written and read["values"] == {"rate": 1.5}
    assert read["machine"] == provenance.machine()
    assert len(read["date"]) == 10 and read["code"]["parts"] == ["costs", "units.py"]
    assert not is_stale(read)
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_a_record_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "run.json"
    write_record(path, {"rate": 1.0}, ["units.py"])
    for bad in ({"rate": float("nan")}, {"rate": object()}):
        with pytest.raises((ValueError, TypeError)):
            write_record(path, bad, ["units.py"])
    assert json.loads(path.read_text())["values"] == {"rate": 1.0}
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]
    with pytest.raises(ProvenanceError, match=r"cannot write .*No such file or directory"):
        write_record(tmp_path / "nowhere" / "run.json", {}, ["units.py"])
    with pytest.raises(ProvenanceError, match="no part 'nowhere'"):
        code_hash(["nowhere"])


def test_the_hash_follows_the_code_and_not_its_comments(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    file = tmp_path / "rate.py"

    def hashed(text):
        file.write_text(text)
        return code_hash(["rate.py"])

    first = hashed('"""Doc."""\n\n\ndef f(x):\n    """Say."""\n    return x + 1  # why\n')
    assert hashed('"""Other."""\n\n\ndef f(x):\n    return x + 1\n') == first
    assert hashed('"""Doc."""\n\n\ndef f(x):\n    """Say."""\n    return x + 2  # why\n') != first
    assert is_stale({"code": {"parts": ["rate.py"], "sha256": first}})


@pytest.mark.parametrize("name", record_names())
def test_no_record_of_the_book_is_stale(name):
    record = read_record(name)
    assert not is_stale(record), (
        f"data/results/{name}.json measured code that has changed since: run `make record` again"
    )
