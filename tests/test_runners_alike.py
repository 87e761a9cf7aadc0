"""Two runners are one promise: what the Python and the Bash runner of a plan do is the same."""

from __future__ import annotations

import concurrent.futures
import contextlib
import difflib
import json
import re
import shutil
import stat
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from runner_world import AGENT, COMMIT, LANGUAGES, Runner, render, task
from test_render_worker_loop import FULL
from test_runners import TIME
from world import World

pytestmark = pytest.mark.long

IDS = re.compile(r"\b[0-9a-f]{40}\b")
NUMBERS = re.compile(r"\b\d+(\.\d+)? ?s\b")


@pytest.fixture
def pair() -> Iterator[list[Runner]]:
    """A runner of each language, each in a world of its own."""
    with worlds() as made:
        yield made


@contextlib.contextmanager
def worlds() -> Generator[list[Runner]]:
    """A world for each language, and in it the runner."""
    made = [World() for _ in LANGUAGES]
    try:
        yield [Runner(world, language) for world, language in zip(made, LANGUAGES, strict=True)]
    finally:
        for world in made:
            world.close()


def normal(runner: Runner, text: str) -> str:
    """A text without what differs between any two runs: places, ids, times."""
    ids: dict[str, str] = {}
    text = text.replace(str(runner.path), "RUNNER").replace(str(runner.world.root), "ROOT")
    text = IDS.sub(lambda found: ids.setdefault(found[0], f"id{len(ids)}"), text)
    text = re.sub(TIME, "TIME", text)
    text = re.sub(r'("seconds": )[\d.]+', r"\1N", text)
    text = re.sub(r"(?m)^\d\d:\d\d:\d\d ", "", text)
    return NUMBERS.sub("N s", text)


def columns(text: str) -> str:
    """A table without the width of its columns and without its seconds."""
    return re.sub(r"\b\d+\.\d\b", "N", re.sub(" +", " ", text))


def files_below(runner: Runner, folder: Path) -> dict[str, str]:
    """Every file below a folder with its mode and its text."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        name = str(path.relative_to(runner.world.root))
        # The Bash runner makes the folders of the next tasks in the same process.
        if path.parent.name == "tasks" and stat.S_ISDIR(mode) and not list(path.iterdir()):
            continue
        text = path.read_bytes().decode("utf-8", "surrogateescape") if stat.S_ISREG(mode) else ""
        # How set-up left a worktree is kept in a form of its own.
        ours = path.name in (".setup", ".stamp")
        if ".git" not in path.relative_to(runner.world.root).parts and not ours:
            found[name] = f"{stat.filemode(mode)}\n{normal(runner, text)}"
    return found


def observed(runner: Runner, ran: Any) -> dict[str, str]:
    """All that a run leaves: its records and logs, the repository and its worktrees, the words."""
    world = runner.world
    seen = files_below(runner, runner.repo)
    for name in [name for name in seen if name.endswith("/REPORT.md")]:
        seen[name] = columns(seen[name])
    trees = runner.tree("x").parent
    if trees.exists():
        seen |= files_below(runner, trees)
        for tree in sorted(trees.iterdir()):
            words = ("status", "--porcelain", "--branch", "--untracked-files=all")
            if (tree / ".git").exists():
                seen[f"status of {tree.name}"] = world.git(*words, cwd=tree, check=False)
    for path in sorted((runner.repo / ".git" / "worktrees").glob("*/*")):
        name = str(path.relative_to(world.root))
        held = path.is_file() and path.name not in ("index", "ORIG_HEAD")
        seen[name] = f"{stat.filemode(path.stat().st_mode)}\n"
        seen[name] += normal(runner, path.read_text()) if held else ""
    logged = ("log", "--all", "--date-order", "--format=%D%n%s%n%b", "--stat")
    seen |= {
        "worktrees": normal(runner, world.git("worktree", "list", "--porcelain")),
        "log": "\n".join(sorted(world.git(*logged).split("\n"))),
        "exit code": str(ran.code),
        "stdout": columns(normal(runner, ran.out)),
        "stderr": normal(runner, ran.err),
    }
    return seen


def demand_the_same(runners: list[Runner], runs: list[Any]) -> None:
    """Compare what the runners left."""
    python, bash = (observed(*each) for each in zip(runners, runs, strict=True))
    differing: list[str] = []
    for name in sorted({*python, *bash}):
        old, new = (texts.get(name, "(not there)").splitlines() for texts in (python, bash))
        names = (f"python {name}", f"bash {name}")
        differing += difflib.unified_diff(old, new, *names, lineterm="", n=0)
    assert not differing, "\n".join(differing[:200])


def run_both(runners: list[Runner], *words: str, **env: str | None) -> list[Any]:
    """Run both, one task at a time so that the order of events is the plan's."""
    # Equal commits of one second are one commit.
    dates = {f"GIT_{who}_DATE": "2026-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")}
    env = {"MAX_PARALLEL": "1", **dates, **env}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        begun = [pool.submit(each.run, *words, env=env, seconds=200) for each in runners]
        return [one.result() for one in begun]


