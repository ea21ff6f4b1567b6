"""The settings that come with hermitcrab: templates/home, one source for the image and for every other box."""

from __future__ import annotations

from pathlib import Path

# Where each file goes in the image, and by `crab setup --system` on any other box.
SYSTEM = (
    ("/etc/ssh/sshd_config.d/hermitcrab.conf", "sshd.conf"),
    ("/etc/tmux.conf", "tmux.conf"),
    ("/etc/gitconfig", "gitconfig"),
    ("/etc/profile.d/hermitcrab.sh", "profile.sh"),
    ("/etc/motd.d/hermitcrab", "motd"),
)


def text(name: str) -> bytes:
    """Return a file of templates/home."""
    return (_folder() / name).read_bytes()


def place(name: str) -> str:
    """Say where a file goes in the image."""
    return next(target for target, source in SYSTEM if source == name)


def _folder() -> Path:
    """In the wheel, or in the source tree."""
    wheel = Path(__file__).with_name("home_files")
    return wheel if wheel.is_dir() else Path(__file__).parents[2] / "templates" / "home"
