"""Reads a user's requirements file beside a combo: what would fight with the image's torch.

The image holds torch, torchvision and torchaudio already, and a constraints file keeps them, so
a line for them is right when it asks for what the combo has. Findings name both values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol
from urllib.parse import unquote

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from hermitcrab.box.mask import mask
from hermitcrab.build.lint import Finding


class ComboLike(Protocol):
    """What of a combo is needed here."""

    @property
    def id(self) -> str:
        """Its name, such as cuda12.1-torch2.4.1-py311."""

    @property
    def cuda(self) -> str:
        """The CUDA version of the build, such as 12.1."""

    @property
    def torch(self) -> str:
        """The version, without a build tag."""

    @property
    def torchvision(self) -> str:
        """The version, without a build tag."""

    @property
    def torchaudio(self) -> str:
        """The version, without a build tag."""

    @property
    def python(self) -> str:
        """The version in two parts, such as 3.11."""

    @property
    def wheels(self) -> str:
        """Where the wheels come from: `pypi`, or the build of a PyTorch index."""


_WRONG_NAMES = {"pytorch": "torch", "pytorch-cuda": "torch", "torch-vision": "torchvision"}
_TIED = {
    "xformers": "each of its releases asks for one torch",
    "vllm": "each of its releases asks for one torch",
    "torchtext": "each of its releases asks for one torch",
    "flash-attn": "it is compiled against the torch it finds, in a build environment of its own",
    "triton": "torch brings the one it was made for",
}
_LONGEST = 4096

_COMMENT = re.compile(r"(?:^|\s)#.*")
_INDEX = re.compile(r"(?:-i|-f|--(?:extra-)?index-url|--find-links)[\s=]\s{0,8}(\S+)")
_BUILD = re.compile(r"(?<![A-Za-z0-9])(cu\d{2,3}|cpu|rocm\d[\d.]{0,8})(?![A-Za-z0-9])")
_WHEEL = re.compile(r"(?:^|/)(torch|torchvision|torchaudio)-(\d[^-/]{0,60})-[^/]{1,200}\.whl")
# What pip installs by place rather than by name: editables, repositories, archives, folders.
_PLACE = re.compile(r"-e\s|--editable[\s=]|[\w+.-]{1,20}://|git\+|[./~]|\S+\.(?:whl|zip|tar\.\w+)")


def lint_requirements(text: str, combo: ComboLike) -> list[Finding]:
    """Check a requirements file against a combo; ids that start with ``note-`` are advice."""
    return [finding for number, line in _lines(text) for finding in _check(line, number, combo=combo)]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Join continued lines and drop comments, as pip does."""
    parts: list[str] = []
    start = 1
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        line = _COMMENT.sub("", raw.rstrip("\r"))
        start = start if parts else number
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        yield start, "".join([*parts, line]).strip()
        parts = []
    if parts:
        yield start, "".join(parts).strip()


def _check(line: str, number: int, *, combo: ComboLike) -> Iterator[Finding]:
    wheel = _WHEEL.search(unquote(line[:_LONGEST]))
    if index := _INDEX.match(line):
        yield from _index(index[1], number, combo=combo)
    elif wheel:
        yield from _trio(f"{wheel[1]}=={wheel[2]}", number, combo=combo)
    elif line and not line.startswith("-") and not _PLACE.match(line):
        yield from _requirement(re.split(r"\s--\w", line, maxsplit=1)[0], number, combo=combo)


def _index(url: str, number: int, *, combo: ComboLike) -> Iterator[Finding]:
    builds = _BUILD.findall(url.partition("://")[2].partition("/")[2])
    if builds and builds[-1] != _tag(combo):
        yield Finding(
            line=number,
            id="index-other-build",
            message=f"the index offers {builds[-1]} builds, {combo.id} has {_tag(combo)}",
            remedy=f"remove the line: the image has torch; or build a combo with {builds[-1]}",
        )


def _requirement(line: str, number: int, *, combo: ComboLike) -> Iterator[Finding]:
    asked = _parsed(line)
    if asked is None:
        yield Finding(
            line=number,
            id="unreadable",
            message=f"not a requirement pip can read: {mask(line[:80])!r}",
            remedy="write name==version, or a path or address that pip knows",
        )
    elif _applies(asked, combo=combo):
        yield from _named(asked, number, combo=combo)


