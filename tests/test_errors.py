"""The one table of exit codes, and what an error carries."""

from __future__ import annotations

import itertools

import pytest

from fanout.errors import (
    MEANINGS,
    PRECEDENCE,
    ExitCode,
    Interrupted,
    SkillError,
    exit_code_table,
    missing,
    refused,
    usage,
    worst,
)


def test_the_codes_are_those_of_the_table() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "DONE": 0, "FAILED": 1, "USAGE": 2, "REFUSED": 3, "MISSING": 4, "BLOCKED": 10, "BUSY": 11,
        "TIMED_OUT": 124, "HUNG_UP": 129, "INTERRUPTED": 130, "TERMINATED": 143,
    }  # fmt: skip
    assert set(MEANINGS) == set(ExitCode)


def test_of_several_outcomes_the_first_in_the_documented_order_is_given() -> None:
    order = [2, 4, 11, 3, 129, 130, 143, 10, 1, 124]
    assert list(PRECEDENCE) == order
    for first, second in itertools.combinations(order, 2):
        assert worst([ExitCode(second), ExitCode(first)]) == first
    assert worst([]) == 0
    assert worst([ExitCode.DONE, ExitCode.TIMED_OUT]) == 124


def test_help_prints_one_line_for_each_code() -> None:
    lines = exit_code_table().splitlines()
    assert [int(line.split()[0]) for line in lines] == [code.value for code in ExitCode]
    assert lines[3] == "    3  refused, nothing was changed"


@pytest.mark.parametrize(("make", "code"), [(usage, 2), (refused, 3), (missing, 4)])
def test_an_error_has_a_stable_code_a_message_and_a_hint(make: type[SkillError], code: int) -> None:
    error = make("some-code", "what was wrong", "what to try")
    assert error.exit_code == code
    assert error.to_json() == {
        "code": "some-code", "message": "what was wrong", "hint": "what to try"
    }  # fmt: skip
    assert str(error) == "what was wrong"


def test_an_interruption_passes_by_handlers_of_errors() -> None:
    assert not issubclass(Interrupted, Exception)
