"""The probe and the check, with programs in the style of each parser and with hostile ones."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from fanout import harness, probing
from fanout.errors import ExitCode, SkillError
from fanout.harness import FORM, blank, parse_mapping, value_at
from fanout.proctree import processes
from stand_ins import HELPS, STARTED, calls, python_program, script, stand_in

LIMIT = 60.0


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary folders, which every probe must leave empty, and a secret or two."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    return folder


def probe(program: str, seconds: float = LIMIT) -> probing.Draft:
    """Probe; what comes out is a mapping that the loader takes."""
    draft = probing.probe(program, deadline=time.monotonic() + seconds)
    parse_mapping(draft.mapping, "draft")
    json.dumps(draft.to_json())
    return draft


def check(mapping: dict[str, Any]) -> probing.Fit:
    """Check."""
    fit = probing.check(mapping, deadline=time.monotonic() + LIMIT)
    json.dumps(fit.to_json())
    return fit


def known(draft: probing.Draft) -> dict[str, Any]:
    """What a draft proposes, by path; each with a note that says where it stands."""
    found = {path: value_at(draft.mapping, path) for path in FORM if path != "notes"}
    found = {path: value for path, value in found.items() if value is not None}
    notes: dict[str, str] = draft.mapping["notes"]
    for path in found.keys() - {"name", "executable"}:
        assert notes[path], path
    for path in ("name", "executable", "version.args", "version.verified", "version.on"):
        found.pop(path, None)
    return found


def refusal(program: str, seconds: float = LIMIT) -> SkillError:
    """Why a program cannot be probed."""
    with pytest.raises(SkillError) as caught:
        probe(program, seconds)
    return caught.value


# --- What is proposed ---------------------------------------------------------------------------

GOLDEN: dict[str, tuple[str, dict[str, Any]]] = {
    "clap": (
        "clapper 1.4.0",
        {
            "interactive.args": [],
            "interactive.prompt_mode": "argument",
            "interactive.prompt_arg": "",
            "interactive.work_dir_arg": "--cd",
            "noninteractive.args": ["exec", "-"],
            "noninteractive.prompt_mode": "stdin",
            "noninteractive.work_dir_arg": "--cd",
            "noninteractive.output_args": ["--json"],
            "session.resume_args": ["resume", "{session_id}"],
            "approval.bypass_args": ["--dangerously-bypass-approvals"],
            "approval.note": "--approval-mode: on-request, never",
            "sandbox.args": ["--sandbox", "workspace-write"],
            "sandbox.note": (
                "-s, --sandbox <MODE> What commands may do "
                "[possible values: read-only, workspace-write, off]"
            ),
            "model.flag": "--model",
            "auth.check_args": ["login", "status"],
        },
    ),
    "commander": (
        "2.0.7 (Comrade Agent)",
        {
            "display_name": "Comrade Agent",
            "interactive.args": [],
            "interactive.prompt_mode": "argument",
            "interactive.prompt_arg": "",
            "noninteractive.args": ["--print"],
            "noninteractive.prompt_mode": "argument",
            "noninteractive.prompt_arg": "",
            "noninteractive.output_args": ["--output-format", "json"],
            "session.id_source": "assigned",
            "session.new_args": ["--session-id", "{session_id}"],
            "session.resume_args": ["--resume", "{session_id}"],
            "approval.bypass_args": ["--dangerously-skip-permissions"],
            "sandbox.note": "--add-dir <directories...> More directories that tools may use",
            "model.flag": "--model",
            "auth.check_args": ["auth", "status"],
            "logs": "--debug-file <path> Write debug logs to a file",
        },
    ),
    "yargs": (
        "0.9.12",
        {
            "interactive.args": [],
            "interactive.prompt_mode": "argument",
            "interactive.prompt_arg": "--prompt",
            "noninteractive.args": ["run"],
            "noninteractive.prompt_mode": "argument",
            "noninteractive.prompt_arg": "",
            "noninteractive.work_dir_arg": "--dir",
            "noninteractive.output_args": ["--format", "json"],
            "session.resume_args": ["--session", "{session_id}"],
            "approval.bypass_args": ["--auto"],
            "model.flag": "--model",
            "logs": "--log-file where to log [string]",
        },
    ),
    "cobra": (
        "cob version v0.30.1",
        {
            "interactive.args": [],
            "interactive.work_dir_arg": "--cwd",
            "noninteractive.args": ["run"],
            "noninteractive.prompt_mode": "argument",
            "noninteractive.prompt_arg": "",
            "noninteractive.work_dir_arg": "--cwd",
            "approval.bypass_args": ["--yolo"],
            "model.flag": "--model",
            "auth.check_args": ["whoami"],
        },
    ),
    "oclif": (
        "ocl/3.1.4 linux-x64 node-v22.1.0",
        {
            "noninteractive.args": ["exec"],
            "noninteractive.prompt_mode": "argument",
            "noninteractive.prompt_arg": "",
            "noninteractive.output_args": ["--output", "json"],
            "noninteractive.exit_codes": {
                "0": "the prompt was carried out",
                "3": "the budget was used up",
            },
            "approval.bypass_args": ["--auto-approve"],
            "model.flag": "--model",
        },
    ),
    "typer": (
        "typist, version 1.51.0",
        {
            "interactive.args": [],
            "interactive.prompt_mode": "argument",
            "interactive.prompt_arg": "--prompt",
            "interactive.work_dir_arg": "--work-dir",
            "noninteractive.args": ["--print"],
            "noninteractive.prompt_mode": "argument",
            "noninteractive.prompt_arg": "--prompt",
            "noninteractive.work_dir_arg": "--work-dir",
            "noninteractive.output_args": ["--output-format", "stream-json"],
            "session.resume_args": ["--session", "{session_id}"],
            "approval.bypass_args": ["--yolo"],
        },
    ),
    "docopt": (
        "1.0.0",
        {
            "interactive.args": [],
            "interactive.prompt_mode": "argument",
            "interactive.prompt_arg": "",
            "noninteractive.args": ["--batch"],
            "noninteractive.prompt_mode": "argument",
            "noninteractive.prompt_arg": "",
            "approval.bypass_args": ["--force"],
            "model.flag": "--model",
        },
    ),
    "cac": (
        "bunny/0.4.2 linux-x64 node-v22.1.0",
        {
            "interactive.args": [],
            "interactive.prompt_mode": "argument",
            "interactive.prompt_arg": "",
            "noninteractive.args": ["ask"],
            "noninteractive.prompt_mode": "argument",
            "noninteractive.prompt_arg": "",
            "noninteractive.output_args": ["--format", "json"],
            "model.flag": "--model",
        },
    ),
}
NAMES = {
    "clap": "clapper", "commander": "comrade", "yargs": "yarn-agent", "cobra": "cob",
    "oclif": "ocl", "typer": "typist", "docopt": "doc", "cac": "bunny",
}  # fmt: skip
VERSIONS = {
    "clap": "1.4.0", "commander": "2.0.7", "yargs": "0.9.12", "cobra": "0.30.1", "oclif": "3.1.4",
    "typer": "1.51.0", "docopt": "1.0.0", "cac": "0.4.2",
}  # fmt: skip


@pytest.mark.parametrize("style", sorted(GOLDEN))
def test_a_help_of_each_style(style: str, tmp_path: Path, places: Path) -> None:
    version, golden = GOLDEN[style]
    program = stand_in(tmp_path, NAMES[style], style, version)
    draft = probe(program)
    assert known(draft) == golden
    assert draft.mapping["name"] == NAMES[style]
    assert draft.mapping["executable"] == program
    assert draft.mapping["version"]["args"] == ["--version"]
    assert draft.mapping["version"]["verified"] == VERSIONS[style]
    # Only help and version were asked for, and only of sub-commands that the help lists.
    assert not (tmp_path / STARTED).exists()
    asked = [f"{NAMES[style]} {call}" for call in calls(tmp_path)]
    assert sorted(draft.looked_at) == asked
    assert all(call.endswith((" --help", " --version")) for call in asked)
    assert list(places.iterdir()) == []


def test_a_note_is_a_line_of_the_help_and_what_printed_it(tmp_path: Path) -> None:
    notes = probe(stand_in(tmp_path, "clapper", "clap", "clapper 1.4.0")).mapping["notes"]
    assert notes["model.flag"] == "`clapper exec --help`: -m, --model <MODEL> Model to use"
    assert notes["auth.check_args"].startswith("`clapper login --help`: status")
    assert "`clapper --help`: exec Run one task non-interactively" in notes["noninteractive.args"]


def test_the_names_that_a_dangerous_sub_command_has_are_not_called(tmp_path: Path) -> None:
    probe(stand_in(tmp_path, "clapper", "clap", "clapper 1.4.0"))
    assert not [call for call in calls(tmp_path) if "wipe" in call]


ARGPARSE = """
import argparse
p = argparse.ArgumentParser(prog="arg", description="An agent.")
p.add_argument("--version", action="version", version="arg 3.2.1")
p.add_argument("--message", "-m", metavar="TEXT",
               help="a single message to send, process the reply, then exit")
