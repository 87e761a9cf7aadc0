"""What every command does before it imports the rest: quiet on Ctrl-C, compiled modules kept.

Nothing may be left in the skill's own folder, and compiling all modules anew costs more than the
work of most verbs. So compiled modules are kept in the user's cache folder.
"""

from __future__ import annotations

import marshal
import os
import signal
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from types import CodeType


def prepare(scripts: str) -> None:
    """Die quietly of Ctrl-C until the command catches signals; keep what is compiled from here."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    folder = None if sys.flags.dont_write_bytecode else cache_folder()
    if folder is None:
        return
    kept = folder
    package = os.path.join(scripts, "fanout")

    class Loader(CachingLoader):
        """A loader of this package's modules."""

        folder = kept

    def finder(path: str) -> FileFinder:
        if path != package and not path.startswith(package + os.sep):
            raise ImportError
        return FileFinder(path, (Loader, SOURCE_SUFFIXES))

    sys.path_hooks.insert(0, finder)
    sys.path_importer_cache.pop(package, None)


class CachingLoader(SourceFileLoader):
    """Compiles a module, or takes it from the cache if that was made of exactly this source.

    Python's own cache trusts time and size, and packages are unpacked with constant times; it
    would also have to be moved for the standard library.
    """

    folder = ""

    def get_code(self, fullname: str) -> CodeType | None:
        """The module's code. No fault of the cache is an error."""
        source = self.get_data(self.path)
        facts = f"{sys.version}\n{sys.flags.optimize}\n{self.path}\n".encode("utf-8", "replace")
        head = facts + source + b"\0\n"
        name = f"{fullname}-{sys.implementation.cache_tag}-{hash_of(self.path)}.bin"
        kept = os.path.join(self.folder, name)
        try:
            with open(kept, "rb", buffering=0) as file:
                content = file.read()
            if content.startswith(head):
                return marshal.loads(content[len(head) :])
        except (OSError, ValueError, EOFError, TypeError):
            pass
        code = self.source_to_code(source, self.path)
        write_kept(kept, head + marshal.dumps(code))
        return code


def hash_of(path: str) -> str:
    """Tells two copies of the skill apart; a collision costs time, nothing else."""
    from binascii import crc32

    return f"{crc32(os.fsencode(path)):08x}"


def write_kept(path: str, content: bytes) -> None:
    """Put a file into the cache, whole or not at all; silent where that cannot be done."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.rename(temporary, path)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            return


def cache_folder() -> str | None:
    """`agent-workers/bytecode` in the user's cache folder; None unless the user alone can write it.

    Code is loaded from there, so a folder for all, such as TMPDIR, will not do.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        home = os.environ.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    folder = base
    try:
        for name in ("", "agent-workers", "bytecode"):
            folder = os.path.join(folder, name) if name else folder
            if not os.path.isdir(folder):
                os.mkdir(folder, 0o700)
            found = os.stat(folder)
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                return None
    except OSError:
        return None
    return folder
