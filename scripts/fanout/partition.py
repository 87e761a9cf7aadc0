r"""Who owns what: the patterns of `owns`, what they match, and where two lists of them meet.

A pattern without a wildcard is that path or everything below it. `*`, `?`, `[ab]` and `[!a]` stay
within one part of a path, `**` between slashes does not; `\` takes a letter as it is; a slash at
the end means everything below. `!` before a pattern takes back what earlier ones gave: the last
one that matches decides. All is relative to the root of the repository and looks at capitals, as
git does with `:(top,glob)`.

Two letters stand for text that is not known yet: ITEM for the item of a `for_each`, FREE for all
else.
"""

from __future__ import annotations

import functools
from collections import deque

from fanout.fields import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# A path inside of the repository, and a pattern of `owns`.
INSIDE = r"^(?!/)(?!(?:[\s\S]*/)?\.\.(?:/|$(?!\n)))[^\u0000\ud800-\udfff]+$"
OWNED = r"^(?:!|(?!!))" + INSIDE.removeprefix("^")
FREE, ITEM = "\0", "\1"
SPECIAL = frozenset("*?[\\\0\1")
SLASH = 1 << ord("/")
DOT = 1 << ord(".")
ALL = (1 << 256) - 2
WITHIN = ALL & ~SLASH
UPPER, LOWER = ((1 << 26) - 1) << 65, ((1 << 26) - 1) << 97
EMPTY, ALWAYS = 1, 2
SIGNS = frozenset([SLASH, DOT])
# What a path that is made up as an example is written with, as far as there is a choice.
READABLE = b"abcdefghijklmnopqrstuvwxyz0123456789_-ABCDEFGHIJKLMNOPQRSTUVWXYZ.+=@,/ "
# Beyond so many states two lists count as overlapping, and so do all instances of two tasks with so
# many pairs of patterns, all tasks of a plan with so many, and what is left after so many states.
MOST_STATES = 5_000
MOST_PAIRS = 50_000
MOST_TO_COMPARE = 1_000_000
MOST_IN_ALL = 100_000
CLASSES = {
    "alnum": b"0-9A-Za-z", "alpha": b"A-Za-z", "blank": b" \t", "cntrl": b"\x01-\x1f\x7f",
    "digit": b"0-9", "graph": b"!-~", "lower": b"a-z", "print": b" -~",
    "punct": b"!-/:-@[-`{-~", "space": b"\t-\r ", "upper": b"A-Z", "xdigit": b"0-9A-Fa-f",
}  # fmt: skip


class Item(NamedTuple):
    """One place in a pattern: the bytes that fit it; `many` of them or one.

    The slash behind it may be left out as well: EMPTY, when nothing fits the place, or ALWAYS.
    """

    fits: int
    many: bool = False
    slash: int = 0


class Pattern(NamedTuple):
    """One pattern: the sequences of which one must fit a whole path.

    With `below` also what lies below such a path.
    """

    sequences: list[list[Item]]
    below: bool


# --- Reading --------------------------------------------------------------------------------


def normal(text: str) -> str:
    """A pattern as git takes it for the same: without empty parts, a slash at its end spelt out."""
    sign = "!" if text.startswith("!") else ""
    body = text[len(sign) :]
    parts = [part for part in body.split("/") if part not in ("", ".")]
    made = "/".join(parts)
    if not parts:
        made = "**"
    elif body.endswith("/") and (not SPECIAL.isdisjoint(made) or "{" in made):
        made += "/**"
    elif body.endswith("/"):
        made += "/"
    return sign + made


LETTERS = [Item(1 << byte) for byte in range(256)]


def literal(raw: bytes) -> list[Item]:
    """The sequence of a text that stands for itself."""
    return [LETTERS[byte] for byte in raw]