def _named(asked: Requirement, number: int, *, combo: ComboLike) -> Iterator[Finding]:
    name = canonicalize_name(asked.name)
    if name in _WRONG_NAMES:
        right = _WRONG_NAMES[name]
        has = getattr(combo, right)
        yield Finding(
            line=number,
            id="wrong-name",
            message=f"{asked.name} is the wrong name: the package is {right}",
            remedy=f"write {right}=={has}, or remove the line: the image has it",
        )
    elif name in ("torch", "torchvision", "torchaudio") and asked.url:
        yield _differs(number, "other-version", asked, getattr(combo, name), combo=combo)
    elif name in ("torch", "torchvision", "torchaudio"):
        yield from _trio(f"{name}{asked.specifier}", number, combo=combo)
    elif name in _TIED or re.match(r"nvidia-.*-cu\d\d$", name):
        why = _TIED.get(name, "torch asks for one version of it")
        yield Finding(
            line=number,
            id="note-tied-to-torch",
            message=f"{asked.name} can ask for another torch than {combo.torch}: {why}",
            remedy=_tied_remedy(name, combo=combo),
        )


def _tied_remedy(name: str, *, combo: ComboLike) -> str:
    if name == "flash-attn":
        return f"install it with --no-build-isolation, or a wheel made for torch {combo.torch}"
    if name == "triton" or name.startswith("nvidia-"):
        return "remove the line: it came with torch"
    return f"pin the release made for torch {combo.torch}; the image's constraints keep torch"


def _trio(line: str, number: int, *, combo: ComboLike) -> Iterator[Finding]:
    """Compare one line for torch, torchvision or torchaudio with what the combo has."""
    asked = _parsed(line)
    if asked is None:
        return
    has, tag = getattr(combo, asked.name), _tag(combo)
    local = _local(asked)
    version_fits = _fits(asked, has, local or tag)
    if local and local != tag:
        yield _differs(number, "other-build", asked, has, combo=combo)
    elif not version_fits:
        yield _differs(number, "other-version", asked, has, combo=combo)
    elif local and combo.wheels == "pypi":
        yield Finding(
            line=number,
            id="note-local-tag",
            message=f"{asked} is what {combo.id} has, but its wheel is named {has}, without"
            f" +{tag}: pip would look for another one",
            remedy=f"write {asked.name}=={has}, or remove the line: the image has it",
        )


def _differs(number: int, rule: str, asked: Requirement, has: str, *, combo: ComboLike) -> Finding:
    name = canonicalize_name(asked.name)
    return Finding(
        line=number,
        id=rule,
        message=f"{mask(str(asked))} is asked for, {combo.id} has {name}=={has}+{_tag(combo)}",
        remedy=f"write {name}=={has} or remove the line, or choose another combo (`./invoke list`)",
    )


def _fits(asked: Requirement, has: str, local: str) -> bool:
    """Whether the combo's version is one that was asked for; only ``==`` looks at the tag."""
    try:
        versions = (Version(f"{has}+{local}"), Version(has))
    except InvalidVersion:
        return False
    return any(asked.specifier.contains(version, prereleases=True) for version in versions)


def _local(asked: Requirement) -> str:
    """The build that a pin names after ``+``, or nothing."""
    for specifier in asked.specifier:
        if specifier.operator in ("==", "===") and "+" in specifier.version:
            return specifier.version.partition("+")[2].lower()
    return ""


def _tag(combo: ComboLike) -> str:
    return "cu" + combo.cuda.replace(".", "")


def _parsed(line: str) -> Requirement | None:
    if len(line) > _LONGEST:
        return None
    try:
        return Requirement(line)
    except (InvalidRequirement, ValueError, RecursionError):
        return None


def _applies(asked: Requirement, *, combo: ComboLike) -> bool:
    """Whether the line's marker holds in the image; one that cannot be judged does."""
    if asked.marker is None:
        return True
    image = {
        "python_version": combo.python,
        "python_full_version": f"{combo.python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }
    try:
        return asked.marker.evaluate(image)
    except (UndefinedComparison, UndefinedEnvironmentName, InvalidVersion, RecursionError):
        return True