def test_a_dry_run_is_the_same(world: World) -> None:
    (world.repo / "items.txt").write_text("one\r\n\ntwo words\nlast")
    world.commit("items")
    more = [
        task("from-file", "x {item}", for_each={"file": "items.txt"}, depends_on=["one"]),
        task("no-file", "x", for_each={"file": "gone.txt"}),
        task("from-command", "x", for_each={"run": "seq 3"}, depends_on=["from-file"]),
        task("argument", "it's {HOST}", agent={"prompt_mode": "argument", "prompt_arg": "-p"}),
        task(
            "file",
            "x",
            agent={
                "prompt_mode": "file",
                "prompt_arg": "--file=",
                "work_dir_arg": "--dir",
                "args": ["a b", "it's", ""],
            },
            timeout_seconds=7,
            changelog="changes/x.md",
            verify=[{"name": "v", "run": "line one\nline two\n", "when": {"env": {"A": "b'c"}}}],
        ),
        task("back", "x", branch="topic/{HOST}-x", when={"not": {"backup_passed": "dump"}}),
    ]
    plan = {**FULL, "tasks": [*FULL["tasks"], *more], "variables": {"HOST": "h1", "EMPTY": ""}}
    for env in (
        {},
        {"EXTRA": "yes", "PLAN_HOST": "o", "RUN_ID": "r.2"},
        {"ONLY": "one,each-a-b-1"},
    ):
        texts: list[str] = []
        for language in LANGUAGES:
            each = Runner(world, language)
            each.plan(**plan)
            before = each.seen()
            texts.append(each.ends(0, **{"DRY_RUN": "1", "RUN_ID": None, **env}).out)
            each.same(before)
        assert texts[0] == texts[1]
    assert "\x1b" not in texts[0]


# --- Plans drawn by hand --------------------------------------------------------------------