def read(text: str) -> Pattern:
    """A pattern, without its sign, ready to be matched."""
    raw = text.encode("utf-8", "surrogateescape")
    if FREE in text or ITEM in text:
        return with_unknown(text)
    if SPECIAL.isdisjoint(text):
        if raw.endswith(b"/"):
            return Pattern([[*literal(raw), Item(ALL, many=True)]], below=False)
        return Pattern([literal(raw)], below=True)
    found = [glob(word.encode("utf-8", "surrogateescape")) for word in spelled(text)]
    sequences = [sequence for sequence in found if sequence is not None]
    if not frozenset("*?\\").isdisjoint(text):
        return Pattern(sequences, below=False)
    # Git takes a file's own name for it as well: `pages/[id]` owns the folder of that name.
    beneath = [*literal(raw), Item(SLASH), Item(ALL, many=True)]
    return Pattern([*sequences, literal(raw), beneath], below=False)


def spelled(text: str, ends: str = "/") -> list[str]:
    """A pattern, and what it is with the brackets of its first parts as plain letters.

    So `pages/[id]/*` owns what lies in the folder of that name. Git itself sees it so in some of
    its commands and not in others, and therefore is given all of them.
    """
    found = [text]
    part = 0
    for at, letter in enumerate(text):
        if letter in "*?\\":
            break
        if letter in ends:
            if "[" in text[part:at]:
                found.append(text[:at].replace("[", "\\[") + text[at:])
            part = at
    return found


def with_unknown(text: str) -> Pattern:
    """A pattern in which text is not known yet: all that it may match."""
    texts = spelled(text, "/" + FREE + ITEM)
    if frozenset("*?\\").isdisjoint(text) and "[" in text:
        texts.append(text.replace("[", "\\["))
    below = frozenset("*?").isdisjoint(text)
    return Pattern([sequence_with_unknown(word) for word in texts], below)


def sequence_with_unknown(text: str) -> list[Item]:
    """The sequence of one way to spell a pattern in which text is not known yet."""
    raw = text.encode("utf-8", "surrogateescape")
    pieces = raw.replace(ITEM.encode(), FREE.encode()).split(b"\0")
    if any(b"[" in piece or b"]" in piece for piece in pieces[1:]):
        # What is put in could open a bracket or close one.
        pieces = [pieces[0], b""]
    found = [glob(piece) for piece in pieces]
    made: list[Item] = []
    for sequence, piece in zip(found, [*pieces[1:], b""], strict=True):
        if sequence is None:
            return [Item(ALL, many=True)]
        # It may be `**`, which takes the slash after it along.
        made += [*sequence, Item(ALL, True, ALWAYS if piece.startswith(b"/") else 0)]
    made.pop()
    return made


def glob(raw: bytes) -> list[Item] | None:
    """The sequence of a pattern with wildcards; None for one that can match nothing."""
    made: list[Item] = []
    at = 0
    first = next((n for n, byte in enumerate(raw) if byte in b"*?[\\"), len(raw))
    while at < len(raw):
        letter = raw[at : at + 1]
        at += 1
        if letter == b"*":
            begin = at - 1
            while raw[at : at + 1] == b"*":
                at += 1
            # Git looks at what follows the fixed beginning alone, as if it began there.
            alone = begin == first or raw[begin - 1 : begin] == b"/"
            after = raw[at : at + 2]
            if at - begin > 1 and alone and (after[:1] in (b"", b"/") or after == b"\\/"):
                made.append(Item(ALL, True, EMPTY if after[:1] == b"/" else 0))
            else:
                made.append(Item(WITHIN, many=True))
        elif letter == b"?":
            made.append(Item(WITHIN))
        elif letter == b"[":
            bracket = read_bracket(raw, at)
            if bracket is None:
                return None
            fits, at = bracket
            made.append(Item(fits))
        elif letter == b"\\":
            if at == len(raw):
                return None
            made.append(Item(1 << raw[at]))
            at += 1
        else:
            made.append(LETTERS[letter[0]])
    return made


