"""The sample agent, driven for real: in a pseudo-terminal, in tmux, and as a plain command."""

import contextlib
import fcntl
import json
import os
import pty
import re
import runpy
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

AGENT = Path(__file__).resolve().parent.parent / "examples" / "sample_agent.py"
DEADLINE = 20.0
START, END = b"\x1b[200~", b"\x1b[201~"
IDLE, BUSY = b"idle  ? for help", b"working (esc to interrupt)"


def wait_for(answer: Callable[[], Any], what: str, seconds: float = DEADLINE) -> Any:
    """The first true answer; fails at the deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := answer():
            return value
        time.sleep(0.01)
    pytest.fail(f"not seen in {seconds} s: {what}")


class Home:
    """A home, a working directory and the environment of one test."""

    def __init__(self, root: Path) -> None:
        self.work = root / "work"
        self.work.mkdir()
        (root / "gitconfig").write_text("[init]\n\tdefaultBranch = main\n")
        self.log = root / "prompts.jsonl"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(root),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "GIT_CONFIG_GLOBAL": str(root / "gitconfig"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SAMPLE_AGENT_LOG": str(self.log),
            "SAMPLE_AGENT_HOME": str(root / "sample-home"),
        }

    def records(self) -> list[dict[str, Any]]:
        text = self.log.read_text() if self.log.exists() else ""
        # The agent may be in the middle of a line right now.
        return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1:] == "\n"]

    def prompts(self) -> list[bytes]:
        """What was submitted, as the bytes that were received."""
        return [record["prompt"].encode("utf-8", "surrogateescape") for record in self.records()]

    def run(
        self, *arguments: str, stdin: bytes | None = None, **more: str
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, str(AGENT), *arguments],
            cwd=self.work,
            env={**self.environment, **more},
            input=b"" if stdin is None else stdin,
            capture_output=True,
            timeout=DEADLINE,
            check=False,
        )

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.work,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


class Screen:
    """The agent in a pseudo-terminal, with all that it has written."""

    def __init__(self, home: Home, *arguments: str) -> None:
        self.master, self.slave = pty.openpty()
        self.before: list[Any] = termios.tcgetattr(self.slave)
        self.resize(100, 30)
        self.seen = b""
        self.process = subprocess.Popen(
            [sys.executable, str(AGENT), *arguments],
            cwd=home.work,
            env=home.environment,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
        )

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds: float) -> None:
        if select.select([self.master], [], [], seconds)[0]:
            self.seen += os.read(self.master, 65536)

    def expect(self, *texts: bytes) -> bytes:
        """Waits for the texts in this order, in what was not yet expected; gives what was read."""
        deadline, start = time.monotonic() + DEADLINE, 0
        for text in texts:
            while (at := self.seen.find(text, start)) < 0:
                if time.monotonic() > deadline:
                    pytest.fail(f"not seen: {text!r} in {self.seen[-3000:]!r}")
                self.read(0.05)
            start = at + len(text)
        read, self.seen = self.seen[:start], self.seen[start:]
        return read

    def type(self, *pieces: bytes) -> None:
        """Writes each piece for itself, however much the terminal takes at once."""
        os.set_blocking(self.master, False)
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                self.read(0)
                with contextlib.suppress(BlockingIOError):
                    rest = rest[os.write(self.master, rest) :]

    def leave(self, code: int) -> bytes:
        """Waits for the end, checks the exit code and that the terminal is as it was."""
        deadline = time.monotonic() + DEADLINE
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read(0.02)
        self.read(0)
        assert self.process.wait(0) == code, self.seen[-3000:]
        assert termios.tcgetattr(self.slave) == self.before
        assert b"\x1b[?2004l" in self.seen
        return self.seen

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for descriptor in (self.master, self.slave):
            with contextlib.suppress(OSError):
                os.close(descriptor)


Start = Callable[..., Screen]


@pytest.fixture
def start(home: Home) -> Iterator[Start]:
    screens: list[Screen] = []

    def started(*arguments: str) -> Screen:
        screens.append(Screen(home, *arguments))
        return screens[-1]

    yield started
    for screen in screens:
        screen.close()


# Keys and pastes


def test_first_screen_says_what_it_is_and_is_ready(start: Start) -> None:
    screen = start()
    first = screen.expect(b"> ", IDLE)
    assert b"Sample agent (offline stand-in, no model)" in first
    assert b"\x1b]2;sample: ready\x07" in first
    assert first.index(b"\x1b[?1049h") < first.index(b"\x1b[?2004h") < first.index(b"Sample")
    screen.type(b"/exit\r")
    assert b"\x1b[?1049l" in screen.leave(0)


def test_multi_line_paste_is_one_prompt(start: Start, home: Home) -> None:
    screen = start()
    screen.expect(IDLE)
    screen.type(START + b"one\rtwo\nthree\n@print \tfour" + END)
    screen.expect(b"[Pasted text #1 +4 lines]")
    assert home.prompts() == []
    screen.type(b"\r")
    screen.expect(BUSY, b"Done.", IDLE)
    assert home.prompts() == [b"one\ntwo\nthree\n@print \tfour"]
    assert home.records()[0]["via"] == "paste"
    assert home.records()[0]["cwd"] == str(home.work)
    assert home.records()[0]["pid"] == screen.process.pid


def test_large_paste_arrives_byte_for_byte_and_quickly(start: Start, home: Home) -> None:
    screen = start()
    screen.expect(IDLE)
    line = (
        "-x; 'q' \"d\" `b` $HOME \\n ünï 中文 \x01\x03\x04\x1b[31m\x7f Up C-c ;".encode()
        + b"\xff\xfe\n"
    )
    text = (line * (200_000 // len(line) + 1))[:200_000]
    begun = time.monotonic()
    screen.type(START[:3], START[3:] + text[:50_001], text[50_001:] + END[:2], END[2:])
    screen.expect(b"[Pasted text #1")
    screen.type(b"\r")
    wait_for(home.prompts, "the prompt in the log")
    assert time.monotonic() - begun < 5
    assert home.prompts() == [text]


def test_keys_and_pastes_survive_any_cut() -> None:
    names: dict[str, Any] = runpy.run_path(str(AGENT), run_name="sample_agent")
    data = b"ab" + START + b"x\x1b[201\ry\x1b" + END + b"\x1b[A\x1bOB\r" + START + END + b"c\x7f"
    whole = names["Decoder"](brackets=True).feed(data)
    assert [key.name for key in whole] == [
        *("text", "paste", "up", "down", "enter", "paste", "text", "backspace"),
    ]
    assert whole[1].data == b"x\x1b[201\ny\x1b"

    def merged(pieces: list[bytes]) -> list[tuple[str, bytes]]:
        decoder = names["Decoder"](brackets=True)
        keys: list[tuple[str, bytes]] = []
        for key in (key for piece in pieces for key in decoder.feed(piece)):
            if key.name == "text" and keys and keys[-1][0] == "text":
                keys[-1] = ("text", keys[-1][1] + key.data)
            else:
                keys.append((key.name, key.data))
        return keys

    for cut in range(len(data)):
        assert merged([data[:cut], data[cut:]]) == merged([data])
    assert merged([data[at : at + 1] for at in range(len(data))]) == merged([data])


def test_without_bracketed_paste_each_line_is_a_prompt(start: Start, home: Home) -> None:
    screen = start("--no-bracketed-paste")
    assert b"\x1b[?2004h" not in screen.expect(IDLE)
    screen.type(b"one\rtwo\nthree")
    screen.expect(b"queued: two")
    wait_for(lambda: len(home.prompts()) == 2, "two prompts")
    assert home.prompts() == [b"one", b"two"]


def test_editing_keys(start: Start, home: Home) -> None:
    screen = start()
    screen.expect(IDLE)
    folded = START + b"1\r2\r3\r4" + END
    screen.type(b"wrong\x15abc\x7f\x7f\xc3\xbc\x7fx", folded, b"\x7f", b"\r\r\n", b"\x04")
    screen.leave(0)
    assert home.prompts() == [b"ax"]
    assert home.records()[0]["via"] == "typed"


def test_what_is_typed_before_it_is_ready_is_lost(start: Start, home: Home) -> None:
    screen = start("--delay", "0.4")
    screen.expect(b"Starting...")
    screen.type(b"@print early\n")
    screen.expect(IDLE)
    screen.type(b"late\r")
    screen.expect(b"Done.")
    assert home.prompts() == [b"late"]


def test_silent_start_shows_nothing_first(start: Start) -> None:
    screen = start("--delay", "0.2", "--silent-start")
    assert screen.expect(IDLE).startswith(b"\x1b[?1049h")


# Looks, queue, interruption, questions


def test_busy_then_idle_with_titles_and_a_moving_spinner(start: Start) -> None:
    screen = start("@sleep 0.7")
    busy = screen.expect(b"\x1b]2;sample: working\x07", BUSY, BUSY, BUSY)
    assert len(set(re.findall("([⠀-⣿]) working", busy.decode()))) >= 2
    idle = screen.expect(b"\x1b]2;sample: ready\x07", b"Done.", IDLE)
    assert b"Nothing to do." not in idle


def test_prompt_while_busy_is_queued_and_runs_after(start: Start, home: Home) -> None:
    screen = start("@sleep 30")
    screen.expect(BUSY)
    screen.type(b"@print sec", b"ond\r")
    screen.expect(b"queued: @print second")
    screen.type(b"\x1b")
    screen.expect(b"Interrupted.", b"you: @print second", b"Done.", IDLE)
    assert home.prompts() == [b"@sleep 30", b"@print second"]
    assert [record["via"] for record in home.records()] == ["argument", "typed"]


def test_interrupt_key_stops_the_job_then_clears_then_leaves(start: Start, home: Home) -> None:
    screen = start("@sleep 30\n@write never.txt x")
    screen.expect(BUSY)
    screen.type(b"half a prompt\x03")
    screen.expect(b"Interrupted.", b"> half a prompt", IDLE)
    screen.type(b"\x03")
    screen.expect(b"press C-c again to leave")
    screen.expect(IDLE)  # the offer runs out
    screen.type(b"\r\x03")
    screen.expect(b"press C-c again to leave")
    screen.type(b"\x03")
    screen.leave(0)
    assert len(home.prompts()) == 1
    assert list(home.work.iterdir()) == []


def test_question_waits_for_yes_or_no(start: Start, home: Home) -> None:
    screen = start("@ask Go on?\n@write yes.txt 1\n@ask More?\n@write no.txt 1")
    screen.expect(BUSY)
    shown = screen.expect(b"Go on? (y/n)", b"Waiting for your answer")
    assert b"sample: action required" in shown
    assert BUSY not in shown
    screen.type(START + b"yes, no" + END + b"\r", b"may")  # the paste is lost, the typed y answers
    screen.expect(b"Go on? -> yes", b"More? (y/n)")
    assert (home.work / "yes.txt").read_text() == "1"
    screen.type(b"n")
    screen.expect(b"More? -> no", b"skipped the rest", b"Done.", IDLE)
    assert not (home.work / "no.txt").exists()
    assert len(home.prompts()) == 1


def test_trust_dialog_says_no_by_default(start: Start, home: Home) -> None:
    screen = start("--trust", "@write never.txt x")
    shown = screen.expect(b"Do you trust the files", b"> 1. No, exit", b"  2. Yes, continue")
    assert IDLE not in shown
    assert b"sample: action required" in shown
    screen.type(START + b"2\r" + END + b"\r")
    screen.leave(1)
    assert home.prompts() == []
    assert list(home.work.iterdir()) == []


@pytest.mark.parametrize("keys", [b"2\r", b"\x1b[B\r", b"\x1bOB\n", b"1\x1b[A\r"])
def test_trust_dialog_goes_on_with_yes(start: Start, home: Home, keys: bytes) -> None:
    screen = start("--trust", "--prompt=-x")
    screen.expect(b"Enter to confirm")
    screen.type(keys)
    screen.expect(b"you: -x", b"Done.", IDLE)
    assert home.prompts() == [b"-x"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("options", [[], ["--inline"]])
def test_signal_ends_it_and_the_terminal_is_restored(
    start: Start, number: signal.Signals, options: list[str]
) -> None:
    screen = start(*options, "@sleep 30")
    screen.expect(BUSY)
    screen.process.send_signal(number)
    assert (b"\x1b[?1049l" in screen.leave(128 + number)) == (not options)


def test_lost_terminal_ends_it(start: Start) -> None:
    screen = start()
    screen.expect(IDLE)
    os.close(screen.slave)
    os.close(screen.master)
    assert screen.process.wait(DEADLINE) == 128 + signal.SIGHUP


def test_resize_paints_anew(start: Start) -> None:
    screen = start()
    screen.expect(IDLE)
    screen.resize(40, 10)
    screen.process.send_signal(signal.SIGWINCH)
    shown = screen.expect(b"\x1b[1;1H", b"\x1b[9;1H", IDLE).decode()
    assert "─" * 39 in shown
    assert "─" * 40 not in shown


def test_failure_is_still_seen_after_the_full_screen_is_left(start: Start) -> None:
    screen = start("@fail 7")
    assert screen.leave(7).rstrip().endswith(b"failed")


def test_commands_of_the_input_box_are_no_prompts(start: Start, home: Home) -> None:
    screen = start()
    screen.expect(IDLE)
    screen.type(b"?\r")
    screen.expect(b"/exit or C-c C-c leaves")
    screen.type(b"/exit\r")
    screen.leave(0)
    assert home.prompts() == []


# In tmux


class Tmux:
    """A private server with one window of 200x50."""

    def __init__(self, home: Home, folder: Path) -> None:
        self.home, self.folder = home, folder
        self.status = folder / "status"

    def __call__(self, *arguments: str, stdin: bytes | None = None) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self.folder / "socket"), "-f", "/dev/null", *arguments],
            env=self.home.environment,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=DEADLINE,
            check=True,
        )
        return done.stdout.decode()

    def start(self, *arguments: str) -> None:
        # tmux may never say how a pane ended, so the shell in it does.
        command = shlex.join([sys.executable, str(AGENT), *arguments])
        command += f"; echo $? > {shlex.quote(str(self.status))}"
        work = str(self.home.work)
        self("new-session", "-d", "-x", "200", "-y", "50", "-s", "a", "-c", work, command)

    def screen(self) -> str:
        return self("capture-pane", "-p", "-t", "a:")

    def paste(self, text: bytes) -> None:
        self("load-buffer", "-b", "text", "-", stdin=text)
        self("paste-buffer", "-p", "-d", "-b", "text", "-t", "a:")

    def wait_for_last_line(self, text: str) -> str:
        return wait_for(
            lambda: screen if (screen := self.screen()).rstrip().endswith(text) else "", text
        )


@pytest.fixture
def tmux(home: Home) -> Iterator[Tmux]:
    folder = Path(tempfile.mkdtemp(prefix="sample-"))
    server = Tmux(home, folder)
    try:
        yield server
    finally:
        with contextlib.suppress(subprocess.SubprocessError):
            server("kill-server")
        shutil.rmtree(folder)


def test_tmux_paste_then_enter_is_one_prompt(tmux: Tmux, home: Home) -> None:
    tmux.start()
    tmux.wait_for_last_line(IDLE.decode())
    text = "".join(f"{number}: ünï; 中文 $(x) \\ '\"\t;\n" for number in range(7000)).encode()
    assert len(text) > 200_000
    tmux.paste(text)
    wait_for(lambda: "> [Pasted text #1 +7001 lines]" in tmux.screen(), "the folded paste")
    tmux("send-keys", "-t", "a:", "Enter")
    wait_for(home.prompts, "the prompt in the log")
    screen = wait_for(lambda: s if "Done." in (s := tmux.screen()) else "", "Done.")
    assert "[+6997 lines]" in screen
    assert home.prompts() == [text]
    tmux.paste("@print 中文".encode())
    wait_for(lambda: "> @print" in tmux.screen(), "the short paste as it is")
    cursor = tmux("display-message", "-p", "-t", "a:", "#{cursor_x},#{cursor_y}").strip()
    assert cursor == f"{2 + len('@print ') + 4},47"
    tmux("send-keys", "-t", "a:", "C-c", "C-c")
    wait_for(lambda: tmux.status.exists() and tmux.status.read_text(), "the end of the agent")
    assert tmux.status.read_text() == "0\n"


def test_tmux_inline_history_scrolls_and_titles_change(tmux: Tmux) -> None:
    prompt = "\n".join(f"@print row {number}" for number in range(120)) + "\n@ask Sure?"
    tmux.start("--inline", prompt)
    tmux.wait_for_last_line("Waiting for your answer")
    title = ("display-message", "-p", "-t", "a:", "#{pane_title} #{alternate_on}")
    assert tmux(*title) == "sample: action required 0\n"
    tmux("send-keys", "-t", "a:", "y")
    tmux.wait_for_last_line(IDLE.decode())
    assert tmux(*title) == "sample: ready 0\n"
    lines = tmux("capture-pane", "-p", "-S", "-", "-t", "a:").splitlines()
    assert [line for line in lines if line.startswith("row ")] == [f"row {n}" for n in range(120)]
    assert sum(line.startswith("─") for line in lines) == 2
    assert "Waiting for your answer" not in lines


# Non-interactive


@pytest.mark.parametrize("way", ["argument", "option", "print", "file", "at-file", "stdin"])
def test_prompt_ways_without_a_terminal(home: Home, way: str) -> None:
    text = b'-- \xff ;\r\n@print A\xfe\n\nDone: "x"\n'
    (home.work / "p.txt").write_bytes(text)
    given = text.decode("utf-8", "surrogateescape")
    arguments = {
        "argument": ["--", given],
        "option": [f"--prompt={given}"],
        "print": ["-p", "--", given],
        "file": ["--prompt-file", "p.txt"],
        "at-file": ["@p.txt"],
        "stdin": [],
    }[way]
    done = home.run(*arguments, stdin=text if way == "stdin" else None)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"A\xfe\n", b"")
    assert home.prompts() == [text]
    via = {"at-file": "file", "file": "file", "stdin": "stdin"}.get(way, "argument")
    assert home.records()[0]["via"] == via


@pytest.mark.parametrize(
    ("prompt", "code", "output"),
    [
        ("@fail", 1, "failed\n"),
        ("@fail 9\n@print never", 9, "failed\n"),
        ("@exit\n@print never", 0, ""),
        ("@exit 255", 255, ""),
        ("hello\n @print x\nmail@print y", 0, "Nothing to do.\n"),
        ("@nope a\n@print on", 0, "unknown directive: @nope a\non\n"),
        ("@sleep x\n@print on", 0, "@sleep failed: expected a number of seconds, not 'x'\non\n"),
        ("@sleep nan", 0, "@sleep failed: expected a number of seconds, not 'nan'\n"),
        ("@fail 256", 0, "@fail failed: expected an exit code from 0 to 255, not '256'\n"),
        ("@write", 0, "@write failed: expected PATH TEXT\n"),
        ("@report", 0, "@report failed: AGENT_WORKER_EVENT is not set\n"),
    ],
)
def test_directive_answers_and_exit_codes(home: Home, prompt: str, code: int, output: str) -> None:
    done = home.run("-p", prompt)
    assert (done.returncode, done.stdout.decode()) == (code, output)


def test_files_and_commits(home: Home) -> None:
    home.git("init", "--quiet")
    prompt = "@write a/b c.txt\n@write a/b/../n.txt one\\ntwo\n@append new.txt  x\\n\n@commit -A; b"
    (home.work / "a").mkdir()
    done = home.run("-p", prompt.replace("a/b c.txt", "a/b/c.txt C"))
    assert done.stdout.decode().splitlines()[:3] == [
        "wrote a/b/c.txt (1 characters)",
        "wrote a/b/../n.txt (7 characters)",
        "appended to new.txt (3 characters)",
    ]
    assert home.git("log", "--format=%an <%ae> %s") == (
        "Sample Agent <sample-agent@example.invalid> -A; b\n"
    )
    assert (home.work / "a" / "n.txt").read_text() == "one\ntwo"
    assert (home.work / "new.txt").read_text() == " x\n"
    again = home.run("-p", "@commit again\n@print on")
    assert again.returncode == 0
    assert again.stdout.startswith(b"commit failed (1): ")
    assert again.stdout.endswith(b"nothing to commit, working tree clean\non\n")


def test_report_runs_the_command_of_the_environment(home: Home) -> None:
    program = "import sys; open('seen', 'a').write(repr(sys.argv[1:])); sys.exit(len(sys.argv) < 3)"
    prefix = shlex.join([sys.executable, "-c", program, "a b"])
    done = home.run("-p", "@report progress half 'way", AGENT_WORKER_EVENT=prefix)
    assert done.stdout == b"reported progress\n"
    assert (home.work / "seen").read_text() == repr(["a b", "progress", "--message", "half 'way"])
    done = home.run("-p", "@report done", AGENT_WORKER_EVENT="sh -c 'echo no; exit 3'")
    assert done.stdout == b"report failed (3): no\n"
    done = home.run("-p", "@report done", AGENT_WORKER_EVENT="/no/such/program")
    assert done.stdout.startswith(b"report failed (127): ")


def test_orphan_outlives_the_agent_in_a_session_of_its_own(home: Home) -> None:
    done = home.run("-p", "@orphan 60")
    match = re.fullmatch(rb"started orphan (\d+)\n", done.stdout)
    assert match is not None
    orphan = int(match[1])
    try:
        assert os.getsid(orphan) == orphan
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_question_without_a_terminal_hangs_until_killed(home: Home) -> None:
    process = subprocess.Popen(
        [sys.executable, str(AGENT), "-p", "@ask Sure?\n@write never.txt x"],
        cwd=home.work,
        env=home.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"y\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"Sure? (y/n)\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.terminate()
        assert process.wait(DEADLINE) == -signal.SIGTERM
    assert list(home.work.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p"], "no prompt"),
        (["--prompt-file", "missing"], "cannot read the prompt file"),
        (["--prompt=a", "b"], "give one of"),
        (["--resume", "none", "a"], "no conversation 'none'"),
        (["--session", "../x", "a"], "not a conversation name"),
        (["--session", "a", "--resume", "b", "c"], "give --session"),
        (["--no-such-option"], "unrecognized arguments"),
    ],
)
def test_unusable_command_lines(home: Home, arguments: list[str], message: str) -> None:
    done = home.run(*arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert message in done.stderr.decode()
    assert home.prompts() == []


def test_conversation_is_kept_and_resumed(home: Home, start: Start) -> None:
    assert home.run("--session", "c-1", "first \udcff").returncode == 0
    assert home.run("--session", "c-1", "other").returncode == 2
    assert home.run("--resume", "c-1", "second").returncode == 0
    screen = start("--resume", "c-1")
    screen.expect(b"resumed c-1 with 2 earlier prompts", IDLE)
    screen.type(b"third\r")
    screen.expect(b"Done.")
    kept = Path(home.environment["SAMPLE_AGENT_HOME"]) / "sessions" / "c-1.json"
    assert json.loads(kept.read_text())["prompts"] == ["first \udcff", "second", "third"]
    assert [path.name for path in kept.parent.iterdir()] == ["c-1.json"]


def test_nothing_is_kept_without_a_session(home: Home) -> None:
    assert home.run("-p", "hello").returncode == 0
    assert not Path(home.environment["SAMPLE_AGENT_HOME"]).exists()


def test_help_is_labelled_and_names_every_directive(home: Home) -> None:
    shown = home.run("--help").stdout.decode()
    assert "Sample agent: an offline stand-in" in shown
    words = ["write", "append", "commit", "sleep", "print", "ask", "report", "fail", "exit"]
    for word in [*words, "orphan"]:
        assert f"\n  @{word} " in shown
