"""Write the pages of references/ that are made from the code: `python tests/pages.py`.

`exit-codes.md` is made from the table in errors.py, `commands.md` from the parsers, and the list of
rooms in `architecture.md` from the first lines of the modules.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
REFERENCES = ROOT / "references"
ROOMS = ROOT / "scripts" / "fanout"
ENTRY = re.compile(r"from fanout\.cli\.(\w+) import main")
ROOMS_BEGIN = "<!-- rooms: made by tests/pages.py -->\n"
ROOMS_END = "<!-- end of the rooms -->\n"
# Told once for each command, not for each verb.
COMMON = {"repo", "json", "tmux_socket", "help", "verb"}

EXIT_CODES = """# Exit codes

All commands use one table; `--help` prints it too. It is made from `scripts/fanout/errors.py`.

| code | meaning |
|---|---|
{rows}

When several apply, the first of these is given: {order}.

With `--json`, every code but 0 comes with `"ok": false` and an `error` of `code` (a stable
kebab-case word), `message` and `hint`; `data` stands beside it as far as it is known.
"""

COMMANDS = """# Commands

Every command, verb and option, as `--help` tells them; made from the parsers in
`scripts/fanout/cli/`. Run them as `python3 "$SKILL_DIR/scripts/NAME.py" ...`. What exit codes
mean stands in `exit-codes.md` beside this file.
"""


class FoundError(Exception):
    """Carries the parser that a command has made."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


def entries() -> list[str]:
    """The commands, by the names of their scripts; in the order of the modules behind them."""
    return sorted((path.stem for path in (ROOT / "scripts").glob("*.py")), key=module_name)


def module_name(entry: str) -> str:
    """The module behind a command; the script of a converted package has another name."""
    (name,) = ENTRY.findall((ROOT / "scripts" / f"{entry}.py").read_text(encoding="utf-8"))
    return name


def module_of(entry: str) -> Any:
    """The module behind a command, loaded."""
    return importlib.import_module(f"fanout.cli.{module_name(entry)}")


def reader_of(entry: str) -> Callable[[list[str]], argparse.Namespace]:
    """What reads the words of a command, as the command does. Raises SkillError `usage`."""
    module = module_of(entry)
    if not hasattr(module, "FRAME"):
        return module.parse
    texts: frozenset[str] = getattr(module, "TEXTS", frozenset())
    others: frozenset[str] = module.OTHERS
    return lambda argv: module.FRAME.parse(module.glue_values(argv, texts, others))


def parser_of(entry: str, *argv: str) -> argparse.ArgumentParser:
    """The parser with which a command reads such words."""
    from fanout.cli.common import Parser

    def show(self: argparse.ArgumentParser, *_: object, **__: object) -> None:
        raise FoundError(self)

    module = module_of(entry)
    with mock.patch.object(Parser, "parse_args", show):
        try:
            (module.FRAME.parse if argv else module.parse)([*argv])
        except FoundError as found:
            return found.parser
    raise LookupError(f"{entry} {argv}: no parser was made")


def words_of(action: argparse.Action) -> str:
    """An option or argument as it is written: `--base REF`, `[NAME ...]`."""
    value = action.metavar or (
        "|".join(map(str, action.choices)) if action.choices else action.dest.upper()
    )
    if not action.option_strings:
        return {"*": f"[{value}...]", "+": f"{value}...", "?": f"[{value}]"}.get(
            str(action.nargs), str(value)
        )
    name = action.option_strings[-1]
    if action.nargs == 0:
        return name
    return f"{name} {value}"


def is_repeated(action: argparse.Action) -> bool:
    """Whether an option may be given more than once."""
    return type(action).__name__ == "_AppendAction"


def row(action: argparse.Action) -> str:
    """The line that explains an option."""
    told = (action.help or "").replace("|", "\\|")
    if is_repeated(action) and "repeatable" not in told:
        told += "; may be repeated"
    return f"- `{words_of(action)}`: {told}" if told else f"- `{words_of(action)}`"


def own_actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The options that the command has for itself."""
    return [action for action in parser._actions if action.dest not in COMMON]


def section(title: str, parser: argparse.ArgumentParser, example: str) -> list[str]:
    """What is told of one verb, or of a command without verbs."""
    lines = [title, "", parser.description or "", ""]
    rows = [row(action) for action in own_actions(parser)]
    if rows:
        lines += [*rows, ""]
    return [*lines, "```bash", example, "```", ""]


def command_part(entry: str) -> list[str]:
    """What is told of one command."""
    module = module_of(entry)
    frame = getattr(module, "FRAME", None)
    if frame is None:
        parser = parser_of(entry)
        examples = module.EXAMPLES.partition("\n")[2].rstrip()
        example = "\n".join(line.removeprefix("  ") for line in examples.splitlines())
        return section(f"## {module.PROG}", parser, example)
    lines = [f"## {frame.prog}", "", frame.description, "", "Options of every verb:", ""]
    first = parser_of(entry, next(iter(frame.verbs)))
    common = [a for a in first._actions if a.dest in COMMON and a.dest != "help"]
    lines += [*(row(action) for action in common), ""]
    for verb, (_, example) in frame.verbs.items():
        parser = parser_of(entry, verb)
        lines += section(f"### {frame.prog} {verb}", parser, f"{frame.prog} {example}")
    return lines


def commands() -> str:
    """The page of commands."""
    lines = [COMMANDS]
    for entry in entries():
        lines += command_part(entry)
    return "\n".join(lines).rstrip() + "\n"


def exit_codes() -> str:
    """The page of exit codes."""
    from fanout.errors import MEANINGS, PRECEDENCE

    rows = "\n".join(f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items())
    return EXIT_CODES.format(rows=rows, order=", ".join(str(code.value) for code in PRECEDENCE))


def architecture() -> str:
    """The page of the rooms: as it is, with the list of rooms that there are."""
    page = (REFERENCES / "architecture.md").read_text(encoding="utf-8")
    before, mark, rest = page.partition(ROOMS_BEGIN)
    _, end, after = rest.partition(ROOMS_END)
    return "".join([before, mark, "\n", *map(room_row, room_files()), "\n", end, after])


def room_files() -> list[Path]:
    """The modules behind the commands."""
    found = [*ROOMS.glob("*.py"), *ROOMS.glob("runtimes/loop.py"), *ROOMS.glob("cli/*.py")]
    return sorted(found, key=lambda path: path.relative_to(ROOMS).parts)


def room_row(path: Path) -> str:
    """The line about one room: what the first line of its docstring says."""
    told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    name = path.relative_to(ROOMS).with_suffix("").as_posix()
    return f"- `{name}`: {told.partition(chr(10))[0]}\n"


PAGES = {"commands.md": commands, "exit-codes.md": exit_codes, "architecture.md": architecture}

if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(ROOT / "scripts"))
    for name, page in PAGES.items():
        (REFERENCES / name).write_text(page(), encoding="utf-8")
