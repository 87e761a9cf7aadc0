"""Where the coordinator keeps what it knows: atomic JSON files, event logs and locks.

Everything lies in `<git common dir>/agent-workers/`, readable by the user alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time

from fanout.errors import ExitCode, SkillError, missing, usage
from fanout.fields import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, TypeGuard, TypeVar

    Kind = TypeVar("Kind", bound=NamedTuple)
    Form = tuple[str, frozenset[type], frozenset[type] | None, str]

SCHEMA = 1
# The folder in a worktree that its agent may write to, and what it may report there.
RUNS = ".worker-runs"
REPORTS = ("started", "progress", "heartbeat", "completed", "error")
# What a JSON value is, by its name in an annotation such as `list[str]` or `dict[str, Any]`.
TYPES: dict[str, frozenset[type]] = {
    "str": frozenset([str]),
    "int": frozenset([int]),
    "bool": frozenset([bool]),
    "float": frozenset([float, int]),
    "list": frozenset([list]),
    "dict": frozenset([dict]),
    "dict[str, Any]": frozenset([dict]),
}
# By kind of record, for each field: its name, its types, those of its items, its annotation.
FORMS: dict[type, list[Form]] = {}
# No log of ours comes near it.
READ_LIMIT = 32_000_000
# Without O_NONBLOCK a pipe in a file's place would be waited for.
READING = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
DECODER = json.JSONDecoder()
JSON_SPACE = " \t\r\n"
LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
NAME_LETTERS = LETTERS | frozenset("-_")
NAME_LIMIT = 64


class Event(NamedTuple):
    """One line of an event log. `at` is RFC 3339 in UTC, `job` the id of its prompt."""

    event: str
    at: str
    job: str | None
    data: dict[str, Any]


def is_name(word: str) -> bool:
    """Whether a word is fit for a name: `[A-Za-z0-9][A-Za-z0-9_-]{0,63}`."""
    # A pattern would have to be compiled at each start.
    return word[:1] in LETTERS and len(word) <= NAME_LIMIT and NAME_LETTERS.issuperset(word)


def require_name(name: str) -> str:
    """The name of a worker or task, checked; the only place where this is decided."""
    if not is_name(name):
        raise usage(
            "invalid-name",
            f"{name[:80]!r} is not a valid name",
            "use 1 to 64 letters, digits, '-' and '_', beginning with a letter or digit",
        )
    return name


def now() -> str:
    """The time as RFC 3339 in UTC with microseconds."""
    moment = time.time()
    return (
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1e6):06d}Z"
    )


def new_id() -> str:
    """An id that no other worker, launch or file has."""
    return os.urandom(8).hex()


# --- Places ---------------------------------------------------------------------------------


def home(common_dir: str) -> str:
    """The coordinator's folder in a repository."""
    # Not os.path.join, here and wherever a command comes by for each worker: that costs more.
    return f"{common_dir}/agent-workers"


def worker_dir(common_dir: str, name: str) -> str:
    """The record of one worker."""
    return f"{common_dir}/agent-workers/workers/{name}"


def make_dir(path: str) -> None:
    """Make a private folder; so are those of its parents that have to be made."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        make_dir(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    if not os.path.isdir(path):
        raise FileExistsError(17, "not a folder", path)


def worker_names(common_dir: str) -> list[str]:
    """The names of all workers that have a record, sorted."""
    folder = f"{home(common_dir)}/workers"
    return [
        name for name in folder_names(common_dir) if os.path.lexists(f"{folder}/{name}/worker.json")
    ]


def folder_names(common_dir: str) -> list[str]:
    """The names of all workers that have a folder, sorted.

    One without a record in it belongs to a spawn that has only just begun, or was killed then.
    """
    try:
        return sorted(filter(is_name, os.listdir(f"{home(common_dir)}/workers")))
    except FileNotFoundError:
        return []


# --- Files ----------------------------------------------------------------------------------


def write_file(path: str, content: bytes, mode: int = 0o600) -> None:
    """Replace a file at once: written under another name, synced, renamed."""
    temporary = f"{path}.{os.getpid()}.{new_id()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            # Whatever the caller's umask is.
            os.fchmod(descriptor, mode)
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def write_json(path: str, value: dict[str, Any]) -> None:
    """Replace a JSON file at once."""
    write_file(path, json.dumps({"schema": SCHEMA, **value}).encode() + b"\n")


def read_json(path: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises FileNotFoundError; SkillError `record-damaged`, which names the file and the place,
    when it does not hold one whole object of a known schema.
    """
    return parse_json(path, read_regular(path))


