"""Whether a plan should be parallel: what its tasks share, who waits for whom, what it saves."""

from __future__ import annotations

import heapq
import os
import re

from fanout import coupling, git, partition
from fanout import plan as plans
from fanout.errors import SkillError, refused, usage
from fanout.fields import NamedTuple
from fanout.runtimes import loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REVIEW_MINUTES = 5.0
# What stands in a draft where a person must write.
FILL_IN = "FILL IN"
MOST_PATHS = 20
# So many overlaps are listed, and so many of them with all that is said of one.
MOST_OVERLAPS = 20_000
MOST_TOLD = 500
MOST_READ = 10_000
# So many files that the same tasks own are put together at once.
FEW = 64
MOST_SOURCE = 500_000
# Files that several tasks come to want, by kind: their patterns, and the words in a prompt that ask
# for them.
SEAMS: dict[str, tuple[list[str], str]] = {
    "lock file": (
        ["**/package-lock.json", "**/yarn.lock", "**/pnpm-lock.yaml", "**/Cargo.lock", "**/uv.lock",
         "**/poetry.lock", "**/Pipfile.lock", "**/go.sum", "**/Gemfile.lock", "**/composer.lock",
         "**/flake.lock"],
        r"\b(?:dependenc(?:y|ies)|npm install|pip install|cargo add|go get)\b",
    ),
    "manifest": (
        ["**/package.json", "**/pyproject.toml", "**/Cargo.toml", "**/go.mod", "**/pom.xml",
         "**/build.gradle", "**/build.gradle.kts", "**/requirements*.txt", "**/Makefile"],
        r"\b(?:dependenc(?:y|ies)|npm install|pip install|cargo add|go get)\b",
    ),
    "barrel file": (
        ["**/index.ts", "**/index.tsx", "**/index.js", "**/__init__.py", "**/mod.rs", "**/lib.rs"],
        "",
    ),
    "changelog": (["CHANGELOG*", "CHANGES*", "HISTORY*", "NEWS*", "docs/changelog*"], ""),
    "CI configuration": (
        [".github/workflows/**", ".gitlab-ci.yml", "Jenkinsfile", ".circleci/**",
         "azure-pipelines.yml"],
        r"\b(?:CI|workflow file|build pipeline)\b",
    ),
    "registry": (
        ["**/urls.py", "**/routes.*", "**/router.*", "**/registry.*", "**/settings.py",
         "**/docker-compose.y*ml", "**/compose.y*ml"],
        "",
    ),
    "generated index": (
        ["**/schema.rb", "**/openapi.json", "**/openapi.y*ml", "**/generated/**", "**/*.snap"],
        "",
    ),
}  # fmt: skip
WORD = re.compile(r"[A-Za-z0-9_.@][A-Za-z0-9_./@+-]*")


class Snapshot(NamedTuple):
    """The files of a commit, each with its blob."""

    commit: str
    blobs: dict[str, str]


