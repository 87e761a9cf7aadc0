"""What every command does before it imports the rest: quiet on Ctrl-C, compiled modules kept.

Nothing may be left in the skill's own folder, and compiling all modules anew costs more than the
work of most verbs. So compiled modules are kept in the user's cache folder. This one module is
compiled at each start: it stays short.
"""

import os
import signal
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import SourceFileLoader
from _imp import source_hash
from marshal import dumps, loads
from types import CodeType

PACKAGES = ("fanout", "fanout.cli", "fanout.runtimes")


def prepare(scripts: str, *, keep: bool = True) -> None:
    """Die quietly of Ctrl-C until the command catches signals; keep what is compiled from here.

    Without `keep` nothing is written to the user's cache folder.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    Loader.folder = "" if sys.flags.dont_write_bytecode or not keep else cache_folder()
    Finder.scripts = scripts
    sys.meta_path.insert(0, Finder)
    # All else is looked for in the standard library alone.
    sys.path[:] = [path for path in sys.path if path != scripts]


class Finder:
    """Finds this package's modules where they are, without looking through folders.

    It comes first: an installed package of this name would win over a plain folder.
    """

    scripts = ""

    @classmethod
    def find_spec(cls, name: str, _: object = None, __: object = None) -> ModuleSpec | None:
        """Where a module is and what loads it; None for all that is no module of ours."""
        if name.partition(".")[0] != "fanout":
            return None
        path = f"{cls.scripts}/{name.replace('.', '/')}"
        if name in PACKAGES:
            spec = ModuleSpec(name, None)
            spec.submodule_search_locations = [path]
            return spec
        spec = ModuleSpec(name, Loader(name, path + ".py"), origin=path + ".py")
        spec.has_location = True
        return spec


class Loader(SourceFileLoader):
    """Compiles a module, or takes it from the cache if that was made of exactly this source.

    Python's own cache trusts time and size, and packages are unpacked with constant times; it
    would also have to be moved for the standard library.
    """

    folder = ""

    def get_code(self, fullname: str) -> CodeType | None:
        """The module's code. No fault of the cache is an error."""
        source = content_of(self.path)
        place = f"{sys.version}\n{sys.flags.optimize}\n{self.path}\n".encode("utf-8", "replace")
        head = place + source + b"\0\n"
        # The place tells two copies of the skill apart; a collision costs time, nothing else.
        kept = f"{self.folder}/{fullname}-{source_hash(0, place).hex()}.bin"
        try:
            content = content_of(kept) if self.folder else b""
            if content.startswith(head):
                return loads(content[len(head) :])
        except (OSError, ValueError, EOFError, TypeError):
            pass
        code = self.source_to_code(source, self.path)
        if self.folder:
            store(kept, head + dumps(code))
        return code


def content_of(path: str) -> bytes:
    """A file's content, by plain reads: a file object takes twice as long."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def store(path: str, content: bytes) -> None:
    """Put a compiled module into the cache, whole or not at all; no fault of the cache is told."""
    # Only the first start of a version comes here.
    import contextlib

    temporary = f"{path}.{os.getpid()}.tmp"
    with contextlib.suppress(OSError):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.rename(temporary, path)
        except OSError:
            os.unlink(temporary)


def cache_folder() -> str:
    """`agent-workers/bytecode` in the user's cache folder; empty unless the user alone can write.

    Code is loaded from there, so a folder for all, such as TMPDIR, will not do.
    """
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(folder):
        folder = os.path.join(os.environ.get("HOME", ""), ".cache")
    if not os.path.isabs(folder):
        return ""
    try:
        for name in ("", "/agent-workers", "/bytecode"):
            folder += name
            if not os.path.isdir(folder):
                os.mkdir(folder, 0o700)
            found = os.stat(folder)
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                return ""
    except OSError:
        return ""
    return folder
