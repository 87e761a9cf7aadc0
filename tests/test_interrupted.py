"""Merges that are killed in the middle of a git command, with what the user does afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from fanout import publishing
from fanout.errors import SkillError
from integration_fire import NOTE as CHECK
from integration_fire import Scene
from under_fire import Called
from world import SCRIPTS, wait_for

INTEGRATE = SCRIPTS / "integrate_workers.py"
# A filter or hook that says that its moment has come, and goes on when it may.
HOLD = (
    '[ ! -e "$WORLD/hold" ] || touch "$WORLD/moment"; '
    'while [ -e "$WORLD/hold" ] && [ -d "$WORLD" ]; do sleep 0.02; done'
)


class Held(Scene):
    """A merge that git holds in the middle of its work."""

    def __init__(self) -> None:
        super().__init__()
        self.hold = self.world.root / "hold"
        self.moment = self.world.root / "moment"
        self.world.git("config", "filter.slow.smudge", f"{HOLD}; cat")
        self.world.git("config", "filter.slow.clean", "cat")

    def integrate(self, *argv: str, kill_at: int = 0) -> Called:
        """Run integrate_workers.py as a program: a test runner has threads, and cannot fork."""
        ran = self.world.run(argv[0], "--json", *argv[1:], script=INTEGRATE)
        return Called(ran.code, ran.json)

    def ready(self, name: str = "w1") -> str:
        """A worker whose work is approved; its head."""
        head = self.work(name)
        self.approve(name)
        return head

    def slow(self, *paths: str) -> None:
        """Git is held when it writes one of these files into the checkout."""
        info = self.world.repo / ".git" / "info"
        (info / "attributes").write_text("".join(f"{path} filter=slow\n" for path in paths))

    def hook(self, state: str) -> None:
        """Git is held in this state of the transaction that moves the branch."""
        hook = self.world.repo / ".git" / "hooks" / "reference-transaction"
        hook.write_text(
            f'#!/bin/sh\nif [ "$1" = {state} ] && grep -q refs/heads/main; then {HOLD}; fi\n'
        )
        hook.chmod(0o755)

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        """Start a call that will be held, and wait for that moment."""
        # Only what follows the check is to be held: a tree for checks is filled by git as well.
        process = subprocess.Popen(
            [sys.executable, str(INTEGRATE), *argv], cwd=self.world.repo, env=self.world.env,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        wait_for(lambda: self.moment.exists() or process.poll() is not None, "the moment", 60)
        self.moment.unlink()
        return process

    def start_merge(self, name: str = "w1") -> subprocess.Popen[bytes]:
        """Start a merge; its check is the last thing before it may be held."""
        return self.start("merge", name, "--check", f'{CHECK}; touch "$WORLD/hold"')

    def kill(self, process: subprocess.Popen[bytes], *, group: bool) -> None:
        """Kill the command alone, or with all that it has started."""
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait(30)

    def free(self) -> None:
        """Let git go on, without any hook, and delete the locks that a kill has left."""
        self.release()
        (self.world.repo / ".git" / "hooks" / "reference-transaction").unlink()
        for lock in locks(self):
            lock.unlink()

    def release(self) -> None:
        """Let git go on."""
        self.hold.unlink()


@pytest.fixture
def held() -> Generator[Held, None, None]:
    scene = Held()
    try:
        yield scene
    finally:
        scene.world.close()


# Git removes first, then it writes deep, kind, mode, new-w1, old-w1, state.


@pytest.mark.parametrize("path", ["new-w1"])
def test_killed_alone_while_the_checkout_follows(held: Held, path: str) -> None:
    held.ready()
    held.slow(path)
    before = held.tip()
    process = held.start_merge()
    held.kill(process, group=False)
    held.require_mine()
    again = subprocess.Popen(
        [sys.executable, str(INTEGRATE), *held.merge_words("w1"), "--json"], cwd=held.world.repo,
        env=held.world.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    # It waits for the git command that goes on.
    with pytest.raises(subprocess.TimeoutExpired):
        again.wait(0.5)
    assert held.tip() == before
    held.release()
    out, _ = again.communicate(timeout=60)
    assert again.returncode == 0, out
    assert held.tip() != before
    assert held.is_tested(held.tip())
    held.require_settled()


def killed_with_all(held: Held, path: str) -> str:
    """Kill command and git at the moment when this path is written; the branch's commit."""
    held.ready()
    held.slow(path)
    before = held.tip()
    held.kill(held.start_merge(), group=True)
    held.release()
    assert held.tip() == before
    held.require_mine()
    return before


