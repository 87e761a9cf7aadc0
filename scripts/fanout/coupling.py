"""Which files import which, as far as plain patterns tell: a warning, never a proof."""

from __future__ import annotations

import os
import posixpath
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PYTHON = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#;]+)"
    r"|import[ \t]+([^\n#;]+))",
    re.M,
)
SCRIPT = re.compile(
    r"""(?:\bfrom\s*|\bimport\s*\(?\s*|\brequire\s*\(\s*)["'](\.{1,2}(?:/[^"'\n]*)?)["']"""
)
GO_BLOCK = re.compile(r"^import\s*(?:\(([^)]*)\)|(?:[\w.]+\s+)?(\"[^\"]+\"))", re.M)
GO_MODULE = re.compile(r"^module\s+(\S+)", re.M)
RUST_MOD = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", re.M)
RUST_USE = re.compile(r"\bcrate::((?:\w+::)*\w+)")
JAVA = re.compile(r"^\s*import\s+(?:static\s+)?([\w.]+(?:\.\*)?)\s*;", re.M)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.M)
SCRIPTS = (".ts", ".tsx", ".js", ".jsx", ".mjs", ".cjs", ".mts", ".cts")
C_FILES = (".c", ".h", ".cc", ".hh", ".cpp", ".hpp", ".cxx", ".hxx", ".m", ".inl")
READABLE = (".py", ".go", ".rs", ".java", *SCRIPTS, *C_FILES)