def read_bracket(raw: bytes, at: int) -> tuple[int, int] | None:
    """The bytes that fit a bracket which opens before `at`, and where it ends; None if never."""
    negated = raw[at : at + 1] in (b"!", b"^")
    at += negated
    fits, before, begin = 0, -1, at
    while at < len(raw):
        byte = raw[at]
        at += 1
        if byte == ord("]") and at - 1 > begin:
            return (WITHIN & ~fits if negated else WITHIN & fits), at
        if byte == ord("-") and before >= 0 and raw[at : at + 1] not in (b"", b"]"):
            at += raw[at] == ord("\\")
            if at == len(raw):
                return None
            fits |= span(before, raw[at])
            before = -1
            at += 1
        elif byte == ord("[") and raw[at : at + 1] == b":":
            end = raw.find(b"]", at + 1)
            if end < 0:
                return None
            if end == at + 1 or raw[end - 1 : end] != b":":
                fits |= 1 << byte
                before = byte
                continue
            members = CLASSES.get(raw[at + 1 : end - 1].decode("latin-1"))
            if members is None:
                return None
            fits |= members_of(members)
            before, at = -1, end + 1
        else:
            if byte == ord("\\"):
                if at == len(raw):
                    return None
                byte = raw[at]
                at += 1
            fits |= 1 << byte
            before = byte
    return None


def span(first: int, last: int) -> int:
    """The bytes of a range."""
    return sum(1 << byte for byte in range(first, last + 1))


def members_of(text: bytes) -> int:
    """The bytes of a named class, from ranges and single letters."""
    fits = 0
    at = 0
    while at < len(text):
        if text[at + 1 : at + 2] == b"-" and at + 2 < len(text):
            fits |= span(text[at], text[at + 2])
            at += 3
        else:
            fits |= 1 << text[at]
            at += 1
    return fits


def folded(fits: int) -> int:
    """Bytes, and the same letters in the other case."""
    return fits | (fits & UPPER) << 32 | (fits & LOWER) >> 32


# --- Matching -------------------------------------------------------------------------------


class State:
    """A set of places in patterns, and where each byte leads from there."""

    __slots__ = ("gives", "leads", "masks", "one", "places", "several", "stays", "verdict")

    def __init__(self, places: frozenset[int]) -> None:
        self.places = places
        # Whether a pattern that gives may still match.
        self.gives = False
        self.leads: dict[int, State] = {}
        self.verdict: frozenset[int] | None = None
        # Where its places lead: those that a single byte fits, by it, and all others.
        self.one: dict[int, list[Places]] | None = None
        self.several: list[tuple[int, Places]] = []
        # What is asked of the next byte, and whether every byte leads back here.
        self.masks: frozenset[int] | None = None
        self.stays = False


if TYPE_CHECKING:
    Places = tuple[int, ...]
    # Where a search is: a state of either side, and what the last part of the path is.
    Place = tuple[State, State, int]


