"""The command `self_test.py`: it passes wherever a copy lies, and finds what is wrong with one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conversions import TARGET, mapping, write_mapping
from fanout import edition, self_checks
from fanout.errors import SkillError
from fanout.self_checks import Check, Site
from world import ROOT, SCRIPTS, World, wait_for

PARTS = ("SKILL.md", "LICENSE", "scripts", "examples", "references", "poster")
QUICK = [
    "programs", "frontmatter", "files", "syntax", "help", "mappings", "schemas", "poster",
    "plans", "conversion",
]  # fmt: skip
# No plan of the examples names it, whatever the default is.
OTHER = min({"codex", "pi"} - {edition.AGENT})
LIVE = ["spawn", "lost Enter", "dead agent", "review", "killed merge", "clean-up", "runners"]


def copy(folder: Path) -> Path:
    """A copy of what a skill that is installed has."""
    folder.mkdir(parents=True)
    for part in PARTS:
        if (ROOT / part).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, folder / part, ignore=ignore)
        else:
            shutil.copyfile(ROOT / part, folder / part)
    return folder


class Home:
    """An empty home and an empty folder for temporary files, which must stay empty."""

    def __init__(self, root: Path, path: str = os.environ["PATH"]) -> None:
        self.folders = [root / "own home", root / "own tmp"]
        for folder in self.folders:
            folder.mkdir()
        home, tmp = map(str, self.folders)
        self.env = {"PATH": path, "HOME": home, "TMPDIR": tmp, "LANG": "C.UTF-8"}

    def start(self, package: Path, *words: str, **env: str) -> subprocess.Popen[str]:
        """Start the self-test of a package from elsewhere."""
        return subprocess.Popen(
            [sys.executable, str(package / "scripts" / "self_test.py"), *words], cwd="/",
            env={**self.env, **env}, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, package: Path, *words: str, **env: str) -> tuple[int, dict[str, Any], str]:
        """Run it with --json; its exit code, answer and narration."""
        process = self.start(package, "--json", *words, **env)
        out, err = process.communicate(timeout=110)
        assert "Traceback" not in err, err
        self.require_empty()
        return process.returncode, json.loads(out), err

    def require_empty(self) -> None:
        """Nothing was left."""
        assert [list(folder.rglob("*")) for folder in self.folders] == [[], []]


@pytest.fixture
def home(world: World) -> Home:
    return Home(world.root)


def failed(answer: dict[str, Any]) -> set[str]:
    """The names of the checks that failed."""
    return {row["name"] for row in answer["data"]["checks"] if not row["ok"]}


def seen(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of a folder with its mode and content, and every folder."""
    return {
        str(path): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_copy_passes_that_is_read_only_and_lies_behind_a_link_and_a_space(
    world: World, home: Home
) -> None:
    """S11: by mode 0600 no file can be executed either."""
    package = copy(world.root / "a 'copy'" / edition.SKILL)
    for path in package.rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)
    before = seen(package)
    link = world.root / "linked skill"
    link.symlink_to(package)
    try:
        code, answer, err = home.run(link, PYTHONSAFEPATH="1", GIT_DIR="/no", DRY_RUN="1", TMUX="x")
        assert (code, failed(answer)) == (0, set()), err
        assert seen(package) == before
    finally:
        for path in [package, *package.rglob("*")]:
            path.chmod(0o700)
    data = answer["data"]
    assert [row["name"] for row in data["checks"]] == [*QUICK, *LIVE, "left behind"]
    assert (answer["ok"], data["quick"], data["package"]) == (True, False, str(package))
    assert sum(line.startswith("ok ") for line in err.splitlines()) == len(data["checks"])
    assert not world.processes()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_converted_package_passes(world: World, home: Home) -> None:
    folder = world.root / f"{TARGET}-worktree-skill"
    config = write_mapping(world.root, mapping(TARGET))
    words = ("--config", config, "--output-dir", str(folder))
    ran = world.run(*words, script=SCRIPTS / "convert_harness.py")
    assert ran.code == 0, ran.err
    assert (folder / "scripts" / f"{TARGET}_workers.py").exists()
    code, answer, err = home.run(folder)
    assert (code, failed(answer)) == (0, set()), err