BOOM = "$(touch PWN)`touch PWN`\"'\\!*"
LEAVES = {"commit_leftovers": True}
# git complains about it on stderr, whatever it does.
GRAFTS = 'git rev-parse HEAD > "$(git rev-parse --git-common-dir)/info/grafts"\n'
QUIET = {"allow_no_change": True}
# What is done in turn: the runner's words and environment.
Call = tuple[list[str], dict[str, str]]
ALL: list[Call] = [([], {})]
DRAWN: dict[str, tuple[dict[str, Any], list[Call]]] = {
    "nothing to do": ({"tasks": [task("a", for_each={"run": "true"})]}, ALL),
    "backups that pass, are skipped and are asked for": (
        {
            "tasks": [
                task("a", when={"backup_passed": "b"}),
                task("c", when={"backup_passed": "d"}),
            ],
            "backups": [
                {
                    "name": "b",
                    "run": ["sh", "-c", 'echo x > "$0"', "{RUN_DIR}/it's b"],
                    "artifact": "{RUN_DIR}/it's b",
                    "check": ["cat", "{RUN_DIR}/it's b"],
                },
                {"name": "d", "run": "true", "when": {"env": "NOT_SET"}},
            ],
        },
        ALL,
    ),
    "values and quoting": (
        {
            "variables": {"A": BOOM, "B": "two words\nand lines\n", "C": "", "D": "ü \U0001f600"},
            "preflight": [
                ["printf", "%s|", "{A}", "{B}", "{C}", "x{D}y"],
                "printf '%s|' {A} '{B}' \"{D}\"",
            ],
            "tasks": [
                task(
                    "a",
                    "{A}{B}{C}{D}{E}",
                    agent={
                        "cli": "sh",
                        "args": ["-c", "cat > out.txt"],
                        "env": {"X": "{A}", "Y": ""},
                    },
                    owns=["out.txt"],
                    verify=['printf \'%s|\' "$X" "$PLAN_A"; env | grep -c PLAN_'],
                )
            ],
        },
        [([], {"PLAN_D": "given\\'\""})],
    ),
    "a task for each item": (
        {
            "tasks": [
                task(
                    "each",
                    'echo x > "$PLAN_item.txt"',
                    for_each=["a", "b c", BOOM.replace("*", "")],
                    branch="topic/{item}",
                ),
                task("then", "echo {item} > y.txt", for_each=["a", "b c"], depends_on=["each"]),
            ]
        },
        ALL,
    ),
    "items from a file and from a command": (
        {
            "tasks": [
                task("lines", COMMIT, for_each={"file": "items.txt"}),
                task("printed", COMMIT, for_each={"run": "echo noise >&2; printf 'p q\\r\\n\\nr'"}),
            ]
        },
        ALL,
    ),
    "names that clash at the gate": (
        {"tasks": [task("x-{item}", branch="same", for_each={"run": "seq 2"})]},
        ALL,
    ),
    "scope, changelog and leftovers": (
        {
            "tasks": [
                task(
                    "inside",
                    "mkdir -p src; echo x > 'src/it'\\''s ü.txt'",
                    owns=["src/**"],
                    agent=LEAVES,
                ),
                task("outside", "echo x > 'a b'; echo y >> README.md", owns=["src/**"]),
                task(
                    "odd", 'printf x > "$(printf \'new\\nline \\\\ "\')"', owns=["*"], agent=LEAVES
                ),
                task("told", "mkdir c; echo x > c/told.md", changelog="c/told.md"),
                task("untold", COMMIT, changelog="c/untold.md", verify=["true"]),
            ]
        },
        ALL,
    ),
    "time limits": (
        {
            "tasks": [
                task("agent", "echo said; echo x > a; sleep 60", timeout_seconds=0.4),
                task(
                    "setup",
                    COMMIT,
                    setup=[{"name": "s", "run": "sleep 60", "timeout_seconds": 0.2}],
                ),
                task(
                    "verify",
                    COMMIT,
                    verify=[{"name": "v", "run": "sleep 60", "timeout_seconds": 0.2}],
                ),
                task("condition", when={"run": "sleep 60", "timeout_seconds": 0.2}),
            ]
        },
        ALL,
    ),
    "an agent that is killed": (
        {"tasks": [task("a", "echo x > a; kill -9 $$"), task("b", setup=["kill -TERM $$"])]},
        ALL,
    ),
    "no more tasks after a failure": (
        {
            "tasks": [task("a", "exit 1"), task("b"), task("c", depends_on=["a"])],
            "on_failure": "stop",
            "rollback": [
                "echo back",
                {
                    "run": ["echo", BOOM],
                    "when": {"all": [{"env": "HOME"}, "true", {"not": {"path_exists": "gone"}}]},
                },
            ],
        },
        ALL,
    ),
    "a postflight that fails": (
        {
            "tasks": [task("a")],
            "postflight": ["true", "echo no; exit 3", "true"],
            "rollback": ["true"],
        },
        ALL,
    ),
    "only some": (
        {"tasks": [task("a"), task("b", depends_on=["a"]), task("c")]},
        [
            ([], {"ONLY": "b"}),
            ([], {"ONLY": "a, c"}),
            ([], {"ONLY": "b", "RESUME": "1"}),
            ([], {"ONLY": "z", "RUN_ID": "z"}),
        ],
    ),
    "phases": (
        {
            "tasks": [
                task("a"),
                task("b", "exit 2", depends_on=["a"]),
                task("c", COMMIT, depends_on=["b"]),
                task("e", for_each=["x", "y"]),
            ],
            "preflight": ["echo first"],
            "postflight": ["true"],
        },
        [
            (["task", "a"], {}),
            (["gate"], {}),
            (["task", "b"], {}),
            (["task", "a"], {}),
            (["status"], {}),
            (["task", "a"], {}),
            (["task", "b"], {}),
            (["task", "c"], {}),
            (["task", "nobody"], {}),
            (["task", "e"], {}),
            (["finish"], {}),
            (["status"], {}),
        ],
    ),
    "a failure, and gone on with": (
        {
            "tasks": [
                task("a", '[ -e "$REPO_ROOT/../fixed" ] || exit 3; ' + COMMIT),
                task("b", COMMIT, depends_on=["a"], setup=["echo setting up"]),
                task("c", COMMIT, setup=['[ -e "$REPO_ROOT/../fixed" ]']),
            ],
            "postflight": ["true"],
            "rollback": ["echo back"],
        },
        [
            ([], {}),
            (["fix"], {}),
            ([], {}),
            ([], {"RESUME": "1"}),
            ([], {"RESUME": "1", "RERUN": "a"}),
            ([], {"RESUME": "1"}),
        ],
    ),
    "a gate that was mended": (
        {
            "tasks": [task("a")],
            "preflight": ["echo once"],
            "backups": [
                {"name": "ok", "run": "echo x > {RUN_DIR}/ok", "artifact": "{RUN_DIR}/ok"},
                {"name": "b", "run": "[ -e ../fixed ]"},
            ],
        },
        [([], {}), (["fix"], {}), ([], {"RESUME": "1"})],
    ),
    "an artifact that was lost": (
        {
            "tasks": [task("a", '[ -e "$REPO_ROOT/../fixed" ] || exit 3; ' + COMMIT)],
            "backups": [
                {"name": "kept", "run": "echo x > {RUN_DIR}/k", "artifact": "{RUN_DIR}/k"},
                {
                    "name": "lost",
                    "run": "echo x >> {RUN_DIR}/l; cp {RUN_DIR}/l ../dump",
                    "artifact": "../dump",
                },
            ],
        },
        [([], {}), (["lose"], {}), (["fix"], {}), ([], {"RESUME": "1", "RERUN": "a"})],
    ),
    "a plan whose later steps changed": (
        {
            "tasks": [task("a"), task("b", "exit 1"), task("c", setup=["exit 1"])],
            "preflight": ["true"],
            "postflight": ["true"],
        },
        [
            ([], {}),
            (["change"], {"tasks.2.setup": "true", "postflight.0": "echo y"}),
            (["finish"], {}),
            ([], {"RESUME": "1"}),
            (["finish"], {}),
            (["change"], {"tasks.0.prompt": "x", "preflight.0": "echo new"}),
            ([], {"RESUME": "1"}),
            (["change"], {"base": "main"}),
            ([], {"RESUME": "1"}),
            (["status"], {}),
        ],
    ),
    "one task at a time where failures stop": (
        {
            "tasks": [
                task("a", "test -e ../../fixed || exit 3\n" + COMMIT),
                task("b", COMMIT),
                task("c", COMMIT, setup=["false"]),
            ],
            "on_failure": "stop",
            "backups": [{"name": "kept", "run": "echo x > ../dump", "artifact": "../dump"}],
        },
        [
            (["gate"], {}),
            (["task", "a"], {}),
            (["task", "b"], {}),
            ([], {"DRY_RUN": "1", "RESUME": "1"}),
            (["fix"], {}),
            (["task", "a"], {"RERUN": "a"}),
            (["task", "c"], {}),
            (["task", "b"], {}),
            (["lose"], {}),
            ([], {"DRY_RUN": "1", "RESUME": "1"}),
            (["task", "c"], {}),
            (["finish"], {}),
        ],
    ),
    "a dry run of a run that goes on": (
        {
            "tasks": [
                task("a", COMMIT),
                task("b", "exit 3", verify=["true"]),
                task("c", COMMIT, depends_on=["b"]),
                task("d", COMMIT, depends_on=["c"]),
                task("e", "\u65e5" * 300 + " {item}\nmore", for_each={"run": "seq 2"}),
                task("f", "\x1b[1m tab\t \n", depends_on=["a"], setup=["false"]),
            ],
            "preflight": ["true"],
        },
        [
            ([], {"DRY_RUN": "1"}),
            ([], {"DRY_RUN": "1", "RESUME": "1"}),
            ([], {}),
            ([], {"DRY_RUN": "1", "RESUME": "1"}),
            ([], {"DRY_RUN": "1", "RESUME": "1", "RERUN": "b"}),
            ([], {"DRY_RUN": "1", "RESUME": "1", "ONLY": "c,f"}),
        ],
    ),
    "items that cannot be read": (
        {"tasks": [task("a", "{item}", for_each={"file": "elsewhere/items"})]},
        [
            ([], {}),
            ([], {"DRY_RUN": "1"}),
        ],
    ),
    "items that are a folder": (
        {"tasks": [task("a", "{item}", for_each={"file": "../elsewhere"})]},
        [
            ([], {}),
            ([], {"DRY_RUN": "1"}),
        ],
    ),
    "no such run": (
        {"tasks": [task("a")]},
        [
            ([], {"RESUME": "1"}),
            (["finish"], {}),
            (["status"], {}),
            (["task", "a"], {}),
            (["nonsense"], {}),
        ],
    ),
    "an agent that is not there": ({"tasks": [task("a", agent={"cli": "no-such-agent"})]}, ALL),
    "a base that is not there": ({"tasks": [task("a")], "base": "nowhere"}, ALL),
    "a base of its own": ({"tasks": [task("a", base="main"), task("b", base="gone")]}, ALL),
    "a branch that is there": ({"tasks": [task("taken")]}, ALL),
    "a worktree that is there": ({"tasks": [task("x")], "worktree_root": "../elsewhere"}, ALL),
    "prompts as argument and as file": (
        {
            "tasks": [
                task(
                    "argument",
                    BOOM + "\n\n",
                    agent={
                        "cli": "sh",
                        "args": ["-c", 'printf %s "$2" > a'],
                        "work_dir_arg": "--cd",
                        "prompt_mode": "argument",
                        "prompt_arg": "--prompt=",
                    },
                ),
                task(
                    "file",
                    BOOM + "\r\n",
                    agent={"cli": "sh", "args": ["-c", 'cp "$1" a', "x"], "prompt_mode": "file"},
                ),
            ]
        },
        ALL,
    ),
    "names that look like options": (
        {"tasks": [task("a", "printf x > '-v\u00e9'; printf y > -n", agent=LEAVES)]},
        ALL,
    ),
    "one bad worktree among good ones": (
        {"tasks": [task("a", 'rm -rf "$WORKTREE"; touch "$WORKTREE"'), task("b")]},
        ALL,
    ),
    "what git says besides": (
        {"tasks": [task("a", COMMIT + GRAFTS, owns=["a.txt"])]},
        [([], {"GIT_LITERAL_PATHSPECS": "1"})],
    ),
    "a stop that stays": (
        {"tasks": [task("a", "exit 1"), task("b")], "on_failure": "stop"},
        [([], {}), ([], {"RESUME": "1"}), ([], {"RESUME": "1", "RERUN": "a"})],
    ),
    "postflight after a task that ran again": (
        {
            "tasks": [task("a", "if [ -e a ]; then echo bad > a; else echo good > a; fi")],
            "postflight": ["grep -q good ../repo.worktrees/a/a"],
        },
        [([], {}), ([], {"RESUME": "1"}), ([], {"RESUME": "1", "RERUN": "a"})],
    ),
    "a daemon that would change files later": (
        {
            "tasks": [
                task(
                    "a",
                    "echo x > a; setsid -f sh -c 'sleep 0.4; echo late > late'",
                    verify=["sleep 0.6; ls"],
                )
            ]
        },
        ALL,
    ),
    "a rollback that cannot be decided": (
        {
            "tasks": [task("a", "exit 1")],
            "rollback": [{"run": "touch ../WRONG", "when": {"not": "no-such-program"}}],
        },
        ALL,
    ),
    "items with a NUL": (
        {"tasks": [task("a", for_each={"run": "printf 'x\\0y\\n'"})]},
        ALL,
    ),
    "a branch that is somebody else's": (
        {"tasks": [task("a", ":", branch="taken", when="true")]},
        [([], {}), ([], {"RESUME": "1"})],
    ),
    "a condition that does not hold any more": (
        {"tasks": [task("a", COMMIT + "exit 1", when={"env": "GO"})]},
        [([], {"GO": "1"}), ([], {"RESUME": "1", "RERUN": "a"})],
    ),
    "a rerun whose dependency fails": (
        {"tasks": [task("a", "[ ! -e a ] || exit 1; echo x > a"), task("b", depends_on=["a"])]},
        [([], {}), ([], {"RESUME": "1", "RERUN": "a,b"})],
    ),
    "stray files of a first try": (
        {
            "tasks": [
                task(
                    "a",
                    "[ -e stray ] || { echo x > stray; exit 1; }; " + COMMIT,
                    setup=["true"],
                    owns=["a.txt"],
                )
            ]
        },
        [([], {}), ([], {"RESUME": "1", "RERUN": "a"})],
    ),
    "a gate with more steps than before": (
        {"tasks": [task("a", "exit 1")], "preflight": ["true"]},
        [
            ([], {}),
            (["change"], {"preflight.0": "echo x"}),
            ([], {"RESUME": "1"}),
            (["change"], {"preflight.0": "true", "tasks.0.base": "main"}),
            ([], {"RESUME": "1"}),
            (["change"], {"tasks.0.base": "HEAD"}),
            (["change"], {"tasks.0.prompt": "echo x > x"}),
            ([], {"RESUME": "1"}),
            ([], {"RESUME": "1", "RERUN": "a", "PLAN_X": "1"}),
        ],
    ),
    "bytes that are no text": (
        {
            "tasks": [
                task(
                    "a",
                    "printf '\\377\\n' | tee \"$(printf 'n\\377')\"",
                    agent=LEAVES,
                    verify=["printf '\\300\\200'"],
                )
            ],
            "preflight": ["printf '\\377'"],
        },
        ALL,
    ),
}