class Judgement:
    """All that is known of a plan against a repository, ready to be answered."""

    def __init__(self, loaded: plans.Loaded, raw: Any, place: str, base: str | None) -> None:
        self.loaded = loaded
        self.raw = raw
        self.plan = loaded.value
        self.rows: list[dict[str, Any]] = self.plan["tasks"]
        self.names = [written(row) for row in self.rows]
        self.claims = [plans.claims_of(row, self.plan["variables"]) for row in self.rows]
        self.waits = partition.Waits(self.claims)
        self.repo, self.tree = snapshot(self.plan, place, base)
        self.machine = partition.Machine([claim.owns for claim in self.claims])
        self.owners: dict[str, frozenset[int]] = {}
        self.paths = sorted(self.tree.blobs)
        seen: set[partition.State] = set()
        for path, state in self.machine.of_files(self.paths):
            seen.add(state)
            found = self.machine.owners(state)
            if found:
                self.owners[path] = found
        self.hit = {number for state in seen for number in self.machine.matched(state)}
        self.files = self.files_of_tasks()
        self.finder = partition.Meetings([claim.owns for claim in self.claims])
        meetings = self.finder.all()
        self.too_many = meetings is None
        self.meetings = meetings or []
        self.lost = self.unmatched()
        self.lost_by_task: dict[int, list[str]] = {}
        for number, text in self.lost:
            self.lost_by_task.setdefault(number, []).append(text)
        self.units = units_of(self.plan)

    def files_of_tasks(self) -> list[int]:
        """The files that each task owns, as the bits of their places in `paths`."""
        size = len(self.paths) // 8 + 1
        places = {path: place for place, path in enumerate(self.paths)}
        alike: dict[frozenset[int], list[int]] = {}
        for path, owners in self.owners.items():
            alike.setdefault(owners, []).append(places[path])
        found = [0] * len(self.rows)
        single: list[list[int]] = [[] for _ in self.rows]
        for owners, members in alike.items():
            if len(members) < FEW:
                for number in owners:
                    single[number] += members
                continue
            together = bits_of(members, size)
            for number in owners:
                found[number] |= together
        return [bits | bits_of(more, size) for bits, more in zip(found, single, strict=True)]

    def some_paths(self, bits: int) -> list[str]:
        """The first files of those that are given as bits."""
        found: list[str] = []
        while bits and len(found) < MOST_PATHS:
            low = bits & -bits
            found.append(self.paths[low.bit_length() - 1])
            bits ^= low
        return found

    def ordered(self, a: int, b: int) -> bool:
        """Whether the plan itself lets one of two tasks wait for the other."""
        return self.waits.somehow(a, b) or self.waits.somehow(b, a)

    def answer(self) -> dict[str, Any]:
        """The whole answer."""
        overlaps = self.overlaps()
        seams = self.seams()
        couplings, read = self.couplings()
        waves = waves_of(self.units)
        estimate = estimate_of(self.plan, self.units)
        notes = self.notes(read)
        reasons = self.reasons(overlaps, seams, couplings)
        inline = sequential_reason(self.units, waves, estimate)
        verdict = "sequential" if inline else "go-with-changes" if reasons else "go"
        return {
            "verdict": verdict,
            "reasons": [inline, *reasons] if inline else reasons,
            "notes": notes,
            "base": self.tree.commit,
            "files": len(self.tree.blobs),
            "tasks": [self.task_json(number) for number in range(len(self.rows))],
            "waves": [[unit.name for unit in wave] for wave in waves],
            "overlaps": overlaps,
            "seams": seams,
            "couplings": couplings,
            "couplings_read": read,
            "estimate": estimate,
        }

    def task_json(self, number: int) -> dict[str, Any]:
        """What is said of one task."""
        row, claim = self.rows[number], self.claims[number]
        owned = self.files[number]
        order = [edge for edge in self.loaded.edges if edge.after == number]
        return {
            "name": self.names[number],
            "owns": [shown(text) for text in claim.owns],
            "files": owned.bit_count(),
            "paths": self.some_paths(owned),
            "unmatched": self.lost_by_task.get(number, []),
            "depends_on": [self.names[other] for other in row["depends_on"]],
            "not_beside": [
                {"task": self.names[e.before], "instances": e.kind, "example": shown(e.path)}
                for e in order
                if e.before != number or e.kind == "all"
            ],
            "instances": None if claim.may_be_none else max(1, len(claim.each or ())),
            "estimate_minutes": row["estimate_minutes"],
        }

    # --- Disjoint

    def overlaps(self) -> list[dict[str, Any]]:
        """Every two tasks, and every one with itself, that own a path both."""
        found: list[dict[str, Any]] = []
        edges = {(edge.before, edge.after): edge for edge in self.loaded.edges}
        for number in range(len(self.rows)):
            edge = edges.get((number, number))
            if edge is not None and edge.kind == "all":
                found.append(self.overlap(number, number, edge.path, edge.kind))
        for meeting in self.meetings[:MOST_OVERLAPS]:
            a, b = meeting.a, meeting.b
            answer = partition.kind_of(meeting, self.claims[a], self.claims[b], self.finder.effort)
            if answer is not None:
                found.append(self.overlap(a, b, answer[1], answer[0]))
        for row in found[MOST_TOLD:]:
            row["paths"], row["edits"] = row["paths"][:1], []
        return found

    def overlap(self, a: int, b: int, example: str, kind: str) -> dict[str, Any]:
        """One overlap, with the files that are there, or an example of one that might be."""
        files = self.files[a] & self.files[b]
        paths = self.some_paths(files)
        if not paths and example:
            paths = [shown(example)]
        by = "depends_on" if a != b and self.ordered(a, b) else "order of the plan"
        made: dict[str, Any] = {
            "a": self.names[a],
            "b": self.names[b],
            "paths": paths,
            "count": files.bit_count(),
            "example": shown(example),
            "instances": kind,
            "ordered_by": by,
            "edits": [],
        }
        if a != b and by != "depends_on":
            made["edits"] = self.overlap_edits(a, b)
        return made

    def overlap_edits(self, a: int, b: int) -> list[dict[str, Any]]:
        """Ways out of an overlap, as edits of the plan."""
        branch = self.rows[a]["branch"]
        wait = [edit(f"tasks[{b}].depends_on", [*self.depends(b), self.names[a]])]
        if isinstance(branch, str) and not self.claims[a].repeated:
            wait.append(edit(f"tasks[{b}].base", branch))
        back = [f"!{t}" for t in self.raw_owns(b) if not t.startswith("!")]
        return [
            {"way": "one after the other, on its work", "edits": wait},
            {
                "way": f"{self.names[b]} alone owns it",
                "edits": [edit(f"tasks[{a}].owns", [*self.raw_owns(a), *back])],
            },
        ]

    def raw_owns(self, number: int) -> list[str]:
        """The patterns of a task as the plan states them."""
        return [
            text if isinstance(text, str) else text["text"] for text in self.rows[number]["owns"]
        ]

    def depends(self, number: int) -> list[str]:
        """The names that a task depends on."""
        return [self.names[other] for other in self.rows[number]["depends_on"]]

    def unmatched(self) -> list[tuple[int, str]]:
        """The patterns that match no file at the base, with the task of each."""
        found: list[tuple[int, str]] = []
        at = 0
        for number, claim in enumerate(self.claims):
            for text in claim.owns:
                unknown = partition.FREE in text or partition.ITEM in text
                if unknown and text.startswith("!"):
                    continue
                if at not in self.hit and not unknown:
                    found.append((number, text))
                at += 1
        return found

    def by_case(self) -> list[str]:
        """Warnings where only capitals make the difference."""
        rows: list[str] = []
        lists = [claim.owns for claim in self.claims]
        exact = {(meeting.a, meeting.b) for meeting in self.meetings}
        capitals = any(text != text.lower() for texts in lists for text in texts)
        for meeting in (partition.Meetings(lists, fold=True).all() or ()) if capitals else ():
            if (meeting.a, meeting.b) not in exact:
                rows.append(
                    f"{self.names[meeting.a]} and {self.names[meeting.b]} own paths that differ in"
                    f" capitals alone, such as {shown(meeting.path)}: one file on some systems"
                )
        lost = self.lost
        if lost:
            folded = partition.Machine([[text.removeprefix("!")] for _, text in lost], fold=True)
            near: dict[int, str] = {}
            for path, state in folded.of_files(self.tree.blobs):
                for place in folded.owners(state):
                    near.setdefault(place, path)
            for place, path in sorted(near.items()):
                number, text = lost[place]
                said = (
                    f"{self.names[number]}: {text!r} matches no file, but {path!r} differs from it"
                )
                rows.append(f"{said} in capitals alone")
        return rows

    # --- Seams

    def seams(self) -> list[dict[str, Any]]:
        """Files that several tasks will want, each with the ways out."""
        kinds = list(SEAMS)
        machine = partition.Machine([patterns for patterns, _ in SEAMS.values()])
        found: dict[str, tuple[str, dict[int, str]]] = {}

        def want(path: str, number: int, why: str) -> None:
            state = machine.walk(machine.start, path.encode("utf-8", "surrogateescape"))
            for kind in sorted(machine.owners(state))[:1]:
                found.setdefault(path, (kinds[kind], {}))[1].setdefault(number, why)

        there: dict[str, str] = {}
        for path, state in machine.of_files(self.tree.blobs):
            if machine.owners(state):
                there[path] = kinds[min(machine.owners(state))]
        for path in there:
            for number in self.owners.get(path, ()):
                want(path, number, "owns it")
        for number, row in enumerate(self.rows):
            prompt = row["prompt"] if isinstance(row["prompt"], str) else row["prompt"]["text"]
            for word in {word.rstrip(".") for word in WORD.findall(prompt)}:
                # A bare name may be that of a file somewhere below.
                if "/" in word or word in there or word.startswith(("CHANGELOG", "CHANGES")):
                    want(word.removeprefix("./"), number, "its prompt names it")
            for text in self.claims[number].owns:
                if partition.SPECIAL.isdisjoint(text) and not text.startswith("!"):
                    want(text, number, "owns it")
            for path, kind in there.items():
                asks = SEAMS[kind][1]
                if asks and "/" not in path and re.search(asks, prompt):
                    want(path, number, "its prompt speaks of dependencies or CI")
        for path, tasks in self.parents_of(there).items():
            for number in tasks:
                want(path, number, "owns files beside or below it")
        made: list[dict[str, Any]] = []
        for path, (kind, tasks) in sorted(found.items()):
            if len(tasks) < 2:
                continue
            numbers = sorted(tasks)
            # Each worker is told of a place of its own for changelog entries.
            said = ("owns it",) if kind == "changelog" else ("owns it", "its prompt")
            clear = any(why.startswith(said) for why in tasks.values())
            apart = all(self.ordered(a, b) for a in numbers for b in numbers if a < b)
            made.append({
                "path": path,
                "kind": kind,
                "exists": path in self.tree.blobs,
                "tasks": [{"name": self.names[n], "why": tasks[n]} for n in numbers],
                "decide": clear and not apart,
                "ways": self.seam_ways(path, numbers),
            })  # fmt: skip
        return made

    def parents_of(self, there: dict[str, str]) -> dict[str, list[int]]:
        """Barrel files above folders of several tasks, with those tasks."""
        starts: dict[str, set[int]] = {}
        for number, claim in enumerate(self.claims):
            for text in claim.owns:
                front = partition.beginning(text)
                folder = front.rstrip("/").rpartition("/")[0]
                if folder and not text.startswith("!"):
                    starts.setdefault(folder, set()).add(number)
        barrels = [path for path, kind in there.items() if kind == "barrel file"]
        found: dict[str, list[int]] = {}
        for path in barrels:
            tasks = starts.get(path.rpartition("/")[0], set())
            if len(tasks) > 1:
                found[path] = sorted(tasks)
        return found

    def seam_ways(self, path: str, numbers: list[int]) -> list[dict[str, Any]]:
        """The three ways out of a seam, as edits of the plan that can be pasted."""
        first, *others = numbers
        taken = [self.without(number, path) for number in numbers]
        name = "seam-" + (re.sub(r"[^A-Za-z0-9]+", "-", path).strip("-")[:50] or "file")
        task = {"name": name, "prompt": f"{FILL_IN}: what must change in {path}.", "owns": [path]}
        waiting = [
            edit(f"tasks[{n}].depends_on", [*self.depends(n), name]) for n in numbers
        ]  # fmt: skip
        last = {**task, "depends_on": [self.names[n] for n in numbers]}
        mine = self.raw_owns(first)
        keep = [edit(f"tasks[{first}].owns", [*mine, path])] if path not in mine else []
        return [
            {
                "way": f"one owner: {self.names[first]}",
                "edits": [*keep, *(self.without(number, path) for number in others)],
            },
            {
                "way": "before the fan-out",
                "edits": [edit(f"tasks[{len(self.rows)}]", task), *waiting, *taken],
            },
            {
                "way": "after the fan-out",
                "edits": [edit(f"tasks[{len(self.rows)}]", last), *taken],
            },
        ]

    def without(self, number: int, path: str) -> dict[str, Any]:
        """The edit that takes a path from a task."""
        mine = self.raw_owns(number)
        kept = [text for text in mine if text != path]
        if partition.owned([t for t in self.claims[number].owns if t != path], [path]):
            kept.append(f"!{path}")
        return edit(f"tasks[{number}].owns", kept)

    # --- Coupled

    def couplings(self) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Files of one task that import files of another, and how many were looked at."""
        sources = [path for path in self.owners if path.endswith(coupling.READABLE)]
        chosen = sources[:MOST_READ]
        read = {"files": len(chosen), "of": len(sources)}
        if len({n for path in chosen for n in self.owners[path]}) < 2:
            return [], read
        roots = [p for p in self.tree.blobs if p == "go.mod" or p.endswith("/go.mod")]
        blobs = self.tree.blobs
        names = list(dict.fromkeys(blobs[path] for path in (*roots, *chosen)))
        contents = git.read_objects(self.repo.common_dir, names)
        texts = {
            path: (contents[blobs[path]] or b"")[:MOST_SOURCE].decode("utf-8", "replace")
            for path in (*roots, *chosen)
        }
        tree = coupling.Tree(blobs, coupling.go_modules({path: texts[path] for path in roots}))
        pairs: dict[tuple[int, int], list[list[str]]] = {}
        for path in chosen:
            mine = self.owners[path]
            for other in sorted(tree.imports(path, texts[path])):
                theirs = self.owners.get(other, frozenset())
                for a in mine - theirs:
                    for b in theirs - mine:
                        pairs.setdefault((a, b), []).append([path, other])
        found: list[dict[str, Any]] = []
        for (a, b), files in sorted(pairs.items()):
            found.append({
                "task": self.names[a], "imports_from": self.names[b],
                "files": files[:MOST_PATHS], "count": len(files),
                "ordered": self.ordered(a, b),
            })  # fmt: skip
        return found, read

    # --- The verdict

    def reasons(
        self,
        overlaps: list[dict[str, Any]],
        seams: list[dict[str, Any]],
        couplings: list[dict[str, Any]],
    ) -> list[str]:
        """What should be changed before the plan runs."""
        rows = [f"{where}: {text}" for where, text in to_fill(self.raw, "")]
        for row in overlaps:
            what = row["paths"][0] if row["paths"] else "what takes too long to tell"
            if row["a"] == row["b"]:
                rows.append(f"the items of {row['a']} own {what} all: they run one after another")
            elif row["ordered_by"] != "depends_on":
                rows.append(
                    f"{row['a']} and {row['b']} both own {what}: they run one after the other"
                )
        if len(self.meetings) > MOST_OVERLAPS:
            rows.append(f"{len(self.meetings) - MOST_OVERLAPS} more overlaps are not listed")
        if self.too_many:
            rows.append(
                "too many patterns of `owns` begin alike to compare them all: the tasks that own"
                " something run one after another"
            )
        free = [self.names[n] for n, claim in enumerate(self.claims) if not claim.owns]
        if free and len(self.rows) > 1:
            rows.append("without `owns`, so that nothing keeps them apart: " + ", ".join(free))
        for seam in seams:
            if seam["decide"]:
                names = ", ".join(task["name"] for task in seam["tasks"])
                rows.append(f"{seam['path']} ({seam['kind']}) is wanted by {names}")
        for row in couplings:
            if not row["ordered"]:
                first, second = row["files"][0]
                rows.append(f"{first} of {row['task']} imports {second} of {row['imports_from']}")
        return [*rows, *self.by_case()]

    def notes(self, read: dict[str, int]) -> list[str]:
        """What is good to know and no reason to change anything."""
        rows = [f"{self.names[n]}: {text!r} matches no file at the base" for n, text in self.lost]
        rows += [
            f"{self.names[n]} has no `verify`: nothing checks it before the review"
            for n, row in enumerate(self.rows) if not row["verify"]
        ]  # fmt: skip
        if read["files"] < read["of"]:
            rows.append(f"imports were read in {read['files']} of {read['of']} files")
        return [*rows, *self.loaded.notes]


def written(row: dict[str, Any]) -> str:
    """A task's name as it is written."""
    return row["name"] if isinstance(row["name"], str) else row["name"]["text"]


