"""Reads a user's Dockerfile and says what will break, leak or bloat, each with its remedy.

``lint_dockerfile(text)`` gives findings in the order of the lines. A finding never quotes a
password or a token. The rules for requirements files are in ``requirements.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from hermitcrab.box.mask import holds_token
from hermitcrab.build.dockerfile import Instruction, Stage, instructions, pairs, shipped, stages


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing found: where, which rule, what is wrong, and what to write instead.

    An id that starts with ``note-`` is advice: nothing is wrong yet.
    """

    line: int
    id: str
    message: str
    remedy: str

    @property
    def is_note(self) -> bool:
        """Whether this is advice rather than a fault."""
        return self.id.startswith("note-")


# NVIDIA keeps only the newest update of each CUDA version and deletes the others, and every
# version some months after its driver branch ends (its container support policy).
_NEWEST_CUDA_TAG = {
    "11.0": 3, "11.1": 1, "11.2": 2, "11.3": 1, "11.4": 3, "11.5": 2, "11.6": 2, "11.7": 1,
    "12.0": 1, "12.1": 1, "12.2": 2, "12.3": 2, "12.4": 1, "12.5": 1, "12.6": 3, "12.8": 1,
    "12.9": 1,
}  # fmt: skip
_GONE_SYSTEMS = ("ubuntu14.04", "ubuntu16.04", "ubuntu18.04", "centos6", "centos7", "centos8")
_NEW_KEY_SINCE = (11, 7)  # tags before it were made with the apt key withdrawn in April 2022

_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
_CUDA_TAG = re.compile(r"(?:^|/)nvidia/cuda(?![\w-])(?::(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?=[-@]|$))?")

_APT_UPDATE = re.compile(r"\bapt(?:-get)?\s[^;&|\n]{0,200}?(?<![\w-])update(?![\w-])")
_APT_CLEAN = re.compile(r"\b(?:rm|find)\b[^;&|\n]{0,300}/var/lib/apt(?:/|\s|$)|\bapt(?:-get)?\s+dist-?clean\b")
_APT_MOUNT = re.compile(r"--mount=\S{0,200}(?:target|dst|destination)=/var/lib/apt")
_CUDA_SOURCE = re.compile(r"cuda/repos|A4B469963BF863CC|7fa2af80|/(?:cuda|nvidia-ml)\S{0,40}\.list")
_CUDA_SOURCE_REMOVED = re.compile(r"\brm\b[^;&|\n]{0,300}(?:(?:cuda|nvidia-ml)\S{0,40}\.list|sources\.list\.d/\*)")

_PASSWORD_RUN = re.compile(
    r"\bchpasswd\b|\bpasswd\b[^;&|\n]{0,80}\s(?:--stdin|-d|--delete)\b"
    r"|\buser(?:add|mod)\b[^;&|\n]{0,200}\s(?:-p|--password)[\s=]"
    r"|\b(?:echo|printf)\b[^;&|\n]{0,120}?[\s\"']root:[^\s:]"
)
_PASSWORD_NAME = re.compile(r"PASS(?:WORD|WD|PHRASE)", re.IGNORECASE)
_TOKEN_NAME = re.compile(r"(?:^|_)(?:TOKEN|(?:API)?KEY|CREDENTIALS?)$|SECRET", re.IGNORECASE)
_PUBLIC_NAME = re.compile(r"(?:GPG|PUB|PUBLIC|HOST)_?KEY$|_(?:FILE|PATH|DIR)$", re.IGNORECASE)

# What `sh -c` is given is quoted, and is a script all the same. An escaped character is taken
# first, so that no text makes this slow.
_QUOTED = re.compile(r"\\.|(?<!sh -c )(?<!sh -lc )(?:\"(?:\\.|[^\"\\])*\"|'[^']*')", re.DOTALL)
_PIPE = re.compile(r"(?<!\|)\|(?!\|)")


def lint_dockerfile(text: str) -> list[Finding]:
    """Check a Dockerfile; an empty list means nothing was found."""
    found = instructions(text)
    made = stages(found)
    kept = shipped(made)
    findings = [finding for one in found for finding in _everywhere(one)]
    names: set[str] = set()
    for index, stage in enumerate(made):
        findings += _base(stage.base, stage.line, known=names)
        findings += _cuda_source(stage)
        findings += _copied_from(stage, known=names)
        findings += _apt_lists(stage) if index in kept else []
        names.add(stage.name.lower())
    return sorted(findings, key=lambda finding: finding.line)


def _everywhere(one: Instruction) -> Iterator[Finding]:
    if one.word in ("ENV", "ARG"):
        yield from _variables(one)
    elif one.word == "RUN" and _sets_password(one.value):
        yield _password(one.line, "a RUN step sets a password")
    if one.word not in ("ENV", "ARG") and holds_token(one.value):
        yield _token(one.line, f"{one.word} spells out a token or credentials")
    if one.word in ("CMD", "ENTRYPOINT") and _PIPE.search(_QUOTED.sub("", _script(one.value))):
        yield Finding(
            line=one.line,
            id="shell-form",
            message=f"{one.word} runs a pipe in a shell: signals do not reach the program, and its exit status is lost",
            remedy='use the exec form, such as ["python", "train.py"], and let the program or'
            " the supervisor write the log",
        )


def _base(base: str, line: int, *, known: set[str]) -> Iterator[Finding]:
    if base.lower() == "scratch" or (base and base.lower() in known):
        return
    if reason := _withdrawn(base):
        yield Finding(
            line=line,
            id="withdrawn-base",
            message=f"{base} is withdrawn or about to be: {reason}",
            remedy="use the base of a combo (`./invoke list`); the torch wheels bring CUDA",
        )
    if not _DIGEST.search(base):
        yield Finding(
            line=line,
            id="floating-base",
            message=f"the base {base or '(none)'} {_why_floating(base)}",
            remedy="write name:tag@sha256:<digest>, as `docker buildx imagetools inspect` shows it",
        )


