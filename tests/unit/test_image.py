"""An image's life: what the build is given, and that half an image is never left or sent."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zstandard
from docker.errors import APIError

from hermitcrab import matrix as matrices
from hermitcrab.build import base as bases
from hermitcrab.build import compare, image, render
from hermitcrab.build.engine import Engine
from hermitcrab.errors import UserError

MATRIX = matrices.load()
COMBO = matrices.select(MATRIX, "12.1")
TAG = image.tag(COMBO)


class FakeEngine:
    """Keeps images by tag, and every build it was asked for with the contents of its secrets."""

    def __init__(self, *, machine: str = "amd64", ids: tuple[str, ...] = ("sha256:11", "sha256:22")) -> None:
        self.images = {TAG: "sha256:00"}
        self.ids = iter(ids)
        self.machine = machine
        self.data_root: Path | None = Path("/nonexistent")
        self.builds: list[dict[str, Any]] = []
        self.secrets: list[dict[str, str]] = []
        self.asked: list[str] = []
        self.fault: Exception | None = None

    def check_platform(self, platform: str) -> None:
        self.asked.append(f"check {platform}")

    def image(self, tag: str) -> SimpleNamespace | None:
        attributes = {"Os": "linux", "Architecture": self.machine}
        return SimpleNamespace(id=self.images[tag], attrs=attributes, tag=self.name) if tag in self.images else None

    def name(self, repository: str, tag: str) -> bool:
        if repository != repository.lower():
            raise APIError("x", explanation="invalid reference format: repository name must be lowercase")
        self.asked.append(f"name {repository}:{tag}")
        return True

    def build(self, folder: Path, *, tag: str, secrets: Mapping[str, Path], **given: Any) -> None:
        self.secrets.append({name: path.read_text() for name, path in secrets.items()})
        self.builds.append({"folder": folder, "tag": tag, "secrets": dict(secrets), **given})
        self.images[tag] = next(self.ids)

    def save(self, _: str) -> Iterator[bytes]:
        yield b"one "
        if self.fault:
            raise self.fault
        yield b"two"

    def push(self, tag: str) -> str:
        self.asked.append(f"push {tag}")
        return "sha256:dd"

    def remove(self, tag: str) -> None:
        self.asked.append(f"remove {tag}")
        self.images.pop(tag, None)


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No base to make, no files to render, and nothing of this machine's network settings."""
    for name in (*image.PROXIES, *image.CA_SETTINGS, *image.INDEX_SETTINGS):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(image, "CA_SYSTEM", str(tmp_path / "system.crt"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(render, "check", lambda *_: None)
    monkeypatch.setattr(bases, "resolve", lambda *_, **__: "the-base")
    monkeypatch.setattr(bases, "CACHE", tmp_path / "base")


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not ask pip."""
    monkeypatch.setattr(image, "_index", lambda: "")


def build(engine: FakeEngine, **given: Any) -> str:
    """Build our combo."""
    return image.build(cast("Engine", engine), MATRIX, COMBO, **given)


@pytest.mark.usefixtures("no_index")
def test_a_build_gets_base_epoch_and_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """And gives the ID of what came of it, under the combo's tag."""
    monkeypatch.setattr(image, "revision", lambda: "abc-dirty")
    engine = FakeEngine()

    assert build(engine) == "sha256:11"
    assert engine.asked == ["check linux/amd64"]
    (asked,) = engine.builds
    assert asked["folder"] == render.IMAGES / COMBO.id
    assert asked["tag"] == TAG
    assert asked["arguments"] == {
        "BASE": "the-base",
        "SOURCE_DATE_EPOCH": str(MATRIX.epoch),
        "REVISION": "abc-dirty",
    }
    assert asked["cache"] is True
    assert asked["secrets"] == {}


@pytest.mark.usefixtures("no_index")
def test_a_stale_folder_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed and what the matrix says must be one."""

    def stale(*_: object) -> None:
        raise UserError("images/x/Dockerfile is stale")

    monkeypatch.setattr(render, "check", stale)
    engine = FakeEngine()

    with pytest.raises(UserError, match="is stale"):
        build(engine)
    assert engine.builds == []


@pytest.mark.parametrize("settings", [image.CA_SETTINGS, image.CA_SETTINGS[1:], image.CA_SETTINGS[3:], ()])
@pytest.mark.usefixtures("no_index")
def test_the_ca_bundle_of_the_host_is_a_secret(
    settings: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first setting that names a file, else the system's; nothing of it is an argument."""
    for name in (*settings, "system.crt"):
        (tmp_path / name).write_text(f"the PEM of {name}")
        if name != "system.crt":
            monkeypatch.setenv(name, str(tmp_path / name))
    engine = FakeEngine()

    build(engine)

    assert engine.secrets == [{"ca": f"the PEM of {[*settings, 'system.crt'][0]}"}]
    assert "PEM" not in str(engine.builds)
    assert str(tmp_path) not in str(engine.builds[0]["arguments"])


@pytest.mark.usefixtures("no_index")
def test_a_setting_without_a_file_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder or a lost file must not cost the bundle that another setting names."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "lost"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path))
    (tmp_path / "pip.crt").write_text("pip's")
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "pip.crt"))
    engine = FakeEngine()

    build(engine)

    assert engine.secrets == [{"ca": "pip's"}]


