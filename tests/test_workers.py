"""Tests of fanout.workers."""

from __future__ import annotations

import shlex

from hypothesis import given
from hypothesis import strategies as st

from fanout import workers


@given(word=st.text(alphabet=st.sampled_from("aZ0_-.,:/@%+=' \"$`\\\n\u00e9!*~"), max_size=8))
def test_words_are_quoted_as_the_standard_library_does(word: str) -> None:
    assert workers.quote(word) == shlex.quote(word)
