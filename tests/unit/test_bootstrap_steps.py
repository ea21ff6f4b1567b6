"""The bootstrap's decisions and steps with the machine, the network and apt held in hand."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from hermitcrab import matrix as matrices
from hermitcrab.box import platforms
from hermitcrab.box.bootstrap import __main__ as bootstrapping
from hermitcrab.box.bootstrap import adopt, apt, environment, network, pins, pip, plan, settle, stamp, steps
from hermitcrab.box.bootstrap.environment import Where
from hermitcrab.box.bootstrap.pick import Choice, Machine
from hermitcrab.box.bootstrap.run import Places, Run, alone, clean
from hermitcrab.box.check.build import MANIFEST
from hermitcrab.box.disks import Disk
from hermitcrab.box.platform import Platform
from hermitcrab.build import bootstrap, lock, wheel
from hermitcrab.build import bootstrap_locks as locks
from hermitcrab.errors import UserError

ROOT: Final = Path(__file__).parents[2]
MATRIX: Final = matrices.load()
ROWS: Final = tuple(pins._row(row) for row in bootstrap.pinned(MATRIX)["combos"])
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
    for function in (pins.load, pins.lock):
        monkeypatch.setattr(function, "__defaults__", (folder,))
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
        assert all(pins.lock(row, python).is_file() for python in row.locks)


def test_a_row_s_own_lock_is_the_image_s() -> None:
    """Byte for byte: parity begins here."""
    for row, combo in zip(pins.load().rows, MATRIX.combos, strict=True):
        if row.locks:
            assert pins.lock(row, combo.python).read_bytes() == lock.lock_path(combo).read_bytes()


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


def test_what_is_left_out_is_named(run: Run) -> None:
    """C22 and other distributions: by name, with the reason."""
    assert plan._left_out(run, plan.Asked(), [], served=True) == []
    assert "tmux git (neither root nor sudo" in plan._left_out(run, plan.Asked(), ["tmux", "git"], served=True)[0]
    other = plan.Asked(distro="alinux", release="3", has_apt=False)
    assert "(alinux 3 is not served; Debian 11, 12, 13" in plan._left_out(run, other, ["tmux"], served=False)[0]


# --- packages


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "Inst libnvidia-compute-550 (550.54 Ubuntu:22.04 [amd64])",
            "libnvidia-compute-550, which belongs to the driver",
        ),
        ("Inst cuda-toolkit-12-4 [12.3] (12.4 NVIDIA [all])", "cuda-toolkit-12-4, which belongs"),
        ("Inst libcudnn9-cuda-12 (9.1 x [amd64])", "libcudnn9-cuda-12, which belongs"),
        ("Remv nano [6.2]", "apt would remove nano"),
        ("Purg nano [6.2]", "apt would remove nano"),
    ],
)
def test_what_belongs_to_the_driver_is_never_touched(line: str, said: str) -> None:
    """Nor is anything removed: then nothing is installed at all."""
    with pytest.raises(UserError, match=said):
        apt.refuse_foreign(f"NOTE: simulation\nInst git (1:2.39 x [amd64])\n{line}\nConf git (1:2.39)\n")


def test_others_are_installed() -> None:
    """The rule does not cry wolf."""
    apt.refuse_foreign("Inst git (1:2.39 x [amd64])\nInst libnghttp2-14 (1.52 x [amd64])\nConf git (1:2.39)\n")


def test_missing_packages() -> None:
    """By dpkg's status; what dpkg does not know is missing."""
    assert apt.missing(["hermitcrab-has-no-such-package"]) == ["hermitcrab-has-no-such-package"]