class Machine:
    """Lists of patterns as one automaton over the bytes of a path."""

    def __init__(self, lists: Sequence[Sequence[str]], *, fold: bool = False) -> None:
        # Of each place: the bytes that fit, where they lead, and whether its pattern gives.
        self.steps: list[tuple[int, Places]] = []
        self.giving: list[bool] = []
        # Of each pattern in order its list and whether it gives; the patterns by where they end.
        self.patterns: list[tuple[int, bool]] = []
        self.ends: dict[int, int] = {}
        self.states: dict[frozenset[int], State] = {}
        start: list[int] = []
        read_before: dict[str, Pattern] = {}
        for number, texts in enumerate(lists):
            for text in texts:
                body = text.removeprefix("!")
                gives = body == text
                if not gives and (FREE in text or ITEM in text):
                    # It is not known what is taken back.
                    continue
                pattern = read_before.get(body) or read(body)
                read_before[body] = pattern
                for sequence in pattern.sequences:
                    start += self.add(sequence, pattern.below, fold)
                self.giving += [gives] * (len(self.steps) - len(self.giving))
                self.patterns.append((number, gives))
        self.start = self.state(frozenset(start))

    def add(self, sequence: list[Item], below: bool, fold: bool) -> Places:
        """Add a sequence; the places where it begins."""
        begin, size = len(self.steps), len(sequence)
        reach: list[Places] = [()] * (size + 2)
        reach[size] = (begin + size,)
        for place in range(size - 1, -1, -1):
            item = sequence[place]
            reach[place] = (begin + place,)
            if item.many:
                skipped = reach[place + 1] + (reach[place + 2] if item.slash else ())
                reach[place] += tuple(dict.fromkeys(skipped))
        for place, item in enumerate(sequence):
            fits = folded(item.fits) if fold else item.fits
            after = reach[place + 1]
            if item.many:
                after += reach[place] if item.slash == ALWAYS else (begin + place,)
            self.steps.append((fits, after))
        end = begin + size
        self.ends[end] = len(self.patterns)
        self.steps.append((SLASH, (end + 1,)) if below else (0, ()))
        if below:
            self.ends[end + 1] = len(self.patterns)
            self.steps.append((ALL, (end + 1,)))
        return reach[0]

    def state(self, places: frozenset[int]) -> State:
        """The one state of these places."""
        found = self.states.get(places)
        if found is None:
            found = self.states[places] = State(places)
            found.gives = any(self.giving[place] for place in places)
        return found

    def lead(self, state: State, byte: int) -> State:
        """The state after one more byte."""
        found = state.leads.get(byte)
        if found is None:
            one = self.unfold(state) if state.one is None else state.one
            places: set[int] = set()
            places.update(*one.get(byte, ()))
            for fits, after in state.several:
                if fits >> byte & 1:
                    places.update(after)
            found = state.leads[byte] = self.state(frozenset(places))
        return found

    def unfold(self, state: State) -> dict[int, list[Places]]:
        """Note where the places of a state lead; gives those that a single byte fits."""
        one: dict[int, list[Places]] = {}
        for place in state.places:
            fits, after = self.steps[place]
            if fits & fits - 1:
                state.several.append((fits, after))
            elif fits:
                one.setdefault(fits.bit_length() - 1, []).append(after)
        state.one = one
        return one

    def asked(self, state: State) -> frozenset[int]:
        """What the patterns ask of the next byte."""
        if state.masks is None:
            one = self.unfold(state) if state.one is None else state.one
            several = {fits for fits, _ in state.several}
            state.masks = frozenset([*several, *(1 << byte for byte in one)])
            if several == {ALL} and not one:
                back = {place for _, after in state.several for place in after}
                state.stays = back == {*state.places}
        return state.masks

    def owners(self, state: State) -> frozenset[int]:
        """The numbers of the lists that own a path which ends here."""
        if state.verdict is None:
            given = dict(self.patterns[number] for number in sorted(self.matched(state)))
            state.verdict = frozenset(number for number, gives in given.items() if gives)
        return state.verdict

    def walk(self, state: State, text: bytes) -> State:
        """The state after a text."""
        for byte in text:
            state = state.leads.get(byte) or self.lead(state, byte)
            if not state.places:
                break
        return state

    def matched(self, state: State) -> set[int]:
        """The numbers of the patterns, over all lists, that match a path which ends here."""
        return {self.ends[place] for place in state.places if place in self.ends}

    def of_files(self, files: Iterable[str]) -> Iterable[tuple[str, State]]:
        """Each file that some pattern may match, with the state at its end.

        Each folder is walked once, and none below one that no pattern leads to.
        """
        folders: dict[str, State] = {"": self.start}
        for path in files:
            folder, _, name = path.rpartition("/")
            state = folders.get(folder)
            if state is None:
                state = self.folder(folder, folders)
            if not state.stays and state.places:
                state = self.walk(state, name.encode("utf-8", "surrogateescape"))
            if state.places:
                yield path, state

    def folder(self, path: str, known: dict[str, State]) -> State:
        """The state behind a folder's slash."""
        parts = path.split("/")
        state = self.start
        for number, part in enumerate(parts, 1):
            here = "/".join(parts[:number])
            if here not in known:
                word = part.encode("utf-8", "surrogateescape") + b"/"
                known[here] = self.walk(state, word)
                self.asked(known[here])
            state = known[here]
        return state


def owned(texts: Sequence[str], paths: Iterable[str]) -> list[str]:
    """Those of some paths that a list of patterns owns."""
    machine = Machine([texts])
    return [path for path, state in machine.of_files(paths) if machine.owners(state)]


# --- Pattern against pattern ----------------------------------------------------------------


