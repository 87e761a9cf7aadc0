"""The command `plan_workers.py`: each question about a plan, drafts, and live workers."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout import judging
from fanout import plan as plans
from fanout.errors import SkillError
from fanout.partition import Meetings
from test_partition import pattern_lists
from world import ROOT, SCRIPTS, Ran, World

PLAN_WORKERS = SCRIPTS / "plan_workers.py"
VERIFY = ["make test"]


def run(world: World, *words: str) -> Ran:
    """Run the command in the world's repository, as JSON."""
    return world.run_warm(
        "plan_workers", [*words, "--json"], cwd=world.repo, env=world.env, stdin=b"", seconds=60
    )  # fmt: skip


def write(world: World, *tasks: dict[str, Any], **fields: Any) -> str:
    """A plan file with these tasks."""
    path = world.root / "plan.json"
    rows = [{"prompt": "Do it.", "verify": VERIFY, **task} for task in tasks]
    path.write_text(json.dumps({"agent": {"cli": "agent"}, "tasks": rows, **fields}))
    return str(path)


def check(world: World, *tasks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The answer of `check`; its exit code fits the verdict."""
    ran = run(world, "check", write(world, *tasks, **fields))
    assert ran.code == (0 if ran.data["verdict"] == "go" else 10), ran.out
    return ran.data


def fill(world: World, files: dict[str, str]) -> None:
    """Commit files."""
    for name, text in files.items():
        path = world.repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    world.commit("files")


def own(name: str, *owns: str, minutes: float | None = 60, **fields: Any) -> dict[str, Any]:
    """A task that owns patterns."""
    estimate = {} if minutes is None else {"estimate_minutes": minutes}
    return {"name": name, "owns": list(owns), **estimate, **fields}


def test_a_person_reads_who_owns_what(world: World) -> None:
    fill(world, {"src/a.py": "", "src/b.py": ""})
    path = write(world, own("one", "src/**"), own("two"))
    text = world.run_warm(
        "plan_workers", ["check", path], cwd=world.repo, env=world.env, stdin=b"", seconds=60
    ).out  # fmt: skip
    assert "  one: src/** (2 files)\n" in text
    assert "  two: everything (no `owns`)\n" in text


# --- Valid ----------------------------------------------------------------------------------


def test_every_error_is_told_at_once_with_its_place(world: World) -> None:
    path = write(
        world,
        {"name": "a", "owns": ["/x", "src", ".."], "depends_on": ["gone"], "timeout_seconds": -1},
        {"name": "b c", "verify": [{"name": "-", "run": "x"}], "colour": 1},
        {"name": "a", "for_each": [], "when": {"env": 1}},
        {"prompt_file": "none.md"},
        max_parallel="x", preflight=[""], backup=[],
    )  # fmt: skip
    ran = run(world, "check", path)
    assert ran.code == 2
    assert ran.error["code"] == "invalid-plan"
    places = {row["path"] for row in ran.data["errors"]}
    assert places >= {
        "backup", "max_parallel", "preflight[0]", "tasks[0].owns[0]", "tasks[0].owns[2]",
        "tasks[0].depends_on[0]", "tasks[0].timeout_seconds", "tasks[1].name", "tasks[1].colour",
        "tasks[1].verify[0].name", "tasks[2].for_each", "tasks[2].when.env", "tasks[2].name",
        "tasks[3]",
    }  # fmt: skip
    assert all(row["message"] for row in ran.data["errors"])


def test_a_cycle_is_no_valid_plan(world: World) -> None:
    ran = run(world, "check", write(world, own("a", depends_on=["b"]), own("b", depends_on=["a"])))
    assert ran.code == 2
    assert "a -> b -> a" in ran.data["errors"][0]["message"]


@pytest.mark.parametrize("content", ["{", "[]", '{"tasks": 1}', ""])
def test_what_is_no_plan_is_told(world: World, content: str) -> None:
    path = world.root / "plan.json"
    path.write_text(content)
    ran = run(world, "check", str(path))
    assert (ran.code, ran.data["verdict"]) == (2, "invalid")
    assert all(row["path"] in ("", "agent", "tasks") for row in ran.data["errors"])


@pytest.mark.parametrize("seed", range(3))
def test_all_errors_and_the_first_one_agree(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """A plan that the renderer refuses has errors, and its first one is among them."""
    from test_plan import Author

    author = Author(seed)
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    for number in range(6):
        plan = author.plan()
        for _ in range(number % 4):
            author.spoil(plan)
        path.write_text(json.dumps(plan))
        loaded, errors = plans.check_plan(str(path))
        said = ""
        try:
            assert plans.load_plan(str(path)) == loaded
        except SkillError as error:
            said = error.message
        assert (loaded is None) == bool(said)
        assert not said or said in [each.message for each in errors]


# --- Independent, disjoint, in waves --------------------------------------------------------


def test_disjoint_tasks_run_together(world: World) -> None:
    fill(world, {"src/a/x.py": "", "src/b/y.py": ""})
    data = check(world, own("a", "src/a"), own("b", "src/b"), own("c", "docs", depends_on=["a"]))
    assert data["verdict"] == "go"
    assert data["waves"] == [["a", "b"], ["c"]]
    assert [task["files"] for task in data["tasks"]] == [1, 1, 0]
    assert data["overlaps"] == []


def test_every_overlap_is_listed_and_is_an_edge(world: World) -> None:
    fill(world, {"src/a/x.py": "", "src/b/y.py": ""})
    data = check(world, own("a", "src/**/x.py"), own("b", "src/a"), own("new", "lib/n*"),
                 own("newer", "lib/*w"), max_parallel=4)  # fmt: skip
    assert data["verdict"] == "go-with-changes"
    assert data["waves"] == [["a", "new"], ["b", "newer"]]
    rows = {(row["a"], row["b"]): row for row in data["overlaps"]}
    assert rows["a", "b"]["paths"] == ["src/a/x.py"]
    # Nothing is there yet: an example stands for what both could make.
    assert rows["new", "newer"] == {**rows["new", "newer"], "paths": ["lib/nw"], "count": 0}
    assert "a and b both own src/a/x.py: they run one after the other" in data["reasons"]
    apply(world, rows["a", "b"]["edits"][1]["edits"])
    assert ("a", "b") not in overlaps_of(run(world, "check", str(world.root / "plan.json")).data)


def overlaps_of(data: dict[str, Any]) -> set[tuple[str, str]]:
    """The pairs that overlap."""
    return {(row["a"], row["b"]) for row in data["overlaps"]}


def apply(world: World, edits: list[dict[str, Any]]) -> None:
    """Paste edits into the plan."""
    path = world.root / "plan.json"
    plan = json.loads(path.read_text())
    for edit in edits:
        found = re.fullmatch(r"tasks\[(\d+)\](?:\.(\w+))?", edit["path"])
        assert found, edit
        if found[2]:
            plan["tasks"][int(found[1])][found[2]] = edit["value"]
        else:
            plan["tasks"].insert(int(found[1]), edit["value"])
    path.write_text(json.dumps(plan))


def test_tasks_without_owns_cannot_be_judged_disjoint(world: World) -> None:
    data = check(world, own("a", "src"), own("free"))
    assert data["verdict"] == "go-with-changes"
    assert data["waves"] == [["a", "free"]]
    assert "without `owns`, so that nothing keeps them apart: free" in data["reasons"]


def test_instances_of_a_repeated_task(world: World) -> None:
    data = check(world, own("t-{item}", "src/{item}", for_each=["a", "b"]),
                 own("u", "src/b"), own("v-{item}", "docs", for_each=["a", "b"]))  # fmt: skip
    assert data["waves"] == [["t-a", "t-b", "v-a"], ["u", "v-b"]]
    assert overlaps_of(data) == {("t-{item}", "u"), ("v-{item}", "v-{item}")}


def test_only_capitals_make_the_difference(world: World) -> None:
    fill(world, {"Docs/a.md": ""})
    data = check(world, own("a", "docs/a.md"), own("b", "src/x"), own("c", "SRC/x"))
    said = "\n".join(data["reasons"])
    assert "'docs/a.md' matches no file, but 'Docs/a.md' differs from it in capitals" in said
    assert "b and c own paths that differ in capitals alone" in said


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_tasks_that_overlap_are_never_in_one_wave(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    count = data.draw(st.integers(2, 5))
    rows: list[dict[str, Any]] = []
    for number in range(count):
        owns = data.draw(pattern_lists())
        items = data.draw(st.sampled_from([[], ["a", "b"], ["b", "b/a"]]))
        more = {"for_each": items} if items else {}
        if more:
            owns = [text + data.draw(st.sampled_from(["", "/{item}"])) for text in owns]
        rows.append({"name": f"t{number}", "prompt": "x", "owns": owns, **more})
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    path.write_text(json.dumps({"agent": {"cli": "a"}, "tasks": rows}))
    value = plans.load_plan(str(path)).value
    for wave in judging.waves_of(judging.units_of(value)):
        lists = [plans.owned_by(unit.plan, unit.values) for unit in wave]
        assert Meetings(lists).all() == []


# --- Seams, imports -------------------------------------------------------------------------


def test_a_seam_is_named_with_three_ways_out_that_work(world: World) -> None:
    fill(world, {"CHANGELOG.md": "", "package.json": "", "src/a/x": "", "src/b/y": ""})
    tasks = [
        own("a", "src/a", "CHANGELOG.md"),
        own("b", "src/b", prompt="Write a line into CHANGELOG.md, please."),
    ]
    (seam,) = check(world, *tasks)["seams"]
    assert (seam["path"], seam["kind"], seam["exists"]) == ("CHANGELOG.md", "changelog", True)
    assert [task["name"] for task in seam["tasks"]] == ["a", "b"]
    assert [way["way"] for way in seam["ways"]] == [
        "one owner: a", "before the fan-out", "after the fan-out",
    ]  # fmt: skip
    for number, way in enumerate(seam["ways"]):
        path = write(world, *tasks)
        apply(world, way["edits"])
        data = run(world, "check", path).data
        assert overlaps_of(data) == set()
        waves = [["a", "b"]]
        assert data["waves"] == [waves, [["seam-CHANGELOG-md"], *waves],
                                 [*waves, ["seam-CHANGELOG-md"]]][number]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "kind", "prompt"),
    [
        ("uv.lock", "lock file", "Add the new dependency it needs."),
        (".github/workflows/ci.yml", "CI configuration", "Edit .github/workflows/ci.yml."),
        ("app/urls.py", "registry", "Add it to app/urls.py."),
    ],
)
def test_seams_that_prompts_ask_for(world: World, path: str, kind: str, prompt: str) -> None:
    fill(world, {path: ""})
    data = check(world, own("a", "x", prompt=prompt), own("b", "y", prompt=prompt))
    assert [(row["path"], row["kind"]) for row in data["seams"]] == [(path, kind)]
    assert data["verdict"] == "go-with-changes"


def test_a_barrel_file_above_the_folders_of_two_tasks(world: World) -> None:
    fill(world, {"src/index.ts": "", "src/a/x.ts": "", "src/b/y.ts": ""})
    data = check(world, own("a", "src/a"), own("b", "src/b"))
    assert [(row["path"], row["decide"]) for row in data["seams"]] == [("src/index.ts", False)]
    assert data["verdict"] == "go"


def test_an_import_between_two_tasks_is_a_warning_with_both_files(world: World) -> None:
    fill(world, {"src/shop/__init__.py": "", "src/shop/cart.py": "from shop import price\n",
                 "src/shop/price.py": "", "src/shop/tax.py": "import price_of_all\n"})  # fmt: skip
    tasks = [own("cart", "src/shop/cart.py"), own("price", "src/shop/price.py")]
    data = check(world, *tasks, own("tax", "src/shop/tax.py"))
    assert data["couplings"] == [{
        "task": "cart", "imports_from": "price", "count": 1, "ordered": False,
        "files": [["src/shop/cart.py", "src/shop/price.py"]],
    }]  # fmt: skip
    assert data["verdict"] == "go-with-changes"
    tasks[0]["depends_on"] = ["price"]
    assert check(world, *tasks, own("tax", "src/shop/tax.py"))["verdict"] == "go"


# --- Worth it -------------------------------------------------------------------------------


def test_the_minutes_and_how_they_are_made(world: World) -> None:
    data = check(world, own("a", "a", minutes=40), own("b", "b", minutes=30),
                 own("c", "c", minutes=50), max_parallel=2, setup_minutes=3)  # fmt: skip
    estimate = data["estimate"]
    # a and b begin; c takes b's place at 30 and ends at 80.
    assert (estimate["serial_minutes"], estimate["parallel_minutes"]) == (120, 80 + 9 + 15)
    assert estimate["working"] == [
        "one after another: 40 + 30 + 50 = 120 min",
        "in parallel, at most 2 at once: b (30) -> c (50) = 80 min",
        "  + set-up, one at a time: 3 x 3 = 9 min",
        "  + review and integration: 3 x 5 = 15 min",
        "  = 104 min; saved: 120 - 104 = 16 min",
    ]
    again = check(world, own("a", "a", minutes=40), own("b", "b", minutes=40), review_minutes=1)
    assert again["estimate"]["parallel_minutes"] == 42


@pytest.mark.parametrize(
    ("tasks", "why"),
    [
        ([own("a", "a")], "it is one task"),
        ([own("a", "a"), own("b", "b", depends_on=["a"])], "it is a chain: a -> b"),
        ([own("a", "x"), own("b", "x")], "it is a chain: a -> b"),
        ([own("a", "a", minutes=5), own("b", "b", minutes=5)], "it saves nothing: 10 min"),
    ],
)
def test_what_is_better_done_by_one(world: World, tasks: list[dict[str, Any]], why: str) -> None:
    data = check(world, *tasks)
    assert data["verdict"] == "sequential"
    assert data["reasons"][0].startswith(why)


def test_without_estimates_nothing_is_said_about_time(world: World) -> None:
    data = check(world, own("a", "a", minutes=None), own("b", "b"))
    assert data["verdict"] == "go"
    assert data["estimate"]["saved_minutes"] is None
    assert data["estimate"]["unknown"] == ["a"]


# --- explain, draft -------------------------------------------------------------------------


def test_a_changelog_that_prompts_only_name_is_no_decision(world: World) -> None:
    """Each worker has a place for its entry, and a prompt may name the file to forbid it."""
    fill(world, {"CHANGELOG.md": "", "package-lock.json": "", "src/a/x": "", "src/b/y": ""})
    for file, wanted in (("CHANGELOG.md", False), ("package-lock.json", True)):
        tasks = [own(name, f"src/{name}", prompt=f"Leave {file} alone.") for name in "ab"]
        data = run(world, "check", write(world, *tasks)).data
        (seam,) = data["seams"]
        assert (seam["path"], seam["decide"]) == (file, wanted)


def test_a_task_is_explained(world: World) -> None:
    path = write(world, own("a", "src/a"), own("b-{item}", "src/{item}", for_each=["a", "c"]))
    ran = run(world, "explain", path, "b-{item}")
    assert ran.code == 0
    assert ran.data["waves"] == [2]
    assert ran.data["not_beside"] == [{"task": "a", "instances": "all", "example": "src/a"}]
    assert run(world, "explain", path, "bb").error["hint"] == "known: a, b-{item}"
    assert run(world, "explain", path, "b-item").error["hint"] == "did you mean 'b-{item}'?"


def test_a_list_of_tasks_becomes_a_plan_to_fill_in(world: World) -> None:
    fill(world, {"src/parser/a.py": "", "docs/x.md": ""})
    (world.root / "tasks.md").write_text(
        "# What to do\n\nIntro.\n\n## Parser: errors\nChange src/parser.\n```\n# no heading\n"
        "```\n### Detail\nmore\n\n## Docs\nFiles: docs, `CHANGELOG.md`\n\n## Parser: errors\n"
    )
    out = world.root / "made.json"
    ran = run(world, "draft", "--tasks", str(world.root / "tasks.md"), "--output", str(out))
    assert ran.code == 0, ran.out
    plan = json.loads(out.read_text())
    assert plan == ran.data["plan"]
    assert [task["owns"] for task in plan["tasks"][:2]] == [
        ["src/parser"], ["docs", "CHANGELOG.md"],
    ]  # fmt: skip
    assert "### Detail\nmore" in plan["tasks"][0]["prompt"]
    assert "estimate_minutes" not in plan["tasks"][0], "it invents no facts"
    told = {row["path"] for row in ran.data["to_fill"]}
    assert told >= {"agent.cli", "tasks[0].verify[0]", "tasks[2].owns[0]"}
    checked = run(world, "check", str(out))
    assert checked.code == 10
    assert any(row.startswith("tasks[2].owns[0]: FILL IN") for row in checked.data["reasons"])
    again = run(world, "draft", "--tasks", str(world.root / "tasks.md"), "--output", str(out))
    assert (again.code, json.loads(out.read_text())) == (3, plan)


def test_a_json_list_of_tasks(world: World) -> None:
    rows = ["First thing", {"name": "second", "prompt": "p", "paths": ["a"], "estimate_minutes": 3,
                            "depends_on": ["First thing"]}]  # fmt: skip
    path = world.root / "tasks.json"
    path.write_text(json.dumps(rows))
    tasks = run(world, "draft", "--tasks", str(path)).data["plan"]["tasks"]
    assert [task["name"] for task in tasks] == ["first-thing", "second"]
    assert tasks[1]["depends_on"] == ["first-thing"]
    assert tasks[1]["estimate_minutes"] == 3
    for text in ('[{"colour": 1}]', "", "[]", "[1]", '[{"name": "a", "owns": ["/a"]}]', "# \xff"):
        path.write_text(text, encoding="latin-1")
        assert run(world, "draft", "--tasks", str(path)).code == 2, text
    path.write_text("# A")
    lost = run(world, "draft", "--tasks", str(path), "--output", str(world.root / "no" / "plan"))
    assert (lost.code, lost.error["code"]) == (2, "no-folder")


# --- overlap --------------------------------------------------------------------------------


def test_what_live_workers_have_both_changed(world: World) -> None:
    fill(world, {"a.txt": "1\n2\n3\n", "b.txt": "x\n", "c.txt": "x\n"})
    one, two, three = (world.quick(n, owns=o) for n, o in
                       [("one", ["a.txt"]), ("two", ["b.txt"]), ("three", [])])  # fmt: skip
    (one / "a.txt").write_text("1\nONE\n3\n")
    world.commit("one", one)
    (two / "a.txt").write_text("1\nTWO\n3\n")
    (two / "b.txt").write_text("staged\n")
    world.git("add", "b.txt", cwd=two)
    (three / "new.txt").write_text("three\n")
    (two / "new.txt").write_text("two\n")
    words = ("rev-parse", "--git-path", "index")
    indexes = [Path(world.git(*words, cwd=tree)) for tree in (one, two, three)]
    before = [index.read_bytes() for index in indexes], world.git("count-objects", "-v")
    ran = run(world, "overlap")
    assert ran.code == 10
    shared = {row["path"]: row for row in ran.data["shared"]}
    assert set(shared) == {"a.txt", "new.txt"}
    assert shared["a.txt"]["owners"] == ["one"]
    assert shared["a.txt"]["workers"] == [
        {"name": "one", "changes": ["committed"]}, {"name": "two", "changes": ["unstaged"]},
    ]  # fmt: skip
    found = {row["name"]: row["changes"] for row in ran.data["workers"]}
    assert found["two"] == {"a.txt": ["unstaged"], "b.txt": ["staged"], "new.txt": ["untracked"]}
    assert [(r["path"], r["worker"]) for r in ran.data["not_owned"]] == [
        ("a.txt", "two"), ("new.txt", "two"),
    ]  # fmt: skip
    conflicts = {(row["a"], row["b"]): row["paths"] for row in ran.data["conflicts"]}
    assert conflicts == {("one", "two"): ["a.txt"], ("three", "two"): ["new.txt"]}
    after = [index.read_bytes() for index in indexes], world.git("count-objects", "-v")
    assert after == before
    assert run(world, "overlap", "one").code == 0
    assert run(world, "overlap", "nobody").code == 2


def test_names_that_are_odd_stay_in_their_line(world: World) -> None:
    one, two = world.quick("one"), world.quick("two")
    for tree in (one, two):
        folder = os.path.join(os.fsencode(tree), b"caf\xe9")
        os.mkdir(folder)
        with open(os.path.join(folder, b"new\nline"), "w") as file:
            file.write(tree.name)
    ran = world.run_warm(
        "plan_workers", ["overlap"], cwd=world.repo, env=world.env, stdin=b"", seconds=60
    )  # fmt: skip
    assert ran.code == 10
    name = r"caf\udce9/new\nline"
    assert ran.out.splitlines() == [
        rf"{name}: changed by one (untracked), two (untracked); owned by nobody",
        rf"one and two: conflict: {name}",
    ]


def test_a_worker_whose_tree_cannot_be_read_is_told(world: World) -> None:
    one, two = world.quick("one"), world.quick("two")
    (one / ".git").unlink()
    (two / "x").write_text("x")
    world.git("worktree", "remove", "--force", str(two))
    ran = run(world, "overlap")
    assert (ran.code, ran.error["code"]) == (1, "unreadable-worktree")
    said = {row["name"]: row["unknown"] for row in ran.data["workers"]}
    assert "not a git repository" in said["one"]
    assert said["two"] == f"its worktree {two} is gone"


def test_changes_are_shown_as_they_come(world: World) -> None:
    one, two = world.quick("one"), world.quick("two")
    import subprocess

    with subprocess.Popen(
        [str(PLAN_WORKERS), "overlap", "--watch"], cwd=world.repo, env=world.env,
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            for tree in (one, two):
                (tree / "new.txt").write_text(tree.name)
            line = process.stdout.readline()
            assert line.startswith("+ new.txt: changed by one (untracked), two (untracked)")
            (two / "new.txt").unlink()
            rest = (process.stdout.readline() for _ in range(6))
            assert next(row for row in rest if row.startswith("-")).startswith("- new.txt")
        finally:
            process.terminate()
            process.wait(10)


# --- The examples ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["code-fan-out", "fleet-edit", "self-hosted-upgrade"])
def test_the_examples_pass(world: World, name: str) -> None:
    ran = run(world, "check", str(ROOT / "examples" / f"{name}.json"))
    assert (ran.code, ran.data["verdict"]) == (0, "go"), ran.out


def test_a_large_plan_takes_little_time(world: World) -> None:
    """Time grows with files plus tasks: both doubled take not much more than twice as long."""
    took: list[float] = []
    data: dict[str, Any] = {}
    blob = world.git("hash-object", "-w", "README.md")
    for size in (25, 50):
        rows = world.root / "rows"
        rows.write_text("".join(
            f"100644 {blob}\tsrc/m{n % size}/d{n % 7}/f{n}.txt\n" for n in range(size * 80)
        ))  # fmt: skip
        world.git("rm", "-rq", "--cached", ".")
        world.git("-c", f"alias.fill=!git update-index --index-info < {rows}", "fill")
        world.git("commit", "-q", "-m", "many")
        path = write(world, *(own(f"t{n}", f"src/m{n}/**", f"docs/m{n}/*") for n in range(size)))
        begin = time.process_time()
        data = judging.judge(path, str(world.repo), None)
        took.append(time.process_time() - begin)
        assert [task["files"] for task in data["tasks"]] == [80] * size
    assert took[1] < 4 * took[0] + 0.1, took
    assert data["waves"] == [[f"t{n}" for n in range(50)]]


# --- spawn --plan ---------------------------------------------------------------------------


def test_the_tasks_of_a_plan_are_started_as_workers(world: World) -> None:
    fill(world, {"src/a/x": "", "items": ""})
    path = write(
        world,
        own("a", "src/a/", "!src/a/gen", branch="feature/a", prompt="Do {WHAT} in {item}."),
        own("b-{item}", "lib/{item}", for_each=["x y", "z"], prompt="Item {item}."),
        own("c", "docs", depends_on=["a"]),
        own("d", "src/a/x"),
        own("e", "e", for_each={"file": "items"}, depends_on=["a"]),
        agent={"cli": "/bin/true", "args": ["--never"]}, variables={"WHAT": "it"},
    )  # fmt: skip
    ran = world.run("spawn", "--plan", path, "--dry-run", "--json", "--prompt-mode", "argument")
    assert ran.code == 0, ran.out
    rows = {row["name"]: row for row in ran.data["workers"]}
    assert list(rows) == ["a", "b-x-y-1", "b-z"]
    assert "not started, because they wait for others: c, d, e-{item}" in ran.err
    assert rows["a"]["branch"] == "feature/a"
    assert rows["a"]["prompt"].startswith("Do it in {item}.\n")
    assert rows["b-x-y-1"]["prompt"].startswith("Item x y.")
    assert rows["a"]["base"] == world.git("rev-parse", "HEAD")
    for words, code, error in [
        (["e-{item}"], 3, "items-unknown"), (["a", "d"], 3, "tasks-overlap"),
        (["nope"], 2, "unknown-task"), (["a", "--base", "HEAD"], 2, "usage"),
    ]:  # fmt: skip
        ran = world.run("spawn", "--plan", path, "--dry-run", "--json", *words)
        assert (ran.code, ran.error["code"]) == (code, error), ran.out
    named = world.run("spawn", "--plan", path, "c", "--dry-run", "--json").data["workers"]
    assert [row["name"] for row in named] == ["c"]


def test_a_worker_of_a_plan_has_what_the_plan_says(world: World) -> None:
    path = write(world, own("a", "src/", "!src/gen"), agent={"cli": "/bin/true", "args": ["-x"]})
    words = ("--prompt-mode", "none", "--settle", "0", "--json")
    ran = world.run("spawn", "--plan", path, *words)
    (row,) = ran.data["workers"]
    assert row["worker"] is not None, ran.out
    record = json.loads((world.record("a") / "worker.json").read_text())
    assert record["owns"] == ["src/", "!src/gen"]
    assert "-x" not in record["argv"]
    assert (
        world.run(
            *["spawn", "b", "--agent-cli", "/bin/true", "--prompt", "x", "--owns", "../x"]
        ).code
        == 2
    )


# --- The reference --------------------------------------------------------------------------

REFERENCE = ROOT / "references" / "planning.md"
TREE = {
    "src/parser/parse.py": "import json\n", "src/export/csv.py": "import csv\n",
    "docs/manual.md": "", "CHANGELOG.md": "",
}  # fmt: skip


def test_the_examples_in_the_reference_are_what_is_printed(world: World) -> None:
    fill(world, TREE)
    blocks = re.findall(
        r"```console\n\$ plan_workers.py check (\S+)\n(.*?)```", REFERENCE.read_text(), re.S
    )
    assert [name for name, _ in blocks] == ["code-fan-out.json", "not-parallel.json"]
    for (name, text), code in zip(blocks, (0, 10), strict=True):
        words = ["check", str(ROOT / "examples" / name)]
        ran = world.run_warm(
            "plan_workers", words, cwd=world.repo, env=world.env, stdin=b"", seconds=60
        )  # fmt: skip
        assert (ran.out, ran.code) == (text, code)
