"""The launcher under dash and bash, with fakes for Python: no network, nothing installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHELLS = ("dash", "bash")
AWKWARD = "a b'c\"d\n$(x)*"

# Stands for every Python the launcher starts, by what it is asked; each step of a build is a line of $CALLS.
PYTHON = r"""#!/bin/sh
case "$*" in
*version_info*) [ "$FAKE_VERSION" != old ] && echo "$FAKE_REAL" ;;
-V) echo "Python 3.9.2" ;;
*flock*) exec "$FAKE_FLOCK" "$@" ;;
*"import ensurepip"*) [ "${FAKE_VENV-}" != missing ] ;;
*"-m venv"*)
    echo venv >>"$CALLS"; env | sort >"$CALLS.venv"
    for venv; do :; done
    [ -z "${FAKE_STUCK-}" ] || { echo "Error: stuck"; exit 1; }
    rm -rf "$venv"; mkdir -p "$venv/bin"; cp "$0" "$venv/bin/python" ;;
*"-m pip install"*)
    echo pip >>"$CALLS"; echo "$*" >"$CALLS.pip"; env | grep ^PIP_ | sort >"$CALLS.env"
    sh -c "${FAKE_PIP-}" || exit
    [ -n "${FAKE_ELSEWHERE-}" ] || touch "${0%/*}/invoke" ;;