def step_between(runner: Runner, word: str, values: dict[str, str]) -> None:
    """What happens between two calls: something is mended or lost, or the plan is changed."""
    if word == "fix":
        (runner.world.root / "fixed").touch()
    elif word == "lose":
        (runner.world.root / "dump").unlink()
    else:
        plan = json.loads(runner.plan_file.read_text())
        for path, value in values.items():
            *parents, last = path.split(".")
            place = plan
            for part in parents:
                place = place[int(part) if part.isdigit() else part]
            place[int(last) if last.isdigit() else last] = [value] if last == "setup" else value
        runner.plan_file.write_text(json.dumps(plan))
        runner.render()


@pytest.mark.parametrize("name", DRAWN)
def test_plans_drawn_by_hand_run_the_same(pair: list[Runner], name: str) -> None:
    plan, calls = DRAWN[name]
    for each in pair:
        each.world.git("branch", "taken")
        (each.world.root / "elsewhere" / "x").mkdir(parents=True)
        (each.repo / "items.txt").write_text("one\r\n\n it's \nlast")
        each.world.commit("items")
        each.plan(**plan)
    for words, env in calls:
        if words[:1] in (["fix"], ["lose"], ["change"]):
            for each in pair:
                step_between(each, words[0], env)
            continue
        runs = run_both(pair, *words, **env)
        demand_the_same(pair, runs)
    for each in pair:
        assert not list(each.world.root.rglob("PWN"))


