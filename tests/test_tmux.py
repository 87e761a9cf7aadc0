"""The tmux server of our own: quoting, looking, pasting, starting, on a real tmux."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanout import tmux
from fanout.errors import ExitCode, SkillError
from fanout.process import clean_environment
from fanout.tmux import Launch, Pane, Server
from world import World, wait_for

MARK = "0123456789abcdef"


@pytest.fixture
def server(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of this world; it starts with the first session."""
    for name, value in world.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.delenv("TMUX_PANE", raising=False)
    made = Server(("-L", "test"))
    yield made
    made.run(["kill-server"])


def start(server: Server, world: World, *argv: str, session: str = "s", mark: str = MARK) -> str:
    """Start a session that runs a program; its pane id."""
    launch = Launch(session, mark, list(argv), str(world.root / f"{session}.log"))
    env = clean_environment()
    text = server.require(*tmux.launch_commands([launch], tmux.variable_names(env)), env=env)
    return text.split("\t")[0]


def read(path: Path) -> str:
    """The text of a file; empty when it is not there."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


# --- Quoting --------------------------------------------------------------------------------

WORDS = [
    "",
    ";",
    "a;",
    "a\\;",
    ";;",
    "\\",
    "#{pane_id}",
    "$HOME",
    "~",
    "'",
    '"',
    "-x",
    "{",
    "}",
    "%",
]
words = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"))
    | st.sampled_from(";\\#{}$'\"~%-"),
    max_size=12,
)


def keep_and_show(server: Server, word: str) -> str:
    """What tmux makes of a word: an environment value takes any text as it stands."""
    return server.require(
        ["set-environment", "-g", "AW_WORD", word],
        ["show-environment", "-g", "AW_WORD"],
    )


@pytest.mark.parametrize("word", WORDS)
def test_tmux_takes_a_word_as_it_stands(word: str, server: Server, world: World) -> None:
    """P11: a trailing `;` would end the command."""
    start(server, world, "sleep", "600")
    assert keep_and_show(server, word) == f"AW_WORD={word}\n"


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(word=words)
def test_tmux_takes_any_word_as_it_stands(word: str, server: Server, world: World) -> None:
    if not server.panes():
        start(server, world, "sleep", "600")
    assert keep_and_show(server, word) == f"AW_WORD={word}\n"


def test_an_argument_list_reaches_the_program_word_for_word(server: Server, world: World) -> None:
    """No shell stands between: the pane's own process gets the list."""
    out = world.root / "argv"
    words = ["a b", "$(touch pwn)", "`x`", "'", '"', "x;", ";", "\\", "#{pane_id}", "*", "é\n2", ""]
    script = f'for w in "$@"; do printf "%s\\000" "$w" >> {out}; done; sleep 600'
    start(server, world, "/bin/sh", "-c", script, "sh", *words)
    expected = "".join(word + "\0" for word in words)
    assert wait_for(lambda: read(out) if read(out).count("\0") == len(words) else "", "argv") == (
        expected
    )


NAMES = [
    "plain",
    "with space",
    "it's",
    'say "hi"',
    "100%",
    "%Y-%m-%d %%H",
    "#{pane_id} #S ##",
    "$(touch pwn) `touch pwn` $HOME",
    "semi;colon;",
    "back\\slash\\",
    "é 漢字",
    "-dash",
    "a*b?[c]",
    "new\nline",
    "{brace}~!&|<>",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_log_lands_at_its_path_whatever_that_holds(
    name: str, server: Server, world: World
) -> None:
    folder = world.root / name
    folder.mkdir()
    log = folder / "terminal.log"
    launch = Launch("s", MARK, ["/bin/sh", "-c", "echo logged; sleep 600"], str(log))
    env = clean_environment()
    server.require(*tmux.launch_commands([launch], tmux.variable_names(env)), env=env)
    wait_for(lambda: "logged" in read(log), "the log")
    assert log.stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in folder.iterdir()) == ["terminal.log"]
    assert not (world.root / "pwn").exists()


path_characters = st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=("Cs",))


@given(st.text(path_characters | st.sampled_from("#%'\"\\ ${}"), min_size=1, max_size=30))
def test_the_log_command_survives_strftime_and_the_shell(name: str) -> None:
    """What a shell sees of the path, once tmux has undone the doubling of `#` and `%`."""
    command = tmux.log_command("/tmp/" + name).replace("##", "#").replace("%%", "%")
    shown = command.replace("exec cat >>", "printf '%s' ")
    done = subprocess.run(["/bin/sh", "-c", shown], capture_output=True, check=True)
    assert done.stdout == ("/tmp/" + name).encode()


