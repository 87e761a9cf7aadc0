"""Is everything there that workers need? Looks, and changes nothing."""

from __future__ import annotations

import os
import platform
import re
import sys

from fanout import git, harness, tmux
from fanout.errors import SkillError
from fanout.fields import NamedTuple
from fanout.process import run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MINIMUM = {"git": (2, 39), "tmux": (3, 0), "bash": (3, 2)}
VERSION_CALLS = {"git": ["git", "--version"], "tmux": ["tmux", "-V"], "bash": ["bash", "--version"]}


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    ok: bool
    found: str
    hint: str

    def to_json(self) -> dict[str, Any]:
        """The row of `data.checks`."""
        return self._asdict()


def examine(
    directory: str, mapping_file: str | None, agent_cli: str | None, socket: str
) -> list[Check]:
    """Look at each program, the harness, the repository and the tmux socket.

    Raises SkillError for an option that cannot be meant: `invalid-mapping`, `invalid-socket`.
    """
    if socket:
        tmux.require_socket_name(socket)
    checks = [check_program(name) for name in MINIMUM]
    checks.append(Check("python", True, f"{platform.python_version()} ({sys.executable})", ""))
    checks += check_harness(mapping_file, agent_cli)
    try:
        repo = git.open_repository(directory)
        checks.append(
            Check("repository", True, f"{repo.top} on {repo.branch or 'a detached commit'}", "")
        )
        socket = socket or tmux.socket_for(repo.common_dir)
    except SkillError as error:
        checks.append(Check("repository", False, error.message, error.hint))
        socket = socket or "agent-workers-00000000"
    try:
        checks.append(Check("tmux-socket", True, tmux.require_socket_name(socket), ""))
    except SkillError as error:
        checks.append(Check("tmux-socket", False, error.message, error.hint))
    return checks


def check_program(name: str) -> Check:
    """Whether a program is there and new enough."""
    least = ".".join(map(str, MINIMUM[name]))
    try:
        done = run(VERSION_CALLS[name], timeout=10.0)
    except SkillError as error:
        return Check(name, False, error.message, f"install {name} {least} or newer")
    line = (done.text.splitlines() or [""])[0]
    numbers = re.search(r"(\d+)\.(\d+)", line)
    if done.code != 0 or numbers is None:
        return Check(name, False, line or done.error_text, f"install {name} {least} or newer")
    new_enough = (int(numbers[1]), int(numbers[2])) >= MINIMUM[name]
    return Check(name, new_enough, line, "" if new_enough else f"{name} {least} or newer is needed")


def check_harness(mapping_file: str | None, agent_cli: str | None) -> list[Check]:
    """Whether the agent program that the options name is there, and what it needs to run.

    It is not run, but for its version where two mappings are of one program.
    """
    mapping = harness.load_harness(mapping_file, agent_cli)
    checks: list[Check] = []
    try:
        found = harness.require_executable(mapping.executable)
        checks.append(Check("harness", True, f"{mapping.name}: {found}", ""))
    except SkillError as error:
        checks.append(Check("harness", False, error.message, error.hint))
    try:
        harness.require_variables(mapping, os.environ)
    except SkillError as error:
        checks.append(Check("environment", False, error.message, error.hint))
    return checks
