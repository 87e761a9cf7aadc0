"""Tests of fanout.workers."""

from __future__ import annotations

import os
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout import workers


@given(word=st.text(alphabet=st.sampled_from("aZ0_-.,:/@%+=' \"$`\\\n\u00e9!*~"), max_size=8))
def test_words_are_quoted_as_the_standard_library_does(word: str) -> None:
    assert workers.quote(word) == shlex.quote(word)


@pytest.mark.parametrize("word", ["a b", "it's", "a\nb", "\x1b[31m'\\1", "\udcff9", "é\u202e", ""])
def test_a_word_to_paste_is_one_printable_line_that_bash_reads_back(word: str) -> None:
    quoted = workers.quote_for_bash(word)
    assert quoted.isprintable()
    done = subprocess.run(["bash", "-c", f"printf %s {quoted}"], capture_output=True, check=True)
    assert done.stdout == os.fsencode(word)
