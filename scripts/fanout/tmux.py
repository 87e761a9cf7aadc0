"""One tmux server of our own: sessions, panes by id, screens, and pasting."""

from __future__ import annotations

import contextlib
import os
import re
import time

from fanout.errors import SkillError, missing, usage
from fanout.fields import NamedTuple
from fanout.process import (
    Completed,
    Running,
    clean_environment,
    end,
    find_program,
    finish,
    start,
)
from fanout.records import write_file

CONFIG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tmux.conf")
ANSWER_LIMIT = 30.0
# A client sends one command sequence in one message of at most 16 KiB; a longer one is read by
# the server from a file, as one line: that too ends at the first command that fails.
MESSAGE_LIMIT = 12_000
# Two options act through their global value alone. A server that is not ours gets it back; what
# was kept stays (-o) when an earlier sequence ended before that. A list is read item by item.
KEPT = "@agent_workers_"
GLOBALS = {
    "update-environment": " ".join(f"#{{update-environment[{n}]}}" for n in range(64)),
    "history-limit": "#{history-limit}",
}
# So much of it may go for the names of variables; a session takes about 1200 bytes.
NAMES_LIMIT = 9_000

# Fields that cannot hold a tab come first; the title is free text and comes last.
PANE_FIELDS = (
    "#{pane_id}",
    "#{@agent_worker}",
    "#{session_name}",
    "#{pane_pid}",
    "#{pane_dead}",
    "#{pane_dead_status}",
    "#{pane_in_mode}",
    "#{pid}",
    "#{cursor_y}",
    "#{history_size}",
    "#{pane_height}",
    "#{pane_title}",
)
PANE_FORMAT = "\t".join(PANE_FIELDS)
# No line of the list looks like this.
END_OF_LIST = "=="


class Pane(NamedTuple):
    """One pane. `mark` is the launch id that spawn put on it; `dead_status` is None while alive."""

    pane: str
    mark: str
    session: str
    pid: int
    dead: bool
    dead_status: int | None
    in_mode: bool
    server_pid: int
    cursor_y: int
    history: int
    height: int
    title: str


class Client(NamedTuple):
    """One client that runs; `script` is the file that holds its commands, if any."""

    argv: list[str]
    process: Running
    script: str

    def close(self) -> None:
        """End it if it still runs, and remove its file."""
        end(self.process)
        if self.script:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.script)


