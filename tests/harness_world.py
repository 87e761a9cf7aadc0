"""A clean place for one real agent CLI: its environment, homes, a repository, the model it asks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from fanout.harness import Harness, read_mapping, value_at
from fanout.process import find_program
from model_server import Asked, ModelServer
from world import ROOT, SCRIPTS, Ran, World, kill

RENDERER = SCRIPTS / "render_worker_loop.py"
INTEGRATE = SCRIPTS / "integrate_workers.py"
MAPPINGS = ROOT / "examples"
KEY = "stand-in-key"
# What a prompt may hold that something between us and the model could spoil.
AWKWARD = (
    "\tA tab, \"double\" and 'single' quotes, `backticks`, $HOME, a backslash: \\",
    "",
    "  \u00e4\u00f6\u00fc \u00df \u2192 \u65e5\u672c; & <tag> {braces} %s $(x) ${y} 100%",
)


class Screen(NamedTuple):
    """What a pane shows now."""

    text: str
    title: str


def file_text(content: Any) -> str:
    """The text of a settings file: a list in the pins holds the lines of one that is no JSON."""
    lines: list[Any] = content if isinstance(content, list) else []  # pyright: ignore[reportUnknownVariableType]
    return "\n".join([*lines, ""]) if lines else json.dumps(content, indent=1)


def prompt(token: str, *steps: str) -> str:
    """A prompt of several lines that asks for these steps."""
    rows = [f"Task {token}: a prompt of several lines.", *AWKWARD, *(f"MODEL: {s}" for s in steps)]
    return "\n".join([*rows, "The last line ends with a semicolon;"])


def told(ran: Ran) -> str:
    """What a command said, in few words."""
    with contextlib.suppress(ValueError, KeyError):
        error = ran.error
        hint: str = error["hint"] or ""
        return f"{error['code']}: {error['message'][:300]} ({hint[:100]} ... {hint[-900:]})"
    return f"{ran.out[-300:]} {ran.err[-300:]}"


def parent(pid: int) -> int:
    """The parent of a process; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    return 0


def report(word: str) -> str:
    """The shell command with which an agent reports."""
    return f'eval "$AGENT_WORKER_EVENT {word}"'


