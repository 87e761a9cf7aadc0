"""A headless Chromium, driven over a pipe (its DevTools protocol), and the pictures it takes."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import struct
import subprocess
import tempfile
import time
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

NAMES = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)  # fmt: skip
MISSING = (
    "missing: a browser. To install it: apt-get install chromium fonts-liberation (Debian), "
    "or set CHROMIUM to the program of a Chromium or Chrome"
)
ANSWER_LIMIT = 60.0
PNG_BEGIN = b"\x89PNG\r\n\x1a\n"


class NoBrowserError(Exception):
    """There is no browser on this machine."""


def find_browser() -> str:
    """The program of a Chromium. Raises NoBrowserError with how to install one."""
    for name in (os.environ.get("CHROMIUM", ""), *NAMES):
        if name and (path := shutil.which(name)):
            return path
    raise NoBrowserError(MISSING)


class Page:
    """One page of a browser."""

    def __init__(self, browser: subprocess.Popen[bytes], write_end: int, read_end: int) -> None:
        self.browser = browser
        self.write_end = write_end
        self.read_end = read_end
        self.number = 0
        self.session = ""
        self.unread = b""
        self.events: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        self.call("Page.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; its result."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_LIMIT
        while True:
            answer = self.read(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer.get("method", ""))

    def read(self, deadline: float) -> dict[str, Any]:
        """The next message of the browser."""
        while b"\0" not in self.unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.read_end], [], [], left)[0]:
                raise TimeoutError(f"the browser did not answer in {ANSWER_LIMIT} s")
            part = os.read(self.read_end, 1 << 20)
            if not part:
                raise RuntimeError(f"the browser has ended: {self.browser.poll()}")
            self.unread += part
        message, self.unread = self.unread.split(b"\0", 1)
        return json.loads(message)

    def show(self, path: Path, size: int, scheme: str, scale: float = 1.0) -> None:
        """Open a file in a square window, in `light` or `dark`."""
        metrics = {"width": size, "height": size, "deviceScaleFactor": scale, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + ANSWER_LIMIT
        while "Page.loadEventFired" not in self.events:
            self.events.append(self.read(deadline).get("method", ""))
        self.ask("document.fonts.ready.then(() => true)")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        wanted = {"returnByValue": True, "awaitPromise": True}
        result = self.call("Runtime.evaluate", expression=expression, **wanted)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def picture(self) -> bytes:
        """What is shown, as a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


@contextlib.contextmanager
def page() -> Generator[Page]:
    """A page of a browser of its own, which ends with it. Raises NoBrowserError."""
    program = find_browser()
    profile = tempfile.mkdtemp(prefix="aw-browser-")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # Without its sandbox: root and containers have none, and it shows local files alone.
    # The protocol is spoken on descriptors 3 and 4, which a shell puts there.
    script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    options = [
        "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
        "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--hide-scrollbars",
        "--disable-background-networking", "--disable-lcd-text", "--force-color-profile=srgb",
        "--font-render-hinting=none", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    browser = subprocess.Popen(
        ["bash", "-c", script, "bash", program, *options], pass_fds=(theirs_in, theirs_out),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": profile}, start_new_session=True,
    )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        opened = Page(browser, ours_out, ours_in)
        yield opened
        opened.session = ""
        with contextlib.suppress(RuntimeError, OSError):
            opened.call("Browser.close")
    finally:
        os.close(ours_out)
        os.close(ours_in)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(browser.pid, 9)
        browser.wait()
        shutil.rmtree(profile, ignore_errors=True)


# --- Pictures -------------------------------------------------------------------------------


def chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of the parts of a PNG."""
    assert png.startswith(PNG_BEGIN)
    at = len(PNG_BEGIN)
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += 12 + length


def chunk(kind: bytes, content: bytes) -> bytes:
    """A part of a PNG."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(
        ">I", zlib.crc32(kind + content)
    )  # fmt: skip


def pixels(png: bytes) -> tuple[int, int, list[bytes]]:
    """Width, height and the rows of a PNG of 8 bits without interlacing, three bytes a pixel."""
    parts = list(chunks(png))
    width, height, depth, colours, _, _, interlaced = struct.unpack(">IIBBBBB", parts[0][1])
    assert (depth, interlaced) == (8, 0)
    size = {2: 3, 6: 4}[colours]
    data = zlib.decompress(b"".join(content for kind, content in parts if kind == b"IDAT"))
    line = width * size
    rows: list[bytes] = []
    above = bytearray(line)
    for start in range(0, height * (line + 1), line + 1):
        row = bytearray(data[start + 1 : start + 1 + line])
        unfilter(data[start], row, above, size)
        above = row
        rows.append(bytes(row) if size == 3 else without_alpha(row))
    return width, height, rows


def without_alpha(row: bytearray) -> bytes:
    """A row of three bytes a pixel from one of four."""
    made = bytearray(len(row) // 4 * 3)
    for part in range(3):
        made[part::3] = row[part::4]
    return bytes(made)


def unfilter(kind: int, row: bytearray, above: bytearray, size: int) -> None:
    """Undo the filter of a PNG's row, in place."""
    if kind == 1:
        for at in range(size, len(row)):
            row[at] = (row[at] + row[at - size]) & 255
    elif kind == 2:
        for at, value in enumerate(above):
            row[at] = (row[at] + value) & 255
    elif kind == 3:
        for at, value in enumerate(above):
            left = row[at - size] if at >= size else 0
            row[at] = (row[at] + (left + value) // 2) & 255
    elif kind == 4:
        for at, up in enumerate(above):
            left, corner = (row[at - size], above[at - size]) if at >= size else (0, 0)
            guess = left + up - corner
            gaps = (abs(guess - left), abs(guess - up), abs(guess - corner))
            nearest = (left, up, corner)[gaps.index(min(gaps))]
            row[at] = (row[at] + nearest) & 255
    else:
        assert kind == 0