def shown(text: str) -> str:
    """A pattern or path with what is not known yet as words."""
    return text.replace(partition.ITEM, "{item}").replace(partition.FREE, "{...}")


def bits_of(places: list[int], size: int) -> int:
    """The number in which these bits are set, of so many bytes."""
    made = bytearray(size)
    for place in places:
        made[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(made, "little")


def edit(path: str, value: Any) -> dict[str, Any]:
    """One edit of a plan: the value that belongs at a JSON path."""
    return {"path": path, "value": value}


def to_fill(value: Any, where: str) -> list[tuple[str, str]]:
    """The places of a plan where a person must still write, with what stands there."""
    if isinstance(value, str):
        return [(where, value.strip()[:80])] if FILL_IN in value else []
    found: list[tuple[str, str]] = []
    if isinstance(value, dict):
        for key, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
            found += to_fill(inner, f"{where}.{key}" if where else str(key))  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, list):
        for number, inner in enumerate(value):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            found += to_fill(inner, f"{where}[{number}]")
    return found


def snapshot(plan: dict[str, Any], place: str, base: str | None) -> tuple[git.Repository, Snapshot]:
    """The repository of a plan and the files at its base. Raises SkillError."""
    folder = os.path.join(place, loop.fill(plan["repo"], plan["variables"]))
    repo = git.open_repository(folder)
    ref = base if base is not None else loop.fill(plan["base"], plan["variables"])
    commit = repo.head if ref == "HEAD" else git.resolve_commit(repo, ref)
    done = git.require_git(repo.top, "ls-tree", "-r", "-z", "--full-tree", commit)
    blobs: dict[str, str] = {}
    for entry in done.text.split("\0"):
        head, _, path = entry.partition("\t")
        if path:
            blobs[path] = head.rpartition(" ")[2]
    return repo, Snapshot(commit, blobs)