p.add_argument("--model", help="the model")
p.add_argument("--yes-always", action="store_true", help="always say yes to every confirmation")
p.add_argument("--output", choices=["text", "json"], help="output format")
p.add_argument("--sub", action=argparse.BooleanOptionalAction, help="x")
p.add_argument("file", nargs="*", help="files to edit")
p.parse_args()
"""
CLICK = """
import click
@click.group(invoke_without_command=True)
@click.version_option("5.0.1", prog_name="clicker")
def main(): ...
@main.command()
@click.argument("prompt")
@click.option("-m", "--model", help="Model to use.")
@click.option("--output-format", type=click.Choice(["text", "json"]), help="Output format.")
@click.option("-y", "--no-confirm", is_flag=True, help="Skip all confirmation prompts.")
def run(**_):
    "Run one prompt and exit."
@main.command()
def chat():
    "Chat with a model."
main()
"""


def test_argparse_itself(tmp_path: Path) -> None:
    draft = probe(python_program(tmp_path, "arg", ARGPARSE))
    assert known(draft) == {
        "interactive.args": [],
        "noninteractive.args": [],
        "noninteractive.prompt_mode": "argument",
        "noninteractive.prompt_arg": "--message",
        "noninteractive.output_args": ["--output", "json"],
        "approval.bypass_args": ["--yes-always"],
        "model.flag": "--model",
    }
    assert draft.mapping["version"]["verified"] == "3.2.1"


def test_click_itself(tmp_path: Path) -> None:
    pytest.importorskip("click")
    assert known(probe(python_program(tmp_path, "clicker", CLICK))) == {
        "interactive.args": ["chat"],
        "noninteractive.args": ["run"],
        "noninteractive.prompt_mode": "argument",
        "noninteractive.prompt_arg": "",
        "noninteractive.output_args": ["--output-format", "json"],
        "approval.bypass_args": ["--no-confirm"],
        "model.flag": "--model",
    }


def test_what_only_running_tells_stays_null(tmp_path: Path) -> None:
    for style in GOLDEN:
        draft = probe(stand_in(tmp_path, NAMES[style], style, "1.0.0"))
        for path in ("noninteractive.zero_without_work", "parallel.safe", "interactive.ready"):
            assert value_at(draft.mapping, path) is None


def test_colours_and_frames_do_not_matter(tmp_path: Path) -> None:
    plain = (HELPS / "commander.txt").read_text()
    coloured = plain.replace("--", "\\033[1;36m--\\033[0m").replace("\n", "\\n").replace("'", "")
    body = f"case \"$*\" in --help) printf '{coloured}';; --version) echo 1.2.3;; *) exit 1;; esac"
    draft = probe(script(tmp_path, "comrade", body))
    assert draft.mapping["noninteractive"]["args"] == ["--print"]
    assert "\x1b" not in json.dumps(draft.mapping)


def test_a_short_help_alone(tmp_path: Path) -> None:
    help_file = HELPS / "commander.txt"
    body = f'case "$*" in -h) cat {help_file};; *) echo "unknown $*" >&2; exit 2;; esac'
    draft = probe(script(tmp_path, "short", body))
    assert draft.mapping["noninteractive"]["args"] == ["--print"]
    assert draft.mapping["version"]["verified"] is None
    assert draft.mapping["notes"]["model.flag"].startswith("`short -h`: ")


# --- What a program sees, and what is left of it ------------------------------------------------


def test_the_environment_is_made_from_nothing(tmp_path: Path, places: Path) -> None:
    seen = tmp_path / "seen"
    body = f"""
