"""Placeholders in a plan's strings: where each stands, so that its value is always data.

A mark says how a value is written there: `word`, `single` and `double` for the places in a Bash
command, `raw` elsewhere, `slug` for an item in a name, `keep` for `${NAME}`, which is the shell's.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")

BLANK = " \t\n"
SEPARATORS = BLANK + ";&|"
SPECIAL = re.compile(r"(?:case|\[\[|=~)(?=[\s;&|()<>]|\Z)")
# Built-in commands that evaluate their words again, whatever their quotes.
# Builtins that evaluate their words, subscripts in names included; PS4 is expanded by `set -x`.
EVALUATING = re.compile(
    r"(?:declare|eval|let|local|mapfile|read|readarray|trap|typeset|unset)(?=[\s;&|()<>]|\Z)"
    r"|printf(?=[ \t]+-v)|(?:test|\[)(?=[ \t][^\n;&|]*(?<=[ \t])-[vR][ \t])|PS4(?==)"
)
PLAIN = re.compile(r"[A-Za-z0-9_./:,%+-]+")
PLAIN_IN_DOUBLE = re.compile(r'[^"\\`${]+')
VARIABLE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")
SPECIAL_VARIABLE = re.compile(r"\$[0-9@*#?$!-]")
# Constructs of which the end is certain only while they are simple; others cast doubt on all that
# follows.
ARITHMETIC = re.compile(r"\$?\(\((?:[A-Za-z0-9_ +\-*/%>=!&|^~?:,;$]|\[|\]|<(?!<))*\)\)")
PARAMETER = re.compile(r"\$\{(?![\s|])(?:[^'\"\\`$(){}\n]|\$[A-Za-z_][A-Za-z0-9_]*)+\}")
BACKTICKS = re.compile(r"`[^`\\'\"\n#]*`")
ANSI_STRING = re.compile(r"\$'(?:[^'\\]|\\[\s\S])*'")
REGEX_WORD = re.compile(r"=~[ \t]+(?:[^\s'\"\\`()#$<>;&|]|\$(?![\s({'\"\[])|\$(?=\s))+(?=\s)")
QUOTED_REGEX = re.compile(r"=~[ \t]+[\"']")
# The value of a subscript, or of a number in [[ ]], is evaluated by Bash whatever its quotes.
SUBSCRIPT = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]{0,200})?\[")
CONDITION_END = re.compile(r"\s\]\](?=[\s;&|()]|\Z)")
EVALUATED = re.compile(r"\s-(?:eq|ne|lt|le|gt|ge|v)(?=\s)")


class UnfitPlaceError(Exception):
    """A placeholder stands where nobody can tell for sure how Bash reads its value."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{{{name}}} stands {reason}")
        self.name = name


def is_kept(place: re.Match[str]) -> bool:
    """Whether a placeholder belongs to the shell: `${NAME}`."""
    return place.string.startswith("$", place.start() - 1) and place.start() > 0


def occurrences(text: str, names: Container[str]) -> list[re.Match[str]]:
    """All places of a known name, from left to right, kept ones included."""
    if "{" not in text:
        return []
    return [place for place in PLACEHOLDER.finditer(text) if place[1] in names]


def scan(text: str, names: Container[str], slugged: Container[str] = ()) -> list[str]:
    """The marks of a text that no shell reads; names in `slugged` become slugs."""
    return [
        f"keep {place[1]}" if is_kept(place)
        else f"slug {place[1]}" if place[1] in slugged
        else f"raw {place[1]}"
        for place in occurrences(text, names)
    ]  # fmt: skip


def scan_shell(text: str, names: Container[str]) -> list[str]:
    """The marks of a Bash command. Raises UnfitPlaceError."""
    places = occurrences(text, names)
    replaced = [place for place in places if not is_kept(place)]
    words = iter(Scanner(text, replaced).scan() if replaced else [])
    return [f"keep {place[1]}" if is_kept(place) else f"{next(words)} {place[1]}"
            for place in places]  # fmt: skip


