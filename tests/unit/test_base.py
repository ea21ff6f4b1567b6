"""The base: from a registry by digest or from packages; only `auto` may choose, and says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import cast

import pytest

from hermitcrab.build import archive
from hermitcrab.build import base as bases
from hermitcrab.build.engine import PROBE_S, Engine
from hermitcrab.errors import UserError
from hermitcrab.matrix import Base

BASE = Base(
    id="debian12", reference="debian:bookworm-slim", digest=f"sha256:{'0' * 64}",
    distro="debian", suite="bookworm", python="3.11",
)  # fmt: skip
SILENT = UserError("the network does not reach a server - check DNS")


class FakeEngine:
    """Remembers what it is asked; knows some images and, perhaps, a registry."""

    def __init__(self, *images: str, registry: UserError | None = None) -> None:
        self.images = set(images)
        self.registry = registry
        self.asked: list[str] = []

    def image(self, tag: str) -> object | None:
        return tag if tag in self.images else None

    def registry_has(self, reference: str, timeout: float = 600.0) -> None:
        self.asked.append(f"{reference} in {timeout:.0f} s")
        if self.registry:
            raise self.registry

    def import_base(self, path: Path, tag: str) -> None:
        self.asked.append(f"import {path.name}")
        assert path.exists()
        self.images.add(tag)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, on a Debian host, with an mmdebstrap that writes its environment."""
    monkeypatch.setattr(bases, "ROOT", tmp_path)
    monkeypatch.setattr(bases, "CACHE", tmp_path / ".cache/base")
    monkeypatch.setattr(archive, "host", lambda: archive.Host(distro="debian", suite="bookworm"))
    monkeypatch.setattr(archive, "sources", lambda distro, suite: [f"deb http://a.example/{distro} {suite} main"])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path / ".cache/base"