@functools.cache
def letters(masks: frozenset[int]) -> list[int]:
    """One byte for each group of bytes between which nothing tells a difference."""
    groups = [ALL]
    for mask in masks:
        groups = [part for group in groups for part in (group & mask, group & ~mask) if part]
    order = [*READABLE, *range(1, 256)]
    found = {next(n for n, byte in enumerate(order) if group >> byte & 1) for group in groups}
    return [order[number] for number in sorted(found)]


class Effort:
    """How many states a comparison of many lists may still look at."""

    def __init__(self) -> None:
        self.left = MOST_IN_ALL


def shared(a: Machine, b: Machine, effort: Effort | None = None) -> str | None:
    """A shortest path that both own, whether it is there or not; None when there is none.

    Empty where that would take too long to tell: count it as an overlap.
    """
    effort = Effort() if effort is None else effort
    most = min(MOST_STATES, effort.left)
    came: dict[Place, tuple[Place, int] | None] = {}
    try:
        return search(a, b, came, most)
    finally:
        effort.left -= len(came)


def search(
    a: Machine, b: Machine, came: dict[Place, tuple[Place, int] | None], most: int
) -> str | None:
    """A shortest path that both own; notes in `came` what it looked at, `most` so many states."""
    # What the last part of the path is so far: 0 nothing, 1 and 2 dots, 3 a name.
    first = (a.start, b.start, 0)
    came[first] = None
    queue: deque[Place] = deque([first])
    while queue:
        here = queue.popleft()
        mine, yours, part = here
        if len(came) > most:
            return ""
        for byte in letters(a.asked(mine) | b.asked(yours) | SIGNS):
            if byte == 47:
                if part != 3:
                    continue
                now = 0
            else:
                now = part + 1 if byte == 46 and part < 3 else 3
            next_mine = mine.leads.get(byte) or a.lead(mine, byte)
            if not next_mine.gives:
                continue
            next_yours = yours.leads.get(byte) or b.lead(yours, byte)
            if not next_yours.gives:
                continue
            there = (next_mine, next_yours, now)
            if there not in came:
                came[there] = (here, byte)
                if now == 3 and a.owners(next_mine) and b.owners(next_yours):
                    return spell(came, there)
                queue.append(there)
    return None


def spell(came: dict[Place, tuple[Place, int] | None], here: Place) -> str:
    """The path that led to a state."""
    made = bytearray()
    step = came[here]
    while step is not None:
        made.append(step[1])
        step = came[step[0]]
    return bytes(reversed(made)).decode("utf-8", "surrogateescape")


class Meeting(NamedTuple):
    """Two lists that own a path both: an example, and the pairs of patterns that may meet.

    `path` is empty where it would take too long to find one.
    """

    a: int
    b: int
    path: str
    pairs: list[tuple[str, str]]


def beginning(text: str) -> str:
    """The letters at the front of a pattern that stand for themselves."""
    end = next((at for at, letter in enumerate(text) if letter in SPECIAL), len(text))
    return text[:end]


CAPITALS = {code: code + 32 for code in range(65, 91)}


def are_apart(p: str, q: str) -> bool:
    """Whether a part of two patterns already says that no path matches both.

    Parts are compared from the front and, where both match whole paths alone, from the end, as far
    as it is known which parts of a path they are for.
    """
    mine, yours = p.split("/"), q.split("/")
    ends = [(mine, yours)]
    if not WILD.isdisjoint(p) and not WILD.isdisjoint(q):
        ends.append((mine[::-1], yours[::-1]))
    for rows in ends:
        for one, other in zip(*rows, strict=False):
            if is_open(one) or is_open(other):
                break
            if parts_apart(one, other):
                return True
    return False


WILD = frozenset("*?")
OPEN = frozenset("[]\\\0\1")


def is_open(part: str) -> bool:
    """Whether a part of a pattern may stand for several, or for what its letters do not show."""
    return not part or "**" in part or not OPEN.isdisjoint(part)


def parts_apart(one: str, other: str) -> bool:
    """Whether two parts of patterns differ in how they begin or end."""
    if WILD.isdisjoint(one) and WILD.isdisjoint(other):
        return one != other
    begin, end = fixed(one)
    other_begin, other_end = fixed(other)
    return not (
        (begin.startswith(other_begin) or other_begin.startswith(begin))
        and (end.endswith(other_end) or other_end.endswith(end))
    )


