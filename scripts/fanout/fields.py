"""Named tuples without `typing` and `collections.namedtuple`.

The first checks every annotation, the second compiles a source for each class: together they cost
more than the work of most commands.
"""

from __future__ import annotations

from operator import itemgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
    from typing import NamedTuple as NamedTuple
else:
    new_tuple = tuple.__new__

    class Fields(tuple):
        """What all named tuples can do; each knows its fields and their defaults."""

        __slots__ = ()
        _fields = ()
        _field_defaults = ()

        def __new__(cls, *args: Any, **named: Any) -> Fields:
            """One of these, from values by position and by name."""
            fields = cls._fields
            if not named and len(args) == len(fields):
                return new_tuple(cls, args)
            defaults = cls._field_defaults
            values = list(args)
            for field in fields[len(args) :]:
                if field in named:
                    values.append(named.pop(field))
                elif field in defaults:
                    values.append(defaults[field])
                else:
                    raise TypeError(f"{cls.__name__} needs {field!r}")
            if named or len(values) > len(fields):
                raise TypeError(f"{cls.__name__} takes {', '.join(fields)}")
            return tuple.__new__(cls, values)

        @classmethod
        def _make(cls, values: list[Any]) -> Fields:
            """One of these, from a value for each field."""
            if len(values) != len(cls._fields):
                raise TypeError(f"{cls.__name__} takes {', '.join(cls._fields)}")
            return new_tuple(cls, values)

        def _replace(self, **named: Any) -> Fields:
            """The same with other values for some fields."""
            pairs = zip(self._fields, self, strict=True)
            values = [named.pop(field, value) for field, value in pairs]
            if named:
                raise TypeError(f"{type(self).__name__} has no {', '.join(named)}")
            return tuple.__new__(type(self), values)

        def _asdict(self) -> dict[str, Any]:
            """The values by field."""
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self) -> str:
            """The values with their fields."""
            words = (f"{field}={value!r}" for field, value in self._asdict().items())
            return f"{type(self).__name__}({', '.join(words)})"

    class Maker(type):
        """Makes a named tuple of a class statement, as `typing.NamedTuple` does."""

        def __new__(cls, name: str, _: tuple[type, ...], body: dict[str, Any]) -> type:
            """The named tuple; its `__annotations__` are the words that the source has."""
            fields = tuple(body.get("__annotations__", ()))
            body["_fields"] = fields
            body["_field_defaults"] = {field: body[field] for field in fields if field in body}
            body["__slots__"] = ()
            for number, field in enumerate(fields):
                body[field] = property(itemgetter(number))
            return type(name, (Fields,), body)

    NamedTuple = type.__new__(Maker, "NamedTuple", (), {})