env > {seen}.$$
pwd > {seen}.pwd
cat > {seen}.stdin
[ -t 0 ] || [ -t 1 ] || [ -t 2 ] && touch {seen}.tty
(: < /dev/tty) 2>/dev/null && touch {seen}.terminal
touch "$HOME/left" "$XDG_CONFIG_HOME" left; mkdir "$TMPDIR/deep"; chmod 0 "$TMPDIR/deep"
cat {HELPS / "commander.txt"}"""
    probe(script(tmp_path, "nosy", body))
    for file in tmp_path.glob("seen.[0-9]*"):
        names = {line.partition("=")[0] for line in file.read_text().splitlines()}
        assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {
            "PATH", "LANG", "TERM", "NO_COLOR", "COLUMNS", "LINES", "HOME", "XDG_CONFIG_HOME",
            "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "TMPDIR",
            "PYTHONDONTWRITEBYTECODE", probing.MARK,
        }  # fmt: skip
        assert f"HOME={places.resolve()}" in file.read_text()
    assert (tmp_path / "seen.stdin").read_bytes() == b""
    assert (tmp_path / "seen.pwd").read_text().startswith(str(places.resolve()))
    assert not (tmp_path / "seen.tty").exists()
    assert not (tmp_path / "seen.terminal").exists()
    assert list(places.iterdir()) == []


def test_no_note_names_the_temporary_home(tmp_path: Path, places: Path) -> None:
    body = 'echo "Usage: x [PROMPT]"; echo "  --log-file <F>  Log (default: $HOME/.x/log)"'
    draft = probe(script(tmp_path, "x", body))
    assert draft.mapping["logs"] == "--log-file <F> Log (default: ~/.x/log)"
    assert str(places) not in json.dumps(draft.to_json())


def survivors(mark: str) -> list[str]:
    """The processes whose command line holds a mark."""
    found: list[str] = []
    for process in processes():
        try:
            line = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode()
        except OSError:
            continue
        if mark in line and process.pid != os.getpid():
            found.append(line)
    return found


CHILDREN = """
(trap '' TERM HUP; sleep 4242.{n}) &
setsid sleep 4242.{n} &
(setsid sh -c 'sleep 4242.{n} & sleep 4242.{n}' &) &
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/cmdline"), reason="reads /proc")
@pytest.mark.parametrize("ending", ["exit 0", "trap '' TERM INT HUP; sleep 4242.{n}"])
def test_children_do_not_outlive_the_look(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "LOOK_WAIT", 1.0)
    monkeypatch.setattr(probing, "END_GRACE", 0.3)
    number = str(os.getpid()) + str(time.monotonic_ns() % 1000)
    body = f"cat {HELPS / 'commander.txt'}" + (CHILDREN + ending).replace("{n}", number)
    draft = probe(script(tmp_path, "parent", body))
    assert draft.mapping["noninteractive"]["args"] == ["--print"]
    assert survivors(f"4242.{number}") == []