@functools.lru_cache(1000)
def fixed(part: str) -> tuple[str, str]:
    """How everything begins and ends that a part of a pattern matches."""
    at = [place for place, letter in enumerate(part) if letter in WILD]
    return (part[: at[0]], part[at[-1] + 1 :]) if at else (part, part)


class Meetings:
    """Finds the lists of patterns that meet."""

    def __init__(
        self, lists: Sequence[Sequence[str]], *, fold: bool = False, effort: Effort | None = None
    ) -> None:
        self.lists = lists
        self.fold = fold
        self.effort = Effort() if effort is None else effort
        self.samples: dict[str, str] = {}
        self.single: dict[str, Machine] = {}
        self.whole: dict[int, Machine] = {}
        self.answers: dict[tuple[str, str], str | None] = {}
        self.plain = [not any(text.startswith("!") for text in texts) for texts in lists]

    def candidates(self, most: int) -> dict[tuple[int, int], list[tuple[str, str]]] | None:
        """The pairs of lists of which two patterns begin alike, with those patterns.

        None when there are more pairs of patterns than `most`.
        """
        at: dict[str, list[tuple[int, str]]] = {}
        begun: list[tuple[int, str, str]] = []
        for number, texts in enumerate(self.lists):
            for text in dict.fromkeys(texts):
                if not text.startswith("!"):
                    front = beginning(text.translate(CAPITALS) if self.fold else text)
                    begun.append((number, text, front))
                    at.setdefault(front, []).append((number, text))
        found: dict[tuple[int, int], list[tuple[str, str]]] = {}
        count = 0
        for number, text, front in begun:
            for size in range(len(front) + 1):
                for other, theirs in at.get(front[:size], ()):
                    # Of two that begin the same each would find the other.
                    if other == number or (size == len(front) and other > number):
                        continue
                    count += 1
                    if count > most:
                        return None
                    if other < number:
                        found.setdefault((other, number), []).append((theirs, text))
                    else:
                        found.setdefault((number, other), []).append((text, theirs))
        return found

    def all(self) -> list[Meeting] | None:
        """Every two lists that meet, in order; None when there is too much to compare."""
        found: list[Meeting] = []
        candidates = self.candidates(MOST_TO_COMPARE)
        if candidates is None:
            return None
        for (a, b), pairs in sorted(candidates.items()):
            meeting = self.meet(a, b, pairs)
            if meeting is not None:
                found.append(meeting)
        return found

    def meet(self, a: int, b: int, pairs: list[tuple[str, str]]) -> Meeting | None:
        """Where two lists meet, given their patterns that begin alike; None if nowhere."""
        met = [(pair, path) for pair in pairs if (path := self.one(*pair)) is not None]
        if not met:
            return None
        paths = sorted((path for _, path in met), key=lambda word: (len(word), word))
        path: str | None = paths[0]
        if not (self.plain[a] and self.plain[b]):
            both = self.machine(a), self.machine(b)
            path = next((word for word in paths if word and owned_by_all(both, word)), None)
            path = shared(*both, self.effort) if path is None else path
            if path is None:
                return None
        return Meeting(a, b, path, [pair for pair, _ in met])

    def machine(self, number: int) -> Machine:
        """The automaton of a whole list."""
        if number not in self.whole:
            self.whole[number] = Machine([self.lists[number]], fold=self.fold)
        return self.whole[number]

    def one(self, p: str, q: str) -> str | None:
        """A path that two patterns match; None when there is none."""
        key = (p, q) if p <= q else (q, p)
        if key not in self.answers:
            texts = [text.translate(CAPITALS) for text in key] if self.fold else key
            self.answers[key] = None if are_apart(*texts) else self.searched(*key)
        return self.answers[key]

    def searched(self, p: str, q: str) -> str | None:
        """A path that two patterns match, found among likely ones or by walking both."""
        both = self.machine_of(p), self.machine_of(q)
        mine, yours = self.sample(p), self.sample(q)
        likely = [mine, yours] if mine and yours else []
        if likely and q.startswith("**/"):
            likely.append(f"{mine}/{yours}")
        if likely and p.startswith("**/"):
            likely.append(f"{yours}/{mine}")
        for path in likely:
            if owned_by_all(both, path):
                return path
        return shared(*both, self.effort)

    def machine_of(self, text: str) -> Machine:
        """The automaton of one pattern."""
        if text not in self.single:
            self.single[text] = Machine([[text]], fold=self.fold)
        return self.single[text]

    def sample(self, text: str) -> str:
        """A path that a pattern matches; empty where there is none, or none is found soon."""
        if text not in self.samples:
            machine = self.machine_of(text)
            self.samples[text] = shared(machine, machine, self.effort) or ""
        return self.samples[text]