# --- Plans drawn by lot ---------------------------------------------------------------------

SIGNS = [
    *"aB0 '\"\\$`!*?[]{}()<>|&;#~%=-\t\n\r:,",
    "ü",
    "日",
    "\U0001f600",
    "\x1b",
    "\x01",
    "\u2028",
]
Strategy = st.SearchStrategy[Any]


def shaped(fields: dict[str, Any], optional: dict[str, Any] | None = None) -> Strategy:
    """Objects with these fields, and some of the optional ones."""
    return st.fixed_dictionaries(fields, optional=optional or {})


texts = st.text(st.sampled_from(SIGNS), max_size=10)
items = texts.map(lambda text: re.sub(r"[\n\r]", "", text)).filter(str.strip)
names = texts.map(lambda text: "f" + re.sub(r"[/\n]", "", text))
whens = st.recursive(
    st.one_of(
        st.sampled_from(["GIVEN", "MISSING"]).map(lambda name: {"env": name}),
        texts.map(lambda text: {"env": {"GIVEN": text}}),
        names.map(lambda name: {"path_exists": name}),
        st.integers(0, 3).map(lambda code: {"run": f"exit {code}"}),
        st.just({"backup_passed": "dump"}),
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"all": parts}),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"any": parts}),
        inner.map(lambda part: {"not": part}),
    ),
    max_leaves=3,
)
gate_whens = whens.filter(lambda when: "backup_passed" not in json.dumps(when))
commands = st.one_of(
    texts.map(lambda text: ["printf", "%s", text]),
    st.sampled_from(["true", "exit 3", "echo {A} '{A}' \"{A}\"", "cat", "echo x; exit 127"]),
)


