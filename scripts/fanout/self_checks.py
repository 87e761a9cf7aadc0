"""Does this copy of the skill work on this machine: its files, and its main jobs done for real.

Every check gives a line about what it found, or raises a SkillError: what is wrong, and where to
look. All that is made lies in one temporary folder, which is the home of all that is started too.
The rooms that a check is about are imported within it: a damaged one is a failure, not the end.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time

from fanout import edition, process
from fanout.errors import SkillError
from fanout.fields import NamedTuple
from fanout.output import plain_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PROGRAMS = "programs"
# What rooms read, and what a start of the skill cannot do without.
NEEDED = (
    "SKILL.md",
    "LICENSE",
    "examples/harness-template.json",
    "examples/sample_agent.py",
    "poster/index.html",
    "poster/screenshot.png",
    "scripts/fanout/contract.txt",
    "scripts/fanout/runtimes/launch.sh",
    "scripts/fanout/runtimes/loop.py",
    "scripts/fanout/runtimes/loop.sh",
    "scripts/fanout/tmux.conf",
)
NAMED = r"\b(?:scripts|references|examples|poster)/[A-Za-z0-9._/-]*[A-Za-z0-9]"
# Of the user's variables these alone: any other could change what a command or a runner does.
KEPT = ("PATH", "LANG", "USER", "LOGNAME", "SHELL", "TERM")
KEPT_BEGINNINGS = ("LC_", "LD_", "DYLD_", "PYTHON")
IMPORT = r"(?m)^ *from (fanout(?:\.\w+)*) import (\([^)]*\)|[^\n#]*)"
# Seconds for one command; half of it for an agent. A machine may be very busy.
LIMIT = 120.0
SOCKET_LIMIT = 100
# The tail of a socket's path: /tmux-<uid>/agent-workers-<8 hex>.
SOCKET_NAME = 40
SHOWN = 400
PNG_HEAD = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
DIRECTIONS = {
    "alpha": """Add alpha.txt.
@write alpha.txt alpha\\n
@commit Add alpha
@write .worker-runs/changelog/alpha.md ### Added\\n\\n- The file alpha.\\n
@report completed alpha.txt is there
""",
    "beta": """Begin beta.txt.
@write beta.txt half\\n
@commit Begin beta
@report progress half of beta.txt is there
""",
    "gamma": """Think for a long time.
@report progress thinking
@sleep 600
""",
}
FOLLOW_UPS = {
    "beta": """Write the other half of beta.txt.
@append beta.txt whole\\n
@commit Complete beta
@write .worker-runs/changelog/beta.md ### Added\\n\\n- The file beta.\\n
@report completed beta.txt is whole
""",
    "gamma": """Write gamma.txt now.
