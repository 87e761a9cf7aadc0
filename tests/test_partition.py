"""The patterns of `owns`: the same as git's, and never blind to an overlap."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fanout import partition
from fanout.partition import (
    FREE,
    ITEM,
    Claims,
    Edge,
    Machine,
    Meetings,
    are_apart,
    edges_of,
    normal,
    owned,
    shared,
    spelled,
    told_apart,
)
from fanout.runtimes import loop
from world import World

PIECES = ["a", "b", "B", "ab", ".", "*", "**", "?", "[ab]", "[!a]", "[a-c]", "-", "\\", "[", "]"]
PARTS = ["a", "b", "B", "[ab]", "ab", ".a", "a.b", "é", "ba", "-", "]"]
# By depth, so that none is a folder of another one.
PATHS = [
    ["/".join(parts) for parts in itertools.product(PARTS[: 13 - 2 * depth], repeat=depth)]
    for depth in (1, 2, 3)
]
EVERY = [path for group in PATHS for path in group]


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """A pattern as somebody may write it."""
    part = st.one_of(
        st.sampled_from(["a", "b", "**", "*", "a*", "[ab]", "?", "*.b", "a**", "**b"]),
        st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join),
    )
    parts = draw(st.lists(part, min_size=1, max_size=4))
    made = normal("/".join(parts) + draw(st.sampled_from(["", "", "/"])))
    return "a" if ".." in made.split("/") else made


@st.composite
def pattern_lists(draw: st.DrawFn) -> list[str]:
    """A list of patterns, of which some take back."""
    found = draw(st.lists(patterns(), min_size=1, max_size=4))
    signs = [draw(st.sampled_from(["", "", "!"])) for _ in found[1:]]
    return [sign + text for sign, text in zip(["", *signs], found, strict=True)]


class Trees:
    """Trees of many paths in a repository, each with an index of its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        blob = world.git("hash-object", "-w", "README.md")
        self.empty = world.git("hash-object", "-t", "tree", "-w", "/dev/null")
        self.trees: list[str] = []
        for number, group in enumerate(PATHS):
            rows = world.root / "rows"
            rows.write_text("".join(f"100644 {blob}\t{path}\n" for path in group))
            self.use(number)
            world.git("-c", f"alias.fill=!git update-index --index-info < {rows}", "fill")
            self.trees.append(world.git("write-tree"))

    def use(self, number: int) -> None:
        """Make git look at one of them."""
        self.world.env["GIT_INDEX_FILE"] = str(self.world.root / f"index-{number}")

    def matching(self, number: int, pattern: str, *, in_tree: bool) -> set[str]:
        """The paths that git finds by a pattern, in a tree as for commits or in the index."""
        self.use(number)
        words = ["diff", "--name-only", "-z", self.empty, self.trees[number]]
        words = words if in_tree else ["ls-files", "-z"]
        called = [f":(top,glob){text}" for text in spelled(pattern)]
        return {*self.world.git(*words, "--", *called).split("\0")} - {""}

    def in_index(self, number: int, words: list[str]) -> set[str]:
        """The paths that git finds by words for paths."""
        self.use(number)
        return {*self.world.git("ls-files", "-z", "--", *words).split("\0")} - {""}


@pytest.fixture(scope="module")
def trees() -> Iterator[Trees]:
    """Trees of many paths."""
    world = World()
    try:
        yield Trees(world)
    finally:
        world.close()


@settings(deadline=None, max_examples=40)
@given(patterns(), st.integers(0, 2), st.booleans())
@example("a", 1, True)
@example("a/", 1, False)
@example("a**/b", 2, True)
@example("[ab]", 1, True)
@example("[ab]/**", 2, True)
@example("[ab]/**", 1, False)
@example("a/**", 0, False)
@example("**/a/**/b", 2, True)
@example("**", 2, True)
def test_a_pattern_matches_what_git_matches(
    trees: Trees, pattern: str, depth: int, in_tree: bool
) -> None:
    ours = {*owned([pattern], PATHS[depth])}
    assert ours == trees.matching(depth, pattern, in_tree=in_tree)


