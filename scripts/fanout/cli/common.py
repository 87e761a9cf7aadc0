"""What all commands share: the parser's manners, signals, and the one place that maps errors."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from fanout.errors import ExitCode, Interrupted, SkillError, exit_code_table, usage
from fanout.output import Answer, print_answer, say

if TYPE_CHECKING:
    from types import FrameType

SIGNALS = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.HUNG_UP,
}
EPILOG = "exit codes:\n" + exit_code_table()


class Parser(argparse.ArgumentParser):
    """A parser whose errors are SkillErrors, so that they too can be answered as JSON."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving."""
        raise usage("usage", message, f"see `{self.prog} --help`")


def glue_values(argv: list[str], options: frozenset[str]) -> list[str]:
    """Join each of these options with the word after it: a value may begin with a dash."""
    glued: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            return [*glued, word, *words]
        if word in options:
            value = next(words, None)
            glued.append(word if value is None else f"{word}={value}")
        else:
            glued.append(word)
    return glued


def catch_signals() -> None:
    """Turn INT, TERM and HUP into an exception; one that was ignored at the start stays so."""

    def interrupt(number: int, _: FrameType | None) -> None:
        # A second signal must not cut off the undoing that the first one started.
        for other in SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(SIGNALS[signal.Signals(number)])

    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)


def run_command(
    prog: str,
    argv: list[str],
    parse: Callable[[list[str]], argparse.Namespace],
    dispatch: Callable[[argparse.Namespace], Answer],
) -> int:
    """Parse, run and answer; the only place where errors become exit codes."""
    as_json = "--json" in argv
    command = prog
    try:
        catch_signals()
        for word in argv:
            if "\0" in word:
                raise usage("usage", "an argument holds a NUL byte")
        options = parse(argv)
        as_json = options.json
        command = f"{prog} {options.verb}"
        answer = dispatch(options)
    except SkillError as error:
        answer = failure(command, error)
    except Interrupted as stop:
        error = SkillError("interrupted", f"interrupted by {stop}", exit_code=stop.exit_code)
        answer = failure(command, error)
    except KeyboardInterrupt:
        answer = failure(
            command, SkillError("interrupted", "interrupted", exit_code=ExitCode.INTERRUPTED)
        )
    except RecursionError:
        answer = failure(command, usage("too-deep", "the input is nested too deeply"))
    except OSError as error:
        answer = failure(command, SkillError("file-failed", str(error)))
    print_answer(answer, as_json)
    return int(answer.exit_code)


def failure(command: str, error: SkillError) -> Answer:
    """The answer that explains an error."""
    return Answer(command, "", error.data, error.exit_code, error, tuple(error.next_actions))


def read_prompt(text: str | None, file: str | None) -> str | None:
    """The prompt from its option or file (`-`: stdin), whole; None when neither is given.

    Raises SkillError `prompt-unreadable`, `prompt-unfit` (exit 2).
    """
    if text is not None:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise usage("prompt-unfit", f"the prompt is not valid UTF-8: {error}") from error
        return text
    if file is None:
        return None
    try:
        if file == "-":
            content = sys.stdin.buffer.read()
        else:
            with open(file, "rb") as source:
                content = source.read()
    except (OSError, ValueError) as error:
        raise usage(
            "prompt-unreadable", f"cannot read the prompt file {file!r}: {error}"
        ) from error
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise usage(
            "prompt-unfit",
            f"the prompt file {file!r} is not valid UTF-8 (at byte {error.start})",
            "convert it to UTF-8",
        ) from error


def warn(text: str) -> None:
    """Something the user should know that is no error."""
    say(f"note: {text}")
