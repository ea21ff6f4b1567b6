"""The user's home: HOME as far as it can be one, else the passwd entry's."""

from __future__ import annotations

import os
import pwd
from typing import Mapping

SHARED = "/tmp"  # noqa: S108 - where a uid without a name may write


def home(environ: Mapping[str, str] = os.environ) -> str:
    """Where the user's own files belong: HOME, or the passwd entry's home when HOME cannot be one."""
    given = environ.get("HOME", "")
    return given if usable(given) else passwd_home(environ)


def passwd_home(environ: Mapping[str, str] = os.environ) -> str:
    """The home that sshd reads keys from: the passwd entry's, whatever HOME says."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        given = environ.get("HOME", "")
        return given if given not in {"", "/"} else SHARED  # an unknown uid owns nothing else


def usable(path: str) -> bool:
    """Say whether a path can be a home that one writes settings to: nobody's own are "/" and /tmp."""
    return os.path.isabs(path) and os.path.realpath(path) not in {"/", SHARED}
