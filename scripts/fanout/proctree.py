"""What processes there are (from /proc, or `ps` and `lsof` without it), and how to end them."""

from __future__ import annotations

import os
import signal
import time

from fanout.fields import NamedTuple
from fanout.process import end, run, start_logged, wait


class Process(NamedTuple):
    """One process. `started` tells two processes with the same pid apart."""

    pid: int
    parent: int
    started: str
    command: str
    session: int = 0

    @property
    def identity(self) -> tuple[int, str]:
        """What stays the same for one process and differs for any other."""
        return (self.pid, self.started)


HAS_PROC = os.path.exists("/proc/self/stat")


def read_bytes(path: str) -> bytes | None:
    """The file's bytes, or None when it is gone or not ours to read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return None


def parse_stat(pid: int, stat: bytes) -> Process | None:
    """A line of /proc/PID/stat; None for a zombie, which is dead but not yet collected.

    The command stands in parentheses and may hold any byte, so fields count from the last one
    (proc(5): 3 state, 4 ppid, 6 session, 22 starttime).
    """
    head, _, tail = stat.rpartition(b")")
    fields = tail.split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    command = head.partition(b"(")[2].decode("utf-8", "replace")
    return Process(pid, int(fields[1]), fields[19].decode(), command, int(fields[3]))


def processes() -> list[Process]:
    """All processes that can be seen, zombies left out."""
    if not HAS_PROC:
        return [process for process, _ in read_ps()]
    found: list[Process] = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            stat = read_bytes(f"/proc/{entry}/stat")
            process = parse_stat(int(entry), stat) if stat else None
            if process is not None:
                found.append(process)
    return found


def start_time(pid: int) -> str | None:
    """When the process with this pid started, as an opaque word; None when there is none."""
    if HAS_PROC:
        stat = read_bytes(f"/proc/{pid}/stat")
        process = parse_stat(pid, stat) if stat else None
        return process.started if process else None
    return next((p.started for p, _ in read_ps() if p.pid == pid), None)


def start_times(pids: set[int]) -> dict[int, str]:
    """When each of these processes started, with one look for all; those that live."""
    if HAS_PROC:
        found = {pid: start_time(pid) for pid in pids}
        return {pid: started for pid, started in found.items() if started is not None}
    return {p.pid: p.started for p, _ in read_ps() if p.pid in pids} if pids else {}


def boot_id() -> str:
    """An id of this boot of the machine; empty where the system has none."""
    found = read_bytes("/proc/sys/kernel/random/boot_id")
    return found.decode().strip() if found else ""


def tree(roots: list[int], mark: str) -> list[Process]:
    """The roots, every process whose environment holds `mark`, and the descendants of both.

    `mark` is NAME=VALUE: it finds processes that moved to a session of their own and whose
    parent is gone. This process itself and what it started are never part of the answer.
    """
    return trees([(roots, mark)])[0]


def trees(wanted: list[tuple[list[int], str]]) -> list[list[Process]]:
    """`tree` for several pairs of roots and mark, with one look at all processes."""
    everything = [p for p in processes() if p.pid != os.getpid()]
    marked = marked_pids({mark for _, mark in wanted})
    found: list[list[Process]] = []
    for roots, mark in wanted:
        # A root leads a session of its own; what is in it may be in the middle of an exec, where
        # it shows no environment, with a parent that is gone.
        inside = {p.pid for p in everything if p.session in roots}
        pids = (set(roots) | inside | marked[mark]) - {os.getpid()}
        found.append(descendants(everything, pids))
    return found


def descendants(everything: list[Process], pids: set[int]) -> list[Process]:
    """The processes with these pids and all that they have started."""
    grew = bool(pids)
    while grew:
        before = len(pids)
        pids = pids | {p.pid for p in everything if p.parent in pids and p.parent > 1}
        grew = len(pids) > before
    return [p for p in everything if p.pid in pids]


def marked_pids(marks: set[str]) -> dict[str, set[int]]:
    """By mark, the pids of the processes whose environment holds exactly this NAME=VALUE."""
    found: dict[str, set[int]] = {mark: set() for mark in marks}
    if not HAS_PROC:
        for process, rest in read_ps():
            for mark in marks.intersection(rest.split(" ")):
                found[mark].add(process.pid)
        return found
    by_bytes = {mark.encode(): mark for mark in marks}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            for needle in by_bytes.keys() & environment(int(entry)).split(b"\0"):
                found[by_bytes[needle]].add(int(entry))
    return found


def environment(pid: int) -> bytes:
    """The environment a process was started with; empty where there is none to be read.

    In the middle of an exec a process shows neither arguments nor environment: it is asked again
    until that is over, for at most a quarter of a second.
    """
    deadline = 0.0
    while True:
        environ = read_bytes(f"/proc/{pid}/environ")
        if environ or environ is None:
            return environ or b""
        stat = read_bytes(f"/proc/{pid}/stat") or b""
        # proc(5): field 9, flags; 2 is a kernel thread's bit 21 (PF_KTHREAD).
        if parse_stat(pid, stat) is None or int(stat.rpartition(b")")[2].split()[6]) & 1 << 21:
            return b""
        if read_bytes(f"/proc/{pid}/cmdline"):
            # Its exec may have ended between the two looks.
            return read_bytes(f"/proc/{pid}/environ") or b""
        deadline = deadline or time.monotonic() + 0.25
        if time.monotonic() >= deadline:
            return b""
        time.sleep(0.002)


def working_directories() -> list[tuple[Process, str]]:
    """Every process with its working directory.

    Processes of other users that this user may not look at are not seen.
    """
    if not HAS_PROC:
        return working_directories_by_lsof()
    found: list[tuple[Process, str]] = []
    for process in processes():
        try:
            found.append((process, os.readlink(f"/proc/{process.pid}/cwd")))
        except OSError:
            continue
    return found


def read_ps() -> list[tuple[Process, str]]:
    """Processes by `ps`, each with its command line and environment as one string."""
    done = run(["ps", "axeww", "-o", "pid=,ppid=,stat=,lstart=,command="])
    return parse_ps(done.stdout.decode("utf-8", "replace"))


def parse_ps(text: str) -> list[tuple[Process, str]]:
    """The lines of `ps -o pid=,ppid=,stat=,lstart=,command=`; lstart is five words."""
    found: list[tuple[Process, str]] = []
    for line in text.splitlines():
        words = line.split(None, 8)
        if len(words) < 9 or not (words[0] + words[1]).isdigit() or words[2].startswith("Z"):
            continue
        rest = words[8]
        started = " ".join(words[3:8])
        found.append((Process(int(words[0]), int(words[1]), started, rest.split(" ")[0]), rest))
    return found


def working_directories_by_lsof() -> list[tuple[Process, str]]:
    """`working_directories` for systems without /proc."""
    done = run(["lsof", "-w", "-d", "cwd", "-F", "pn"])
    by_pid = {process.pid: process for process in processes()}
    found: list[tuple[Process, str]] = []
    pid = 0
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith("p"):
            pid = int(line[1:])
        elif line.startswith("n") and pid in by_pid:
            found.append((by_pid[pid], line[1:]))
    return found


def run_logged(
    argv: list[str], *, cwd: str, env: dict[str, str], log: str, timeout: float, mark: str
) -> int | None:
    """Run a command in a session of its own with its output appended to `log`.

    Returns its exit code, or None when it was ended after `timeout` seconds, together with
    everything it started (`mark` is a NAME=VALUE that stands in the environment of all of it).
    """
    process = start_logged(argv, cwd=cwd, env=env, log=log)
    try:
        return wait(process, time.monotonic() + timeout)
    except TimeoutError:
        end_tree([process.pid], mark, grace=2.0)
        return None
    except BaseException:
        end_tree([process.pid], mark, grace=1.0)
        raise
    finally:
        end(process)


class Ending(NamedTuple):
    """One process tree to end, as `tree` finds it. `spare` is not signalled."""

    roots: list[int]
    mark: str
    spare: frozenset[int] = frozenset()


def end_tree(
    roots: list[int], mark: str, *, grace: float, spare: frozenset[int] = frozenset()
) -> list[Process]:
    """`end_trees` for one tree; returns the processes that are still alive."""
    return end_trees([Ending(roots, mark, spare)], grace=grace)[0]


def end_trees(wanted: list[Ending], *, grace: float) -> list[list[Process]]:
    """End the roots, all their descendants and every process that carries the mark, of each tree.

    TERM first, KILL after `grace` seconds, then checked; all together, with one look at all
    processes a round. What is to be spared (a launcher that ends by itself once its child did)
    gets no signal. Returns the processes of each that are still alive.
    """
    known: list[dict[tuple[int, str], Process]] = [{} for _ in wanted]
    unended = list(range(len(wanted)))

    def living() -> dict[int, list[Process]]:
        # In the middle of an exec a process shows no environment; once seen it stays known.
        now = {p.identity for p in processes()} if any(known) else set[tuple[int, str]]()
        pairs: list[tuple[list[int], str]] = []
        for index in unended:
            pids = [process.pid for identity, process in known[index].items() if identity in now]
            pairs.append((wanted[index].roots + pids, wanted[index].mark))
        found: dict[int, list[Process]] = {}
        for index, members in zip(unended, trees(pairs), strict=True):
            known[index].update({process.identity: process for process in members})
            found[index] = [p for p in members if p.pid not in wanted[index].spare]
        return found

    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 2.0)):
        deadline = time.monotonic() + patience
        signalled: set[tuple[int, str]] = set()
        looks = [0] * len(wanted)
        while unended:
            for index, alive in living().items():
                # One that was never seen may be in the middle of its exec right now: look twice.
                looks[index] = 0 if alive else looks[index] + 1
                if looks[index] == 2 or (looks[index] == 1 and not known[index]):
                    unended.remove(index)
                for process in alive:
                    # Each process is asked once for each signal, also one that appeared meanwhile.
                    if process.identity not in signalled:
                        signalled.add(process.identity)
                        send_signal(process, number)
            if time.monotonic() >= deadline:
                break
            if unended:
                time.sleep(0.02)
    left = living() if unended else {}
    return [left.get(index, []) for index in range(len(wanted))]


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signal exactly this process: a pid that was reused meanwhile is left alone."""
    if start_time(process.pid) != process.started:
        return
    try:
        os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return
