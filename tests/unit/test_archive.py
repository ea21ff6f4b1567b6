"""The package archive: other suites at the host's own addresses, and no trace on the host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hermitcrab.build import archive
from hermitcrab.errors import UserError

RELEASE = 'PRETTY_NAME="Debian GNU/Linux 12"\nID=debian\nVERSION_CODENAME=bookworm\n'
KEY = "/usr/share/keyrings/debian-archive-keyring.gpg"


def host(root: Path, files: dict[str, str], release: str = RELEASE) -> Path:
    """A root filesystem with apt sources, by their names below /etc/apt."""
    for name, text in {"../os-release": release, **files}.items():
        path = root / "etc/apt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def program(folder: Path, name: str, body: str) -> None:
    """A fake command."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def refusal(distro: str, suite: str, root: Path) -> str:
    """The one line with which sources are refused."""
    with pytest.raises(UserError) as caught:
        archive.sources(distro, suite, root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_host_is_read_from_os_release(tmp_path: Path) -> None:
    """Quoted or bare, with or without a code name."""
    assert archive.host(host(tmp_path, {})) == archive.Host(distro="debian", suite="bookworm")
    assert archive.host(tmp_path / "nothing") == archive.Host(distro="", suite="")
    quoted = host(tmp_path / "b", {}, 'ID="ubuntu"\nVERSION_CODENAME="noble"\n')
    assert archive.host(quoted) == archive.Host(distro="ubuntu", suite="noble")


def test_one_line_sources_lead_to_another_suite(tmp_path: Path) -> None:
    """Every pocket at its own address; comments, sources and foreign suites are left out."""
    text = f"""\
# deb http://old.example/debian bookworm main
deb [arch=amd64 signed-by={KEY}] http://a.example/debian bookworm main contrib # ours
deb-src http://a.example/debian bookworm main
deb http://a.example/debian bookworm-updates main
  deb http://s.example/security bookworm-security main
deb http://b.example/debian bookworm-backports main
deb http://flat.example/tools ./
"""
    root = host(tmp_path, {"sources.list": text})

    assert archive.sources("debian", "trixie", root) == [
        f"deb [signed-by={KEY}] http://a.example/debian trixie main contrib",
        "deb http://a.example/debian trixie-updates main",
        "deb http://s.example/security trixie-security main",
    ]


def test_deb822_sources_lead_to_another_suite(tmp_path: Path) -> None:
    """A comment within a stanza, several URIs and suites, folded fields; disabled stanzas say nothing."""
    text = f"""\
# the main one

Types: deb deb-src
# http://snapshot.example/20250520
URIs: http://a.example/debian
 http://b.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: {KEY}

Types: deb
Uris: http://s.example/security
Suites: bookworm-security
Components: main non-free-firmware
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEY865UxYJKwYBBAHaRw8BAQdAd7Z0srwuhlB6JKFkcf4HU4SSS

Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
Enabled: No

Types: deb-src
URIs: http://src.example/debian
Suites: bookworm
Components: main
"""
    root = host(tmp_path, {"sources.list.d/debian.sources": text, "sources.list.d/x.sources.bak": text})
    with (root / "etc/apt/sources.list.d/debian.sources").open("ab") as file:
        file.write("# für alle\n".encode("latin-1"))

    assert archive.sources("debian", "trixie", root) == [
        f"deb [signed-by={KEY}] http://a.example/debian trixie main",
        f"deb [signed-by={KEY}] http://b.example/debian trixie main",
        f"deb [signed-by={KEY}] http://a.example/debian trixie-updates main",
        f"deb [signed-by={KEY}] http://b.example/debian trixie-updates main",
        "deb http://s.example/security trixie-security main non-free-firmware",
    ]


def test_only_a_keyring_that_a_base_has_too_is_named(tmp_path: Path) -> None:
    """A key of the host's own would not be found where the line is used."""
    one = "deb [signed-by=/etc/apt/keyrings/mirror.gpg] http://a.example/debian bookworm main\n"
    two = "Types: deb\nURIs: http://b.example/debian\nSuites: bookworm\nComponents: main\nSigned-By: /srv/key.asc\n"
    root = host(tmp_path, {"sources.list.d/a.list": one, "sources.list.d/b.sources": two})

    assert archive.sources("debian", "bookworm", root) == [
        "deb http://a.example/debian bookworm main",
        "deb http://b.example/debian bookworm main",
    ]


def test_another_distribution_is_refused(tmp_path: Path) -> None:
    """Ubuntu's packages are not in Debian's archive, and the way out is named."""
    said = refusal("ubuntu", "jammy", root=host(tmp_path, {}))

    assert "ubuntu jammy can only be made on ubuntu, and this is debian" in said
    assert "--base registry" in said
    assert "this is unknown" in refusal("debian", "bookworm", root=tmp_path / "nothing")


def test_empty_sources_are_refused(tmp_path: Path) -> None:
    """No address is invented where the host names none."""
    root = host(tmp_path, {"sources.list": "deb http://a.example/debian sid main\n"})

    assert "name no archive of bookworm" in refusal("debian", "bookworm", root=root)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file into which a fake apt-get writes how it was called."""
    log = tmp_path / "asked"
    program(
        tmp_path / "bin", "apt-get", f'echo "$PWD: $*" >> {log}; case "$*" in *download*) : > tool_1_all.deb;; esac'
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return log


def test_fetch_leaves_the_host_alone(asked: Path, tmp_path: Path) -> None:
    """Lists, caches and sources are its own, and the host's hooks do not run."""
    cache = tmp_path / "apt"

    found = archive.fetch(cache, ["deb http://a.example/debian trixie main"], ["tool/trixie"])

    assert found == [cache / "archives/tool_1_all.deb"]
    assert (cache / "sources.list").read_text() == "deb http://a.example/debian trixie main\n"
    assert (cache / "apt.conf").read_text() == "#clear APT::Update;\n"
    update, download = asked.read_text().splitlines()
    for call in (update, download):
        assert call.startswith(f"{cache / 'archives'}: -c {cache / 'apt.conf'} ")
        for option in (
            f"Dir::Etc::SourceList={cache / 'sources.list'}",
            "Dir::Etc::SourceParts=/dev/null",
            f"Dir::State::Lists={cache / 'lists'}",
            f"Dir::Cache={cache}",
            f"Dir::Cache::Archives={cache / 'archives'}",
            "Debug::NoLocking=true",
        ):
            assert f" -o {option} " in call
        assert "/etc/" not in call and "/var/" not in call
    assert update.endswith(" update -qq")
    assert download.endswith(" download -qq tool/trixie")


def test_fetch_takes_dependencies_only_when_asked(asked: Path, tmp_path: Path) -> None:
    """With ``resolve`` apt downloads what the host lacks; it installs nothing."""
    archive.fetch(tmp_path / "apt", [], ["tool"], resolve=True)

    assert asked.read_text().splitlines()[1].endswith(" install -y --download-only --no-install-recommends -qq tool")


def test_fetch_forgets_what_an_earlier_one_left(asked: Path, tmp_path: Path) -> None:
    """An old file in the cache is not taken for one that was asked for."""
    archives = tmp_path / "apt/archives"
    archives.mkdir(parents=True)
    (archives / "old_1_all.deb").touch()

    assert [path.name for path in archive.fetch(tmp_path / "apt", [], ["tool"])] == ["tool_1_all.deb"]
    assert asked.exists()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo 'W: slow' >&2; echo 'E: Failed to fetch x' >&2; echo 'E: more' >&2; exit 100", "E: Failed to fetch x"),
        ("echo only this; exit 100", "only this"),
        ("exit 100", "no word of why"),
        ("echo 'E: Failed http://me:word@a.example/x' >&2; exit 100", "E: Failed http://***@a.example/x"),
    ],
)
def test_an_error_of_apt_is_one_line(body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first error, and what to look at."""
    program(tmp_path / "bin", "apt-get", body)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    with pytest.raises(UserError) as caught:
        archive.fetch(tmp_path / "apt", [], ["tool"])
    assert str(caught.value) == f"apt-get failed: {said} - check the network and this host's apt sources"


def test_unpack_replaces_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All packages come into one root; nothing of an older one stays."""
    program(tmp_path / "bin", "dpkg-deb", 'cp "$2" "$3/"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    debs = [tmp_path / "a.deb", tmp_path / "b.deb"]
    for deb in debs:
        deb.touch()
    root = tmp_path / "cache/root"
    root.mkdir(parents=True)
    (root / "old").touch()

    archive.unpack(debs, root)

    assert sorted(path.name for path in root.iterdir()) == ["a.deb", "b.deb"]
    assert [path.name for path in root.parent.iterdir()] == ["root"]


def test_unpack_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that fails leaves no root that looks complete."""
    program(tmp_path / "bin", "dpkg-deb", 'case "$2" in *b.deb) echo "dpkg-deb: error: short" >&2; exit 2;; esac')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    with pytest.raises(UserError, match="dpkg-deb: error: short"):
        archive.unpack([tmp_path / "a.deb", tmp_path / "b.deb"], tmp_path / "root")
    assert not (tmp_path / "root").exists()