# --- Looking --------------------------------------------------------------------------------


def test_no_server_means_no_panes(server: Server) -> None:
    assert server.panes() == {}
    assert server.look(["%0"]) == ({}, {})


def test_a_server_that_does_not_answer_is_not_taken_for_dead(
    server: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = world.root / "bin" / "tmux"
    stub.write_text("#!/bin/sh\necho 'server version is too old for client' >&2\nexit 1\n")
    stub.chmod(0o755)
    with pytest.raises(SkillError) as caught:
        server.panes()
    assert caught.value.code == "tmux-failed"
    assert "too old" in caught.value.message


def test_a_server_without_sessions_has_no_panes(server: Server) -> None:
    """A moment that every server passes before it ends by itself."""
    server.require(["start-server"], ["set-option", "-g", "exit-empty", "off"])
    assert server.panes() == {}
    assert server.look(["%0"]) == ({}, {})


def test_a_server_that_ends_while_it_is_asked_is_asked_again(server: Server, world: World) -> None:
    stub = world.root / "bin" / "tmux"
    stub.write_text(
        f"#!/bin/sh\necho x >>{world.root}/asked\n"
        f"[ $(wc -l <{world.root}/asked) -lt 3 ] && echo 'server exited unexpectedly' >&2\n"
        "[ $(wc -l <$WORLD/asked) -lt 3 ] || echo 'no server running on /x' >&2\nexit 1\n"
    )
    stub.chmod(0o755)
    assert server.panes() == {}
    assert read(world.root / "asked") == "x\nx\nx\n"


def test_a_pane_is_read_with_its_mark_and_screen(server: Server, world: World) -> None:
    pane = start(server, world, "/bin/sh", "-c", "echo hé; exec sleep 600")
    panes, screens = wait_for(
        lambda: seen if "hé" in (seen := server.look([pane]))[1][pane] else None, "the screen"
    )
    assert set(panes) == {pane}
    found: Pane = panes[pane]
    assert found.mark == MARK
    assert found.session == "s"
    assert not found.dead
    assert not found.in_mode
    assert found.pid > 0
    assert found.cursor_y == 1
    assert screens[pane].count("\n") == 50


def test_screens_belong_to_their_panes_and_missing_ones_are_left_out(
    server: Server, world: World
) -> None:
    panes = [
        start(server, world, "/bin/sh", "-c", f"echo I am {n}; exec sleep 600", session=f"s{n}")
        for n in range(3)
    ]

    def screens() -> dict[str, str]:
        return server.look(["%98", *reversed(panes), "%99"])[1]

    wait_for(lambda: all("I am" in text for text in screens().values()), "three screens")
    assert {pane: text.split("\n")[0] for pane, text in screens().items()} == {
        pane: f"I am {n}" for n, pane in enumerate(panes)
    }


def test_screens_of_any_height_are_told_apart_and_one_may_be_asked_for_twice(
    server: Server, world: World
) -> None:
    """After a restart of the server the records of two workers may name the same pane."""
    panes = [
        start(server, world, "/bin/sh", "-c", f"echo I am {n}; exec sleep 600", session=f"s{n}")
        for n in range(3)
    ]
    wait_for(lambda: all("I am" in t for t in server.look(panes)[1].values()), "three screens")
    server.require(["resize-window", "-t", panes[0], "-x", "80", "-y", "7"])
    found, screens = server.look([panes[1], panes[0], panes[1], panes[2]])
    assert [found[pane].height for pane in panes] == [7, 50, 50]
    assert [screens[pane].split("\n")[0] for pane in panes] == [f"I am {n}" for n in range(3)]
    assert [screens[pane].count("\n") for pane in panes] == [7, 50, 50]


def test_a_title_like_the_mark_after_the_list_changes_nothing(server: Server, world: World) -> None:
    pane = start(server, world, "/bin/sh", "-c", "echo here; exec sleep 600")
    server.require(["select-pane", "-t", pane, "-T", tmux.END_OF_LIST])
    wait_for(lambda: "here" in server.look([pane])[1][pane], "the screen")
    assert server.panes()[pane].title == tmux.END_OF_LIST


def test_more_panes_than_one_message_holds(
    server: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    panes = [start(server, world, "sleep", "600", session=f"s{n}") for n in range(5)]
    monkeypatch.setattr(tmux, "MESSAGE_LIMIT", 160)
    found, screens = server.look(panes)
    assert set(found) == set(screens) == set(panes)


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C"}, {"LC_ALL": "POSIX", "LANG": "C"}, {"LANG": "", "LC_ALL": ""}]
)
def test_any_locale_will_do(
    locale: dict[str, str], server: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a UTF-8 locale tmux prints `_` for tabs, and for all that is not ASCII."""
    for name, value in locale.items():
        monkeypatch.setenv(name, value)
    pane = start(server, world, "/bin/sh", "-c", "printf 'h\\303\\251 \\346\\274\\242'; sleep 600")
    assert pane.startswith("%")
    wait_for(lambda: "hé 漢" in server.look([pane])[1][pane], "the screen")
    assert server.panes()[pane].mark == MARK


@pytest.mark.parametrize("title", ["a\tb", "#{pane_id}", "x" * 300, "漢字 é", "a | b == c"])
def test_a_title_may_hold_anything(title: str, server: Server, world: World) -> None:
    script = "printf '\\033]2;%s\\007' \"$1\"; echo set; exec sleep 600"
    pane = start(server, world, "/bin/sh", "-c", script, "sh", title)
    wait_for(lambda: "set" in server.look([pane])[1][pane], "the title")
    found = server.panes()[pane]
    # Control characters in a title are dropped by tmux.
    assert found.title == title.replace("\t", "")
    assert found.mark == MARK


def test_a_line_that_tells_of_panes_is_read_back() -> None:
    line = "%3\tm\ts\t12\t1\t\t1\t99\t7\t31\t50\ta\tb"
    pane = tmux.parse_pane(line)
    assert pane == Pane("%3", "m", "s", 12, True, None, True, 99, 7, 31, 50, "a\tb")
    assert tmux.lines_of("a\u2028b\x0cc\n\nd\n") == ["a\u2028b\x0cc", "d"]


def test_an_exit_leaves_a_dead_pane(server: Server, world: World) -> None:
    """T28: what it printed can still be read; the status is told by the launcher, not by tmux."""
    pane = start(server, world, "/bin/sh", "-c", "echo last words; exit 3")
    wait_for(lambda: server.panes()[pane].dead, "a dead pane")
    assert "last words" in server.capture(pane, 50)


# --- Pasting and pressing -------------------------------------------------------------------

RECORDER = """
import os, sys, tty
tty.setraw(0)
os.write(1, b"\\x1b[?2004h" if sys.argv[2] == "bp" else b"")
os.write(1, b"READY")
with open(sys.argv[1], "ab", 0) as file:
    while True:
        file.write(os.read(0, 65536))
"""


@pytest.fixture
def recorder(server: Server, world: World) -> Callable[[str], tuple[str, Path]]:
    """Starts a program that writes down each byte it gets; its pane, and the file."""

    def begin(mode: str) -> tuple[str, Path]:
        out = world.root / f"bytes-{mode}"
        pane = start(server, world, "python3", "-c", RECORDER, str(out), mode, session=mode)
        wait_for(lambda: "READY" in server.look([pane])[1][pane], "the recorder")
        return pane, out

    return begin


def received(out: Path, end: bytes) -> bytes:
    """All bytes, once they end in this."""
    return wait_for(
        lambda: data if out.exists() and (data := out.read_bytes()).endswith(end) else b"",
        "the bytes",
    )


TEXTS = [
    "one\ntwo\nthree",
    "- first item",
    "--help",
    "abc;",
    "Up",
    "Enter",
    "C-c",
    "'\" $(x) `y` \\ #{pane_id} %H",
    "é 漢字 🌑",
    "ends in newlines\n\n",
    "\ttabs\t",
    "x" * 200_000,
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_paste_is_one_block_and_enter_stands_outside(
    text: str, server: Server, recorder: Callable[[str], tuple[str, Path]]
) -> None:
    """P01, P03, P05, P11, P13, P15."""
    pane, out = recorder("bp")
    server.paste(pane, text.encode())
    server.press(pane, "Enter")
    block = b"\x1b[200~" + text.encode().replace(b"\n", b"\r") + b"\x1b[201~\r"
    assert received(out, b"\x1b[201~\r") == block
    assert server.require(["list-buffers"]) == ""


def test_without_brackets_only_the_text_is_sent(
    server: Server, recorder: Callable[[str], tuple[str, Path]]
) -> None:
    pane, out = recorder("nobp")
    server.paste(pane, b"- x;")
    server.press(pane, "Enter")
    assert received(out, b"\r") == b"- x;\r"


def test_copy_mode_is_left_before_a_paste_and_before_a_key(
    server: Server, recorder: Callable[[str], tuple[str, Path]]
) -> None:
    """P27: keys would be swallowed by it."""
    pane, out = recorder("bp")
    server.require(["copy-mode", "-t", pane])
    assert server.panes()[pane].in_mode
    server.paste(pane, b"text")
    assert not server.panes()[pane].in_mode
    server.require(["copy-mode", "-t", pane])
    server.press(pane, "Enter")
    assert received(out, b"\r") == b"\x1b[200~text\x1b[201~\r"


def test_keys_are_pressed_by_name_and_text_typed_as_it_stands(
    server: Server, recorder: Callable[[str], tuple[str, Path]]
) -> None:
    pane, out = recorder("bp")
    server.press(pane, "C-c", "/exit", "-x", "a;", ";", "Enter")
    assert received(out, b"\r") == b"\x03/exit-xa;;\r"
    server.press(pane, "-x", "C-m")
    assert received(out, b"-x\r") == b"\x03/exit-xa;;\r-x\r"


def test_keys_for_many_panes_reach_those_that_carry_their_mark(
    server: Server, recorder: Callable[[str], tuple[str, Path]]
) -> None:
    """One that is gone or another's is passed over, also in a sequence longer than a message."""
    pane, out = recorder("bp")
    server.require(["copy-mode", "-t", pane])
    keys = ("C-c", "it's", "-x", "#{pid}", "$HOME", "a;", ";", "Enter")
    many = [("%99", MARK, ("x" * 100,))] * 150
    server.press_all([("%98", MARK, keys), (pane, "other", ("no",)), *many, (pane, MARK, keys)])
    assert received(out, b"\r") == b"\x03it's-x#{pid}$HOMEa;;\r"
    server.press_all([(pane, "other", ("no",)), ("%99", MARK, keys), (pane, MARK, ("C-m",))])
    assert received(out, b"\r\r") == b"\x03it's-x#{pid}$HOMEa;;\r\r"


def test_a_paste_into_a_pane_that_is_gone_fails_and_leaves_no_buffer(
    server: Server, world: World
) -> None:
    start(server, world, "sleep", "600")
    with pytest.raises(SkillError) as caught:
        server.paste("%99", b"secret")
    assert caught.value.code == "tmux-failed"
    assert server.require(["list-buffers"]) == ""


# --- Sessions -------------------------------------------------------------------------------


def test_sessions_end_by_exact_name(server: Server, world: World) -> None:
    """T02, T08: a prefix or a pattern is no name."""
    for session in ("auth", "auth-v2", "auth-v2-x"):
        start(server, world, "sleep", "600", session=session)
    server.end_sessions(["auth-v2", "aut", "auth*", "gone"])
    assert sorted(pane.session for pane in server.panes().values()) == ["auth", "auth-v2-x"]
    server.end_sessions(["auth", "auth-v2-x"])
    assert server.panes() == {}
    server.end_sessions(["auth"])


def test_a_session_that_goes_meanwhile_takes_no_other_one_along(
    server: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T02: tmux takes a prefix for a name once the name itself is gone."""
    pane = start(server, world, "sleep", "600", session="auth-v2")
    real = server.panes()
    stale = {"%9": real[pane]._replace(pane="%9", session="auth")}
    answers = iter([stale, real])

    def panes(_server: Server) -> dict[str, Pane]:
        return next(answers)

    monkeypatch.setattr(Server, "panes", panes)
    server.end_sessions(["auth"])
    monkeypatch.undo()
    for name, value in world.env.items():
        monkeypatch.setenv(name, value)
    assert set(server.panes()) == {pane}


def test_a_session_of_a_prefix_name_can_be_started(server: Server, world: World) -> None:
    """T02, T04: options land on the new session, not on the one whose name begins alike."""
    first = start(server, world, "sleep", "600", session="auth-v2", mark="one")
    second = start(server, world, "sleep", "600", session="auth", mark="two")
    panes = server.panes()
    assert (panes[first].session, panes[first].mark) == ("auth-v2", "one")
    assert (panes[second].session, panes[second].mark) == ("auth", "two")


def test_a_taken_session_name_is_refused(server: Server, world: World) -> None:
    pane = start(server, world, "sleep", "600", mark="one")
    with pytest.raises(SkillError) as caught:
        start(server, world, "sleep", "600", mark="two")
    assert "duplicate session" in caught.value.message
    assert {p.mark for p in server.panes().values()} == {"one"}
    assert set(server.panes()) == {pane}


def test_a_session_is_wide_long_and_outlives_its_program(server: Server, world: World) -> None:
    """T34, T36."""
    pane = start(server, world, "sleep", "600")
    form = "#{window_width} #{window_height} #{history_limit} #{remain-on-exit}"
    assert server.require(["display-message", "-p", "-t", pane, form]) == "200 50 50000 on\n"


def show_variables(out: Path) -> str:
    """A shell script that keeps its environment and waits."""
    return f"env -0 > {out}; echo done; exec sleep 600"


def variables_of(out: Path, server: Server, pane: str) -> dict[str, str]:
    """The environment that a program of `show_variables` got."""
    wait_for(lambda: "done" in server.look([pane])[1][pane], "the environment")
    pairs = [entry.partition("=") for entry in out.read_text().split("\0") if entry]
    return {name: value for name, _, value in pairs}


def test_a_session_gets_the_callers_variables_not_those_of_the_server(
    server: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T14, T16: a server that runs already knows other ones."""
    monkeypatch.setenv("OLD", "of the server")
    monkeypatch.setenv("SAME", "old")
    start(server, world, "sleep", "600", session="first")
    monkeypatch.delenv("OLD")
    monkeypatch.setenv("SAME", "new")
    monkeypatch.setenv("NEW", "a 'b' \"c\" $d ;\nsecond line")
    out = world.root / "env"
    found = variables_of(
        out, server, start(server, world, "/bin/sh", "-c", show_variables(out), session="second")
    )
    assert found["SAME"] == "new"
    assert found["NEW"] == "a 'b' \"c\" $d ;\nsecond line"


def test_any_number_of_variables_goes(
    server: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T14: their names alone are longer than a message to tmux may be."""
    many = {f"A_VARIABLE_WITH_QUITE_A_LONG_NAME_{n:04d}": str(n) for n in range(800)}
    for name, value in many.items():
        monkeypatch.setenv(name, value)
    out = world.root / "env"
    script = world.root / "show.sh"
    script.write_text(show_variables(out))
    odd = world.root / "a [b]* 'c'"
    odd.mkdir()
    launch = Launch("s", MARK, ["/bin/sh", str(script)], str(odd / "terminal.log"))
    env = clean_environment()
    text = server.require(*tmux.launch_commands([launch], tmux.variable_names(env)), env=env)
    found = variables_of(out, server, text.split("\t")[0])
    assert {name: found.get(name) for name in many} == many


# --- Sockets --------------------------------------------------------------------------------


def test_the_socket_of_a_repository_is_short_and_its_own() -> None:
    one, two = tmux.socket_for("/a/.git"), tmux.socket_for("/b/.git")
    assert one != two
    assert one == tmux.socket_for("/a/.git")
    assert len(tmux.socket_for("/x" * 2000)) == len("agent-workers-") + 8
    tmux.require_socket_name(one)


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".", "-x", "a b", "é", "x" * 101, "a\nb"])
def test_a_name_that_is_no_socket_is_refused(name: str) -> None:
    with pytest.raises(SkillError) as caught:
        tmux.require_socket_name(name)
    assert caught.value.code == "invalid-socket"
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_socket_whose_path_is_too_long_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T26: the limit is that of the smaller system."""
    deep = world.root / ("d" * 50)
    deep.mkdir()
    monkeypatch.setenv("TMUX_TMPDIR", str(deep))
    room = 103 - len(f"{deep}/tmux-{os.getuid()}/")
    assert tmux.require_socket_name("x" * room) == "x" * room
    with pytest.raises(SkillError) as caught:
        tmux.require_socket_name("x" * (room + 1))
    assert caught.value.code == "invalid-socket"
    assert "TMUX_TMPDIR" in caught.value.hint


def test_a_tmux_that_hangs_is_not_waited_for_without_end(
    server: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = world.root / "bin" / "tmux"
    stub.write_text("#!/bin/sh\nexec sleep 600\n")
    stub.chmod(0o755)
    monkeypatch.setattr(tmux, "ANSWER_LIMIT", 0.3)
    began = time.monotonic()
    with pytest.raises(SkillError) as caught:
        server.panes()
    assert caught.value.code == "tmux-stuck"
    assert time.monotonic() - began < 20
    stub.unlink()
