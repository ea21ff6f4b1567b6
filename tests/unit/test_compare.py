"""What differs between two images: found by file and by field, also the smallest difference."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hermitcrab.build import compare
from hermitcrab.build.engine import Engine

FILE: dict[str, Any] = {"name": "etc/motd", "mode": 0o644, "uid": 0, "gid": 0, "mtime": 1000, "content": b"hello"}


def layer(*entries: dict[str, Any]) -> bytes:
    """A layer as a tar: each entry is a file like ``FILE`` with changes, or a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for entry in entries:
            row = {**FILE, **entry}
            info = tarfile.TarInfo(row["name"])
            info.mode, info.uid, info.gid, info.mtime = row["mode"], row["uid"], row["gid"], row["mtime"]
            if "link" in row:
                info.type, info.linkname = tarfile.SYMTYPE, row["link"]
            info.size = 0 if "link" in row else len(row["content"])
            made.addfile(info, io.BytesIO(row["content"]))
    return buffer.getvalue()


class FakeEngine:
    """Images made of layers, saved as an Engine of version 25 or later saves them."""

    def __init__(self, **images: tuple[bytes, ...]) -> None:
        self.layers = images
        self.config: dict[str, dict[str, Any]] = {name: {} for name in images}
        self.packed = False

    def image(self, tag: str) -> SimpleNamespace:
        ids = [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in self.layers[tag]]
        attributes = {"Id": f"sha256:{tag}", "RepoTags": [tag], "RootFS": {"Type": "layers", "Layers": ids}}
        return SimpleNamespace(attrs={**attributes, "Config": {}, **self.config[tag]})

    def save(self, tag: str) -> Iterator[bytes]:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as made:
            for data in self.layers[tag]:
                name = "0" * 64 if self.packed else hashlib.sha256(data).hexdigest()
                info = tarfile.TarInfo(f"blobs/sha256/{name}")
                info.size = len(data)
                made.addfile(info, io.BytesIO(data))
            info = tarfile.TarInfo("manifest.json")
            info.size = 2
            made.addfile(info, io.BytesIO(json.dumps([]).encode()))
        data = buffer.getvalue()
        yield from (data[at : at + 700] for at in range(0, len(data), 700))


def images(engine: FakeEngine) -> list[str]:
    """The differences of the images ``one`` and ``two``."""
    return compare.images(cast("Engine", engine), "one", "two")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mode": 0o600}, "mode"),
        ({"uid": 1000}, "owner"),
        ({"gid": 50}, "group"),
        ({"mtime": 1001}, "mtime"),
        ({"content": b"HELLO"}, "content"),
        ({"content": b"hello!"}, "size, content"),
        ({"mode": 0o600, "mtime": 1}, "mode, mtime"),
    ],
)
def test_every_field_of_a_file_counts(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    """In two root filesystems, and in a layer of two images."""
    one, two = layer(FILE), layer({**FILE, **change})
    (tmp_path / "one").write_bytes(one)
    (tmp_path / "two").write_bytes(two)

    assert compare.files(tmp_path / "one", tmp_path / "two") == [f"etc/motd ({said})"]
    assert compare.files(tmp_path / "one", tmp_path / "one") == []
    same = layer({"name": "same"})
    assert images(FakeEngine(one=(same, one), two=(same, two))) == [f"etc/motd ({said})"]


def test_a_link_counts_by_its_target(tmp_path: Path) -> None:
    """A link has no content of its own."""
    (tmp_path / "one").write_bytes(layer({"link": "a"}))
    (tmp_path / "two").write_bytes(layer({"link": "b"}))

    assert compare.files(tmp_path / "one", tmp_path / "two") == ["etc/motd (content)"]


def test_a_file_on_one_side_only_is_named(tmp_path: Path) -> None:
    """With the side it is on."""
    (tmp_path / "one").write_bytes(layer({"name": "a"}, {"name": "b"}))
    (tmp_path / "two").write_bytes(layer({"name": "b"}, {"name": "c"}))

    assert compare.files(tmp_path / "one", tmp_path / "two") == ["a (only in the first)", "c (only in the second)"]


def test_many_differences_are_counted(tmp_path: Path) -> None:
    """The first ones by name, the rest by number."""
    names = [f"f{number:02}" for number in range(13)]
    (tmp_path / "one").write_bytes(layer(*({"name": name} for name in names)))
    (tmp_path / "two").write_bytes(layer(*({"name": name, "mtime": 1} for name in names)))

    found = compare.files(tmp_path / "one", tmp_path / "two")
    assert found[0] == "f00 (mtime)"
    assert found[-1] == "and 3 more"
    assert len(found) == compare.SHOWN + 1


def test_only_layers_that_differ_are_read() -> None:
    """Each of them, in their order."""
    same = layer({"name": "same"})
    one = (layer({"name": "a"}), same, layer({"name": "b"}))
    two = (layer({"name": "a", "mtime": 1}), same, layer({"name": "b", "uid": 1}))

    assert images(FakeEngine(one=one, two=two)) == ["a (mtime)", "b (owner)"]


def test_a_config_that_differs_is_named_by_field() -> None:
    """Same files, other settings; names and addresses of an image are no difference."""
    engine = FakeEngine(one=(layer(),), two=(layer(),))
    assert images(engine) == []

    engine.config["two"] = {"Created": "2026-01-02T00:00:00Z"}
    engine.config["one"] = {"Created": "2026-01-01T00:00:00Z"}
    assert images(engine) == ["config field Created"]


def test_a_layer_more_is_a_difference() -> None:
    """The common ones are equal, the images are not."""
    assert images(FakeEngine(one=(layer(),), two=(layer(), layer({"name": "a"})))) == ["config field RootFS"]


def test_layers_whose_files_are_hidden_are_named_themselves() -> None:
    """An engine with another image store packs its layers: then their digests must do."""
    one, two = layer(FILE), layer({"mtime": 1})
    engine = FakeEngine(one=(one,), two=(two,))
    engine.packed = True

    digests = [hashlib.sha256(data).hexdigest() for data in (one, two)]
    assert images(engine) == [f"layer sha256:{digests[0]} and sha256:{digests[1]}"]


@pytest.mark.parametrize("pieces", [[], [b""], [b"abc"], [b"a", b"", b"bc" * 9], [b"x" * 3_000_000]])
def test_a_stream_is_all_of_its_chunks(pieces: list[bytes]) -> None:
    """However they are cut, and an empty one is no end."""
    found = compare.stream(iter(pieces))
    taken = iter(lambda: found.read(1000), b"")

    assert b"".join(taken) == b"".join(pieces)
