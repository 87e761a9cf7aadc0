"""`make poster`: the picture of the poster, with the hash of the page that it shows."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from browser import NoBrowserError, chunk, chunks, page

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "poster" / "index.html"
PICTURE = ROOT / "poster" / "screenshot.png"
SIZE = 1080
KEY = b"page-sha256"


def page_hash() -> str:
    """The hash of the page as it is now."""
    return hashlib.sha256(PAGE.read_bytes()).hexdigest()


def with_hash(png: bytes, text: str) -> bytes:
    """A PNG that tells of which page it is."""
    head = png[: 8 + 12 + 13]
    return head + chunk(b"tEXt", KEY + b"\0" + text.encode()) + png[len(head) :]


def told_hash(png: bytes) -> str:
    """The hash that a PNG tells; empty without one."""
    texts = (content.split(b"\0", 1) for kind, content in chunks(png) if kind == b"tEXt")
    return next((value.decode() for key, value in texts if key == KEY), "")


def main() -> int:
    """Make the picture; returns the exit code."""
    try:
        with page() as shown:
            shown.show(PAGE, SIZE, "light")
            picture = with_hash(shown.picture(), page_hash())
    except NoBrowserError as error:
        print(error, file=sys.stderr)
        return 4
    PICTURE.write_bytes(picture)
    print(f"{PICTURE.relative_to(ROOT)}: {SIZE} x {SIZE}, {len(picture)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