def mmdebstrap(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A fake mmdebstrap on the PATH; `$tar` is the file it should write."""
    program = folder / "bin/mmdebstrap"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nfor word; do case $word in *.tar) tar=$word;; esac; done\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def resolve(engine: FakeEngine, choice: str) -> tuple[str, list[str]]:
    """The image for a choice, and what was said."""
    said: list[str] = []
    found = bases.resolve(cast("Engine", engine), BASE, choice, epoch=1, say=said.append)
    return found, said


def test_auto_takes_the_registry_when_it_answers() -> None:
    """Within the few seconds it is given, and by digest."""
    engine = FakeEngine()

    assert resolve(engine, "auto") == (f"debian:bookworm-slim@{BASE.digest}", [])
    assert engine.asked == [f"{BASE.image} in {PROBE_S:.0f} s"]
    assert PROBE_S <= 5


def test_auto_takes_an_image_that_is_there() -> None:
    """Without asking anyone."""
    engine = FakeEngine(BASE.image)

    assert resolve(engine, "auto") == (BASE.image, [])
    assert engine.asked == []


def test_auto_says_why_it_takes_packages_and_remembers(cache: Path) -> None:
    """A silent registry costs its seconds once; an old memory is no reason."""
    engine = FakeEngine(bases.tag(BASE), registry=SILENT)
    said = ["base: debian12 from packages, since the registry did not answer (the network does not reach a server)"]

    assert resolve(engine, "auto") == ("hermitcrab-base:debian12", said)
    assert resolve(engine, "auto") == ("hermitcrab-base:debian12", said)
    assert len(engine.asked) == 1

    old = time.time() - bases.SILENCE_S - 1
    os.utime(cache / "registry-silent", (old, old))
    engine.registry = None
    assert resolve(engine, "auto") == (BASE.image, [])
    assert not (cache / "registry-silent").exists()


def test_registry_never_falls_back(cache: Path) -> None:
    """What the user asked for, or an error; nor does it trust the memory of `auto`."""
    cache.mkdir(parents=True)
    (cache / "registry-silent").write_text("silent a moment ago")

    with pytest.raises(UserError, match="the network does not reach a server"):
        resolve(FakeEngine(bases.tag(BASE), registry=SILENT), "registry")
    assert resolve(FakeEngine(), "registry") == (BASE.image, [])
    assert resolve(FakeEngine(BASE.image, registry=SILENT), "registry") == (BASE.image, [])


def test_packages_never_asks_the_registry(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Made once, imported once per engine, and found the next time."""
    mmdebstrap(tmp_path, monkeypatch, 'echo made > "$tar"')
    first, second = FakeEngine(registry=SILENT), FakeEngine(registry=SILENT)

    for engine in (first, first, second):
        assert resolve(engine, "packages") == ("hermitcrab-base:debian12", [])
    assert first.asked == second.asked == ["import debian12.tar"]
    assert capsys.readouterr().out.count("making debian12") == 1
    assert bases.tarball(BASE) == cache / "debian12.tar"


@pytest.mark.parametrize("choice", ["debian:trixie", "r.example:5000/own/base@sha256:00", "ubuntu"])
def test_any_reference_is_taken_as_it_is(choice: str) -> None:
    """The user's own base; the build says when it is not there."""
    engine = FakeEngine()

    assert resolve(engine, choice) == (choice, [])
    assert engine.asked == []


@pytest.mark.parametrize("choice", ["", "-x", "--base", "two words", "tab\there", "débian"])
def test_what_is_no_reference_is_refused(choice: str) -> None:
    """Wrong input: exit 2, with what is valid."""
    with pytest.raises(UserError, match="auto, registry, packages") as caught:
        resolve(FakeEngine(), choice)
    assert caught.value.code == 2


def test_make_is_slim_and_dated(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No manuals; licences stay; the date is the matrix's; no password of the host's sources."""
    asked = tmp_path / "asked"
    mmdebstrap(tmp_path, monkeypatch, f'printf "%s\\n" "$SOURCE_DATE_EPOCH" "$@" > {asked}; echo tar > "$tar"')

    assert bases.make(BASE, bases.tarball(BASE), epoch=42) == cache / "debian12.tar"
    epoch, *words = asked.read_text().splitlines()
    assert epoch == "42"
    assert {"--mode=root", "--variant=apt", "--dpkgopt=path-exclude=/usr/share/man/*"} <= set(words)
    assert words.index("--dpkgopt=path-exclude=/usr/share/doc/*") < words.index(
        "--dpkgopt=path-include=/usr/share/doc/*/copyright"
    )
    assert words[-3] == "bookworm"
    assert Path(words[-1]).read_text() == "deb http://a.example/debian bookworm main\n"


def test_the_hooks_forget_the_host(tmp_path: Path) -> None:
    """Run as mmdebstrap runs them: resolv.conf and host name go, and the password in an address."""
    lists = tmp_path / "etc/apt/sources.list.d"
    lists.mkdir(parents=True)
    (lists / "0000.list").write_text("deb [trusted=yes] http://user:secret@a.example/debian bookworm main\n")
    for name in ("resolv.conf", "hostname"):
        (tmp_path / "etc" / name).touch()

    for hook in bases.CLEAN:
        subprocess.run(["sh", "-c", hook, "exec", str(tmp_path)], check=True)
    assert (lists / "0000.list").read_text() == "deb [trusted=yes] http://a.example/debian bookworm main\n"
    assert [path.name for path in (tmp_path / "etc").iterdir()] == ["apt"]


def test_make_that_fails_leaves_no_half_base(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line of cause, and nothing that could be taken for a base."""
    mmdebstrap(tmp_path, monkeypatch, 'echo half > "$tar"; echo "E: write: No space left on device" >&2; exit 25')

    with pytest.raises(UserError, match="the disk is full"):
        bases.make(BASE, bases.tarball(BASE), epoch=1)
    assert list(cache.glob("*.tar")) == []


def test_make_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before anything is fetched."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(archive, "sources", lambda *_: pytest.fail("too late"))

    with pytest.raises(UserError, match=r"needs root - run it as root, or use --base registry"):
        bases.make(BASE, bases.tarball(BASE), epoch=1)


def test_mmdebstrap_comes_from_the_archive_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpacked into the cache once, with an environment in which it finds its Perl and libraries."""
    fetched: list[object] = []

    def fetch(cache: Path, lines: list[str], names: list[str], *, resolve: bool) -> list[Path]:
        fetched.append((lines, names, resolve))
        cache.mkdir(parents=True)
        return []

    def unpack(_: list[Path], root: Path) -> None:
        (root / "usr/share/perl/5.36").mkdir(parents=True)
        (root / "usr/lib/x86_64-linux-gnu/perl5/5.36").mkdir(parents=True)

    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(archive, "fetch", fetch)
    monkeypatch.setattr(archive, "unpack", unpack)
    monkeypatch.setenv("PATH", "/usr/bin")

    root = tmp_path / ".cache/mmdebstrap"
    for _ in range(2):
        found = bases._mmdebstrap()
        assert found["PATH"] == f"{root}/usr/bin:{root}/usr/sbin:/usr/bin"
        assert found["PERL5LIB"] == (
            f"{root}/usr/share/perl5:{root}/usr/share/perl/5.36:{root}/usr/lib/x86_64-linux-gnu/perl5/5.36"
        )
        assert found["LD_LIBRARY_PATH"] == f"{root}/usr/lib/x86_64-linux-gnu"
    assert fetched == [(["deb http://a.example/debian bookworm main"], ["mmdebstrap"], True)]
    assert not (tmp_path / ".cache/apt").exists()


def test_an_installed_mmdebstrap_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is, in the user's environment."""
    mmdebstrap(tmp_path, monkeypatch, "")

    assert bases._mmdebstrap() == dict(os.environ)


def test_digest_tells_two_bases_apart(tmp_path: Path) -> None:
    """Same bytes, same digest."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"a")
    two.write_bytes(b"a")
    assert bases.digest(one) == bases.digest(two)
    two.write_bytes(b"b")
    assert bases.digest(one) != bases.digest(two)