def some(whens: Any, most: int) -> Any:
    """Up to so many commands."""
    full = shaped({"run": commands}, optional={"when": whens})
    return st.lists(st.one_of(commands, full), max_size=most)


BEHAVIOURS = [
    'cat > "$F"; git add -A; git commit -q -m "$F"',
    'cat > "$F"',
    "cat; exit 4",
    "cat",
    'printf x > "$F"; printf y > other; echo z >> README.md',
    'mkdir -p src; cat > "src/$F"',
]
tasks = shaped(
    {
        "prompt": texts.filter(bool),
        "agent": shaped(
            {
                "cli": st.just("sh"),
                "args": st.sampled_from(BEHAVIOURS).map(lambda text: ["-c", text]),
                "env": names.map(lambda name: {"F": name}),
            },
            optional={
                "commit_leftovers": st.booleans(),
                "allow_no_change": st.booleans(),
                "log_name": st.just("a-log.txt"),
            },
        ),
    },
    optional={
        "when": whens,
        "setup": some(whens, 1),
        "verify": some(whens, 2),
        "owns": st.lists(st.sampled_from(["src/**", "f*", "*"]), max_size=2),
        "changelog": st.sampled_from(["fa", "src/f", "README.md"]),
        "for_each": st.lists(items, min_size=1, max_size=2),
        "after": st.booleans(),
        "estimate_minutes": st.just(2.5),
    },
)
plans = shaped(
    {
        "variables": shaped({"A": texts}),
        "tasks": st.lists(tasks, min_size=1, max_size=3),
        "backups": st.just(
            [{"name": "dump", "run": "echo x > {RUN_DIR}/d", "artifact": "{RUN_DIR}/d"}]
        ),
    },
    optional={
        "preflight": some(gate_whens, 2),
        "postflight": some(whens, 2),
        "rollback": some(whens, 2),
        "on_failure": st.sampled_from(["continue", "stop"]),
    },
)