*"-m invoke"*) for word; do printf '%s\0' "$word"; done; exit "${FAKE_STATUS-0}" ;;
*) echo "unexpected: $*" >&2; exit 99 ;;
esac
"""


class House:
    """A copy of the launcher in its own folder, with its own idea of Python."""

    def __init__(self, folder: Path, shell: str) -> None:
        self.here = folder / AWKWARD
        self.bin = folder / "bin"
        self.calls = folder / "calls"
        self.shell = shell
        self.user: int | None = None
        self.here.mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(ROOT / "invoke", self.here)
        (self.here / "requirements.lock").write_text("a==1\n")
        for name in ("cat", "chmod", "cmp", "cp", "env", "grep", "mkdir", "mv", "readlink", "rm"):
            self.link(name)
        for name in ("sh", "sleep", "sort", "tail", "touch"):
            self.link(name)
        self.python("python3")

    def link(self, name: str) -> None:
        """Let the launcher find one program of the system."""
        (self.bin / name).symlink_to(str(shutil.which(name)))

    def python(self, name: str) -> Path:
        """Put a fake Python on the PATH."""
        program = self.bin / name
        program.write_text(PYTHON)
        program.chmod(0o755)
        return program

    def command(self, *arguments: str) -> list[str]:
        """Say how the launcher is started here."""
        return [str(shutil.which(self.shell)), str(self.here / "invoke"), *arguments]

    def environment(self, **changes: str) -> dict[str, str]:
        """Give the launcher nothing of this machine."""
        return {
            "PATH": str(self.bin),
            "CALLS": str(self.calls),
            "FAKE_REAL": str(self.bin / "python3"),
            "FAKE_VERSION": "new",
            "FAKE_FLOCK": "true",
            **changes,
        }

    def start(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run the launcher to its end, from a folder of no meaning."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environment(**changes),
            cwd="/",
            user=self.user,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def made(self) -> list[str]:
        """List the steps of all builds so far."""
        return self.calls.read_text().split()


@pytest.fixture(params=SHELLS)
def house(request: pytest.FixtureRequest, tmp_path: Path) -> House:
    """One house per shell; a machine without one of them cannot vouch for it."""
    if not shutil.which(request.param):
        pytest.skip(f"{request.param} is not installed: apt-get install {request.param}")
    return House(tmp_path, request.param)


def handed_over(house: House, *arguments: str) -> str:
    """Write what Invoke must have been given."""
    words = ("-P", "-m", "invoke", "--search-root", str(house.here), *arguments)
    return "".join(f"{word}\0" for word in words)


def test_first_start_builds_and_second_does_not(house: House) -> None:
    """One line says what it does, once; both starts end as Invoke ends."""
    first, second = house.start("--list", FAKE_STATUS="7"), house.start("--list", FAKE_STATUS="7")

    assert (first.returncode, second.returncode) == (7, 7)
    assert first.stdout == second.stdout == handed_over(house, "--list")
    assert first.stderr.count("\n") == 1
    assert first.stderr.startswith("invoke: making .venv from requirements.lock")
    assert second.stderr == ""
    assert house.made() == ["venv", "pip"]


def test_arguments_pass_byte_for_byte(house: House) -> None:
    """Blanks, quotes, newlines, stars, empty words and dashes stay what they are."""
    arguments = ("a b", "", "x'y\"z", "line\nbreak\n", "*", "$HOME", "\\", "-c", "--", "-e")

    assert house.start(*arguments).stdout == handed_over(house, *arguments)


def test_a_link_from_elsewhere_is_the_same_program(house: House, tmp_path: Path) -> None:
    """Started through a chain of links and from any folder, it finds its own folder."""
    (tmp_path / "link").symlink_to(house.here / "invoke")
    (tmp_path / "bin" / "inv").symlink_to("../link")
    done = subprocess.run(
        [str(shutil.which(house.shell)), "bin/inv", "x"],
        env=house.environment(CDPATH="/usr"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == handed_over(house, "x")


@pytest.mark.parametrize("change", ["lock", "interpreter", "folder", "python"])
def test_what_venv_is_made_from_changed(house: House, change: str) -> None:
    """A new lock, another chosen Python, a moved folder or a vanished Python: built anew, once."""
    house.start()
    changes = {}
    if change == "lock":
        (house.here / "requirements.lock").write_text("a==2\n")
    elif change == "interpreter":
        changes = {"HERMITCRAB_PYTHON": str(house.python("other"))}
    elif change == "folder":
        house.here = house.here.rename(house.here.with_name("moved"))
    else:
        (house.here / ".venv/bin/python").unlink()
    house.start(**changes)
    house.start(**changes)

    assert house.made() == ["venv", "pip"] * 2


def test_killed_in_the_middle_is_repaired(house: House) -> None:
    """Killed while pip works, the next start waits for nothing and builds anew."""
    with subprocess.Popen(
        house.command(),
        env=house.environment(FAKE_PIP="sleep 30"),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 20
        while not (house.calls.exists() and "pip" in house.made()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    assert not (house.here / ".venv/stamp").exists()

    assert house.start("x").stdout == handed_over(house, "x")
    assert house.made() == ["venv", "pip"] * 2


@pytest.mark.parametrize("fault", [{"FAKE_PIP": "exit 1"}, {"FAKE_STUCK": "1"}], ids=["pip", "venv"])
def test_an_old_stamp_does_not_outlive_a_broken_rebuild(house: House, fault: dict[str, str]) -> None:
    """A rebuild that failed is no environment, not even for the lock it had before."""
    house.start()
    (house.here / "requirements.lock").write_text("a==2\n")
    assert house.start(**fault).returncode == 1
    (house.here / "requirements.lock").write_text("a==1\n")

    assert house.start().returncode == 0
    assert house.made()[-2:] == ["venv", "pip"]
    assert house.made().count("venv") == 3


def test_two_starts_at_once_build_once(house: House) -> None:
    """The second waits for the first, then both are Invoke."""
    real = {"FAKE_FLOCK": sys.executable, "FAKE_PIP": "sleep 0.5"}
    started = [
        subprocess.Popen(
            house.command(str(number)),
            env=house.environment(**real),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for number in range(3)
    ]

    said = [process.communicate(timeout=30)[0] for process in started]
    assert said == [handed_over(house, str(number)) for number in range(3)]
    assert house.made() == ["venv", "pip"]


def test_pip_is_the_users_but_for_the_place(house: House) -> None:
    """Index, certificates and proxies stay; what sends packages elsewhere or holds them back goes."""
    kept = {"PIP_INDEX_URL": "https://mirror.example/simple", "PIP_CERT": "/ca.pem"}
    gone = dict.fromkeys(("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_CONSTRAINT"), "1")
    house.start(**kept, **gone, PIP_DRY_RUN="1", PYTHONHOME="/x", PYTHONPATH="/y")

    seen = Path(f"{house.calls}.env").read_text().split()
    assert seen == sorted(f"{name}={value}" for name, value in kept.items())
    assert "PYTHON" not in Path(f"{house.calls}.venv").read_text()
    pip = Path(f"{house.calls}.pip").read_text()
    assert "--require-hashes --only-binary :all: -r" in pip
    assert "--no-user" in pip
    assert "index" not in pip


def refusal(house: House, **changes: str) -> str:
    """Start where it cannot work: one line, exit 1, Invoke not reached."""
    done = house.start("x", **changes)
    # A path in the line may itself hold a newline: AWKWARD does.
    said = [line for line in done.stderr.split("invoke: ") if "making .venv" not in line]

    assert (done.returncode, done.stdout, len(said), said[0]) == (1, "", 2, "")
    return said[1]


def test_no_python(house: House) -> None:
    """Without Python the line says how to get it."""
    (house.bin / "python3").unlink()

    assert "no python3 here; install Python 3.11 or later" in refusal(house)
    assert "apt-get install python3 python3-venv" in refusal(house)


def test_chosen_python_is_not_there(house: House) -> None:
    """A chosen Python that is missing is named, and no other is taken in its place."""
    assert "no /no/such here" in refusal(house, HERMITCRAB_PYTHON="/no/such")


def test_old_python(house: House) -> None:
    """A Python that is too old is named with its version and what to do."""
    said = refusal(house, FAKE_VERSION="old")

    assert "python3 is Python 3.9.2, needed is 3.11 or later" in said
    assert "HERMITCRAB_PYTHON" in said


def test_newer_python_beside_an_old_one(house: House) -> None:
    """A python3 that is too old does not matter when python3.12 is there."""
    house.python("python3").write_text(PYTHON.replace("$FAKE_VERSION", "old"))
    house.python("python3.12")
    real = str(house.bin / "python3.12")

    assert house.start("x", FAKE_REAL=real).stdout == handed_over(house, "x")


def test_no_venv_module(house: House) -> None:
    """Debian's Python without venv: the line names the package."""
    assert "apt-get install python3-venv" in refusal(house, FAKE_VENV="missing")
    assert not (house.here / ".venv").exists()


