"""Help texts: what is read from each parser's, and that no text is too much."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout import reading_help as reading
from fanout.reading_help import read_help
from stand_ins import HELPS


def only(text: str) -> reading.Option:
    """The one option of a help."""
    found = read_help(text)
    assert len(found.options) == 1, found.options
    return found.options[0]


SPELLINGS: list[tuple[str, tuple[str, ...], str, bool]] = [
    ("  -m, --model <MODEL>  The model", ("-m", "--model"), "<MODEL>", False),
    ("  -m, --model=<value>  The model", ("-m", "--model"), "<value>", False),
    ("  --model=MODEL  The model", ("--model",), "MODEL", False),
    ("  --model, -m <id>    The model", ("--model", "-m"), "<id>", False),
    ("  -m MODEL, --model MODEL  The model", ("-m", "--model"), "MODEL", False),
    ("  -m, --model string   The model", ("-m", "--model"), "string", False),
    ("  -m | --model <x>  The model", ("-m", "--model"), "<x>", False),
    ("  -m/--model X  The model", ("-m", "--model"), "X", False),
    ("  -model string\n    \tThe model", ("-model",), "string", False),
    ("  -m, --model  The model  [string]", ("-m", "--model"), "string", False),
    ("  -m, --model  The model  [boolean]", ("-m", "--model"), "", False),
    ("  -m, --model [name]  The model", ("-m", "--model"), "[name]", True),
    ("  --model[=NAME]  The model", ("--model",), "NAME", True),
    ("  --[no-]model  The model", ("--model", "--no-model"), "", False),
    ("  --model / --no-model  The model", ("--model", "--no-model"), "", False),
    ("│ --model  -m      TEXT   The model │", ("--model", "-m"), "TEXT", False),
    ("│ --model  -m     <bool>  The model │", ("--model", "-m"), "", False),
    ("  -i, --image <FILE>...\n          The model", ("-i", "--image"), "<FILE>...", False),
    ("\x1b[1m--model\x1b[0m \x1b[3m<M>\x1b[0m  The model", ("--model",), "<M>", False),
    ("  --model    The model", ("--model",), "", False),
    ("  --model: The model", ("--model",), "", False),
    ("  --model - The model", ("--model",), "", False),
]


@pytest.mark.parametrize(("line", "names", "value", "optional"), SPELLINGS)
def test_how_options_are_written(
    line: str, names: tuple[str, ...], value: str, optional: bool
) -> None:
    found = only(line)
    assert found.names == names
    assert found.value == value
    assert found.optional == optional
    assert found.text.startswith("The model")


CHOICES = [
    '--f <x>  Format (choices: "a", "b-c", default: "a")',
    "--f {a,b-c}  Format",
    "--f [a|b-c]  Format",
    "--f <a|b-c>  Format",
    '--f  Format  [string] [choices: "a", "b-c"]',
    "--f <F>\n      Format\n\n      [possible values: a, b-c]",
    "--f <F>\n      Format\n\n      Possible values:\n      - a:   first\n      - b-c: second",
    "--f=<option>  Format\n              <options: a|b-c>",
    "--f <F>  Format: a (default) or b-c",
    "--f <F>  Format (a, b-c)",
    '--f <F>  Output: "a" (default) or "b-c".',
]


@pytest.mark.parametrize("text", CHOICES)
def test_how_choices_are_written(text: str) -> None:
    assert only(text).choices == ("a", "b-c")


def test_a_wrapped_text_is_one_text() -> None:
    text = "  --print      Print the\n               answer and\n               exit\n  --other  X"
    first, second = read_help(text).options
    assert first.text == "Print the answer and exit"
    assert second.names == ("--other",)


def test_options_within_a_text_are_no_options() -> None:
    text = (
        "  -c, --config X    Like\n                    -c a.b=1 or\n                    --no-such\n"
    )
    assert read_help(text).flags == {"-c", "--config"}


def test_letters_that_nobody_sees_are_left_out() -> None:
    found = only("  --mo\u200bdel\u00a0 <x>  The\u202e mod\u2028el")
    assert found.names == ("--model",)
    assert found.line.isprintable()


def test_examples_hold_no_options() -> None:
    assert read_help("Examples:\n  --not-one  x\n  x --neither\n").options == ()


def test_sub_commands_below_sub_commands() -> None:
    text = "Commands:\n  threads     Manage threads\n    continue  Continue one\n  top         X\n"
    names = [entry.name for entry in read_help(text).commands]
    assert names == ["threads", "threads continue", "top"]


def test_aliases() -> None:
    text = "Commands:\n  exec     Run [aliases: e, x]\n  up|upgrade [to]  New\n"
    first, second = read_help(text).commands
    assert (first.aliases, second.aliases) == (("e", "x"), ("upgrade",))


def test_argparse_lists_sub_commands_among_the_arguments() -> None:
    text = "positional arguments:\n  {run,ls}\n    run       Run it\n    ls        List\n"
    assert [entry.name for entry in read_help(text).commands] == ["run", "ls"]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("x [OPTIONS] [PROMPT]", ["PROMPT"]),
        ("x run <COMMAND> [ARGS]", []),
        ("x [-h] [--model MODEL] [--out {a,b}] file [file ...]", ["file"]),
        ("x --task TASK [message..]", ["message"]),
        ("x [options] [@files...] [messages...]", ["files", "messages"]),
        ("x [PROMPTS]...", ["PROMPTS"]),
        ("x [...prompt]", ["prompt"]),
    ],
)
def test_arguments_in_a_usage_line(line: str, names: list[str]) -> None:
    assert reading.usage_arguments(line) == names


def understand(text: str) -> None:
    """All questions that are asked of a help."""
    found = read_help(text, ["x"])
    reading.ways_in((), found)
    reading.likely_commands(found)
    reading.output_words(found)
    reading.bypass_words(found)
    reading.approval_modes(found)
    for entry in found.commands[:3]:
        reading.command_ways(("x",), entry, found)
        reading.shown_way(("x",), entry, found)
    for wanted in (reading.MODEL, reading.WORK_DIR, reading.RESUME, reading.NEW_SESSION):
        reading.find(found.options, wanted)


PIECES = [
    "--a", "-b", " ", "  ", "\n", "\n  ", "<x>", "[y|z]", "{a,b}", "=", ",", "|", "Usage: x ",
    "Commands:", "Options:", "Arguments:", "print", "prompt", "non-interactive", "\x1b[1m", "│",
    "╭─", "\b", "\t", "…", "- a:", "(choices: ", '"a", ', "[aliases: ", "exec",
    "Exit codes:", "0  ok",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
@settings(max_examples=300, deadline=None)
def test_any_help_is_read(text: str) -> None:
    understand(text)


@given(st.text(max_size=400))
@settings(deadline=None)
def test_any_text_is_read(text: str) -> None:
    understand(text)


@pytest.mark.parametrize(
    "piece",
    ["-", "--a ", "[", "<a|", "(aliases: ", "a, ", " ", "\x1b[", "\x1b]", "│", "{a,", "a|b|", "or ",
     "one of: ", "response ", "/a", "A_", "x."],
)  # fmt: skip
def test_no_text_takes_long(piece: str) -> None:
    begins = ["", "Commands:\n  x  ", "  --format X  "]
    for begin in begins:
        started = time.process_time()
        understand(begin + piece * (200_000 // len(piece)))
        understand((begin + piece * (400 // len(piece)) + "\n") * 200)
        assert time.process_time() - started < 5


def test_the_texts_of_the_stand_ins_are_helps() -> None:
    for file in HELPS.glob("*.txt"):
        assert read_help(file.read_text()).is_help, file