@pytest.mark.parametrize(
    ("texts", "inside", "outside"),
    [
        (["src"], ["src", "src/a", "src/a/b"], ["srcs", "lib/src"]),
        (["src/"], ["src/a"], ["src", "srcs/a"]),
        (["src/*"], ["src/a"], ["src", "src/a/b"]),
        (["src/*/"], ["src/a/b", "src/a/b/c"], ["src/a", "src/b"]),
        (["src/**/a"], ["src/a", "src/x/y/a"], ["src/ab", "a"]),
        (["./src//a"], ["src/a", "src/a/b"], ["src/b"]),
        (["."], ["a", "b/c"], []),
        (["a?[0-9]"], ["ab1"], ["a/1", "abc"]),
        (["[!a]"], ["b"], ["a", "/"]),
        ([r"\!a", r"b\*"], ["!a", "b*"], ["a", "bc"]),
        (["src", "!src/gen", "src/gen/keep"], ["src/a", "src/gen/keep"], ["src/gen/a"]),
        (["src", "!src"], [], ["src/a"]),
        (["[[:digit:]]x"], ["1x"], ["ax"]),
        (
            ["app/[id]/[to]/*.ts"],
            ["app/[id]/[to]/x.ts", "app/[id]/t/x.ts", "app/i/o/x.ts"],
            ["app/x/t/x.ts", "app/[id]/[to]/x/y.ts"],
        ),
        (["[a]/"], ["[a]/x/y", "a/x/y"], ["[a]", "b/x"]),
        (["Src"], ["Src/a"], ["src/a"]),
    ],
)
def test_the_grammar(texts: list[str], inside: list[str], outside: list[str]) -> None:
    texts = [normal(text) for text in texts]
    assert owned(texts, [*inside, *outside]) == inside


def meeting(a: list[str], b: list[str]) -> str | None:
    """A path that two lists own."""
    found = Meetings([a, b]).all() or []
    return found[0].path if found else None


@settings(deadline=None, max_examples=50)
@given(pattern_lists(), pattern_lists())
@example(["**/a"], ["b/**"])
@example(["a", "!a/b"], ["a/b"])
@example(["[ab]"], [r"\[ab\]/a"])
def test_no_overlap_is_missed(a: list[str], b: list[str]) -> None:
    """An example stands for each overlap, and none that a real path shows is missed."""
    real = owned(a, owned(b, EVERY))
    path = meeting(a, b)
    if real:
        assert path is not None, real[:5]
    if path:
        assert owned(a, owned(b, [path])) == [path]
        assert not {"", ".", ".."} & {*path.split("/")}
    assert (shared(Machine([a]), Machine([b])) is None) == (path is None)


@settings(deadline=None, max_examples=15)
@given(pattern_lists(), st.sampled_from([None, "a/b"]))
@example(["a", "!a/b", "!a/ab", "a/b/c"], None)
def test_what_is_not_owned_is_what_git_finds(
    trees: Trees, texts: list[str], changelog: str | None
) -> None:
    groups = loop.not_owned(texts, changelog)
    found = {path for words in groups for path in trees.in_index(1, words)}
    assert found == {*PATHS[1]} - {*owned(texts, PATHS[1])} - {changelog}


@settings(deadline=None, max_examples=10)
@given(st.lists(pattern_lists(), min_size=1, max_size=5))
def test_files_are_given_to_all_that_own_them(lists: list[list[str]]) -> None:
    machine = Machine(lists)
    found = {path: machine.owners(state) for path, state in machine.of_files(sorted(EVERY))}
    for number, texts in enumerate(lists):
        mine = [path for path, owners in found.items() if number in owners]
        assert owned(texts, sorted(EVERY)) == mine


@settings(deadline=None, max_examples=30)
@given(
    patterns(),
    st.sampled_from(
        ["{}", "x{}", "a/{}", "{}/b", "{}*", "*{}", "{}]b", r"\{}", "[ab]{}", "[ab]/{}*"]
    ),
)
def test_what_is_not_known_yet_may_become_anything(value: str, around: str) -> None:
    """Whatever is put in: all that it then owns is owned before."""
    unknown, known = (normal(around.replace("{}", text)) for text in (FREE, value))
    after = owned([known], EVERY)
    assert owned([unknown], after) == after