@write gamma.txt gamma\\n
@commit Add gamma
@write .worker-runs/changelog/gamma.md ### Added\\n\\n- The file gamma.\\n
@report completed gamma.txt is there
""",
}
NAMES = tuple(DIRECTIONS)
LANGUAGES = ("python", "bash")
# It drops the first Enter that is pressed while the file MARK is there.
LOSES_ENTER = """#!/bin/sh
for last; do :; done
if [ "$last" = Enter ] && rm MARK 2>/dev/null; then exit 0; fi
exec TMUX "$@"
"""


class Check(NamedTuple):
    """One thing that was looked at: what was found or is wrong, and where to look then."""

    name: str
    ok: bool
    seconds: float
    found: str
    hint: str

    def to_json(self) -> dict[str, Any]:
        """The row of `data.checks`."""
        return self._asdict()


class Site:
    """The folder that all is made in, and the package that is looked at."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.closed = False
        self.root = os.path.realpath(tempfile.mkdtemp(prefix="aw-self-"))
        self.sockets = self.path("t")
        if len(os.fsencode(self.sockets)) + SOCKET_NAME > SOCKET_LIMIT:
            self.sockets = tempfile.mkdtemp(prefix="aw-self-", dir="/tmp")
        for name in ("home", "bin", "tmp", "t", "converted", "runners"):
            os.mkdir(self.path(name), 0o700)
        self.repo = self.path("repo")
        self.plans = self.path("plans")
        write(self.path("gitconfig"), "[user]\n\tname = Self\n\temail = self@test.invalid\n")
        self.mark = f"AGENT_WORKERS_SELF_TEST={self.root}"
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in KEPT or name.startswith(KEPT_BEGINNINGS)
        }
        self.env = {
            **kept,
            "PATH": f"{self.path('bin')}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HOME": self.path("home"),
            "TMPDIR": self.path("tmp"),
            "TMUX_TMPDIR": self.sockets,
            "GIT_CONFIG_GLOBAL": self.path("gitconfig"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "SAMPLE_AGENT_LOG": self.path("prompts.jsonl"),
            "AGENT_WORKERS_SELF_TEST": self.root,
        }

    def path(self, *parts: str) -> str:
        """A path below the folder."""
        return os.path.join(self.root, *parts)

    def close(self) -> None:
        """End what still runs, remove all that was made."""
        from fanout.proctree import end_tree

        self.closed = True
        # Twice: after a signal a lane may just have started something.
        for _ in range(2):
            end_tree([], self.mark, grace=1.0)
            for folder in {self.root, self.sockets}:
                shutil.rmtree(folder, ignore_errors=True)

    # --- Commands ---

    def run(
        self, *argv: str, codes: tuple[int, ...] = (0,), more: dict[str, str] | None = None
    ) -> process.Completed:
        """Run a program; any other exit code than these is a fault."""
        if self.closed:
            raise wrong("the self-test is being ended")
        done = process.run(list(argv), env={**self.env, **(more or {})}, stdin=b"", timeout=LIMIT)
        if done.code not in codes:
            raise self.fault(argv, done)
        return done

    def fault(self, argv: tuple[str, ...], done: process.Completed) -> SkillError:
        """A command that ended in another way than it should."""
        from fanout.workers import quote_for_bash

        said = plain_text(f"{done.error_text}\n{done.text}").strip()
        try:
            error = json.loads(done.stdout)["error"]
            said = f"{error['message']} ({error['code']}; {error['hint']})"
        except (ValueError, KeyError, TypeError):
            said = " | ".join(said.splitlines()[-6:])[-SHOWN:]
        words = " ".join(map(quote_for_bash, argv))
        return wrong(f"exit {done.code}: {said}", f"the command was: {words}")

    def command(
        self, script: str, *words: str, codes: tuple[int, ...] = (0,), folder: str = ""
    ) -> process.Completed:
        """Run one of the skill's commands, of this package or of the one in `folder`."""
        entry = os.path.join(folder or self.package, "scripts", script)
        return self.run(sys.executable, entry, *words, codes=codes)

    def ask(
        self, script: str, *words: str, codes: tuple[int, ...] = (0,), repo: str = ""
    ) -> dict[str, Any]:
        """Run a command on a repository; the `data` of its JSON answer."""
        words = (*words, "--repo", repo or self.repo, "--json")
        done = self.command(script, *words, codes=codes)
        return json.loads(done.stdout)["data"]

    def workers(self, *words: str, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
        """Run the script for workers on the repository."""
        return self.ask(edition.HELPER, *words, codes=codes)

    def git(self, *words: str) -> str:
        """Run git in the repository; what it prints."""
        return self.run("git", "-C", self.repo, *words).text.strip()

    def make_repository(self, place: str) -> None:
        """A repository with one commit on main, and a changelog."""
        self.run("git", "init", "-q", "-b", "main", place)
        write(os.path.join(place, "CHANGELOG.md"), "# Changelog\n\n## [Unreleased]\n")
        # A plan of the examples reads it.
        write(os.path.join(place, "inventory.txt"), "web-1\nweb-2\n")
        self.run("git", "-C", place, "add", "-A")
        self.run("git", "-C", place, "commit", "-q", "-m", "Begin")

    def inside(
        self, place: str, *argv: str, codes: tuple[int, ...] = (0,), more: dict[str, str]
    ) -> process.Completed:
        """Run a program from within a folder."""
        enter = ("bash", "-c", 'cd -- "$0" && exec "$@"', place)
        return self.run(*enter, *argv, codes=codes, more=more)

    def wait_until(self, question: Callable[[], bool], what: str) -> None:
        """Ask until it is true. Raises SkillError at the deadline."""
        deadline = time.monotonic() + LIMIT / 2
        while not question():
            if time.monotonic() > deadline:
                raise wrong(f"not seen in {LIMIT / 2:.0f} s: {what}", "is the machine very busy?")
            time.sleep(0.05)


def wrong(message: str, hint: str = "") -> SkillError:
    """What a check found wrong, and where to look."""
    return SkillError("check-failed", message, hint)


def write(path: str, text: str, mode: int = 0o600) -> None:
    """Write a small file."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)


def content(folder: str, path: str) -> str:
    """A text file of a package, with its line ends as they are."""
    with open(os.path.join(folder, path), encoding="utf-8", newline="") as file:
        return file.read()


def files(folder: str, pattern: str) -> list[str]:
    """The paths within a folder that fit a pattern, in order."""
    return sorted(glob.glob(pattern, root_dir=folder, recursive=True))


def read_json(folder: str, path: str) -> Any:
    """A JSON file of a package. Raises SkillError."""
    try:
        return json.loads(content(folder, path))
    except ValueError as error:
        raise wrong(f"{path} is no JSON: {error}", f"look at {path}") from error


# --- All of them ----------------------------------------------------------------------------


def run_all(package: str, *, live: bool, tell: Callable[[Check], None]) -> list[Check]:
    """Run the checks and tell of each as it ends; all of them in order, after a missing program it.

    The main jobs wait for programs most of the time: they are done beside the other checks.
    """
    site = Site(package)
    lanes: list[list[tuple[str, Callable[[Site], str]]]] = [
        [
            ("frontmatter", lambda site: check_frontmatter(site.package, edition.SKILL)),
            ("files", lambda site: check_files(site.package)),
            ("syntax", lambda site: check_syntax(site, site.package)),
            ("help", lambda site: check_help(site, site.package)),
            ("mappings", check_mappings),
            ("schemas", check_schemas),
            ("poster", lambda site: check_poster(site.package)),
            ("plans", check_plans),
            ("conversion", check_conversion),
        ],
        [
            ("spawn", spawn_workers),
            ("lost Enter", lose_an_enter),
            ("dead agent", kill_an_agent),
            ("review", review_and_approve),
            ("killed merge", kill_a_merge),
            ("clean-up", clean_up),
            ("runners", run_runners),
        ],
    ]
    try:
        done = [look(PROGRAMS, check_programs, site, tell)]
        if not done[0].ok:
            return done
        calls = [lambda: [look(name, check, site, tell) for name, check in lanes[0]]]
        calls += [lambda: in_turn(lanes[1], site, tell)] if live else []
        done += [check for lane in process.side_by_side(calls) for check in lane]
    finally:
        site.close()
    return [*done, look("left behind", nothing_is_left, site, tell)]


def in_turn(
    jobs: list[tuple[str, Callable[[Site], str]]], site: Site, tell: Callable[[Check], None]
) -> list[Check]:
    """Do jobs of which each needs the one before it; what is not tried has failed too."""
    done: list[Check] = []
    for name, job in jobs:
        failed = next((check.name for check in done if not check.ok), "")
        if failed:
            done.append(Check(name, False, 0.0, f"not tried, since {failed!r} failed", ""))
            tell(done[-1])
        else:
            done.append(look(name, job, site, tell))
    return done


def look(
    name: str, check: Callable[[Site], str], site: Site, tell: Callable[[Check], None]
) -> Check:
    """Run one check and tell of it."""
    begun = time.monotonic()
    ok, hint = False, f"look at the check {name!r} in scripts/fanout/self_checks.py"
    try:
        found, ok, hint = check(site), True, ""
    except SkillError as error:
        found, hint = error.message, error.hint or hint
    except Exception as error:  # noqa: BLE001 - any damage must be told as what it is
        place = f" ({error.filename}:{error.lineno})" if isinstance(error, SyntaxError) else ""
        found = f"{type(error).__name__}: {error}{place}"
    done = Check(name, ok, round(time.monotonic() - begun, 2), found, hint)
    tell(done)
    return done


# --- What lies in the package ---------------------------------------------------------------


def check_programs(_: Site) -> str:
    """Git, tmux and bash are there and new enough."""
    from fanout.doctor import MINIMUM, check_program

    checks = [check_program(name) for name in MINIMUM]
    bad = [check for check in checks if not check.ok]
    if bad:
        names = ", ".join(f"{check.name} ({check.found})" for check in bad)
        raise wrong(f"missing or too old: {names}", "; ".join(check.hint for check in bad))
    version = ".".join(map(str, sys.version_info[:3]))
    return ", ".join([*(check.found for check in checks), f"Python {version}"])


def check_frontmatter(folder: str, name: str) -> str:
    """SKILL.md has the frontmatter that every reader of skills takes."""
    from fanout import frontmatter

    with open(os.path.join(folder, "SKILL.md"), "rb") as file:
        skill = frontmatter.parse_skill(frontmatter.plain_lines(file.read()))
    frontmatter.require_valid(skill)
    found = frontmatter.value_of(skill, "name")
    if found != name:
        raise wrong(f"SKILL.md is called {found}, not {name}", "look at scripts/fanout/edition.py")
    length = len(frontmatter.value_of(skill, "description"))
    told = f"{name}, a description of {length} characters"
    lies_in = os.path.basename(os.path.realpath(folder))
    if lies_in != name:
        told += f" (note: agents find it only in a folder of that name; this one is {lies_in!r})"
    return told


def check_files(folder: str) -> str:
    """All is there that SKILL.md names, that the rooms read, and that modules import."""
    text = content(folder, "SKILL.md")
    wanted = {*NEEDED, *re.findall(NAMED, text), f"scripts/{edition_of(folder)['HELPER']}"}
    imported = imports(folder)
    lost = [f for f in sorted(wanted | imported) if not os.path.exists(os.path.join(folder, f))]
    if lost:
        raise wrong(f"missing: {', '.join(lost)}", "take a whole copy of the skill's folder")
    return f"{len(wanted)} files that are named or read, {len(imported)} modules"


def edition_of(folder: str) -> dict[str, str]:
    """The names that a package goes by."""
    text = content(folder, "scripts/fanout/edition.py")
    return dict(re.findall(r'(?m)^([A-Z_]+) = "([^"\\\n]*)"$', text))


def imports(folder: str) -> set[str]:
    """The files of the modules that the package's scripts import from it."""
    found: set[str] = set()
    for path in files(folder, "scripts/**/*.py"):
        for module, names in re.findall(IMPORT, content(folder, path)):
            place = f"scripts/{module.replace('.', '/')}"
            if os.path.isdir(os.path.join(folder, place)):
                parts = [f"{place}/{name}" for name in re.findall(r"(?<!as )\b(?!as\b)\w+", names)]
                parts = [p for p in parts if not os.path.isdir(os.path.join(folder, p))]
            else:
                parts = [place]
            found |= {f"{part}.py" for part in parts}
    return found


def check_syntax(site: Site, folder: str) -> str:
    """Python, Bash and JSON files can be read as what they are."""
    pythons = [*files(folder, "scripts/**/*.py"), *files(folder, "examples/*.py")]
    for path in pythons:
        require_python(site, os.path.join(folder, path), path)
    shells = files(folder, "scripts/**/*.sh")
    for path in shells:
        if "\r" in content(folder, path):
            raise wrong(
                f"{path} has CRLF line ends", "check it out with LF, as .gitattributes says"
            )
        site.run("bash", "-n", os.path.join(folder, path))
    values = [*files(folder, "examples/*.json"), *files(folder, "references/*.json")]
    for path in values:
        read_json(folder, path)
    return f"{len(pythons)} Python, {len(shells)} Bash, {len(values)} JSON files"


def require_python(site: Site, path: str, name: str) -> None:
    """Demand that a Python file compiles. Raises SkillError."""
    import py_compile

    try:
        made = site.path("tmp", name.replace("/", "-"))
        py_compile.compile(path, cfile=made, dfile=name, doraise=True)
    except py_compile.PyCompileError as error:
        said = " ".join(plain_text(error.msg).split())
        raise wrong(f"{name} does not compile: {said}", f"look at {name}") from error


def check_help(site: Site, folder: str, *, verbs: bool = True) -> str:
    """Every command, and every verb of it, tells its purpose, examples and exit codes."""
    entries = [os.path.basename(path) for path in files(folder, "scripts/*.py")]
    pages = process.side_by_side(
        [lambda entry=entry: help_of(site, folder, entry) for entry in entries]
    )
    calls: list[tuple[str, ...]] = []
    for entry, page in zip(entries, pages, strict=True):
        listed = page.partition("\n  VERB\n")[2].partition("\noptions:")[0]
        calls += [(entry, verb) for verb in re.findall(r"(?m)^    ([a-z][a-z-]*)(?= |$)", listed)]
    calls = calls if verbs else []
    process.side_by_side([lambda call=call: help_of(site, folder, *call) for call in calls])
    return f"{len(entries)} commands, {len(calls)} verbs"


def help_of(site: Site, folder: str, entry: str, *verb: str) -> str:
    """A help page. Raises SkillError when it lacks what a caller needs."""
    page = site.command(entry, *verb, "--help", folder=folder).text
    called = " ".join((entry, *verb))
    for part in (f"usage: {called}", "\nexample", "\nexit codes:"):
        if part not in f"\n{page}":
            raise wrong(f"`{called} --help` shows no {part.strip()!r}", f"look at scripts/{entry}")
    return page


def mappings(folder: str) -> list[str]:
    """The mappings of agent CLIs among the examples."""
    found = files(folder, "examples/harness-*.json")
    return [path for path in found if path != "examples/harness-template.json"]


def check_mappings(site: Site) -> str:
    """Every mapping is valid, and the template has a place for each field."""
    from fanout import harness

    found = mappings(site.package)
    for path in found:
        try:
            harness.read_mapping(os.path.join(site.package, path))
        except SkillError as error:
            raise wrong(f"{path}: {error.message}", f"look at {path}") from error
    default = f"examples/harness-{edition.AGENT}.json"
    if default not in found:
        raise wrong(f"the default mapping {default} is missing", "take a whole copy")
    template = read_json(site.package, "examples/harness-template.json")
    if list(template) != list(harness.blank()):
        raise wrong(
            "harness-template.json has other fields", "look at references/harness.schema.json"
        )
    return f"{len(found)} agent CLIs, {edition.AGENT} is the default"


def plans(folder: str) -> list[str]:
    """The plans among the examples."""
    return sorted(set(files(folder, "examples/*.json")) - set(files(folder, "examples/harness-*")))


def check_schemas(site: Site) -> str:
    """The schemas know every field that the examples have."""
    count = 0
    for schema, examples in (("plan", plans), ("harness", mappings)):
        path = f"references/{schema}.schema.json"
        known = read_json(site.package, path)
        if "$schema" not in known or not isinstance(known.get("properties"), dict):
            raise wrong(f"{path} is no JSON schema", f"look at {path}")
        for example in examples(site.package):
            count += 1
            unknown = set(read_json(site.package, example)) - set(known["properties"])
            if unknown:
                words = ", ".join(sorted(unknown))
                raise wrong(f"{example} has fields that {path} lacks: {words}", f"look at {path}")
    return f"{count} examples have no field that the two schemas lack"


def check_poster(folder: str) -> str:
    """The poster needs nothing from elsewhere, names commands that are there, and has a picture."""
    page = content(folder, "poster/index.html")
    outside = re.findall(r"(?:src|href)\s*=\s*[\"']?([^\"'\s>]+)|url\(\s*([^)]*)\)|<script", page)
    if outside:
        raise wrong(f"poster/index.html loads from elsewhere: {outside[:3]}", "look at the file")
    named = set(re.findall(r"\b[a-z]\w*_\w+\.py\b", page))
    lost = [n for n in sorted(named) if not os.path.exists(os.path.join(folder, "scripts", n))]
    if lost or not named:
        raise wrong(f"poster/index.html names {lost or 'no command'}", "look at poster/index.html")
    with open(os.path.join(folder, "poster", "screenshot.png"), "rb") as file:
        head = file.read(24)
    size = (int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big"))
    if head[:16] != PNG_HEAD or size[0] != size[1] or not size[0]:
        raise wrong(
            f"poster/screenshot.png is no square PNG: {size}", "`make poster` makes it anew"
        )
    return f"{len(named)} commands named, a picture of {size[0]} x {size[1]}"


def check_plans(site: Site) -> str:
    """Every example of a plan is rendered in both languages, and dry-run with the same words."""
    site.make_repository(site.plans)
    found = plans(site.package)
    planner = os.path.join(site.package, "scripts", "plan_workers.py")
    calls = [lambda path=path: check_plan(site, path, planner) for path in found]
    process.side_by_side(calls)
    return f"{len(found)} plans, rendered in Python and Bash, checked and dry-run alike"


def check_plan(site: Site, path: str, planner: str) -> None:
    """One plan."""
    config = os.path.join(site.package, path)
    if os.path.exists(planner):
        # 10: it is there to show what should not be parallel, or asks for a decision.
        done = site.ask(os.path.basename(planner), "check", config, codes=(0, 10), repo=site.plans)
        if not done["valid"]:
            raise wrong(f"{path} is no valid plan", f"look at {path}")
    shown = {
        language: dry_run(site, render(site, config, language), language) for language in LANGUAGES
    }
    if shown["python"] != shown["bash"]:
        raise wrong(f"the two runners of {path} show other words in a dry run", f"look at {path}")


def render(site: Site, config: str, language: str, folder: str = "") -> str:
    """Render a plan and check what was made; its path."""
    name = os.path.basename(config).removesuffix(".json")
    runner = site.path("runners", f"{name}{'-converted' if folder else ''}.{language}")
    words = ("--config", config, "--language", language, "--output", runner)
    site.command("render_worker_loop.py", *words, folder=folder)
    if language == "python":
        require_python(site, runner, f"the Python runner of {name}")
    else:
        site.run("bash", "-n", runner)
    return runner


def dry_run(site: Site, runner: str, language: str) -> str:
    """What a runner shows in a dry run in the repository, without its own name."""
    done = site.inside(site.plans, interpreter(language), runner, more={"DRY_RUN": "1"})
    return done.text.replace(runner, "RUNNER")


def interpreter(language: str) -> str:
    """What runs a runner, whatever its mode bits."""
    return sys.executable if language == "python" else "bash"


def check_conversion(site: Site) -> str:
    """A package for another agent CLI can be made, and its scripts work."""
    others = [path for path in mappings(site.package) if path != own_mapping()]
    if not others:
        raise wrong("there is no mapping of another agent CLI", "take a whole copy")
    config = next((path for path in others if path.endswith("-codex.json")), others[0])
    name = f"{str(read_json(site.package, config)['name']).lower()}-worktree-skill"
    folder = site.path("converted", name)
    words = ("--config", os.path.join(site.package, config), "--output-dir", folder, "--json")
    made = json.loads(site.command("convert_harness.py", *words).stdout)["data"]
    check_frontmatter(folder, made["skill"])
    check_files(folder)
    check_syntax(site, folder)
    check_poster(folder)
    told = check_help(site, folder, verbs=False)
    for language in LANGUAGES:
        render(site, os.path.join(folder, plans(folder)[0]), language, folder)
    return f"{made['skill']}: {told}"


def own_mapping() -> str:
    """The mapping of this edition's own agent."""
    return f"examples/harness-{edition.AGENT}.json"


# --- The main jobs --------------------------------------------------------------------------


def run_runners(site: Site) -> str:
    """A runner does its task behind its backup; one whose backup fails touches nothing."""
    site.make_repository(site.path("runs"))
    process.side_by_side([lambda word=word: run_runner(site, word) for word in LANGUAGES])
    return "in Python and Bash: a failed backup stopped it before any worktree, then all was done"


def run_runner(site: Site, language: str) -> None:
    """The runner of one language."""
    repo, ready = site.path("runs"), site.path(f"backup-{language}")
    agent = [os.path.join(site.package, "examples", "sample_agent.py"), "-p"]
    plan = {
        "run_name": f"self-{language}",
        "repo": repo,
        "agent": {"cli": sys.executable, "args": agent, "prompt_mode": "stdin"},
        "backups": [{"name": "copy", "run": 'test -e "$READY" && cp CHANGELOG.md "$READY"'}],
        "tasks": [
            {
                "name": language,
                "prompt": f"@write {language}.txt x\n@commit Add {language}\n",
                "verify": [f"test -s {language}.txt"],
            }
        ],
    }
    config = site.path(f"{language}.json")
    write(config, json.dumps(plan))
    argv = (interpreter(language), render(site, config, language))
    more = {"RUN_ID": f"self-{language}", "READY": ready}
    site.inside(repo, *argv, codes=(3,), more=more)
    branch = ("git", "-C", repo, "branch", "--list", language)
    if site.run(*branch).text:
        raise wrong(f"the {language} runner began although a backup failed")
    write(ready, "")
    site.inside(repo, *argv, more={**more, "RESUME": "1"})
    done = site.run("git", "-C", repo, "show", f"{language}:{language}.txt").text
    if done != "x" or not os.path.getsize(ready):
        raise wrong(f"the {language} runner did not do its task")


def sample_mapping(site: Site) -> str:
    """A mapping of the sample agent, which is not started by its mode bits."""
    from fanout import harness

    mapping = harness.blank()
    mapping |= {"name": "sample", "executable": sys.executable}
    agent = os.path.join(site.package, "examples", "sample_agent.py")
    mapping["interactive"] |= {
        "args": [agent],
        "prompt_mode": "paste",
        "ready": [r"idle  \? for help"],
        "busy": [r"working \(esc to interrupt\)"],
        "idle": [r"idle  \? for help"],
        "submit_keys": ["Enter"],
    }
    mapping["session"] |= {
        "id_source": "assigned",
        "new_args": ["--session", "{session_id}"],
        "resume_args": ["--resume", "{session_id}"],
    }
    path = site.path("harness-sample.json")
    write(path, json.dumps(mapping))
    return path


def events(site: Site, name: str) -> list[str]:
    """The kinds of a worker's events."""
    return [row["event"] for row in site.workers("events", name)["events"]]


def prompts(site: Site) -> list[dict[str, Any]]:
    """What the sample agents were given, in order."""
    with open(site.env["SAMPLE_AGENT_LOG"], encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def spawn_workers(site: Site) -> str:
    """Three workers start, get their prompts by paste, and report."""
    site.make_repository(site.repo)
    os.mkdir(site.path("prompts"))
    for name, prompt in DIRECTIONS.items():
        write(site.path("prompts", f"{name}.md"), prompt)
    words = ("--prompts-dir", site.path("prompts"), "--harness", sample_mapping(site))
    rows = site.workers("spawn", *words, "--settle", "0")["workers"]
    late = [row["name"] for row in rows if not row["worker"]["delivered"]]
    if late or len(rows) != len(NAMES):
        raise wrong(f"the prompt did not reach {', '.join(late)}")
    site.workers("wait", "alpha", "--timeout", str(LIMIT / 2))
    for name in ("beta", "gamma"):
        site.wait_until(lambda name=name: "progress" in events(site, name), f"{name} reports")
    screen = site.command(edition.HELPER, "capture", "beta", "--repo", site.repo).text
    if "half of beta.txt is there" not in screen:
        raise wrong("`capture` does not show what the agent printed")
    return f"{len(rows)} prompts delivered, reports came back, the screen was captured"


def lose_an_enter(site: Site) -> str:
    """A follow-up prompt is taken once although the Enter after it is lost."""
    before, mark = len(prompts(site)), site.path("lose-enter")
    real = process.find_program("tmux") or "tmux"
    shim = LOSES_ENTER.replace("MARK", shell_word(mark)).replace("TMUX", shell_word(real))
    write(site.path("bin", "tmux"), shim, 0o700)
    write(mark, "")
    write(site.path("follow-up.md"), FOLLOW_UPS["beta"])
    try:
        site.workers("send", "beta", "--prompt-file", site.path("follow-up.md"))
    finally:
        os.unlink(site.path("bin", "tmux"))
    if os.path.exists(mark):
        raise wrong("the fault could not be made: no Enter was lost", "may TMPDIR run programs?")
    site.workers("wait", "beta", "--timeout", str(LIMIT / 2))
    taken = [row["prompt"] for row in prompts(site)[before:]]
    if len(taken) != 1 or FOLLOW_UPS["beta"].splitlines()[0] not in taken[0]:
        raise wrong(f"the prompt was taken {len(taken)} times, not once")
    return "Enter was pressed again, the text was not: the prompt was taken once"


def shell_word(text: str) -> str:
    """A word for sh."""
    return "'" + text.replace("'", "'\\''") + "'"


def kill_an_agent(site: Site) -> str:
    """An agent that is killed is told as failed, and its worker goes on with a new one."""
    tree = site.workers("status", "gamma")["workers"][0]["worktree"]
    pid = next(row["pid"] for row in prompts(site) if row["cwd"] == tree)
    os.kill(pid, signal.SIGKILL)
    site.workers("wait", "gamma", "--timeout", str(LIMIT / 2), codes=(1,))
    row = site.workers("status", "gamma")["workers"][0]
    if row["state"] != "exited":
        raise wrong(f"the worker of a killed agent is {row['state']!r}, not 'exited'")
    write(site.path("follow-up.md"), FOLLOW_UPS["gamma"])
    words = ("--prompt-file", site.path("follow-up.md"), "--settle", "0")
    site.workers("resume", "gamma", *words)
    site.workers("wait", "gamma", "--timeout", str(LIMIT / 2))
    return "told as failed, started again, its work done"


def review_and_approve(site: Site) -> str:
    """What the workers did is foreseen to merge, shown and approved, commit by commit."""
    site.ask("integrate_workers.py", "forecast", *NAMES)
    for name in NAMES:
        head = site.ask("integrate_workers.py", "review", name)["head"]
        words = ("--commit", head, "--by", "self_test.py")
        site.ask("integrate_workers.py", "approve", name, *words)
    return f"{len(NAMES)} branches foreseen to merge, reviewed and approved"


def kill_a_merge(site: Site) -> str:
    """A merge that is killed while its checks run changes nothing; the same call then merges."""
    mark, before = site.path("checking"), site.git("rev-parse", "main")
    # It hangs the first time.
    hang = f"[ -e {shell_word(mark)} ] || {{ echo $$ >{shell_word(mark)}; exec sleep 600; }}"
    check = f"{hang}; test -s alpha.txt && test -s beta.txt && test -s gamma.txt"
    entry = os.path.join(site.package, "scripts", "integrate_workers.py")
    words = ["merge", *NAMES, "--check", check, "--repo", site.repo, "--json"]
    running = process.start([sys.executable, entry, *words], env=site.env, says_why=False)
    try:
        site.wait_until(lambda: os.path.exists(mark) and os.path.getsize(mark) > 0, "the check")
    finally:
        os.kill(running.pid, signal.SIGKILL)
        process.wait(running, time.monotonic() + LIMIT)
        process.end(running)
    if site.git("rev-parse", "main") != before or site.git("status", "--porcelain"):
        raise wrong("a merge that was killed has changed the branch or the checkout")
    merged = site.ask("integrate_workers.py", *words[:-3])
    if site.git("rev-parse", "main") == before or site.git("status", "--porcelain"):
        raise wrong(f"the merge after it did not publish: {json.dumps(merged)[:SHOWN]}")
    book = site.git("show", "main:CHANGELOG.md")
    lost = [name for name in NAMES if book.count(f"- The file {name}.") != 1]
    if lost:
        raise wrong(f"the changelog does not have the entry once of {', '.join(lost)}")
    with open(mark, encoding="utf-8") as file:
        require_ended(int(file.read()))
    return "the branch had not moved; the same call then merged all, each changelog entry once"


def require_ended(pid: int) -> None:
    """Demand that a process has ended. Raises SkillError."""
    from fanout.proctree import start_time

    if start_time(pid) is not None:
        raise wrong("the check of the merge that was killed still runs")


def clean_up(site: Site) -> str:
    """Stopped and merged workers go, with their trees, branches, sessions and processes."""
    from fanout.proctree import tree

    site.workers("stop", *NAMES)
    site.workers("cleanup", "--merged", "--branch-delete")
    site.wait_until(lambda: not tree([], site.mark), "the end of every process")
    left = site.git("for-each-ref", "--format=%(refname)", "refs/heads").split()
    trees = site.git("worktree", "list", "--porcelain").count("worktree ")
    if left != ["refs/heads/main"] or trees != 1:
        raise wrong(f"left: {left}, {trees} worktrees")
    parent = f"{site.repo}.worktrees"
    if os.path.isdir(parent) and os.listdir(parent):
        raise wrong(f"left in the folder of worktrees: {os.listdir(parent)[:5]}")
    return "no worktree, branch, session or process is left"


def nothing_is_left(site: Site) -> str:
    """The temporary folder is gone, and so is every process."""
    from fanout.proctree import tree

    left = [folder for folder in (site.root, site.sockets) if os.path.exists(folder)]
    left += [f"process {found.pid}" for found in tree([], site.mark)]
    if left:
        raise wrong(f"left: {', '.join(left)}", "remove it by hand")
    return "nothing"