class Server(NamedTuple):
    """A tmux server, addressed by socket name or by the socket's path."""

    address: tuple[str, str]

    def run(
        self, *commands: list[str], stdin: bytes | None = None, env: dict[str, str] | None = None
    ) -> Completed:
        """Run commands as one sequence in one client; the exit code is an answer."""
        return self.finish(self.start(*commands, reads=stdin is not None, env=env), stdin or b"")

    def run_anew(self, *commands: list[str], env: dict[str, str] | None = None) -> Completed:
        """Run commands, and once more where a server that was just ending took them with it.

        A server ends with its last session, and a client that comes at that moment gets no answer.
        What has printed something is not run again.
        """
        done = self.run(*commands, env=env)
        for _ in range(3):
            if done.text or not is_ending(done.error_text):
                break
            time.sleep(0.05)
            done = self.run(*commands, env=env)
        return done

    def start(
        self, *commands: list[str], reads: bool = False, env: dict[str, str] | None = None
    ) -> Client:
        """Start a client for a sequence of commands; `finish` or `close` is to follow."""
        # -u: without a UTF-8 locale tmux would print `_` for each tab and each wide character.
        argv = ["tmux", "-u", *self.address, "-f", CONFIG]
        size = len(os.fsencode("\0;\0".join(map("\0".join, commands))))
        script = ""
        if reads or size <= MESSAGE_LIMIT:
            for number, command in enumerate(commands):
                argv += [";"] * (number > 0) + [argument(word) for word in command]
        else:
            script = script_of(commands)
            # A client looks for what starts a server only in its own words.
            starts = any(command[0] == "new-session" for command in commands)
            argv += ["start-server", ";"] if starts else []
            argv += ["source-file", pattern_quoted(script)]
        try:
            return Client(argv, start(argv, env=env, reads=reads), script)
        except SkillError:
            if script:
                os.unlink(script)
            raise

    def finish(self, client: Client, stdin: bytes = b"") -> Completed:
        """What a client answers, bounded."""
        try:
            return finish(client.process, client.argv, stdin, ANSWER_LIMIT)
        except SkillError as error:
            if error.code == "process-timed-out":
                message = f"tmux did not answer for {ANSWER_LIMIT:.0f} s"
                raise SkillError("tmux-stuck", message) from error
            raise
        finally:
            client.close()

    def require(
        self, *commands: list[str], stdin: bytes | None = None, env: dict[str, str] | None = None
    ) -> str:
        """Run commands and demand success; returns what they printed."""
        done = self.run(*commands, stdin=stdin, env=env)
        if done.code != 0:
            raise SkillError("tmux-failed", f"tmux {commands[0][0]} failed: {done.error_text}")
        return done.text

    def panes(self) -> dict[str, Pane]:
        """All panes of the server by id; empty when no server runs.

        Raises SkillError `tmux-failed` when the server does not answer properly: unknown is not
        dead.
        """
        done = self.run_anew(["list-panes", "-a", "-F", PANE_FORMAT])
        if done.code != 0:
            if no_server(done.error_text):
                return {}
            raise SkillError("tmux-failed", f"tmux list-panes failed: {done.error_text}")
        return {pane.pane: pane for pane in map(parse_pane, lines_of(done.text))}

    def look(
        self, wanted: list[str], rows: int | None = None
    ) -> tuple[dict[str, Pane], dict[str, str]]:
        """All panes, and the text of the wanted ones that exist, in one or two calls.

        The text is what is visible. With `rows`, for one pane alone, it begins so many rows up in
        the history, and wrapped lines are joined.
        """
        return self.finish_look(self.start_look(wanted, rows), wanted, rows)

    def start_look(self, wanted: list[str], rows: int | None = None) -> Client:
        """Start the client of a look, for work beside it."""
        return self.start(*looking(wanted, rows))

    def finish_look(
        self, client: Client, wanted: list[str], rows: int | None = None
    ) -> tuple[dict[str, Pane], dict[str, str]]:
        """What a look has found."""
        wanted = unique(wanted)
        done = self.finish(client)
        panes: dict[str, Pane] = {}
        if done.code != 0:
            panes = self.panes()
            wanted = [pane for pane in wanted if pane in panes]
            if not wanted:
                return panes, {}
            done = self.run(*looking(wanted, rows))
        head, _, text = done.text.partition(f"\n{END_OF_LIST}\n")
        found = {pane.pane: pane for pane in map(parse_pane, lines_of(head))}
        if rows is not None and done.code == 0:
            return found, dict.fromkeys(wanted, text)
        texts = cut(text, [found[pane] for pane in wanted if pane in found])
        # A pane that went away meanwhile ends the sequence there.
        if done.code == 0 and "".join(texts.values()) != text:
            raise SkillError("tmux-failed", "tmux showed other rows than its panes have")
        return found or panes, texts

    def paste(self, pane: str, text: bytes) -> None:
        """Paste text into a pane, in bracketed paste where its program asked for that.

        The text goes through stdin, so neither its length nor its content meets tmux's parser;
        the buffer's name is unique, so that two senders do not meet.
        """
        buffer = f"agent-workers-{os.getpid()}-{os.urandom(6).hex()}"
        try:
            self.require(
                ["if-shell", "-F", "-t", pane, "#{pane_in_mode}", f"send-keys -t {pane} -X cancel"],
                ["load-buffer", "-b", buffer, "-"],
                ["paste-buffer", "-p", "-d", "-b", buffer, "-t", pane],
                stdin=text,
            )
        except SkillError:
            # The buffer may have been filled: a prompt must not lie about in the server.
            self.run(["delete-buffer", "-b", buffer])
            raise

    def press(self, pane: str, *keys: str) -> None:
        """Press keys by tmux's names (`Enter`, `C-c`), after leaving copy mode."""
        self.require(
            ["if-shell", "-F", "-t", pane, "#{pane_in_mode}", f"send-keys -t {pane} -X cancel"],
            ["send-keys", "-t", pane, "--", *keys],
        )

    def press_all(self, presses: list[tuple[str, str, tuple[str, ...]]]) -> None:
        """Press keys in several panes, each given with the mark it must carry; others are passed.

        The keys stand inside of a condition: a pane that has gone away does not end the sequence.
        """
        commands: list[list[str]] = []
        for pane, mark, keys in presses:
            mine = f"#{{==:#{{@agent_worker}},{mark}}}"
            typed = " ".join(map(conf_quoted, ["send-keys", "-t", pane, "--", *keys]))
            cancel = f"send-keys -t {pane} -X cancel"
            held = f"#{{&&:{mine},#{{pane_in_mode}}}}"
            commands.append(["if-shell", "-F", "-t", pane, held, cancel])
            commands.append(["if-shell", "-F", "-t", pane, mine, typed])
        self.run(*commands)

    def capture(self, pane: str, lines: int) -> str:
        """The last lines of a pane with its history, wrapped lines joined."""
        return self.require(["capture-pane", "-p", "-J", "-t", pane, "-S", str(-lines)])

    def end_sessions(self, sessions: list[str]) -> None:
        """End sessions, each matched exactly; one that is gone already is fine."""
        wanted = sessions
        for _ in range(3):
            present = {pane.session for pane in self.panes().values()}
            wanted = [session for session in wanted if session in present]
            if not wanted:
                return
            kills = [["kill-session", "-t", f"={session}"] for session in wanted]
            done = self.run(*kills, ["list-sessions", "-F", "#{session_name}"])
            # A session that ends by itself meanwhile ends the sequence: look again.
            if done.code == 0 and not set(wanted).intersection(lines_of(done.text)):
                return
        raise SkillError("tmux-failed", f"tmux keeps the sessions {', '.join(wanted)}")