@pytest.mark.long
def test_interrupted_it_ends_all_that_it_started(world: World, home: Home) -> None:
    process = home.start(ROOT, SELF="yes")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("ok    spawn"):
            break
    tmp = str(home.folders[1])
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    home.require_empty()

    def left() -> list[str]:
        found: list[str] = []
        for place in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"AGENT_WORKERS_SELF_TEST={tmp}".encode() in place.read_bytes():
                    found.append(str(place))
            except OSError:
                continue
        return found

    wait_for(lambda: not left(), "the end of every process", 10)


def test_a_missing_program_is_named_and_nothing_else_is_tried(world: World, home: Home) -> None:
    for name in ("git", "bash"):
        (world.root / "bin" / name).symlink_to(str(shutil.which(name)))
    for words in ((), ("--quick",)):
        code, answer, err = home.run(ROOT, *words, PATH=str(world.root / "bin"))
        assert code == 4
        assert answer["error"]["code"] == "program-missing"
        assert "tmux" in answer["error"]["message"]
        assert "git" not in answer["error"]["message"]
        assert "install tmux" in answer["error"]["hint"]
        assert [row["name"] for row in answer["data"]["checks"]] == ["programs"]
        assert "FAIL  programs" in err


# --- Damage ---------------------------------------------------------------------------------


def syntax_error(package: Path) -> None:
    path = package / "scripts" / "fanout" / "publishing.py"
    path.write_text(path.read_text() + "\ndef (:\n")


def lost_reference(package: Path) -> None:
    (package / "references" / "integration.md").unlink()


def lost_room(package: Path) -> None:
    (package / "scripts" / "fanout" / "takeback.py").unlink()


def lost_data(package: Path) -> None:
    (package / "scripts" / "fanout" / "tmux.conf").unlink()


def broken_frontmatter(package: Path) -> None:
    path = package / "SKILL.md"
    path.write_text(path.read_text().replace("description: ", "description: note: ", 1))


def other_name(package: Path) -> None:
    path = package / "SKILL.md"
    path.write_text(path.read_text().replace(f"name: {edition.SKILL}", "name: another-one", 1))


def bad_mapping(package: Path) -> None:
    path = package / "examples" / f"harness-{OTHER}.json"
    path.write_text(path.read_text().replace('"interactive"', '"interactiv"'))


def bad_plan(package: Path) -> None:
    path = package / "examples" / "code-fan-out.json"
    path.write_text(path.read_text().replace('"tasks"', '"task"'))


def no_json(package: Path) -> None:
    path = package / "references" / "plan.schema.json"
    path.write_text(path.read_text()[:-20])


def windows_lines(package: Path) -> None:
    path = package / "scripts" / "fanout" / "runtimes" / "launch.sh"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def silent_help(package: Path) -> None:
    path = package / "scripts" / "fanout" / "cli" / "render_worker_loop.py"
    path.write_text(path.read_text().replace("EXAMPLES + EPILOG", '""'))


def loading_poster(package: Path) -> None:
    path = package / "poster" / "index.html"
    path.write_text(path.read_text().replace("</head>", '<script src="x.js"></script></head>'))


def old_poster(package: Path) -> None:
    path = package / "poster" / "index.html"
    path.write_text(path.read_text().replace("convert_harness.py", "change_harness.py"))


def no_picture(package: Path) -> None:
    (package / "poster" / "screenshot.png").write_bytes(b"x" * 100)


DAMAGES: list[tuple[Callable[[Path], None], str, str]] = [
    (syntax_error, "syntax", "scripts/fanout/publishing.py does not compile"),
    (lost_reference, "files", "missing: references/integration.md"),
    (lost_room, "files", "missing: scripts/fanout/takeback.py"),
    (lost_data, "files", "missing: scripts/fanout/tmux.conf"),
    (broken_frontmatter, "frontmatter", "'description' must be in quotes"),
    (other_name, "frontmatter", "SKILL.md is called another-one"),
    (bad_mapping, "mappings", f"examples/harness-{OTHER}.json: "),
    (bad_mapping, "schemas", "has fields that references/harness.schema.json lacks: interactiv"),
    (bad_plan, "schemas", "has fields that references/plan.schema.json lacks: task"),
    (bad_plan, "plans", "code-fan-out.json"),
    (no_json, "syntax", "references/plan.schema.json is no JSON"),
    (windows_lines, "syntax", "launch.sh has CRLF line ends"),
    (silent_help, "help", "`render_worker_loop.py --help` shows no 'example'"),
    (loading_poster, "poster", "loads from elsewhere"),
    (old_poster, "poster", "change_harness.py"),
    (no_picture, "poster", "no square PNG"),
]
ALONE: dict[str, Callable[[Site], str]] = {
    "frontmatter": lambda site: self_checks.check_frontmatter(site.package, edition.SKILL),
    "files": lambda site: self_checks.check_files(site.package),
    "syntax": lambda site: self_checks.check_syntax(site, site.package),
    "help": lambda site: self_checks.check_help(site, site.package, verbs=False),
    "mappings": self_checks.check_mappings,
    "schemas": self_checks.check_schemas,
    "poster": lambda site: self_checks.check_poster(site.package),
    "plans": self_checks.check_plans,
}