# --- Waves and minutes ----------------------------------------------------------------------


def units_of(plan: dict[str, Any]) -> list[loop.Task]:
    """What will run, in the plan's order; a task whose items are found later stands for them."""
    groups: list[list[loop.Task]] = []
    units: list[loop.Task] = []
    later: set[int] = set()
    for number, row in enumerate(plan["tasks"]):
        source: dict[str, Any] | None = row["for_each"]
        items: list[str | None] = [None]
        if source is not None and "items" in source:
            items = list(source["items"])
        group: list[loop.Task] = []
        for place, item in enumerate(items, 1):
            values: dict[str, str] = plan["variables"]
            if item is not None:
                values = {**values, "item": item, "item slug": loop.slug(item, place)}
            group.append(loop.Task(row, number, item, values))
        units += group
        if source is not None and "items" not in source:
            later.add(number)
        groups.append(group)
    by_item: list[dict[str, loop.Task]] = [
        {unit.item: unit for unit in group if unit.item is not None} for group in groups
    ]
    for unit in units:
        needed: list[int] = unit.plan["depends_on"]
        for number in needed:
            other = by_item[number].get(unit.item or "")
            unit.after += groups[number] if other is None else [other]
    known = [[] if number in later else group for number, group in enumerate(groups)]
    loop.put_in_order(known, by_item)
    for unit in units:
        befores: list[int] = [number for number, _ in unit.plan["order"]]
        for number in befores:
            if number != unit.number and (number in later or unit.number in later):
                unit.behind += [u for u in groups[number] if u not in unit.behind]
    return units