def owned_by_all(machines: Sequence[Machine], path: str) -> bool:
    """Whether some list of each automaton owns a path."""
    raw = path.encode("utf-8", "surrogateescape")
    return all(machine.owners(machine.walk(machine.start, raw)) for machine in machines)


def told_apart(p: str, q: str) -> bool:
    """Whether two patterns cannot meet when their items differ, as long as those are plain words.

    That is so where one part of both, at the same depth, is the same text around the item.
    """
    for mine, yours in zip(p.split("/"), q.split("/"), strict=False):
        if ITEM in mine and mine == yours and SPECIAL - {ITEM} <= SPECIAL - set(mine):
            return True
        if any(mark in part for part in (mine, yours) for mark in ("**", FREE, ITEM, "[", "\\")):
            return False
    return False


# --- The order that follows -----------------------------------------------------------------


class Claims(NamedTuple):
    """What a task owns, for the order of a plan.

    `owns` holds its patterns with what is not known yet; `each` those of every instance by item
    where they are known, None for a task that is not repeated; `repeated` tells those apart whose
    items are found later.
    """

    owns: list[str]
    each: dict[str, list[str]] | None
    repeated: bool
    depends_on: list[int]

    @property
    def may_be_none(self) -> bool:
        """Whether it may turn out that nothing is to be done."""
        return self.repeated and self.each is None


class Edge(NamedTuple):
    """A task that must have ended before another begins, because they own a path both.

    `kind` says which instances: `all`; `item`, the one with the same item; `plain`, that one as
    long as all items are plain words, else all. A task that is `before` itself: its instances run
    one after another.
    """

    before: int
    after: int
    kind: str
    path: str


def edges_of(claims: list[Claims]) -> list[Edge]:
    """What must not run side by side and is not kept apart by dependencies, as an order.

    It is the order of the plan unless the dependencies ask for the other one.
    """
    finder = Meetings([row.owns for row in claims])
    found = [edge for number, row in enumerate(claims) if (edge := own_edge(number, row, finder))]
    waits = Waits(claims)
    meetings = finder.all()
    if meetings is None:
        return sorted([*found, *chain(claims, waits)])
    # Near ones first: what lies between them then needs no edge of its own.
    for meeting in sorted(meetings, key=lambda row: (row.b - row.a, row.a)):
        a, b = meeting.a, meeting.b
        if waits.wholly(a, b) or waits.wholly(b, a):
            continue
        answer = kind_of(meeting, claims[a], claims[b], finder.effort)
        if answer is None:
            continue
        before, after = (b, a) if waits.somehow(a, b) else (a, b)
        kind, path = answer
        found.append(Edge(before, after, kind, path))
        waits.add(before, after, whole=kind == "all")
    return sorted(found)


def chain(claims: list[Claims], waits: Waits) -> list[Edge]:
    """An order of all tasks that own something, one after another."""
    found: list[Edge] = []
    behind: list[int] = []
    for number in in_order(claims):
        if claims[number].owns:
            found += [
                Edge(other, number, "all", "")
                for other in behind if not waits.wholly(number, other)
            ]  # fmt: skip
            behind = [*behind, number] if claims[number].may_be_none else [number]
    return found


