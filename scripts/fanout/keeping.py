"""Keep a compiled module for the next start."""

from __future__ import annotations

import contextlib
import marshal
import os
from types import CodeType


def keep(path: str, head: bytes, code: CodeType) -> None:
    """Put code into the cache, whole or not at all; silent where that cannot be done.

    `head` is what it was made of.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    with contextlib.suppress(OSError):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(head + marshal.dumps(code))
            os.rename(temporary, path)
        except OSError:
            os.unlink(temporary)