def waves_of(units: list[loop.Task]) -> list[list[loop.Task]]:
    """What may run together: each unit stands in the first wave after all that it waits for."""
    order = loop.Order(units)
    level: dict[int, int] = {}
    waves: list[list[loop.Task]] = []
    while order.ready:
        unit = order.take()
        order.done(unit)
        before = [level[id(other)] for other in (*unit.after, *unit.behind)]
        level[id(unit)] = max(before, default=-1) + 1
        while len(waves) <= level[id(unit)]:
            waves.append([])
        waves[level[id(unit)]].append(unit)
    place = {id(unit): number for number, unit in enumerate(units)}
    return [sorted(wave, key=lambda unit: place[id(unit)]) for wave in waves]


def estimate_of(plan: dict[str, Any], units: list[loop.Task]) -> dict[str, Any]:
    """What the plan takes one task after another and in parallel, with the working."""
    minutes = [unit.plan["estimate_minutes"] for unit in units]
    unknown = list(dict.fromkeys(
        unit.name for unit, each in zip(units, minutes, strict=True)
        if each is None or is_repeated_later(unit)
    ))  # fmt: skip
    count = len(units)
    setup = plan["setup_minutes"] or 0.0
    review = REVIEW_MINUTES if plan["review_minutes"] is None else plan["review_minutes"]
    made: dict[str, Any] = {
        "serial_minutes": None, "parallel_minutes": None, "saved_minutes": None,
        "setup_minutes": setup, "review_minutes": review, "unknown": unknown, "working": [],
    }  # fmt: skip
    if unknown:
        names = ", ".join(unknown[:10])
        made["working"] = [f"not known without `estimate_minutes`, or how many there are: {names}"]
        return made
    serial = sum(minutes)
    longest, path = schedule(units, minutes, plan["max_parallel"])
    parallel = longest + setup * count + review * count
    made |= {
        "serial_minutes": serial, "parallel_minutes": parallel, "saved_minutes": serial - parallel,
        "working": [
            f"one after another: {sum_of(minutes)} = {serial:g} min",
            f"in parallel, at most {plan['max_parallel']} at once: {' -> '.join(path)}"
            f" = {longest:g} min",
            f"  + set-up, one at a time: {count} x {setup:g} = {setup * count:g} min",
            f"  + review and integration: {count} x {review:g} = {review * count:g} min",
            f"  = {parallel:g} min; saved: {serial:g} - {parallel:g} = {serial - parallel:g} min",
        ],
    }  # fmt: skip
    return made


