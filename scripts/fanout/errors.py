"""The one exception that commands expect, and the one table of exit codes."""

from __future__ import annotations

from enum import IntEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ExitCode(IntEnum):
    """What a command's exit code means. `--help` and the references print this table."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    MISSING = 4
    BLOCKED = 10
    BUSY = 11
    TIMED_OUT = 124
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "the work failed",
    ExitCode.USAGE: "usage or invalid input",
    ExitCode.REFUSED: "refused, nothing was changed",
    ExitCode.MISSING: "something needed is missing (program, harness, repository)",
    ExitCode.BLOCKED: "blocked, a person must decide",
    ExitCode.BUSY: "busy, another command holds the lock",
    ExitCode.TIMED_OUT: "the command's own deadline passed",
    ExitCode.HUNG_UP: "interrupted by HUP",
    ExitCode.INTERRUPTED: "interrupted by INT",
    ExitCode.TERMINATED: "interrupted by TERM",
}

PRECEDENCE = (
    ExitCode.USAGE,
    ExitCode.MISSING,
    ExitCode.BUSY,
    ExitCode.REFUSED,
    ExitCode.HUNG_UP,
    ExitCode.INTERRUPTED,
    ExitCode.TERMINATED,
    ExitCode.BLOCKED,
    ExitCode.FAILED,
    ExitCode.TIMED_OUT,
)


def worst(codes: list[ExitCode]) -> ExitCode:
    """The code to leave with when several outcomes apply; DONE when none does."""
    return next((code for code in PRECEDENCE if code in codes), ExitCode.DONE)


def exit_code_table() -> str:
    """The table as `--help` prints it."""
    return "\n".join(f"  {code.value:>3}  {meaning}" for code, meaning in MEANINGS.items())


class SkillError(Exception):
    """A failure that a command explains: what was wrong, and what to try.

    `code` is a stable kebab-case id; `data` is merged into the JSON answer; `next_actions`
    are `(action, command, why)` rows for the answer's list.
    """

    def __init__(
        self,
        code: str,
        message: str,
        hint: str = "",
        *,
        exit_code: ExitCode = ExitCode.FAILED,
        data: dict[str, Any] | None = None,
        next_actions: list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.exit_code = exit_code
        self.data = data or {}
        self.next_actions = next_actions or []

    def to_json(self) -> dict[str, Any]:
        """The `error` object of a JSON answer."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


def usage(code: str, message: str, hint: str = "") -> SkillError:
    """An invalid input (exit 2)."""
    return SkillError(code, message, hint, exit_code=ExitCode.USAGE)


def refused(code: str, message: str, hint: str = "") -> SkillError:
    """A refusal that changed nothing (exit 3)."""
    return SkillError(code, message, hint, exit_code=ExitCode.REFUSED)


def missing(code: str, message: str, hint: str = "") -> SkillError:
    """Something needed is not there (exit 4)."""
    return SkillError(code, message, hint, exit_code=ExitCode.MISSING)


class Interrupted(BaseException):
    """A signal asked the command to end. Not an Exception, so that no handler swallows it."""

    def __init__(self, exit_code: ExitCode) -> None:
        super().__init__(MEANINGS[exit_code])
        self.exit_code = exit_code