@pytest.mark.skipif(not os.path.exists("/proc/self/cmdline"), reason="reads /proc")
def test_an_interruption_ends_what_was_started(
    tmp_path: Path, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(probing, "watch", interrupt)
    program = script(tmp_path, "slow", "sleep 5151.7")
    with pytest.raises(KeyboardInterrupt):
        probing.probe(program, deadline=time.monotonic() + LIMIT)
    assert survivors("5151.7") == []
    assert list(places.iterdir()) == []


# --- Hostile programs ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no-such-program", "/no/such/program", "", "x\0y", "/", "."])
def test_a_program_that_is_not_there_is_exit_4(name: str) -> None:
    error = refusal(name)
    assert error.code == "agent-missing"
    assert error.exit_code == ExitCode.MISSING


def test_a_file_that_cannot_be_started_is_exit_4(tmp_path: Path, places: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"\x00\x01\x02")
    path.chmod(0o755)
    assert refusal(str(path)).exit_code == ExitCode.MISSING
    assert list(places.iterdir()) == []


def test_a_help_that_had_to_be_cut_off_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "echo 'Usage: slow [OPTIONS]'; echo '  --model M  the model'; sleep 300"
    script(tmp_path, "slow", code)
    draft = probe("./slow", 1.0)
    assert draft.mapping["executable"] == str(tmp_path / "slow"), "right from every folder"
    assert draft.mapping["model"]["flag"] == "--model"
    trouble = "`slow --help` did not end in time; what it printed was read"
    assert trouble in draft.trouble


def test_a_program_that_never_ends_says_what_it_last_said(tmp_path: Path) -> None:
    started = time.monotonic()
    error = refusal(script(tmp_path, "slow", "echo thinking; sleep 300"), 1.0)
    assert error.code == "no-help"
    assert error.exit_code == ExitCode.TIMED_OUT
    assert "did not end in time" in error.message
    assert "thinking" in error.message
    assert time.monotonic() - started < 20


def test_a_help_without_end(tmp_path: Path) -> None:
    body = f"cat {HELPS / 'commander.txt'}; yes 'and so on'"
    assert probe(script(tmp_path, "endless", body)).mapping["model"]["flag"] == "--model"


def test_megabytes_without_sense(tmp_path: Path) -> None:
    body = "head -c 30000000 /dev/zero | tr '\\0' 'x'"
    error = refusal(script(tmp_path, "wide", body))
    assert error.code == "no-help"
    assert len(error.message) < 1000


def test_binary_output(tmp_path: Path) -> None:
    error = refusal(script(tmp_path, "binary", "head -c 100000 /dev/urandom | tr -d '\\055'"))
    assert error.code == "no-help"
    assert error.message.isprintable()


def test_a_help_on_stderr_that_ends_with_1(tmp_path: Path) -> None:
    body = f"cat {HELPS / 'commander.txt'} >&2; exit 1"
    draft = probe(script(tmp_path, "grumpy", body))
    assert draft.mapping["model"]["flag"] == "--model"
    assert draft.mapping["version"]["verified"] is None


def test_a_question_gets_no_answer(tmp_path: Path) -> None:
    body = f"""printf 'Continue? [y/N] '; read answer && touch {tmp_path}/answered
[ -n "$answer" ] && touch {tmp_path}/answered; exit 1"""
    error = refusal(script(tmp_path, "asking", body))
    assert "Continue?" in error.message
    assert error.exit_code == ExitCode.FAILED
    assert not (tmp_path / "answered").exists()


def test_control_sequences_and_invalid_utf_8(tmp_path: Path) -> None:
    body = (
        r"printf 'Usage: evil [prompt]\n\033]0;owned\007 --model <m>\033[2J  The \377\376"
        r" model\n  --print  Print response \033P+q\033\\ and exit\r\n'"
    )
    draft = probe(script(tmp_path, "evil", body))
    text = json.dumps(draft.mapping, ensure_ascii=False)
    assert all(letter.isprintable() for letter in text)
    assert draft.mapping["noninteractive"]["args"] == ["--print"]


def test_another_text_each_time(tmp_path: Path) -> None:
    body = f"""n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n + 1)) > {tmp_path}/n
echo "Usage: fickle [prompt]"; echo "  --f-$n-$$ <x>  The model"; echo "  run  Run one prompt" """
    draft = probe(script(tmp_path, "fickle", body))
    assert len(draft.looked_at) < 6


INJECTION = r"""
case "$*" in
--version) echo 1.0.0;;
--help) cat <<'EOF'
Usage: evil [options] [command]

Options:
  --model;touch${IFS}PWNED <m>     The model
  --print$(touch PWNED)            Non-interactive: print the answer and exit
  --prompt `touch PWNED` <prompt>  Run one prompt non-interactively
  --yolo && touch PWNED            Accept all actions

Commands:
  run;touch PWNED      Run one prompt non-interactively
  ../../bin/exec       Run one prompt non-interactively
  -rf                  Run one prompt non-interactively
  $(touch PWNED)       Run one prompt non-interactively
  exec run wipe        Run one prompt non-interactively
EOF
;;
*) printf '%s\n' "$*" >> CALLS;;
esac
"""


def test_options_that_look_like_shell_code(tmp_path: Path, places: Path) -> None:
    body = INJECTION.replace("PWNED", str(tmp_path / "pwned")).replace(
        "CALLS", str(tmp_path / "others")
    )
    probe(script(tmp_path, "evil", body))
    assert not (tmp_path / "pwned").exists()
    others = tmp_path / "others"
    asked = others.read_text().splitlines() if others.exists() else []
    assert all(call.endswith("--help") for call in asked), asked
    assert not [call for call in asked if set(call) & set(";$(`&/.")]
    assert list(places.iterdir()) == []


# --- The check ----------------------------------------------------------------------------------


def drafted(tmp_path: Path) -> dict[str, Any]:
    """A mapping of the stand-in in clap's style."""
    return probe(stand_in(tmp_path, "clapper", "clap", "clapper 1.4.0")).mapping


def test_a_program_that_stayed_as_it_was(tmp_path: Path) -> None:
    fit = check(drafted(tmp_path))
    assert fit == probing.Fit(
        "1.4.0", "1.4.0", [], [], False,
        ["clapper 1.4.0 is installed; the mapping was drafted from the help of 1.4.0, nothing was "
         "tried",
         "every option that the mapping uses is in the help"],
    )  # fmt: skip


def test_what_was_verified_is_said_to_be(tmp_path: Path) -> None:
    mapping = drafted(tmp_path)
    mapping["notes"]["version.verified"] = "tried by hand"
    assert check(mapping).lines[0] == "clapper 1.4.0 is installed, as it was verified"


def test_a_newer_version_with_all_flags_does_not_matter(tmp_path: Path) -> None:
    mapping = drafted(tmp_path)
    mapping["notes"]["version.verified"] = "tried by hand"
    stand_in(tmp_path, "clapper", "clap", "clapper 2.0.0")
    fit = check(mapping)
    assert (fit.found, fit.verified, fit.matters) == ("2.0.0", "1.4.0", False)
    assert fit.lines[0] == "clapper 2.0.0 is installed; the mapping was verified with 1.4.0"


def replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, *pairs: str) -> None:
    """Put the stand-in there again with another text in one of its helps."""
    folder = tmp_path / "helps"
    folder.mkdir()
    for one in HELPS.glob("clap*.txt"):
        text = one.read_text()
        for old, new in zip(pairs[::2], pairs[1::2], strict=True) if one.stem == file else ():
            assert old in text
            text = text.replace(old, new)
        (folder / one.name).write_text(text)
    monkeypatch.setattr("stand_ins.HELPS", folder)
    stand_in(tmp_path, "clapper", "clap", "clapper 2.0.0")