@pytest.fixture
def site(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A copy of the package, and the folder to look at it from."""
    monkeypatch.setenv("HOME", str(world.home))
    made = Site(str(copy(world.root / "skill")))
    yield made
    made.close()


@pytest.mark.parametrize(("damage", "name", "words"), DAMAGES)
def test_each_kind_of_damage_is_found(
    site: Site, damage: Callable[[Path], None], name: str, words: str
) -> None:
    damage(Path(site.package))
    with pytest.raises(SkillError) as raised:
        ALONE[name](site)
    assert words in raised.value.message


def test_all_damage_is_told_in_one_run(world: World, home: Home) -> None:
    package = copy(world.root / "skill")
    damages = (syntax_error, lost_reference, broken_frontmatter, bad_mapping, no_picture)
    for damage in damages:
        damage(package)
    code, answer, err = home.run(package, "--quick")
    assert code == 1
    wanted = {"frontmatter", "files", "syntax", "mappings", "schemas", "poster", "conversion"}
    assert failed(answer) == wanted
    assert answer["error"]["code"] == "self-test-failed"
    assert [row["name"] for row in answer["data"]["checks"]] == [*QUICK, "left behind"]
    for row in answer["data"]["checks"]:
        assert row["found"]
        assert row["ok"] or row["hint"]
    assert err.count("FAIL ") == len(wanted)


def test_a_damaged_beginning_is_told_too(world: World, home: Home) -> None:
    """What the command itself needs before it can check anything."""
    package = copy(world.root / "skill")
    (package / "scripts" / "fanout" / "output.py").unlink()
    process = home.start(package)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("error: this copy of the skill is damaged, install it anew: ")
    assert "output.py" in err
    assert "Traceback" not in err


def test_after_a_main_job_that_failed_the_next_ones_have_failed_too(site: Site) -> None:
    """They need it; and none is passed over silently."""
    told: list[Check] = []

    def work(_: Site) -> str:
        return "done"

    def fail(_: Site) -> str:
        raise SkillError("x", "does not work")

    jobs: list[tuple[str, Callable[[Site], str]]] = [("one", work), ("two", fail), ("three", work)]
    done = self_checks.in_turn(jobs, site, told.append)
    assert done == told
    assert [check.ok for check in done] == [True, False, False]
    assert done[2].found == "not tried, since 'two' failed"


def test_what_rooms_read_is_known() -> None:
    """A copy that lacks a file of this kind would fail in the middle of something."""
    paths = [path for path in SCRIPTS.rglob("*") if path.is_file() and path.suffix != ".py"]
    names = {str(p.relative_to(ROOT)) for p in paths if "__pycache__" not in p.parts}
    assert names <= set(self_checks.NEEDED)
    assert all((ROOT / path).is_file() for path in self_checks.NEEDED)


def test_a_long_path_of_temporary_files_is_no_obstacle(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket's path may have about a hundred bytes."""
    deep = world.root / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    monkeypatch.setattr(self_checks.tempfile, "tempdir", str(deep))
    made = Site(str(ROOT))
    assert len(made.sockets) < 60
    assert Path(made.sockets).is_dir()
    made.close()
    assert list(deep.iterdir()) == []
    assert not Path(made.sockets).exists()


def test_a_lane_that_is_late_starts_nothing_more(site: Site) -> None:
    site.close()
    with pytest.raises(SkillError, match="is being ended"):
        site.run("true")
    assert not Path(site.root).exists()
