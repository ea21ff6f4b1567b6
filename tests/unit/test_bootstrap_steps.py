"""The bootstrap's decisions and steps with the machine, the network and apt held in hand."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from hermitcrab import matrix as matrices
from hermitcrab.box import platforms, setup
from hermitcrab.box.bootstrap import __main__ as bootstrapping
from hermitcrab.box.bootstrap import adopt, apt, environment, own, pins, pip, plan, settle, stamp, steps, wheels
from hermitcrab.box.bootstrap.environment import Where
from hermitcrab.box.bootstrap.pick import Choice, Machine
from hermitcrab.box.bootstrap.run import Places, Run, alone
from hermitcrab.box.check.build import MANIFEST
from hermitcrab.box.disks import Disk
from hermitcrab.box.platform import Platform
from hermitcrab.build import bootstrap, lock, wheel
from hermitcrab.build import bootstrap_locks as locks
from hermitcrab.errors import UserError

ROOT: Final = Path(__file__).parents[2]
MATRIX: Final = matrices.load()
ROWS: Final = pins.read(bootstrap.pinned(MATRIX)).rows
ROW: Final = next(row for row in ROWS if row.cuda == "12.1")
GB: Final = 10**9


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of a plain user in a home of the test's own."""
    for name in ("work", "home"):
        (tmp_path / name).mkdir()
    home = tmp_path / "home"
    places = Places(home, home / ".config/hermitcrab", home / "venv")
    return Run(False, places, tmp_path / "work", {"PATH": os.environ["PATH"]}, str(tmp_path / "log"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the script unpacks."""
    folder = tmp_path_factory.mktemp("payload")
    for name, data in bootstrap._content(MATRIX).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture(autouse=True)
def payload(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pins are those of the payload."""
    folder = unpacked
    monkeypatch.setattr(pins.load, "__defaults__", (folder,))
    monkeypatch.setattr(apt, "PAYLOAD", folder)
    return folder


# --- pins


def test_the_pins_are_the_matrix() -> None:
    """Every row, its floor, its architectures, its tools; nothing is written down twice."""
    known = pins.load()
    assert [row.id for row in known.rows] == [combo.id for combo in MATRIX.combos]
    assert known.packages == MATRIX.packages
    assert known.uv == pins.Tool(MATRIX.tools["uv"].version, MATRIX.tools["uv"].sha256)
    for row, combo in zip(known.rows, MATRIX.combos, strict=True):
        assert (row.cuda, row.torch, row.driver) == (combo.cuda, combo.torch, combo.driver)
        assert bool(row.locks) == (combo.wheels == "pypi")


def test_every_lock_comes_through_byte_for_byte() -> None:
    """The image's own among them: parity begins here. A line that locks share is brought once."""
    known = bootstrap.pinned(MATRIX)
    assert len(set(known["lines"])) == len(known["lines"])
    for row, combo in zip(pins.load().rows, MATRIX.combos, strict=True):
        paths = bootstrap.locks(combo)
        assert row.locks.keys() == paths.keys()
        assert not paths or paths[combo.python] == lock.lock_path(combo)
        assert {python: pins.lock(row, python) for python in row.locks} == {
            python: path.read_bytes() for python, path in paths.items()
        }


OTHERS: Final = [(combo, python) for combo in MATRIX.combos for python in locks.wanted(combo)]


@pytest.mark.parametrize(("combo", "python"), OTHERS, ids=lambda value: getattr(value, "id", value))
def test_the_lock_for_another_python_fits_its_row(combo: matrices.Combo, python: str) -> None:
    """The same torch, companions and CUDA as the row's own lock, one hash each; see bootstrap_locks.py."""
    own = {pin.name: pin.version for pin in lock.read(lock.lock_path(combo))}
    other = {pin.name: pin.version for pin in lock.read(locks.path(combo, python))}
    fixed = [name for name in own if name.startswith("nvidia-") or name in {"torch", "torchvision", "torchaudio"}]
    assert {name: other.get(name) for name in fixed} == {name: own[name] for name in fixed}


def test_no_lock_is_left_over() -> None:
    """A row that goes takes its locks along."""
    wanted = {locks.path(combo, python) for combo, python in OTHERS}
    assert set(bootstrap.LOCKS.rglob("*.lock")) == wanted


def test_the_constraints_are_the_image_s() -> None:
    """The file that protects torch is the same on a box and in the image."""
    from hermitcrab.build import render

    for row, combo in zip(pins.load().rows, MATRIX.combos, strict=True):
        if row.locks:
            assert environment.constraints(pins.lock(row, combo.python)) == render._constraints(combo)


# --- where, and whether there is room


def a_platform(system: int | None, data: int | None, name: str = "autodl") -> Platform:
    """A platform with so many GB free."""
    disks = [
        None if size is None else Disk(path, 10**12, size * GB)
        for path, size in (("/", system), ("/root/autodl-tmp", data))
    ]
    row = platforms.ROWS[name]
    return Platform(row.id, row.name, "high", (), "container", disks[0] or Disk("/", None, None), disks[1], row)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Say how many GB the system disk has."""

    def say(free: int | None) -> None:
        monkeypatch.setattr(plan, "disk_at", lambda path: Disk(path, 10**12, None if free is None else free * GB))

    return say


def test_the_system_disk_comes_first(run: Run, room: Callable[[int | None], None]) -> None:
    """It is what platforms save."""
    room(20)
    assert plan._where(run, ROW, a_platform(20, 100)) == Where(run.places.venv)


def test_c35_the_data_disk_when_the_system_s_is_full(run: Run, room: Callable[[int | None], None]) -> None:
    """5.3 GB free of 30, 41 GB on the data disk: it goes there, and the plan says that no image holds it."""
    assert "/root/autodl-tmp" in (ROOT / "tests/cases/C35.txt").read_text()
    room(5)
    platform = a_platform(5, 41)
    where = plan._where(run, ROW, platform)
    assert where == Where(Path("/root/autodl-tmp/hermitcrab/venv"), run.places.venv)
    decided = plan.Plan(Machine("", ()), platform, None, None, Choice(ROW, "3.11", ""), where, (), (), ())
    told = "\n".join(plan.lines(decided, run, plan.Asked()))
    assert "NOT part of a saved image, which holds the system disk only" in told


@pytest.mark.parametrize("data", [None, 3])
def test_c35_no_room_stops_before_the_download(data: int | None, run: Run, room: Callable[[int | None], None]) -> None:
    """What is needed, and what each disk has."""
    room(3)
    with pytest.raises(UserError, match=r"needs 5\.0 GiB, and .* has 2\.8 GiB free.*make room"):
        plan._where(run, ROW, a_platform(3, data))


def test_an_unknown_amount_is_no_obstacle(run: Run, room: Callable[[int | None], None]) -> None:
    """A quota that cannot be read."""
    room(None)
    assert plan._where(run, ROW, a_platform(None, None)) == Where(run.places.venv)


def test_a_full_tmpdir_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """C35: TMPDIR counts, too."""
    monkeypatch.setattr(plan, "disk_at", lambda path: Disk(path, GB, 1000))
    with pytest.raises(UserError, match="set TMPDIR"):
        plan._where(run, ROW, a_platform(100, None))


def test_c35_the_packages_count_as_well(
    run: Run, room: Callable[[int | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both go to the system disk: what they need together, or torch on the data disk; too little for them: a stop."""
    room(5)
    exactly = int(ROW.disk_gb * environment.SLACK * GB)
    monkeypatch.setattr(plan, "disk_at", lambda path: Disk(path, 10**12, exactly))
    platform = a_platform(5, 41)
    assert plan._where(run, ROW, platform) == Where(run.places.venv)
    assert plan._where(run, ROW, platform, GB).link == run.places.venv
    plan._refuse_full(exactly)
    with pytest.raises(UserError, match=r"/ has .* free, and the missing packages need .*: make room"):
        plan._refuse_full(exactly + 1)


def test_its_own_remains_are_room(run: Run, room: Callable[[int | None], None]) -> None:
    """A run that was cut off while it emptied the environment: what is left makes way for the next."""
    room(1)
    with pytest.raises(UserError, match="make room"):
        plan._where(run, ROW, a_platform(1, None))
    run.places.venv.mkdir(parents=True)
    (run.places.venv / own.MARK).touch()
    assert plan._where(run, ROW, a_platform(1, None)) == Where(run.places.venv)


def test_what_is_left_out_is_named(run: Run) -> None:
    """C22 and other distributions: by name, with the reason."""
    assert plan._left_out(run, plan.Asked(), [], served=True) == []
    assert "tmux git (neither root nor sudo" in plan._left_out(run, plan.Asked(), ["tmux", "git"], served=True)[0]
    other = plan.Asked(distro="alinux", release="3", has_apt=False)
    assert "(alinux 3 is not served; Debian 11, 12, 13" in plan._left_out(run, other, ["tmux"], served=False)[0]


# --- the environment


def test_complete_is_what_its_manifest_says(run: Run) -> None:
    """Without one, with another lock, with another wheel or with a part of it, it is not."""
    choice, data, where = Choice(ROW, "3.11", ""), wheel.box_wheel(), Where(run.places.venv)
    assert not environment.is_complete(where, choice, data)
    (run.places.venv / "bin").mkdir(parents=True)
    (run.places.venv / "bin/python").symlink_to(sys.executable)
    (run.places.venv / MANIFEST).write_text(json.dumps(environment.identity(choice, data)))
    assert not environment.is_complete(where, choice, data)
    wheels.install(data, where.site("3.11"), run.places.venv / "bin", "python")
    assert environment.is_complete(where, choice, data)
    assert not environment.is_complete(where, choice, data + b"x")


def test_little_memory_installs_one_by_one() -> None:
    """AutoDL's mode without a card has 2 GB."""
    assert environment._limits(2 << 30)["UV_CONCURRENT_INSTALLS"] == "1"
    assert environment._limits(None) == environment._limits(64 << 30) == {}


def test_a_link_leads_to_the_data_disk(run: Run, tmp_path: Path) -> None:
    """The profile and the SSH server look at one place."""
    where = Where(tmp_path / "data/venv", run.places.venv)
    environment._link(where)
    environment._link(where)
    assert os.readlink(run.places.venv) == str(tmp_path / "data/venv")


# --- settings, stamp, and the whole


def test_a_plain_user_s_shell_finds_it(run: Run, tmp_path: Path) -> None:
    """PATH and the constraint, quoted, once."""
    settle.protect(run, ["torch==1"], tmp_path / "a b/venv")
    assert run.places.constraints.read_text() == "torch==1\n"
    file = run.places.settings / settle.USER_FILE
    code = f'. "{file}"; . "{file}"; echo "$PATH"; echo "$PIP_CONSTRAINT"'
    done = subprocess.run(["sh", "-uc", code], env={"PATH": "/bin"}, capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path}/a b/venv/bin:/bin\n{run.places.constraints}\n"


def test_a_stamp_is_whole_or_none(tmp_path: Path) -> None:
    """What is not a stamp is read as none."""
    stamp.write(tmp_path / "stamp", stamp.DONE, combo="x")
    assert stamp.read(tmp_path / "stamp")["result"] == "done"
    for text in ("", "{", '{"format": 99}', "[]"):
        (tmp_path / "stamp").write_text(text)
        assert stamp.read(tmp_path / "stamp") == {}


def decided(*packages: str) -> plan.Plan:
    """A plan that installs torch and these packages."""
    choice, where = Choice(ROW, "3.11", ""), Where(Path("/opt/venv"))
    return plan.Plan(Machine("", ()), a_platform(50, None), None, None, choice, where, packages, (), ())


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was begun and ended, with apt and torch replaced by something that takes a moment."""
    said: list[str] = []

    def took(name: str, seconds: float) -> Callable[..., steps.Made]:
        def work(*_: object) -> steps.Made:
            said.append(f"{name} begins")
            time.sleep(seconds)
            said.append(f"{name} ends")
            return steps.Made("python", None, [], {})

        return work

    monkeypatch.setattr(apt, "update", lambda *_: said.append("update"))
    monkeypatch.setattr(apt, "install", took("packages", 0.3))
    monkeypatch.setattr(steps, "_install", took("torch", 0.1))
    monkeypatch.setattr(settle, "settings", lambda _: [])
    return said


def carry_out(run: Run, what: plan.Plan) -> None:
    """The steps, as a run has them."""
    steps.carry_out(run, what, pins.load(), b"", steps.Wishes())


def test_packages_and_torch_come_together(run: Run, order: list[str]) -> None:
    """One waits for dpkg, the other for the network."""
    carry_out(run, decided("tmux"))
    assert order[0] == "update"
    assert order.index("torch ends") < order.index("packages ends")


def test_certificates_come_first(run: Run, order: list[str]) -> None:
    """Without them no index could be trusted."""
    carry_out(run, decided("tmux", "ca-certificates"))
    assert order.index("packages ends") < order.index("torch begins")


def test_a_pip_that_comes_with_the_packages(run: Run, order: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian 11: once they are there, torch is tried again; another failure stays one."""
    made = steps._install
    monkeypatch.setattr(steps, "_install", lambda *_: made(*_) if "packages ends" in order else fail(pip.NoPipError))
    carry_out(run, decided("tmux"))
    assert order[-1] == "torch ends"
    monkeypatch.setattr(steps, "_install", lambda *_: fail(UserError))
    with pytest.raises(UserError, match="as planned"):
        carry_out(run, decided("tmux"))


def fail(kind: type[UserError]) -> steps.Made:
    """Fail."""
    raise kind("as planned")


def test_nothing_missing_asks_apt_nothing(run: Run, order: list[str]) -> None:
    """Not even for its lists."""
    carry_out(run, decided())
    assert order == ["torch begins", "torch ends"]


def test_a_stamp_goes_before_the_first_change(run: Run, order: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails leaves none: the next step must not take an old one for its own."""
    stamp.write(run.places.stamp, stamp.DONE)
    monkeypatch.setattr(steps, "_install", lambda *_: fail(UserError))
    with pytest.raises(UserError):
        carry_out(run, decided())
    assert not run.places.stamp.exists()
    assert order == []


@pytest.mark.parametrize(
    ("wishes", "uses"),
    [
        (steps.Wishes("auto", "debian", "12"), False),
        (steps.Wishes("none", "debian", "12"), False),
        (steps.Wishes("tuna", "debian", "12"), True),
        (steps.Wishes("tuna", "alinux", "3"), False),
    ],
)
def test_apt_stays_with_what_the_box_has_configured(wishes: steps.Wishes, uses: bool, run: Run) -> None:
    """Unless a mirror was asked for by its name, which has this distribution."""
    assert bool(steps._from_mirror(run, wishes)) is uses


def test_secrets_stay_out_of_log_and_messages(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The password of a private index stands in commands and in what pip says."""
    address = "https://me:hunter2secret@index.example/simple"
    with pytest.raises(UserError) as failed:
        run.call("sh", "-c", f"echo looking at {address}; exit 1")
    run.warn(f"{address} is slow")
    log = Path(run.log).read_text()
    assert "index.example" in log and "index.example" in str(failed.value)
    assert "hunter2secret" not in log + str(failed.value) + capsys.readouterr().err


def test_two_at_once_go_one_after_the_other(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The second waits, and says so."""
    with alone(run):
        second = threading.Thread(target=lambda: enter(run))
        second.start()
        time.sleep(0.2)
        assert second.is_alive()
    second.join(5)
    assert "waiting for another bootstrap" in capsys.readouterr().out


def enter(run: Run) -> None:
    """Take the lock and give it back."""
    with alone(run):
        return


def options(**given: Any) -> argparse.Namespace:
    """What the script passes on."""
    parsed = bootstrapping._parser().parse_args([])
    for name, value in given.items():
        setattr(parsed, name, value)
    return parsed


def test_nothing_fits_stops_before_any_change(run: Run, payload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No package, no download, no file; the error says what would work."""
    monkeypatch.setattr(plan, "look", lambda: Machine("418.87.00", (75,), ("T4",), "x86_64", ("3.11",)))
    monkeypatch.setattr(adopt, "find", lambda *_, **__: iter(()))
    monkeypatch.setattr(apt, "apt_get", lambda *_, **__: pytest.fail("apt was run"))
    monkeypatch.setattr(pip, "find", lambda *_, **__: pytest.fail("pip was run"))
    sha = hashlib.sha256(wheel.box_wheel()).hexdigest()
    monkeypatch.setattr(pins, "PAYLOAD", payload)
    with pytest.raises(UserError, match="it needs driver 450") as refused:
        bootstrapping.bootstrap(run, options(wheel_sha256=sha, distro="debian", release="12", has_apt=True))
    assert refused.value.code == 4
    assert list((run.places.home).iterdir()) == []


class End(NamedTuple):
    """How a run ended, and what it must tell."""

    check: str
    left_out: tuple[str, ...]
    status: int
    result: str
    said: str


ENDS: Final = [
    End("pass", (), 0, "done", "done in"),
    End("skip", (), 0, "done", "GPU check skipped, which is no pass: no card"),
    End("pass", ("left out: tmux (neither root nor sudo)",), 3, "partial", "left out: tmux"),
    End("fail", (), 1, "failed", "GPU check FAILED: no card"),
    End("fail", ("left out: tmux",), 1, "failed", "failed in"),
]


@pytest.fixture
def ending(payload: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[End], argparse.Namespace]:
    """Let the next run end like this."""

    def let(end: End) -> argparse.Namespace:
        monkeypatch.setattr(pins, "PAYLOAD", payload)
        monkeypatch.setattr(plan, "make", lambda *_: decided()._replace(left_out=end.left_out))
        monkeypatch.setattr(steps, "carry_out", lambda *_: ("python", {"combo": ROW.id}))
        monkeypatch.setattr(settle, "check", lambda *_: settle.Verdict(end.check, "no card"))
        return options(wheel_sha256=hashlib.sha256(wheel.box_wheel()).hexdigest())

    return let


@pytest.mark.parametrize("end", ENDS, ids=lambda end: f"{end.check}-{end.result}")
def test_how_it_ends(
    end: End, run: Run, ending: Callable[[End], argparse.Namespace], capsys: pytest.CaptureFixture[str]
) -> None:
    """C22: status, stamp and summary tell the same: done, in part with what was left out, or failed."""
    assert bootstrapping.bootstrap(run, ending(end)) == end.status
    told = stamp.read(run.places.stamp)
    assert (told["result"], told["check"], told["left_out"]) == (end.result, end.check, list(end.left_out))
    assert end.said in capsys.readouterr().out


# --- an image without host keys


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root's box with an SSH server, a crab setup that does nothing, and an ssh-keygen that makes one key."""
    (tmp_path / "sshd").touch()
    monkeypatch.setattr(settle, "SSHD", tmp_path / "sshd")
    monkeypatch.setattr(settle, "SSHD_FOLDER", tmp_path / "run/sshd")
    monkeypatch.setattr(settle, "HOST_KEYS", f"{tmp_path}/etc/ssh_host_*_key")
    monkeypatch.setattr(setup, "main", lambda _: 0)
    for name in ("etc", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin/ssh-keygen").write_text(f'#!/bin/sh\necho "$*" >"{tmp_path}/etc/ssh_host_rsa_key"\n')
    (tmp_path / "bin/ssh-keygen").chmod(0o755)
    return tmp_path


def test_missing_host_keys_are_made(run: Run, ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`crab seal` takes them out of an image; a server without one starts for nobody. A user's own stay."""
    monkeypatch.setenv("PATH", f"{ssh}/bin:{os.environ['PATH']}")
    asked = run._replace(root=True, environ=dict(os.environ))
    assert settle.lacks_host_keys(asked)
    assert not settle.lacks_host_keys(run)
    settle.settings(asked, dry=True)
    settle.settings(asked, undo=True)
    assert settle.lacks_host_keys(asked)
    settle.settings(asked)
    key = ssh / "etc/ssh_host_rsa_key"
    assert key.read_text() == "-A\n"
    key.write_text("mine")
    settle.settings(asked)
    assert key.read_text() == "mine"
    (ssh / "sshd").unlink()
    key.unlink()
    assert not settle.lacks_host_keys(asked)
