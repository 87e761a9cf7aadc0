"""A plan says what a run does: load it, check all of it, give it with its defaults filled in.

Nothing is run here and no variable has a value yet: a text with placeholders stays one, with a mark
for each that says how its value is written there (see `templates`).
"""

from __future__ import annotations

import json
import os
import re
import stat

from fanout import partition, templates
from fanout.errors import SkillError, usage
from fanout.fields import NamedTuple
from fanout.harness import ARGUMENT_LIMIT, RUN_PLACEHOLDERS, read_mapping
from fanout.partition import INSIDE, OWNED
from fanout.records import is_name
from fanout.runtimes.loop import slug

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Any, TypeVar

    T = TypeVar("T")

PLAN_LIMIT = 20_000_000
PROMPT_LIMIT = 10_000_000
LONGEST_TIMEOUT = 604_800
DEFAULT_TIMEOUT = 3600
MOST_MINUTES = 525_600
MOST_PARALLEL = 64
MOST_ITEMS = 10_000
DEEPEST_CONDITION = 20
BUILT_IN = ("RUN_ID", "RUN_DIR", "REPO_ROOT")
RESERVED = frozenset([*BUILT_IN, "item"])
# The environment mark by which the processes of a run are found.
MARK = "AGENT_WORKERS_RUN"
PROMPT_MODES = ("stdin", "argument", "file", "none")
FAILURES = ("continue", "stop")
NOT_TEXT = re.compile("[\0\ud800-\udfff]")

# The schema holds the same patterns. A placeholder may stand in a name and in a branch.
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)"
STEP_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$(?!\n)"
TASK_NAME = (
    r"^(?:[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
    r"|(?=[\s\S]*\{)(?:[A-Za-z0-9]|\{[A-Za-z_][A-Za-z0-9_]*\})"
    r"(?:[A-Za-z0-9_-]|\{[A-Za-z_][A-Za-z0-9_]*\})*)$(?!\n)"
)
BRANCH = (
    r"^(?!-|\.|/)(?!@$|HEAD$)(?![\s\S]*(?:\.\.|//|/\.|@\{|\.lock/))(?![\s\S]*(?:/|\.|\.lock)$)"
    r"[^\u0000-\u0020\u007f~^:?*\[\\\ud800-\udfff]+$(?!\n)"
)
BRANCH_LIMIT = 200
REVISION = r"^(?!-)[^\u0000\ud800-\udfff]+$"
LOG_NAME = (
    r"^(?!(?:[Pp][Rr][Oo][Mm][Pp][Tt]\.[Mm][Dd]|[Rr][Ee][Ss][Uu][Ll][Tt]\.[Jj][Ss][Oo][Nn]"
    r"|[Ee][Vv][Ee][Nn][Tt][Ss]\.[Jj][Ss][Oo][Nn][Ll]"
    r"|(?:[Ss][Ee][Tt][Uu][Pp]|[Vv][Ee][Rr][Ii][Ff][Yy])-[0-9]+\.[Ll][Oo][Gg])$)"
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}$(?!\n)"
)
ITEM = r"^[^\u0000\n\r\ud800-\udfff]+$(?!\n)"

TOP = (
    "run_name", "repo", "base", "worktree_root", "max_parallel", "variables", "on_failure",
    "checks", "changelog_file", "setup_minutes", "review_minutes", "agent", "preflight",
    "backups", "tasks", "postflight", "rollback",
)  # fmt: skip
AGENT = (
    "cli", "work_dir_arg", "args", "prompt_mode", "prompt_arg", "log_name", "timeout_seconds",
    "harness", "structured_output", "env", "commit_leftovers", "allow_no_change",
    "rerun_interrupted",
)  # fmt: skip
# How an agent is called, and what its mapping says of it. A task that names a harness of its own
# takes none of them from the plan.
CALL = ("cli", "work_dir_arg", "args", "prompt_mode", "prompt_arg")
MAPPED = ("mapping", "output_args", "exit_codes", "zero_without_work", "needs", "hide", "parallel")
TASK = (
    "name", "prompt", "prompt_file", "branch", "base", "owns", "depends_on", "when", "for_each",
    "setup", "verify", "agent", "timeout_seconds", "changelog", "allow_no_change",
    "estimate_minutes",
)  # fmt: skip
PLAIN_COMMAND = ("run", "timeout_seconds")
COMMAND = ("name", "run", "when", "timeout_seconds")
BACKUP = (*COMMAND, "artifact", "check")
CONDITIONS = ("env", "path_exists", "backup_passed", "all", "any", "not")
FOR_EACH = ("file", "run")
COMMAND_SHAPE = "a string, a list of strings or an object with `run`"


class Loaded(NamedTuple):
    """A plan in order. `sha256` is over the plan file and every file that it embeds.

    `notes` tell of placeholders that look like variables and are none; `edges` keep tasks apart
    that own a path both.
    """

    value: dict[str, Any]
    sha256: str
    notes: list[str]
    edges: list[partition.Edge]


class Mapped(NamedTuple):
    """A text of a mapping, already with its marks: a mapping knows no variables of a plan."""

    value: str | dict[str, Any]


class Repeated(dict[str, "Any"]):
    """A JSON object in which one key stands twice."""

    twice: str


def load_plan(path: str) -> Loaded:
    """Load and check a plan file. Raises SkillError `invalid-plan` (exit 2) with the JSON path."""
    content = read_file(path, PLAN_LIMIT, f"the plan {shown(path)}")
    return Reader(path, content).load()


def check_plan(path: str) -> tuple[Loaded | None, list[SkillError]]:
    """A plan file, or all that is wrong with it; `data["path"]` of each is its JSON path."""
    errors: list[SkillError] = []
    try:
        content = read_file(path, PLAN_LIMIT, f"the plan {shown(path)}")
        loaded = Reader(path, content, errors).load()
    except SkillError as error:
        return None, [*errors, error]
    return (None, errors) if errors else (loaded, [])


def nearest(word: str, words: Iterable[str]) -> str:
    """The one of `words` that is most like a word; "" when there are none."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word[:100], list(words), 1, 0.0)), "")


def shown(value: Any) -> str:
    """A value of the plan as a message repeats it."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = repr(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 90 else text[:80] + "..." + text[-1]