class Tree:
    """The files of a commit, found again by what an import calls them."""

    def __init__(self, files: Iterable[str], modules: dict[str, str]) -> None:
        """`modules` holds the Go modules by the folder of their go.mod."""
        self.files = frozenset(files)
        self.modules = modules
        self.python: dict[str, str] = {}
        self.by_name: dict[str, list[str]] = {}
        self.go: dict[str, list[str]] = {}
        self.starts: dict[str, list[int]] = {}
        for path in self.files:
            if path.endswith(".py"):
                for module in self.python_names(path):
                    self.python.setdefault(module, path)
            elif path.endswith(".go") and not path.endswith("_test.go"):
                self.go.setdefault(posixpath.dirname(path), []).append(path)
            elif path.endswith((".java", *C_FILES)):
                self.by_name.setdefault(posixpath.basename(path), []).append(path)

    def python_names(self, path: str) -> list[str]:
        """What a file may be called in an import: from the root, `src`, or outside of packages."""
        body = path.removesuffix(".py").removesuffix("/__init__")
        folder = body.rpartition("/")[0]
        starts = self.starts.get(folder)
        if starts is None:
            parts = folder.split("/") if folder else []
            start = len(parts)
            while start and "/".join([*parts[:start], "__init__.py"]) in self.files:
                start -= 1
            below = {1} if parts[:1] in (["src"], ["lib"]) else set[int]()
            # How many letters of the path are no part of the name.
            sizes = {sum(len(part) + 1 for part in parts[:n]) for n in {0, start} | below}
            starts = self.starts[folder] = sorted(sizes)
        return [body[size:].replace("/", ".") for size in starts if size < len(body)]

    def imports(self, path: str, text: str) -> set[str]:
        """The files of the tree that a file imports, as its text says."""
        find: Callable[[str, str], set[str]]
        if path.endswith(".py"):
            find = self.of_python
        elif path.endswith(SCRIPTS):
            find = self.of_script
        elif path.endswith(".go"):
            find = self.of_go
        elif path.endswith(".rs"):
            find = self.of_rust
        elif path.endswith(".java"):
            find = self.of_java
        else:
            find = self.of_c
        return find(path, text) - {path}

    def of_python(self, path: str, text: str) -> set[str]:
        """What a Python file imports."""
        found: set[str] = set()
        for source, names, plain in PYTHON.findall(text):
            for word in plain.split(",") if plain else ():
                module = word.split()[0] if word.split() else ""
                found |= self.longest_python(module)
            if not source:
                continue
            module = source.lstrip(".")
            level = len(source) - len(module)
            if level:
                folder = path.split("/")[:-1]
                folder = folder[: len(folder) - level + 1]
                place = "/".join([*folder, *filter(None, module.split("."))])
                bases = [place]
            else:
                bases = []
            for word in names.strip("() \n").split(","):
                name = word.split()[0] if word.split() else ""
                for base in bases:
                    found |= self.python_file(f"{base}/{name}" if base else name) or (
                        self.python_file(base)
                    )
                if not level:
                    found |= self.longest_python(f"{module}.{name}")
        return found

    def python_file(self, place: str) -> set[str]:
        """The file of a module by its path without an ending."""
        return {p for p in (f"{place}.py", f"{place}/__init__.py") if p in self.files}

    def longest_python(self, module: str) -> set[str]:
        """The file of a module, or of the nearest one that holds it."""
        while module:
            if module in self.python:
                return {self.python[module]}
            module = module.rpartition(".")[0]
        return set()

    def of_script(self, path: str, text: str) -> set[str]:
        """What a JavaScript or TypeScript file imports by a relative path."""
        found: set[str] = set()
        for word in SCRIPT.findall(text):
            place = posixpath.normpath(posixpath.join(posixpath.dirname(path), word))
            stem, ending = os.path.splitext(place)
            stems = [place, stem] if ending in (".js", ".mjs", ".cjs", ".jsx") else [place]
            tries = [place, *(f"{s}{e}" for s in stems for e in SCRIPTS)]
            tries += [f"{place}/index{e}" for e in SCRIPTS]
            found |= {next((p for p in tries if p in self.files), "")}
        return found - {""}

    def of_go(self, path: str, text: str) -> set[str]:
        """The files of the packages of this tree that a Go file imports."""
        del path
        found: set[str] = set()
        for block, single in GO_BLOCK.findall(text):
            for name in re.findall(r'"([^"]+)"', block or single):
                for folder, module in self.modules.items():
                    if name == module or name.startswith(module + "/"):
                        package = posixpath.normpath(
                            posixpath.join(folder, name[len(module) + 1 :])
                        )
                        found |= {*self.go.get("" if package == "." else package, ())}
        return found

    def of_rust(self, path: str, text: str) -> set[str]:
        """What a Rust file declares by `mod` or uses from its crate."""
        folder, name = posixpath.split(path)
        inner = folder
        if name not in ("mod.rs", "lib.rs", "main.rs"):
            inner = posixpath.join(folder, name.removesuffix(".rs"))
        found: set[str] = set()
        for word in RUST_MOD.findall(text):
            found |= self.rust_file(posixpath.join(inner, word))
        root = self.crate_root(folder)
        for word in RUST_USE.findall(text) if root is not None else ():
            parts = word.split("::")
            while parts:
                files = self.rust_file(posixpath.join(root or "", *parts))
                if files:
                    found |= files
                    break
                parts.pop()
        return found

    def rust_file(self, place: str) -> set[str]:
        """The file of a module by its path without an ending."""
        return {p for p in (f"{place}.rs", f"{place}/mod.rs") if p in self.files}

    def crate_root(self, folder: str) -> str | None:
        """The folder of the crate that a folder belongs to."""
        while True:
            if any(posixpath.join(folder, n) in self.files for n in ("lib.rs", "main.rs")):
                return folder
            if not folder:
                return None
            folder = posixpath.dirname(folder)

    def of_java(self, path: str, text: str) -> set[str]:
        """The classes of this tree that a Java file imports."""
        del path
        found: set[str] = set()
        for word in JAVA.findall(text):
            parts = word.split(".")
            if parts[-1] == "*":
                ending = "/".join(parts[:-1])
                for paths in self.by_name.values():
                    found |= {p for p in paths if self.lies_in(p, ending)}
                continue
            # `import static a.B.name` names the class before its member.
            for cut in (parts, parts[:-1]):
                ending = "/".join(cut) + ".java"
                found |= {
                    p for p in self.by_name.get(posixpath.basename(ending), ())
                    if p == ending or p.endswith("/" + ending)
                }  # fmt: skip
        return found

    def lies_in(self, path: str, package: str) -> bool:
        """Whether a file is of a Java package."""
        folder = posixpath.dirname(path)
        java = path.endswith(".java")
        return java and (folder == package or folder.endswith("/" + package))

    def of_c(self, path: str, text: str) -> set[str]:
        """The headers of this tree that a C file includes by quotes."""
        found: set[str] = set()
        for word in INCLUDE.findall(text):
            near = posixpath.normpath(posixpath.join(posixpath.dirname(path), word))
            if near in self.files:
                found.add(near)
                continue
            ending = posixpath.normpath(word)
            found |= {
                p for p in self.by_name.get(posixpath.basename(ending), ())
                if p == ending or p.endswith("/" + ending)
            }  # fmt: skip
        return found


def go_modules(texts: dict[str, str]) -> dict[str, str]:
    """The names of Go modules by folder, from the texts of go.mod files by path."""
    found: dict[str, str] = {}
    for path, text in texts.items():
        match = GO_MODULE.search(text)
        if match:
            found[posixpath.dirname(path)] = match[1]
    return found
