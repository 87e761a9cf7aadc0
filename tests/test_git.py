"""Questions and verbs over git."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fanout import git
from fanout.errors import ExitCode, SkillError
from world import World


@pytest.fixture(autouse=True)
def hermetic(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git reads the world's configuration alone."""
    for name in list(os.environ):
        if name.startswith("GIT_"):
            monkeypatch.delenv(name)
    for name, value in world.env.items():
        monkeypatch.setenv(name, value)


def failure(directory: Path) -> SkillError:
    """Why a repository cannot be opened."""
    with pytest.raises(SkillError) as caught:
        git.open_repository(str(directory))
    return caught.value


def test_the_main_checkout(world: World) -> None:
    (world.repo / "sub").mkdir()
    repo = git.open_repository(str(world.repo / "sub"))
    assert repo.top == repo.main_root == str(world.repo)
    assert repo.common_dir == repo.git_dir == str(world.repo / ".git")
    assert repo.head == world.git("rev-parse", "HEAD")
    assert repo.branch == "refs/heads/main"
    assert repo.hooks_dir == str(world.repo / ".git" / "hooks")


def test_a_linked_worktree_has_its_own_head(world: World) -> None:
    """W57."""
    tree = world.root / "linked"
    world.git("worktree", "add", "-q", "-b", "side", str(tree))
    head = world.commit("ahead", tree)
    repo = git.open_repository(str(tree))
    assert (repo.top, repo.head, repo.branch) == (str(tree), head, "refs/heads/side")
    assert repo.main_root == str(world.repo)
    assert repo.git_dir == str(world.repo / ".git" / "worktrees" / "linked")


def test_through_a_link_it_is_the_real_place(world: World) -> None:
    """W39."""
    link = world.root / "link"
    link.symlink_to(world.repo)
    assert git.open_repository(str(link)).top == str(world.repo)


def test_a_detached_head_is_no_branch(world: World) -> None:
    world.git("checkout", "-q", "--detach")
    assert git.open_repository(str(world.repo)).branch is None


def test_hooks_may_be_elsewhere(world: World) -> None:
    world.git("config", "core.hooksPath", str(world.root / "hooks"))
    assert git.open_repository(str(world.repo)).hooks_dir == str(world.root / "hooks")


def test_a_repository_with_a_separate_git_directory(world: World) -> None:
    tree = world.root / "tree"
    world.git("init", "-q", "--separate-git-dir", str(world.root / "store"), str(tree))
    world.commit("first", tree)
    repo = git.open_repository(str(tree))
    assert (repo.top, repo.common_dir) == (str(tree), str(world.root / "store"))


def test_what_is_no_usable_repository(world: World) -> None:
    plain, empty, bare = (world.root / name for name in ("plain", "empty", "bare.git"))
    plain.mkdir()
    world.git("init", "-q", str(empty))
    world.git("init", "-q", "--bare", str(bare))
    for place, code, exit_code in (
        (plain, "not-a-repository", 4),
        (empty, "empty-repository", 4),
        (bare, "bare-repository", 4),
        (world.repo / ".git", "bare-repository", 4),
        (world.root / "none", "no-such-directory", 2),
        (world.repo / "README.md", "no-such-directory", 2),
    ):
        error = failure(place)
        assert (error.code, error.exit_code) == (code, ExitCode(exit_code)), place
        assert repr(str(place)) in error.message or code == "empty-repository"
        assert error.hint


def test_a_damaged_repository_is_not_called_empty(world: World) -> None:
    (world.repo / ".git" / "HEAD").write_text("nonsense\n")
    assert failure(world.repo).code == "not-a-repository"


def test_a_head_without_its_commit_is_refused(world: World) -> None:
    (world.repo / ".git" / "refs" / "heads" / "main").write_text("1" * 40 + "\n")
    assert failure(world.repo).exit_code == ExitCode.MISSING


def test_a_directory_that_went_away_is_named(world: World) -> None:
    gone = str(world.repo / "gone")
    with pytest.raises(SkillError, match=gone) as caught:
        git.git(gone, "status")
    assert (caught.value.code, caught.value.exit_code) == ("directory-missing", ExitCode.MISSING)


def test_git_says_nothing_on_stderr_when_all_is_well(world: World) -> None:
    assert git.git(str(world.repo), "status").stderr == b""
    assert git.git(str(world.repo), "merge-base", "HEAD", "HEAD").stderr == b""


def test_a_submodule_names_its_superproject(world: World) -> None:
    """W33."""
    world.make_repo("lib")
    world.git("submodule", "--quiet", "add", str(world.root / "lib"), "lib")
    error = failure(world.repo / "lib")
    assert (error.code, error.exit_code) == ("inside-submodule", ExitCode.USAGE)
    assert repr(str(world.repo)) in error.message


@pytest.mark.parametrize("name", ["a\nb", "a\ntrue", "a\n--agent-workers-mark\nb", "\n"])
def test_a_path_with_a_line_break_is_refused_and_never_misread(world: World, name: str) -> None:
    """W37."""
    tree = world.root / "o" / name
    tree.parent.mkdir()
    world.git("worktree", "add", "-q", "-b", "side", str(tree))
    assert failure(tree).code == "unusable-path"
    whole = world.make_repo("p/" + name)
    assert failure(whole).code == "unusable-path"


def test_odd_paths_are_read_as_they_are(world: World) -> None:
    for name in ("ünï", "a b", "'q'", '"', "\u2028x", "a\x0cb", "\udcff", "tab\tx", "-x", "#{x}"):
        tree = world.make_repo("odd/" + name)
        assert git.open_repository(str(tree)).top == str(tree)