def test_an_overlap_of_files_that_are_not_there_yet() -> None:
    assert meeting(["src/*.py"], ["src/a*"]) == "src/a.py"
    assert meeting(["src/**/test_*.py"], ["src/core"]) == "src/core/test_.py"
    assert meeting(["src/**"], ["src", "!src/**"]) is None
    assert meeting(["pages/[id]"], [r"pages/\[id\]/a.tsx"]) == "pages/[id]/a.tsx"
    assert meeting(["**/*.py"], ["**/*.js"]) is None
    assert meeting(["a/b"], ["a/bc"]) is None


def test_what_differs_in_case_alone_is_found_when_it_is_asked_for() -> None:
    assert Meetings([["Src/a"], ["src/*"]]).all() == []
    (found,) = Meetings([["Src/a"], ["src/*"]], fold=True).all() or []
    assert found.path.lower() == "src/a"


def test_items_tell_patterns_apart() -> None:
    assert told_apart(f"hosts/{ITEM}.conf", f"hosts/{ITEM}.conf")
    assert told_apart(f"src/*/{ITEM}/x", f"src/a/{ITEM}/y*")
    assert not told_apart(f"**/{ITEM}", f"**/{ITEM}")
    assert not told_apart(f"src/{ITEM}*", f"src/{ITEM}*")
    assert not told_apart("src", f"src/{ITEM}")
    assert not told_apart(f"{FREE}/{ITEM}", f"{FREE}/{ITEM}")
    assert not told_apart(f"{ITEM}", f"x{ITEM}")


# --- The order that follows -----------------------------------------------------------------


def one(*texts: str, after: tuple[int, ...] = ()) -> Claims:
    """A task that is not repeated."""
    return Claims(list(texts), None, False, list(after))


def each(*texts: str, items: tuple[str, ...] | None, after: tuple[int, ...] = ()) -> Claims:
    """A task that is repeated for items, or for such as are found later."""
    made = None
    if items is not None:
        made = {item: [text.replace(ITEM, item) for text in texts] for item in items}
    return Claims(list(texts), made, True, list(after))


def kinds(*claims: Claims) -> list[tuple[int, int, str]]:
    """The edges of some tasks."""
    return [edge[:3] for edge in edges_of(list(claims))]


def test_an_overlap_is_an_edge_in_the_order_of_the_plan() -> None:
    assert edges_of([one("src"), one("lib"), one("src/a")]) == [Edge(0, 2, "all", "src/a")]
    # What waits already needs no edge, nor does what waits by way of another.
    assert kinds(one("a"), one("a", after=(0,))) == []
    assert kinds(one("a"), one("b", after=(0,)), one("a", after=(1,))) == []
    assert kinds(one("a"), one("a"), one("a")) == [(0, 1, "all"), (1, 2, "all")]
    # The order of the plan gives way to what the plan demands.
    assert kinds(one("a", after=(2,)), one("a"), one("b", after=(1,))) == []
    assert kinds(one("a/b", after=(2,)), one("x"), one("c"), one("a")) == [(0, 3, "all")]
    assert kinds(one("a"), one("b", after=(2,)), one("c", after=(0,)), one("b/c")) == [
        (1, 3, "all")
    ]
    assert kinds(one("a", after=(1,)), one("b", after=(2,)), one("a/c")) == []
    # Nothing is known of a task without `owns`.
    assert kinds(one(), one("a"), one()) == []


def test_instances_of_one_task_run_one_after_another_where_they_overlap() -> None:
    assert kinds(each("docs", items=("a", "b"))) == [(0, 0, "all")]
    assert kinds(each(f"docs/{ITEM}", items=("a", "b"))) == []
    assert kinds(each(f"docs/{ITEM}", items=("a", "a/b"))) == [(0, 0, "all")]
    assert kinds(each("docs", items=None)) == [(0, 0, "all")]
    assert kinds(each(f"docs/{ITEM}", items=None)) == [(0, 0, "plain")]
    assert kinds(each(f"docs/{ITEM}*", items=None)) == [(0, 0, "all")]
    assert kinds(each(f"{ITEM}", f"x{ITEM}", items=None)) == [(0, 0, "all")]
    assert kinds(each(items=None)) == []