@pytest.mark.usefixtures("no_index")
def test_c27_one_more_authority_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C27: the setting that a box has reaches the build, too: beside the bundle, and by the same secret."""
    for name in ("own", "extra"):
        (tmp_path / name).write_text(f"the PEM of {name}")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "own"))
    monkeypatch.setenv("HERMITCRAB_CA", str(tmp_path / "extra"))
    engine = FakeEngine()

    build(engine)

    assert engine.secrets == [{"ca": "the PEM of own\nthe PEM of extra"}]
    assert (tmp_path / "own").read_text() == "the PEM of own"
    monkeypatch.setenv("HERMITCRAB_CA", str(tmp_path / "lost"))
    with pytest.raises(UserError, match="name a file of certificates"):
        build(FakeEngine())


@pytest.mark.parametrize("setting", image.INDEX_SETTINGS)
def test_the_index_of_the_user_is_a_secret(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold a password: it comes by file, and the file is gone after the build."""
    monkeypatch.setenv(setting, "https://user:hunter2@index.example/simple")
    engine = FakeEngine()

    build(engine)

    assert engine.secrets == [{"index": "https://user:hunter2@index.example/simple"}]
    assert "hunter2" not in str(engine.builds)
    path = engine.builds[0]["secrets"]["index"]
    assert not path.exists()


def test_pip_s_own_setting_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From whichever of pip's files it stands in; a setting of the environment comes first."""
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://index.example/simple\n")
    assert image._index() == "https://index.example/simple"

    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uv.example/simple")
    assert image._index() == "https://uv.example/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://pip.example/simple")
    assert image._index() == "https://pip.example/simple"


def test_no_setting_is_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pip has nothing to say: its error is not taken for an address."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "ERROR: No such key\n", "")

    monkeypatch.setattr(subprocess, "run", run)

    assert image._index() == ""


@pytest.mark.usefixtures("no_index")
def test_proxies_are_passed_on_as_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """BuildKit knows both spellings as its own arguments and keeps them out of the image."""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "localhost")
    monkeypatch.setenv("HTTP_PROXY", "")
    engine = FakeEngine()

    build(engine)

    given = engine.builds[0]["arguments"]
    assert {name: given[name] for name in given if "proxy" in name.lower()} == {
        "HTTPS_PROXY": "http://proxy.example:3128",
        "no_proxy": "localhost",
    }


@pytest.mark.usefixtures("no_index")
def test_a_build_that_cannot_fit_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both figures are named; an engine on another machine's disk is given the benefit of the doubt."""
    engine = FakeEngine(ids=("sha256:11", "sha256:11", "sha256:11"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3e9))

    build(engine)
    engine.data_root = None
    build(engine)
    engine.data_root = tmp_path
    build(engine)  # nothing changed: what it needs is there
    engine.images.clear()
    with pytest.raises(UserError, match=rf"needs {COMBO.disk_gb * image.ROOM:.0f} GB on the disk of .*, 3 GB are free"):
        build(engine)
    assert len(engine.builds) == 3


