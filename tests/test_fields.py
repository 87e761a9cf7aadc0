"""Tests of fanout.fields: they do what those of the standard library do."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from fanout.fields import NamedTuple


class Point(NamedTuple):
    """A record with a default and a method."""

    x: int
    y: int
    name: str = "p"

    @property
    def total(self) -> int:
        """Of both numbers."""
        return self.x + self.y


class Usual(typing.NamedTuple):
    """The same of the standard library."""

    x: int
    y: int
    name: str = "p"


def test_a_record_is_a_tuple_with_names() -> None:
    point = Point(1, y=2)
    assert point == Usual(1, 2) == (1, 2, "p")
    assert hash(point) == hash(Usual(1, 2))
    assert (point.x, point.y, point.name, point.total) == (1, 2, "p", 3)
    assert point._replace(name="q", x=5) == (5, 2, "q")
    assert isinstance(point._replace(x=5), Point)
    assert Point._make([1, 2, "p"]) == Usual._make([1, 2, "p"]) == point
    assert isinstance(Point._make([1, 2, "p"]), Point)
    assert point._asdict() == {"x": 1, "y": 2, "name": "p"}
    assert point._fields == ("x", "y", "name")
    assert repr(point) == "Point(x=1, y=2, name='p')"
    assert list(Point.__annotations__) == ["x", "y", "name"]


@pytest.mark.parametrize(
    ("args", "named"),
    [((1,), {}), ((1, 2, "a", 4), {}), ((1, 2), {"z": 3}), ((1, 2), {"x": 3}), ((), {"x": 1})],
)
def test_wrong_values_are_refused(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Usual(*args, **named)
    with pytest.raises(TypeError):
        Point(*args, **named)


def test_a_record_takes_a_value_for_each_field() -> None:
    for values in ([1], [1, 2, "a", 4]):
        with pytest.raises(TypeError):
            Usual._make(values)
        with pytest.raises(TypeError):
            Point._make(values)


def test_what_is_not_there_is_not_replaced() -> None:
    point: Any = Point(1, 2)
    with pytest.raises(TypeError):
        point._replace(z=3)
    with pytest.raises(AttributeError):
        point.x = 3