def unlock(held: Held, *words: str) -> None:
    """The next call refuses and names every lock that git left; the user deletes them."""
    called = held.integrate(*words)
    assert (called.code, called.error) == (3, "git-locked"), called
    left = locks(held)
    assert left
    for lock in left:
        assert str(lock) in called.answer["error"]["message"], called
        lock.unlink()


def locks(held: Held) -> list[Path]:
    """The locks of git's that a kill may leave."""
    git = held.world.repo / ".git"
    places = (git / "index.lock", git / "HEAD.lock", git / "refs" / "heads" / "main.lock")
    return [place for place in places if place.exists()]


@pytest.mark.parametrize("path", ["deep/w1/er"])
def test_killed_with_git_while_the_checkout_follows(held: Held, path: str) -> None:
    before = killed_with_all(held, path)
    unlock(held, *held.merge_words("w1"))
    held.must(*held.merge_words("w1"))
    assert held.tip() != before
    assert held.is_tested(held.tip())
    held.require_settled()


def test_what_the_user_does_after_the_kill_is_kept(held: Held) -> None:
    killed_with_all(held, "state")
    world = held.world
    # Half of it has come: the file that is gone, the new ones; `state` is not written yet.
    assert not (world.repo / "old").exists()
    assert (world.repo / "new-w1").exists()
    # In a file that came, over one that was to change, in place of a file that went, over a link.
    held.edit("new-w1", "mine\n")
    held.edit("mode", "mine too\n")
    held.edit("old", "this as well\n")
    (world.repo / "kind").unlink()
    held.edit("kind/deep", "and this\n")
    unlock(held, *held.merge_words("w1"))
    called = held.integrate(*held.merge_words("w1"))
    assert (called.code, called.error) == (3, "local-edits"), called
    assert not (world.repo / "old-w1").exists()
    assert (world.repo / "state").read_text() == "state 0\n"
    held.require_mine()
    held.require_swept()


def test_a_file_that_git_had_only_begun_is_put_back(held: Held) -> None:
    before = killed_with_all(held, "state")
    repo = held.world.repo
    (repo / "state").write_text("stat")
    (repo / "new-w1").write_text("")
    unlock(held, *held.merge_words("w1"))
    held.must(*held.merge_words("w1"))
    assert held.tip() != before
    held.require_settled()


def test_a_commit_of_the_user_after_the_kill_stays(held: Held) -> None:
    killed_with_all(held, "state")
    world = held.world
    for lock in locks(held):
        lock.unlink()
    held.edit("mine-new", "committed\n")
    world.git("add", "mine-new")
    world.git("commit", "-q", "-m", "mine", "--", "mine-new")
    held.own = [line for line in held.own if "mine-new" not in line]
    mine = held.tip()
    held.must(*held.merge_words("w1"))
    assert world.git("merge-base", mine, "main") == mine
    held.require_settled()


@pytest.mark.parametrize(
    ("state", "group"), [("prepared", False), ("prepared", True), ("committed", False)]
)
def test_killed_while_git_moves_the_branch(held: Held, state: str, group: bool) -> None:
    held.ready()
    held.hook(state)
    before = held.tip()
    held.kill(held.start_merge(), group=group)
    after = held.tip()
    assert (after == before) == (state == "prepared")
    held.release()
    if group and locks(held):
        unlock(held, *held.merge_words("w1"))
    held.must(*held.merge_words("w1"))
    assert held.is_tested(held.tip())
    assert len(held.published("w1")) == 1
    held.require_settled()


@pytest.mark.parametrize("strategy", ["squash"])
def test_the_branch_went_on_after_a_kill(held: Held, strategy: str) -> None:
    world = held.world
    held.ready()
    held.hook("committed")
    words = ["merge", "w1", "--strategy", strategy, "--check", f'{CHECK}; touch "$WORLD/hold"']
    held.kill(held.start(*words), group=True)
    held.free()
    held.edit("mine-new", "committed\n")
    world.git("add", "mine-new")
    world.git("commit", "-q", "-m", "mine", "--", "mine-new")
    held.own = [line for line in held.own if "mine-new" not in line]
    mine = held.tip()
    called = held.must(*held.merge_words("w1", "--strategy", strategy))
    assert called.answer["data"]["already_merged"] == ["w1"], called
    assert held.tip() == mine
    assert len(held.published("w1")) == 1
    held.require_settled()
    assert any(event["event"] == "integrated" for event in events(held, "w1"))
    held.must("undo")
    assert world.git("ls-tree", "main", "new-w1") == ""
    held.require_settled()


