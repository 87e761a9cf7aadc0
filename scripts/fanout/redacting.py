"""Likely secrets in text: where they are, and the text without them."""

from __future__ import annotations

import math
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MARK = "[redacted]"
# Forms that say by themselves what they are. The last part of each is what is secret.
TOKENS = "|".join(
    [
        r"\b(?:AKIA|ASIA|AGPA|AROA)[0-9A-Z]{16}\b",
        r"\bgh[pousr]_[A-Za-z0-9]{30,255}",
        r"\bgithub_pat_[A-Za-z0-9_]{40,255}",
        r"\bglpat-[A-Za-z0-9_-]{20,}",
        r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
        r"\bhttps://hooks\.slack\.com/services/[A-Za-z0-9/]{20,}",
        r"\bAIza[0-9A-Za-z_-]{35}",
        r"\bya29\.[0-9A-Za-z_-]{20,}",
        r"\bsk-(?:ant|proj|svcacct|or)-[A-Za-z0-9_-]{20,}",
        r"\bsk-[A-Za-z0-9]{32,}",
        r"\b[rs]k_live_[0-9A-Za-z]{16,}",
        r"\bwhsec_[0-9A-Za-z+/=]{24,}",
        r"\bnpm_[A-Za-z0-9]{36}\b",
        r"\bpypi-[A-Za-z0-9_-]{50,}",
        r"\bhf_[A-Za-z0-9]{30,}",
        r"\bSG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}",
        r"\bdop_v1_[0-9a-f]{64}\b",
        r"\bAGE-SECRET-KEY-1[0-9A-Z]{50,}",
        r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    ]
)
# Whoever searches all of these forms in every line takes seconds.
SIGNS = (
    "AKIA", "ASIA", "AGPA", "AROA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-",
    "xox", "hooks.slack.com", "AIza", "ya29.", "sk-", "_live_", "whsec_", "npm_", "pypi-", "hf_",
    "SG.", "dop_v1_", "AGE-SECRET-KEY", "eyJ",
)  # fmt: skip
# The password of an address.
ADDRESS = r"\b[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s/:@'\"<>]{0,100}:(?P<value>[^\s/:@'\"<>]{3,200})@"
# A name that promises a secret, and what it is set to.
KEYS = r"password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|token|private[_-]?key"
KEY_SIGNS = ("passw", "passphrase", "secret", "key", "token")
ASSIGNED = (
    rf"(?i)(?:{KEYS})[A-Za-z0-9_-]{{0,30}}[\"']?\s{{0,4}}(?::=|=>|=|:)"
    r"\s{0,4}(?:\"(?P<double>[^\"\s]{6,200})\"|'(?P<single>[^'\s]{6,200})'"
    r"|(?P<bare>[A-Za-z0-9+/=_.~-]{16,200})(?=[\s,;]|$))"
)
AWS = (
    r"(?i)aws_?secret_?(?:access_?)?key[\"']?\s{0,4}[=:]\s{0,4}[\"']?(?P<value>[A-Za-z0-9/+=]{40})"
)
KEY_BEGINS = r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
KEY_ENDS = r"-----END (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
KEY_BODY = r"[A-Za-z0-9/][A-Za-z0-9+/=]{3,}"
# What stands in examples and templates.
HOLLOW = (
    r"(?i)example|changeme|change-me|placeholder|your[_-]?|dummy|redacted|xxx|\*\*\*|\.\.\.|<|>|\$|%"
    r"|\{|\}|\(|\)|^(?:password|secret|token|pass|user|none|null|true|false|undefined)$"
)
VARIED = 2.6
LINE_LIMIT = 20_000


