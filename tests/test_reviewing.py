"""What `review` shows: the lists, the four views, their limits, and what no setting can bend."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from inside import Call, integrate, refusal
from world import SCRIPTS, World

__all__ = ["integrate"]
INTEGRATE = SCRIPTS / "integrate_workers.py"
SECRET = "ghp_" + "a1B2" * 9


def commit(world: World, tree: Path, files: dict[str, str | bytes], message: str = "work") -> str:
    """Write files into a tree and commit all; the new tip."""
    write(tree, files)
    return world.commit(message, tree)


def write(tree: Path, files: dict[str, str | bytes]) -> None:
    """Write files into a tree."""
    for name, content in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def flags(data: dict[str, Any]) -> dict[str, list[str]]:
    """The paths by code."""
    return {flag["code"]: flag["paths"] for flag in data["flags"]}


def pasted(world: World, command: str) -> str:
    """What a command prints that is pasted into a shell elsewhere."""
    done = subprocess.run(
        ["bash", "-c", command], cwd="/", env=world.env, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode("utf-8", "surrogateescape")


# --- Lists ----------------------------------------------------------------------------------


def test_the_answer_holds_what_a_program_needs(world: World, integrate: Call) -> None:
    tree = world.quick("w1", owns=["src/**"])
    first = commit(world, tree, {"src/a.py": "x = 1\n"}, "add a")
    write(tree, {"run.sh": "#!/bin/sh\n"})
    (tree / "run.sh").chmod(0o755)
    world.git("rm", "-q", "README.md", cwd=tree)
    tip = world.commit("more", tree)
    before = world.snapshot()
    ran = integrate("review", "w1")
    assert ran.code == 0
    assert world.snapshot() == before
    data = ran.data
    assert data["worker"]["name"] == "w1"
    assert (data["base"], data["head"]) == (world.git("rev-parse", "main"), tip)
    assert data["tree"] == world.git("rev-parse", f"{tip}^{{tree}}")
    assert [(c["id"], c["subject"], c["author"]) for c in data["commits"]] == [
        (tip, "more", "Test"),
        (first, "add a", "Test"),
    ]
    assert data["commits"][0]["at"][:4].isdigit()
    rows = {row.pop("path"): row for row in data["files"]}
    assert rows["README.md"] == {
        "status": "D", "added": 0, "removed": 1, "binary": False, "mode_before": "100644",
        "mode_after": None, "in_scope": False,
    }  # fmt: skip
    assert rows["run.sh"]["mode_after"] == "100755"
    assert rows["src/a.py"] == {
        "status": "A", "added": 1, "removed": 0, "binary": False, "mode_before": None,
        "mode_after": "100644", "in_scope": True,
    }  # fmt: skip
    assert flags(data) == {"out-of-scope": ["README.md", "run.sh"], "new-executable": ["run.sh"]}
    assert data["approval"]["state"] == "missing"
    assert (data["checks"], data["uncommitted"], data["trouble"]) == ([], [], None)


def test_the_four_views_are_what_their_commands_print(world: World, integrate: Call) -> None:
    tree = world.quick("w1")
    commit(world, tree, {"a.txt": "a\n" * 20, "docs/ünï x.md": "x\n"}, "add a: ünï")
    world.git("mv", "a.txt", "it's b.txt", cwd=tree)
    commit(world, tree, {"it's b.txt": "a\n" * 19 + "b\n"}, "move it")
    write(tree, {"README.md": "changed\n", "new.txt": "n\n"})
    world.git("add", "README.md", cwd=tree)
    views = integrate("review", "w1").data["views"]
    assert list(views) == ["status", "log", "stat", "diff"]
    assert all(view["left_out"] is None for view in views.values())
    printed = {name: pasted(world, view["command"]) for name, view in views.items()}
    assert views["status"]["text"] == printed["status"] == "M  README.md\n?? new.txt\n"
    subjects = [line.split(" ", 1)[1] for line in printed["log"].splitlines()]
    assert [line.split(" ", 1)[1] for line in views["log"]["text"].splitlines()] == subjects
    assert "+b\n" in views["diff"]["text"]
    plain = ["-c", "core.abbrev=12", "-c", "core.quotePath=false", "diff"]
    assert views["diff"]["text"] == world.git(*plain, "main...w1") + "\n"
    assert '"b/docs' not in views["diff"]["text"]
    assert "2 files changed, 21 insertions(+)" in views["stat"]["text"]
    for name, words in {
        "status": "status --short", "log": "log --oneline", "stat": "diff --stat", "diff": "diff",
    }.items():  # fmt: skip
        assert f" {words} " in views[name]["command"] + " "


def test_what_is_not_committed_is_flagged(world: World, integrate: Call) -> None:
    from fanout.workers import fingerprint

    tree = world.quick("w1", owns=["a.txt"])
    commit(world, tree, {"a.txt": "a\n", ".gitignore": "*.env\nnode_modules\ntmp/\n"})
    write(tree, {"a.txt": "b\n", "new.txt": "n\n", "x.env": "K=V\n", "copied.env": "ours\n"})
    write(tree, {"node_modules/m/i.js": "x", "tmp/t": "x", ".worker-runs/events.jsonl": "{}\n"})
    record = world.record("w1") / "worker.json"
    copied = {"copied.env": fingerprint(str(tree / "copied.env"))}
    record.write_text(json.dumps({**json.loads(record.read_text()), "copied": copied}))
    ran = integrate("review", "w1")
    found = flags(ran.data)
    assert found["uncommitted"] == ["a.txt"]
    assert found["untracked"] == ["new.txt"]
    assert found["ignored"] == ["tmp/", "x.env"]
    assert found["out-of-scope"] == ["new.txt", ".gitignore"]
    assert ran.data["uncommitted"] == ["a.txt", "new.txt"]
    assert [row["action"] for row in ran.json["next_actions"]] == ["collect"]


def test_hidden_edits_and_a_started_merge_are_flagged(world: World, integrate: Call) -> None:
    tree = world.quick("w1")
    commit(world, tree, {"a.txt": "a\n"})
    world.git("update-index", "--skip-worktree", "a.txt", cwd=tree)
    write(tree, {"a.txt": "b\n"})
    assert flags(integrate("review", "w1").data)["uncommitted"] == ["a.txt"]
    (world.repo / ".git" / "worktrees" / "w1" / "MERGE_HEAD").write_text("x\n")
    assert flags(integrate("review", "w1").data)["operation-in-progress"] == ["MERGE_HEAD"]


def test_a_worker_without_commits_says_so(world: World, integrate: Call) -> None:
    write(world.quick("w1"), {"a.txt": "a\n"})
    ran = integrate("review", "w1")
    assert flags(ran.data) == {"untracked": ["a.txt"], "no-commits": []}
    assert [row["action"] for row in ran.json["next_actions"]] == ["collect"]
    assert ran.data["views"]["diff"]["text"] == ""


def test_a_tree_that_tells_nothing_is_told_and_not_approvable(
    world: World, integrate: Call
) -> None:
    tree = world.quick("w1")
    commit(world, tree, {"a.txt": "a\n"})
    world.git("checkout", "-q", "--detach", cwd=tree)
    ran = integrate("review", "w1")
    assert flags(ran.data) == {"worktree-trouble": [str(tree)]}
    assert "no branch" in ran.data["trouble"]
    assert ran.json["next_actions"] == []


def test_a_worker_whose_tree_is_gone_can_be_reviewed(world: World, integrate: Call) -> None:
    tree = world.quick("w1")
    tip = commit(world, tree, {"a.txt": "a\n"})
    world.git("worktree", "remove", "--force", str(tree))
    ran = integrate("review", "w1")
    assert (ran.data["head"], ran.data["flags"]) == (tip, [])
    assert ran.data["views"]["status"] == {"command": "", "text": "", "left_out": None}
    assert ran.json["next_actions"][0]["action"] == "approve"


def test_the_command_to_approve_can_be_pasted(world: World, integrate: Call) -> None:
    tree = world.quick("w1")
    tip = commit(world, tree, {"a.txt": "a\n"})
    (action,) = integrate("review", "w1").json["next_actions"]
    assert action["action"] == "approve"
    assert f"--commit {tip}" in action["command"]
    assert "\n" not in action["command"]
    pasted(world, action["command"])
    (action,) = integrate("review", "w1").json["next_actions"]
    assert action["action"] == "merge"


def test_outside_of_its_scope_a_person_must_write_the_reason(world: World, integrate: Call) -> None:
    commit(world, world.quick("w1", owns=["b.txt"]), {"a.txt": "a\n"})
    (action,) = integrate("review", "w1").json["next_actions"]
    assert (action["action"], action["command"]) == ("approve", None)
    assert "--allow-out-of-scope" in action["why"]


def test_work_on_a_moved_base_is_that_of_the_worker_alone(world: World, integrate: Call) -> None:
    tree = world.quick("w1")
    commit(world, tree, {"a.txt": "a\n"}, "mine")
    commit(world, world.repo, {"others.txt": "o\n"}, "of others")
    world.git("merge", "-q", "--no-edit", "main", cwd=tree)
    data = integrate("review", "w1").data
    assert [row["path"] for row in data["files"]] == ["a.txt"]
    assert "of others" not in data["views"]["log"]["text"]
    assert "others.txt" not in data["views"]["diff"]["text"]


def test_a_branch_without_a_common_history_is_shown_whole(world: World, integrate: Call) -> None:
    tree = world.git("rev-parse", "HEAD^{tree}")
    world.git("branch", "other", world.git("commit-tree", tree, "-m", "another start"))
    ran = integrate("review", "--branch", "other", "--base", "main")
    assert flags(ran.data)["unrelated-history"] == ["other"]
    assert [c["subject"] for c in ran.data["commits"]] == ["another start"]
    pasted(world, ran.data["views"]["diff"]["command"])


def test_the_checks_of_a_task_are_those_of_its_run(world: World, integrate: Call) -> None:
    tip = world.git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "x")
    world.git("branch", "build", tip)
    run = world.repo / ".worker-runs" / "r1"
    run.mkdir(parents=True)
    base = world.git("rev-parse", "main")
    step = {"command": "make test", "status": "passed", "exit_code": 0, "log": "tasks/t/v.log"}
    task = {"name": "build", "branch": "build", "base": base, "worktree": None, "status": "passed"}
    manifest = {"schema": 1, "repo": str(world.repo), "integration_branch": "refs/heads/main"}
    tasks = [{**task, "verify": [step, {**step, "log": None, "status": "not-started"}]}]
    (run / "manifest.json").write_text(json.dumps({**manifest, "tasks": tasks}))
    plan = {"schema": 1, "tasks": [{"name": "build", "owns": ["src/**"]}]}
    (run / "plan.json").write_text(json.dumps(plan))
    data = integrate("review", "build", "--run", ".worker-runs/r1").data
    assert [(c["status"], c["log"]) for c in data["checks"]] == [
        ("passed", str(run / "tasks/t/v.log")),
        ("not-started", None),
    ]
    assert data["worker"]["kind"] == "task"
    assert data["worker"]["owns"] == ["src/**"]


def test_the_changelog_entry_is_shown_from_the_worktree(world: World, integrate: Call) -> None:
    tree = world.quick("w1")
    commit(world, tree, {"a.txt": "a\n"})
    assert integrate("review", "w1").data["changelog"]["missing"] is True
    assert "  changelog no entry" in world.run("review", "w1", script=INTEGRATE).out
    write(tree, {".worker-runs/changelog/w1.md": f"### Added\n\n- A thing. token = '{SECRET}'\n"})
    found = integrate("review", "w1").data["changelog"]
    (entry,) = found["entries"]
    assert (entry["source"], entry["path"]) == ("worktree", ".worker-runs/changelog/w1.md")
    assert "- A thing. token = '[redacted]'" in entry["text"]
    assert (found["missing"], found["problems"]) == (False, [])


# --- Limits ---------------------------------------------------------------------------------


def test_long_diffs_leave_whole_files_out_and_say_which(world: World, integrate: Call) -> None:
    tree = world.quick("w1")
    big = "".join(f"line {number}\n" for number in range(9000))
    tip = commit(world, tree, {"a.txt": "a\n", "big one.txt": big, "c.txt": "c\n"})
    ran = integrate("review", "w1")
    diff = ran.data["views"]["diff"]
    assert "+a\n" in diff["text"]
    assert "+c\n" in diff["text"]
    assert "line 1\n" not in diff["text"]
    left = diff["left_out"]
    assert (left["what"], left["count"], left["paths"]) == ("the diff of files", 1, ["big one.txt"])
    actions = {row["action"]: row["command"] for row in ran.json["next_actions"]}
    assert actions["review"] == left["command"]
    assert f"--commit {tip}" in actions["approve"]
    assert "+line 8999\n" in pasted(world, left["command"])
    text = world.run("review", "w1", script=INTEGRATE).out
    assert f"[left out: the diff of files (1): big one.txt\n shown by: {left['command']}]" in text


def test_one_long_file_is_shown_to_a_line_and_the_rest_is_counted(
    world: World, integrate: Call
) -> None:
    big = "".join(f"line {number}\n" for number in range(9000))
    commit(world, world.quick("w1"), {"big.txt": big, "other.txt": "x\n"})
    diff = integrate("review", "w1", "--path", "big.txt").data["views"]["diff"]
    assert diff["text"].endswith("\n")
    assert len(diff["text"]) < 60_001
    shown = diff["text"].count("\n+line")
    assert (diff["left_out"]["what"], diff["left_out"]["count"]) == (
        "lines of the diff of one file",
        9000 - shown,
    )
    full = integrate("review", "w1", "--path", "big.txt", "--full").data["views"]["diff"]
    assert full["left_out"] is None
    assert full["text"].count("\n+line") == 9000


def test_stat_full_and_path_choose_what_is_shown(world: World, integrate: Call) -> None:
    big = "".join(f"line {number}\n" for number in range(9000))
    commit(world, world.quick("w1"), {"a/1.txt": big, "a/2.txt": "2\n", "b.txt": big, "[c": "c\n"})
    stat = integrate("review", "w1", "--stat").data["views"]
    assert stat["diff"]["text"] == ""
    assert stat["diff"]["left_out"]["count"] == 4
    assert "a/1.txt" in stat["stat"]["text"]
    full = integrate("review", "w1", "--full").data["views"]["diff"]
    assert (full["left_out"], full["text"].count("\n+line")) == (None, 18_000)
    some = integrate("review", "w1", "--path", "a", "--path", "[c").data
    assert [row["path"] for row in some["files"]] == ["[c", "a/1.txt", "a/2.txt"]
    assert some["views"]["diff"]["left_out"]["paths"] == ["a/1.txt"]
    assert "b.txt" not in some["views"]["stat"]["text"]
    assert refusal(integrate, 2, "review", "w1", "--stat", "--full")["code"] == "usage"
    assert refusal(integrate, 2, "review", "w1", "--path", "none")["code"] == "unknown-path"


def test_contents_that_are_too_much_are_not_compared(
    world: World, integrate: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fanout import reviewing

    monkeypatch.setattr(reviewing, "COMPARED", 1000)
    monkeypatch.setattr(reviewing, "LOOKED_INTO", 500)
    commit(world, world.quick("w1"), {"a.txt": "a\n" * 400, "b.txt": f"{SECRET}\n" * 40, "c": "c"})
    data = integrate("review", "w1").data
    assert data["views"]["diff"]["left_out"]["paths"] == ["b.txt"]
    assert flags(data)["not-looked-into"] == ["a.txt", "b.txt"]
    assert SECRET not in json.dumps(integrate("review", "w1", "--full").data)


def test_long_lists_end_at_a_limit_and_say_so(
    world: World, integrate: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fanout import reviewing

    monkeypatch.setattr(reviewing, "LISTED", 3)
    monkeypatch.setattr(reviewing, "TEXT_LIMIT", 100)
    tree = world.quick("w1")
    for number in range(4):
        commit(world, tree, {f"{number}.txt": "x\n"}, f"number {number} " + "x" * 40)
    data = integrate("review", "w1").data
    assert (len(data["files"]), len(data["commits"])) == (3, 3)
    assert data["left_out"] == {"commits": 1, "files": 1}
    log = data["views"]["log"]
    assert log["left_out"]["count"] == 4 - log["text"].count("\n")
    assert pasted(world, log["left_out"]["command"]).count("\n") == 4
    full = integrate("review", "w1", "--full").data
    assert (len(full["files"]), len(full["commits"]), full["left_out"]) == (4, 4, {})


# --- Settings, names and contents -----------------------------------------------------------

SETTINGS = {
    "diff.external": "false", "diff.noprefix": "true", "diff.mnemonicPrefix": "true",
    "diff.renames": "false", "diff.context": "0", "diff.algorithm": "patience",
    "diff.relative": "true", "diff.submodule": "log", "diff.ignoreSubmodules": "all",
    "diff.orderFile": "/nonexistent/order", "diff.statGraphWidth": "1",
    "diff.colorMoved": "zebra", "diff.interHunkContext": "50", "diff.suppressBlankEmpty": "true",
    "color.ui": "always", "color.diff": "always", "color.status": "always",
    "core.quotePath": "true", "core.pager": "false", "core.abbrev": "4", "core.fsmonitor": "false",
    "log.showSignature": "true", "log.decorate": "full", "log.abbrevCommit": "false",
    "log.date": "relative", "log.diffMerges": "first-parent", "format.pretty": "fuller",
    "log.follow": "true", "i18n.logOutputEncoding": "ISO-8859-1", "log.mailmap": "true",
    "status.short": "true", "status.branch": "true", "status.showUntrackedFiles": "no",
    "status.relativePaths": "false", "status.renames": "copies", "status.showStash": "true",
    "diff.odd.textconv": "echo odd; false", "diff.odd.command": "false",
    "diff.wsErrorHighlight": "all",
}  # fmt: skip


def test_no_setting_of_the_user_changes_anything(world: World, integrate: Call) -> None:
    tree = world.quick("w1")
    lines = "".join(f"line {number}\n\n" for number in range(30))
    commit(world, tree, {"ä.txt": lines, ".gitattributes": "*.txt diff=odd\n"}, "ä")
    world.git("mv", "ä.txt", "b.txt", cwd=tree)
    commit(world, tree, {"b.txt": lines + "x\n"}, "move")
    write(tree, {"untracked ä": "x\n"})
    before = integrate("review", "w1").data
    with (world.root / "gitconfig").open("a") as file:
        for key, value in SETTINGS.items():
            section, _, name = key.rpartition(".")
            head, _, sub = section.partition(".")
            title = f'{head} "{sub}"' if sub else head
            file.write(f"[{title}]\n\t{name} = {value}\n")
    after = integrate("review", "w1").data
    for name, view in before.pop("views").items():
        assert after["views"].pop(name) == view, name
    assert after == {**before, "views": {}}


@pytest.mark.parametrize("how", ["-diff", "binary", "diff=odd"])
def test_no_attribute_hides_the_text_of_a_file(world: World, integrate: Call, how: str) -> None:
    world.git("config", "diff.odd.binary", "true")
    world.git("config", "diff.odd.textconv", "true")
    tree = world.quick("w1")
    commit(world, tree, {".gitattributes": f"*.py {how}\n", "evil.py": "steal()\n", "b.txt": "b\n"})
    world.commit("the attributes of the main checkout count", world.repo)
    write(world.repo, {".gitattributes": f"*.py {how}\n"})
    data = integrate("review", "w1").data
    assert "+steal()\n" in data["views"]["diff"]["text"]
    assert "+b\n" in data["views"]["diff"]["text"]
    assert flags(data).get("hidden-by-attributes") == ["evil.py"]


ODD = [
    "a b", "it's", 'q"q', "tab\there", "line\nbreak", "back\\slash", "*", "[x]", ":(top)x", "-rf",
    "ünï", "x\ndiff --git a/y b/y", "\x1b[31mred", " lead", "trail ", "$(touch x)", "a;b", "#c",
]  # fmt: skip


def test_file_names_of_any_bytes(world: World, integrate: Call) -> None:
    tree = world.quick("w1", owns=["a*"])
    commit(world, tree, dict.fromkeys(ODD, "x\n"))
    (tree / os.fsdecode(b"latin-\xe9")).write_text("x\n")
    world.commit("latin", tree)
    write(tree, {"un\ntracked": "x\n"})
    data = integrate("review", "w1").data
    names = [*ODD, os.fsdecode(b"latin-\xe9")]
    assert sorted(row["path"] for row in data["files"]) == sorted(names)
    assert {row["path"] for row in data["files"] if row["in_scope"]} == {"a b", "a;b"}
    assert data["views"]["diff"]["left_out"] is None
    assert data["views"]["diff"]["text"].count("\n+x\n") == len(names)
    assert data["uncommitted"] == ["un\ntracked"]
    json.dumps(data["views"]).encode()
    for name in names:
        only = integrate("review", "w1", "--path", name).data
        assert [row["path"] for row in only["files"]] == [name]
        assert only["views"]["diff"]["text"].count("\n+x\n") == 1
    ran = world.run("review", "w1", script=INTEGRATE)
    assert ran.code == 0
    assert "\x1b" not in ran.out + ran.err


def test_contents_of_any_bytes(world: World, integrate: Call) -> None:
    """C16."""
    tree = world.quick("w1")
    files: dict[str, str | bytes] = {
        "latin": b"caf\xe9\n", "nul": b"a\0b\n", "escape": b"\x1b]0;owned\x07\x1b[2Jx\n",
        "crlf": b"a\r\nb\r\n", "utf16": "x\n".encode("utf-16"), "none": b"", "no end": b"x",
    }  # fmt: skip
    commit(world, tree, files, "w\x1b[31mork")
    world.git("-c", "i18n.commitEncoding=ISO-8859-1", "commit", "-q", "--allow-empty", "-m",
              os.fsdecode(b"caf\xe9"), cwd=tree)  # fmt: skip
    ran = integrate("review", "w1")
    text = ran.data["views"]["diff"]["text"]
    assert "+café\n" in text
    assert "Binary files /dev/null and b/nul differ" in text
    assert flags(ran.data)["binary"] == ["nul", "utf16"]
    assert ran.data["commits"][0]["subject"] == "café"
    shown = world.run("review", "w1", script=INTEGRATE)
    assert "\x1b" not in shown.out
    assert "owned" not in shown.out


def test_a_file_that_becomes_a_link_and_one_that_only_gets_a_mode(
    world: World, integrate: Call
) -> None:
    commit(world, world.repo, {"a": "a\n", "b": "b\n", "c": "c\n", "z": "z\n"})
    tree = world.quick("w1")
    (tree / "a").unlink()
    (tree / "a").symlink_to("/etc/passwd")
    (tree / "b").chmod(0o755)
    world.git("mv", "z", "d", cwd=tree)
    commit(world, tree, {"c": "changed\n"})
    data = integrate("review", "w1").data
    assert [(row["path"], row["status"]) for row in data["files"]] == [
        ("a", "T"), ("b", "M"), ("c", "M"), ("d", "A"), ("z", "D"),
    ]  # fmt: skip
    assert flags(data) == {
        "symlink": ["a"],
        "mode-changed": ["b"],
        "new-executable": ["b"],
    }
    for path, words in {"a": "+/etc/passwd", "b": "new mode 100755", "c": "+changed"}.items():
        assert words in integrate("review", "w1", "--path", path).data["views"]["diff"]["text"]
    assert "rename from z" in data["views"]["diff"]["text"]


def test_a_submodule_that_moves_is_flagged(world: World, integrate: Call) -> None:
    lib = world.make_repo("lib")
    world.git("submodule", "--quiet", "add", str(lib), "lib")
    world.commit("add lib")
    tree = world.quick("w1")
    moved = world.git("commit-tree", "HEAD^{tree}", "-m", "x", cwd=lib)
    world.git("update-index", "--cacheinfo", f"160000,{moved},lib", cwd=tree)
    world.git("commit", "-q", "-m", "move lib", cwd=tree)
    data = integrate("review", "w1").data
    assert flags(data)["submodule"] == ["lib"]
    assert f"+Subproject commit {moved}" in data["views"]["diff"]["text"]


# --- Secrets --------------------------------------------------------------------------------


def test_a_secret_is_named_by_its_line_and_shown_nowhere(world: World, integrate: Call) -> None:
    tree = world.quick("w1")
    commit(world, tree, {"a.py": f"x = 1\ntoken = '{SECRET}'\n"}, f"use {SECRET}")
    commit(world, tree, {"late.py": f"# {SECRET}\n"}, "again")
    commit(world, tree, {"late.py": "# gone\n"}, "take it out")
    key = "-----BEGIN RSA PRIVATE KEY-----\n" + "QUJDREVGR0hJSktM\n" * 3
    commit(world, tree, {"key.pem": key + "-----END RSA PRIVATE KEY-----\n"}, "key")
    found = flags(integrate("review", "w1").data)
    assert found["secret"] == ["a.py:2", "key.pem:1", "key.pem:2", "key.pem:3", "key.pem:4"]
    (row,) = found["secret-in-history"]
    assert row.endswith(":late.py:1")
    assert SECRET in world.git("show", row.rpartition(":")[0], cwd=tree)
    for words in ([], ["--full"], ["--stat"], ["--path", "a.py"], ["--path", "key.pem"]):
        for as_json in (True, False):
            ran = integrate("review", "w1", *words, as_json=as_json)
            assert ran.code == 0
            assert SECRET not in ran.out + ran.err
            assert "QUJDREVGR0hJSktM" not in ran.out + ran.err
    assert "+token = '[redacted]'" in integrate("review", "w1").data["views"]["diff"]["text"]


def test_a_secret_that_was_there_before_is_not_shown_either(world: World, integrate: Call) -> None:
    lines = "".join(f"line {number}\n" for number in range(9))
    body = "".join(f"{'QUJDREVGR0hJSktM' * 4}\n" for _ in range(9))
    key = f"-----BEGIN PRIVATE KEY-----\n{body}-----END PRIVATE KEY-----\n"
    commit(world, world.repo, {"a": f"k = '{SECRET}'\n{lines}", "key": key + lines, "old": key})
    tree = world.quick("w1")
    changed = key.replace(body, body.replace("QUJD", "WFla", 1))
    commit(world, tree, {"a": f"k = '{SECRET}'\nnew\n{lines}", "key": changed + lines})
    world.git("rm", "-q", "old", cwd=tree)
    world.commit("take old away", tree)
    data = integrate("review", "w1", "--full").data
    assert flags(data) == {"secret": ["key:2"]}
    shown = json.dumps(data)
    for value in (SECRET, "REVGR0hJSktM"):
        assert value not in shown


def test_the_text_for_a_person(world: World) -> None:
    tree = world.quick("w1", owns=["b.txt"])
    tip = commit(world, tree, {"a.txt": "a\n"})
    ran = world.run("review", "w1", script=INTEGRATE)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == "w1: 1 commits, 1 files"
    assert f"  head      {tip}" in lines
    assert "  flag      out-of-scope: a.txt" in lines
    assert any(line.startswith("$ git -C ") and line.endswith(f"...{tip}") for line in lines)
    assert "+a" in lines
    commands = [line[2:] for line in lines if line.startswith("$ ")]
    assert [shlex.split(command)[3] for command in commands] == ["status", "log", "diff", "diff"]
