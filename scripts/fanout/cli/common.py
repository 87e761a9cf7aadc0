"""What all commands share: the parser's manners, signals, and the one place that maps errors."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Collection

from fanout.errors import ExitCode, Interrupted, SkillError, exit_code_table, usage
from fanout.fields import NamedTuple
from fanout.output import Answer, open_standard_streams, print_answer, say, shorten, write_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

    from fanout.git import Repository

SIGNALS = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.HUNG_UP,
}
# For each of its words argparse would look for translations on the disk: there are none of ours.
setattr(argparse, "_", str)  # noqa: B010 - its type is not told
EPILOG = "exit codes:\n" + exit_code_table()
SCRIPTS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROMPT_BYTES = 40_000_000
HELP_WIDTH = 96


def help_formatter(prog: str) -> argparse.HelpFormatter:
    """Lay out the help. argparse makes one for each option, and would ask for the width."""
    return argparse.RawDescriptionHelpFormatter(prog, width=HELP_WIDTH)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are SkillErrors, so that they too can be answered as JSON."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", help_formatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving."""
        raise usage("usage", message, f"see `{self.prog} --help`")

    def print_help(self, file: Any = None) -> None:  # noqa: ARG002 - argparse's signature
        """Print the help; a reader that went away is not an error."""
        write_out(self.format_help())


class Frame(NamedTuple):
    """A command of verbs.

    `verbs` holds the purpose of each and an example; `add_options` adds the options of one.
    """

    prog: str
    description: str
    examples: str
    verbs: dict[str, tuple[str, str]]
    add_options: Callable[[str, Parser], None]

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """The options of a call."""
        if argv and argv[0] in self.verbs:
            # The parsers of the other verbs cost milliseconds.
            parser = Parser(prog=f"{self.prog} {argv[0]}", **self.words(argv[0]))
            self.add_options(argv[0], parser)
            return parser.parse_args(argv[1:], argparse.Namespace(verb=argv[0]))
        parser = Parser(prog=self.prog, description=self.description, epilog=self.examples + EPILOG)
        # Without `prog` argparse would format the usage, which imports shutil.
        parsers = parser.add_subparsers(
            dest="verb", required=True, metavar="VERB", parser_class=Parser, prog=self.prog
        )
        for verb, (purpose, _) in self.verbs.items():
            made = parsers.add_parser(verb, help=purpose, **self.words(verb))
            self.add_options(verb, made)
        return parser.parse_args(argv)

    def words(self, verb: str) -> dict[str, Any]:
        """What the help of a verb says before and after its options."""
        purpose, example = self.verbs[verb]
        return {
            "description": purpose[0].upper() + purpose[1:] + ".",
            "epilog": f"example:\n  {self.prog} {example}\n\n{EPILOG}",
        }


def seconds(word: str) -> float:
    """A duration in seconds."""
    value = float(word)
    if not 0 <= value <= 1_000_000:
        raise ValueError(word)
    return value


def positive(word: str) -> float:
    """A duration in seconds that is not zero."""
    value = seconds(word)
    if value == 0:
        raise ValueError(word)
    return value


def command_line(prog: str, repo: Repository, *words: str) -> str:
    """A command of one of these programs that can be pasted."""
    from fanout.workers import quote_for_bash

    entry = os.path.join(SCRIPTS, prog)
    return " ".join(map(quote_for_bash, [sys.executable, entry, *words, "--repo", repo.place]))


def glue_values(argv: list[str], texts: frozenset[str], others: frozenset[str]) -> list[str]:
    """Join options with the word after them, which may begin with a dash.

    `texts` take any word at all; `others`, which take a value too, any but an option's name, so
    that a forgotten value is noticed.
    """
    glued: list[str] = []
    names = texts | others
    position = 0
    while position < len(argv):
        word = argv[position]
        value = argv[position + 1] if position + 1 < len(argv) else None
        if word == "--":
            return [*glued, *argv[position:]]
        dashed = (
            value is not None and value.startswith("-") and value.partition("=")[0] not in names
        )
        known_flag = value in ("--json", "--dry-run", "--help", "-h", "--")
        if value is not None and (word in texts or (word in others and dashed and not known_flag)):
            glued.append(f"{word}={value}")
            position += 1
        else:
            glued.append(word)
        position += 1
    return glued


