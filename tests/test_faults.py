"""Verbs and runners, killed at some of their steps, and called again; `make fire` takes all.

`make test-long` runs these, and so does `make validate`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
PROGRAM = Path(__file__).resolve().parent / "under_fire.py"
# Fewer steps than a verb has for certain: a count that falls below means that nothing was tested.
LEAST = {"spawn": 20, "stop": 4, "resume": 12, "cleanup": 12, "discard": 20, "send": 8}
# So many steps of a verb lie between two kills; `make fire` leaves out none.
APART = {"spawn": 9, "stop": 2, "resume": 9, "cleanup": 7, "discard": 11, "send": 7}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("verb", APART)
def test_killed_at_a_step_nothing_is_lost_or_doubled(verb: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), verb, "1", str(APART[verb])],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout) >= LEAST[verb] // APART[verb]


# How many steps a runner has at least, and how many of them lie between two kills.
RUNNER_STEPS = {"python": (300, 131), "bash": (90, 73)}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("language", sorted(RUNNER_STEPS))
def test_a_killed_runner_goes_on_and_starts_no_agent_twice(language: str) -> None:
    least, apart = RUNNER_STEPS[language]
    done = subprocess.run(
        [sys.executable, str(PROGRAM.with_name("runner_fire.py")), language, "3", str(apart)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout) >= least


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [3])
def test_fifty_workers_stay_as_the_model_says_through_crashes(seed: int) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM.with_name("fleet.py")), str(seed), "45"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout) > 5


# How often a verb is killed at least, and how many of its steps lie between two kills.
INTEGRATION_STEPS = {
    "merge": (2, 27),
    "undo": (1, 23),
    "undo-by-revert": (1, 61),
    "approve": (2, 4),
    "approve-branch": (2, 6),
    "collect": (4, 3),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("verb", sorted(INTEGRATION_STEPS))
def test_a_killed_integration_is_before_or_after_and_goes_on(verb: str) -> None:
    least, apart = INTEGRATION_STEPS[verb]
    done = subprocess.run(
        [sys.executable, str(PROGRAM.with_name("integration_fire.py")), verb, "2", str(apart)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout) >= least


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [5])
def test_random_histories_of_integrations_are_as_the_model_says(seed: int) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM.with_name("integration_fleet.py")), str(seed), "14"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "'merge 0'" in done.stdout, done.stdout
    assert "'killed'" in done.stdout, done.stdout
