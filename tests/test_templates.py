"""Placeholders: what Bash makes of a value at the place that was found for it."""

from __future__ import annotations

import contextlib
import random
import subprocess
import tempfile
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.runtimes.loop import slug
from fanout.templates import UnfitPlaceError, scan, scan_shell

NAMES = frozenset(["A", "HOST"])
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "x": "X", "LC_ALL": "C.UTF-8"}
NASTY = [
    "", "plain", "two words", "'", "''", '"', "\\", "\\\\", "it's", '"; touch PWN; "',
    "$(touch PWN)",
    "`touch PWN`", "$HOME", "${HOME}", "*", "?[a-z]*", "~", "-n", "line\nbreak\n", "\n",
    "a;b|c&d>e<f",
    "(", ")", "{a,b}", "{A}", "{1..3}", "!x", "#not a comment", "\t", "é\u202e", "a\\", "$",
    "'$(touch PWN)'",
    "\\'", "\\\"", "]]", "case", "))", "}", "a[$(touch PWN)]", "<<EOF", "\r",
]  # fmt: skip


def quoted(mark: str, value: str) -> str:
    """A value as a runner writes it at a place with this mark."""
    if mark == "word":
        return "'" + value.replace("'", "'\\''") + "'"
    if mark == "single":
        return value.replace("'", "'\\''")
    if mark == "double":
        return "".join("\\" + c if c in '\\"$`' else c for c in value)
    return value


def filled(text: str, values: dict[str, str]) -> str:
    """A command with its values, written by its marks."""
    made, rest = "", text
    for word in scan_shell(text, NAMES):
        mark, name = word.split()
        before, _, rest = rest.partition(f"{{{name}}}")
        made += before + (f"{{{name}}}" if mark == "keep" else quoted(mark, values[name]))
    return made + rest


def marks(text: str) -> list[str]:
    return [mark.removesuffix(" A") for mark in scan_shell(text, NAMES)]


def refusal(text: str) -> str:
    with pytest.raises(UnfitPlaceError) as caught:
        scan_shell(text, NAMES)
    assert caught.value.name == "A"
    return str(caught.value)


def run_bash(loop: str, scripts: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run a loop over scripts, in a folder of its own: one that is misread writes anywhere."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            ["bash", "-c", loop, "bash", *scripts],
            env=ENVIRONMENT, cwd=folder, capture_output=True, timeout=60, check=False,
        )  # fmt: skip


def bash(scripts: list[str]) -> list[bytes]:
    """What each script prints, each in a subshell of one Bash, read as `bash -c` would read it."""
    loop = 'for script; do (eval "$script") </dev/null; printf "\\0\\0END\\0"; done'
    done = run_bash(loop, scripts)
    assert done.stderr == b"", done.stderr[:2000]
    return done.stdout.split(b"\0\0END\0")[:-1]


# --- Random commands -------------------------------------------------------------------------
# A piece is Bash text with placeholders, and what arrives, with "\1" for each value.

Piece = tuple[str, str]
SPOT = ("{A}", "\1")
LITERALS = ["a", "b-c", "x=y", "/p/q.r", "%d", "@", ":", "a{b}c", "{B}", "+", "^", "${x}"]
IN_SINGLE = ['"', "$x", "`", "\\", "$(", " ", "#", ";", "\n", "<<EOF", "a"]
UNQUOTED: list[Piece] = [
    ("\\'", "'"), ('\\"', '"'), ("\\$", "$"), ("\\ ", " "), ("\\#", "#"), ("\\`", "`"),
    ("\\\\", "\\"), ("${x}", "X"), ("${x:-y}", "X"), ("$'a\\'b'", "a'b"), ("$((1+2))", "3"),
    ("b#c", "b#c"), ("`printf y`", "y"), ("${none:-d}", "d"), ("$'\"'", '"'), ("$x.", "X."),
]  # fmt: skip
IN_DOUBLE: list[Piece] = [
    ("'", "'"), ('\\"', '"'), ("\\$", "$"), (" ", " "), ("#", "#"), ("\\`", "`"), ("\n", "\n"),
    ("\\\\", "\\"), ("${x}", "X"), (";", ";"), ("$x ", "X "), ("$((1+2))", "3"),
    ("`printf y`", "y"), ("(", "("), (")", ")"), ("<<", "<<"), ("case ", "case "), ("\\a", "\\a"),
    ("a \\\nb", "a b"),
]  # fmt: skip
BEFORE = [
    "", "# it's a comment\n", "x=X; ", "true \\\n  && ", "case a in (b) ;; c) ;; esac; ",
    "[[ a =~ ^a ]] && ", "true `true` <<<'q\"' && ", "((1)); ", "if [[ -n $x ]]; then :; fi; ",
    "( : ) ; ", "a=(1 2); ", "{ :; }; ", ": <(:) && ", "f() { printf '%s\\0' \"$@\"; }; ",
]  # fmt: skip
AFTER = ["", " # end's", "; true", "\n", " 2>&1", "; : <<EOF\nit's {\nEOF\n"]


