"""apt-get by the script's functions: locks of others, an interrupted dpkg, services, and what is told of failures."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import pytest

from tests.shell.booting import BOOT, ROOT, part, program

COUNT: Final = """
count=$(cat "{0}/count" 2>/dev/null || echo 0)
count=$((count + 1))
echo $count > "{0}/count"
echo "$*" >> "{0}/calls"
"""


def fake_apt(tmp_path: Path, code: str) -> str:
    """A folder with an apt-get that counts its calls; the PATH with it."""
    folder = program(tmp_path / "bin", "apt-get", COUNT.format(tmp_path) + code)
    return f"{folder}:{os.environ['PATH']}"


def calls(tmp_path: Path) -> int:
    """How often it was called."""
    return int((tmp_path / "count").read_text())


# --- locks

LISTS: Final = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 77 (apt-get)"
ARCHIVES: Final = "E: Unable to lock directory /var/cache/apt/archives/"
OLD: Final = "E: Could not get lock /var/lib/dpkg/lock - open (11: Resource temporarily unavailable)"
DPKG: Final = "dpkg: error: dpkg frontend lock was locked by another process with pid 88"
CASE: Final = "(the lock of C20)"


@pytest.mark.parametrize(
    ("message", "who"),
    [
        (CASE, "2180 (unattended-upgr)"),
        (LISTS, "77 (apt-get)"),
        (DPKG, "process 88"),
        (OLD, "another package manager"),
        (ARCHIVES, "another package manager"),
    ],
)
def test_a_held_lock_is_waited_for(message: str, who: str, tmp_path: Path) -> None:
    """C20: every lock, in old and new words, apt's and dpkg's; it says for whom once, and goes on."""
    (tmp_path / "message").write_text((ROOT / "tests/cases/C20.txt").read_text() if message == CASE else f"{message}\n")
    path = fake_apt(tmp_path, f'[ $count -gt 3 ] || {{ cat "{tmp_path}/message" >&2; exit 100; }}')
    done = part("apt.sh", "apt_get install x && echo went on", tmp_path, PATH=path)
    assert done.stdout == f"waiting for {who}, which holds the package system's lock\nwent on\n"
    assert calls(tmp_path) == 4


def test_the_wait_has_an_end(tmp_path: Path) -> None:
    """And then it is a failure that names the holder; the default is no less than ten minutes."""
    path = fake_apt(tmp_path, f"echo '{LISTS}' >&2; exit 100")
    done = part("apt.sh", "apt_get update || apt_says", tmp_path, PATH=path, HERMITCRAB_APT_WAIT="0")
    assert calls(tmp_path) == 1
    assert done.stdout == "the package system is still in use by 77 (apt-get): run this again later\n"
    assert int(re.findall(r"HERMITCRAB_APT_WAIT:-(\d+)", (BOOT / "apt.sh").read_text())[0]) >= 600


def test_no_lock_is_removed_and_nobody_ended() -> None:
    """Not in any part, nor in the Python that follows; and no tool is needed that a slim image lacks."""
    paths = [*BOOT.glob("*.sh"), *(ROOT / "hermitcrab/box/bootstrap").glob("*.py")]
    lines = [line for path in paths for line in path.read_text().splitlines()]
    code = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    assert not re.search(r"\b(kill|pkill|killall|killpg|fuser|lsof|terminate)\b", code.replace("killed by signal", ""))
    assert not re.search(r"\brm\b.*lock|lock.*\bunlink\b", code)


# --- an interrupted dpkg

INTERRUPTED: Final = "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem."


def test_an_interrupted_dpkg_is_finished_once(tmp_path: Path) -> None:
    """One `--configure -a` and one retry."""
    path = fake_apt(tmp_path, f'[ -e "{tmp_path}/mended" ] || {{ echo "{INTERRUPTED}" >&2; exit 100; }}')
    program(tmp_path / "bin", "dpkg", f'echo "$*" >> "{tmp_path}/dpkg"; touch "{tmp_path}/mended"')
    done = part("apt.sh", "apt_get install x && echo went on", tmp_path, PATH=path)
    assert done.stdout.endswith("went on\n")
    assert (tmp_path / "dpkg").read_text() == "--force-confdef --force-confold --configure -a\n"


def test_a_broken_dpkg_is_not_mended_for_ever(tmp_path: Path) -> None:
    """Where that does not help it is a failure."""
    path = fake_apt(tmp_path, f'echo "{INTERRUPTED}" >&2; exit 100')
    program(tmp_path / "bin", "dpkg", "echo 'dpkg: error processing package x' >&2; exit 1")
    done = part("apt.sh", "apt_get install x || apt_says", tmp_path, PATH=path)
    assert calls(tmp_path) == 2
    assert done.stdout.splitlines()[-1].startswith("E: dpkg was interrupted")


def test_a_lock_while_mending_is_waited_for(tmp_path: Path) -> None:
    """It was another who held dpkg, not a broken package: that is no try."""
    path = fake_apt(tmp_path, f'[ -e "{tmp_path}/mended" ] || {{ echo "{INTERRUPTED}" >&2; exit 100; }}')
    code = f'[ -e "{tmp_path}/asked" ] && touch "{tmp_path}/mended" && exit; touch "{tmp_path}/asked"'
    program(tmp_path / "bin", "dpkg", f"{code}; echo '{DPKG}' >&2; exit 2")
    done = part("apt.sh", "apt_get install x && echo went on", tmp_path, PATH=path)
    assert "waiting for process 88" in done.stdout
    assert done.stdout.endswith("went on\n")


# --- why it failed

ERR: Final = "Err:1 https://mirror.example/debian bookworm InRelease"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (f"{ERR}\n  Temporary failure resolving 'mirror'\nW: Some index files failed", f"{ERR}: Temporary failure res"),
        (f"{ERR}\nW: Some index files failed", ERR),
        ("Errors were encountered while processing:\n broken\nE: Sub-process dpkg", "dpkg cannot set up broken"),
        ("E: Some index files failed to download.\nE: Unable to locate package x", "E: Unable to locate package x"),
        ("no word of an error", "no word of an error"),
    ],
)
def test_a_failure_is_one_line_with_its_reason(said: str, told: str, tmp_path: Path) -> None:
    """What could not be fetched and why, or the package that dpkg stumbled over."""
    (tmp_path / "apt.out").write_text(f"Reading package lists...\n{said}\n")
    done = part("apt.sh", "apt_says", tmp_path)
    assert done.stdout.startswith(told)
    assert done.stdout.count("\n") == 1


def test_an_untrusted_certificate_has_a_remedy(tmp_path: Path) -> None:
    """C27: the network looks into TLS; what helps is its authority, and no option that trusts everybody."""
    reason = "  Certificate verification failed: The certificate is NOT trusted."
    (tmp_path / "apt.out").write_text(f"{ERR}\n{reason}\nE: Failed to fetch\n")
    done = part("apt.sh", "apt_says", tmp_path)
    assert done.stdout == f"{ERR}: {reason.strip()[:-1]}; name your network's CA bundle with --ca FILE\n"


def test_an_update_that_fetched_nothing_is_a_failure(tmp_path: Path) -> None:
    """Old apt ends with 0 then."""
    path = fake_apt(tmp_path, f"echo '{ERR}'; echo 'W: Some index files failed'; exit 0")
    assert part("apt.sh", "apt_get update || apt_says", tmp_path, PATH=path).stdout == f"{ERR}\n"


# --- how it is run


def test_apt_is_never_asked_by_a_terminal(tmp_path: Path) -> None:
    """C18: noninteractive, a time zone preset, needrestart silent, the user's files kept, stdin empty."""
    path = fake_apt(tmp_path, f'env > "{tmp_path}/env"; readlink /proc/self/fd/0 > "{tmp_path}/stdin"')
    part("apt.sh", "echo yes | apt_get install x", tmp_path, PATH=path, TZ="")
    told = (tmp_path / "env").read_text().splitlines()
    assert {"DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_SUSPEND=1", "LC_ALL=C", "TZ=UTC"} <= set(told)
    assert "--force-confold" in (tmp_path / "calls").read_text()
    assert (tmp_path / "stdin").read_text() == "/dev/null\n"