@pytest.mark.parametrize(
    ("file", "old", "new", "gone"),
    [
        ("clap-exec", "--json ", "--jsonl", [("noninteractive.output_args", "--json")]),
        ("clap", "workspace-write, off", "off", [("sandbox.args", "--sandbox workspace-write")]),
        ("clap-exec", "  resume  Resume", "  revive  Resume", [("session.resume_args", "resume")]),
        ("clap-login", "  status ", "  state ", [("auth.check_args", "status")]),
    ],
)
def test_what_is_gone_matters(
    file: str,
    old: str,
    new: str,
    gone: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mapping = drafted(tmp_path)
    replaced(tmp_path, monkeypatch, file, old, new)
    fit = check(mapping)
    assert fit.gone == gone
    assert fit.matters
    assert any(gone[0][0] in line and gone[0][1] in line for line in fit.lines)
    assert fit.to_json()["gone"] == [{"path": gone[0][0], "flag": gone[0][1]}]
    assert not (tmp_path / STARTED).exists()


def test_a_sub_command_that_is_gone_is_not_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = drafted(tmp_path)
    (tmp_path / "calls").unlink()
    replaced(tmp_path, monkeypatch, "clap", "  exec    Run", "  do      Run")
    fit = check(mapping)
    assert ("noninteractive.args", "exec") in fit.gone
    assert not [call for call in calls(tmp_path) if "exec" in call]
    assert not (tmp_path / STARTED).exists()


def test_new_options_are_told_where_the_old_ones_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = drafted(tmp_path)
    replaced(
        tmp_path,
        monkeypatch,
        "clap",
        "  -V, --version",
        "      --fast\n          X\n\n  -V, --version",
    )
    fit = check(mapping)
    assert fit.new == ["--fast"]
    assert not fit.matters
    del mapping["notes"]["version.verified"]
    fit = check(mapping)
    assert fit.new == []
    assert any("is not known" in line for line in fit.lines)


def test_a_mapping_cannot_make_the_check_run_anything(tmp_path: Path) -> None:
    mapping = drafted(tmp_path)
    (tmp_path / "calls").unlink()
    mapping["version"]["args"] = ["wipe"]
    mapping["noninteractive"]["args"] = ["wipeout", "--now"]
    mapping["interactive"]["args"] = ["$(touch x)", "--model=x"]
    mapping["session"]["resume_args"] = ["format", "disk", "{session_id}"]
    mapping["auth"]["check_args"] = ["login", "status; wipe", "--model"]
    fit = check(mapping)
    assert ("noninteractive.args", "wipeout") in fit.gone
    assert ("session.resume_args", "format") in fit.gone
    assert fit.found == "1.4.0"
    assert set(calls(tmp_path)) <= {"--help", "--version", "login --help"}
    assert not (tmp_path / STARTED).exists()


def test_a_mapping_in_which_nothing_is_known(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "clapper", "clap", "clapper 1.4.0")
    fit = check({**blank(), "name": "clapper", "executable": program})
    assert (fit.found, fit.verified, fit.gone, fit.matters) == ("1.4.0", None, [], False)
    assert "verified with no version" in fit.lines[0]


def test_the_bundled_mappings_can_be_checked_against_a_program(tmp_path: Path) -> None:
    folder = Path(harness.DEFAULT_MAPPING).parent
    for file in folder.glob("harness-*.json"):
        mapping = json.loads(file.read_text())
        mapping["executable"] = stand_in(tmp_path, "clapper", "clap", "clapper 1.4.0")
        check(mapping)
    assert not (tmp_path / STARTED).exists()
