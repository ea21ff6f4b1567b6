"""Claim: wherever a run is cut off, the next one knows what is its own, and takes nothing unfinished for whole."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from hermitcrab.box import files
from hermitcrab.box.bootstrap import environment, mirrors, own, pip, wheels
from hermitcrab.box.bootstrap.environment import Fetch, Where
from hermitcrab.box.bootstrap.pick import Choice
from hermitcrab.box.bootstrap.pins import Row, Tool
from hermitcrab.box.bootstrap.run import Places, Run
from hermitcrab.box.check.build import MANIFEST
from hermitcrab.errors import UserError

ROW: Final = Row("one", "12.1", "2.4.1", "525", (80,), (), 5.0, "", {"3.11": ("pip==1",)}, {})
CHANGES: Final = [(os, name) for name in ("unlink", "rmdir", "mkdir", "replace", "rename")] + [(shutil, "copyfileobj")]


class CutOff(BaseException):
    """The machine went off."""


class Cut:
    """Does a work again and again: cut off before its first change of the disk, its second, and so on to its end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left = 0
        for module, name in CHANGES:
            monkeypatch.setattr(module, name, self._counted(getattr(module, name)))

    def __call__(self, work: Callable[[], object]) -> Iterator[None]:
        """Yield after each cut."""
        for moment in itertools.count(1):
            self._left = moment
            try:
                work()
            except CutOff:
                yield
            else:
                assert moment > 3  # or nothing was cut
                return

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*words: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                raise CutOff
            return real(*words, **options)

        return change


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Cut:
    """The machine goes off at any moment."""
    return Cut(monkeypatch)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a disk that others keep busy."""
    monkeypatch.setattr(files, "sync", lambda _: None)


def fill(folder: Path) -> None:
    """A small environment, whole."""
    for name in (own.MARK, MANIFEST, "bin/python", "lib/a/b", "pyvenv.cfg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / "lib64").symlink_to("lib")


def test_what_is_not_ours_is_not_deleted(tmp_path: Path) -> None:
    """A venv or a file of somebody else's at our place stops the run; nothing, an empty folder and our own do not."""
    theirs, ours = tmp_path / "venv", tmp_path / "ours"
    (theirs / "bin").mkdir(parents=True)
    (tmp_path / "file").touch()
    for folder in (theirs, tmp_path / "file"):
        for work in (own.refuse_foreign, own.claim, own.remove):
            with pytest.raises(UserError, match="not of hermitcrab's making: move it away"):
                work(folder)
    assert (theirs / "bin").is_dir()
    own.claim(ours)
    own.claim(ours)
    (ours / own.MARK).unlink()
    own.claim(ours)
    own.remove(ours)
    own.remove(ours)
    assert not ours.exists()


@pytest.mark.parametrize("work", [own.claim, own.remove], ids=["claim", "remove"])
def test_a_folder_stays_ours(work: Callable[[Path], None], cut: Cut, tmp_path: Path) -> None:
    """Emptied or removed in part it is ours, and not whole; a second try ends well."""
    folder = tmp_path / "venv"
    fill(folder)
    for _ in cut(lambda: work(folder)):
        own.claim(folder)
        assert [path.name for path in folder.iterdir()] == [own.MARK]
        fill(folder)


def test_a_folder_is_ours_from_its_first_moment(cut: Cut, tmp_path: Path) -> None:
    """It and those above it may be there, and nothing else, before it has its mark."""
    for _ in cut(lambda: own.claim(tmp_path / "a/b/c/d/venv")):
        own.refuse_foreign(tmp_path / "a/b/c/d/venv")
        shutil.rmtree(tmp_path / "a", ignore_errors=True)


def test_whole_is_the_first_to_go(cut: Cut, tmp_path: Path) -> None:
    """Nothing of an environment is missing while its manifest is there."""
    folder = tmp_path / "venv"
    fill(folder)
    names = sorted(folder.rglob("*"))
    for _ in cut(lambda: own.claim(folder)):
        assert not (folder / MANIFEST).exists() or sorted(folder.rglob("*")) == names
        shutil.rmtree(folder)
        fill(folder)


DATA: Final = wheels.pack({"hermitcrab/a.py": b"", "hermitcrab/b/c.py": b"1", f"{wheels.INFO}/METADATA": b"m"})
OLDER: Final = wheels.pack({"hermitcrab/a.py": b"2", "hermitcrab/d.py": b"", f"{wheels.INFO}/METADATA": b"o"})


def test_a_wheel_is_whole_or_not_there(cut: Cut, tmp_path: Path) -> None:
    """In the place of another: cut off it is not taken for installed; the next try leaves nothing of either."""
    site, scripts = tmp_path / "site", tmp_path / "bin"
    site.mkdir()
    (site / "theirs.py").touch()

    def put(data: bytes) -> None:
        wheels.install(data, site, scripts, "/bin/python3")

    for _ in cut(lambda: put(DATA)):
        assert not wheels.is_installed(DATA, site) or (scripts / "crab").exists()
        put(DATA)
        assert wheels.is_installed(DATA, site)
        put(OLDER)
        assert not (site / "hermitcrab/b").exists()
    assert wheels.is_installed(DATA, site)