class Frame:
    """A place in a Bash command where words stand: the whole, or the inside of `$(...)`."""

    def __init__(self, start: int, *, nested: bool) -> None:
        self.nested = nested
        # Where the word that is being read began.
        self.start = start
        # Parentheses that are open in here.
        self.depth = 0
        # The command that is being read, if it evaluates its words.
        self.evaluating = ""


class Scanner:
    """Reads a Bash command from left to right, as far as placeholders stand in it.

    It knows less than Bash, on purpose: at the first thing that different versions might read in
    different ways it gives up, and a placeholder that is left then is refused.
    """

    def __init__(self, text: str, places: list[re.Match[str]]) -> None:
        self.text = text
        self.places = places
        self.at = 0
        self.marks: list[str] = []
        # Frames of words, and None for the inside of "...".
        self.frames: list[Frame | None] = [Frame(0, nested=False)]
        self.variable_end = -1
        self.evaluated_end = -1

    def scan(self) -> list[str]:
        """One mark for each place. Raises UnfitPlaceError."""
        while len(self.marks) < len(self.places) and self.at < len(self.text):
            frame = self.frames[-1]
            if self.at == self.places[len(self.marks)].start():
                self.mark("double" if frame is None else "word")
            elif frame is None:
                self.read_double()
            else:
                self.read_word(frame)
        return self.marks

    def next_place(self) -> int:
        """Where the next placeholder stands that has no mark yet."""
        if len(self.marks) == len(self.places):
            return len(self.text)
        return self.places[len(self.marks)].start()

    def mark(self, mark: str) -> None:
        """Decide about the next placeholder, and go behind it."""
        place = self.places[len(self.marks)]
        word = next(frame for frame in reversed(self.frames) if frame is not None)
        subscript = SUBSCRIPT.match(self.text, word.start)
        if place.start() < self.evaluated_end or (subscript and subscript.end() <= place.start()):
            raise UnfitPlaceError(place[1], "where Bash evaluates arithmetic")
        if word.evaluating:
            raise UnfitPlaceError(place[1], f"where `{word.evaluating}` evaluates it")
        if mark == "double" and place.start() == self.variable_end:
            raise UnfitPlaceError(
                place[1], "right after a variable; write ${...} around that one's name"
            )
        self.marks.append(mark)
        self.at = place.end()

    def skip(self, end: int, reason: str) -> None:
        """Go on at `end`; no placeholder may stand before it."""
        if self.next_place() < end:
            raise UnfitPlaceError(self.places[len(self.marks)][1], reason)
        self.at = end

    def give_up(self, what: str) -> None:
        """Called where the rest cannot be told for sure."""
        raise UnfitPlaceError(self.places[len(self.marks)][1], f"in or after {what}")

    def skip_simple(self, pattern: re.Pattern[str], what: str) -> None:
        """Go behind a construct when it is simple."""
        found = pattern.match(self.text, self.at)
        if found is None:
            self.give_up(what)
        else:
            self.skip(found.end(), f"in {what}")

    def read_word(self, frame: Frame) -> None:
        """Read one thing outside of quotes."""
        text, at = self.text, self.at
        character = text[at]
        if at == frame.start and (found := EVALUATING.match(text, at)) is not None:
            frame.evaluating = found[0]
            self.at = found.end()
        elif at == frame.start and SPECIAL.match(text, at):
            self.read_special(frame)
        elif (found := PLAIN.match(text, at)) is not None:
            self.at = found.end()
        elif character in SEPARATORS:
            self.at = frame.start = at + 1
            if character not in " \t":
                frame.evaluating = ""
        elif character == "'":
            self.read_single()
        elif character == '"':
            self.frames.append(None)
            self.at += 1
        elif character == "\\":
            self.read_backslash(frame)
        elif character == "`":
            self.skip_simple(BACKTICKS, "backticks")
        elif character == "$":
            self.read_dollar(frame)
        elif character == "#" and at == frame.start:
            self.read_comment(frame)
        elif character in "<>()":
            self.read_operator(frame)
        else:
            self.at += 1

    def read_special(self, frame: Frame) -> None:
        """Read a word that changes how the words after it are read."""
        text, at = self.text, self.at
        if text.startswith("case", at):
            if frame.nested:
                self.give_up("`case` inside of $(...)")
            self.at += 4
        elif text.startswith("[[", at):
            end = CONDITION_END.search(text, at)
            if end is None:
                self.give_up("a [[ without its ]]")
            elif EVALUATED.search(text, at, end.end()):
                self.evaluated_end = end.end()
            self.at += 2
        else:
            if not REGEX_WORD.match(text, at) and not QUOTED_REGEX.match(text, at):
                self.give_up("a regular expression")
            self.at += 2

    def read_single(self) -> None:
        """Read '...'."""
        end = self.text.find("'", self.at + 1)
        if end < 0:
            self.give_up("a quote without its end")
        while self.next_place() < end:
            self.mark("single")
        self.at = end + 1

    def read_backslash(self, frame: Frame | None) -> None:
        """Read a backslash with what it escapes; a line break after it is as if not there."""
        if not self.text.startswith("\n", self.at + 1):
            self.skip(self.at + 2, "right after a backslash")
        elif self.at > 0 and self.text[self.at - 1] in BLANK:
            self.at += 2
            if frame is not None:
                frame.start = self.at
        else:
            self.give_up("a word that goes on in the next line")

    def read_comment(self, frame: Frame) -> None:
        """Read a comment up to its line's end."""
        at = self.at
        if frame.nested or (at > 0 and self.text[at - 1] not in SEPARATORS):
            self.give_up("a comment")
        end = self.text.find("\n", at)
        self.skip(len(self.text) if end < 0 else end, "in a comment")

    def read_operator(self, frame: Frame) -> None:
        """Read a redirection or a parenthesis outside of quotes."""
        text, at = self.text, self.at
        if text.startswith("<<<", at):
            self.at += 3
        elif text.startswith("<<", at):
            self.give_up("a here-document")
        elif text.startswith(("<(", ">("), at):
            self.at += 2
            self.frames.append(Frame(self.at, nested=True))
            return
        elif text.startswith("((", at):
            self.skip_simple(ARITHMETIC, "arithmetic")
        elif text[at] == "(":
            if at > frame.start and text[at - 1] in "@?*+!":
                self.give_up("a pattern")
            frame.depth += 1
            self.at += 1
        elif text[at] == ")" and frame.nested and frame.depth == 0:
            self.frames.pop()
            self.at += 1
            return
        else:
            frame.depth -= text[at] == ")"
            self.at += 1
        frame.start = self.at

    def read_dollar(self, frame: Frame | None) -> None:
        """Read an expansion; `frame` is None inside of double quotes."""
        text, at = self.text, self.at
        after = text[at + 1 : at + 2]
        if text.startswith("$((", at):
            self.skip_simple(ARITHMETIC, "arithmetic")
        elif after == "(":
            self.at += 2
            self.frames.append(Frame(self.at, nested=True))
        elif after == "{":
            self.skip_simple(PARAMETER, "${...}")
        elif after == "[":
            self.give_up("arithmetic")
        elif after == "'" and frame is not None:
            if frame.nested:
                self.give_up("$'...'")
            self.skip_simple(ANSI_STRING, "$'...'")
        elif after == '"' and frame is not None:
            self.give_up('$"..."')
        elif (found := VARIABLE.match(text, at)) is not None:
            self.at = self.variable_end = found.end()
        else:
            found = SPECIAL_VARIABLE.match(text, at)
            self.at = found.end() if found else at + 1

    def read_double(self) -> None:
        """Read one thing inside of double quotes."""
        character = self.text[self.at]
        if character == '"':
            self.frames.pop()
            self.at += 1
        elif character == "\\":
            self.read_backslash(None)
        elif character == "`":
            self.skip_simple(BACKTICKS, "backticks")
        elif character == "$":
            self.read_dollar(None)
        else:
            found = PLAIN_IN_DOUBLE.match(self.text, self.at)
            self.at = found.end() if found else self.at + 1
