"""What `crab seal` takes for a secret in a file, and that an edit leaves all else byte for byte."""

from __future__ import annotations

import json

import pytest

from hermitcrab.box.seal import edits
from tests.unit.seal_root import GITHUB, HF, PRIVATE

SECRET_LINES = [
    (f"export HF_TOKEN={HF}", "HF_TOKEN", "export HF_TOKEN="),
    ("WANDB_API_KEY='a b' # mine", "WANDB_API_KEY", "WANDB_API_KEY= # mine"),
    ('export A=1 DB_PASSWORD="x\\"y z"; B=2', "DB_PASSWORD", "export A=1 DB_PASSWORD=; B=2"),
    ("set -gx OPENAI_API_KEY sesame", "OPENAI_API_KEY", "set -gx OPENAI_API_KEY "),
    ("setenv AWS_SECRET_ACCESS_KEY sesame", "AWS_SECRET_ACCESS_KEY", "setenv AWS_SECRET_ACCESS_KEY "),
    ("alias train='HF_TOKEN=sesame python t.py'", "HF_TOKEN", "alias train='HF_TOKEN= python t.py'"),
    ("# export GH_TOKEN=sesame", "GH_TOKEN", "# export GH_TOKEN="),
    ("SECRET = sesame", "SECRET", "SECRET = "),
    (f"x={GITHUB}", "x", "x="),
    ("URL=https://me:sesame@host/x", "URL", "URL="),
    ("JUPYTER_TOKEN=sesame\r", "JUPYTER_TOKEN", "JUPYTER_TOKEN=\r"),
    ('KEY="one\ntwo"\nX=1', "KEY", "KEY=\nX=1"),
    ("apikey=sesame", "apikey", "apikey="),
]
NO_SECRETS = [
    "export TOKENIZERS_PARALLELISM=false",
    "export HF_TOKEN=$(cat ~/token)",
    'export HF_TOKEN="$OTHER"',
    "HF_TOKEN=",
    "export HF_TOKEN",
    "HF_TOKEN=''",
    "API_KEY=your-key-here",
    "API_KEY=<key>",
    "API_KEY=xxxx",
    "PUBLIC_KEY='ssh-ed25519 AAAA'",
    "SSH_AUTH_SOCK=/run/agent",
    "GOOGLE_APPLICATION_CREDENTIALS=/root/key.json",
    "PWD=/root",
    "PS1='\\u@\\h:\\w\\$ '",
    'if [ "$TOKEN" = x ]; then :; fi',
    "http_proxy=http://proxy:3128",
    "http_proxy=http://$USER:$PASS@proxy:3128",
    "echo KEY value",
]


@pytest.mark.parametrize(("text", "name", "left"), SECRET_LINES)
def test_a_secret_is_named_and_its_value_taken(text: str, name: str, left: str) -> None:
    """The name is told, the value goes, and what is left has no secret."""
    data = b"first\n" + text.encode() + b"\nlast"

    assert edits.secret_names(data) == [(2, name)]
    assert edits.without_values(data) == b"first\n" + left.encode() + b"\nlast"
    assert edits.secret_names(edits.without_values(data)) == []


@pytest.mark.parametrize("text", NO_SECRETS)
def test_a_reference_a_path_and_an_example_are_no_secrets(text: str) -> None:
    """A cry at each of these would make people deaf."""
    assert edits.secret_names(text.encode()) == []
    assert edits.without_values(text.encode()) == text.encode()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("https://me:pw@host/x", "https://host/x"),
        ("https://me:p@w@host/x", "https://host/x"),
        ("https://token@host/x", "https://host/x"),
        ("https://git@host/x", "https://git@host/x"),
        ("ssh://me@host/x", "ssh://me@host/x"),
        ("git@host:me/x", "git@host:me/x"),
        ("https://$USER:$PW@host", "https://$USER:$PW@host"),
        ("https://c.example/t/aa-12345678/main", "https://c.example/main"),
        ("https://c.example/t/main", "https://c.example/t/main"),
        ("[http]\n\textraheader = AUTHORIZATION: basic eHg=\n[x]\n", "[http]\n[x]\n"),
        ("//r.example/:_password=abc\nx=1", "x=1"),
    ],
)
def test_logins_go_and_addresses_stay(text: str, left: str) -> None:
    """An address works without its login, or asks for it."""
    assert edits.without_logins(text.encode()) == left.encode()


def test_docker_keeps_all_but_the_logins() -> None:
    """Helpers and proxies are settings; a file without logins, or one that is no JSON, stays byte for byte."""
    old = {"auths": {"r": {"auth": "x"}}, "credHelpers": {"é": "h"}, "proxies": {"default": {}}}

    new = edits.without_auths(json.dumps(old).encode())

    assert json.loads(new) == {"credHelpers": {"é": "h"}, "proxies": {"default": {}}}
    for same in (b'{ "auths": {} }', b"{}", b"[1]", b"", b'{"auths": ', b"\xff"):
        assert edits.without_auths(same) == same


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (PRIVATE.encode(), True),
        (b"PuTTY-User-Key-File-3: ssh-ed25519\n", True),
        (b"[Interface]\nPrivateKey = " + b"A" * 43 + b"=\n", True),
        (PRIVATE.encode().splitlines()[0], False),
        (b"if b'" + PRIVATE.encode().splitlines()[0] + b"' in data:", False),
    ],
)
def test_a_private_key_has_a_body(data: bytes, expected: bool) -> None:
    """A header alone is what programs look for."""
    assert edits.holds_private_key(data) is expected


def test_no_text_makes_it_slow() -> None:
    """Each pattern is bounded: a megabyte of openings takes no time to speak of."""
    for text in (b'A_KEY="', b"https://a@", b"-----BEGIN PRIVATE KEY-----", b"X='", b"export ", b"//a:_auth"):
        data = text * (300_000 // len(text))
        for edit in edits.EDITS.values():
            edit(data)
        edits.holds_secret(data)
