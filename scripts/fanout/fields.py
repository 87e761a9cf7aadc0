"""Named tuples without `typing`.

Its import, and its check of every annotation, cost more than the work of most commands.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
    from typing import NamedTuple as NamedTuple
else:

    class Maker(type):
        """Makes a named tuple of a class statement, as `typing.NamedTuple` does."""

        def __new__(cls, name: str, _: tuple[type, ...], body: dict[str, Any]) -> type:
            """The named tuple; its `__annotations__` are the words that the source has."""
            fields = body.pop("__annotations__", {})
            defaults = [body.pop(field) for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            made.__annotations__ = fields
            for key, value in body.items():
                setattr(made, key, value)
            return made

    NamedTuple = type.__new__(Maker, "NamedTuple", (), {})
