"""The entrypoint: sshd starts only for a key, a failed step never stops the command."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hermitcrab.box import entry, hooks, keys, session
from hermitcrab.box.home import passwd_home

ROOT = Path(__file__).parents[2]


def make_key(seed: int) -> str:
    """Build the line of a public key; no secret belongs to it."""
    return f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'ABCDEFGH'[seed] * 43} me@home"


def make_program(folder: Path, name: str, body: str) -> Path:
    """Put a shell script in place of a system's program."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> entry.Places:
    """A system of fakes: ssh-keygen writes and reads its name, sshd notes how it was started."""
    keygen = """for last; do :; done
case "$1" in -lf) echo "256 SHA256:of-$(cat "$last")"; exit;; esac
echo "private $*" >"$last"; echo "$3" >"$last.pub"; echo "$3" >>"$CALLS" """
    make_program(tmp_path / "bin", "ssh-keygen", keygen)
    sshd = make_program(tmp_path / "bin", "sshd", 'echo "sshd $*" >>"$CALLS"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    (tmp_path / "etc").mkdir()
    return entry.Places(tmp_path / ".ssh" / "authorized_keys", tmp_path / "etc", tmp_path / "run", str(sshd))


def calls(places: entry.Places) -> list[str]:
    """What the fakes were asked to do."""
    noted = places.host_keys.parent / "calls"
    return noted.read_text().splitlines() if noted.exists() else []


def free_port() -> int:
    """Find a port that nobody holds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve(places: entry.Places, *, root: bool = True, **environment: str) -> bool:
    """Call serve_ssh on a free port."""
    environment.setdefault("SSH_PORT", str(free_port()))
    return entry.serve_ssh(environment, places, root=root)


def test_keys_of_every_variable_start_sshd(places: entry.Places, capsys: pytest.CaptureFixture[str]) -> None:
    """All three variables count, host keys are made and shown, sshd gets the port."""
    port = str(free_port())
    reachable = serve(
        places,
        SSH_PORT=port,
        PUBLIC_KEY=make_key(1),
        SSH_PUBLIC_KEY=make_key(2) + "\r\nnull\r\n",
        AUTHORIZED_KEYS=f"{make_key(3)}\n{make_key(1)}",
    )

    assert reachable
    assert places.authorized_keys.read_text().splitlines() == [make_key(n) for n in (1, 2, 3)]
    assert calls(places) == ["ed25519", "rsa", f"sshd -p {port}"]
    assert places.run.is_dir()
    assert capsys.readouterr().err.splitlines() == [
        "entry: host key 256 SHA256:of-ed25519",
        "entry: host key 256 SHA256:of-rsa",
    ]


def test_host_keys_are_made_once(places: entry.Places) -> None:
    """The second start keeps the box's identity; a missing one of the two is made."""
    serve(places, PUBLIC_KEY=make_key(1))
    first = (places.host_keys / "ssh_host_rsa_key").read_bytes()
    (places.host_keys / "ssh_host_ed25519_key").unlink()
    serve(places)

    assert [call for call in calls(places) if "sshd" not in call] == ["ed25519", "rsa", "ed25519"]
    assert (places.host_keys / "ssh_host_rsa_key").read_bytes() == first
    assert sorted(path.name for path in places.host_keys.iterdir()) == [
        "ssh_host_ed25519_key",
        "ssh_host_ed25519_key.pub",
        "ssh_host_rsa_key",
        "ssh_host_rsa_key.pub",
    ]


@pytest.mark.parametrize("old", [None, "", "# nobody yet\n"])
def test_no_key_no_sshd(places: entry.Places, old: str | None) -> None:
    """A daemon that lets nobody in is not started, and nothing is written for it."""
    if old is not None:
        places.authorized_keys.parent.mkdir()
        places.authorized_keys.write_text(old)

    assert not serve(places, PUBLIC_KEY="null")
    assert calls(places) == []
    assert list(places.host_keys.iterdir()) == []


def test_malformed_key_is_one_warning(places: entry.Places, capsys: pytest.CaptureFixture[str]) -> None:
    """The warning names variable and line; the good key beside it still works."""
    assert serve(places, SSH_PUBLIC_KEY=f"{make_key(1)}\nssh-rsa AAAA")

    (line,) = [said for said in capsys.readouterr().err.splitlines() if "warning" in said]
    assert line.startswith("entry: warning: SSH_PUBLIC_KEY line 2 is damaged or cut short")
    assert places.authorized_keys.read_text() == make_key(1) + "\n"


def test_other_user_gets_no_sshd(places: entry.Places, capsys: pytest.CaptureFixture[str]) -> None:
    """Under another uid there is one warning and no attempt."""
    assert not serve(places, root=False, PUBLIC_KEY=make_key(1))
    assert not serve(places, root=False)

    assert capsys.readouterr().err.count("not root") == 1
    assert calls(places) == []
    assert not places.authorized_keys.parent.exists()


def test_unwritable_home_is_a_warning(places: entry.Places, capsys: pytest.CaptureFixture[str]) -> None:
    """Where keys cannot be written there is one line with the reason, and the start goes on."""
    places.authorized_keys.parent.write_text("in the way")

    assert not serve(places, PUBLIC_KEY=make_key(1))
    assert capsys.readouterr().err.startswith("entry: warning: cannot add keys to ")


def test_unwritable_keys_still_let_the_old_ones_in(
    places: entry.Places, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mounted read-only authorized_keys is enough for sshd."""
    keys.authorize(places.authorized_keys, [keys.parse_key(make_key(1))])

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system", str(places.authorized_keys))

    monkeypatch.setattr(keys, "replace", read_only)

    assert serve(places, PUBLIC_KEY=make_key(2))
    assert capsys.readouterr().err.startswith("entry: warning: cannot add keys to ")
    assert calls(places)[-1].startswith("sshd -p ")


@pytest.mark.parametrize("program", ["ssh-keygen", "sshd"])
def test_failing_program_is_a_warning(places: entry.Places, capsys: pytest.CaptureFixture[str], program: str) -> None:
    """A program that fails is one line per step with its own last words; no half-made key stays."""
    make_program(Path(places.sshd).parent, program, "echo first; echo the reason >&2; exit 3")
    serve(places, PUBLIC_KEY=make_key(1))

    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(warnings) == {"ssh-keygen": 2, "sshd": 1}[program]
    assert all(line.endswith(f"{program}: the reason") for line in warnings)
    assert not [path for path in places.host_keys.iterdir() if path.name.startswith(".new-")]


def test_missing_sshd_is_a_warning(places: entry.Places, capsys: pytest.CaptureFixture[str]) -> None:
    """An image without sshd still runs its command."""
    Path(places.sshd).unlink()
    serve(places, PUBLIC_KEY=make_key(1))

    assert f"{places.sshd}: No such file or directory" in capsys.readouterr().err


def test_taken_port_is_a_warning(places: entry.Places, capsys: pytest.CaptureFixture[str]) -> None:
    """With the host's network the port may be the host's own sshd: say so, start nothing."""
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        serve(places, PUBLIC_KEY=make_key(1), SSH_PORT=str(port))

    assert f"cannot start sshd on port {port}: Address already in use" in capsys.readouterr().err
    assert not [call for call in calls(places) if call.startswith("sshd")]


@pytest.mark.parametrize(
    ("text", "port", "warned"),
    [
        (None, 22, False),
        ("", 22, False),
        (" 2222\n", 2222, False),
        ("1", 1, False),
        ("65535", 65535, False),
        ("65536", 22, True),
        ("0", 22, True),
        ("-1", 22, True),
        ("22; id", 22, True),
        ("٢٢", 22, True),
        ("9" * 5000, 22, True),
    ],
)
def test_port(text: str | None, port: int, warned: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """SSH_PORT is a port, or a warning and 22."""
    assert entry.port({} if text is None else {"SSH_PORT": text}) == port
    assert ("using 22" in capsys.readouterr().err) == warned


# --- the command ----------------------------------------------------------------------------------

# The home is a fake, so that no test can touch the keys and the sshd of the machine it runs on.
START = """import sys
from hermitcrab.box import entry
entry.passwd_home = lambda environ: sys.argv[1]
entry.hooks.run = lambda: iter(())
sys.exit(entry.main(sys.argv[2:]))
"""


def start(home: Path, *command: str | bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the entrypoint with a fake home until its command ends."""
    return subprocess.run(
        _start(home, *command),
        env=_clean(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    )


def _start(home: Path, *command: str | bytes) -> list[str | bytes]:
    return [sys.executable, "-c", START, str(home), *command]


def _clean(environment: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in entry.KEY_VARIABLES}
    return {**kept, "PYTHONPATH": str(ROOT), **environment}


def test_command_is_the_process(tmp_path: Path) -> None:
    """Arguments arrive byte for byte, the exit status comes back, no output is added."""
    command = [b"sh", b"-c", b'printf "%s|" "$@"; exit 7', b"x", b"a b", b"--", b"\xff*\n", b""]
    done = start(tmp_path, "--", *command)

    assert (done.returncode, done.stdout, done.stderr) == (7, b"a b|--|\xff*\n||", b"")


def test_only_the_first_dashes_are_ours(tmp_path: Path) -> None:
    """``--help`` behind ``--`` is a command like any other, without it it is a question."""
    assert start(tmp_path, "--", "--help").returncode == 127
    assert start(tmp_path, "--help").stdout.startswith(b"usage: crab entry")


@pytest.mark.parametrize("command", ["no-such-program", "/no/such/program", "orphan-script"])
def test_unknown_command_is_127(tmp_path: Path, command: str) -> None:
    """A missing program, or a script's missing interpreter, is one line and 127."""
    make_program(tmp_path / "bin", "orphan-script", "").write_text("#!/no/such/shell\n")
    done = start(tmp_path, "--", command, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    assert done.returncode == 127
    assert done.stderr.decode().count("\n") == 1
    assert done.stderr.decode().startswith(f"entry: {command}: not found")


@pytest.mark.parametrize(("text", "mode"), [("#!/bin/sh\n", 0o644), ("no header\n", 0o755)])
def test_what_cannot_be_run_is_126(tmp_path: Path, text: str, mode: int) -> None:
    """A file without the right or the form to run is one line and 126."""
    program = make_program(tmp_path, "program", "")
    program.write_text(text)
    program.chmod(mode)
    done = start(tmp_path, "--", str(program))

    assert done.returncode == 126
    assert done.stderr.decode().count("\n") == 1


def test_a_directory_is_126(tmp_path: Path) -> None:
    """A directory is no program."""
    assert start(tmp_path, str(tmp_path)).returncode == 126


def test_sigterm_reaches_the_command(tmp_path: Path) -> None:
    """The command handles SIGTERM itself and its status counts."""
    script = "trap 'echo saved; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(
        _start(tmp_path, "--", "sh", "-c", script), env=_clean({}), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == b"saved\n"
        assert process.wait(10) == 5


def test_sigpipe_is_not_left_ignored(tmp_path: Path) -> None:
    """A pipeline inside the command ends as in any shell, though Python ignores SIGPIPE."""
    done = start(tmp_path, "--", "grep", "SigIgn", "/proc/self/status")

    assert int(done.stdout.split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0


@pytest.mark.parametrize(("home", "seen"), [("", None), ("/", None), ("/data", "/data")])
def test_home_is_mended(tmp_path: Path, home: str, seen: str | None) -> None:
    """A HOME that is unset or "/" becomes the passwd entry's; any other stays."""
    done = start(tmp_path, "--", "sh", "-c", 'printf %s "$HOME"', HOME=home)

    assert done.stdout.decode() == (seen or str(tmp_path))


@pytest.mark.parametrize("home", ["", "/", "/data"])
def test_unknown_uid_gets_a_name_and_a_home(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A uid without a passwd entry has a user name and a home it can write to; a HOME that was given stays."""

    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("USER", raising=False)
    monkeypatch.setenv("HOME", home)
    entry.settle(passwd_home(os.environ))

    assert os.environ["HOME"] == ("/data" if home == "/data" else "/tmp")
    assert os.environ["USER"] == f"uid{os.geteuid()}"


def test_unreadable_working_directory_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who may not read the working directory starts at home, and is told."""
    monkeypatch.chdir("/")
    monkeypatch.setattr(os, "access", lambda *_: False)
    entry.settle(str(tmp_path))
    assert Path.cwd() == tmp_path
    assert f"starting in {tmp_path}" in capsys.readouterr().err

    entry.settle(str(tmp_path / "missing"))
    assert Path.cwd() == tmp_path
    assert "warning: cannot change to" in capsys.readouterr().err


def test_without_a_command_it_waits(tmp_path: Path) -> None:
    """No command: it says that nobody can log in, and sleeps until it is told to end."""
    make_program(tmp_path / "bin", "sleep", 'echo "$@"')
    done = start(tmp_path, "--", PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    assert (done.returncode, done.stdout) == (0, b"infinity\n")
    assert b"no SSH key in PUBLIC_KEY" in done.stderr


def test_waiting_ends_at_sigterm(tmp_path: Path) -> None:
    """A waiting box stops at once."""
    with subprocess.Popen(_start(tmp_path), env=_clean({}), stderr=subprocess.PIPE) as process:
        assert process.stderr
        process.stderr.readline()
        time.sleep(0.1)
        process.terminate()
        assert process.wait(2) == -signal.SIGTERM


# --- hooks and the session environment ------------------------------------------------------------


def test_hooks_run_in_name_order(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Executables only; their output goes to the log, and a clean run has nothing to report."""
    for name in ("20-second", "10-first", "30-third"):
        make_program(tmp_path, name, f"echo {name}")
    make_program(tmp_path, "05-old~", "echo backup")
    make_program(tmp_path, ".hidden", "echo hidden")
    (tmp_path / "00-folder").mkdir()

    assert list(hooks.run(tmp_path)) == []
    captured = capfd.readouterr()
    assert (captured.out, captured.err.split()) == ("", ["10-first", "20-second", "30-third"])


def test_a_failing_hook_is_named_and_the_next_one_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever is wrong with it."""
    make_program(tmp_path, "1-fails", "exit 3")
    make_program(tmp_path, "2-hangs", "sleep 60 & sleep 60")
    make_program(tmp_path, "3-no-shell", "").write_text("#!/no/such/shell\n")
    make_program(tmp_path, "4-not-executable", "").chmod(0o644)
    make_program(tmp_path, "5-killed", "kill -9 $$")
    make_program(tmp_path, "6-works", "echo works")
    start = time.monotonic()

    assert [line.replace(f"{tmp_path}/", "") for line in hooks.run(tmp_path, limit=0.3)] == [
        "hook 1-fails failed with status 3",
        "hook 2-hangs did not end within 0.3 s: killed",
        "hook 3-no-shell cannot be run: No such file or directory",
        "hook 4-not-executable is not executable: skipped",
        "hook 5-killed failed with status -9",
    ]
    assert time.monotonic() - start < 10
    assert capfd.readouterr().err == "works\n"


def test_what_a_hook_leaves_running_holds_nobody_up(tmp_path: Path) -> None:
    """A service that a hook starts in the background goes on."""
    make_program(tmp_path, "service", f"sleep 60 >/dev/null 2>&1 & echo $! >{tmp_path}/pid; exit 0")

    assert list(hooks.run(tmp_path)) == []
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # it was there


def test_no_hooks_is_no_failure(tmp_path: Path) -> None:
    """Nor is a folder that cannot be read."""
    assert list(hooks.run(tmp_path / "none")) == []


def test_hooks_come_after_the_keys_and_stop_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever has a key can log in while a hook runs; a failed one is a warning before the command."""
    order: list[str] = []

    def let_in(*_: object) -> bool:
        order.append("keys")
        return True

    def run() -> list[str]:
        order.append("hooks")
        return ["hook x failed with status 1"]

    def become(command: list[str]) -> int:
        order.append(" ".join(command))
        return 5

    monkeypatch.setattr(entry, "passwd_home", lambda _: str(tmp_path))
    monkeypatch.setattr(entry, "let_in", let_in)
    monkeypatch.setattr(hooks, "run", run)
    monkeypatch.setattr(entry, "become", become)
    monkeypatch.setattr(entry, "_warn", order.append)

    assert entry.main(["--", "train", "it"]) == 5
    assert order == ["keys", "hooks", "hook x failed with status 1", "train it"]


def test_sessions_get_the_platform_s_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """When somebody can come in; that they cannot be written down is a warning."""
    handed: list[tuple[Path, str]] = []

    def hand_over(home: Path, environment: dict[str, str]) -> None:
        handed.append((home, environment["RUNPOD_POD_ID"]))
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(session, "hand_over", hand_over)
    monkeypatch.setattr(entry, "serve_ssh", lambda environment, *_, **__: "PUBLIC_KEY" in environment)

    assert not entry.let_in(tmp_path, {"RUNPOD_POD_ID": "abc"})
    assert handed == []
    assert entry.let_in(tmp_path, {"RUNPOD_POD_ID": "abc", "PUBLIC_KEY": make_key(1)})
    assert handed == [(tmp_path, "abc")]
    assert "cannot hand the platform's variables to SSH sessions: Read-only" in capsys.readouterr().err


@pytest.mark.parametrize("home", ["/", "/tmp"])
def test_keys_are_never_written_to_the_root(
    home: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user without a home gets one warning, and only when keys were given."""
    monkeypatch.setattr(entry, "serve_ssh", lambda *_, **__: pytest.fail("keys were written"))

    assert not entry.let_in(Path(home), {"PUBLIC_KEY": "null"})
    assert capsys.readouterr().err == ""
    assert not entry.let_in(Path(home), {"PUBLIC_KEY": make_key(1)})
    assert "is no home of this user's own" in capsys.readouterr().err