def test_instances_of_two_tasks() -> None:
    words = ("a", "b")
    assert kinds(each(f"x/{ITEM}", items=words), each(f"x/{ITEM}", items=words)) == [(0, 1, "item")]
    assert kinds(each(f"x/{ITEM}", items=words), each(f"y/{ITEM}", items=words)) == []
    assert kinds(each(f"x/{ITEM}", items=words), one("x/c")) == []
    assert kinds(each(f"x/{ITEM}", items=words), one("x/a")) == [(0, 1, "all")]
    assert kinds(each(f"x/{ITEM}", items=words), each("x/a", items=("a",))) == [(0, 1, "item")]
    assert kinds(each(f"x/{ITEM}", items=words), each("x/a", items=("b",))) == [(0, 1, "all")]
    assert kinds(each(f"x/{ITEM}", items=None), each(f"x/{ITEM}", items=None)) == [
        (0, 0, "plain"), (0, 1, "plain"), (1, 1, "plain"),
    ]  # fmt: skip
    # A list that may be empty holds nothing back.
    assert (0, 2, "all") in kinds(one("a"), each(items=None, after=(0,)), one("a", after=(1,)))


@settings(deadline=None, max_examples=12)
@given(st.data())
def test_the_order_never_makes_a_cycle_and_leaves_no_overlap(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 7))
    places = data.draw(st.permutations(range(count)))
    claims: list[Claims] = []
    for number in range(count):
        before = [other for other in range(count) if places[other] < places[number]]
        after = (
            data.draw(st.lists(st.sampled_from(before), unique=True, max_size=2)) if before else []
        )
        claims.append(one(*data.draw(pattern_lists()), after=tuple(after)))
    waits = [set(row.depends_on) for row in claims]
    for edge in edges_of(claims):
        waits[edge.after].add(edge.before)
    reached: list[set[int]] = [set() for _ in claims]
    for _ in range(count):
        reached = [w | {x for other in w for x in reached[other]} for w in waits]
    for a, b in itertools.combinations(range(count), 2):
        assert not (a in reached[b] and b in reached[a]), "a cycle"
        if meeting(claims[a].owns, claims[b].owns) is not None:
            assert a in reached[b] or b in reached[a]


# --- What would take for ever ---------------------------------------------------------------


def test_patterns_that_would_take_for_ever_count_as_an_overlap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition, "MOST_STATES", 200)
    monkeypatch.setattr(partition, "MOST_IN_ALL", 1000)
    bombs = [["**/*a" + "?" * (20 + number) + "b*"] for number in range(8)]
    begin = time.process_time()
    found = Meetings(bombs).all() or []
    assert len(found) == 28, "what cannot be told is an overlap"
    assert time.process_time() - begin < 3
    assert meeting(["**/**/**/a*a*a*b"], ["**/**/a*a*b*"]) == "aaab"
    stars = "/".join(["**"] * 60)
    assert meeting([f"{stars}/a"], [f"{stars}/b*"]) is None


@settings(deadline=None, max_examples=30)
@given(patterns(), patterns())
@example("src/", "src/b*")
@example("[a/b]*", "ax*")
def test_what_is_apart_at_first_sight_shares_nothing(p: str, q: str) -> None:
    if are_apart(p, q):
        assert shared(Machine([[p]]), Machine([[q]])) is None


def test_many_lists_of_files_are_compared_soon() -> None:
    """Neither many patterns of one task nor many tasks with one pattern take long."""
    lists = [[f"src/part_{n}/d{m}/f.py" for m in range(40)] for n in range(60)]
    begin = time.process_time()
    assert Meetings(lists).all() == []
    machine = Machine(lists)
    paths = [path for texts in lists for path in texts]
    assert all(len(machine.owners(state)) == 1 for _, state in machine.of_files(paths))
    assert len(Meetings([["**/x/**", f"**/t{n}*"] for n in range(30)]).all() or []) == 435
    assert time.process_time() - begin < 5


def test_too_many_patterns_to_compare_make_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "MOST_TO_COMPARE", 5)
    tasks = [one("a"), one(), one("a"), each("a/x", items=None), one("a", after=(5,)), one("a")]
    assert Meetings([row.owns for row in tasks]).all() is None
    # What may turn out to be nothing holds nothing back.
    assert kinds(*tasks) == [
        (0, 2, "all"), (2, 3, "all"), (2, 5, "all"), (3, 3, "all"), (3, 5, "all"),
    ]  # fmt: skip
