"""`crab setup`: tmux, git, SSH, shell and caches of a box, beside what the user has and never over it.

Crab's own settings are files of their own; the user's files get a block of a line or two that includes
them. A second run changes nothing, ``--undo`` gives every file back as it was.
"""

from __future__ import annotations

import argparse
import os
import pwd
import sys
from pathlib import Path
from typing import Callable, Iterator, Sequence

from hermitcrab.box import changes, files, layout, session, sshd
from hermitcrab.box.changes import Change, Item, LeftAloneError
from hermitcrab.box.home import home, passwd_home, usable
from hermitcrab.box.keys import Key, MalformedKeyError, authorize, holds_a_key, merge, read_keys
from hermitcrab.errors import UserError

RECORD = "setup.json"
KEYS_STAY = "authorized_keys stays as it is: the keys in it may be your way in"
RELOAD = "for new SSH logins to have the settings: kill -HUP $(cat /run/sshd.pid)"


def main(arguments: Sequence[str]) -> int:
    """Set this box up for the user who calls, or take that back."""
    options = _parser().parse_args(arguments)
    return run(options, _this_box(), Path(passwd_home()) / ".ssh" / "authorized_keys")


def run(options: argparse.Namespace, box: layout.Box, authorized: Path, program: str = sshd.PROGRAM) -> int:
    """Plan, print the plan, and carry it out unless it is a dry run."""
    for option in ("system", "key_only"):
        if getattr(options, option) and not box.superuser:
            name = option.replace("_", "-")
            raise UserError(f"--{name} writes to /etc, which needs root: use sudo, or leave it out", code=2)
    done = undo(options, box) if options.undo else setup(options, box, authorized, program)
    if not done:
        print("nothing to change")
    elif options.dry_run:
        print(f"{done} to change; this was a dry run")
    return 0


def setup(options: argparse.Namespace, box: layout.Box, authorized: Path, program: str) -> int:
    """Make the changes that are missing, and return how many there were."""
    keys = [key for source in options.key for key in _read(source)]
    if options.key_only and not (keys or holds_a_key(authorized)):
        raise UserError(f"--key-only would lock you out: {authorized} holds no key; add one with --key FILE", code=2)
    record, dry = box.own / RECORD, options.dry_run
    done = _let_in(keys, authorized, dry)
    items = [*(layout.for_all if options.system else layout.for_user)(box), *layout.for_any(box, options.pass_env)]
    done += sum(_carry_out(change, lambda one: changes.make(one, record), dry) for change in _planned(items))
    if box.superuser:
        done += _serve(options, box, record, program)
    _tell_kept_back(options, box)
    return done


def undo(options: argparse.Namespace, box: layout.Box) -> int:
    """Give back the files as they were, and return how many."""
    path, own = box.own / RECORD, layout.own_files(box)
    record, done, left = changes.read_record(path), 0, 0
    for one in dict.fromkeys([*map(Path, record["files"]), *layout.every_block(box), *own]):
        try:
            change = changes.plan_undo(one, record, own=one in own)
            done += _carry_out(change, changes.take_back, options.dry_run) if change else 0
        except LeftAloneError as error:
            left += 1
            _warn(str(error))
    if not options.dry_run and not left:
        changes.forget(path)
    if done:
        print(KEYS_STAY)
    return done


def _this_box() -> layout.Box:
    place = home()
    if not usable(place) or not os.path.isdir(place):
        raise UserError(f"no home to set up: HOME is {place!r}, and so says passwd; set HOME to a folder of yours")
    try:
        shell = pwd.getpwuid(os.geteuid()).pw_shell
    except KeyError:
        shell = os.environ.get("SHELL", "")
    return layout.Box(Path(place), superuser=os.geteuid() == 0, shell=shell)


def _read(source: str) -> list[Key]:
    """Read the keys of a file, or of standard input; one bad line refuses all, before anything is changed."""
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise UserError(f"--key {source}: {files.because(error)}; give a .pub file, or - for stdin", code=2) from None
    found = list(read_keys(data.decode("utf-8", "surrogateescape")))
    for key in found:
        if isinstance(key, MalformedKeyError):
            raise UserError(f"--key {source} {key}", code=2)
    if not found:
        raise UserError(f"--key {source} holds no key: give the line of a .pub file", code=2)
    return [key for key in found if isinstance(key, Key)]


def _let_in(keys: list[Key], authorized: Path, dry: bool) -> int:
    """Add the keys; that they cannot be added is a failure, since they may be the only way in."""
    if not keys:
        return 0
    if not usable(str(authorized.parent.parent)):
        raise UserError("--key: this user's home in passwd is no folder that keys can be added to")
    try:
        old = files.read(authorized) or b""
        new = merge(old, keys)
        if not dry:
            authorize(authorized, keys)
    except OSError as error:
        raise UserError(f"cannot add keys to {authorized}: {files.because(error)}") from None
    if new == old:
        return 0
    print(f"{authorized}: {len(keys)} given, those that were missing added")
    return 1


def _planned(items: list[Item]) -> Iterator[Change]:
    for item in items:
        try:
            change = changes.plan(item)
        except LeftAloneError as error:
            _warn(str(error))
        else:
            yield from [change] if change else []


def _serve(options: argparse.Namespace, box: layout.Box, record: Path, program: str) -> int:
    """Give the SSH server its settings, if there is one and it takes them."""
    item = sshd.item(box.root, key_only=options.key_only) if os.path.exists(program) else None
    done = 0
    for change in _planned([item] if item else []):
        done = _carry_out(change, lambda one: sshd.make(one, record, box.root, program), options.dry_run)
    if done:
        print(RELOAD)
    return done


def _carry_out(change: Change, act: Callable[[Change], None], dry: bool) -> int:
    """Make a change, unless it is only to be told; say what could not be made."""
    try:
        if not dry:
            act(change)
    except (OSError, LeftAloneError) as error:
        _warn(f"{change.path}: {files.because(error)}" if isinstance(error, OSError) else str(error))
        return 0
    print(f"{change.path}: {change.what}")
    return 1


def _tell_kept_back(options: argparse.Namespace, box: layout.Box) -> None:
    variables = session.pid1(box.root)
    by_name = session.asked({**variables, **box.environ}, files.read(box.home / session.FILE), options.pass_env)
    names = session.kept_back(variables, by_name)
    if names:
        print(f"kept back as secrets: {', '.join(names)}; --pass-env NAME hands one over")


def _warn(message: str) -> None:
    print(f"crab: warning: {message}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="crab setup",
        description="Set up tmux, git, SSH, the shell and caches. What you wrote stays; a second run changes nothing.",
    )
    add = parser.add_argument
    add("--dry-run", action="store_true", help="print what would change, and change nothing")
    add("--undo", action="store_true", help="give every file back as it was; authorized_keys stays")
    add("--system", action="store_true", help="for all users, in /etc as in the image; needs root")
    add("--key", action="append", default=[], metavar="FILE", help="add the public keys of a file, or of - (stdin)")
    add("--key-only", action="store_true", help="no more SSH logins by password")
    add("--pass-env", action="append", default=[], metavar="NAME", help="also hand over this variable of PID 1")
    return parser