class Launch(NamedTuple):
    """One session to start: `argv` runs as the pane's own process, without any shell."""

    session: str
    mark: str
    argv: list[str]
    log: str


def launch_commands(launches: list[Launch], variables: list[str]) -> list[list[str]]:
    """The one sequence that starts sessions; it prints a line for each: pane, pid, socket.

    `update-environment` makes tmux take exactly these variables from the client that asks, so
    values travel over the socket alone, never in an argument list or a file.
    """
    return [
        *(["set-option", "-goqF", KEPT + name, value] for name, value in GLOBALS.items()),
        take_variables(" ".join(variables), os.path.dirname(launches[0].log)),
        ["set-option", "-g", "history-limit", "50000"],
        *(command for launch in launches for command in session_commands(launch)),
        *(["set-option", "-gF", name, f"#{{{KEPT}{name}}}"] for name in GLOBALS),
        *(["set-option", "-gu", KEPT + name] for name in GLOBALS),
    ]


def take_variables(names: str, folder: str) -> list[str]:
    """The command that makes tmux take variables; through a file where a message is too short."""
    if len(names) <= NAMES_LIMIT:
        return ["set-option", "-g", "update-environment", names]
    path = os.path.join(folder, "variables.conf")
    write_file(path, f'set-option -g update-environment "{names}"\n'.encode())
    # source-file takes its argument as a pattern.
    return ["source-file", re.sub(r"([*?\[\\])", r"\\\1", path)]


def session_commands(launch: Launch) -> list[list[str]]:
    """The commands that start one session."""
    # Only a target that ends in a colon is taken as a session by every command.
    target = f"={launch.session}:"
    return [
        [
            *("new-session", "-d", "-x", "200", "-y", "50", "-s", launch.session),
            *("-n", "agent", "-P", "-F", "#{pane_id}\t#{pane_pid}\t#{socket_path}"),
            *("--", *launch.argv),
        ],
        ["set-option", "-p", "-t", target, "@agent_worker", launch.mark],
        ["set-option", "-w", "-t", target, "remain-on-exit", "on"],
        # Only what the agent printed belongs on its last screen. (tmux 3.3 and newer.)
        ["set-option", "-wq", "-t", target, "remain-on-exit-format", ""],
        ["set-option", "-t", target, "detach-on-destroy", "on"],
        ["pipe-pane", "-t", target, log_command(launch.log)],
    ]


def log_command(path: str) -> str:
    """The shell command that keeps a pane's output in a file of at most 64 MiB.

    tmux expands `#` formats and strftime's `%` in it before the shell sees it.
    """
    quoted = "'" + path.replace("'", "'\\''") + "'"
    quoted = quoted.replace("#", "##").replace("%", "%%")
    return f"umask 077; ulimit -c 0; ulimit -f 131072; exec cat >>{quoted}"


def variable_names(env: dict[str, str]) -> list[str]:
    """The variables of an environment that a shell can hold, sorted."""
    return sorted(filter(is_variable, env))


def is_variable(name: str) -> bool:
    """Whether a shell can hold a variable of this name: `[A-Za-z_][A-Za-z0-9_]*`."""
    return name.isascii() and name.isidentifier()


def conf_quoted(word: str) -> str:
    """A word as tmux takes it from a configuration file."""
    if word.isalnum() and word.isascii():
        return word
    return "'" + word.replace("'", "'\\''") + "'"