def parse_json(path: str, content: bytes) -> dict[str, Any]:
    """The JSON object that a file holds. Raises SkillError `record-damaged`."""
    try:
        text = content.decode("utf-8")
        value: Any = json.loads(text)
    except UnicodeDecodeError as error:
        raise damaged(path, f"not valid UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        offset = len(error.doc[: error.pos].encode())
        raise damaged(path, f"not valid JSON at byte {offset}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"not usable JSON: {error}") from error
    if not is_object(value):
        raise damaged(path, "not a JSON object")
    fields: dict[str, Any] = value
    if fields.get("schema") != SCHEMA:
        raise damaged(path, f"schema is not {SCHEMA}")
    return fields


class Common:
    """A large field that many records have alike: it is parsed once, and held once."""

    def __init__(self, field: str) -> None:
        self.field = field
        self.start = f'"{field}": '.encode()
        self.known: list[tuple[bytes, Any]] = []

    def parse(self, path: str, content: bytes) -> dict[str, Any]:
        """The JSON object that a file holds. Raises SkillError `record-damaged`."""
        place = content.find(self.start)
        for text, value in self.known:
            # Quotes within a text are escaped: this can be nothing but the field.
            if content.startswith(text, place):
                with contextlib.suppress(SkillError):
                    found = parse_json(path, content[:place] + content[place + len(text) :])
                    if self.field not in found:
                        found[self.field] = value
                        return found
        found = parse_json(path, content)
        if self.field in found:
            text = self.start + json.dumps(found[self.field]).encode() + b", "
            if content.startswith(text, place):
                self.known.append((text, found[self.field]))
        return found


def read_record(path: str, kind: type[Kind], common: Common | None = None) -> Kind:
    """A named tuple as its file holds it: exactly its fields, each of its annotation's type.

    Raises FileNotFoundError; SkillError `record-damaged`.
    """
    value = read_json(path) if common is None else common.parse(path, read_regular(path))
    del value["schema"]
    forms = FORMS.get(kind)
    if forms is None:
        forms = FORMS[kind] = forms_of(kind)
    try:
        values = [value[form[0]] for form in forms]
    except KeyError as error:
        raise damaged(path, f"the field {error.args[0]!r} is missing") from None
    for found, (name, types, items, wanted) in zip(values, forms, strict=True):
        if type(found) not in types or (items is not None and found and not holds(found, items)):
            raise damaged(path, f"the field {name!r} is not of the type {wanted}")
    if len(value) > len(forms):
        name = next(name for name in value if name not in kind._fields)
        raise damaged(path, f"the field {name[:80]!r} is not known")
    return kind._make(values)


def forms_of(kind: type[Kind]) -> list[Form]:
    """What the fields of a named tuple may be, read from its annotations once."""
    found: list[Form] = []
    for name, annotation in kind.__annotations__.items():
        # Under `from __future__ import annotations` those of typing.NamedTuple are ForwardRefs.
        wanted = str(getattr(annotation, "__forward_arg__", annotation))
        outer, _, inner = wanted.removesuffix(" | None").partition("[")
        types = TYPES[outer].union([type(None)] if wanted.endswith(" | None") else [])
        item = inner.removesuffix("]").removeprefix("str, ")
        found.append((name, types, TYPES[item] if item not in ("", "Any") else None, wanted))
    return found


def holds(value: list[Any] | dict[str, Any], types: frozenset[type]) -> bool:
    """Whether all items of a list, or all values of an object, are of one of these types."""
    return types.issuperset(map(type, value.values() if isinstance(value, dict) else value))


def read_regular(path: str) -> bytes:
    """The end of a file, or all of it up to READ_LIMIT.

    Agents can write some of these: a pipe in a file's place must not block, nor a huge file fill
    the memory. Raises FileNotFoundError; SkillError `record-damaged`.
    """
    try:
        descriptor = os.open(path, READING)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise damaged(path, "not a file")
            if found.st_size > READ_LIMIT:
                os.lseek(descriptor, found.st_size - READ_LIMIT, os.SEEK_SET)
            # Plain reads: a file object costs more than all the rest.
            wanted = min(found.st_size, READ_LIMIT)
            content = b""
            while len(content) < wanted and (part := os.read(descriptor, wanted - len(content))):
                content += part
            return content
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from error


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a JSON value is an object."""
    return isinstance(value, dict)


def damaged(path: str, why: str) -> SkillError:
    """A record that cannot be read; it is reported and left as it is."""
    return SkillError(
        "record-damaged",
        f"the record {path} is damaged: {why}",
        "look at the file; nothing was changed",
    )


# --- Events ---------------------------------------------------------------------------------


def append_event(path: str, kind: str, *, job: str | None, data: dict[str, Any]) -> None:
    """Append one event. A line that an interrupted writer left torn is closed off first."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        event = {"schema": SCHEMA, "event": kind, "at": now(), "job": job, "data": data}
        line = (b"\n" if torn else b"") + json.dumps(event).encode() + b"\n"
        while line:
            line = line[os.write(descriptor, line) :]
    finally:
        os.close(descriptor)


def read_events(path: str) -> tuple[list[Event], int]:
    """The events of one file in order, and how many lines could not be read."""
    try:
        lines = read_regular(path).split(b"\n")
    except FileNotFoundError:
        return [], 0
    except SkillError:
        return [], 1
    events: list[Event] = []
    unreadable = 0
    for line in lines:
        # What follows the last line end is no line; finding that out as JSON would take long.
        event = parse_event(line) if line else None
        if event is not None:
            events.append(event)
        elif line.strip():
            unreadable += 1
    return events, unreadable


def parse_event(line: bytes) -> Event | None:
    """An event from one line; None for a torn or foreign one. Agents may write these files."""
    try:
        text = line.decode("utf-8").strip(JSON_SPACE)
        # What json.loads does besides takes as long for a line.
        value, end = DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    if end != len(text) or not is_object(value):
        return None
    kind, at, job, data = value.get("event"), value.get("at"), value.get("job"), value.get("data")
    if not isinstance(kind, str) or not isinstance(at, str):
        return None
    return Event(kind, at, job if isinstance(job, str) else None, data if is_object(data) else {})


def archive(common_dir: str, name: str, why: str) -> str:
    """Move a worker's record out of the way, whole; returns where it is now."""
    folder = os.path.join(home(common_dir), "archive")
    make_dir(folder)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    place = os.path.join(folder, f"{name}-{stamp}-{why}-{new_id()[:6]}")
    os.rename(worker_dir(common_dir, name), place)
    return place


# --- Locks ----------------------------------------------------------------------------------


@contextlib.contextmanager
def lock(common_dir: str, name: str, *, wait: float, what: str) -> Generator[None, None, None]:
    """Hold a lock of this repository; the kernel frees it when this process ends.

    Raises SkillError `busy` (exit 11) when another process holds it for longer than `wait`
    seconds; `what` names the thing in the message. The file stays: deleting it would let two
    holders in.
    """
    folder = os.path.join(home(common_dir), "locks")
    make_dir(folder)
    path = os.path.join(folder, f"{name}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + wait
        pause = 0.001
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise SkillError(
                        "busy",
                        f"another command is working on {what}",
                        "wait for it to end, then run this again",
                        exit_code=ExitCode.BUSY,
                    ) from error
                time.sleep(pause)
                pause = min(0.004, pause * 2)
        yield
    finally:
        os.close(descriptor)


# --- What an agent runs to report. It must stay small and fast ------------------------------


MESSAGE_LIMIT = 10_000


def find_worktree(start: str) -> str:
    """The worker's worktree that holds a directory, or that the environment names.

    Raises SkillError `not-a-worker` (exit 4).
    """
    named = os.environ.get("AGENT_WORKER_WORKTREE", "")
    try:
        folder = os.path.realpath(start)
    except OSError:
        # The directory that this runs in is gone.
        folder = "/"
    while True:
        if os.path.isfile(os.path.join(folder, RUNS, "worker.json")):
            return folder
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
    if named and os.path.isfile(os.path.join(named, RUNS, "worker.json")):
        return named
    raise missing(
        "not-a-worker",
        f"{start!r} is not inside a worker's worktree",
        "run this from the worktree that the worker was given",
    )


def report(kind: str, message: str, data: str, directory: str) -> dict[str, Any]:
    """Append one event to the worker's own log; returns what was written.

    Raises SkillError: `invalid-event` (exit 2), `not-a-worker` (exit 4).
    """
    if kind not in REPORTS:
        raise usage(
            "invalid-event", f"{kind[:80]!r} is not an event", f"use one of {', '.join(REPORTS)}"
        )
    if len(message) > MESSAGE_LIMIT or len(data) > MESSAGE_LIMIT:
        raise usage("invalid-event", f"message and data may have {MESSAGE_LIMIT} characters each")
    try:
        extra: Any = json.loads(data) if data else {}
    except ValueError as error:
        raise usage("invalid-event", f"--data is not valid JSON: {error}") from error
    if not isinstance(extra, dict):
        raise usage(
            "invalid-event", "--data is not a JSON object", 'give an object such as {"tests": 12}'
        )
    worktree = find_worktree(directory)
    card = read_json(os.path.join(worktree, RUNS, "worker.json"))
    job = str(card.get("job") or "") or None
    facts: dict[str, Any] = {**extra, **({"message": message} if message else {})}  # pyright: ignore[reportUnknownVariableType]
    append_event(os.path.join(worktree, RUNS, "events.jsonl"), kind, job=job, data=facts)
    return {"worker": card.get("worker"), "job": job, "event": kind, "data": facts}