def events(held: Held, name: str) -> list[dict[str, Any]]:
    """The log of a worker."""
    lines = (held.world.record(name) / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_an_undo_that_was_killed_after_the_branch_had_moved_counts(held: Held) -> None:
    world = held.world
    older = held.work("w0")
    held.approve("w0")
    held.must(*held.merge_words("w0"))
    held.ready()
    before = held.tip()
    held.must(*held.merge_words("w1"))
    held.hook("committed")
    held.hold.touch()
    held.kill(held.start("undo"), group=True)
    held.free()
    assert held.tip() == before
    (world.repo / "later").write_text("later\n")
    world.git("add", "later")
    world.git("commit", "-q", "-m", "mine", "--", "later")
    called = held.integrate("undo")
    # Called again it goes no further than it had been asked to.
    assert (called.code, called.error) == (3, "already-undone"), called
    assert world.git("merge-base", older, "main") == older
    held.must(*held.merge_words("w1"))
    held.require_settled()


def test_an_undo_that_was_killed_before_the_branch_moved_does_not_count(held: Held) -> None:
    world = held.world
    held.ready()
    held.must(*held.merge_words("w1"))
    held.hook("prepared")
    held.hold.touch()
    held.kill(held.start("undo"), group=True)
    held.free()
    # The checkout had gone back; the user commits something else, then asks again.
    (world.repo / "later").write_text("later\n")
    world.git("add", "later")
    world.git("commit", "-q", "-m", "mine", "--", "later")
    held.must("undo")
    assert world.git("ls-tree", "main", "new-w1") == ""
    assert world.git("show", "main:later") == "later"
    held.require_settled()


def test_a_check_that_outlives_its_command_is_ended(held: Held) -> None:
    held.ready()
    check = f'touch "$WORLD/hold"; {HOLD}'
    held.kill(held.start("merge", "w1", "--check", check), group=False)
    assert held.marked(b"AGENT_WORKERS_INTEGRATION=")
    held.must(*held.merge_words("w1"))
    held.require_settled()
    held.release()


@pytest.mark.parametrize(
    ("verb", "moment", "more"),
    [
        ("merge", "merge-tree", ("--check", "true")),
        ("merge", "reset", ("--check", "true")),
        ("merge", "", ("--check", 'touch "$WORLD/moment"; sleep 60')),
        ("forecast", "merge-tree", ()),
        ("forecast", "diff-tree", ()),
        ("review", "cat-file", ()),
        ("review", "log", ()),
    ],
)
def test_twice_ctrl_c_is_told_as_interrupted_and_leaves_nothing(
    held: Held, verb: str, moment: str, more: tuple[str, ...]
) -> None:
    """A terminal sends it to every process of the group; a person sends it again at once."""
    world = held.world
    names = ["w1", "w2"] if verb == "forecast" else ["w1"]
    for name in names:
        held.work(name)
        held.approve(name)
    before = held.tip()
    real = shutil.which("git", path=world.env["PATH"])
    slow = world.root / "bin" / "git"
    slow.write_text(
        f'#!/bin/sh\ncase " $* " in *" {moment} "*) touch "$WORLD/moment"; sleep 60 ;; esac\n'
        f'exec {real} "$@"\n'
    )
    slow.chmod(0o755)
    if not moment:
        slow.unlink()
    process = subprocess.Popen(
        [sys.executable, str(INTEGRATE), verb, "--json", *names, *more], cwd=world.repo,
        env=world.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    wait_for(lambda: held.moment.exists() or process.poll() is not None, "the moment", 60)
    slow.unlink(missing_ok=True)
    assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    error = json.loads(out)["error"]
    assert error["code"] == "interrupted"
    assert error["message"].startswith("interrupted by INT")
    assert b"Traceback" not in err
    assert held.tip() == before
    # The next call finds all as it was.
    held.require_mine()
    held.must("merge", "w1", "--check", CHECK)
    held.require_settled()


def test_git_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "ORPHAN_WAIT", 0.1)
    env = {**os.environ, publishing.MARK: "an-id"}
    process = subprocess.Popen(
        ["git", "hash-object", "--stdin"], env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        with pytest.raises(SkillError, match=f"an-id: {process.pid}") as caught:
            publishing.await_end("an-id")
        assert caught.value.exit_code == 11
    finally:
        process.communicate()
    publishing.await_end("an-id")