def is_repeated_later(unit: loop.Task) -> bool:
    """Whether a unit stands for items that are not known yet."""
    return unit.plan["for_each"] is not None and unit.item is None


def sum_of(minutes: list[float]) -> str:
    """A sum, in which many numbers are cut short."""
    words = [f"{each:g}" for each in minutes[:12]]
    return " + ".join([*words, "..."] if len(minutes) > 12 else words)


def schedule(units: list[loop.Task], minutes: list[float], most: int) -> tuple[float, list[str]]:
    """When the last of them ends, and the chain of those that made it so late."""
    order = loop.Order(units)
    place = {id(unit): number for number, unit in enumerate(units)}
    running: list[tuple[float, int]] = []
    cause: dict[int, int | None] = {}
    clock, last = 0.0, None
    while order.ready or running:
        while order.ready and len(running) < most:
            number = place[id(order.take())]
            cause[number] = last
            heapq.heappush(running, (clock + minutes[number], number))
        clock, last = heapq.heappop(running)
        order.done(units[last])
    path: list[str] = []
    at = last
    while at is not None:
        path.append(f"{units[at].name} ({minutes[at]:g})")
        at = cause[at]
    return clock, path[::-1]


def sequential_reason(
    units: list[loop.Task], waves: list[list[loop.Task]], estimate: dict[str, Any]
) -> str:
    """Why a plan should not be parallel; empty when nothing speaks against it."""
    several = any(is_repeated_later(u) and not runs_in_turn(u) for u in units)
    if len(units) == 1 and not several:
        return "it is one task"
    if all(len(wave) == 1 for wave in waves) and not several:
        return "it is a chain: " + " -> ".join(unit.name for wave in waves for unit in wave)
    saved = estimate["saved_minutes"]
    if saved is not None and saved <= 0:
        serial, parallel = estimate["serial_minutes"], estimate["parallel_minutes"]
        return f"it saves nothing: {serial:g} min one after another, {parallel:g} min in parallel"
    return ""


