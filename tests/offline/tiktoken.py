"""Counts tokens without a vocabulary, which would be fetched from the network: rather too many.

Stands in for the library of that name where validators of skills run (see `make skill`).
"""

from __future__ import annotations

import re

PIECE = re.compile(r"\w{1,6}|[^\w\s]{1,3}|\n")


class Encoding:
    """Cuts a text into short pieces."""

    def encode(self, text: str) -> list[str]:
        """The pieces, each taken for a token."""
        return PIECE.findall(text)


def get_encoding(name: str) -> Encoding:
    """The same for every name."""
    del name
    return Encoding()