def own_edge(number: int, row: Claims, finder: Meetings) -> Edge | None:
    """What keeps the instances of one task apart, if they may meet."""
    if not row.repeated or not row.owns:
        return None
    if row.each is not None:
        instances = Meetings(list(row.each.values()), effort=finder.effort)
        candidates = instances.candidates(MOST_PAIRS)
        if candidates is None:
            return Edge(number, number, "all", "")
        for (a, b), pairs in candidates.items():
            meeting = instances.meet(a, b, pairs)
            if meeting is not None:
                return Edge(number, number, "all", meeting.path)
        return None
    giving = [text for text in row.owns if not text.startswith("!")]
    for p in giving:
        for q in giving:
            if not told_apart(p, q) and (path := finder.one(p, q)) is not None:
                return Edge(number, number, "all", path)
    return Edge(number, number, "plain", "")


def kind_of(meeting: Meeting, a: Claims, b: Claims, effort: Effort) -> tuple[str, str] | None:
    """Which instances of two tasks must not meet, and a path; None when none can."""
    if (a.repeated and a.each is None) or (b.repeated and b.each is None):
        apart = a.repeated and b.repeated and all(told_apart(*pair) for pair in meeting.pairs)
        return ("plain" if apart else "all"), meeting.path
    if a.each is None and b.each is None:
        return "all", meeting.path
    mine, yours = a.each or {"": a.owns}, b.each or {"": b.owns}
    names = [*mine, *yours]
    instances = Meetings([*mine.values(), *yours.values()], effort=effort)
    candidates = instances.candidates(MOST_PAIRS)
    if candidates is None:
        return "all", meeting.path
    kind, path = "", ""
    for (first, second), pairs in candidates.items():
        if first >= len(mine) or second < len(mine):
            continue
        met = instances.meet(first, second, pairs)
        if met is not None:
            path = path or met.path
            same = names[first] == names[second] and a.each is not None and b.each is not None
            if not same:
                return "all", path
            kind = "item"
    return (kind, path) if kind else None


class Waits:
    """Which tasks wait for which, directly or by way of others."""

    def __init__(self, claims: list[Claims]) -> None:
        self.claims = claims
        # By task, as bits: all that it waits for, and those of which every instance has ended.
        self.some = [0] * len(claims)
        self.whole = [0] * len(claims)
        # In an order in which what a task waits for comes before it.
        for number in in_order(claims):
            for other in claims[number].depends_on:
                single = not (claims[number].repeated and claims[other].repeated)
                self.some[number] |= self.some[other] | 1 << other
                if single:
                    self.whole[number] |= self.through(other)

    def through(self, other: int) -> int:
        """What has ended when all of a task has; nothing is known of one that may be empty."""
        before = 0 if self.claims[other].may_be_none else self.whole[other]
        return before | 1 << other

    def somehow(self, number: int, other: int) -> bool:
        """Whether a task waits for some instance of another."""
        return bool(self.some[number] >> other & 1)

    def wholly(self, number: int, other: int) -> bool:
        """Whether a task waits for all of another."""
        return bool(self.whole[number] >> other & 1)

    def add(self, before: int, after: int, *, whole: bool) -> None:
        """Let a task, and with it those that wait for it, wait for another."""
        reached = self.some[before] | 1 << before
        ended = self.through(before)
        for number in range(len(self.some)):
            if number == after or self.some[number] >> after & 1:
                self.some[number] |= reached
            if not whole:
                continue
            passes = not self.claims[after].may_be_none
            if number == after or (passes and self.whole[number] >> after & 1):
                self.whole[number] |= ended


def in_order(claims: list[Claims]) -> list[int]:
    """The tasks, each after what it depends on."""
    import heapq

    left = [len(row.depends_on) for row in claims]
    dependants: list[list[int]] = [[] for _ in claims]
    for number, row in enumerate(claims):
        for other in row.depends_on:
            dependants[other].append(number)
    ready = [number for number, count in enumerate(left) if not count]
    found: list[int] = []
    while ready:
        number = heapq.heappop(ready)
        found.append(number)
        for other in dependants[number]:
            left[other] -= 1
            if not left[other]:
                heapq.heappush(ready, other)
    return found