def runs_in_turn(unit: loop.Task) -> bool:
    """Whether the items of a unit run one after another."""
    return dict(unit.plan["order"]).get(unit.number) == "all"


def judge(path: str, place: str, base: str | None) -> dict[str, Any]:
    """The answer about a plan file. Raises SkillError `invalid-plan` with all that is wrong."""
    return judgement(path, place, base).answer()


def judgement(path: str, place: str, base: str | None) -> Judgement:
    """A plan file against a repository. Raises SkillError `invalid-plan` with all that is wrong."""
    loaded, errors = plans.check_plan(path)
    if loaded is None:
        rows = [
            {
                "path": error.data.get("path", ""),
                "message": error.data.get("problem", error.message),
                "hint": error.hint,
            }
            for error in errors
        ]
        count = "1 error" if len(rows) == 1 else f"{len(rows)} errors"
        raise SkillError(
            "invalid-plan", f"the plan {path!r} is not valid: {count}",
            "mend each at its JSON path", exit_code=errors[0].exit_code,
            data={"valid": False, "verdict": "invalid", "errors": rows},
        )  # fmt: skip
    content = plans.read_file(path, plans.PLAN_LIMIT, "the plan")
    return Judgement(loaded, plans.parse_json(content, "the plan"), place, base)


# --- What can be started --------------------------------------------------------------------


def unknown_task(name: str, known: list[str]) -> SkillError:
    """A plan has no task of this name."""
    hint = loop.nearest(name[:100], known)
    return usage("unknown-task", f"the plan has no task {name!r}", hint)


def chosen_units(plan: dict[str, Any], names: list[str]) -> tuple[list[loop.Task], list[str]]:
    """The units that are named; without names those that wait for nothing, and those that do.

    A name is a unit's or a task's. Raises SkillError `unknown-task` (exit 2), `tasks-overlap`,
    `items-unknown` (exit 3).
    """
    units = units_of(plan)
    known = {unit.name: [unit] for unit in units}
    for unit in units:
        group = known.setdefault(written(unit.plan), [])
        if unit not in group:
            group.append(unit)
    for name in names:
        if name not in known:
            raise unknown_task(name, list(known))
    wanted = {id(unit) for name in names for unit in known[name]}
    found = [u for u in units if (id(u) in wanted if names else not (u.after or u.behind))]
    for unit in found:
        if is_repeated_later(unit):
            raise refused(
                "items-unknown", f"what {unit.name!r} is repeated for is found when a runner runs",
                "name other tasks, or render the plan",
            )  # fmt: skip
        for other in unit.behind:
            if other in found:
                raise refused(
                    "tasks-overlap", f"{unit.name} and {other.name} may change the same file",
                    f"start {other.name} first, {unit.name} when it has ended",
                )  # fmt: skip
    left = [unit.name for unit in units if unit not in found]
    return found, [] if names else left


# --- Drafts ---------------------------------------------------------------------------------

HEADING = re.compile(r"(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$")
FIELD = re.compile(r"(?:[-*][ \t]+)?(?:files|paths|owns)[ \t]*:[ \t]*(.+)", re.I)
DRAFT = ("name", "title", "prompt", "paths", "owns", "depends_on", "estimate_minutes")


class Wish(NamedTuple):
    """A task as a list of tasks states it; `minutes` is None where it says nothing."""

    title: str
    text: str
    paths: list[str]
    after: list[str]
    minutes: float | None


def read_wishes(text: str, what: str) -> list[Wish]:
    """The tasks of a list: a JSON list, or Markdown with a heading for each.

    Raises SkillError `invalid-tasks` (exit 2).
    """
    found = from_json(text, what) if text.lstrip().startswith("[") else from_markdown(text)
    if not found:
        raise usage("invalid-tasks", f"{what} holds no task", "write a heading for each task")
    return found


