"""The answer on stdout, narration on stderr."""

from __future__ import annotations

import json
import os
import pty
import socket
import sys
from pathlib import Path

import pytest

from fanout.errors import ExitCode, SkillError
from fanout.output import (
    Answer,
    next_action,
    path_list,
    path_text,
    plain_text,
    print_answer,
    reader_gone,
    say,
    shorten,
    write_out,
)

Capture = pytest.CaptureFixture[str]


def test_json_has_the_fixed_fields(capfd: Capture) -> None:
    action = next_action("status", "agent_workers.py status", "look")
    answer = Answer("spawn", "a text", {"worker": None}, next_actions=(action,))
    assert print_answer(answer, as_json=True) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == {
        "schema": 1, "command": "spawn", "ok": True, "data": {"worker": None},
        "next_actions": [{"action": "status", "command": "agent_workers.py status", "why": "look"}],
    }  # fmt: skip
    assert err == ""


def test_a_failure_carries_data_beside_the_error(capfd: Capture) -> None:
    error = SkillError("some-code", "went wrong", "try this", exit_code=ExitCode.BLOCKED)
    answer = Answer("spawn", "", {"known": 1}, error.exit_code, error)
    assert print_answer(answer, as_json=True) == 10
    body = json.loads(capfd.readouterr().out)
    assert body["ok"] is False
    assert body["data"] == {"known": 1}
    assert body["error"] == {"code": "some-code", "message": "went wrong", "hint": "try this"}
    assert body["next_actions"] == []


def test_text_goes_to_stdout_and_all_else_to_stderr(capfd: Capture) -> None:
    error = SkillError("some-code", "went wrong", "try this")
    actions = (next_action("look", "ls", "see it"), next_action("decide", None, "choose one"))
    print_answer(Answer("x", "the answer\n\n", {}, ExitCode.FAILED, error, actions), as_json=False)
    out, err = capfd.readouterr()
    assert out == "the answer\n"
    assert err == ("error: went wrong\nhint: try this\nnext: see it\n      ls\nnext: choose one\n")


def test_any_text_can_be_printed(capfd: Capture) -> None:
    """C16: bytes that are no UTF-8 came in as surrogates."""
    write_out("é 日本 \udcff\n")
    say("\udcff")
    out, err = capfd.readouterr()
    assert out == "é 日本 \\udcff\n"
    assert err == "\\udcff\n"
    print_answer(Answer("x", "", {"path": "a\udcff"}), as_json=True)
    assert json.loads(capfd.readouterr().out)["data"] == {"path": "a\udcff"}


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("a\x1b[31mred\x1b[0mb", "aredb"),
        ("\x1b[2J\x1b[1;1Hx", "x"),
        ("\x1b[?2004hx\x1b[200~", "x"),
        ("\x1b[38:2::1:2:3mx", "x"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0\x1b\\x", "x"),
        ("\x1b_apc\x1b\\x\x1b^pm\x1b\\y\x1bXsos\x1b\\z", "xyz"),
        ("\x1b(Bx\x1b=y\x1b7z\x1bc", "xyz"),
        ("a\x08b\x07c\x00d\x7fe", "abcde"),
        ("one\r\ntwo\tthree\n", "one\ntwo\tthree\n"),
        ("a\x9b31mb\x85c", "a31mbc"),
        ("\x1b[31", "31"),
        ("\x1b]0;never ends", "0;never ends"),
        ("größe 日本", "größe 日本"),
    ],
)
def test_terminal_control_is_taken_out(raw: str, plain: str) -> None:
    assert plain_text(raw) == plain


def test_no_escape_is_left_whatever_stands_around_it() -> None:
    for raw in (
        "\x1b\x1b[31m",
        "\x1b[\x1b[31mx",
        "\x1b]\x1b]0;a\x07",
        "\x1b",
        "\x1b[",
        "\x1bP\x1b",
    ):
        assert not any(ord(char) < 32 for char in plain_text(raw)), raw


def test_a_long_text_says_what_was_left_out() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("abcdef", 3) == "abc... (3 more characters)"


def test_a_reader_that_has_gone_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def gone(descriptor: int) -> bool:
        with open(descriptor, "w", encoding="utf-8") as stdout, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stdout)
            return reader_gone()

    for reader, writer in (os.pipe(), pty.openpty()):
        kept = os.dup(writer)
        assert not gone(kept)
        os.close(reader)
        assert gone(writer)
    here, there = socket.socketpair()
    kept = os.dup(here.fileno())
    assert not gone(kept)
    there.close()
    assert gone(here.detach())
    assert not gone(os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT))
    assert not gone(os.open(os.devnull, os.O_WRONLY))
    monkeypatch.setattr(sys, "stdout", None)
    assert reader_gone()


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("a b/ü.txt", "a b/ü.txt"),
        ("back\\slash", "back\\slash"),
        ("a\nb", '"a\\nb"'),
        ('say "x"\\', '"say \\"x\\"\\\\"'),
        ("\x1b[31m\u202e", '"\\033[31m\\342\\200\\256"'),
        ("latin\udce9", '"latin\\351"'),
    ],
)
def test_a_path_is_shown_on_one_line_as_git_quotes_it(path: str, shown: str) -> None:
    assert path_text(path) == shown


def test_a_list_of_paths_says_how_many_it_leaves_out() -> None:
    assert path_list(["a", "b\n", "c"], 2) == 'a, "b\\n" and 1 more'
    assert path_list(["a", "b"]) == "a, b"
    assert path_list([], 2) == ""


def test_narration_steers_no_terminal(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    say("a\x1b]0;title\x07\x1b[31mb\r")
    assert capfdbinary.readouterr().err == b"ab\n"