def test_taken_out_in_part_it_is_not_installed(cut: Cut, tmp_path: Path) -> None:
    """And can still be taken out, to the last file."""
    site, scripts = tmp_path / "site", tmp_path / "bin"
    wheels.install(DATA, site, scripts, "/bin/python3")
    names = sorted(site.rglob("*"))
    for _ in cut(lambda: wheels.remove(site)):
        assert not wheels.is_installed(DATA, site) or sorted(site.rglob("*")) == names
        wheels.remove(site)
        assert [*site.iterdir(), *scripts.iterdir()] == []
        wheels.install(DATA, site, scripts, "/bin/python3")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of a plain user in a home of the test's own."""
    (tmp_path / "work").mkdir()
    places = Places(tmp_path, tmp_path / "settings", tmp_path / "venv")
    return Run(False, places, tmp_path / "work", {"PATH": os.environ["PATH"]})


def a_pip(folder: Path) -> list[str]:
    """A pip that fetches a uv 1.0; where a file `cut` lies, the machine goes off when it has copied half of it."""
    fake, program = folder / "pip", '"$to/bin/uv"'
    search = 'for word; do [ "$before" != --target ] || to=$word; before=$word; done'
    half = f'mkdir -p "$to/bin"; : > {program}; [ ! -e {folder}/cut ] || exit 1'
    whole = f"printf '#!/bin/sh\\necho uv 1.0 x\\n' > {program}; chmod +x {program}"
    fake.write_text(f"#!/bin/sh\n{search}; {half}; {whole}\n")
    fake.chmod(0o755)
    return [str(fake)]


def test_uv_is_there_whole_or_not_at_all(run: Run, tmp_path: Path) -> None:
    """A pip that copied a part of it before the machine went off, as from /tmp to a data disk: it is fetched again."""
    (tmp_path / "cut").touch()
    for _ in range(2):
        with pytest.raises(UserError, match="uv cannot be fetched"):
            pip.uv(run, a_pip(tmp_path), Tool("1.0", "0"), tmp_path / "kept")
    (tmp_path / "cut").unlink()
    assert run.call(pip.uv(run, a_pip(tmp_path), Tool("1.0", "0"), tmp_path / "kept"), "--version") == "uv 1.0 x\n"


@pytest.mark.parametrize("there", ["", "#!/bin/sh\necho uv 0.9\n", None])
def test_uv_is_not_known_by_its_name(run: Run, tmp_path: Path, there: str | None) -> None:
    """An empty one, another version, or the folder alone: the pinned one is fetched in its place."""
    program = tmp_path / "kept/uv/bin/uv"
    program.parent.mkdir(parents=True)
    if there is not None:
        program.write_text(there)
        program.chmod(0o755)
    assert pip.uv(run, a_pip(tmp_path), Tool("1.0", "0"), tmp_path / "kept") == str(program)
    assert run.call(str(program), "--version") == "uv 1.0 x\n"


def test_what_was_fetched_before_a_power_cut_is_not_trusted(tmp_path: Path) -> None:
    """Its files may be empty and look whole; after a SIGKILL or a new start of a container they are good."""
    kept = tmp_path / ".venv.partial"
    files.write(kept / environment.BOOT.name, b"one")
    environment._forget_older(kept, b"one")
    assert kept.is_dir()
    environment._forget_older(kept, b"two")
    assert not kept.exists()


def test_the_disk_has_it_before_it_counts_as_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A power cut after that must not leave an environment of empty files."""
    whole: list[bool] = []
    site = tmp_path / "site"
    monkeypatch.setattr(files, "sync", lambda _: whole.append((site / wheels.INSTALLER).exists()))
    wheels.install(DATA, site, tmp_path / "bin", "/bin/python3")
    assert whole == [False]


def test_halves_of_written_files_go_too(tmp_path: Path) -> None:
    """SIGKILL in the middle of a write leaves them in somebody's Python."""
    site, scripts = tmp_path / "site", tmp_path / "bin"
    wheels.install(DATA, site, scripts, "/bin/python3")
    for half in (site / wheels.INFO / ".RECORD.x1", site / wheels.INFO / ".INSTALLER.x2", scripts / ".crab.x3"):
        half.touch()
    wheels.remove(site)
    assert [*site.iterdir(), *scripts.iterdir()] == []


def test_an_environment_begins_with_its_mark(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off in the middle of `uv venv`, with a folder `bin` and nothing else: the next run goes on."""
    venv, choice = run.places.venv, Choice(ROW, "3.11", "")
    monkeypatch.setattr(pip, "find", lambda *_: ["pip"])
    monkeypatch.setattr(pip, "environment", lambda *_: {})
    monkeypatch.setattr(pip, "uv", lambda *_: "uv")
    monkeypatch.setattr(mirrors, "choose", lambda *_: None)
    monkeypatch.setattr(environment, "_base_python", lambda _: "python")

    def begun(*_: Any, **__: Any) -> str:
        (venv / "bin").mkdir()
        raise CutOff

    monkeypatch.setattr(Run, "call", begun)
    for _ in range(2):
        with pytest.raises(CutOff):
            environment.make(run, Where(venv), choice, DATA, Fetch(Tool("1", "0"), None))
