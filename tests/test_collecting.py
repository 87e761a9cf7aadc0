"""What `collect` commits, what it leaves as it is, and when it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inside import Call, integrate, refusal
from world import SCRIPTS, World

__all__ = ["integrate"]
INTEGRATE = SCRIPTS / "integrate_workers.py"


def write(tree: Path, files: dict[str, str | bytes]) -> None:
    """Write files into a tree."""
    for name, content in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def committed(world: World, tree: Path) -> list[str]:
    """The paths of the newest commit of a tree, sorted."""
    names = world.git("show", "--format=", "--name-only", "--no-renames", "-z", "HEAD", cwd=tree)
    return sorted(name for name in names.split("\0") if name)


def status(world: World, tree: Path) -> list[str]:
    """The lines of `git status` of a tree."""
    done = subprocess.run(
        ["git", "status", "--short", "-uall", "--no-renames"],
        cwd=tree, env=world.env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


# --- What is committed ----------------------------------------------------------------------


def test_what_was_left_is_committed_on_the_branch(world: World, integrate: Call) -> None:
    write(world.repo, {"gone.txt": "x\n", "run.sh": "#!/bin/sh\n", "link": "x\n"})
    world.commit("more")
    tree = world.quick("w1")
    before = world.git("rev-parse", "w1")
    write(tree, {"README.md": "changed\n", "new/deep.txt": "n\n"})
    (tree / "gone.txt").unlink()
    (tree / "run.sh").chmod(0o755)
    (tree / "link").unlink()
    (tree / "link").symlink_to("README.md")
    main = world.git("rev-parse", "main")
    content = world.bytes_of(tree)
    ran = integrate("collect", "w1")
    assert ran.code == 0, ran
    paths = ["README.md", "gone.txt", "link", "new/deep.txt", "run.sh"]
    assert (ran.data["paths"], ran.data["left"]) == (paths, [])
    assert committed(world, tree) == paths
    assert ran.data["before"] == before == world.git("rev-parse", "w1~1")
    assert ran.data["commit"] == world.git("rev-parse", "w1")
    assert world.git("rev-parse", "main") == main
    assert ran.data["worker"]["head"] == ran.data["commit"]
    assert status(world, tree) == []
    assert world.bytes_of(tree) == content
    assert "collect" in world.git("reflog", "-1", "w1")
    (action,) = ran.json["next_actions"]
    assert action["action"] == "review"


def test_the_message_says_who_made_it_and_who_committed_it(world: World, integrate: Call) -> None:
    tree = world.quick("w1", executable="/opt/bin/codex")
    write(tree, {"a.txt": "a\n"})
    message = world.root / "message"
    message.write_text("\nWhat it does: ünï.\n\nAnd why.\n")
    integrate("collect", "w1", "--message-file", str(message))
    assert world.git("log", "-1", "--format=%B", cwd=tree).strip() == (
        "w1: work that was left uncommitted\n\nWhat it does: ünï.\n\nAnd why.\n\n"
        "Made-by: worker w1 (codex)\nCommitted-by: Test <test@example.invalid>"
    )
    for content in (b"\xff", b"a\0b", b"x" * 100_001):
        message.write_bytes(content)
        error = refusal(integrate, 2, "collect", "w1", "--message-file", str(message))
        assert error["code"] == "message-unreadable"
    error = refusal(integrate, 2, "collect", "w1", "--message-file", str(world.root / "none"))
    assert error["code"] == "message-unreadable"


def test_every_path_is_listed_before_anything_is_committed(world: World) -> None:
    tree = world.quick("w1")
    write(tree, {"a.txt": "a\n", "b \x1b[31m\n.txt": "b\n"})
    dry = world.run("collect", "w1", "--dry-run", script=INTEGRATE)
    shown = '"b \\033[31m\\n.txt"'
    assert dry.out.startswith(f"w1: 2 files would be committed\n  a.txt\n  {shown}\n")
    ran = world.run("collect", "w1", script=INTEGRATE)
    assert ran.err.startswith(f"committing 2 files:\na.txt\n{shown}\n")
    assert ran.out.startswith("w1: 2 files committed as ")


def test_a_dry_run_changes_nothing(world: World, integrate: Call) -> None:
    tree = world.quick("w1", owns=["a.txt"])
    write(tree, {"a.txt": "a\n", "b.txt": "b\n"})
    index = (world.repo / ".git" / "worktrees" / "w1" / "index").read_bytes()
    before = world.snapshot()
    ran = integrate("collect", "w1", "--dry-run", "--only=*")
    data = ran.data
    assert (data["dry_run"], data["commit"], data["paths"]) == (True, None, ["a.txt", "b.txt"])
    assert world.snapshot() == before
    assert (world.repo / ".git" / "worktrees" / "w1" / "index").read_bytes() == index
    (action,) = ran.json["next_actions"]
    assert action["command"].count("collect w1 '--only=*'") == 1


def test_only_what_it_owns_is_taken_unless_told_otherwise(world: World, integrate: Call) -> None:
    tree = world.quick("w1", owns=["src/**", "docs/*.md"])
    write(tree, {"src/deep/a.py": "a\n", "docs/a.md": "d\n", "docs/x/b.md": "b\n", "c.txt": "c\n"})
    data = integrate("collect", "w1").data
    assert data["paths"] == ["docs/a.md", "src/deep/a.py"]
    assert data["left_because"] == {"c.txt": "out-of-scope", "docs/x/b.md": "out-of-scope"}
    assert status(world, tree) == ["?? c.txt", "?? docs/x/b.md"]
    refused = integrate("collect", "w1")
    assert (refused.code, refused.error["code"]) == (3, "nothing-to-collect")
    assert refused.data["left"] == ["c.txt", "docs/x/b.md"]
    data = integrate("collect", "w1", "--only", "docs/**").data
    assert (data["paths"], data["left_because"]) == (["docs/x/b.md"], {"c.txt": "not-chosen"})
    assert refusal(integrate, 2, "collect", "w1", "--only=")["code"] == "usage"


def test_ignored_files_copies_and_records_are_never_taken(world: World, integrate: Call) -> None:
    from fanout.workers import fingerprint

    tree = world.quick("w1")
    write(tree, {".gitignore": "*.log\n.env\n", "a.txt": "a\n", "x.log": "l\n", ".env": "K=V\n"})
    write(tree, {"forced.log": "f\n", "copied.txt": "ours\n", ".worker-runs/events.jsonl": "{}\n"})
    (world.repo / ".git" / "info" / "exclude").write_text("")
    world.git("add", "-f", "forced.log", cwd=tree)
    record = world.record("w1") / "worker.json"
    copied = {"copied.txt": fingerprint(str(tree / "copied.txt"))}
    record.write_text(json.dumps({**json.loads(record.read_text()), "copied": copied}))
    data = integrate("collect", "w1", "--only", "**").data
    assert data["paths"] == [".gitignore", "a.txt"]
    assert data["left_because"] == {"forced.log": "ignored"}
    assert "A  forced.log" in status(world, tree)
    for name in ("x.log", ".env", "forced.log", "copied.txt", ".worker-runs/events.jsonl"):
        assert (tree / name).exists()


def test_a_tracked_file_that_is_ignored_is_collected(world: World, integrate: Call) -> None:
    write(world.repo, {"kept.log": "k\n"})
    world.commit("a log")
    tree = world.quick("w1")
    write(tree, {".gitignore": "*.log\n", "kept.log": "changed\n"})
    world.git("add", "-A", cwd=tree)
    assert integrate("collect", "w1").data["paths"] == [".gitignore", "kept.log"]


def test_other_staged_things_stay_as_they_were(world: World, integrate: Call) -> None:
    write(world.repo, {"b.txt": "b\n", "c.txt": "c\n"})
    world.commit("more")
    tree = world.quick("w1", owns=["a*"])
    write(tree, {"a.txt": "staged\n", "b.txt": "staged b\n", "new.txt": "staged n\n", "a2": "x\n"})
    world.git("add", "a.txt", "b.txt", "new.txt", cwd=tree)
    world.git("rm", "-q", "--cached", "c.txt", cwd=tree)
    write(tree, {"a.txt": "final\n", "b.txt": "later b\n"})
    world.git("update-index", "--chmod=+x", "a.txt", cwd=tree)
    world.git("config", "core.fileMode", "false")
    staged = world.git("ls-files", "-s", "b.txt", "new.txt", cwd=tree)
    data = integrate("collect", "w1").data
    assert data["paths"] == ["a.txt", "a2"]
    assert data["left"] == ["b.txt", "c.txt", "new.txt"]
    assert world.git("show", "HEAD:a.txt", cwd=tree) == "final"
    assert world.git("ls-tree", "HEAD", "a.txt", cwd=tree).startswith("100755 ")
    assert world.git("ls-files", "-s", "b.txt", "new.txt", cwd=tree) == staged
    assert status(world, tree) == ["MM b.txt", "D  c.txt", "A  new.txt", "?? c.txt"]


NAMES = [
    "a b", "it's", 'q"q', "tab\there", "line\nbreak", "back\\slash", "*", "[ab]", ":(top)x", "-rf",
    "ünï", " lead", "trail ", "$(touch x)", ":!x", "#c", os.fsdecode(b"latin-\xe9"),
]  # fmt: skip


def test_names_are_taken_as_they_are(world: World, integrate: Call) -> None:
    tree = world.quick("w1", owns=[*(n.replace("\\", "?").replace("[", "?") for n in NAMES)])
    # A pathspec `*` or `[ab]` would take these as well.
    write(tree, {**dict.fromkeys(NAMES, "x\n"), "b": "mine\n", "zz": "mine\n"})
    data = integrate("collect", "w1", *(f"--only={n}" for n in ("?*b]", "-rf", "ünï"))).data
    assert data["paths"] == ["-rf", "[ab]", "ünï"]
    assert committed(world, tree) == ["-rf", "[ab]", "ünï"]
    data = integrate("collect", "w1", "--only=**").data
    assert len(data["paths"]) == len(NAMES) - 3 + 2
    assert status(world, tree) == []


def test_submodules_repositories_and_hidden_edits_are_left(world: World, integrate: Call) -> None:
    lib = world.make_repo("lib")
    world.git("submodule", "--quiet", "add", str(lib), "lib")
    write(world.repo, {"hidden.txt": "h\n"})
    world.commit("add lib")
    tree = world.quick("w1")
    moved = world.git("commit-tree", "HEAD^{tree}", "-m", "x", cwd=lib)
    world.git("update-index", "--cacheinfo", f"160000,{moved},lib", cwd=tree)
    world.git("update-index", "--assume-unchanged", "hidden.txt", cwd=tree)
    world.git("init", "-q", str(tree / "nested"))
    world.commit("inner", tree / "nested")
    write(tree, {"hidden.txt": "edited\n", "a.txt": "a\n"})
    data = integrate("collect", "w1").data
    assert data["paths"] == ["a.txt"]
    assert data["left_because"] == {
        "hidden.txt": "hidden", "lib": "submodule", "nested/": "repository",
    }  # fmt: skip
    assert world.git("ls-files", "-v", "hidden.txt", cwd=tree).startswith("h ")


def test_contents_are_what_git_add_makes_of_them(world: World, integrate: Call) -> None:
    """Filters and line ends count as in any other commit."""
    world.git("config", "filter.up.clean", "tr a-z A-Z")
    tree = world.quick("w1")
    write(tree, {".gitattributes": "*.up filter=up\n*.txt text eol=crlf\n", "a.up": "abc\n"})
    write(tree, {"w.txt": "one\r\ntwo\r\n", "bin": bytes(range(256))})
    integrate("collect", "w1")
    assert world.git("show", "HEAD:a.up", cwd=tree) == "ABC"
    shown = subprocess.run(
        ["git", "show", "HEAD:w.txt"], cwd=tree, env=world.env, capture_output=True, check=True
    )
    assert shown.stdout == b"one\ntwo\n"
    assert status(world, tree) == []


def test_a_branch_of_any_harness_is_collected_in_its_checkout(
    world: World, integrate: Call
) -> None:
    other = world.root / "other tree"
    world.git("worktree", "add", "-q", "-b", "topic/x", str(other))
    world.git("tag", "topic/x")
    write(other, {"a.txt": "a\n"})
    data = integrate("collect", "--branch", "topic/x", "--base", "main").data
    assert data["commit"] == world.git("rev-parse", "refs/heads/topic/x")
    assert committed(world, other) == ["a.txt"]
    world.git("branch", "bare")
    error = refusal(integrate, 3, "collect", "--branch", "bare", "--base", "main")
    assert error["code"] == "no-worktree"


# --- Settings that must not matter ----------------------------------------------------------


def test_no_hook_no_template_and_no_setting_has_a_say(world: World, integrate: Call) -> None:
    tree = world.quick("w1")
    hooks = world.repo / ".git" / "hooks"
    for name in ("pre-commit", "commit-msg", "post-commit", "prepare-commit-msg",
                 "reference-transaction", "post-index-change"):  # fmt: skip
        (hooks / name).write_text(f"#!/bin/sh\ntouch {world.root}/ran-{name}\nexit 1\n")
        (hooks / name).chmod(0o755)
    for key, value in {
        "commit.template": "/nonexistent", "core.editor": "false", "commit.cleanup": "strip",
        "status.showUntrackedFiles": "no", "i18n.commitEncoding": "ISO-8859-1", "add.ignoreErrors":
        "true", "core.quotePath": "false", "diff.renames": "copies", "commit.verbose": "true",
    }.items():  # fmt: skip
        world.git("config", key, value)
    write(tree, {"a.txt": "a\n"})
    message = world.root / "message"
    message.write_text("# not a comment: ünï\n")
    ran = integrate("collect", "w1", "--message-file", str(message))
    assert ran.code == 0, ran
    assert not list(world.root.glob("ran-*"))
    said = world.git("log", "-1", "--format=%B", "--encoding=UTF-8", cwd=tree)
    assert "\n# not a comment: ünï\n" in said


@pytest.mark.parametrize("script", ["sleep 60", "exit 1"])
def test_a_signature_that_cannot_be_made_fails_in_time(
    world: World, integrate: Call, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """I28."""
    from fanout import integrations

    def impatient(where: str) -> integrations.Signing:
        return integrations.signing_of(where)._replace(limit=0.5)

    monkeypatch.setattr("fanout.collecting.signing_of", impatient)
    tree = world.quick("w1")
    gpg = world.root / "bin" / "gpg-odd"
    gpg.write_text(f"#!/bin/sh\nexec {script}\n" if "sleep" in script else f"#!/bin/sh\n{script}\n")
    gpg.chmod(0o755)
    world.git("config", "commit.gpgSign", "true")
    world.git("config", "gpg.program", str(gpg))
    write(tree, {"a.txt": "a\n"})
    before = (world.snapshot(), status(world, tree))
    assert refusal(integrate, 1, "collect", "w1")["code"] == "signing-failed"
    assert (world.snapshot(), status(world, tree)) == before


def test_git_must_know_who_commits(world: World, integrate: Call) -> None:
    write(world.quick("w1"), {"a.txt": "a\n"})
    world.git("config", "user.useConfigOnly", "true")
    world.git("config", "user.name", "")
    (world.root / "gitconfig").write_text("")
    assert refusal(integrate, 4, "collect", "w1")["code"] == "no-identity"


# --- What refuses ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("MERGE_HEAD", "operation-in-progress"),
        ("rebase-merge", "operation-in-progress"),
        ("index.lock", "index-locked"),
    ],
)
def test_a_tree_that_git_is_at_work_in_is_left_alone(
    world: World, integrate: Call, name: str, code: str
) -> None:
    """W59: a lock file is told with its age, and stays."""
    tree = world.quick("w1")
    write(tree, {"a.txt": "a\n"})
    path = world.repo / ".git" / "worktrees" / "w1" / name
    path.write_text(world.git("rev-parse", "HEAD") + "\n")
    before = world.snapshot()
    error = refusal(integrate, 3, "collect", "w1")
    assert error["code"] == code
    assert name in error["message"]
    assert path.exists()
    assert world.snapshot() == before


def test_conflicts_are_left_to_whoever_made_them(world: World, integrate: Call) -> None:
    tree = world.quick("w1")
    world.commit("x", world.repo)
    blob = world.git("rev-parse", "HEAD:README.md")
    rows = f"0 {'0' * 40}\tREADME.md\n"
    rows += "".join(f"100644 {blob} {stage}\tREADME.md\n" for stage in (1, 2, 3))
    subprocess.run(
        ["git", "update-index", "--index-info"],
        cwd=tree, env=world.env, input=rows.encode(), check=True,
    )  # fmt: skip
    error = refusal(integrate, 3, "collect", "w1")
    assert (error["code"], "README.md" in error["message"]) == ("conflicted", True)


@pytest.mark.parametrize("how", ["other", "detached"])
def test_a_tree_on_another_branch_is_refused(world: World, integrate: Call, how: str) -> None:
    tree = world.quick("w1")
    words = ["-b", "elsewhere"] if how == "other" else ["--detach"]
    world.git("checkout", "-q", *words, cwd=tree)
    write(tree, {"a.txt": "a\n"})
    before = world.snapshot()
    assert refusal(integrate, 3, "collect", "w1")["code"] == "worktree-mismatch"
    assert world.snapshot() == before


def test_a_clean_tree_has_nothing_to_collect(world: World, integrate: Call) -> None:
    tree = world.quick("w1")
    assert refusal(integrate, 3, "collect", "w1")["code"] == "nothing-to-collect"
    os.utime(tree / "README.md")
    assert refusal(integrate, 3, "collect", "w1")["code"] == "nothing-to-collect"


def test_a_worker_that_another_command_holds_is_busy(world: World, integrate: Call) -> None:
    from fanout import records

    write(world.quick("w1"), {"a.txt": "a\n"})
    with records.lock(str(world.repo / ".git"), "worker-w1", wait=0, what="it"):
        assert refusal(integrate, 11, "collect", "w1")["code"] == "busy"


def test_an_agent_at_work_is_not_disturbed(world: World) -> None:
    """Only an open job counts: an agent that waits for its next prompt does nothing."""
    world.spawn("w1", "@write a.txt hello")
    before = world.snapshot()
    error = world.refused(3, "collect", "w1", script=INTEGRATE)
    assert error["code"] == "still-working"
    assert "running" in error["message"]
    assert world.snapshot() == before
    command = [sys.executable, str(SCRIPTS / "agent_workers.py"), "event", "completed"]
    subprocess.run(command, cwd=world.tree("w1"), env=world.env, check=True, capture_output=True)
    assert world.ok("collect", "w1", script=INTEGRATE)["paths"] == ["a.txt"]


def test_an_agent_that_has_ended_can_be_collected(world: World) -> None:
    tree = world.idle("w1")
    write(tree, {"a.txt": "a\n"})
    assert world.ok("collect", "w1", script=INTEGRATE)["paths"] == ["a.txt"]


def test_an_unknown_state_is_no_leave(world: World, integrate: Call) -> None:
    write(world.quick("w1", phase="spawning"), {"a.txt": "a\n"})
    error = refusal(integrate, 3, "collect", "w1")
    assert (error["code"], "unknown" in error["message"]) == ("still-working", True)


@pytest.mark.parametrize(("state", "code"), [("running", 3), ("passed", 0), ("failed", 0)])
def test_a_task_is_collected_when_its_run_has_left_it(
    world: World, integrate: Call, state: str, code: int
) -> None:
    tree = world.root / "build tree"
    world.git("worktree", "add", "-q", "-b", "build", str(tree))
    write(tree, {"src/a.txt": "a\n", "b.txt": "b\n"})
    run = world.repo / ".worker-runs" / "r1"
    run.mkdir(parents=True)
    task: dict[str, Any] = {
        "name": "build", "branch": "build", "base": world.git("rev-parse", "main"),
        "worktree": str(tree), "status": state, "verify": [],
    }  # fmt: skip
    head = {"schema": 1, "repo": str(world.repo), "integration_branch": "refs/heads/main"}
    (run / "manifest.json").write_text(json.dumps({**head, "tasks": [task]}))
    plan = {"schema": 1, "tasks": [{"name": "build", "owns": ["src/**"]}]}
    (run / "plan.json").write_text(json.dumps(plan))
    ran = integrate("collect", "build", "--run", str(run))
    assert ran.code == code
    if code == 0:
        assert (ran.data["paths"], ran.data["left"]) == (["src/a.txt"], ["b.txt"])


# --- Kills and races ------------------------------------------------------------------------


def killed_at(world: World, words: str, moment: str) -> None:
    """Run `collect` with a git that ends the command before or after one of its calls."""
    shim = world.root / "killing" / "git"
    shim.parent.mkdir(exist_ok=True)
    real = subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout
    kill = "kill -9 $PPID; sleep 0.1; exit 1"
    body = f"{kill}" if moment == "before" else f'{real.strip()} "$@"\n{kill}'
    shim.write_text(
        f'#!/bin/sh\ncase " $* " in *" {words} "*)\n{body};;\nesac\nexec {real.strip()} "$@"\n'
    )
    shim.chmod(0o755)
    env = {"PATH": f"{shim.parent}:{world.env['PATH']}"}
    assert world.run("collect", "w1", script=INTEGRATE, env=env).code == -9


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "words", ["read-tree", "add --all", "write-tree", "commit-tree", "reset --quiet", "update-ref"]
)
def test_a_kill_at_any_step_loses_nothing(world: World, words: str, moment: str) -> None:
    tree = world.quick("w1", owns=["a*"])
    write(tree, {"a.txt": "a\n", "b.txt": "b\n", "README.md": "edited\n"})
    world.git("add", "b.txt", cwd=tree)
    before = world.bytes_of(tree)
    killed_at(world, words, moment)
    assert world.bytes_of(tree) == before
    assert world.git("show", ":b.txt", cwd=tree) == "b"
    ran = world.run("collect", "w1", "--json", script=INTEGRATE)
    done = (words, moment) == ("update-ref", "after")
    assert ran.code == (3 if done else 0), ran
    assert committed(world, tree) == ["a.txt"]
    assert world.git("rev-list", "--count", "main..w1") == "1"
    assert status(world, tree) == [" M README.md", "A  b.txt"]
    assert world.bytes_of(tree) == before
    assert not list(world.record("w1").glob("collecting*"))


def test_a_branch_that_moves_meanwhile_is_not_moved_back(world: World) -> None:
    """An agent commits between the look and the last step."""
    tree = world.quick("w1")
    write(tree, {"a.txt": "a\n"})
    real = subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout
    shim = world.root / "racing" / "git"
    shim.parent.mkdir()
    shim.write_text(
        '#!/bin/sh\ncase " $* " in *" update-ref "*)\n'
        f"{real.strip()} -C {tree} commit -q --allow-empty -m theirs;;\nesac\n"
        f'exec {real.strip()} "$@"\n'
    )
    shim.chmod(0o755)
    env = {"PATH": f"{shim.parent}:{world.env['PATH']}"}
    ran = world.run("collect", "w1", "--json", script=INTEGRATE, env=env)
    assert (ran.code, ran.error["code"]) == (1, "git-failed")
    assert world.git("log", "--format=%s", "main..w1", cwd=tree) == "theirs"
    assert (tree / "a.txt").read_text() == "a\n"