SERVICES: Final = ("systemctl", "deb-systemd-invoke", "invoke-rc.d")
POSTINST: Final = "systemctl daemon-reload && deb-systemd-invoke restart ssh && invoke-rc.d ssh start"


@pytest.mark.parametrize("status", [0, 100])
def test_services_and_systemd_are_left_alone(status: int, tmp_path: Path) -> None:
    """What a package's scripts call is a stand-in while packages are installed, and afterwards is gone."""
    path = fake_apt(tmp_path, f"{POSTINST} || exit 9; exit {status}")
    for name in SERVICES:
        program(tmp_path / "bin", name, f'echo "{name} $*" >> "{tmp_path}/reached"')
    done = part("apt.sh", "apt_install x; echo $?", tmp_path, PATH=path)
    assert done.stdout == f"{1 if status else 0}\n"
    assert not (tmp_path / "reached").exists()
    assert not (tmp_path / "own").exists()
    part("apt.sh", "apt_get install x", tmp_path, PATH=path)  # the machine's own are reached without
    assert (tmp_path / "reached").read_text().startswith("systemctl daemon-reload")


def test_an_interrupted_package_starts_no_service_either(tmp_path: Path) -> None:
    """`dpkg --configure -a` runs the scripts of packages that somebody else began to install."""
    path = fake_apt(tmp_path, f'[ -e "{tmp_path}/mended" ] || {{ echo "{INTERRUPTED}" >&2; exit 100; }}')
    program(tmp_path / "bin", "dpkg", f'systemctl daemon-reload; touch "{tmp_path}/mended"')
    program(tmp_path / "bin", "systemctl", f'touch "{tmp_path}/reached"')
    assert part("apt.sh", "apt_install x && echo went on", tmp_path, PATH=path).stdout.endswith("went on\n")
    assert not (tmp_path / "reached").exists()