def secrets_in(lines: list[str]) -> Iterator[tuple[int, str]]:
    """The likely secrets of a text: the number of each one's line, from 0, and its value.

    The value is empty for the first line of a private key, which says nothing by itself.
    """
    inside = False
    worth = worthwhile(lines)
    for number, line in enumerate(lines):
        if "-----" in line:
            if re.search(KEY_BEGINS, line) is not None:
                yield number, ""
            places, inside = key_spans(line)
        elif inside:
            places = [hit.span() for hit in re.finditer(KEY_BODY, line)]
        else:
            places = spans(line) if worth(line) else []
        for first, last in places:
            yield number, line[first:last]


def worthwhile(lines: list[str]) -> Callable[[str], bool]:
    """A quick look that tells which of these lines may hold a secret: most hold none."""
    text = "\n".join(lines)
    signs = [sign for sign in (*SIGNS, "://") if sign in text]
    keys = [sign for sign in KEY_SIGNS if sign in text.lower()]

    def may_hold(line: str) -> bool:
        if any(sign in line for sign in signs):
            return True
        low = line.lower()
        return any(key in low for key in keys)

    return may_hold


def key_spans(line: str) -> tuple[list[tuple[int, int]], bool]:
    """What a line holds of a private key that begins in it, and whether the key goes on."""
    begins = list(re.finditer(KEY_BEGINS, line))
    places = spans(line)
    goes_on = False
    for begin in begins:
        end = re.compile(KEY_ENDS).search(line, begin.end())
        goes_on = end is None
        last = len(line) if end is None else end.start()
        places += [h.span() for h in re.compile(KEY_BODY).finditer(line, begin.end(), last)]
    return places, goes_on


def spans(line: str) -> list[tuple[int, int]]:
    """Where likely secrets stand in a line, private keys left out."""
    found: list[tuple[int, int]] = []
    # Whoever writes such a line must not hold up whoever looks at it.
    for offset in range(0, max(1, len(line)), LINE_LIMIT):
        part = line[offset : offset + LINE_LIMIT + 300]
        found += [(offset + a, offset + b) for a, b in part_spans(part)]
    return found


def part_spans(line: str) -> list[tuple[int, int]]:
    """`spans` of a line that is not too long."""
    found = [hit.span() for hit in re.finditer(TOKENS, line)]
    found += [h.span("value") for h in re.finditer(ADDRESS, line) if not hollow(h["value"])]
    found += [hit.span("value") for hit in re.finditer(AWS, line)]
    for hit in re.finditer(ASSIGNED, line):
        group = next(name for name in ("double", "single", "bare") if hit[name] is not None)
        if looks_random(hit[group]):
            found.append(hit.span(group))
    return found


def hollow(value: str) -> bool:
    """Whether a value only shows where a secret belongs."""
    return re.search(HOLLOW, value) is not None


def looks_random(value: str) -> bool:
    """Whether a value is varied enough for a password or key, and no word, name or path."""
    if hollow(value) or not any(c.isdigit() for c in value) or not any(c.isalpha() for c in value):
        return False
    shares = [value.count(letter) / len(value) for letter in set(value)]
    return -sum(share * math.log2(share) for share in shares) >= VARIED


def redact(text: str, values: Iterable[str] = ()) -> str:
    """The text with every likely secret replaced, and these known values wherever they stand."""
    lines = text.split("\n")
    inside = False
    worth = worthwhile(lines)
    for number, line in enumerate(lines):
        if "-----" in line:
            places, inside = key_spans(line)
            lines[number] = without(line, places)
        elif inside:
            lines[number] = re.sub(KEY_BODY, MARK, line)
        elif worth(line):
            lines[number] = without(line, spans(line))
    whole = "\n".join(lines)
    for value in values:
        whole = whole.replace(value, MARK)
    return whole


def without(line: str, places: list[tuple[int, int]]) -> str:
    """A line with a mark in place of each of these parts, which may overlap."""
    kept: list[str] = []
    end = 0
    for first, last in sorted(places):
        if first >= end:
            kept += [line[end:first], MARK]
        end = max(end, last)
    return "".join(kept) + line[end:]