def test_variables_of_another_repository_are_not_obeyed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W17."""
    other = world.make_repo("other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert git.open_repository(str(world.repo)).top == str(world.repo)


def test_a_word_that_names_a_commit(world: World) -> None:
    repo = git.open_repository(str(world.repo))
    world.git("tag", "-a", "v1", "-m", "one")
    for ref in ("main", "HEAD", "v1", repo.head, repo.head[:8], "refs/heads/main", "HEAD@{0}"):
        assert git.resolve_commit(repo, ref) == repo.head


@pytest.mark.parametrize(
    "ref", ["", "-x", "--all", "no", "HEAD:README.md", "HEAD~1", "a\0b", "@{u}"]
)
def test_a_word_that_names_none(world: World, ref: str) -> None:
    with pytest.raises(SkillError) as caught:
        git.resolve_commit(git.open_repository(str(world.repo)), ref)
    assert (caught.value.code, caught.value.exit_code) == ("unknown-ref", ExitCode.USAGE)


def test_a_word_that_names_two_is_not_guessed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I30: whatever language git speaks."""
    monkeypatch.setenv("LANGUAGE", "de")
    world.git("tag", "main")
    repo = git.open_repository(str(world.repo))
    assert git.resolve_commit(repo, "main") == repo.head
    new = world.commit("second")
    with pytest.raises(SkillError) as caught:
        git.resolve_commit(repo, "main")
    assert caught.value.code == "ambiguous-ref"
    assert git.resolve_commit(repo, "refs/heads/main") == new


def test_names_for_branches(world: World) -> None:
    repo = git.open_repository(str(world.repo))
    for name in ("a", "feature/x", "ünï", "a-b_c.d"):
        assert git.require_branch_name(repo, name) == name
    for name in ("", "-x", "HEAD", "a..b", "a b", "a~", "a:b", "a?", "a.lock", "/a", "a//b", "@",
                 "a@{b", "a\\b", "x" * 201, "a\0"):  # fmt: skip
        if name == "@":
            continue
        with pytest.raises(SkillError, match="not a valid branch name"):
            git.require_branch_name(repo, name)


def test_a_branch_is_meant_even_where_a_tag_has_its_name(world: World) -> None:
    """I30."""
    world.git("branch", "w1")
    new = world.commit("second")
    world.git("tag", "w1")
    old = world.git("rev-parse", "refs/heads/w1")
    assert git.ref_commit(str(world.repo), "refs/heads/w1") == old
    assert git.branch_heads(str(world.repo)) == {"refs/heads/main": new, "refs/heads/w1": old}
    git.delete_branch(str(world.repo), "w1", old)
    assert world.branches() == {"main"}
    assert world.git("rev-parse", "refs/tags/w1") == new


def test_a_branch_that_has_moved_is_not_deleted(world: World) -> None:
    old = world.git("rev-parse", "HEAD")
    new = world.commit("second")
    world.git("branch", "w1", new)
    with pytest.raises(SkillError, match="git update-ref failed"):
        git.delete_branch(str(world.repo), "w1", old)
    assert world.branches() == {"main", "w1"}


def test_ancestry_is_yes_no_or_an_error(world: World) -> None:
    """I18: an error is no answer."""
    old = world.git("rev-parse", "HEAD")
    new = world.commit("second")
    assert git.is_ancestor(str(world.repo), old, new) is True
    assert git.is_ancestor(str(world.repo), new, old) is False
    with pytest.raises(SkillError, match="git merge-base failed"):
        git.is_ancestor(str(world.repo), "0" * 39 + "1", new)


def test_heads_are_read_wherever_git_keeps_them(world: World) -> None:
    """Loose, packed, moved since they were packed, symbolic, and not there at all."""
    repo = str(world.repo)
    old = world.git("rev-parse", "HEAD")
    world.git("branch", "w1")
    world.git("branch", "team/w2")
    refs = ["refs/heads/w1", "refs/heads/team/w2"]
    assert git.heads_of(repo + "/.git", refs) == dict.fromkeys(refs, old)
    world.git("pack-refs", "--all")
    assert git.heads_of(repo + "/.git", refs).items() >= dict.fromkeys(refs, old).items()
    new = world.commit("second")
    world.git("branch", "-f", "w1", new)
    assert git.heads_of(repo + "/.git", refs)["refs/heads/w1"] == new
    world.git("symbolic-ref", "refs/heads/alias", "refs/heads/team/w2")
    assert git.heads_of(repo + "/.git", ["refs/heads/alias"])["refs/heads/alias"] == old
    assert git.symbolic_target(repo, "refs/heads/alias") == "refs/heads/team/w2"
    assert git.symbolic_target(repo + "/.git", "refs/heads/w1") is None
    assert "refs/heads/none" not in git.heads_of(repo + "/.git", ["refs/heads/none"])


def test_where_a_tree_is(world: World) -> None:
    head = world.git("rev-parse", "HEAD")
    assert git.current_ref(str(world.repo)) == ("refs/heads/main", head)
    world.git("checkout", "-q", "--detach")
    assert git.current_ref(str(world.repo)) == (None, head)


def test_git_never_asks_and_never_refreshes_an_index_by_the_way(world: World) -> None:
    env = git.git_environment()
    assert (env["GIT_TERMINAL_PROMPT"], env["GIT_OPTIONAL_LOCKS"]) == ("0", "0")
    assert git.git(str(world.repo), "config", "gc.auto").text == "0\n"