def test_the_first_python_comes_the_same_way(tmp_path: Path) -> None:
    """Before there is a plan: python3 and the certificates, nothing removed for them, no service started."""
    path = fake_apt(tmp_path, f'case " $* " in *" install "*) {POSTINST} ;; esac')
    for name in SERVICES:
        program(tmp_path / "bin", name, f'touch "{tmp_path}/reached"')
    part("all", "dry_run='' may=root has_apt=yes ca=''; get_python", tmp_path, PATH=path)
    update, install = (tmp_path / "calls").read_text().splitlines()
    assert update.endswith(" update")
    assert install.endswith(" install --no-install-recommends --no-remove python3 ca-certificates")
    assert not (tmp_path / "reached").exists()


def test_no_python_in_a_dry_run_installs_none(tmp_path: Path) -> None:
    """Nor for a plain user, nor where apt is not: each has its sentence and its status."""
    path = fake_apt(tmp_path, "exit 0")
    for settings, status in (
        ("dry_run=yes may=root has_apt=yes", 1),
        ("dry_run='' may=user has_apt=yes", 3),
        ("dry_run='' may=root has_apt='' distro=centos release=7", 1),
    ):
        done = part("all", f"{settings}; get_python", tmp_path, PATH=path)
        assert (done.returncode, done.stderr.count("\n")) == (status, 1), done.stderr
        assert "there is no Python 3.8 or later here" in done.stderr
    assert not (tmp_path / "calls").exists()


# --- certificates


def test_apt_trusts_one_more(tmp_path: Path) -> None:
    """C27: beside the system's own, by an option for this run, readable by whom apt fetches as; nothing else is."""
    (tmp_path / "mine").write_text("MINE\n")
    done = part("all", f'ca="{tmp_path}/mine"; use_ca; echo "$apt_options"', tmp_path)
    assert f"-o Acquire::https::CAInfo={tmp_path}/apt.pem -o APT::Sandbox::User=root" in done.stdout
    system = Path("/etc/ssl/certs/ca-certificates.crt")
    own = system.read_text() if system.exists() else ""
    assert (tmp_path / "apt.pem").read_text() == own + "MINE\n"
    assert "CAInfo" not in part("all", 'ca=""; use_ca; echo "$apt_options"', tmp_path).stdout
