"""Which words are likely secrets, and texts without them."""

from __future__ import annotations

import time

import pytest

from fanout.redacting import MARK, redact, secrets_in

TOKEN = "ghp_" + "a1B2" * 9
SECRETS = [
    "AKIAIOSFODNN7EXAMPLE",
    TOKEN,
    "github_pat_" + "11ABCDEFG0" * 5,
    "glpat-" + "x1Y2z3w4v5u6t7s8r9q0",
    "xoxb-123456789012-abcdefghij",
    "AIza" + "Sy0" * 11 + "ab",
    "sk-ant-api03-" + "a1B2" * 10,
    "sk-proj-" + "a1B2" * 10,
    "sk-" + "a1B2" * 12,
    "sk_live_" + "a1B2c3D4e5F6g7H8",
    "npm_" + "a1B2" * 9,
    "pypi-" + "AgEIcHlwaS5vcmc" * 4,
    "hf_" + "aBcD" * 9,
    "SG." + "a1B2c3D4e5F6g7H8i9J0k1" + "." + "a1B2" * 10,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
]
ASSIGNED = [
    ('password = "{}"', "hunter2"),
    ("DB_PASSWORD={}", "Zm9vYmFyMTIzNDU2"),
    ('"api_key": "{}",', "1f3d5b7a9c"),
    ("  secret: '{}'", "k3yb0ard-cat"),
    ("const authToken = '{}';", "9f8e7d6c5b4a"),
    ("aws_secret_access_key = {}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("DATABASE_URL=postgres://app:{}@db.internal/app", "s3cr3t"),
    ("git clone https://user:{}@example.invalid/x.git", "p4ssw0rd"),
]
HARMLESS = [
    'password = os.environ["DB_PASSWORD_2"]',
    "password = get_password(user1)",
    'api_key = "<your api key 1>"',
    "token: ${{ secrets.TOKEN_1 }}",
    "SECRET_KEY=$SECRET_2",
    'password = "changeme1"',
    'token = "your-token-here-1"',
    "self.token = next_token2",
    "postgres://user:password@localhost/db",
    "https://example.invalid:8080/a@b",
    "the password: correct horse battery staple",
    "sk-learn-is-a-package-with-a-rather-long-name",
    "commit 3f1c0d2a9b8e7d6c5b4a39281706f5e4d3c2b1a0",
    '"integrity": "sha512-abc"',
    "max_tokens = 4096",
    "-----BEGIN CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("line", ["{}", "x = '{}'", "+  - {} # note", "https://h/?q={}&r=1"])
def test_tokens_are_known_by_their_form(line: str, secret: str) -> None:
    text = "one\n" + line.format(secret) + "\nthree"
    assert {number for number, _ in secrets_in(text.split("\n"))} == {1}
    shown = redact(text)
    assert secret[6:] not in shown
    assert MARK in shown
    assert shown.startswith("one\n")
    assert shown.endswith("\nthree")


@pytest.mark.parametrize(("line", "value"), ASSIGNED)
def test_values_are_known_by_what_they_are_set_to(line: str, value: str) -> None:
    text = line.format(value)
    assert value in [found for _, found in secrets_in([text])]
    assert redact(text) == line.format(MARK)


@pytest.mark.parametrize("line", HARMLESS)
def test_what_only_looks_like_one_is_left_alone(line: str) -> None:
    assert list(secrets_in([line])) == []
    assert redact(line) == line


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
@pytest.mark.parametrize("prefix", ["", "+", "-", " ", "    "])
def test_a_private_key_is_hidden_line_by_line(kind: str, prefix: str) -> None:
    body = ["QUJDREVGR0hJSktM" * 4] * 3 + ["QUI="]
    lines = [f"-----BEGIN {kind}PRIVATE KEY-----", *body, f"-----END {kind}PRIVATE KEY-----"]
    text = "\n".join(prefix + line for line in lines) + "\nafter " + body[0]
    shown = redact(text)
    assert shown.count(MARK) == 4
    assert shown.endswith("\nafter " + body[0])
    assert [number for number, _ in secrets_in(text.split("\n"))] == [0, 1, 2, 3, 4]
    # A value that is known is hidden wherever it stands.
    assert body[0] not in redact(text, [body[0]])


def test_a_private_key_in_one_line_is_hidden() -> None:
    line = '{"private_key": "-----BEGIN PRIVATE KEY-----\\n' + "QUJDREVGR0hJSktM" * 4
    shown = redact(line + '\\n-----END PRIVATE KEY-----\\n", "next": "QUJDREVGR0hJSktM"}')
    assert shown.count("QUJDREVGR0hJSktM") == 1
    assert '"next"' in shown


def test_several_in_one_line_and_those_that_overlap() -> None:
    assert redact(f"{TOKEN} and {TOKEN}") == f"{MARK} and {MARK}"
    assert redact(f"token = '{TOKEN}'") == f"token = '{MARK}'"


def test_a_line_that_was_made_to_take_long_does_not() -> None:
    lines = ["token" * 60_000, "a:" * 100_000, "a://b:" * 50_000, "eyJ" * 60_000]
    lines += ["-----BEGIN " + "A " * 60_000, "password='" + "x" * 200_000, "sk-" * 60_000]
    started = time.process_time()
    redact("\n".join(lines))
    assert time.process_time() - started < 10
