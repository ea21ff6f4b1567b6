"""What `crab setup` puts where: for one user below the home, or for all as in the image."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple

from hermitcrab.box import blocks, caches, files, session, shipped
from hermitcrab.box.changes import Item

# The lines that make a program read a file: how tmux, git and shells each say "include".
INCLUDES = {
    "tmux.conf": "source-file -q {path}",
    "gitconfig": "[include]\n\tpath = {path}",
    "profile.sh": 'if [ -r "{path}" ]; then . "{path}"; fi',
}
WHAT = {"tmux.conf": "tmux settings", "gitconfig": "git defaults", "profile.sh": "shell profile"}
BASH_LOGIN = (".bash_profile", ".bash_login", ".profile")  # bash reads the first that is there
MOTD = "message of the day"


class Box(NamedTuple):
    """The machine as setup sees it; another one in tests."""

    home: Path
    root: Path = Path("/")
    environ: Mapping[str, str] = os.environ
    superuser: bool = False
    shell: str = "/bin/bash"

    @property
    def own(self) -> Path:
        """The folder of crab's own settings."""
        return self.home / session.FOLDER

    def etc(self, path: str) -> Path:
        """Place an absolute path of the system."""
        return self.root / path.lstrip("/")


def for_user(box: Box) -> Iterator[Item]:
    """Yield crab's own files and the blocks that include them; what the system has for all is left out."""
    for name in INCLUDES:
        if not _in_system(box, name):
            yield Item(box.own / name, shipped.text(name), WHAT[name])
    for path, name in user_blocks(box):
        if name == "profile.sh" and _in_system(box, name):
            if path.name == ".bashrc" and not blocks.body(files.read(box.etc(session.COMMANDS_FILE))):
                yield _including(path, name, shipped.place(name))
        elif not _in_system(box, name):
            # git and tmux know "~"; the shells' quotes need the variable.
            start = "$HOME" if name == "profile.sh" else "~"
            yield _including(path, name, f"{start}/{session.FOLDER}/{name}")


def for_all(box: Box) -> Iterator[Item]:
    """Yield the image's files, and a block where somebody else's file is in such a place."""
    for target, name in shipped.SYSTEM:
        path, text = box.etc(target), shipped.text(name)
        if name in ("sshd.conf", "motd"):
            continue
        old = files.read(path)
        if name == "profile.sh" or old is None:
            yield Item(path, text, WHAT[name], mode=0o644)
        elif text not in old:
            own = f"/etc/hermitcrab/{name}"
            yield Item(box.etc(own), text, WHAT[name], mode=0o644)
            yield _including(path, name, own)
    if box.etc(session.COMMANDS_FILE).exists():
        yield _including(box.etc(session.COMMANDS_FILE), "profile.sh", shipped.place("profile.sh"))


def for_any(box: Box, asked: list[str]) -> Iterator[Item]:
    """Yield what is this box's own: PID 1's variables, the caches' places, the message of the day."""
    variables, target = session.pid1(box.root), box.home / session.FILE
    by_name = session.asked({**variables, **box.environ}, files.read(target), asked)
    passed = session.chosen(variables, by_name)
    if passed:
        text = session.render(passed, by_name, session.this_start(box.root))
        yield Item(target, text, f"{len(passed)} variables of PID 1 for SSH and tmux sessions", mode=0o600)
    disk = caches.data_disk(box.root, box.environ)
    if disk:
        yield Item(box.own / "caches.sh", caches.render(disk), f"caches of pip, uv, Hugging Face and torch on {disk}")
    if box.superuser:
        yield Item(box.etc(shipped.place("motd")), shipped.text("motd"), MOTD, mode=0o644)


def user_blocks(box: Box) -> Iterator[tuple[Path, str]]:
    """Yield the user's files that take a block, and what they include."""
    yield box.home / ".tmux.conf", "tmux.conf"
    # git reads this one first, so whatever else the user has wins over it.
    xdg = box.home / ".config/git/config"
    yield xdg if xdg.exists() else box.home / ".gitconfig", "gitconfig"
    logins = [box.home / name for name in BASH_LOGIN]
    yield next(filter(os.path.lexists, logins), logins[-1]), "profile.sh"
    yield box.home / ".bashrc", "profile.sh"
    if Path(box.shell).name == "zsh":
        yield box.home / ".zshenv", "profile.sh"


def every_block(box: Box) -> list[Path]:
    """Return all files that may ever have been given a block, for undo."""
    names = (".tmux.conf", ".gitconfig", ".config/git/config", *BASH_LOGIN, ".bashrc", ".zshenv")
    system = (session.COMMANDS_FILE, "etc/tmux.conf", "etc/gitconfig", "etc/ssh/sshd_config")
    return [*(box.home / name for name in names), *(box.root / name for name in system)]


def own_files(box: Box) -> list[Path]:
    """Return all files of crab's own below the home."""
    return [box.own / name for name in (*INCLUDES, "caches.sh", Path(session.FILE).name)]


def _including(path: Path, name: str, included: str) -> Item:
    body = INCLUDES[name].format(path=included).encode()
    return Item(path, body, f"{WHAT[name]}: reads {included}", block=True)


def _in_system(box: Box, name: str) -> bool:
    """Say whether all users have these settings already, as in the image."""
    system = files.read(box.etc(shipped.place(name)))
    return system is not None and shipped.text(name) in system