@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(plan=plans, value=texts)
def test_plans_drawn_by_lot_run_the_same(plan: dict[str, Any], value: str) -> None:
    rows: list[dict[str, Any]] = plan["tasks"]
    for number, row in enumerate(rows):
        row["name"] = f"t{number}"
        if row.pop("after", False) and number:
            row["depends_on"] = [f"t{number - 1}"]
    with worlds() as made:
        for each in made:
            each.plan_file.write_text(json.dumps({"run_name": "demo", "agent": AGENT, **plan}))
            words = ("--config", str(each.plan_file), "--language", each.language)
            ran = render(*words, "--output", str(each.path))
            assume(ran.code == 0)
        demand_the_same(made, run_both(made, GIVEN=value))


def test_a_difference_would_be_seen(pair: list[Runner]) -> None:
    """The comparison itself: one byte in a log, a record, a worktree is enough."""
    for each in pair:
        each.plan(task("a", COMMIT, verify=["echo x"]))
    runs = run_both(pair)
    demand_the_same(pair, runs)
    bash = pair[1]
    for path in (
        bash.folder / "tasks" / "a" / "verify-01.log",
        bash.folder / "manifest.json",
        bash.tree("a") / "a.txt",
    ):
        kept = path.with_name("kept")
        shutil.copy2(path, kept)
        path.write_bytes(path.read_bytes() + b" ")
        with pytest.raises(AssertionError, match=path.name):
            demand_the_same(pair, runs)
        kept.replace(path)
    demand_the_same(pair, runs)