def test_a_venv_elsewhere_is_not_emptied(house: House, tmp_path: Path) -> None:
    """`venv --clear` follows a link, and would empty another checkout's."""
    kept = tmp_path / "other/kept"
    kept.parent.mkdir()
    kept.touch()
    (house.here / ".venv").symlink_to(kept.parent)

    assert "remove the link" in refusal(house)
    assert kept.exists()


def test_failing_venv(house: House) -> None:
    """The last word of venv comes through as one line."""
    assert refusal(house, FAKE_STUCK="1").endswith("/.venv: Error: stuck\n")


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("WARNING: x\nERROR: No matching distribution for a==1\nnote: y", "ERROR: No matching"),
        ("Traceback:\nOSError: [Errno 28] No space left on device", "No space left on device"),
        ("x CERTIFICATE_VERIFY_FAILED y\nERROR: No matching distribution", "PIP_CERT"),
    ],
)
def test_failing_pip(house: House, output: str, said: str) -> None:
    """The reason that pip gives comes through as one line; the next start tries again."""
    assert said in refusal(house, FAKE_PIP=f"echo '{output}'; exit 1")
    assert house.start().returncode == 0


def test_pip_that_installs_elsewhere(house: House) -> None:
    """A success that left nothing in .venv is a failure, and the settings to look for are named."""
    assert "target, prefix or dry-run" in refusal(house, FAKE_ELSEWHERE="1")
    assert not (house.here / ".venv/stamp").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_no_right_to_write(shell: str) -> None:
    """In a folder of somebody else it says so before it starts."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        house = House(Path(folder), shell)
        house.here.chmod(0o555)
        # Root may write everywhere, so root asks as nobody.
        house.user = 65534 if os.geteuid() == 0 else None
        assert "no right to write" in refusal(house)


def test_launcher_is_small_and_names_no_index() -> None:
    """A newcomer reads it in a minute."""
    text = (ROOT / "invoke").read_text()

    assert text.count("\n") < 60
    assert "http" not in text
    assert os.access(ROOT / "invoke", os.X_OK)
