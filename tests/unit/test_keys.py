"""SSH keys go into authorized_keys unharmed, once, and harm nothing that is there."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest

from hermitcrab.box import keys

CASES = Path(__file__).parents[1] / "cases"


def make_key(seed: int, kind: str = "ssh-ed25519", comment: str = "me@home") -> str:
    """Build a public key line of the right form; no secret belongs to it."""
    fields = (kind.encode(), bytes([seed]) * 32)
    blob = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return f"{kind} {base64.b64encode(blob).decode()} {comment}"


@pytest.mark.parametrize("kind", keys.TYPES)
def test_each_known_type_is_read(kind: str) -> None:
    """Every type that sshd accepts by default is a key, with options in front or without."""
    line = make_key(1, kind)
    plain, optioned = keys.parse_key(line), keys.parse_key(f'from="a b,\\"c",no-pty {line}')

    assert (plain.type, plain.blob) == (optioned.type, optioned.blob)
    assert plain.line == line


def test_c16_three_keys_and_old_lines_untouched() -> None:
    """A file without a last newline gets one; the new key does not glue to the old line."""
    old = (CASES / "C16.txt").read_bytes()
    new = keys.merge(old, [keys.parse_key(make_key(7))])

    assert not old.endswith(b"\n")
    assert new == old + b"\n" + make_key(7).encode() + b"\n"
    assert sum(1 for _ in keys._known(new)) == 3


def test_same_key_is_not_added_twice() -> None:
    """Two lines are one key when type and blob agree, whatever options and comment say."""
    old = f'command="true" {make_key(1, comment="other")}\n'.encode()
    given = [keys.parse_key(make_key(seed)) for seed in (1, 2, 2)]

    once = keys.merge(old, given)
    assert once == old + make_key(2).encode() + b"\n"
    assert keys.merge(once, given) == once


def test_commented_out_key_is_no_key() -> None:
    """A key behind "#" lets nobody in, so the same key is added when it is given."""
    old = f"# {make_key(1)}\n#{make_key(1)}\n".encode()

    assert keys.merge(old, [keys.parse_key(make_key(1))]) == old + make_key(1).encode() + b"\n"


def test_bytes_of_old_lines_survive() -> None:
    """Lines in no encoding at all, with CRLF or blanks, stay byte for byte."""
    old = b"\xff\xfe junk\r\n\n  \t\nssh-ed25519 cut\n" + make_key(3).encode() + b"\r\n"
    new = keys.merge(old, [keys.parse_key(make_key(3)), keys.parse_key(make_key(4))])

    assert new == old + make_key(4).encode() + b"\n"


@pytest.mark.parametrize("text", ["", "null", "\r\n", " \n# a comment\n", "null\nnull\r\n"], ids=repr)
def test_nothing_given_is_no_key_and_no_warning(text: str) -> None:
    """An empty field of a platform's form is no mistake."""
    assert list(keys.read_keys(text)) == []


def test_lines_end_as_they_come() -> None:
    """LF, CRLF and CR end a line, and none of them gets into a key."""
    found = list(keys.read_keys(f"{make_key(1)}\r\n{make_key(2)}\r{make_key(3)}\n{make_key(4)}"))

    assert [key.line for key in found if isinstance(key, keys.Key)] == [make_key(seed) for seed in (1, 2, 3, 4)]


WORDS = make_key(1).split(" ")
MALFORMED = {
    "cut": make_key(1)[:40],
    "type alone": "ssh-ed25519",
    "no base64": "ssh-ed25519 AAAA*** me",
    "a stray character": make_key(1).replace("AAAAC", "AAAA*C"),
    "other type inside": f"ssh-rsa {WORDS[1]}",
    "dsa": make_key(1, "ssh-dss"),
    "prose": "please let me in",
    "quoted as a whole": f'"{make_key(1)}"',
    "open quote": f'from="a {make_key(1)}',
    "no-break space": "\u00a0".join(WORDS),
    "length past the end": "ssh-ed25519 " + base64.b64encode(b"\xff\xff\xff\xffx").decode(),
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_key_is_named_not_shown(text: str) -> None:
    """What is no key is refused by its line, never shown, and its neighbour counts."""
    first, second = keys.read_keys(f"{text}\n{make_key(2)}")

    assert isinstance(first, keys.MalformedKeyError)
    assert str(first).startswith("line 1 ")
    assert text not in str(first)
    assert second == keys.parse_key(make_key(2))


def test_private_key_is_refused_whole() -> None:
    """A pasted private key is one warning that shows nothing of it."""
    fence = "-----{} OPENSSH PRIVATE" + " KEY-----"
    (found,) = keys.read_keys(f"{fence.format('BEGIN')}\nc2VjcmV0\n{fence.format('END')}\n")

    assert isinstance(found, keys.MalformedKeyError)
    assert "c2VjcmV0" not in str(found)


def test_authorize_sets_modes_and_keeps_a_link(tmp_path: Path) -> None:
    """Directory 700, file 600, and a link to a lasting disk stays a link."""
    lasting = tmp_path / "disk" / "keys"
    lasting.parent.mkdir()
    lasting.write_bytes(make_key(1).encode())
    path = tmp_path / ".ssh" / "authorized_keys"
    path.parent.mkdir(mode=0o777)
    path.symlink_to(lasting)

    keys.authorize(path, [keys.parse_key(make_key(2))])

    assert path.is_symlink()
    assert lasting.read_text() == f"{make_key(1)}\n{make_key(2)}\n"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(lasting.stat().st_mode) == 0o600


def test_authorize_mends_the_mode_of_an_unchanged_file(tmp_path: Path) -> None:
    """A file that already holds the key may still be one that sshd would not trust."""
    path = tmp_path / ".ssh" / "authorized_keys"
    keys.authorize(path, [keys.parse_key(make_key(1))])
    path.chmod(0o666)
    before = path.stat().st_ino

    keys.authorize(path, [keys.parse_key(make_key(1))])

    assert path.stat().st_ino == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk costs the new key, never the old ones, and leaves no litter."""
    path = tmp_path / ".ssh" / "authorized_keys"
    keys.authorize(path, [keys.parse_key(make_key(1))])

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        keys.authorize(path, [keys.parse_key(make_key(2))])

    assert path.read_text() == make_key(1) + "\n"
    assert list(path.parent.iterdir()) == [path]