def test_a_lock_is_told_at_once(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """While it is waited for, not after."""
    folder = tmp_path / "bin"
    folder.mkdir()
    said = (ROOT / "tests/cases/C20.txt").read_text().splitlines()[0]
    code = f'[ -e "{tmp_path}/was" ] && exit 0; touch "{tmp_path}/was"; echo "{said}"; exit 100'
    (folder / "apt-get").write_text(f"#!/bin/sh\n{code}\n")
    (folder / "apt-get").chmod(0o755)
    environ = {"PATH": f"{folder}:{os.environ['PATH']}", "HERMITCRAB_APT_PAUSE": "0"}
    apt.apt_get(run._replace(environ=environ), (), "update")
    assert capfd.readouterr().out.startswith("waiting for 2180 (unattended-upgr)")


def test_apt_runs_by_the_script_s_functions(run: Run, tmp_path: Path) -> None:
    """A failing apt-get becomes its own reason."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "apt-get").write_text('#!/bin/sh\necho "E: Unable to locate package x"; exit 100\n')
    (folder / "apt-get").chmod(0o755)
    placed = run._replace(environ={"PATH": f"{folder}:{os.environ['PATH']}"})
    with pytest.raises(UserError, match="apt-get install: E: Unable to locate package x"):
        apt.apt_get(placed, (), "install", "x")


# --- the network


def test_one_setting_for_all(tmp_path: Path) -> None:
    """C27: a CA file reaches apt, curl, git, pip, uv, conda; it is added to the system's, and to nothing that stays."""
    assert "unable to get local issuer certificate" in (ROOT / "tests/cases/C27.txt").read_text()
    (tmp_path / "ca.pem.in").write_text("EXTRA\n")
    (tmp_path / "own").write_text("OWN\n")
    environ = network.trusting({"SSL_CERT_FILE": str(tmp_path / "own")}, str(tmp_path / "ca.pem.in"), tmp_path)
    assert (tmp_path / "ca.pem").read_text() == "OWN\n\nEXTRA\n"
    assert {environ[name] for name in ("PIP_CERT", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")} == {
        str(tmp_path / "ca.pem")
    }
    assert network.trusting({"A": "b"}, "", tmp_path) == {"A": "b"}


def test_verification_is_never_turned_off() -> None:
    """C27: no word for it stands in what a box runs."""
    words = re.compile(
        r"--insecure|trusted-host|allow-insecure|Verify-Peer|curl -k|SSL_NO_VERIFY|NODE_TLS_REJECT|sslVerify"
    )
    folders = (ROOT / "hermitcrab/box/bootstrap", ROOT / "templates/boot")
    assert [
        path.name
        for folder in folders
        for path in folder.iterdir()
        if path.is_file() and words.search(path.read_text())
    ] == []


@pytest.mark.parametrize("said", ["SSLError(CERTIFICATE_VERIFY_FAILED)", "invalid peer certificate: UnknownIssuer"])
def test_an_untrusted_certificate_is_called_so(said: str) -> None:
    """C27: not "no matching distribution"."""
    assert "certificate is not trusted" in pip.why(f"{said}\nERROR: No matching distribution found for uv")


def test_no_network_is_called_so() -> None:
    """Not "no matching distribution" either."""
    said = "NameResolutionError: Temporary failure in name resolution\nERROR: No matching distribution found"
    assert "cannot be reached" in pip.why(said)


def test_turbo_stays_in_its_shell(tmp_path: Path) -> None:
    """The script's proxies reach downloads; nothing else of it does, and our own environment stays as it is."""
    script = tmp_path / "turbo"
    script.write_text(
        "export http_proxy=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9 EVIL=1; cd /; set -e; echo hi\n"
    )
    before = dict(os.environ)
    environ = network.turbo({"PATH": os.environ["PATH"]}, str(script))
    assert environ["https_proxy"] == "http://127.0.0.1:9"
    assert "EVIL" not in environ
    assert dict(os.environ) == before
    assert network.turbo({"A": "b"}, "/nonexistent").get("https_proxy") is None


def test_pip_s_settings_reach_uv(run: Run) -> None:
    """The user's index, proxy and certificate hold; what would bend the lock does not."""
    listing = "global.index-url='https://mirror.example/simple'\n:env:.index-url='https://env.example/simple'\nglobal.cert='/ca'\n"
    fake = run.work / "pip"
    fake.write_text(f"#!/bin/sh\nprintf '%s' \"{listing}\"\n")
    fake.chmod(0o755)
    environ = pip.environment(run, (str(fake),))
    assert environ["UV_DEFAULT_INDEX"] == "https://env.example/simple"
    assert environ["SSL_CERT_FILE"] == "/ca"
    assert (
        pip.environment(run._replace(environ={"UV_DEFAULT_INDEX": "mine"}), (str(fake),))["UV_DEFAULT_INDEX"] == "mine"
    )
    assert clean({"PIP_CONSTRAINT": "x", "PIP_INDEX_URL": "y"}) == {"PIP_INDEX_URL": "y"}


# --- the environment


def test_what_is_not_ours_is_not_deleted(run: Run) -> None:
    """A venv of somebody else's at our place stops the run."""
    (run.places.venv / "bin").mkdir(parents=True)
    with pytest.raises(UserError, match="not of hermitcrab's making"):
        environment.refuse_foreign(run.places.venv)
    (run.places.venv / environment.MARK).touch()
    environment.refuse_foreign(run.places.venv)


def test_complete_is_what_its_manifest_says(run: Run) -> None:
    """Without one, with another lock, or with another wheel it is not."""
    choice, data, where = Choice(ROW, "3.11", ""), wheel.box_wheel(), Where(run.places.venv)
    assert not environment.is_complete(where, choice, data)
    (run.places.venv / "bin").mkdir(parents=True)
    (run.places.venv / "bin/python").symlink_to(sys.executable)
    import json

    (run.places.venv / MANIFEST).write_text(json.dumps(environment.identity(choice, data)))
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


def test_git_trusts_nobody_by_our_doing() -> None:
    """S47: no `safe.directory` is ever set; git's own message has the line for the one folder."""
    assert "safe.directory /workspace/proj" in (ROOT / "tests/cases/S47.txt").read_text()
    folders = ("hermitcrab/box", "templates/home", "templates/boot")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    assert [path.name for path in paths if path.suffix != ".pyc" and "safe.directory" in path.read_text()] == []


def test_the_guard_is_there_and_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for what starts services, for the time of an installation."""
    monkeypatch.setattr(apt, "GUARD", tmp_path / "own/guard")
    guard = Path(apt._guard())
    assert {path.name for path in guard.iterdir()} == set(apt.STUBS) >= {"systemctl", "invoke-rc.d"}
    assert subprocess.run([str(guard / "systemctl"), "daemon-reload"], check=False).returncode == 0
    apt._remove(str(guard))
    assert list(tmp_path.glob("own")) == []


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
    import hashlib

    sha = hashlib.sha256(wheel.box_wheel()).hexdigest()
    monkeypatch.setattr(pins, "PAYLOAD", payload)
    with pytest.raises(UserError, match="it needs driver 450") as refused:
        bootstrapping.bootstrap(run, options(wheel_sha256=sha, distro="debian", release="12", has_apt=True))
    assert refused.value.code == 4
    assert list((run.places.home).iterdir()) == []
