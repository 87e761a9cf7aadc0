"""The table of what real agent CLIs held, and the record that it is made from."""

from __future__ import annotations

from typing import Any

import pytest

import harness_table
from fanout.converting import REPORT
from harness_installs import pins
from harness_table import BEGIN, END, PAGE, ROOT, held, mappings, nulls, table

pytestmark = pytest.mark.skipif(
    (ROOT / REPORT).exists(), reason="a package that was converted has one mapping of its own"
)


def test_the_page_holds_the_table_that_the_record_makes() -> None:
    """If this fails: python3 tests/harness_table.py."""
    inside = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert inside.strip("\n") == table()


def test_every_mapping_was_checked_with_the_version_that_it_names() -> None:
    record, known = held(), mappings()
    assert list(record) == sorted(known) == sorted(pins())
    for name, found in record.items():
        verified = known[name]["version"]["verified"]
        assert found["version"] == verified == pins()[name]["version"], name


def test_no_value_stays_in_a_mapping_that_a_live_check_saw_fail() -> None:
    failed = {
        f"{name}: {path}"
        for name, found in held().items()
        for path, word in found["fields"].items()
        if word != "held" and path not in nulls(mappings()[name])
    }
    assert not failed


def test_a_part_of_the_checks_is_taken_over_into_the_record(
    monkeypatch: Any, tmp_path: Any
) -> None:
    monkeypatch.setattr(harness_table, "HELD", tmp_path / "held.json")
    monkeypatch.setattr(harness_table, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")

    def found(version: str, **ends: bool) -> dict[str, Any]:
        checks = [{"name": name, "ok": ok} for name, ok in ends.items()]
        about = {"version": version, "fields": {"model.flag": "held"}}
        return {"on": "2026-11-30", "harnesses": {"pi": {**about, "checks": checks}}}

    harness_table.keep(found("1.0", stop=True, resume=True))
    harness_table.keep(found("1.0", stop=False))
    assert held()["pi"]["checks"] == {"stop": False, "resume": True}
    assert "Failed when last tried: Pi: stop." in (tmp_path / "page.md").read_text()
    harness_table.keep(found("1.1", resume=True))
    assert held()["pi"]["checks"] == {"resume": True}
    text = (tmp_path / "page.md").read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"\n{END}\nafter\n")
    assert "Failed when last tried" not in text
