#!/usr/bin/env python3
"""Stand-ins for agent CLIs that misbehave in one way each: fake_agent.py MODE [WORD...].

Every mode but a few sits in raw mode and appends each byte that it receives to $WORLD/MODE.log.

bp            asks for bracketed paste, prints READY, reacts to nothing on the screen
nobp          the same without bracketed paste
echo          bracketed paste; shows the input line, clears it on Enter and says "took N"
drop N        like echo, but the first N Enters are lost
deaf N        like echo for the first N submits, then takes no notice of any input
slow S        prints nothing for S seconds, then like echo
trust         asks "Do you trust this folder?" and blocks
trust2        a trust dialog whose first entry is "No, exit"; Enter exits 1
two           two dialogs, one after the other; each goes away with "y"
question      asks something and blocks
orphan S      leaves `setsid sleep S` behind and waits for it
stubborn      ignores TERM, HUP and INT
exit CODE [S] exits at once, or after S seconds
env NAME      prints NAME=value or NAME is unset, then waits
lines N       prints N numbered lines, then waits
long          prints 75 letters and MARKER_DONE on one line, then waits
variadic      an argparse program with an option that takes any number of values
flood N       prints N megabytes, then waits
commit        commits a file and exits 3
dirty         writes a file and exits 3
"""

import os
import select
import signal
import subprocess
import sys
import time
import tty


def log(data: bytes) -> None:
    """Keep what was received."""
    with open(os.path.join(os.environ["WORLD"], sys.argv[1] + ".log"), "ab", 0) as file:
        file.write(data)


def show(text: str) -> None:
    """Write to the terminal in raw mode."""
    os.write(1, text.replace("\n", "\r\n").encode())


def receive() -> bytes:
    """The next bytes; leaves when the terminal is gone."""
    while True:
        if select.select([0], [], [], 1)[0]:
            data = os.read(0, 65536)
            if not data:
                sys.exit(0)
            log(data)
            return data
        if os.getppid() == 1:
            sys.exit(0)


def listen() -> None:
    """Take input for ever and show nothing."""
    while receive():
        pass


def line_editor(lost: int = 0, deaf_after: int = 1_000_000) -> None:
    """An input line like that of a TUI: `> text`, cleared when it is submitted."""
    typed, taken, inside = b"", 0, False
    pending = b""
    show("\x1b[?2004hREADY\n> ")
    while True:
        pending += receive()
        if taken >= deaf_after:
            pending = b""
            continue
        while pending:
            if pending.startswith(b"\x1b[200~"):
                inside, pending = True, pending[6:]
            elif pending.startswith(b"\x1b[201~"):
                inside, pending = False, pending[6:]
            elif pending.startswith(b"\x1b") and len(pending) < 6:
                break
            elif pending[:1] == b"\r" and not inside:
                pending = pending[1:]
                if lost > 0:
                    lost -= 1
                    continue
                taken += 1
                show(f"\r\x1b[2Ktook {len(typed)}\n> ")
                typed = b""
            else:
                typed, pending = typed + pending[:1], pending[1:]
        if typed:
            show("\r\x1b[2K> " + typed.decode("utf-8", "replace").replace("\r", " ")[:150])


def main() -> None:
    """Run one mode."""
    mode, *words = sys.argv[1:]
    if mode == "exit":
        time.sleep(float(words[1]) if len(words) > 1 else 0)
        sys.exit(int(words[0]))
    if mode in ("commit", "dirty"):
        with open("made.txt", "w", encoding="utf-8") as file:
            file.write("made\n")
        if mode == "commit":
            subprocess.run(["git", "add", "made.txt"], check=True)
            subprocess.run(["git", "commit", "-qm", "made"], check=True)
        sys.exit(3)
    if mode == "variadic":
        import argparse

        parser = argparse.ArgumentParser()
        parser.add_argument("mode")
        parser.add_argument("--allowedTools", nargs="+", default=[])
        parser.add_argument("prompt")
        print("PROMPT=" + parser.parse_args().prompt, flush=True)
        time.sleep(600)
    if mode == "slow":
        time.sleep(float(words[0]))
    tty.setraw(0)
    if mode == "stubborn":
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        line_editor()
    elif mode == "bp":
        show("\x1b[?2004hREADY\n")
        listen()
    elif mode == "nobp":
        show("READY\n")
        listen()
    elif mode in ("echo", "slow"):
        line_editor()
    elif mode == "drop":
        line_editor(lost=int(words[0]))
    elif mode == "deaf":
        line_editor(deaf_after=int(words[0]))
    elif mode == "trust":
        show("Do you trust this folder?\n")
        listen()
    elif mode == "trust2":
        show("Do you trust the files in this folder?\n> 1. No, exit\n  2. Yes\n")
        while b"\r" not in receive():
            pass
        sys.exit(1)
    elif mode == "two":
        for question in ("Do you trust this folder?", "Allow this MCP server? (y/n)"):
            show(f"\x1b[2J\x1b[H{question}\n")
            while b"y" not in receive():
                pass
        show("\x1b[2J\x1b[H")
        line_editor()
    elif mode == "question":
        show("Which file do you mean? (y/n)\n")
        listen()
    elif mode == "orphan":
        subprocess.Popen(["setsid", "sleep", words[0]], stdin=subprocess.DEVNULL)
        line_editor()
    elif mode == "env":
        value = os.environ.get(words[0])
        show(f"{words[0]} is unset\n" if value is None else f"{words[0]}={value}\n")
        line_editor()
    elif mode == "lines":
        show("".join(f"line {number}\n" for number in range(1, int(words[0]) + 1)))
        listen()
    elif mode == "long":
        show("x" * 75 + "MARKER_DONE\n")
        listen()
    elif mode == "flood":
        block = b"y" * 1023 + b"\n"
        for _ in range(int(words[0])):
            for _ in range(1024):
                os.write(1, block)
        show("READY\n")
        listen()
    else:
        sys.exit(f"unknown mode {mode}")


if __name__ == "__main__":
    main()
