"""`crab setup`: what the user wrote stays, the second run changes nothing, undo gives all back."""

from __future__ import annotations

import argparse
import io
import os
import pwd
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from hermitcrab import cli
from hermitcrab.box import blocks, caches, files, home, layout, platform, session, setup, shipped
from hermitcrab.build import render
from hermitcrab.errors import UserError

CASES = Path(__file__).parents[1] / "cases"
KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'A' * 43} me@home"
OWN = session.FOLDER
# Options that every tmux from 2.6 to 3.4 takes without an error.
TMUX_OPTIONS = {
    *("mouse", "history-limit", "base-index", "pane-base-index", "renumber-windows", "escape-time"),
    *("focus-events", "default-terminal", "status-right"),
}
USER_FILES = {
    ".bashrc": b"alias ll='ls -l'",  # no last newline
    ".profile": b"export A=1\r\nexport B=2\r\n",
    ".tmux.conf": (CASES / "C25.txt").read_bytes(),
    ".gitconfig": b"[user]\n\tname = Me\n[init]\n\tdefaultBranch = trunk\n",
}


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> layout.Box:
    """A machine with a user who has files, PID 1 with variables, and no data disk."""
    place, root = tmp_path / "home", tmp_path / "root"
    for path, data in {**{f"home/{name}": data for name, data in USER_FILES.items()}, **SYSTEM_FILES}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    monkeypatch.setattr(caches, "data_disk", lambda *_: None)
    return layout.Box(place, root, {}, superuser=True)


SYSTEM_FILES = {
    "root/proc/1/environ": b"RUNPOD_POD_ID=abc\0RUNPOD_API_KEY=secret\0",
    "root/etc/ssh/sshd_config": b"Include /etc/ssh/sshd_config.d/*.conf\nUsePAM yes\n",
    "root/etc/bash.bashrc": b"PS1='$ '\n",
}


@pytest.fixture
def sshd(tmp_path: Path) -> Path:
    """A server that refuses what holds the word "refuse"."""
    program = tmp_path / "sshd"
    program.write_text('#!/bin/sh\nif grep -rq refuse "${3%/*}"; then echo "line 1: bad" >&2; exit 255; fi\n')
    program.chmod(0o755)
    return program


def crab(box: layout.Box, *arguments: str, program: Path = Path("/no/sshd")) -> int:
    """Call the command on the machine of the test."""
    options = setup._parser().parse_args(arguments)
    return setup.run(options, box, box.home / ".ssh/authorized_keys", str(program))