def join(pieces: list[Piece]) -> Piece:
    text = arrives = ""
    for piece, value in pieces:
        # A placeholder right after a $ stays.
        kept = text.endswith("$") and piece.startswith("{A}")
        arrives += "{A}" + value.removeprefix("\1") if kept else value
        text += piece
    return text, arrives


class Writer:
    """Writes random commands of which it knows what they print."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def some(self, kinds: list[Callable[[], Piece]], least: int) -> Piece:
        return join([self.random.choice(kinds)() for _ in range(self.random.randint(least, 4))])

    def spot(self) -> Piece:
        return SPOT

    def literal(self) -> Piece:
        word = self.random.choice(LITERALS)
        return word, word.replace("${x}", "X")

    def single(self) -> Piece:
        def odd() -> Piece:
            word = self.random.choice(IN_SINGLE)
            return word, word

        text, arrives = self.some([self.spot, self.spot, odd], 0)
        return f"'{text}'", arrives

    def double(self, depth: int) -> Piece:
        kinds: list[Callable[[], Piece]] = [
            self.spot, self.spot, self.literal, lambda: self.random.choice(IN_DOUBLE),
        ]  # fmt: skip
        if depth > 0:
            kinds.append(lambda: self.substitution(depth))
        text, arrives = self.some(kinds, 0)
        return f'"{text}"', arrives

    def substitution(self, depth: int) -> Piece:
        """`$(...)` that gives a word back; the full stop keeps line breaks at its end."""
        text, arrives = self.word(depth - 1)
        forms = ["$(printf %s {}.)", "$( (printf %s {}.; (true)) )", "$(printf %s \\\n {}. | cat)"]
        form = self.random.choice(forms)
        return form.replace("{}", text), arrives + "."

    def word(self, depth: int) -> Piece:
        kinds = [
            self.spot, self.literal, self.single, lambda: self.double(depth),
            lambda: self.random.choice(UNQUOTED),
        ]  # fmt: skip
        return self.some(kinds, 1)

    def command(self) -> Piece:
        words = [self.word(2) for _ in range(self.random.randint(1, 3))]
        separator = self.random.choice([" ", "  ", " \\\n ", "\t"])
        text = self.random.choice(BEFORE) + "printf '%s\\0' "
        text += separator.join(word[0] for word in words) + self.random.choice(AFTER)
        return text, "".join(word[1] + "\0" for word in words)

    def value(self) -> str:
        if self.random.random() < 0.5:
            return self.random.choice(NASTY)
        signs = "'\"\\$`(){}[]*?~!#&|;<> \n\tab="
        return "".join(self.random.choice(signs) for _ in range(self.random.randint(0, 8)))


@settings(max_examples=6)
@given(st.integers(0, 2**64))
def test_a_value_arrives_byte_for_byte_wherever_it_stands(seed: int) -> None:
    """Q05, Q07, Q19."""
    writer = Writer(seed)
    scripts: list[str] = []
    expected: list[bytes] = []
    for _ in range(150):
        text, arrives = writer.command()
        value = writer.value()
        try:
            scripts.append(filled(text, {"A": value}))
        except UnfitPlaceError:
            continue
        expected.append(arrives.replace("\1", value).encode())
    assert len(scripts) > 60, "most commands are not refused"
    for script, wanted, found in zip(scripts, expected, bash(scripts), strict=True):
        assert found == wanted, script


# --- Commands of any shape -------------------------------------------------------------------

TOKENS = [
    "'", '"', '"', "$(", ")", "{A}", "{A}", "\\", "\n", "#", " ", " ", ";", "${x}", "$x", "`",
    "$((", "((", "))", "<<EOF\n", "EOF\n", "<<<", "case ", " esac", " in ", "$'", "[[ ", " ]]",
    " =~ ", " -eq ", " == ", "a[", "]", "=", "{ ", "; }", "<(", "(", "&&", "|", "printf %s ",
    "let ", "x", "echo ", "\\\n", "if ", "then ", "fi ", "${x:-", "}", "$[", "test ", "@(", "a=(",
    "declare ", "eval ", "trap ", "unset ", "read ", '$"',
]  # fmt: skip
PAYLOADS = [
    "$(CALL)", "`CALL`", "'$(CALL)'", '"$(CALL)"', "\\$(CALL)", ";CALL;", "';CALL;'", '";CALL;"',
    "\nCALL\n", ")\nCALL\n(", "a[$(CALL)]", "';CALL #", '";CALL #', "\\';CALL;'", "a[0$(CALL)]=1",
    "EOF\nCALL\n", "]];CALL;", "))\nCALL\n", "esac\nCALL\n",
]  # fmt: skip


@settings(max_examples=4)
@given(st.integers(0, 2**64))
def test_a_value_is_never_run_whatever_stands_around_it(seed: int) -> None:
    """Q05. Most of these commands are nonsense; none that is accepted may run the value."""
    choose = random.Random(seed)
    scripts: list[str] = []
    while len(scripts) < 200:
        text = "".join(choose.choice(TOKENS) for _ in range(choose.randint(3, 14)))
        value = choose.choice(PAYLOADS).replace("CALL", "printf R%s AN >&9")
        try:
            scripts += [filled(text, {"A": value})] if any(marks(text)) else []
        except UnfitPlaceError:
            continue
    loop = 'n=0; for s; do ran=$({ eval "$s" </dev/null >/dev/null 2>&1; } 9>&1); '
    # A trap may list commands there; no list has the word as a whole.
    loop += 'case $ran in *RAN*) printf "%s " "$n" ;; esac; n=$((n+1)); done'
    done = run_bash(loop, scripts)
    assert [scripts[int(number)] for number in done.stdout.split()] == []


# --- Places, one by one ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("echo {A}", ["word"]),
        ("echo '{A}' \"{A}\" {A}", ["single", "double", "word"]),
        ("echo ${A}{A}${A}", ["keep", "word", "keep"]),
        ("echo \\${A}", ["keep"]),
        ("echo \"$(cat {A} '{A}' \"{A}\") {A}\"", ["word", "single", "double", "double"]),
        ("diff <(cat {A}) >(cat \"{A}\")", ["word", "double"]),
        ("case {A} in a) echo {A};; esac", ["word", "word"]),
        ("( case {A} in a) echo {A};; esac )", ["word", "word"]),
        ("[[ {A} == {A} ]] && [ {A} -eq 1 ]", ["word"] * 3),
        ("[[ $x =~ ^[0-9]+$ ]] && echo {A}", ["word"]),
        ("x=$((1 + y)); echo ${x:-d} `date` $'\\'' {A}", ["word"]),
        ("# it's a comment\necho {A}", ["word"]),
        ("a \\\n  {A} b#c {A}", ["word", "word"]),
        ("while read x; do ssh {A} true; done", ["word"]),
        ("cat <<<{A}", ["word"]),
        ("python3 -c 'print(\"{A}\")'", ["single"]),
        ("echo {B} {A B} {} { A}", []),
        ("echo \"${x}{A} $1{A} $x/{A}\"", ["double"] * 3),
        ("echo \"it's $ {A}\"", ["double"]),
        ("a=({A} {A}); echo {a,{A}}", ["word"] * 3),
        ("echo {A} <<EOF\n$x\nEOF\n", ["word"]),
        ("echo {A} 'no end", ["word"]),
    ],
)  # fmt: skip
def test_the_place_of_each_placeholder_is_told(text: str, expected: list[str]) -> None:
    assert marks(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cat <<EOF\n{A}\nEOF", "a here-document"),
        ("cat <<'EOF'\nit's\nEOF\necho {A}", "a here-document"),
        ("echo $'{A}'", "$'...'"),
        ("echo $\"{A}\"", '$"..."'),
        ("echo `cat {A}`", "backticks"),
        ("echo `echo \\`x\\``; echo {A}", "backticks"),
        ("echo $(({A} + 1))", "arithmetic"),
        ("echo $[{A}]", "arithmetic"),
        ("(( {A} > 1 ))", "arithmetic"),
        ("a[{A}]=1", "arithmetic"),
        ("a['{A}']=1", "arithmetic"),
        ("a=([{A}]=1)", "arithmetic"),
        ("[[ {A} -gt 1 ]]", "arithmetic"),
        ("[[ -n $x && 1 -lt \"{A}\" ]] || true", "arithmetic"),
        ("let x={A}", "`let` evaluates"),
        ("eval 'echo {A}'", "`eval` evaluates"),
        ("trap 'rm \"{A}\"' EXIT", "`trap` evaluates"),
        ("true; unset \\\n {A}", "`unset` evaluates"),
        ("test -v {A}", "`test` evaluates"),
        ("if [ a = b -a ! -v {A} ]; then :; fi", "`[` evaluates"),
        ("printf -v {A} x", "`printf` evaluates"),
        ("mapfile -C {A}", "`mapfile` evaluates"),
        ("PS4={A}; set -x", "`PS4` evaluates"),
        ("echo ${x:-{A}}", "${...}"),
        ("echo ${x#\"}\"} {A}", "${...}"),
        ("echo # {A}", "a comment"),
        ("echo $(true # it's\n) {A}", "a comment"),
        ("echo $(case x in x) echo {A};; esac)", "`case` inside of $(...)"),
        ("echo \\{A}", "a backslash"),
        ("echo \"\\{A}\"", "a backslash"),
        ("echo \"$x{A}\"", "right after a variable"),
        ("echo x\\\ny {A}", "goes on in the next line"),
        ("echo \"$\\\n(x {A})\"", "goes on in the next line"),
        ("[[ x =~ ( #' ) ]] && echo {A}", "a regular expression"),
        ("[[ x == @( #'|b) ]] && echo {A}", "a pattern"),
        ("echo 'no end {A}", "a quote without its end"),
    ],
)  # fmt: skip
def test_a_place_that_cannot_be_told_is_refused(text: str, reason: str) -> None:
    assert reason in refusal(text)


def test_text_that_no_shell_reads_has_raw_places() -> None:
    text = "{A} '{A}' ${A} $ {A} {HOST}{OTHER} {A"
    assert scan(text, NAMES) == ["raw A", "raw A", "keep A", "raw A", "raw HOST"]
    assert scan("{A}-{HOST}-${A}", NAMES, slugged=("A",)) == ["slug A", "raw HOST", "keep A"]
    assert scan("{A}", ()) == scan("", NAMES) == []


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("web-1_A", "web-1_A"), ("x" * 40, "x" * 40), ("x" * 41, "x" * 40 + "-7"),
        ("a b/c", "a-b-c-7"), (" é ", "item-7"), ("../..", "item-7"), ("-", "-"), ("ä-b", "b-7"),
        ("a\n", "a-7"), ("x" * 39 + " y", "x" * 39 + "-7"), ("", "item-7"),
    ],
)  # fmt: skip
def test_an_item_becomes_part_of_a_name(item: str, expected: str) -> None:
    assert slug(item, 7) == expected


@pytest.mark.parametrize("text", ["{A}", "'{A}'", '"{A}"', "$(", "[[ ", "a[1", "x" * 50])
def test_long_commands_are_read_in_one_go(text: str) -> None:
    """Ten times the text takes not a hundred times the steps, and nothing recurses."""

    def seconds(times: int) -> float:
        command = text * times + "\n{A}"
        start = time.process_time()
        with contextlib.suppress(UnfitPlaceError):
            scan_shell(command, NAMES)
        return time.process_time() - start

    # The best of some: a busy machine makes some of them slower.
    few, many = (min(seconds(times) for _ in range(4)) for times in (1_000, 10_000))
    assert many < 40 * max(few, 0.002)