@pytest.mark.usefixtures("no_index")
def test_verify_of_two_equal_builds() -> None:
    """Both without cache; the second tag goes again."""
    engine = FakeEngine(ids=("sha256:11", "sha256:11"))

    assert image.verify(cast("Engine", engine), MATRIX, COMBO) == "sha256:11"
    assert [(asked["tag"], asked["cache"]) for asked in engine.builds] == [(TAG, False), (f"{TAG}-again", False)]
    assert f"{TAG}-again" not in engine.images


@pytest.mark.usefixtures("no_index")
def test_verify_of_two_different_builds_names_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by comparing both images, which stay for a closer look."""
    compared: list[tuple[str, ...]] = []

    def images(_: object, *names: str) -> list[str]:
        compared.append(names)
        return ["etc/motd (mtime)", "and 3 more"]

    monkeypatch.setattr(compare, "images", images)
    engine = FakeEngine(ids=("sha256:11", "sha256:22"))

    with pytest.raises(UserError, match=rf"^two builds of {COMBO.id} differ: etc/motd \(mtime\); and 3 more$"):
        image.verify(cast("Engine", engine), MATRIX, COMBO)
    assert compared == [(TAG, f"{TAG}-again")]
    assert f"{TAG}-again" in engine.images


@pytest.mark.parametrize("second", ["same", "other"])
@pytest.mark.usefixtures("no_index")
def test_verify_makes_a_base_from_packages_anew(second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base is part of the proof; when it differs, it is what is named."""
    tarball = bases.tarball(COMBO.base)
    tarball.parent.mkdir()
    tarball.write_text("of last month")
    engine = FakeEngine(ids=("sha256:11", "sha256:11" if second == "same" else "sha256:22"))
    engine.images[bases.tag(COMBO.base)] = "sha256:ba"

    def resolve(*_: object, **__: object) -> str:
        if not tarball.exists():
            tarball.write_text("first")
            engine.images[bases.tag(COMBO.base)] = "sha256:bb"
        return bases.tag(COMBO.base)

    monkeypatch.setattr(bases, "resolve", resolve)

    def make(_: object, target: Path, *, epoch: int) -> Path:
        assert epoch == MATRIX.epoch
        target.write_text(second)
        return target

    monkeypatch.setattr(bases, "make", make)
    monkeypatch.setattr(compare, "files", lambda old, new: [f"{old.read_text()} and {new.read_text()}"])

    if second == "same":
        image.verify(cast("Engine", engine), MATRIX, COMBO)
    else:
        with pytest.raises(UserError, match="differ: first and other"):
            image.verify(cast("Engine", engine), MATRIX, COMBO)
    assert bases.tag(COMBO.base) not in engine.images
    assert tarball.read_text() == second
    assert [path.name for path in tarball.parent.iterdir()] == [tarball.name]


def test_save_is_what_zstd_reads(tmp_path: Path) -> None:
    """Whole under its name, with its bytes counted."""
    target = tmp_path / "image.tar.zst"

    written = image.save(cast("Engine", FakeEngine()), MATRIX, COMBO, target)

    assert zstandard.ZstdDecompressor().stream_reader(target.read_bytes()).read() == b"one two"
    assert written == target.stat().st_size
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("fault", [UserError("the engine stopped answering"), KeyboardInterrupt()])
def test_a_save_that_fails_leaves_nothing(fault: BaseException, tmp_path: Path) -> None:
    """Neither half a file nor a changed one."""
    target = tmp_path / "image.tar.zst"
    target.write_text("the last one")
    engine = FakeEngine()
    engine.fault = cast("Exception", fault)

    with pytest.raises(type(fault)):
        image.save(cast("Engine", engine), MATRIX, COMBO, target)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["the last one"]


def test_a_full_disk_is_one_line() -> None:
    """The cause, and the way out."""
    with pytest.raises(UserError, match=r"cannot write /nonexistent/x: No such file or directory - .* --to"):
        image.save(cast("Engine", FakeEngine()), MATRIX, COMBO, Path("/nonexistent/x"))