def snapshot(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """Every file with its mode and content, every folder, every link."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in sorted(folder.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            found[str(path)] = (mode, os.readlink(path))
        else:
            found[str(path)] = (mode, path.read_bytes() if path.is_file() else "folder")
    return found


# --- the user's files -----------------------------------------------------------------------------


def test_the_user_s_lines_stay_and_win(box: layout.Box) -> None:
    """Every file ends with the bytes that it held; the block stands before them."""
    assert crab(box) == 0

    for name, data in USER_FILES.items():
        new = (box.home / name).read_bytes()
        assert new.endswith(blocks.END + b"\n" + data)
        assert blocks.take(new) == data
    for name in layout.INCLUDES:
        assert (box.home / OWN / name).read_bytes() == shipped.text(name)


@pytest.mark.parametrize("arguments", [[], ["--system"]])
def test_a_second_run_changes_nothing_and_says_so(
    arguments: list[str], box: layout.Box, sshd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also with keys, in which case the first run tells what it did."""
    (box.home / "key.pub").write_text(KEY + "\r\n")
    arguments = [*arguments, "--key", str(box.home / "key.pub")]
    crab(box, *arguments, program=sshd)
    assert f"{box.home}/.ssh/authorized_keys: " in capsys.readouterr().out
    before = snapshot(box.home.parent)
    crab(box, *arguments, program=sshd)

    assert snapshot(box.home.parent) == before
    assert capsys.readouterr().out.splitlines()[-1] == "nothing to change"


@pytest.mark.parametrize("arguments", [[], ["--system"]])
def test_undo_gives_everything_back(arguments: list[str], box: layout.Box, sshd: Path) -> None:
    """Bytes, modes, and that there was nothing before."""
    (box.home / ".gitconfig").chmod(0o600)
    before = snapshot(box.home.parent)
    crab(box, *arguments, program=sshd)
    assert snapshot(box.home.parent) != before
    crab(box, "--undo")

    assert snapshot(box.home.parent) == before


@pytest.mark.parametrize("arguments", [[], ["--system"], ["--undo"]])
def test_a_dry_run_tells_the_plan_and_changes_nothing(
    arguments: list[str], box: layout.Box, sshd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan is what the real run does."""
    if arguments == ["--undo"]:
        crab(box, program=sshd)
        capsys.readouterr()
    before = snapshot(box.home.parent)
    crab(box, "--dry-run", *arguments, program=sshd)
    planned = capsys.readouterr().out.splitlines()
    assert snapshot(box.home.parent) == before
    crab(box, *arguments, program=sshd)

    assert re.fullmatch(r"\d+ to change; this was a dry run", planned[-1])
    assert capsys.readouterr().out.splitlines() == planned[:-1]


def test_links_are_written_through(box: layout.Box) -> None:
    """Dotfiles kept in a repository stay links, and the file behind them gets the block and loses it."""
    repository = box.home / "dotfiles"
    repository.mkdir()
    shutil.move(str(box.home / ".tmux.conf"), str(repository / "tmux.conf"))
    (box.home / ".tmux.conf").symlink_to("dotfiles/tmux.conf")
    (box.home / ".bashrc").unlink()
    (box.home / ".bashrc").symlink_to("dotfiles/not-there-yet")
    before = snapshot(box.home)
    crab(box)

    assert (box.home / ".tmux.conf").is_symlink() and (box.home / ".bashrc").is_symlink()
    assert blocks.body((repository / "tmux.conf").read_bytes())
    assert blocks.body((repository / "not-there-yet").read_bytes())
    crab(box, "--undo")
    assert snapshot(box.home) == before


@pytest.mark.parametrize("fault", ["read-only", "a folder", "half a block", "a circle"])
def test_what_cannot_be_written_is_one_warning(fault: str, box: layout.Box, capsys: pytest.CaptureFixture[str]) -> None:
    """The file stays, the rest is set up."""
    target = box.home / ".tmux.conf"
    if fault == "read-only":
        target.chmod(0o444)
    elif fault == "half a block":
        target.write_bytes(blocks.BEGIN + b"\nset -g mouse off\n")
    else:
        target.unlink()
        target.mkdir() if fault == "a folder" else target.symlink_to(target.name)
    before = snapshot(box.home)[str(target)]
    crab(box)

    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"crab: warning: {target} ")
    assert snapshot(box.home)[str(target)] == before
    assert blocks.body((box.home / ".bashrc").read_bytes())


def test_modes_are_kept(box: layout.Box) -> None:
    """A private file does not become readable for others."""
    (box.home / ".bashrc").chmod(0o600)
    (box.home / ".profile").chmod(0o755)
    crab(box)

    assert stat.S_IMODE((box.home / ".bashrc").stat().st_mode) == 0o600
    assert stat.S_IMODE((box.home / ".profile").stat().st_mode) == 0o755


def test_a_failed_write_leaves_the_file_whole(box: layout.Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing left beside it."""

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = snapshot(box.home)
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="No space"):
        files.write(box.home / ".bashrc", b"new")

    assert snapshot(box.home) == before


def test_a_full_disk_is_a_line_per_file(
    box: layout.Box, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And no traceback."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write", full)
    crab(box)

    captured = capsys.readouterr()
    assert "nothing to change" in captured.out
    assert all(line.endswith("No space left on device") for line in captured.err.splitlines())


def test_what_the_user_added_later_survives_undo(box: layout.Box, capsys: pytest.CaptureFixture[str]) -> None:
    """To a file that crab made: the user's line stays in it. A changed whole file stays and is named."""
    (box.home / ".gitconfig").unlink()
    crab(box)
    with (box.home / ".gitconfig").open("ab") as file:
        file.write(b"[user]\n\tname = Me\n")
    motd = box.root / "etc/motd.d/hermitcrab"
    motd.write_text("mine")
    crab(box, "--undo")

    assert (box.home / ".gitconfig").read_bytes() == b"[user]\n\tname = Me\n"
    assert motd.read_text() == "mine"
    assert f"{motd} was changed since: left as it is" in capsys.readouterr().err


def test_undo_works_without_its_record(box: layout.Box) -> None:
    """The markers tell enough to free the user's files."""
    crab(box)
    (box.home / OWN / setup.RECORD).write_text("damaged")
    crab(box, "--undo")

    for name, data in USER_FILES.items():
        assert (box.home / name).read_bytes() == data


def test_login_file_is_the_one_that_bash_reads(box: layout.Box) -> None:
    """With a .bash_profile there bash never reads .profile; zsh has its own."""
    (box.home / ".bash_profile").write_text("export C=3\n")
    crab(box._replace(shell="/usr/bin/zsh"))  # noqa: S604 - the user's login shell, nothing is run

    assert blocks.body((box.home / ".bash_profile").read_bytes())
    assert (box.home / ".profile").read_bytes() == USER_FILES[".profile"]
    assert blocks.body((box.home / ".zshenv").read_bytes())
    crab(box, "--undo")
    assert not (box.home / ".zshenv").exists()


def test_git_s_other_place_is_used_when_it_is_the_user_s(box: layout.Box) -> None:
    """Or a new ~/.gitconfig would win over it."""
    (box.home / ".gitconfig").unlink()
    (box.home / ".config/git").mkdir(parents=True)
    (box.home / ".config/git/config").write_text("[pull]\n\trebase = true\n")
    crab(box)

    assert not (box.home / ".gitconfig").exists()
    assert blocks.body((box.home / ".config/git/config").read_bytes())


def test_new_files_in_another_s_home_are_theirs(box: layout.Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sudo crab setup` with the user's HOME leaves nothing that only root can read."""
    given: list[str] = []
    os.chown(box.home, 1234, 1234)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", lambda path, *_: given.append(Path(path).name))
    files.write(box.home / "a/b", b"")

    assert "a" in given


# --- the whole system -----------------------------------------------------------------------------


def test_system_files_and_the_image_s_are_one_source(box: layout.Box, sshd: Path) -> None:
    """On a box that is our image, every file is byte for byte what the Dockerfile writes."""
    (box.root / "etc/hermitcrab").mkdir()
    (box.root / "etc/hermitcrab/manifest.json").write_text("{}")
    crab(box, "--system", program=sshd)

    image = dict(render.HOME)
    assert image == dict(shipped.SYSTEM)
    assert set(image.values()) == {path.name for path in (render.TEMPLATES / "home").iterdir()}
    for target, name in image.items():
        assert (box.root / target.lstrip("/")).read_bytes() == (render.TEMPLATES / "home" / name).read_bytes()


def test_what_all_users_have_the_user_does_not_get_again(box: layout.Box, sshd: Path) -> None:
    """After --system, or in the image, the home stays as it is."""
    crab(box, "--system", program=sshd)
    crab(box, program=sshd)

    for name, data in USER_FILES.items():
        assert (box.home / name).read_bytes() == data
    assert not (box.home / OWN / "tmux.conf").exists()


def test_the_image_s_profile_reaches_commands_over_ssh(box: layout.Box) -> None:
    """Where only the profile is there for all, ~/.bashrc reads it: `ssh box COMMAND` has no login shell."""
    profile = box.root / "etc/profile.d/hermitcrab.sh"
    profile.parent.mkdir()
    profile.write_bytes(shipped.text("profile.sh"))
    crab(box)

    assert b'. "/etc/profile.d/hermitcrab.sh"' in blocks.body((box.home / ".bashrc").read_bytes())
    assert (box.home / ".profile").read_bytes() == USER_FILES[".profile"]


def test_somebody_else_s_system_file_gets_a_block(box: layout.Box) -> None:
    """The platform's own /etc/gitconfig and tmux.conf stay."""
    (box.root / "etc/gitconfig").write_text("[safe]\n\tdirectory = *\n")
    crab(box, "--system")

    new = (box.root / "etc/gitconfig").read_bytes()
    assert blocks.take(new) == b"[safe]\n\tdirectory = *\n"
    assert b"path = /etc/hermitcrab/gitconfig" in blocks.body(new)
    assert (box.root / "etc/hermitcrab/gitconfig").read_bytes() == shipped.text("gitconfig")


@pytest.mark.parametrize("option", ["--system", "--key-only"])
def test_etc_needs_root(option: str, box: layout.Box) -> None:
    """One line, and nothing is written."""
    before = snapshot(box.home.parent)
    with pytest.raises(UserError, match="needs root") as refused:
        crab(box._replace(superuser=False), option)

    assert refused.value.code == 2
    assert snapshot(box.home.parent) == before


def test_another_user_s_setup_leaves_etc_alone(box: layout.Box, sshd: Path) -> None:
    """No drop-in, no message of the day."""
    before = snapshot(box.root)
    crab(box._replace(superuser=False), program=sshd)

    assert snapshot(box.root) == before
    assert blocks.body((box.home / ".tmux.conf").read_bytes())


# --- the SSH server -------------------------------------------------------------------------------


def drop_in(box: layout.Box) -> Path:
    """Where the server's settings go."""
    return box.root / "etc/ssh/sshd_config.d/hermitcrab.conf"


def test_password_logins_stay_unless_asked(box: layout.Box, sshd: Path) -> None:
    """An adopted box keeps its host keys and its ways in; --key-only closes the one, and stays closed."""
    crab(box, program=sshd)
    words = {line.split()[0] for line in drop_in(box).read_text().splitlines()}
    assert words == {"#", "X11Forwarding", "ClientAliveInterval", "ClientAliveCountMax"}

    (box.home / "key.pub").write_text(KEY)
    crab(box, "--key-only", "--key", str(box.home / "key.pub"), program=sshd)
    once = drop_in(box).read_text()
    assert "\nPasswordAuthentication no\n" in once
    assert "HostKey" not in once and "SetEnv" not in once
    crab(box, program=sshd)
    assert drop_in(box).read_text() == once


def test_key_only_without_a_key_is_refused(box: layout.Box, sshd: Path) -> None:
    """It would lock the user out."""
    with pytest.raises(UserError, match="lock you out"):
        crab(box, "--key-only", program=sshd)
    assert not drop_in(box).exists()


@pytest.mark.parametrize("config", ["UsePAM yes\n", "Match User x\nInclude /etc/ssh/sshd_config.d/*.conf\n"])
def test_a_config_that_includes_nothing_gets_a_block(config: str, box: layout.Box, sshd: Path) -> None:
    """At the top, since the end may belong to a Match."""
    path = box.root / "etc/ssh/sshd_config"
    path.write_text(config)
    crab(box, program=sshd)

    assert not drop_in(box).exists()
    assert path.read_bytes().startswith(blocks.BEGIN)
    assert path.read_bytes().endswith(config.encode())
    assert b"\nClientAliveInterval 30\n" in blocks.body(path.read_bytes())


@pytest.mark.parametrize("include", [True, False])
def test_refused_settings_are_rolled_back(
    include: bool, box: layout.Box, sshd: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own words are the warning, and its files are what they were."""
    path = box.root / "etc/ssh/sshd_config"
    path.write_text("Include /etc/ssh/sshd_config.d/*.conf\n" if include else "UsePAM yes\n")
    text = shipped.text
    monkeypatch.setattr(shipped, "text", lambda name: text(name) + b"refuse\n" * (name == "sshd.conf"))
    before = path.read_bytes()
    crab(box, program=sshd)

    captured = capsys.readouterr()
    assert "`sshd -t` refuses the settings (line 1: bad)" in captured.err
    assert path.read_bytes() == before
    assert not drop_in(box).exists()
    assert setup.RELOAD not in captured.out


def test_a_config_that_was_broken_before_is_left_alone(
    box: layout.Box, sshd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or the user would blame the wrong one."""
    (box.root / "etc/ssh/sshd_config").write_text("refuse\n")
    crab(box, program=sshd)

    assert "`sshd -t` fails already (line 1: bad)" in capsys.readouterr().err
    assert (box.root / "etc/ssh/sshd_config").read_text() == "refuse\n"


def test_no_server_no_settings(box: layout.Box, capsys: pytest.CaptureFixture[str]) -> None:
    """A box without sshd hears nothing of it."""
    crab(box)

    assert not drop_in(box).exists()
    assert capsys.readouterr().err == ""


# --- keys -----------------------------------------------------------------------------------------


def test_c16_a_key_is_added_to_a_file_without_last_newline(box: layout.Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """From standard input; the old lines stay, and undo takes nobody's way in."""
    authorized = box.home / ".ssh/authorized_keys"
    authorized.parent.mkdir()
    authorized.write_bytes((CASES / "C16.txt").read_bytes())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"null\r\n{KEY}\r\n".encode())))
    crab(box, "--key", "-")

    expected = (CASES / "C16.txt").read_bytes() + b"\n" + KEY.encode() + b"\n"
    assert authorized.read_bytes() == expected
    assert stat.S_IMODE(authorized.stat().st_mode) == 0o600
    crab(box, "--undo")
    assert authorized.read_bytes() == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("", "holds no key"),
        ("null\n", "holds no key"),
        (f"{KEY}\nssh-rsa AAAA\n", "line 2 is damaged"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\n", "private key"),
    ],
)
def test_what_is_no_key_is_refused_before_anything_changes(text: str | None, said: str, box: layout.Box) -> None:
    """A user error of exit status 2; a dry run says it too."""
    source = box.home / "key.pub"
    if text is not None:
        source.write_text(text)
    before = snapshot(box.home)
    for more in ([], ["--dry-run"]):
        with pytest.raises(UserError, match=said) as refused:
            crab(box, "--key", str(source), *more)
        assert refused.value.code == 2
    assert snapshot(box.home) == before


def test_keys_that_cannot_be_added_are_a_failure(box: layout.Box) -> None:
    """They may be the only way in."""
    (box.home / ".ssh").write_text("in the way")
    (box.home / "key.pub").write_text(KEY)
    with pytest.raises(UserError, match="cannot add keys"):
        crab(box, "--key", str(box.home / "key.pub"))


# --- the home -------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["", "/", "//", "/./", "relative", "/tmp", None])
def test_home_comes_from_passwd_when_it_cannot_be_one(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root of the file system is nobody's home."""
    entry = argparse.Namespace(pw_dir="/home/me")
    monkeypatch.setattr(pwd, "getpwuid", lambda _: entry)

    assert home.home({} if given is None else {"HOME": given}) == "/home/me"
    assert home.home({"HOME": "/data/me"}) == "/data/me"
    assert home.passwd_home({"HOME": "/data/me"}) == "/home/me"


@pytest.mark.parametrize("place", ["/", "/no/such/home", "/tmp"])
def test_without_a_home_nothing_is_written(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to the root of the file system nor into a folder of everybody's."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: argparse.Namespace(pw_dir=place, pw_shell=""))
    monkeypatch.setattr(files, "write", lambda *_: pytest.fail("something was written"))

    with pytest.raises(UserError, match="no home to set up"):
        setup.main([])


# --- the settings ---------------------------------------------------------------------------------


def options_of(text: str) -> set[str]:
    """The names that a tmux.conf sets."""
    return {found[1] for found in re.finditer(r"^set\w*(?:\s+-\w+)*\s+([\w-]+)", text, re.MULTILINE)}


def test_tmux_settings_are_plain() -> None:
    """Only options that tmux 2.6 and 3.4 share; a newer or a withdrawn one is found."""
    text = shipped.text("tmux.conf").decode()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]

    assert len(options_of(text)) == len(lines)
    assert options_of(text) <= TMUX_OPTIONS
    assert not options_of("set -g mouse-select-pane on\nset -sg extended-keys on\n") & TMUX_OPTIONS


@pytest.mark.skipif(not shutil.which("tmux"), reason="needs tmux")
@pytest.mark.parametrize(("extra", "fails"), [("", False), ("set -g mouse-select-pane on\n", True)])
def test_tmux_loads_the_settings(extra: str, fails: bool, tmp_path: Path) -> None:
    """Without a word; a withdrawn option would be heard."""
    (tmp_path / "tmux.conf").write_bytes(shipped.text("tmux.conf") + extra.encode())
    done = tmux(tmp_path, "/dev/null", "start-server", ";", "source-file", str(tmp_path / "tmux.conf"))

    assert (done.returncode != 0 or done.stdout + done.stderr != "") == fails


@pytest.mark.skipif(not shutil.which("tmux"), reason="needs tmux")
def test_c25_tmux_has_our_settings_and_the_user_s_win(box: layout.Box) -> None:
    """Whatever of the old file this tmux no longer knows."""
    crab(box)
    show = ["new-session", "-d", ";", "show-options", "-gv", "history-limit", ";", "show-options", "-gv", "prefix"]
    done = tmux(box.home, str(box.home / ".tmux.conf"), *show)
    tmux(box.home, "/dev/null", "kill-server")

    assert done.stdout.splitlines() == ["50000", "C-a"]


def tmux(place: Path, config: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a tmux server of the test's own."""
    environment = {"HOME": str(place), "PATH": os.environ["PATH"], "TMUX_TMPDIR": str(place), "LANG": "C.UTF-8"}
    return subprocess.run(
        ["tmux", "-L", "crab-test", "-f", config, *command],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def test_git_reads_the_defaults_and_the_user_s_win(box: layout.Box) -> None:
    """By the include in the user's own file."""
    crab(box)
    environment = {"HOME": str(box.home), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}

    def value(name: str) -> str:
        command = ["git", "-C", str(box.home), "config", "--get", name]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    assert (value("pull.ff"), value("init.defaultBranch"), value("user.name")) == ("only", "trunk", "Me")


def test_nothing_starts_tmux_by_itself() -> None:
    """An rc file that does breaks scp and VS Code."""
    for name in ("profile.sh", *layout.INCLUDES):
        assert not re.search(r"tmux (new|attach|a\b)", shipped.text(name).decode() + layout.INCLUDES.get(name, ""))


@pytest.mark.skipif(not shutil.which("script"), reason="needs script, to have a terminal")
def test_unknown_terminal_falls_back_only_on_a_terminal(box: layout.Box) -> None:
    """Without one, as under scp and rsync, nothing is asked and nothing is printed."""
    crab(box)
    script = '. "$HOME/.bashrc"; echo "$TERM"'
    environment = {"HOME": str(box.home), "PATH": os.environ["PATH"], "TERM": "xterm-of-tomorrow"}

    def said(*command: str) -> list[bytes]:
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True
        ).stdout.split()

    assert said("bash", "-c", script) == [b"xterm-of-tomorrow"]
    assert said("script", "-qec", f"bash -c '{script}'", "/dev/null") == [b"xterm-256color"]


def test_the_message_of_the_day_names_commands_that_exist() -> None:
    """It is short, and tells what to do next."""
    text = shipped.text("motd").decode()

    assert {*re.findall(r"crab (\w+)", text.split("\n", 1)[1])} <= set(cli.COMMANDS)
    assert len(text.splitlines()) <= 6


def test_the_real_platform_is_asked_for_the_data_disk() -> None:
    """The name that the cache settings call."""
    assert callable(platform.detect)
