"""The command `convert_harness.py`: its parser, and what its three modes answer."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time

from fanout.cli.common import EPILOG, SCRIPTS, Parser, glue_values, positive, run_command, warn
from fanout.errors import ExitCode, SkillError, refused, usage
from fanout.output import Answer, next_action, path_text, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fanout.converting import Conversion
    from fanout.livecheck import Setting

PROG = "convert_harness.py"
TIMEOUT = 120.0
LIVE_TIMEOUT = 900.0
EXAMPLES = """examples:
  convert_harness.py --config examples/harness-codex.json --output-dir /tmp/codex --dry-run
  convert_harness.py --config examples/harness-codex.json --output-dir /tmp/codex
  convert_harness.py --probe codex --output /tmp/harness-codex.json
  convert_harness.py --check --config examples/harness-codex.json
  convert_harness.py --check --live --config examples/harness-gemini.json \\
    --endpoint https://models.example.com --pass GEMINI_API_KEY \\
    --env GOOGLE_GEMINI_BASE_URL={endpoint}

"""
VALUES = frozenset(
    ["--config", "--output-dir", "--probe", "--output", "--timeout", "--endpoint", "--env",
     "--pass", "--home"]
)  # fmt: skip
SHOWN = 40


def main(argv: list[str]) -> int:
    """Run the command; returns its exit code."""
    return run_command(PROG, argv, parse, answer)


def parse(argv: list[str]) -> argparse.Namespace:
    """The options. Raises SkillError `usage`."""
    parser = Parser(
        prog=PROG,
        description="Specialise this package for an agent CLI, draft a mapping from an installed "
        "one, or check whether a mapping still fits.",
        epilog=EXAMPLES + EPILOG,
    )
    parser.add_argument("--config", metavar="MAPPING", help="the agent's mapping, a JSON file")
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        help="write the converted package here; only an unedited conversion is replaced",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what a conversion would write, write nothing"
    )
    parser.add_argument(
        "--probe", metavar="CLI", help="draft a mapping from this program's help and version"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="write the drafted mapping here too; a new file"
    )
    parser.add_argument(
        "--check", action="store_true", help="does the installed program still fit the mapping"
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="with --check: give the program a few harmless prompts, in a repository and a home "
        "that are made for it and removed",
    )
    parser.add_argument(
        "--endpoint", metavar="URL", help="with --live: the model server that is to answer"
    )
    parser.add_argument(
        "--env",
        metavar="K=V",
        action="append",
        help="with --live: a variable for the program, in which {endpoint} and {repository} are "
        "replaced (repeatable)",
    )
    parser.add_argument(
        "--pass",
        dest="passed",
        metavar="NAME",
        action="append",
        help="with --live: a variable of yours that the program gets, such as a key; its value is "
        "shown nowhere (repeatable; what the mapping needs is passed anyway)",
    )
    parser.add_argument(
        "--home",
        metavar="DIR",
        help="with --live: the files of this folder are copied into the program's home, in which "
        "the same is replaced",
    )
    parser.add_argument(
        "--bypass",
        action="store_true",
        help="with --live: lift the program's approvals for one command of ours",
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        metavar="S",
        help=f"a probe or check may take so long (default: {TIMEOUT:.0f}, live: "
        f"{LIVE_TIMEOUT:.0f})",
    )
    parser.add_argument("--json", action="store_true", help="answer as JSON")
    options = parser.parse_args(glue_values(argv, frozenset(), VALUES))
    given = {name for name in ALL_OPTIONS if getattr(options, name) not in (None, False)}
    if "" in (options.output, options.home, options.endpoint):
        raise usage("usage", "an option's value is empty", f"see `{PROG} --help`")
    if options.probe is not None:
        needed, allowed = {"probe"}, {"probe", "output", "timeout"}
    elif options.live:
        needed = {"check", "live", "config", "endpoint"}
        allowed = needed | {"env", "passed", "home", "bypass", "timeout"}
    elif options.check:
        needed, allowed = {"check", "config"}, {"check", "config", "timeout"}
    else:
        needed, allowed = {"config", "output_dir"}, {"config", "output_dir", "dry_run"}
    if not needed <= given or not given <= allowed:
        raise usage(
            "usage",
            "give --config MAPPING with --output-dir DIR, or --probe CLI, or --check with --config "
            "(and --live with --endpoint)",
            f"see `{PROG} --help`",
        )
    return options


ALL_OPTIONS = (
    "config", "output_dir", "dry_run", "probe", "output", "check", "timeout", "live", "endpoint",
    "env", "passed", "home", "bypass",
)  # fmt: skip


def answer(options: argparse.Namespace) -> Answer:
    """Run the mode that the options choose."""
    if options.probe is not None:
        return probe(options)
    if options.live:
        return live(options)
    return check(options) if options.check else convert(options)


# --- Convert --------------------------------------------------------------------------------


def convert(options: argparse.Namespace) -> Answer:
    """Make the package for an agent, and write it or say what would be written."""
    from fanout import converting
    from fanout.harness import SKILL_ROOT

    made = converting.convert(SKILL_ROOT, options.config)
    folder = converting.require_output(SKILL_ROOT, options.output_dir)
    same = converting.holds(folder, made)
    written = not options.dry_run and converting.write(made, folder)
    data = {
        "output_dir": folder,
        "skill": made.new.skill,
        "from": made.old.skill,
        "agent": made.new.agent,
        "helper": f"scripts/{made.new.helper}",
        "mapping": f"examples/{made.new.mapping}",
        "dry_run": options.dry_run,
        "written": written,
        "same": same,
        "files": [change.to_json() for change in made.changes],
        "report": os.path.join(folder, converting.REPORT),
        "unknown": made.unknown,
        "mentions": made.mentions,
        "taken": made.taken,
    }
    name = os.path.basename(folder)
    if name != made.new.skill:
        warn(f"where it is installed its folder must be called {made.new.skill}, not {name}")
    if made.taken:
        warn(f"some lines held a new name before, such as {made.taken[0]}: see the report")
    state = "there already" if same else "would be written" if options.dry_run else "written"
    text = told(made, folder, state, listed=options.dry_run)
    return Answer(PROG, text, data, next_actions=() if options.dry_run else after(made, folder))


def told(made: Conversion, folder: str, state: str, *, listed: bool) -> str:
    """What a person reads of a conversion."""
    changed = [change for change in made.changes if change.action != "copied"]
    rows = [f"{path_text(folder)}: {made.new.skill}, {state}"]
    if listed:
        rows += [f"  {change.action:<8} {change.path}" for change in changed[:SHOWN]]
        if len(changed) > SHOWN:
            rows.append(f"  and {len(changed) - SHOWN} more (--json lists all)")
    else:
        rows.append(f"  {len(changed)} files differ from {made.old.skill}")
    rows.append(f"  {len(made.changes) - len(changed)} files are copied as they are")
    if made.unknown:
        rows.append(
            f"  {len(made.unknown)} values of the mapping are not known: each is a question"
        )
    return "\n".join(rows)


def after(made: Conversion, folder: str) -> tuple[dict[str, Any], ...]:
    """What comes after a conversion."""
    from fanout.converting import REPORT
    from fanout.workers import quote_for_bash

    report, place = (quote_for_bash(path) for path in (os.path.join(folder, REPORT), folder))
    return (
        next_action("review", f"cat -- {report}", "work through its checklist"),
        next_action("test", f"make -C {place} test", "the package's own tests"),
        next_action(
            "check",
            command("--check", "--config", os.path.join(folder, "examples", made.new.mapping)),
            "does the installed program fit the mapping",
        ),
    )


# --- Probe and check ------------------------------------------------------------------------


def probe(options: argparse.Namespace) -> Answer:
    """Draft a mapping from what an installed program says of itself."""
    from fanout import probing
    from fanout.harness import unknown_paths

    output = options.output and os.path.abspath(options.output)
    if output and os.path.lexists(output):
        raise taken(output)
    draft = probing.probe(options.probe, deadline=deadline(options))
    for trouble in draft.trouble:
        warn(trouble)
    mapping = json.dumps(draft.mapping, indent=2) + "\n"
    if output:
        write_new(output, mapping)
    unknown = unknown_paths(draft.mapping)
    actions = [next_action("review", None, "try each value with the program, fill in what is null")]
    if output:
        words = ("--check", "--config", output)
        actions.append(next_action("check", command(*words), "compare it with the program again"))
    return Answer(
        PROG,
        f"{path_text(output)}: {len(unknown)} values are left to find out" if output else mapping,
        {**draft.to_json(), "unknown": unknown, "output": output},
        next_actions=tuple(actions),
    )


def check(options: argparse.Namespace) -> Answer:
    """Compare an installed program with what its mapping was verified with."""
    from fanout import probing
    from fanout.harness import read_mapping

    mapping = read_mapping(options.config).mapping
    fit = probing.check(mapping, deadline=deadline(options))
    text = "\n".join(fit.lines)
    if not fit.matters:
        return Answer(PROG, text, fit.to_json())
    error = SkillError(
        "mapping-drifted",
        f"the installed program does not fit the mapping {options.config!r} any more",
        "try what has changed with the program, correct the mapping and its version.verified",
        exit_code=ExitCode.BLOCKED,
    )
    words = ("--probe", str(mapping["executable"]))
    actions = (next_action("probe", command(*words), "see what the program says of itself now"),)
    return Answer(PROG, text, fit.to_json(), ExitCode.BLOCKED, error, actions)


MARKS = {True: "held    ", False: "NOT HELD", None: "-       "}


def live(options: argparse.Namespace) -> Answer:
    """Give an installed program a few prompts; say which paths of its mapping held."""
    from fanout import livecheck

    tried = livecheck.try_live(options.config, setting(options), deadline=deadline(options))
    lines = [f"{MARKS[f.held]}  {f.path}: {f.why}" for f in tried.fields]
    lines.append(f"installed: {tried.found}; the mapping was verified with {tried.verified}")
    text, data = "\n".join(lines), tried.to_json()
    if tried.late:
        error = SkillError(
            "deadline-passed",
            "the deadline passed before all was tried",
            "give a longer --timeout",
            exit_code=ExitCode.TIMED_OUT,
        )
        return Answer(PROG, text, data, error.exit_code, error)
    if tried.fits:
        return Answer(PROG, text, data)
    wrong = [field.path for field in tried.fields if field.held is False]
    error = SkillError(
        "mapping-not-held",
        f"not as the mapping {options.config!r} says: {', '.join(wrong)}",
        "correct it, or give the program what it lacks by --env, --pass or --home",
        exit_code=ExitCode.BLOCKED,
    )
    return Answer(PROG, text, data, ExitCode.BLOCKED, error)


def setting(options: argparse.Namespace) -> Setting:
    """What a live check was given. Raises SkillError `usage` (exit 2)."""
    from fanout.livecheck import Setting
    from fanout.tmux import is_variable

    hint = f"see `{PROG} --help`"
    if re.fullmatch(r"https?://[^\s/]\S*", options.endpoint) is None:
        raise usage("usage", "--endpoint must be an http or https address", hint)
    env: dict[str, str] = {}
    words: list[str] = options.env or []
    for word in words:
        name, found, value = word.partition("=")
        if not found or not is_variable(name):
            raise usage("usage", f"--env must be NAME=VALUE, not {name!r}", hint)
        env[name] = value
    passed: list[str] = options.passed or []
    for name in passed:
        if not is_variable(name):
            raise usage(
                "usage", f"--pass must be a variable's name, not {shorten(name, 20)!r}", hint
            )
    if options.home is not None and not os.path.isdir(options.home):
        raise usage("usage", f"--home must be a folder: {options.home!r}", hint)
    home = None if options.home is None else os.path.realpath(options.home)
    return Setting(options.endpoint, env, passed, home, options.bypass)


def deadline(options: argparse.Namespace) -> float:
    """When a probe or check must have ended, on the monotonic clock."""
    usual = LIVE_TIMEOUT if options.live else TIMEOUT
    return time.monotonic() + (options.timeout or usual)


def write_new(path: str, text: str) -> None:
    """Write a file where there is none. Raises SkillError `output-exists`, `output-unusable`."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        raise taken(path) from None
    except OSError as error:
        raise usage("output-unusable", f"cannot write {path!r}: {error.strerror}") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(text.encode("utf-8"))


def taken(path: str) -> SkillError:
    """A file stands where a drafted mapping was to go."""
    return refused(
        "output-exists", f"{path!r} is there already", "give another --output, or move it away"
    )


def command(*words: str) -> str:
    """A call of this command that can be pasted."""
    from fanout.workers import quote_for_bash

    return " ".join(map(quote_for_bash, [sys.executable, os.path.join(SCRIPTS, PROG), *words]))