def test_save_goes_through_a_link_and_into_nothing_but_a_file(tmp_path: Path) -> None:
    """A rename would put the image in the place of the link, or of /dev/null."""
    real = tmp_path / "far/image"
    real.parent.mkdir()
    (tmp_path / "link").symlink_to(real)
    os.mkfifo(tmp_path / "pipe")

    image.save(cast("Engine", FakeEngine()), MATRIX, COMBO, tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and real.is_file()
    for name in ("pipe", "far"):
        with pytest.raises(UserError, match=r"it is no file; give") as caught:
            image.save(cast("Engine", FakeEngine()), MATRIX, COMBO, tmp_path / name)
        assert caught.value.code == 2
    assert (tmp_path / "pipe").is_fifo()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """The disk fills up in the middle."""
    (tmp_path / f"x.{os.getpid()}.part").symlink_to("/dev/full")

    with pytest.raises(UserError, match="No space left on device"):
        image.save(cast("Engine", FakeEngine()), MATRIX, COMBO, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_an_image_of_the_wrong_architecture_goes_nowhere(tmp_path: Path) -> None:
    """Refused before a byte is written or sent."""
    engine = FakeEngine(machine="arm64")

    with pytest.raises(UserError, match="is linux/arm64, not linux/amd64"):
        image.save(cast("Engine", engine), MATRIX, COMBO, tmp_path / "x")
    with pytest.raises(UserError, match="is linux/arm64, not linux/amd64"):
        image.push(cast("Engine", engine), MATRIX, COMBO, "r.example/x")
    assert list(tmp_path.iterdir()) == []
    assert engine.asked == []


@pytest.mark.parametrize("repository", ["r.example/own/crab", "r.example:5000/crab", "crab"])
def test_push_tags_with_the_combo(repository: str) -> None:
    """And gives the name one can pull by digest."""
    engine = FakeEngine()

    assert image.push(cast("Engine", engine), MATRIX, COMBO, repository) == f"{repository}@sha256:dd"
    assert engine.asked == [f"name {repository}:{COMBO.id}", f"push {repository}:{COMBO.id}"]


@pytest.mark.parametrize("repository", ["", "r.example/crab:latest", "crab:1", "localhost:5000"])
def test_push_refuses_what_is_no_repository(repository: str) -> None:
    """The combo is the tag: one of the user's own is wrong input."""
    engine = FakeEngine()

    with pytest.raises(UserError, match="is no repository") as caught:
        image.push(cast("Engine", engine), MATRIX, COMBO, repository)
    assert caught.value.code == 2
    assert engine.asked == []


def test_a_name_the_engine_refuses_is_one_line() -> None:
    """It knows best which names are none."""
    with pytest.raises(UserError, match="must be lowercase"):
        image.push(cast("Engine", FakeEngine()), MATRIX, COMBO, "r.example/Crab")


def test_an_image_that_was_never_built_says_how() -> None:
    """The command that makes it."""
    engine = FakeEngine()
    engine.images = {}

    with pytest.raises(
        UserError, match=r"^no image hermitcrab:cuda12.1-\S+ here - build it: ./invoke build --cuda 12.1$"
    ):
        image.save(cast("Engine", engine), MATRIX, COMBO, Path("x"))


def test_the_revision_tells_a_changed_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit, marked when there is more than the commit; a tag has no say."""
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{name}_NAME", "x")
        monkeypatch.setenv(f"{name}_EMAIL", "x@example.org")
    monkeypatch.setattr(image, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert image.revision() == "unknown"

    (tmp_path / "file").write_text("a")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "v1"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    clean = image.revision()
    assert len(clean) == 40
    (tmp_path / "file").write_text("b")
    assert image.revision() == f"{clean}-dirty"

    monkeypatch.setenv("PATH", str(tmp_path))
    assert image.revision() == "unknown"


def test_every_combo_names_its_own_image() -> None:
    """No two share a tag."""
    other = replace(COMBO, id="cuda1.0-torch1.0.0-py310")

    assert image.tag(other) == "hermitcrab:cuda1.0-torch1.0.0-py310"
    assert len({image.tag(combo) for combo in MATRIX.combos}) == len(MATRIX.combos)