def from_json(text: str, what: str) -> list[Wish]:
    """The tasks of a JSON list of texts or objects."""
    found: list[Wish] = []
    for number, value in enumerate(plans.parse_json(text.encode("utf-8"), what)):
        row: Any = {"title": value} if isinstance(value, str) else value
        if not isinstance(row, dict) or not {*row} <= {*DRAFT}:  # pyright: ignore[reportUnknownArgumentType]
            raise usage(
                "invalid-tasks",
                f"{what}: [{number}] must be a text, or an object of known fields",
                "its fields: " + ", ".join(DRAFT),
            )
        fields: dict[str, Any] = row  # pyright: ignore[reportUnknownVariableType]
        title = str(fields.get("name") or fields.get("title") or "")
        prompt = str(fields.get("prompt") or fields.get("title") or "")
        paths: Any = fields.get("paths") or fields.get("owns") or []
        after: Any = fields.get("depends_on") or []
        if not title or not is_texts(paths) or not is_texts(after):
            raise usage("invalid-tasks", f"{what}: [{number}] needs a title, and lists of texts")
        found.append(Wish(title, prompt, paths, after, fields.get("estimate_minutes")))
    return found


def is_texts(value: Any) -> bool:
    """Whether a value is a list of texts."""
    return isinstance(value, list) and all(isinstance(word, str) for word in value)  # pyright: ignore[reportUnknownVariableType]


def from_markdown(text: str) -> list[Wish]:
    """The tasks of a Markdown text: its headings, without one title above all others."""
    rows: list[tuple[int, str, list[str]]] = []
    fence = ""
    for line in text.splitlines():
        mark = line.lstrip()[:3]
        if mark in ("```", "~~~") and fence in ("", mark):
            fence = "" if fence else mark
        heading = None if fence else HEADING.match(line)
        if heading is not None:
            rows.append((len(heading[1]), heading[2], []))
        elif rows:
            rows[-1][2].append(line)
    levels = [level for level, _, _ in rows]
    if len(rows) > 1 and levels[0] == min(levels) and levels.count(levels[0]) == 1:
        rows = rows[1:]
    top = min((level for level, _, _ in rows), default=0)
    found: list[Wish] = []
    for level, title, lines in rows:
        if level > top and found:
            # What is smaller belongs to the task above it.
            more = "\n".join(["#" * level + " " + title, *lines]).strip()
            found[-1] = found[-1]._replace(text=f"{found[-1].text}\n\n{more}".strip())
            continue
        paths: list[str] = []
        kept: list[str] = []
        for line in lines:
            field = FIELD.match(line.strip())
            if field is None:
                kept.append(line)
            else:
                paths += [p for p in re.split(r"[,\s]+", field[1].replace("`", " ")) if p]
        found.append(Wish(title, "\n".join(kept).strip(), paths, [], None))
    return found


def draft(wishes: list[Wish], files: dict[str, str], name: str) -> dict[str, Any]:
    """A plan for some tasks, in which FILL_IN stands where only a person knows."""
    parents: set[str] = set()
    for path in files:
        while path := path.rpartition("/")[0]:
            parents.add(path)
    taken: list[str] = []
    for number, wish in enumerate(wishes, 1):
        slug = re.sub(r"[^a-z0-9]+", "-", wish.title.lower()).strip("-")[:40].strip("-")
        taken.append(slug if slug and slug not in taken else f"{slug[:36] or 'task'}-{number}")
    names = dict(zip([wish.title for wish in wishes], taken, strict=True))
    tasks: list[dict[str, Any]] = []
    for name_of_it, wish in zip(taken, wishes, strict=True):
        said = dict.fromkeys(word.rstrip("./") for word in WORD.findall(wish.text))
        owns = wish.paths or [word for word in said if word in files or word in parents]
        task: dict[str, Any] = {
            "name": name_of_it,
            "prompt": f"{wish.title}\n\n{wish.text}".strip() + "\n",
            "owns": owns or [f"{FILL_IN} the paths that it may change"],
        }
        if wish.after:
            task["depends_on"] = [names.get(word, word) for word in wish.after]
        task["verify"] = [f"{FILL_IN}: a command that fails while the work is wrong"]
        if wish.minutes is not None:
            task["estimate_minutes"] = wish.minutes
        tasks.append(task)
    return {
        "run_name": name,
        "max_parallel": min(4, len(tasks)),
        "agent": {"cli": f"{FILL_IN}: the agent's program"},
        "tasks": tasks,
    }


def run_name(stem: str) -> str:
    """A name for a run, made from a file's."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:64] or "plan"


def instances_of(path: str, name: str) -> list[str]:
    """The names of what a task of a plan stands for."""
    units = units_of(plans.load_plan(path).value)
    return [unit.name for unit in units if written(unit.plan) == name]
