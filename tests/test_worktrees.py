"""Linked worktrees: what git's own files say, free places and names, caches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout import git, worktrees
from fanout.errors import SkillError
from fanout.git import Repository
from fanout.process import Completed
from world import World

# --- Reading ------------------------------------------------------------------------------------


def test_a_path_with_a_newline_and_a_false_branch_line(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W37: it looks like a second entry of `git worktree list --porcelain`."""
    odd = world.root / "odd\nbranch refs/heads/main\n"
    world.git("worktree", "add", "-q", "-b", "other", str(odd))
    repo = world.adopt(monkeypatch)
    assert list(worktrees.registered(repo.common_dir).values()) == [str(odd)]
    holders = worktrees.holders_of(repo.common_dir, repo.main_root, "refs/heads/main")
    assert holders == [str(world.repo)]
    holders = worktrees.holders_of(repo.common_dir, repo.main_root, "refs/heads/other")
    assert holders == [str(odd)]


def test_a_branch_that_is_no_utf8_elsewhere_does_not_disturb(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.git("worktree", "add", "-q", "-b", os.fsdecode(b"latin-\xe9"), str(world.root / "o"))
    repo = world.adopt(monkeypatch)
    assert worktrees.holders_of(repo.common_dir, repo.main_root, "refs/heads/x") == []
    assert world.ok("spawn", "w1", "--prompt", "x", "--agent-cli", "/bin/true", "--dry-run")


def test_a_rebase_and_a_bisect_hold_their_branch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = world.adopt(monkeypatch)
    tree = world.quick("w1")
    for name, text in {
        "rebase-merge/head-name": "refs/heads/a\n",
        "rebase-apply/head-name": "refs/heads/b\n",
        "BISECT_START": "c\n",
    }.items():
        path = world.repo / ".git" / "worktrees" / "w1" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for name in "abc":
        holders = worktrees.holders_of(repo.common_dir, repo.main_root, f"refs/heads/{name}")
        assert holders == [str(tree)]


def done(*entries: str) -> Completed:
    return Completed([], 0, "".join(f"{entry}\0" for entry in entries).encode(), b"")


def test_status_is_told_apart_by_kind() -> None:
    status = worktrees.parse_status(
        done(
            "# branch.oid abc",
            "# branch.head feature/x",
            "1 M. N... 100644 100644 100644 a a staged file",
            "1 .M N... 100644 100644 100644 a a modified",
            "1 MD N... 100644 100644 000000 a a both",
            "1 .M S.M. 160000 160000 160000 a a sub",
            "u UU N... 100644 100644 100644 100644 a b c conf lict",
            "? new\nfile",
            "! ignored/",
        )
    )
    assert status.head == "abc"
    assert status.branch == "refs/heads/feature/x"
    assert status.staged == ["staged file", "both"]
    assert status.modified == ["modified", "both", "sub"]
    assert status.conflicted == ["conf lict"]
    assert status.untracked == ["new\nfile"]
    assert status.ignored == ["ignored/"]
    assert status.submodules == ["sub"]
    assert status.dirty == 6


def test_a_detached_head_has_no_branch() -> None:
    assert worktrees.parse_status(done("# branch.head (detached)")).branch is None


@pytest.mark.parametrize(
    ("path", "cache"),
    [
        ("__pycache__/", True),
        ("a/node_modules/", True),
        ("a/b.pyc", True),
        ("lib.egg-info/", True),
        (".DS_Store", True),
        ("tagged/", True),
        ("tagged/deep/x.o", True),
        ("tagged-badly/", False),
        ("link/x", False),
        (".env", False),
        ("node_modules.bak/", False),
        ("build/", False),
        ("dist/", False),
        ("venv/", False),
        ("my_pycache__/", False),
        ("cache/", False),
    ],
)
def test_caches_by_name_and_by_tag(tmp_path: Path, path: str, cache: bool) -> None:
    (tmp_path / "tagged" / "deep").mkdir(parents=True)
    (tmp_path / "tagged" / "CACHEDIR.TAG").write_bytes(worktrees.CACHE_TAG + b"\n")
    (tmp_path / "tagged-badly").mkdir()
    (tmp_path / "tagged-badly" / "CACHEDIR.TAG").write_bytes(worktrees.CACHE_TAG[:-1] + b"7")
    (tmp_path / "link").symlink_to("tagged")
    # A tag at the top of the tree must not make everything a cache.
    (tmp_path / "CACHEDIR.TAG").write_bytes(worktrees.CACHE_TAG + b"\n")
    assert worktrees.is_cache(str(tmp_path), path) is cache


@given(path=st.binary(min_size=1).filter(lambda path: b"\0" not in path))
def test_a_quoted_path_is_one_line_that_git_reads_back(path: bytes) -> None:
    line = worktrees.quoted(os.fsdecode(path))
    assert line.isascii()
    assert b"\n" not in line
    digits = line[1:-1].split(b"\\")[1:]
    assert bytes(int(word, 8) for word in digits) == path


# --- Free places ----------------------------------------------------------------------------------


def place_error(repo: Any, path: Path) -> str | None:
    found: SkillError | None = None
    try:
        worktrees.require_free_place(repo, str(path))
    except SkillError as error:
        found = error
    assert found is None or found.exit_code == 3
    return found.code if found else None


def test_places_that_are_not_free(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """W25, W33: taken, inside another tree, inside the checkout, inside git's own folder."""
    tree = world.quick("w1")
    (world.repo / ".gitignore").write_text("/.trees/\n")
    (world.root / "link").symlink_to(tree)
    (world.root / "dangling").symlink_to("nowhere")
    repo = world.adopt(monkeypatch)
    assert place_error(repo, tree) == "worktree-exists"
    assert place_error(repo, world.root / "dangling") == "worktree-exists"
    assert place_error(repo, tree / "deep" / "w2") == "worktree-nested"
    assert place_error(repo, world.root / "link" / "w2") == "worktree-nested"
    assert place_error(repo, world.repo / "w2") == "worktree-nested"
    assert place_error(repo, world.repo / ".git" / "w2") == "worktree-nested"
    assert place_error(repo, world.repo / ".trees" / "w2") is None
    assert place_error(repo, tree.with_name("w1-2")) is None
    assert place_error(repo, world.root / "new" / "folder" / "w2") is None
    # A tree that was moved away, and one that git knows by a link on its path.
    admin = worktrees.admin_dir_of(str(tree))
    assert admin is not None
    tree.rename(world.root / "moved")
    assert place_error(repo, tree) == "worktree-exists"
    assert place_error(repo, tree / "w2") == "worktree-nested"
    tree.symlink_to(world.root / "moved")
    assert place_error(repo, world.root / "moved" / "w2") == "worktree-nested"


def test_a_place_in_the_main_checkout_is_not_free_for_a_caller_elsewhere(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.adopt(monkeypatch)
    from fanout.git import open_repository

    repo = open_repository(str(world.quick("w1")))
    assert place_error(repo, world.repo / "w2") == "worktree-nested"
    assert place_error(repo, world.tree("w1") / "w2") == "worktree-nested"
    assert place_error(repo, world.tree("w2")) is None


def test_a_place_that_git_still_knows_is_not_free(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree may only have been moved, or its volume is away."""
    tree = world.quick("w1")
    tree.rename(world.root / "away")
    assert place_error(world.adopt(monkeypatch), tree) == "worktree-exists"


# --- Free branches --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "wanted", "free"),
    [
        ("w1", "w1", False),
        ("api/v2", "api", False),
        ("api", "api/v2", False),
        ("Api", "api", False),
        ("API/v2", "api", False),
        ("team/a", "Team/b", False),
        ("team/a", "team/b", True),
        ("team/a", "teams/b", True),
        ("team/x/a", "team/X/b", False),
        ("api-v2", "api", True),
        ("ß", "ss", False),
    ],
)
def test_branches_that_cannot_be_beside_each_other(
    world: World, monkeypatch: pytest.MonkeyPatch, there: str, wanted: str, free: bool
) -> None:
    """W21, W55: folder against file, and letters of another case."""
    world.git("branch", there)
    repo = world.adopt(monkeypatch)
    if free:
        worktrees.require_free_branch(repo, wanted, worktrees.taken_refs(repo.common_dir))
        return
    with pytest.raises(SkillError) as caught:
        worktrees.require_free_branch(repo, wanted, worktrees.taken_refs(repo.common_dir))
    assert caught.value.code == "branch-taken"
    assert caught.value.exit_code == 3
    assert there in caught.value.message


def test_packed_branches_count(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.git("branch", "api/v2")
    world.git("pack-refs", "--all")
    repo = world.adopt(monkeypatch)
    with pytest.raises(SkillError, match="cannot be beside 'api/v2'"):
        worktrees.require_free_branch(repo, "api", worktrees.taken_refs(repo.common_dir))


def test_a_branch_without_a_commit_that_a_checkout_is_on_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = world.adopt(monkeypatch)
    world.git("checkout", "-q", "--orphan", "new")
    world.git("worktree", "add", "-q", "--detach", str(world.root / "other"), repo.head)
    world.git("checkout", "-q", "--orphan", "newer", cwd=world.root / "other")
    taken = worktrees.taken_refs(repo.common_dir)
    assert taken == {f"refs/heads/{name}" for name in ("main", "new", "newer")}
    with pytest.raises(SkillError, match="'newer' is already there, checked out in"):
        worktrees.require_free_branch(repo, "newer", taken)


def test_a_place_with_a_line_break_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is reached by a link: git's own files name it in a line."""
    repo = world.adopt(monkeypatch)
    odd = world.root / "a\nb"
    odd.mkdir()
    (world.root / "link").symlink_to(odd)
    for path in (odd / "w", world.root / "link" / "w", world.root / "c\nd"):
        with pytest.raises(SkillError, match="holds a line break") as caught:
            worktrees.require_free_place(repo, str(path))
        assert caught.value.exit_code == 2


# --- Making and taking away ---------------------------------------------------------------


def add(world: World, repo: Repository, path: Path, branch: str) -> str:
    """A worktree as spawn makes it, without files; returns its administrative folder."""
    record = world.root / "record"
    record.mkdir(exist_ok=True)
    worktrees.make_branches(repo, [branch], repo.head)
    return worktrees.add_worktree(repo, str(path), branch, str(record))


def test_a_branch_that_is_there_is_not_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = world.adopt(monkeypatch)
    with pytest.raises(SkillError, match=r"update-ref failed.*already exists"):
        worktrees.make_branches(repo, ["other", "main"], repo.head)
    assert world.branches() == {"main"}


def test_a_branch_with_a_name_in_another_encoding(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = os.fsdecode(b"caf\xe9")
    repo = world.adopt(monkeypatch)
    admin = add(world, repo, world.root / "w1", name)
    assert Path(admin, "HEAD").read_bytes() == b"ref: refs/heads/caf\xe9\n"
    worktrees.fill_worktree(str(world.root / "w1"))
    assert git.current_ref(str(world.root / "w1")) == (f"refs/heads/{name}", repo.head)


def test_a_failed_add_leaves_no_folders(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = world.adopt(monkeypatch)
    (Path(repo.common_dir) / "worktrees").write_text("in the way")
    with pytest.raises(FileExistsError):
        add(world, repo, world.root / "new" / "folder" / "w1", "w1")
    assert not (world.root / "new").exists()


@pytest.mark.parametrize("setting", ["", "extensions.worktreeConfig", "core.sparseCheckout"])
def test_a_worktree_is_laid_out_as_git_does_it(
    world: World, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    repo = world.adopt(monkeypatch)
    if setting:
        world.git("config", setting, "true")
    found: dict[str, tuple[dict[str, bytes], bytes]] = {}
    for folder in ("theirs", "ours"):
        path = world.root / folder / "w1"
        if folder == "ours":
            admin = Path(add(world, repo, path, "w2"))
            os.unlink(admin / worktrees.PARENTS)
        else:
            world.git("worktree", "add", "-q", "--no-checkout", "-b", "w1", str(path))
            admin = Path(str(worktrees.admin_dir_of(str(path))))
        assert world.git("-C", str(path), "status", "--porcelain").startswith("D ")
        before = world.git("worktree", "list", "--porcelain", "-z")
        world.git("worktree", "prune")
        world.git("worktree", "repair")
        assert world.git("worktree", "list", "--porcelain", "-z") == before
        worktrees.fill_worktree(str(path))
        assert world.git("-C", str(path), "status", "--porcelain") == ""
        # Git counts on when a name is taken.
        assert admin.name == {"theirs": "w1", "ours": "w11"}[folder]
        files = {
            str(file.relative_to(admin)): file.read_bytes()
            for file in sorted(admin.rglob("*"))
            if file.is_file() and file.name != "index" and "logs" not in file.parts
        }
        logs = world.git("reflog", "--format=%gs", "w1" if folder == "theirs" else "w2")
        found[folder] = (files, logs.encode())
        if folder == "ours":
            world.git("worktree", "move", str(path), str(path) + "-moved")
            world.git("worktree", "remove", str(path) + "-moved")
            assert not admin.exists()
    mine = {
        name: text.replace(b"/ours/", b"/theirs/").replace(b"/w2", b"/w1")
        for name, text in found["ours"][0].items()
    }
    assert mine == found["theirs"][0]
    # `git branch` names what it was given, HEAD; the commit is what we give.
    assert found["ours"][1] == found["theirs"][1].replace(b"HEAD", repo.head.encode())


def test_an_entry_that_another_process_makes_meanwhile_is_left_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = world.adopt(monkeypatch)
    real = os.rename

    def late(source: str, target: str) -> None:
        if target.endswith("/w1"):
            os.mkdir(target)
            Path(target, "HEAD").write_text("theirs")
        real(source, target)

    monkeypatch.setattr(os, "rename", late)
    admin = add(world, repo, world.root / "w1", "w1")
    assert admin.endswith("/worktrees/w11")
    assert worktrees.admin_dir_of(str(world.root / "w1")) == admin
    assert (Path(admin).with_name("w1") / "HEAD").read_text() == "theirs"


def test_what_a_killed_add_left_is_removed_and_nothing_else(world: World) -> None:
    tree = world.root / "tree"
    for link in (None, "", f"gitdir: {world.root}/gone\n"):
        tree.mkdir()
        if link is not None:
            (tree / ".git").write_text(link)
        worktrees.remove_unlinked(str(tree))
        assert not tree.exists()
    for link in (None, "", f"gitdir: {world.root}/gone\n", f"gitdir: {world.root}\n", "other\n"):
        tree.mkdir(exist_ok=True)
        (tree / ".git").unlink(missing_ok=True)
        if link is not None:
            (tree / ".git").write_text(link)
        (tree / "work.txt").write_text("work\n")
        worktrees.remove_unlinked(str(tree))
        assert (tree / "work.txt").exists()
        assert (tree / ".git").exists() == (link is not None)


def test_the_folders_that_were_made_are_known(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = world.adopt(monkeypatch)
    path = world.root / "new" / "folder" / "w1"
    admin = add(world, repo, path, "w1")
    made = worktrees.made_folders(admin)
    assert made == [str(path.parent), str(path.parent.parent)]
    worktrees.remove_empty(made)
    assert path.exists(), "not empty, so it stays"


def test_only_an_entry_of_this_repository_is_dropped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = world.adopt(monkeypatch)
    other = world.root / "other"
    other.mkdir()
    with pytest.raises(SkillError, match="not a worktree entry"):
        worktrees.drop_admin_dir(repo.common_dir, str(other), str(world.root))
    assert other.exists()


def test_a_tree_is_removed_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "x").write_text("x")
    tree = tmp_path / "tree"
    (tree / "locked").mkdir(parents=True)
    (tree / "locked" / "link").symlink_to(tmp_path / "keep")
    (tree / "locked").chmod(0o500)
    worktrees.remove_tree(str(tree))
    assert not tree.exists()
    assert (tmp_path / "keep" / "x").read_text() == "x"
    worktrees.remove_tree(str(tree))


def test_a_walk_stops_at_what_it_cannot_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").mkdir()
    scandir = os.scandir

    def denied(path: Any = ".") -> Any:
        if str(path).endswith("/secret"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(SkillError, match="secret"):
        list(worktrees.walk_files(str(tmp_path)))


@pytest.mark.parametrize("path", ["a", "a/b", "./a", "a/../b", ".github/x", "..a"])
def test_relative_paths(path: str) -> None:
    assert worktrees.require_relative(path) == os.path.normpath(path)