def catch_signals(received: list[Interrupted]) -> frozenset[signal.Signals]:
    """Turn INT, TERM and HUP into an exception; one that was ignored at the start stays so.

    Returns the signals that are caught now. What comes is noted in `received`.
    """
    caught = frozenset(n for n in SIGNALS if signal.getsignal(n) != signal.SIG_IGN)

    def interrupt(number: int, _: FrameType | None) -> None:
        # A second signal must not cut off the undoing that the first one started.
        for other in caught:
            signal.signal(other, signal.SIG_IGN)
        received.append(Interrupted(SIGNALS[signal.Signals(number)]))
        raise received[0]

    for number in caught:
        signal.signal(number, interrupt)
    # Where it was ignored at the start, nobody would learn how a child has ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return caught


def run_command(
    prog: str,
    argv: list[str],
    parse: Callable[[list[str]], argparse.Namespace],
    dispatch: Callable[[argparse.Namespace], Answer],
    verbs: Collection[str] = (),
) -> int:
    """Parse, run and answer; the only place where errors become exit codes."""
    open_standard_streams()
    caught: frozenset[signal.Signals] = frozenset()
    received: list[Interrupted] = []
    answer: Answer | None = None
    words = argv[: argv.index("--")] if "--" in argv else argv
    command = next((word for word in words if word in verbs), prog)
    try:
        caught = catch_signals(received)
        answer = attempt(command, argv, parse, dispatch)
        release_signals(caught)
    except Interrupted:
        # Work that is done is answered as done.
        release_signals(caught)
    if answer is None or (received and answer.error is not None):
        # What fails while the work is being undone is told beside the reason for it.
        answer = failure(command, interruption(received[0], answer.error if answer else None))
    return print_answer(answer, "--json" in words)


def interruption(stop: Interrupted, error: SkillError | None) -> SkillError:
    """Why a command that got a signal ends, and what went wrong on its way out."""
    told = SkillError("interrupted", str(stop), exit_code=stop.exit_code)
    if error is not None:
        told.message += f"; then: {error.message}"
        told.hint, told.data, told.next_actions = error.hint, error.data, error.next_actions
    return told


def release_signals(caught: frozenset[signal.Signals]) -> None:
    """Let signals end the process at once again: from here on there is nothing to undo."""
    for number in caught:
        signal.signal(number, signal.SIG_DFL)


def attempt(
    command: str,
    argv: list[str],
    parse: Callable[[list[str]], argparse.Namespace],
    dispatch: Callable[[argparse.Namespace], Answer],
) -> Answer:
    """The answer, or the failure that explains why there is none."""
    try:
        return dispatch(parse(argv))
    except SkillError as error:
        return failure(command, error)
    except RecursionError:
        return failure(command, usage("too-deep", "the input is nested too deeply"))
    except UnicodeEncodeError as error:
        words = f"{shorten(str(error.object), 80)!r} cannot be written as text: {error.reason}"
        return failure(command, usage("invalid-text", words))
    except OSError as error:
        return failure(command, SkillError("file-failed", str(error)))
    except Exception as error:  # noqa: BLE001 - a fault of ours is told in a line as well
        return failure(command, unexpected(error))


def unexpected(error: Exception) -> SkillError:
    """A fault of this program, with the place where it happened."""
    place = ""
    frame = error.__traceback__
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename.rpartition("scripts/")[2]
        place, frame = f"{name}:{frame.tb_lineno}", frame.tb_next
    return SkillError(
        "internal-error",
        f"this program has a fault: {type(error).__name__}: {error} ({place})",
        "please report it with the command that was given",
    )


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
            content = sys.stdin.buffer.read(PROMPT_BYTES + 1) if sys.stdin is not None else b""
        else:
            with open(file, "rb") as source:
                content = source.read(PROMPT_BYTES + 1)
    except (OSError, ValueError) as error:
        raise usage("prompt-unreadable", f"cannot read the file {file!r}: {error}") from error
    if len(content) > PROMPT_BYTES:
        raise usage("prompt-unfit", f"{file!r} is longer than {PROMPT_BYTES} bytes", "shorten it")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise usage(
            "prompt-unfit",
            f"the file {file!r} is not valid UTF-8 (at byte {error.start})",
            "convert it to UTF-8",
        ) from error


def warn(text: str) -> None:
    """Something the user should know that is no error."""
    say(f"note: {text}")