def pattern_quoted(path: str) -> str:
    """A path for source-file, which takes its argument as a pattern."""
    return re.sub(r"([*?\[\\])", r"\\\1", path)


def argument(word: str) -> str:
    """A word as tmux takes it from an argument list: a trailing `;` would end the command."""
    return word[:-1] + "\\;" if word.endswith(";") else word


def parse_pane(line: str) -> Pane:
    """Read one line in PANE_FORMAT."""
    words = line.split("\t", len(PANE_FIELDS) - 1)
    pane, mark, session, pid, dead, status, mode, server, cursor, history, height, title = words
    return Pane(
        pane,
        mark,
        session,
        int(pid or 0),
        dead == "1",
        int(status) if status else None,
        mode not in ("", "0"),
        int(server),
        int(cursor or 0),
        int(history or 0),
        int(height or 0),
        title,
    )


def lines_of(text: str) -> list[str]:
    """The lines of tmux's output; a title may hold what `str.splitlines` takes for a line end."""
    return [line for line in text.split("\n") if line]


def script_of(commands: tuple[list[str], ...]) -> str:
    """A file with a sequence of commands."""
    text = " ; ".join(" ".join(map(conf_quoted, command)) for command in commands) + "\n"
    # What `tempfile` imports takes as long as some hundred of the commands.
    folder = os.environ.get("TMPDIR", "")
    folder = os.path.realpath(folder if os.path.isdir(folder) else "/tmp")
    path = f"{folder}/agent-workers-{os.getpid()}-{os.urandom(6).hex()}.conf"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(os.fsencode(text))
    return path


def no_server(message: str) -> bool:
    """Whether tmux says that no server listens on the socket, or one without any session."""
    return (
        "no server running" in message
        or message == "no current target"
        or ("error connecting to" in message and "No such file or directory" in message)
    )


def is_ending(message: str) -> bool:
    """Whether a server went away while it was asked: its last session had just ended."""
    return message in ("server exited", "server exited unexpectedly", "lost server")


def looking(wanted: list[str], rows: int | None) -> list[list[str]]:
    """The commands of a look (see `Server.look`): all panes, a mark, then the texts."""
    history = [] if rows is None else ["-J", "-S", str(-rows)]
    return [
        ["list-panes", "-a", "-F", PANE_FORMAT],
        ["display-message", "-p", END_OF_LIST],
        *(["capture-pane", "-p", "-t", pane, *history] for pane in unique(wanted)),
    ]


def unique(panes: list[str]) -> list[str]:
    """Each pane once: after a restart of the server two records may name the same."""
    return list(dict.fromkeys(panes))


def cut(text: str, panes: list[Pane]) -> dict[str, str]:
    """The text of each pane from the texts of all: each has one line for a row of its pane.

    A mark between them would cost the server more than the texts do.
    """
    lines = text.split("\n")
    texts: dict[str, str] = {}
    begin = 0
    for pane in panes:
        end = begin + pane.height
        if end < len(lines):
            texts[pane.pane] = "\n".join(lines[begin:end]) + "\n"
        begin = end
    return texts


def socket_for(common_dir: str) -> str:
    """The socket name of a repository, so that equal names in two repositories never meet."""
    from binascii import crc32

    return f"agent-workers-{crc32(os.fsencode(common_dir)):08x}"


def require_socket_name(name: str) -> str:
    """A name that `tmux -L` accepts. Raises SkillError `invalid-socket` (exit 2)."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) is None:
        raise usage(
            "invalid-socket",
            f"{name[:80]!r} is not a valid tmux socket name",
            "use up to 100 letters, digits, '.', '_' and '-'",
        )
    folder = os.path.realpath(os.environ.get("TMUX_TMPDIR") or "/tmp")
    path = os.path.join(folder, f"tmux-{os.getuid()}", name)
    # sockaddr_un holds 108 bytes on Linux and 104 on macOS, the closing NUL included.
    if len(os.fsencode(path)) > 103:
        raise usage(
            "invalid-socket",
            f"the tmux socket {path!r} would be longer than a socket's path may be",
            "give a shorter --tmux-socket NAME, or point TMUX_TMPDIR to a shorter folder",
        )
    return name


def require_tmux() -> None:
    """Demand that tmux is there (exit 4)."""
    if find_program("tmux") is None:
        raise missing("program-missing", "tmux is not on PATH", "install tmux 3.0 or newer")


def environment_with(extra: dict[str, str]) -> dict[str, str]:
    """The environment that agents get: the caller's, cleaned, with additions."""
    return {**clean_environment(), **extra}