class HarnessWorld(World):
    """A world in which one installed CLI works. Its environment holds nothing of the caller's."""

    def __init__(self, name: str, pin: dict[str, Any], folders: list[Path], model: ModelServer):
        super().__init__()
        self.name = name
        self.pin = pin
        self.model = model
        self.mapping_file = MAPPINGS / f"harness-{name}.json"
        self.used_file = self.answering()
        self.harness: Harness = read_mapping(str(self.mapping_file))
        self.homes = 0
        # How long a prompt takes here from the start of an agent to the model; measured later.
        self.start_seconds = 10.0
        self.link_programs(folders)
        # Some CLIs hide the user's configuration from the commands that their tools run.
        self.git("config", "user.name", "Test")
        self.git("config", "user.email", "test@example.invalid")
        self.env = self.environment()

    def answering(self) -> Path:
        """The mapping as a user writes it who agrees to what the CLI asks at each start."""
        if "answers" not in self.pin:
            return self.mapping_file
        mapping = json.loads(self.mapping_file.read_bytes())
        for dialog in mapping["interactive"]["dialogs"]:
            keys = self.pin["answers"].get(dialog["match"])
            if keys is not None:
                del dialog["ask"]
                dialog["keys"] = keys
        made = self.root / self.mapping_file.name
        made.write_text(json.dumps(mapping))
        return made

    def link_programs(self, folders: list[Path]) -> None:
        """Put on PATH what is needed and stands nowhere usual: the CLI and its runtime first."""
        links = self.root / "bin"
        for folder in folders:
            for program in (self.harness.executable, "node"):
                if (folder / program).exists() and not (links / program).is_symlink():
                    (links / program).symlink_to((folder / program).resolve())
        for program in ("git", "tmux", "bash", "node"):
            found = find_program(program)
            usual = any(os.path.exists(f"{place}/{program}") for place in ("/usr/bin", "/bin"))
            if found and not usual and not (links / program).is_symlink():
                (links / program).symlink_to(found)

    def environment(self, key: str = KEY, kind: str = "") -> dict[str, str]:
        """A new home and the environment that leads there.

        `kind` names a part of the pin that is laid over it (`start`, `asking`).
        """
        over: dict[str, Any] = self.laid_over(kind)
        files: dict[str, Any] = {**self.pin["files"], **over.get("files", {})}
        given: dict[str, str | None] = {**self.pin["env"], **over.get("env", {})}
        self.homes += 1
        home = self.root / f"home-{self.homes}"
        home.mkdir()
        for path, content in files.items():
            target = home / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(self.filled(file_text(content), key))
        (home / ".gitconfig").write_text("[user]\n\tname = Test\n\temail = test@example.invalid\n")
        return {
            "PATH": f"{self.root / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "TMUX_TMPDIR": str(self.root / "t"),
            "WORLD": str(self.root),
            **{name: self.filled(v, key) for name, v in given.items() if v is not None},
        }

    def laid_over(self, kind: str) -> dict[str, Any]:
        """A part of the pin; one may be the name of another."""
        found: Any = self.pin.get(kind, {})
        return self.laid_over(found) if isinstance(found, str) else found

    def filled(self, text: str, key: str) -> str:
        """A text of the pins with its values."""
        for word, value in (
            ("@ENDPOINT@", self.model.endpoint), ("@KEY@", key), ("@REPO@", str(self.repo)),
        ):  # fmt: skip
            text = text.replace(word, value)
        return text

    def word(self, path: str) -> Any:
        """A value of the mapping, None where it is not known."""
        return value_at(self.harness.mapping, path)

    # --- commands ---

    def command(
        self,
        *words: str,
        script: Path = SCRIPTS / "agent_workers.py",
        env: dict[str, str] | None = None,
        seconds: float = 300.0,
    ) -> Ran:
        """Run one of our commands in the repository as a process of its own."""
        return self.start_and_wait(
            [sys.executable, str(script), *words], env or self.env, self.repo, seconds
        )

    def start_and_wait(
        self, words: list[str], env: dict[str, str], cwd: Path, seconds: float, stdin: bytes = b""
    ) -> Ran:
        """Run a program to its end."""
        done = subprocess.run(
            words, cwd=cwd, env=env, input=stdin, capture_output=True, timeout=seconds, check=False
        )
        out, err = (text.decode("utf-8", "surrogateescape") for text in (done.stdout, done.stderr))
        assert "Traceback (most recent call last)" not in err, err
        return Ran(done.returncode, out, err)

    def answer(self, *words: str, **options: Any) -> dict[str, Any]:
        """The data of a command that must succeed."""
        ran = self.command(*words, "--json", **options)
        assert ran.code == 0, f"{words[:2]} ended with {ran.code}: {told(ran)}"
        return ran.data

    def spawn_real(
        self, name: str, text: str, *more: str, env: dict[str, str], mapping: Path | None = None
    ) -> Ran:
        """Spawn a worker of the real CLI."""
        path = self.root / f"{name}.prompt"
        path.write_text(text)
        return self.command(
            "spawn", name, "--prompt-file", str(path), "--harness", str(mapping or self.used_file),
            "--ready-timeout", "180", "--json", *more, env=env,
        )  # fmt: skip

    def given_prompt(self, name: str, number: int = 1) -> str:
        """A prompt as a worker's record keeps it, the working agreement included."""
        return (self.record(name) / "prompts" / f"{number:04d}.md").read_text()

    def screen(self, name: str) -> Screen:
        """What a worker's pane shows now."""
        pane = json.loads((self.record(name) / "worker.json").read_text())["pane"]
        text = self.tmux("capture-pane", "-p", "-t", pane)
        return Screen(text, self.tmux("display-message", "-p", "-t", pane, "#{pane_title}"))

    # --- the model's side ---

    def asked_with(self, token: str) -> list[Asked]:
        """The requests of conversations that hold a word, with tools: not for titles and such."""
        return [
            asked for asked in self.model.asked()
            if asked.tools and any(token in text for text in asked.said())
        ]  # fmt: skip

    def arrived(self, token: str, text: str) -> bool:
        """Whether a prompt reached the model byte for byte; only its ends may lack blanks.

        A CLI that is known to turn a pasted tab into something else says so in its pin.
        """
        text = text.replace("\t", self.pin.get("pasted_tab", "\t"))
        return any(
            text.strip() in said for asked in self.asked_with(token) for said in asked.said()
        )

    # --- processes ---

    def living(self) -> dict[int, str]:
        """What lives of this world beside its tmux servers."""
        servers = {
            int(pid)
            for socket in self.sockets()
            if (pid := self.tmux("display-message", "-p", "#{pid}", socket=socket)).isdecimal()
        }
        found = {pid: line for pid, line in self.processes().items() if pid not in servers}
        # tmux keeps the log of a pane by a `cat` of its own, until the pane is closed.
        found = {p: x for p, x in found.items() if x.strip() != "cat" or parent(p) not in servers}
        for name in os.listdir("/proc"):
            if name.isdecimal() and int(name) not in found | dict.fromkeys(servers, ""):
                with contextlib.suppress(OSError):
                    if parent(int(name)) in servers:
                        continue
                    folder = os.readlink(f"/proc/{name}/cwd")
                    if folder.startswith(f"{self.root}/repo"):
                        line = Path("/proc", name, "cmdline").read_text()
                        found[int(name)] = line.replace("\0", " ")
        return found

    def all_gone(self, seconds: float = 5.0) -> None:
        """Demand that nothing lives any more."""
        deadline = time.monotonic() + seconds
        while (left := self.living()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left, f"still there: { {pid: line[:100] for pid, line in left.items()} }"

    def close(self) -> None:
        """End all that is left and remove everything."""
        with contextlib.suppress(Exception):
            for pid in self.living():
                kill(pid)
        super().close()
        shutil.rmtree(self.root, ignore_errors=True)