def read_file(path: str, limit: int, what: str) -> bytes:
    """The content of a regular file. Raises SkillError `invalid-plan`."""
    try:
        # A pipe in the file's place must not block.
        with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise usage("invalid-plan", f"{what} is not a file")
            content = file.read(limit + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise usage("invalid-plan", f"cannot read {what}: {why}") from error
    if len(content) > limit:
        raise usage("invalid-plan", f"{what} is larger than {limit} bytes")
    return content


def parse_json(content: bytes, what: str) -> Any:
    """The value of a JSON text. Raises SkillError `invalid-plan`."""
    try:
        text = content.decode("utf-8-sig")
        return json.loads(text, object_pairs_hook=distinct, parse_constant=not_json)
    except UnicodeDecodeError as error:
        raise usage("invalid-plan", f"{what} is not UTF-8: {error}") from error
    except RecursionError as error:
        raise usage("invalid-plan", f"{what} is nested too deep") from error
    except ValueError as error:
        raise usage("invalid-plan", f"{what} is not valid JSON: {error}") from error


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a Repeated when one of its keys stands twice."""
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    made = Repeated(found)
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            made.twice = key
            break
        seen.add(key)
    return made


def not_json(constant: str) -> Any:
    """Refuse NaN and the infinities, which Python reads and JSON does not know."""
    raise ValueError(f"{constant} is not a JSON number")


def cycle_in(edges: list[list[int]]) -> list[int]:
    """A cycle among numbered things, its first one again at its end; [] when there is none."""
    done: set[int] = set()
    for first in range(len(edges)):
        if first in done:
            continue
        path = [first]
        on_path = {first: 0}
        open_edges = [iter(edges[first])]
        while open_edges:
            following = next(open_edges[-1], None)
            if following is None:
                open_edges.pop()
                done.add(path[-1])
                del on_path[path.pop()]
            elif following in on_path:
                return [*path[on_path[following] :], following]
            elif following not in done:
                on_path[following] = len(path)
                path.append(following)
                open_edges.append(iter(edges[following]))
    return []


class Reader:
    """Reads one plan. `where` is always the JSON path of what is being read."""

    def __init__(self, path: str, content: bytes, errors: list[SkillError] | None = None) -> None:
        import hashlib

        self.path = path
        # Where all that is wrong is collected; None where the first error is raised.
        self.errors = errors
        self.folder = os.path.dirname(path)
        self.content = content
        self.digest = hashlib.sha256(content)
        self.embedded: dict[str, str] = {}
        self.mappings: dict[str, dict[str, Any]] = {}
        # The mapping of an agent of which only one may run at a time.
        self.unsafe = ""
        # The names that a placeholder may have in what is being read.
        self.names: frozenset[str] = frozenset(BUILT_IN)
        self.notes: list[str] = []
        # The backups about which a condition may ask there; None before any has run.
        self.backups: list[str] | None = None

    # --- Messages

    def wrong(self, where: str, what: str, hint: str = "") -> SkillError:
        """The error about one place of the plan."""
        error = usage("invalid-plan", f"the plan {shown(self.path)}: {where} {what}", hint)
        place = "" if where == "the whole" else where.removesuffix(":")
        error.data = {"path": place, "problem": what}
        return error

    def note(self, error: SkillError) -> None:
        """Raise an error, or keep it where all are collected."""
        if self.errors is None:
            raise error
        self.errors.append(error)

    def part(self, instead: T, read: Callable[..., T], *words: Any, **named: Any) -> T:
        """What a part of the plan gives; `instead` where it is wrong and all errors are collected.

        What `read` has made known meanwhile, such as the names of placeholders, is as before.
        """
        names = self.names
        try:
            return read(*words, **named)
        except SkillError as error:
            self.names = names
            self.note(error)
            return instead

    def unknown(self, where: str, word: str, what: str, words: Collection[str]) -> SkillError:
        """The error about a word that is none of those that may stand there."""
        near = nearest(word, words)
        known = ", ".join(list(words)[:20]) + (", ..." if len(words) > 20 else "")
        hint = f"did you mean {near!r}? Known: {known}" if near else ""
        return self.wrong(where, f"{what} {shown(word)}", hint)

    # --- Values

    def fields(self, value: Any, where: str, known: Collection[str]) -> dict[str, Any]:
        """An object of which all fields are known."""
        for key in self.members(value, where):
            if key not in known:
                place = f"{where}.{key}" if where else key
                self.note(self.unknown(shown_path(place), key, "is an unknown field:", known))
        return value

    def members(self, value: Any, where: str) -> dict[str, Any]:
        """An object without a repeated key."""
        if not isinstance(value, dict):
            raise self.wrong(where or "the whole", f"must be an object, not {shown(value)}")
        if isinstance(value, Repeated):
            place = f"{where}.{value.twice}" if where else value.twice
            raise self.wrong(shown_path(place), "stands twice in one object")
        return value  # pyright: ignore[reportUnknownVariableType]

    def entries(self, value: Any, where: str, what: str = "a list") -> list[Any]:
        """A list."""
        if not isinstance(value, list):
            raise self.wrong(where, f"must be {what}, not {shown(value)}")
        return value  # pyright: ignore[reportUnknownVariableType]

    def string(self, value: Any, where: str, *, empty: bool = False) -> str:
        """A string that can be an argument or a file's content."""
        if not isinstance(value, str):
            raise self.wrong(where, f"must be a string, not {shown(value)}")
        if NOT_TEXT.search(value):
            raise self.wrong(where, "must not hold a NUL or half of a surrogate pair")
        if not value and not empty:
            raise self.wrong(where, "must not be empty")
        return value

    def matching(self, value: Any, where: str, pattern: str, what: str) -> str:
        """A string that fits a pattern."""
        text = self.string(value, where)
        if re.match(pattern, text) is None:
            raise self.wrong(where, f"must be {what}, not {shown(text)}")
        return text

    def number(self, value: Any, where: str, most: int, *, zero: bool = False) -> float:
        """A number in a range."""
        what = f"a number from 0 to {most}" if zero else f"a number above 0, at most {most}"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(where, f"must be {what}, not {shown(value)}")
        if not 0 <= value <= most or (value == 0 and not zero):
            raise self.wrong(where, f"must be {what}")
        return value

    def truth(self, value: Any, where: str) -> bool:
        """A boolean."""
        if not isinstance(value, bool):
            raise self.wrong(where, f"must be true or false, not {shown(value)}")
        return value

    def one_of(self, value: Any, where: str, words: tuple[str, ...]) -> str:
        """One of a few words."""
        text = self.string(value, where)
        if text not in words:
            raise self.unknown(where, text, "must be one of the known words, not", words)
        return text

    def fixed(self, value: Any, where: str) -> str:
        """A string in which no placeholder can be replaced."""
        text = self.string(value, where)
        for place in templates.occurrences(text, self.names | RESERVED):
            if not templates.is_kept(place):
                raise self.wrong(
                    where, f"cannot hold {place[0]}: it is read before any value is known"
                )
        return text

    # --- Texts

    def text(self, value: Any, where: str, *, empty: bool = False) -> str | dict[str, Any]:
        """A string in which placeholders are replaced when it is used."""
        text = self.string(value, where, empty=empty)
        return self.filled(text, where)

    def filled(self, text: str, where: str) -> str | dict[str, Any]:
        """A checked string with its marks."""
        self.note_unknown(text, where)
        return marked(text, templates.scan(text, self.names))

    def note_unknown(self, text: str, where: str) -> None:
        """Note what looks like a variable, in capital letters, and stays as it stands."""
        for place in templates.PLACEHOLDER.finditer(text):
            name = place[1]
            if name in self.names or not name.isupper() or templates.is_kept(place):
                continue
            from difflib import get_close_matches

            close = get_close_matches(name[:100], sorted(self.names), 1)
            advice = f"; did you mean {{{close[0]}}}?" if close else " and stays as it is"
            note = f"`{{{name}}}` at {where} is no variable{advice}"
            if note not in self.notes:
                self.notes.append(note)

    def shell(self, value: Any, where: str) -> str | dict[str, Any]:
        """A command for Bash, in which values stay data."""
        text = self.string(value, where)
        if not text.strip():
            raise self.wrong(where, "must not be empty")
        self.note_unknown(text, where)
        try:
            return marked(text, templates.scan_shell(text, self.names))
        except templates.UnfitPlaceError as unfit:
            variable = unfit.name if unfit.name in BUILT_IN else f"PLAN_{unfit.name}"
            raise self.wrong(
                where,
                f"holds a value that could become code: {unfit}",
                f"use ${variable} there, or write the command as a list",
            ) from unfit

    def inside(self, value: Any, where: str) -> str | dict[str, Any]:
        """A path or pattern inside of the repository."""
        text = self.matching(value, where, INSIDE, "a relative path inside of the repository")
        return self.filled(text, where)

    def revision(self, value: Any, where: str) -> str | dict[str, Any]:
        """A commit's name."""
        text = self.matching(value, where, REVISION, "a commit or branch")
        return self.filled(text, where)

    # --- Commands and conditions

    def plain_command(self, value: Any, where: str, name: str) -> dict[str, Any]:
        """A command without a name or a condition of its own."""
        if isinstance(value, dict):
            fields = self.fields(value, where, PLAIN_COMMAND)
            return self.command_fields(fields, where, name)
        return self.command_words(value, where, name, DEFAULT_TIMEOUT)

    def command_fields(self, fields: dict[str, Any], where: str, name: str) -> dict[str, Any]:
        """A command from an object's `run` and `timeout_seconds`."""
        if "run" not in fields:
            raise self.wrong(where, "needs a field `run`")
        timeout = self.timeout(fields, where, DEFAULT_TIMEOUT)
        return self.command_words(fields["run"], f"{where}.run", name, timeout)

    def command_words(self, value: Any, where: str, name: str, timeout: float) -> dict[str, Any]:
        """A command from a string for Bash or a list of words."""
        made: dict[str, Any] = {
            "name": name, "shell": None, "argv": None, "when": None, "timeout_seconds": timeout,
            "artifact": None, "check": None,
        }  # fmt: skip
        if isinstance(value, str):
            made["shell"] = self.shell(value, where)
        elif isinstance(value, list) and value:
            made["argv"] = [
                self.text(word, f"{where}[{number}]", empty=number > 0)
                for number, word in enumerate(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            ]
        else:
            raise self.wrong(where, f"must be {COMMAND_SHAPE}, not {shown(value)}")
        return made

    def timeout(self, fields: dict[str, Any], where: str, default: float) -> float:
        """The time limit that an object gives."""
        if "timeout_seconds" not in fields:
            return default
        place = f"{where}.timeout_seconds"
        return self.number(fields["timeout_seconds"], place, LONGEST_TIMEOUT)

    def commands(
        self,
        fields: dict[str, Any],
        key: str,
        where: str,
    ) -> list[dict[str, Any]]:
        """The commands of one list."""
        place = f"{where}{key}"
        found: list[dict[str, Any]] = []
        taken: dict[str, str] = {}
        prefix = {"backups": "backup", "checks": "check"}.get(key, key)
        for number, value in enumerate(self.entries(fields.get(key, []), place)):
            here = f"{place}[{number}]"
            name = f"{prefix}-{number + 1:02d}"
            known = BACKUP if key == "backups" else COMMAND
            command = self.part(None, self.step, value, here, name, known)
            if command is None:
                continue
            found.append(command)
            made = [command["name"]] + ([command["check"]["name"]] if command["check"] else [])
            for word in made:
                other = taken.setdefault(word.lower(), here)
                if other != here:
                    self.note(self.wrong(here, f"has the name {word!r}, as {other} has"))
            if key == "backups" and self.backups is not None:
                self.backups.append(command["name"])
        return found

    def step(
        self, value: Any, where: str, name: str, known: tuple[str, ...]
    ) -> dict[str, Any] | None:
        """A command of a list, from an object or without a name of its own."""
        if isinstance(value, dict):
            return self.named_command(value, where, name, known)
        return self.command_words(value, where, name, DEFAULT_TIMEOUT)

    def named_command(
        self,
        value: Any,
        where: str,
        name: str,
        known: tuple[str, ...],
    ) -> dict[str, Any]:
        """A command from an object."""
        fields = self.fields(value, where, known)
        if "name" in fields:
            what = "a name (1 to 64 letters, digits, '-' and '_')"
            name = self.matching(fields["name"], f"{where}.name", STEP_NAME, what)
        command = self.command_fields(fields, where, name)
        if "when" in fields:
            command["when"] = self.condition(fields["when"], f"{where}.when")
        if "artifact" in fields:
            command["artifact"] = self.text(fields["artifact"], f"{where}.artifact")
        if "check" in fields:
            check = f"{name}-check"
            command["check"] = self.plain_command(fields["check"], f"{where}.check", check)
        return command

    def condition(
        self,
        value: Any,
        where: str,
        depth: int = 1,
    ) -> dict[str, Any]:
        """A condition of `when`."""
        if depth > DEEPEST_CONDITION:
            raise self.wrong(where, f"is nested deeper than {DEEPEST_CONDITION} conditions")
        if not isinstance(value, dict) or "run" in value:
            return {"command": self.plain_command(value, where, "when")}
        fields = self.fields(value, where, (*CONDITIONS, *PLAIN_COMMAND))  # pyright: ignore[reportUnknownArgumentType]
        kind = next(iter(fields), "")
        if len(fields) != 1 or kind not in CONDITIONS:
            one = ", ".join(CONDITIONS)
            raise self.wrong(where, f"must be a command or an object with exactly one of {one}")
        inner = fields[kind]
        place = f"{where}.{kind}"
        if kind == "env":
            return self.environment_condition(inner, place)
        if kind == "path_exists":
            return {"path_exists": self.text(inner, place)}
        if kind == "backup_passed":
            return {"backup_passed": self.backup_name(inner, place)}
        if kind == "not":
            return {"not": self.condition(inner, place, depth + 1)}
        parts = self.entries(inner, place, "a list of conditions")
        if not parts:
            raise self.wrong(place, "must not be empty")
        return {
            kind: [
                self.condition(part, f"{place}[{number}]", depth + 1)
                for number, part in enumerate(parts)
            ]
        }

    def environment_condition(self, value: Any, where: str) -> dict[str, Any]:
        """A condition about the environment: a name, or names with their values."""
        what = "the name of an environment variable"
        if isinstance(value, str):
            return {"env": self.matching(value, where, VARIABLE, what)}
        wanted = self.members(value, where)
        if not wanted:
            raise self.wrong(where, "must not be empty")
        parts = [
            {
                "env": self.matching(name, shown_path(f"{where}.{name}"), VARIABLE, what),
                "equals": self.text(text, shown_path(f"{where}.{name}"), empty=True),
            }
            for name, text in wanted.items()
        ]
        return parts[0] if len(parts) == 1 else {"all": parts}

    def backup_name(self, value: Any, where: str) -> str:
        """The name of a backup that is decided before the condition is."""
        name = self.matching(value, where, STEP_NAME, "a backup's name")
        if self.backups is None:
            raise self.wrong(where, "asks about a backup where none has run yet")
        if name not in self.backups:
            raise self.unknown(where, name, "names no backup before it:", self.backups)
        return name

    # --- Agents

    def agent(self, value: Any, where: str, base: dict[str, Any]) -> dict[str, Any]:
        """An agent's fields, checked, over those of `base`. Its texts are not marked yet."""
        fields = self.fields(value, where, AGENT)
        made = dict(base)
        if "harness" in fields:
            mapping = self.harness(fields["harness"], f"{where}.harness")
            own = (*CALL, *MAPPED)
            made = {key: word for key, word in base.items() if key not in own} | mapping
        made |= self.call(fields, where)
        if "log_name" in fields:
            what = "a plain file name that nothing else in the task's folder has"
            made["log_name"] = self.matching(
                fields["log_name"], f"{where}.log_name", LOG_NAME, what
            )
        for key in (
            "structured_output",
            "commit_leftovers",
            "allow_no_change",
            "rerun_interrupted",
        ):
            if key in fields:
                made[key] = self.truth(fields[key], f"{where}.{key}")
        if "env" in fields:
            made["env"] = made.get("env", {}) | self.variables(
                fields["env"], f"{where}.env", frozenset([MARK])
            )
        made["timeout_seconds"] = self.timeout(
            fields, where, made.get("timeout_seconds", DEFAULT_TIMEOUT)
        )
        return made

    def call(self, fields: dict[str, Any], where: str) -> dict[str, Any]:
        """How an agent is called, as far as an object says it."""
        made: dict[str, Any] = {}
        for key in ("cli", "work_dir_arg", "prompt_arg"):
            if key in fields:
                made[key] = self.string(fields[key], f"{where}.{key}", empty=key != "cli")
        if "args" in fields:
            made["args"] = [
                self.string(word, f"{where}.args[{number}]", empty=True)
                for number, word in enumerate(self.entries(fields["args"], f"{where}.args"))
            ]
        if "prompt_mode" in fields:
            mode = self.one_of(fields["prompt_mode"], f"{where}.prompt_mode", PROMPT_MODES)
            made["prompt_mode"] = mode
        return made

    def marked_agent(
        self, agent: dict[str, Any], where: str, own: dict[str, Any]
    ) -> dict[str, Any]:
        """An agent as the loaded plan has it; `own` are the fields that the task gives itself."""

        def place(key: str, fields: dict[str, Any] = own) -> str:
            ours = key in fields or ("harness" in own and key in CALL)
            return where if ours else "agent"

        def filled(word: str | Mapped, where: str) -> str | dict[str, Any]:
            return word.value if isinstance(word, Mapped) else self.filled(word, where)

        def text(key: str) -> str | dict[str, Any]:
            return filled(agent.get(key, ""), f"{place(key)}.{key}")

        args = list(agent.get("args", ()))
        if agent.get("structured_output", False):
            args += self.known(agent, "output_args", f"{where}.structured_output")
        if "mapping" in agent:
            for key in ("args", "prompt_mode"):
                self.known(agent, key, f"{place('harness')}.harness")
        return {
            "cli": text("cli"),
            "work_dir_arg": text("work_dir_arg"),
            "args": [
                filled(word, f"{place('args')}.args[{number}]") for number, word in enumerate(args)
            ],
            "prompt_mode": agent.get("prompt_mode", "stdin"),
            "prompt_arg": text("prompt_arg"),
            "log_name": agent.get("log_name", "agent.log"),
            "timeout_seconds": agent["timeout_seconds"],
            "env": {
                name: self.filled(word, shown_path(f"{place(name, own.get('env', {}))}.env.{name}"))
                for name, word in agent.get("env", {}).items()
            },
            "commit_leftovers": agent.get("commit_leftovers", False),
            "allow_no_change": agent.get("allow_no_change", False),
            "rerun_interrupted": agent.get("rerun_interrupted", False),
            "exit_codes": agent.get("exit_codes", {}),
            "zero_without_work": agent.get("zero_without_work", False),
            "needs": agent.get("needs", []),
            "hide": agent.get("hide", []),
        }

    def known(self, agent: dict[str, Any], key: str, where: str) -> Any:
        """What an agent's mapping says of its call; it is not made up where nobody verified it."""
        if key not in agent:
            name = agent.get("mapping")
            if name is None:
                raise self.wrong(where, "needs a `harness`, whose mapping says how to ask for it")
            what = f"names the mapping {name!r}, which does not say noninteractive.{key}"
            own = "" if key == "output_args" else f", or write `{key}` into the plan's agent"
            raise self.wrong(where, what, f"find it out with the installed program{own}")
        return agent[key]

    def variables(self, value: Any, where: str, reserved: frozenset[str]) -> dict[str, str]:
        """Names with their values."""
        what = "a name (letters, digits and '_', not beginning with a digit)"
        for name, text in self.members(value, where).items():
            place = shown_path(f"{where}.{name}")
            self.matching(name, place, VARIABLE, what)
            if name in reserved:
                raise self.wrong(place, "has a name that the runner uses itself")
            self.string(text, place, empty=True)
        return value

    def harness(self, value: Any, where: str) -> dict[str, Any]:
        """How a mapping file says that its agent is called without a person."""
        name = self.fixed(value, where)
        if name in self.mappings:
            return self.mappings[name]
        path = os.path.join(self.folder, name)
        try:
            self.digest_file(read_file(path, PLAN_LIMIT, f"the mapping {shown(path)}"))
            harness = read_mapping(path)
        except SkillError as error:
            raise self.wrong(f"{where}:", error.message) from error
        called: dict[str, Any] = harness.mapping.get("noninteractive") or {}
        self.mappings[name] = {
            "mapping": harness.name,
            "cli": Mapped(harness.executable),
            "exit_codes": called.get("exit_codes") or {},
            "zero_without_work": bool(called.get("zero_without_work")),
            "needs": list(harness.needs),
            "hide": list(harness.hide),
            "parallel": harness.parallel,
        }  # fmt: skip
        for key in ("args", "prompt_mode", "prompt_arg", "work_dir_arg", "output_args"):
            found: Any = called.get(key)
            if found is None:
                continue
            if key.endswith("args"):
                words: list[str] = [found] if isinstance(found, str) else found
                place = f"{where}: noninteractive.{key}"
                found = [self.mapped(word, f"{place}[{n}]") for n, word in enumerate(words)]
            elif key != "prompt_mode":
                found = Mapped(found)
            self.mappings[name][key] = found
        return self.mappings[name]

    def mapped(self, word: str, where: str) -> Mapped:
        """A word of a mapping with the mapping's placeholders marked."""
        names = [found[1] for found in templates.PLACEHOLDER.finditer(word)]
        if "session_id" in names:
            raise self.wrong(where, "holds {session_id}, and a run takes up no conversation")
        marks = [f"agent {name}" for name in names if name in RUN_PLACEHOLDERS]
        return Mapped(marked(word, marks))

    # --- Tasks

    def prompt(self, fields: dict[str, Any], where: str) -> str | dict[str, Any]:
        """A task's prompt, from its own field or from a file."""
        if ("prompt" in fields) == ("prompt_file" in fields):
            raise self.wrong(where, "needs exactly one of `prompt` and `prompt_file`")
        if "prompt" in fields:
            place = f"{where}.prompt"
            text = self.string(fields["prompt"], place)
        else:
            place = f"{where}.prompt_file"
            text = self.prompt_file(self.fixed(fields["prompt_file"], place), place)
        if not text.strip():
            raise self.wrong(place, "is an empty prompt")
        return self.filled(text, place)

    def prompt_file(self, name: str, where: str) -> str:
        """The content of a prompt's file."""
        if name not in self.embedded:
            path = os.path.join(self.folder, name)
            what = f"the prompt {shown(path)}"
            try:
                content = read_file(path, PROMPT_LIMIT, what)
            except SkillError as error:
                raise self.wrong(f"{where}:", error.message) from error
            self.digest_file(content)
            try:
                self.embedded[name] = content.decode("utf-8")
            except UnicodeDecodeError as error:
                raise self.wrong(where, f"is not UTF-8: {error}") from error
            if "\0" in self.embedded[name]:
                raise self.wrong(where, "must not hold a NUL")
        return self.embedded[name]

    def digest_file(self, content: bytes) -> None:
        """Make an embedded file count. A plan holds no NUL, so the parts cannot be confused."""
        self.digest.update(b"\0%d\0" % len(content) + content)

    def for_each(self, value: Any, where: str) -> dict[str, Any]:
        """What a task is repeated for."""
        if isinstance(value, list):
            items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
            if not 0 < len(items) <= MOST_ITEMS:
                raise self.wrong(where, f"must hold 1 to {MOST_ITEMS} items")
            for number, item in enumerate(items):
                place = f"{where}[{number}]"
                text = self.matching(item, place, ITEM, "one line that is not empty")
                self.fixed(text, place)
            return {"items": items}
        fields = self.fields(value, where, FOR_EACH)
        if len(fields) != 1:
            raise self.wrong(where, "must be a list or an object with exactly one of file, run")
        if "file" in fields:
            return {"file": self.text(fields["file"], f"{where}.file")}
        run = self.plain_command(fields["run"], f"{where}.run", "for-each")
        return {"run": run}

    def task(self, value: Any, where: str, agent: dict[str, Any]) -> dict[str, Any]:
        """One task; its dependencies are still names."""
        fields = self.fields(value, where, TASK)
        if "name" not in fields:
            raise self.wrong(where, "needs a field `name`")
        each = None
        if "for_each" in fields:
            unknown: dict[str, Any] = {"file": ""}
            each = self.part(unknown, self.for_each, fields["for_each"], f"{where}.for_each")
        outer = self.names
        if each is not None:
            self.names = outer | {"item"}
        name = self.part("name", self.task_name, fields["name"], f"{where}.name")
        branch = None
        if "branch" in fields:
            branch = self.part("", self.branch, fields["branch"], f"{where}.branch")
        nothing: list[Any] = []
        own = self.part(agent, self.task_agent, fields, where, agent)
        prompt = self.part("", self.prompt, fields, where)
        if own.get("prompt_mode") == "argument":
            self.part(None, self.require_argument, prompt, own.get("prompt_arg", ""), where)
        when = None
        if "when" in fields:
            when = self.part(None, self.condition, fields["when"], f"{where}.when")
        base = fields.get("base")
        entry = fields.get("changelog")
        marked = self.marked_agent(own, f"{where}.agent", fields.get("agent", {}))
        made = {
            "name": self.name_text(name, each),
            "prompt": prompt,
            "branch": self.name_text(branch or name, each),
            "base": self.part("", self.revision, base, f"{where}.base") if "base" in fields else "",
            "owns": self.part(nothing, self.owns, fields.get("owns", []), f"{where}.owns"),
            "depends_on": self.part(nothing, self.dependencies, fields, f"{where}.depends_on"),
            "when": when,
            "for_each": each,
            "setup": self.part(nothing, self.commands, fields, "setup", f"{where}."),
            "verify": self.part(nothing, self.commands, fields, "verify", f"{where}."),
            "agent": marked,
            "changelog": self.part("", self.inside, entry, f"{where}.changelog")
            if "changelog" in fields else None,
            "estimate_minutes": self.part(
                None, self.minutes, fields, "estimate_minutes", f"{where}."
            ),
        }  # fmt: skip
        self.names = outer
        return made

    def task_name(self, value: Any, where: str) -> str:
        """A task's name, in which known placeholders may stand."""
        what = "a name (1 to 64 letters, digits, '-' and '_'; placeholders may stand in it)"
        name = self.matching(value, where, TASK_NAME, what)
        for found in templates.PLACEHOLDER.finditer(name):
            if found[1] not in self.names:
                known = sorted(self.names)
                raise self.unknown(where, found[1], "holds no known placeholder:", known)
        return name

    def branch(self, value: Any, where: str) -> str:
        """A task's branch."""
        branch = self.matching(value, where, BRANCH, "a branch name that git accepts")
        if len(branch) > BRANCH_LIMIT:
            raise self.wrong(where, f"is longer than {BRANCH_LIMIT} characters")
        self.note_unknown(branch, where)
        return branch

    def task_agent(
        self, fields: dict[str, Any], where: str, agent: dict[str, Any]
    ) -> dict[str, Any]:
        """The agent of a task, with what its own fields say of it."""
        own = self.agent(fields.get("agent", {}), f"{where}.agent", agent)
        own["timeout_seconds"] = self.timeout(fields, where, own["timeout_seconds"])
        if "allow_no_change" in fields:
            own["allow_no_change"] = self.truth(
                fields["allow_no_change"], f"{where}.allow_no_change"
            )
        if not own.get("parallel", True):
            self.unsafe = own["mapping"]
        return own

    def owns(self, value: Any, where: str) -> list[str | dict[str, Any]]:
        """The patterns of what a task may change, written as git takes them."""
        found: list[str | dict[str, Any]] = []
        for number, text in enumerate(self.entries(value, where)):
            place = f"{where}[{number}]"
            what = "a relative path inside of the repository"
            text = self.part("", self.matching, text, place, OWNED, what)
            if not number and text.startswith("!"):
                self.note(self.wrong(place, "takes back what no pattern before it gives"))
            found.append(self.filled(partition.normal(text), place))
        return found

    def require_argument(self, prompt: str | dict[str, Any], prompt_arg: Any, where: str) -> None:
        """A prompt that reaches the program whole as one argument, as far as it is known."""
        flag = str(prompt_arg.value if isinstance(prompt_arg, Mapped) else prompt_arg)
        joined = len(flag.encode()) if flag.endswith("=") else 0
        if isinstance(prompt, str) and len(prompt.encode()) + joined > ARGUMENT_LIMIT:
            raise self.wrong(
                where,
                f"has a prompt longer than one argument may be ({ARGUMENT_LIMIT} bytes)",
                'use "prompt_mode": "stdin" or "file"',
            )

    def minutes(self, fields: dict[str, Any], key: str, where: str) -> float | None:
        """An estimate, when there is one."""
        if key not in fields:
            return None
        return self.number(fields[key], f"{where}{key}", MOST_MINUTES, zero=True)

    def name_text(self, name: str, each: dict[str, Any] | None) -> str | dict[str, Any]:
        """A task's name or branch; where the task is repeated, it tells the items apart."""
        marks = templates.scan(name, self.names, slugged=("item",))
        if each is not None and "slug item" not in marks:
            name += "-{item}"
            marks.append("slug item")
        return marked(name, marks)

    def dependencies(self, fields: dict[str, Any], where: str) -> list[str]:
        """The names that a task depends on."""
        found: dict[str, None] = {}
        for number, value in enumerate(self.entries(fields.get("depends_on", []), where)):
            place = f"{where}[{number}]"
            name = self.part("", self.matching, value, place, TASK_NAME, "a task's name")
            if name in found and name:
                self.note(self.wrong(place, f"names {name!r} a second time"))
            found[name] = None
        return list(found)

    # --- The whole

    def load(self) -> Loaded:
        """The plan."""
        value = parse_json(self.content, f"the plan {shown(self.path)}")
        fields = self.fields(value, "", TOP)
        for key in ("agent", "tasks"):
            if key not in fields:
                self.note(self.wrong("the whole", f"needs a field `{key}`"))
        none: dict[str, str] = {}
        nothing: list[Any] = []
        given = fields.get("variables", {})
        variables = self.part(none, self.variables, given, "variables", RESERVED)
        self.names = frozenset([*BUILT_IN, *variables])
        agent: dict[str, Any] = {"cli": "", "timeout_seconds": DEFAULT_TIMEOUT}
        if "agent" in fields:
            agent = self.part(agent, self.agent, fields["agent"], "agent", {})
        if "cli" not in agent:
            self.note(self.wrong("agent", "needs a field `cli` or `harness`"))
        book, root = fields.get("changelog_file"), fields.get("worktree_root")
        loaded: dict[str, Any] = {
            "schema": 1,
            "run_name": self.part("", self.run_name, fields),
            "repo": self.part("", self.repo, fields),
            "base": self.part("", self.revision, fields.get("base", "HEAD"), "base"),
            "worktree_root": self.part("", self.text, root, "worktree_root")
            if "worktree_root" in fields else "",
            "max_parallel": self.part(2, self.parallel, fields.get("max_parallel", 2)),
            "one_at_once": False,
            "variables": variables,
            "on_failure": self.part(
                "", self.one_of, fields.get("on_failure", "continue"), "on_failure", FAILURES
            ),
            "checks": self.part(nothing, self.commands, fields, "checks", ""),
            "changelog_file": self.part("", self.inside, book, "changelog_file")
            if "changelog_file" in fields else None,
            "setup_minutes": self.part(None, self.minutes, fields, "setup_minutes", ""),
            "review_minutes": self.part(None, self.minutes, fields, "review_minutes", ""),
            "preflight": self.part(nothing, self.commands, fields, "preflight", ""),
        }  # fmt: skip
        self.backups = []
        loaded |= {
            "backups": self.part(nothing, self.commands, fields, "backups", ""),
            "tasks": self.part(nothing, self.tasks, fields.get("tasks"), agent)
            if "tasks" in fields else [],
            "postflight": self.part(nothing, self.commands, fields, "postflight", ""),
            "rollback": self.part(nothing, self.commands, fields, "rollback", ""),
        }  # fmt: skip
        self.part(None, self.require_one_at_once, fields, loaded)
        edges: list[partition.Edge] = []
        if not self.errors:
            edges = order_tasks(loaded)
        return Loaded(loaded, self.digest.hexdigest(), self.notes, edges)

    def run_name(self, fields: dict[str, Any]) -> str:
        """The run's name; by default the plan file's."""
        if "run_name" in fields:
            what = "a name (1 to 64 letters, digits, '-' and '_')"
            return self.matching(fields["run_name"], "run_name", STEP_NAME, what)
        stem = os.path.splitext(os.path.basename(self.path))[0]
        made = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:64]
        return made if is_name(made) else "plan"

    def repo(self, fields: dict[str, Any]) -> str | dict[str, Any]:
        """Where the repository is; what follows from that cannot stand in it."""
        value = fields.get("repo", ".")
        for mark in templates.scan(self.string(value, "repo"), ("RUN_DIR", "REPO_ROOT")):
            if not mark.startswith("keep "):
                raise self.wrong(
                    "repo", f"cannot hold {{{mark.split()[1]}}}, which follows from it"
                )
        return self.text(value, "repo")

    def parallel(self, value: Any) -> int:
        """How many tasks may run at once."""
        number = self.number(value, "max_parallel", MOST_PARALLEL)
        if number != int(number):
            raise self.wrong("max_parallel", f"must be a whole number, not {number}")
        return int(number)

    def require_one_at_once(self, fields: dict[str, Any], loaded: dict[str, Any]) -> None:
        """Let one task run at a time where an agent's mapping says that two disturb each other."""
        if not self.unsafe:
            return
        if loaded["max_parallel"] > 1 and "max_parallel" in fields:
            raise self.wrong(
                "max_parallel",
                f"must be 1: the mapping {self.unsafe!r} says that two such agents disturb each"
                " other (parallel.safe)",
            )
        loaded |= {"max_parallel": 1, "one_at_once": True}

    def tasks(self, value: Any, agent: dict[str, Any]) -> list[dict[str, Any]]:
        """All tasks, with their dependencies as positions."""
        values = self.entries(value, "tasks")
        if not values:
            raise self.wrong("tasks", "must not be empty")
        lost: dict[str, Any] = {}
        tasks = [
            self.part(lost, self.task, task, f"tasks[{n}]", agent) for n, task in enumerate(values)
        ]
        # What a task is called counts although something else is wrong with it.
        written = [self.written(task, number) for number, task in enumerate(values)]
        self.require_distinct(written, "name")
        numbers = {name: number for number, name in enumerate(written)}
        for number, task in enumerate(tasks):
            for position, name in enumerate(task.get("depends_on", [])):
                if name and name not in numbers:
                    place = f"tasks[{number}].depends_on[{position}]"
                    self.note(self.unknown(place, name, "names no task:", written))
            known = [name for name in task.get("depends_on", []) if name in numbers]
            task["depends_on"] = [numbers[name] for name in known]
        cycle = cycle_in([task["depends_on"] for task in tasks])
        if cycle:
            named = " -> ".join(written[number] for number in cycle)
            self.note(self.wrong(f"tasks[{cycle[0]}].depends_on", f"makes a cycle: {named}"))
        if not self.errors:
            self.require_names(tasks)
        return tasks

    def written(self, task: Any, number: int) -> str:
        """A task's name as the plan states it; one that nothing else has where there is none."""
        name = task.get("name") if isinstance(task, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return name if isinstance(name, str) else f"tasks[{number}]"

    def require_distinct(self, words: list[str], field: str) -> None:
        """Names that differ in more than case."""
        taken: dict[str, int] = {}
        for number, word in enumerate(words):
            other = taken.setdefault(word.lower(), number)
            if other != number:
                what = f"is {shown(word)}, as tasks[{other}].{field} is"
                self.note(self.wrong(f"tasks[{number}].{field}", what))

    def require_names(self, tasks: list[dict[str, Any]]) -> None:
        """The names and branches of all tasks, as far as they are known, are good and distinct."""
        for field in ("name", "branch"):
            taken: dict[str, str] = {}
            for number, task in enumerate(tasks):
                for word, where in expansions(task, field, f"tasks[{number}]"):
                    if field == "name":
                        fits = is_name(word)
                    else:
                        fits = re.match(BRANCH, word) is not None and len(word) <= BRANCH_LIMIT
                    if not fits:
                        what = f"makes the {field} {shown(word)}, which is not valid"
                        self.note(self.wrong(where, what))
                    other = taken.setdefault(word.lower(), where)
                    if other != where:
                        what = f"makes the {field} {shown(word)}, as {other} does"
                        self.note(self.wrong(where, what))
            if field == "branch":
                self.require_no_folder(taken)

    def require_no_folder(self, taken: dict[str, str]) -> None:
        """Git cannot have a branch `a` beside a branch `a/b`."""
        for branch, where in taken.items():
            at = branch.find("/")
            while at > 0:
                if branch[:at] in taken:
                    other = taken[branch[:at]]
                    what = f"makes the branch {shown(branch)}; git cannot have it beside"
                    self.note(self.wrong(where, f"{what} {shown(branch[:at])} ({other})"))
                at = branch.find("/", at + 1)


# --- Who must wait for whom ------------------------------------------------------------------


def order_tasks(loaded: dict[str, Any]) -> list[partition.Edge]:
    """Let tasks that own a path both run one after the other: gives each its `order`.

    That is a list of the tasks which must have ended before, each with the instances that it means
    (see `partition.Edge`). `pinned` of the plan are the variables with other values of which it
    might be another order.
    """
    tasks: list[dict[str, Any]] = loaded["tasks"]
    variables: dict[str, str] = loaded["variables"]
    edges = partition.edges_of([claims_of(task, variables) for task in tasks])
    for task in tasks:
        task["order"] = []
    for edge in edges:
        tasks[edge.after]["order"].append([edge.before, edge.kind])
    marks = {mark for task in tasks for text in task["owns"] for mark in marks_of(text)}
    named = [name for name in variables if f"raw {name}" in marks]
    loaded["pinned"] = []
    if named:
        others = {name: text for name, text in variables.items() if name not in named}
        free = partition.edges_of([claims_of(task, others) for task in tasks])
        if [edge[:3] for edge in free] != [edge[:3] for edge in edges]:
            loaded["pinned"] = named
    return edges


def agents_of(path: str) -> list[str | None]:
    """For each task of a good plan the mapping file that it names for its agent, if it does."""
    value = parse_json(read_file(path, PLAN_LIMIT, "the plan"), "the plan")
    found: list[str | None] = []
    for task in value["tasks"]:
        agent = {**value["agent"], **task.get("agent", {})}
        name = agent.get("harness")
        if "cli" in task.get("agent", {}) and "harness" not in task["agent"]:
            name = None
        found.append(os.path.join(os.path.dirname(path), name) if name else None)
    return found


def marks_of(text: str | dict[str, Any]) -> list[str]:
    """The marks of a text."""
    return [] if isinstance(text, str) else text["marks"]


def claims_of(task: dict[str, Any], values: dict[str, str]) -> partition.Claims:
    """What a task owns, as far as it is known; what no value is given for may be anything."""
    source = task["for_each"]
    items: list[str] | None = source.get("items") if source is not None else None
    each = None
    if items is not None and len({*items}) == len(items):
        each = {item: owned_by(task, {**values, "item": item}) for item in items}
    general = owned_by(task, {**values, "item": partition.ITEM})
    return partition.Claims(general, each, source is not None, task["depends_on"])


def owned_by(task: dict[str, Any], values: dict[str, str]) -> list[str]:
    """The patterns of a task with these values; FREE stands for those that are not among them."""
    return [filled_pattern(pattern, values) for pattern in task["owns"]]


def filled_pattern(pattern: str | dict[str, Any], values: dict[str, str]) -> str:
    """A pattern with its values. A value never makes it one that takes back."""
    if isinstance(pattern, str):
        return pattern
    rest: str = pattern["text"]
    sign = "!" if rest.startswith("!") else ""
    rest = rest.removeprefix("!")
    made = ""
    for mark in pattern["marks"]:
        how, _, name = mark.partition(" ")
        before, _, rest = rest.partition("{" + name + "}")
        made += before + ("{" + name + "}" if how == "keep" else values.get(name, partition.FREE))
    made += rest
    return sign + partition.normal("\\" + made if made.startswith("!") else made)


def expansions(task: dict[str, Any], field: str, where: str) -> Iterable[tuple[str, str]]:
    """The names or branches that a task will have, each with its JSON path; none while unknown."""
    name = task[field]
    each: dict[str, Any] = task["for_each"] or {}
    items: list[str] | None = each.get("items")
    if isinstance(name, str):
        yield name, f"{where}.{field}"
    elif items is not None and set(name["marks"]) <= {"slug item", "keep item"}:
        for position, item in enumerate(items):
            made = slug(item, position + 1)
            yield replaced(name["text"], made), f"{where}.for_each[{position}]"


def replaced(text: str, made: str) -> str:
    """A name with an item's slug in it."""
    return re.sub(r"(?<!\$)\{item\}", lambda _: made, text)


def marked(text: str, marks: list[str]) -> str | dict[str, Any]:
    """A text of the loaded plan: with its marks where one of them is replaced."""
    if all(mark.startswith("keep ") for mark in marks):
        return text
    return {"text": text, "marks": marks}


def shown_path(where: str) -> str:
    """A JSON path for a message, its odd or long words made harmless."""
    if re.fullmatch(r"[A-Za-z0-9_.\[\]-]{1,200}", where):
        return where
    head, _, last = where.rpartition(".")
    return f"{head}[{shown(last)}]"
