"""Candidates: branches whose work may be merged, wherever they came from."""

from __future__ import annotations

import os

from fanout import git, records
from fanout import workers as life
from fanout.conventions import convention_of, is_no_fragment
from fanout.errors import SkillError, refused, usage
from fanout.fields import NamedTuple
from fanout.workers import is_our_copy
from fanout.worktrees import (
    Status,
    admin_dir_of,
    at,
    parse_status,
    read_status,
    registered,
    status_arguments,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fanout.conventions import Convention

# What is read of each task in the records of a run.
RUN_FIELDS = {
    "manifest.json": ("name", "branch", "base", "worktree", "status", "verify"),
    "plan.json": ("name",),
}


class Candidate(NamedTuple):
    """One branch with work on it.

    `kind` is `worker`, `task` (of a run) or `branch`. `base` is the commit that its own work
    starts from, `head` its tip, empty when the branch is not there. `worktree` is empty where
    nothing has the branch checked out. `target` is the full name of the integration branch, as it
    was recorded, or None. `checks` are the shell commands that its own run verified it with.
    `record` is the folder that holds its reviews. `changelog` is the file that its plan names for
    its entry, or empty.
    """

    name: str
    kind: str
    branch: str
    base: str
    head: str
    worktree: str
    owns: list[str]
    target: str | None
    checks: list[str]
    record: str
    changelog: str

    @property
    def ref(self) -> str:
        """The full name of its branch."""
        return "refs/heads/" + self.branch

    def to_json(self) -> dict[str, Any]:
        """What answers say of a candidate."""
        return {
            "name": self.name,
            "kind": self.kind,
            "branch": self.branch,
            "base": self.base,
            "head": self.head,
            "worktree": self.worktree or None,
            "owns": self.owns,
        }


class Choice(NamedTuple):
    """Which candidates are meant: names of workers, tasks of a run, or branches with one base."""

    names: list[str]
    run: str
    branches: list[str]
    base: str

    @property
    def options(self) -> list[str]:
        """The options that choose the same kind of candidates again, without any name."""
        if self.run:
            return ["--run", os.path.abspath(self.run)]
        return ["--base", self.base] if self.branches else []

    def words(self, names: list[str]) -> list[str]:
        """The words that choose these of the candidates, for a command to paste."""
        if self.branches:
            return [*(word for name in names for word in ("--branch", name)), *self.options]
        return [*names, *self.options]

    @property
    def check_advice(self) -> str:
        """What to say beside a merge of them; a run brings the checks of its plan."""
        return "" if self.run else "; add --check CMD for what must hold of all together"


def find(repo: git.Repository, choice: Choice) -> list[Candidate]:
    """The candidates that are meant, in the order asked for; all there are without a name.

    Raises SkillError `usage`, `unknown-worker`, `unknown-task`, `unknown-branch` (exit 2),
    `record-damaged`.
    """
    if choice.branches and (choice.names or choice.run):
        raise usage("usage", "--branch stands in place of NAME and --run")
    heads = git.branch_heads(repo.common_dir)
    if choice.branches:
        found = of_branches(repo, choice, heads)
    elif choice.run:
        found = of_run(repo, choice, heads)
    else:
        found = of_workers(repo, choice, heads)
    return with_bases(repo, found, heads)


def of_workers(repo: git.Repository, choice: Choice, heads: dict[str, str]) -> list[Candidate]:
    """Interactive workers by name, or all of them."""
    found, errors = life.load_all(repo.common_dir, list(dict.fromkeys(choice.names)))
    if errors:
        raise errors[0]
    return [of_worker(repo, worker, heads) for worker in found]


def of_worker(repo: git.Repository, worker: life.Worker, heads: dict[str, str]) -> Candidate:
    """An interactive worker as a candidate."""
    return Candidate(
        name=worker.name,
        kind="worker",
        branch=worker.branch,
        base=worker.base,
        head=heads.get(worker.branch_ref, ""),
        worktree=worker.worktree if os.path.isdir(worker.worktree) else "",
        owns=worker.owns,
        target=worker.integration_branch,
        checks=[],
        record=records.worker_dir(repo.common_dir, worker.name),
        changelog="",
    )


def of_run(repo: git.Repository, choice: Choice, heads: dict[str, str]) -> list[Candidate]:
    """The tasks of a run, by name, or all of them that have a branch."""
    manifest = read_run(choice.run, "manifest.json")
    plan = read_run(choice.run, "plan.json")
    place = os.path.realpath(str(manifest.get("repo")))
    own = (repo.top, repo.main_root, *registered(repo.common_dir).values())
    if place not in map(os.path.realpath, own):
        raise usage(
            "other-repository",
            f"the run in {choice.run!r} worked on {manifest.get('repo')!r}",
            "give --repo DIR",
        )
    plans = {task["name"]: task for task in plan["tasks"]}
    tasks = {task["name"]: task for task in manifest["tasks"]}
    for name in choice.names:
        if name not in tasks:
            raise usage(
                "unknown-task",
                f"the run in {choice.run!r} has no task {name!r}",
                f"its tasks: {', '.join(list(tasks)[:20])}",
            )
    found: list[Candidate] = []
    for name in dict.fromkeys(choice.names) if choice.names else tasks:
        task = tasks[name]
        ref = f"refs/heads/{task['branch']}"
        if not task["base"] or (not choice.names and ref not in heads):
            if choice.names:
                raise usage("unknown-task", f"the task {name!r} has no branch: {task['status']}")
            continue
        worktree = task["worktree"] or ""
        found.append(
            Candidate(
                name=name,
                kind="task",
                branch=task["branch"],
                base=task["base"],
                head=heads.get(ref, ""),
                worktree=worktree if os.path.isdir(worktree) else "",
                owns=list(plans.get(name, {}).get("owns") or []),
                target=manifest.get("integration_branch"),
                checks=[step["command"] for step in task["verify"]],
                record=branch_record(repo.common_dir, ref),
                changelog=str(plans.get(name, {}).get("changelog") or ""),
            )
        )
    return found


def unfinished_tasks(run: str, found: list[Candidate]) -> list[dict[str, str]]:
    """The tasks of a run that did not end well and left no candidate, with what became of them."""
    known = {candidate.name for candidate in found}
    return [
        {"name": task["name"], "what": how_it_ended(task)}
        for task in read_run(run, "manifest.json")["tasks"]
        if task["name"] not in known and task["status"] not in ("passed", "skipped")
    ]


def how_it_ended(task: dict[str, Any]) -> str:
    """What a run says of a task: its status, and why."""
    return ": ".join(str(word) for word in (task["status"], task.get("reason")) if word)


def not_done(repo: git.Repository, run: str, found: list[Candidate]) -> list[str]:
    """What speaks against taking candidates for done: an open job, or how their task ended."""
    tasks: list[dict[str, Any]] = read_run(run, "manifest.json")["tasks"] if run else []
    ends = {task["name"]: how_it_ended(task) for task in tasks if task["status"] != "passed"}
    notes: list[str] = []
    for candidate in found:
        if candidate.kind == "worker":
            worker = life.load(repo.common_dir, candidate.name)
            job = life.open_job(life.read_events(repo.common_dir, worker))
            if job is not None:
                notes.append(
                    f"the job {job} of {candidate.name!r} is open; "
                    "a commit from now on voids an approval"
                )
        elif candidate.name in ends:
            notes.append(f"the run says of its task {candidate.name!r}: {ends[candidate.name]}")
    return notes


def run_checks(run: str) -> list[str]:
    """The checks on the combined work that the plan of a run names."""
    return [str(command) for command in read_run(run, "plan.json").get("checks", [])]


def read_run(run: str, name: str) -> dict[str, Any]:
    """A record of a run. Raises SkillError `unknown-run` (exit 2), `record-damaged`."""
    path = os.path.join(run, name)
    try:
        value = records.read_json(path)
    except FileNotFoundError:
        raise usage(
            "unknown-run", f"{run!r} holds no {name}", "give --run .worker-runs/<run-id>"
        ) from None
    if not isinstance(value.get("tasks"), list):
        raise records.damaged(path, "it has no list of tasks")
    for task in value["tasks"]:
        absent = [f for f in RUN_FIELDS[name] if not isinstance(task, dict) or f not in task]
        if absent:
            raise records.damaged(path, f"a task has no {absent[0]!r}")
    return value


def of_branches(repo: git.Repository, choice: Choice, heads: dict[str, str]) -> list[Candidate]:
    """Plain branches that share one base."""
    if not choice.base:
        raise usage("usage", "--branch needs --base REF", "name the commit that they started from")
    base = git.resolve_commit(repo, choice.base)
    trees = checkouts(repo)
    found: list[Candidate] = []
    for branch in dict.fromkeys(word.removeprefix("refs/heads/") for word in choice.branches):
        ref = f"refs/heads/{branch}"
        if ref not in heads:
            raise usage(
                "unknown-branch", f"there is no branch {branch!r}", "`git branch` lists them"
            )
        found.append(
            Candidate(
                name=branch,
                kind="branch",
                branch=branch,
                base=base,
                head=heads[ref],
                worktree=trees.get(ref, ""),
                owns=[],
                target=repo.branch,
                checks=[],
                record=branch_record(repo.common_dir, ref),
                changelog="",
            )
        )
    return found


def recorded(repo: git.Repository) -> tuple[list[Candidate], list[SkillError]]:
    """Everything that has a record, workers and reviewed branches, and what cannot be read."""
    heads = git.branch_heads(repo.common_dir)
    trees = checkouts(repo)
    workers, errors = life.load_all(repo.common_dir, [])
    found = [of_worker(repo, worker, heads) for worker in workers]
    known = {candidate.ref for candidate in found}
    branches: list[Candidate] = []
    folder = f"{records.home(repo.common_dir)}/branches"
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        try:
            candidate = read_branch(f"{folder}/{name}")
        except SkillError as error:
            errors.append(error)
            continue
        if candidate is not None and candidate.ref not in known:
            head, tree = heads.get(candidate.ref, ""), trees.get(candidate.ref, "")
            branches.append(candidate._replace(head=head, worktree=tree))
    found += sorted(branches, key=lambda candidate: (candidate.name, candidate.branch))
    return with_bases(repo, found, heads), errors


def read_branch(folder: str) -> Candidate | None:
    """The branch that reviews in a folder are about, without what may have changed since."""
    try:
        return records.read_record(f"{folder}/branch.json", Candidate)._replace(record=folder)
    except FileNotFoundError:
        return None


def checkouts(repo: git.Repository) -> dict[str, str]:
    """The checkout of each branch that is checked out, by full ref name."""
    done = git.require_git(repo.common_dir, "worktree", "list", "--porcelain", "-z")
    found: dict[str, str] = {}
    path = ""
    for line in done.text.split("\0"):
        word, _, rest = line.partition(" ")
        if word == "worktree":
            path = rest
        elif word == "branch" and os.path.isdir(path):
            found[rest] = os.path.realpath(path)
    return found


def branch_record(common_dir: str, ref: str) -> str:
    """Where the reviews of a branch are kept that is no interactive worker's."""
    import hashlib

    digest = hashlib.sha256(os.fsencode(ref)).hexdigest()[:16]
    return f"{records.home(common_dir)}/branches/{digest}"


# --- Where the work starts ------------------------------------------------------------------


def with_bases(
    repo: git.Repository, candidates: list[Candidate], heads: dict[str, str]
) -> list[Candidate]:
    """Candidates with the commit that their own work starts from.

    That is the recorded base; or, where the branch was moved onto a newer commit of the
    integration branch since, or took it in, that one: what others did there is no work of its own.
    """
    wanted: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        # A plain branch forks off what --base names.
        start = candidate.base
        if candidate.kind != "branch":
            start = heads.get(candidate.target or "", "")
        if candidate.head and start:
            wanted.setdefault(start, []).append(candidate)
    bases: dict[str, str] = {}
    for start, members in wanted.items():
        forks = fork_points(repo.common_dir, [c.head for c in members], start)
        for candidate in members:
            fork = forks[candidate.head]
            if candidate.kind == "branch" and fork == candidate.head:
                # It is in there by now: what was reviewed started somewhere else.
                fork = reviewed_base(candidate) or fork
            if candidate.kind == "branch" or (
                fork not in ("", candidate.base, candidate.head)
                and git.is_ancestor(repo.common_dir, candidate.base, fork)
            ):
                bases[candidate.name] = fork or candidate.base
    return [c._replace(base=bases.get(c.name, c.base)) for c in candidates]


def reviewed_base(candidate: Candidate) -> str:
    """The base that the review of a candidate's tip names, or empty."""
    try:
        value = records.read_json(f"{candidate.record}/reviews/{candidate.head}.json")
    except FileNotFoundError:
        return ""
    return str(value.get("base", ""))


def fork_points(repo_dir: str, heads: list[str], start: str) -> dict[str, str]:
    """By head the newest commit that it shares with `start`; empty where they share none."""
    words = "".join(f"{head}\n" for head in heads) + f"^{start}\n"
    done = git.require_git(repo_dir, "rev-list", "--parents", "--stdin", stdin=words.encode())
    parents: dict[str, list[str]] = {}
    for line in done.text.splitlines():
        commit, *rest = line.split()
        parents[commit] = rest
    found: dict[str, str] = {}
    for head in heads:
        border = border_of(head, parents)
        if len(border) == 1:
            found[head] = border.pop()
        else:
            answer = git.git(repo_dir, "merge-base", start, head)
            found[head] = answer.text.strip()
    return found


def border_of(head: str, parents: dict[str, list[str]]) -> set[str]:
    """The commits that the history of a head enters after its own ones; itself if it has none."""
    border: set[str] = set()
    seen: set[str] = set()
    todo = [head]
    while todo:
        commit = todo.pop()
        if commit in seen:
            continue
        seen.add(commit)
        if commit in parents:
            todo += parents[commit]
        else:
            border.add(commit)
    return border


# --- What it may change ---------------------------------------------------------------------

# No setting of a user or a repository changes which files are named.
NAMES = [
    *("diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--no-relative"),
    *("--ignore-submodules=none", "-O/dev/null"),
]


def pathspecs(candidate: Candidate) -> list[list[str]]:
    """What git calls everything but that which a candidate owns, in groups of words.

    There is none where it owns all.
    """
    if not candidate.owns:
        return []
    # A runner carries it, so it stands there.
    from fanout.runtimes.loop import not_owned

    return not_owned(candidate.owns, candidate.changelog or None)


def merge_base(repo: git.Repository, candidate: Candidate) -> str:
    """What `git diff base...head` compares with; empty where there is no common history."""
    done = git.git(repo.common_dir, "merge-base", candidate.base, candidate.head)
    if done.code not in (0, 1):
        raise SkillError("git-failed", f"git merge-base failed: {done.error_text}")
    return done.text.strip()


def outside_commits(repo: git.Repository, candidate: Candidate, start: str) -> list[str]:
    """The paths that differ between `start` and its tip and are not owned, sorted.

    Raises SkillError `git-failed`.
    """
    paths: set[str] = set()
    for words in pathspecs(candidate):
        done = git.require_git(repo.top, *NAMES, start, candidate.head, "--", *words)
        paths |= {path for path in done.text.split("\0") if path}
    return sorted(paths - own_fragments(repo, candidate, start, paths))


def outside_tree(repo: git.Repository, candidate: Candidate) -> set[str]:
    """The paths that are changed in its worktree, not committed, and not owned.

    Raises SkillError `git-failed`.
    """
    paths: set[str] = set()
    for wanted in pathspecs(candidate) if candidate.worktree else ():
        words = [*status_arguments(ignored=False), "--", *wanted]
        done = git.require_git(candidate.worktree, *words, env=at(candidate.worktree))
        status = parse_status(done)
        paths |= {*status.staged, *status.modified, *status.conflicted, *status.untracked}
    return paths - own_fragments(repo, candidate, candidate.base, paths)


def own_fragments(
    repo: git.Repository, candidate: Candidate, start: str, paths: set[str]
) -> set[str]:
    """Those of some paths that are new changelog fragments, which every worker may add.

    Its contract asks for one. One that was there at `start`, or that is named for another worker,
    is not among them.
    """
    if not paths:
        return set()
    try:
        convention = convention_of(repo.common_dir, start)
    except SkillError:
        # Settings that cannot be read name no folder.
        return set()
    folder = f"{convention.path}/"
    found = {path for path in paths if path.startswith(folder) and convention.fragments}
    found = {path for path in found if is_fragment_of(path.removeprefix(folder), repo, candidate)}
    if not found:
        return set()
    words = ["ls-tree", "-z", "--name-only", "--full-tree", start, "--", folder]
    return found - set(git.require_git(repo.common_dir, *words).text.split("\0"))


def is_fragment_of(name: str, repo: git.Repository, candidate: Candidate) -> bool:
    """Whether a name is one for a fragment, and not that of another worker."""
    if "/" in name or is_no_fragment(name):
        return False
    stem = name.lstrip("+").partition(".")[0]
    others = {*records.worker_names(repo.common_dir)} - {candidate.name}
    # Some tools want an id behind it.
    return others.isdisjoint((stem, stem.rpartition("-")[0]))


def convention_for(repo: git.Repository, choice: Choice, candidate: Candidate) -> Convention | None:
    """How the changelog is kept where a candidate's work goes; None where that cannot be read."""
    commit = git.ref_commit(repo.common_dir, candidate.target) if candidate.target else None
    try:
        return convention_of(repo.common_dir, commit or repo.head, named_book(choice.run))
    except SkillError:
        return None


def named_book(run: str) -> str:
    """The changelog file that the plan of a run names; empty without one."""
    return str(read_run(run, "plan.json").get("changelog_file") or "") if run else ""


def beside(choice: Choice) -> list[str]:
    """The names of the tasks of a run, whose entries are no other's."""
    if not choice.run:
        return []
    return [str(task["name"]) for task in read_run(choice.run, "manifest.json")["tasks"]]


# --- What is not committed ------------------------------------------------------------------


def leftovers(repo: git.Repository, candidate: Candidate, *, ignored: bool = False) -> Status:
    """What is changed in a candidate's tree and no part of its branch; copies of ours left out.

    Raises SkillError `worktree-mismatch` when its folder is no worktree of this repository on its
    branch: then nothing that is found there says anything about the work.
    """
    if not candidate.worktree:
        return Status(candidate.head, candidate.ref, [], [], [], [], [], [])
    admin = admin_dir_of(candidate.worktree)
    own = os.path.realpath(candidate.worktree) == repo.main_root or (
        admin is not None
        and os.path.dirname(os.path.realpath(admin)) == os.path.join(repo.common_dir, "worktrees")
    )
    if not own:
        raise refused(
            "worktree-mismatch",
            f"{candidate.worktree!r} is no worktree of this repository",
            "look at it; `git worktree list` says what git knows",
        )
    status = read_status(candidate.worktree, ignored=ignored)
    if status.branch != candidate.ref:
        raise refused(
            "worktree-mismatch",
            f"{candidate.worktree!r} is on {status.branch or 'no branch'}, not on "
            f"{candidate.branch!r}",
            f"switch it back, or review what it has: git -C {life.quote(candidate.worktree)} log",
        )
    if candidate.kind != "worker":
        return status
    worker = life.load(repo.common_dir, candidate.name)
    kept = [path for path in status.untracked if not is_our_copy(worker, candidate.worktree, path)]
    return status._replace(untracked=kept)


def target_of(repo: git.Repository, candidates: list[Candidate], into: str) -> str:
    """The full name of the branch that the work is to end in.

    Raises SkillError `usage` when the records name none or several, `unknown-branch` (exit 2).
    """
    if into:
        target = "refs/heads/" + into.removeprefix("refs/heads/")
    else:
        targets = {candidate.target for candidate in candidates}
        recorded = sorted(target for target in targets if target)
        if len(targets) != 1 or not recorded:
            names = ", ".join(recorded) or "none"
            raise usage(
                "no-integration-branch",
                f"the records name no single integration branch ({names})",
                "give --into BRANCH",
            )
        target = recorded[0]
    if git.ref_commit(repo.common_dir, target) is None:
        raise usage("unknown-branch", f"there is no branch {target.removeprefix('refs/heads/')!r}")
    if git.symbolic_target(repo.common_dir, target) is not None:
        raise refused(
            "branch-replaced",
            f"{target} stands for another branch",
            "name that branch with --into",
        )
    return target