def _why_floating(base: str) -> str:
    tag = base.rpartition("/")[2].partition("@")[0].partition(":")[2]
    if "$" in base:
        return "comes from a build argument without a default: it can be anything"
    if not tag or tag == "latest":
        return "has no tag: it is whatever is newest" if not tag else "is whatever is newest"
    return "has a tag but no digest: a tag can be moved or withdrawn"


def _withdrawn(base: str) -> str:
    """Say why a tag of nvidia/cuda is gone, or nothing."""
    found = _CUDA_TAG.search(base)
    tag = base.rpartition("/")[2].partition("@")[0].partition(":")[2]
    if not found or not (found[1] or tag == "latest" or (not tag and "@" not in base)):
        return ""
    if not found[1]:
        return "nvidia/cuda has had no `latest` since 2021"
    version = f"{found[1]}.{found[2]}"
    if int(found[1]) < 11:
        return f"all CUDA {found[1]} tags were deleted; nearest is 11.8.0"
    if any(tag.endswith(system) for system in _GONE_SYSTEMS):
        return f"{tag.rpartition('-')[2]} has ended; nearest is the same CUDA on ubuntu22.04"
    newest = _NEWEST_CUDA_TAG.get(version, 0)
    if newest > int(found[3] or 0):
        return f"only the newest update of CUDA {version} is kept; nearest is {version}.{newest}"
    return ""


def _cuda_source(stage: Stage) -> Iterator[Finding]:
    """Find NVIDIA's apt source where apt reads it: in an old base, or added by hand."""
    tag = _CUDA_TAG.search(stage.base)
    inherited = bool(tag and tag[1] and (int(tag[1]), int(tag[2])) < _NEW_KEY_SINCE)
    uses_apt = any(_APT_UPDATE.search(one.value) for one in stage.body if one.word == "RUN")
    for one in stage.body:
        if one.word not in ("RUN", "ADD", "COPY", "ENV"):
            continue
        if _CUDA_SOURCE_REMOVED.search(one.value):
            inherited = False
        elif uses_apt and _CUDA_SOURCE.search(one.value):
            yield _cuda_finding(one.line, "NVIDIA's CUDA apt source or its old key is added")
        elif inherited and one.word == "RUN" and _APT_UPDATE.search(one.value):
            inherited = False
            yield _cuda_finding(one.line, "the base brings a CUDA apt source whose key has changed")


def _cuda_finding(line: int, what: str) -> Finding:
    return Finding(
        line=line,
        id="cuda-apt-source",
        message=f"{what}: apt-get update fails with NO_PUBKEY, or a second CUDA is installed",
        remedy="remove /etc/apt/sources.list.d/cuda.list and nvidia-ml.list before apt-get"
        " update; the torch wheels bring CUDA",
    )


def _copied_from(stage: Stage, *, known: set[str]) -> Iterator[Finding]:
    for one in stage.body:
        source = re.search(r"--from=(\S{1,300})", one.value) if one.word == "COPY" else None
        if source and not source[1].isdigit():
            yield from _base(source[1], one.line, known=known)


def _apt_lists(stage: Stage) -> Iterator[Finding]:
    for one in stage.body:
        if one.word != "RUN" or not _APT_UPDATE.search(one.value):
            continue
        if not _APT_CLEAN.search(one.value) and not _APT_MOUNT.search(one.value):
            yield Finding(
                line=one.line,
                id="apt-lists",
                message="apt's package lists stay in the image, and grow old there",
                remedy="end the same RUN with `&& rm -rf /var/lib/apt/lists/*`",
            )


def _variables(one: Instruction) -> Iterator[Finding]:
    for name, value in pairs(one):
        if one.word == "ENV" and not value:
            continue
        if _is_password(name):
            yield _password(one.line, f"{one.word} {name} puts a password into the image")
        elif _is_token(name) or holds_token(value):
            yield _token(one.line, f"{one.word} {name} puts a token into the image or its history")


def _is_password(name: str) -> bool:
    return bool(_PASSWORD_NAME.search(name)) and not _PUBLIC_NAME.search(name)


def _is_token(name: str) -> bool:
    return bool(_TOKEN_NAME.search(name)) and not _PUBLIC_NAME.search(name)


def _sets_password(command: str) -> bool:
    found = _PASSWORD_RUN.search(command)
    # `root:100000:65536` in these files is a range of user numbers.
    return found is not None and not re.search(r"/etc/sub[ug]id", command)


def _password(line: int, what: str) -> Finding:
    return Finding(
        line=line,
        id="password",
        message=f"{what}: everyone who has the image has it",
        remedy="log in by key only, put in at the first start; pass nothing secret at build time",
    )


def _token(line: int, what: str) -> Finding:
    return Finding(
        line=line,
        id="token",
        message=f"{what}: everyone who has the image can read it",
        remedy="give it when the container runs (-e), or for one step with RUN --mount=type=secret;"
        " and revoke it if it was pushed",
    )


def _script(value: str) -> str:
    """Give the shell text of a CMD: the whole shell form, or what an exec form gives to a shell."""
    try:
        words = json.loads(value)
    except (ValueError, RecursionError):
        return value
    if not isinstance(words, list) or len(words) < 3:
        return ""
    shell = str(words[0]).rpartition("/")[2] in ("sh", "bash", "dash", "ash", "zsh")
    return str(words[2]) if shell and str(words[1]).endswith("c") else ""
