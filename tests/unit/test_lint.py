"""Case C31: a user's Dockerfile is told what will break, leak or bloat, line by line."""

from __future__ import annotations

import random
import time

import pytest

from hermitcrab.build.dockerfile import instructions, pairs, stages
from hermitcrab.build.lint import Finding, lint_dockerfile

DIGEST = "@sha256:" + "0f" * 32
GOOD = f"FROM debian:bookworm-slim{DIGEST}\n"


def ids(text: str) -> list[tuple[int, str]]:
    """Where which rule spoke."""
    return [(finding.line, finding.id) for finding in lint_dockerfile(text)]


def only(text: str) -> Finding:
    """The one finding of a text."""
    findings = lint_dockerfile(text)
    assert len(findings) == 1, findings
    return findings[0]


def test_c31_old_base_as_a_whole() -> None:
    """The Dockerfile behind C31 and its usual neighbours: every row of the lint speaks once."""
    text = """\
FROM nvidia/cuda:11.1-cudnn8-devel-ubuntu20.04
ENV HF_TOKEN=abc
RUN apt-get update && apt-get install -y git
RUN echo 'root:hunter2' | chpasswd
CMD python train.py | tee log.txt
"""
    assert ids(text) == [
        (1, "withdrawn-base"),
        (1, "floating-base"),
        (2, "token"),
        (3, "cuda-apt-source"),
        (3, "apt-lists"),
        (4, "password"),
        (5, "shell-form"),
    ]


def test_clean_dockerfile_has_no_findings() -> None:
    """What a careful user writes is left in peace."""
    text = f"""\
# syntax = none
FROM debian:bookworm-slim{DIGEST} AS build
RUN apt-get update \\
 && apt-get install -y --no-install-recommends git update-notifier \\
 # a comment inside
 && rm -rf /var/lib/apt/lists/*
FROM build
COPY --from=build --chown=root:root /a /b
ENV HF_HOME=/data HF_TOKEN=
RUN chown root:root /srv && echo "root:100000:65536" > /etc/subuid
RUN --mount=type=secret,id=token cat /run/secrets/token > /dev/null
CMD ["python", "train.py"]
"""
    assert ids(text) == []


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ("debian", "no tag"),
        ("debian:latest", "whatever is newest"),
        ("registry.example:5000/debian", "no tag"),
        ("debian:bookworm-slim", "no digest"),
        ("--platform=linux/amd64 debian:bookworm-slim AS x", "no digest"),
        ("debian:x@sha256:short", "no digest"),
        ("$BASE", "build argument"),
        ("", "(none)"),
    ],
)
def test_floating_bases(base: str, words: str) -> None:
    """No tag, `latest`, a tag alone, and an argument without default all float."""
    found = only(f"FROM {base}\n")
    assert (found.line, found.id) == (1, "floating-base")
    assert words in found.message and "sha256" in found.remedy


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"ARG V=slim\nARG BASE=debian:$V\nFROM ${{BASE}}{DIGEST}\n",
        f"ARG BASE=debian:x{DIGEST}\nFROM ${{BASE}}\n",
        f"FROM ${{BASE:-debian:x{DIGEST}}}\n",
        "from scratch\ncopy a b\n",
        f"FROM debian:x{DIGEST} AS Build\nFROM build AS last\nFROM last\n",
        "FROM scratch AS a\nFROM scratch\nCOPY --from=a /x /x\nCOPY --from=0 /x /x\n",
        f"FROM scratch\nCOPY --from=tool:1{DIGEST} /x /x\n",
    ],
)
def test_pinned_bases_and_stages_do_not_float(text: str) -> None:
    """Digests, also by argument, stages in any case, and scratch are fine."""
    assert ids(text) == []


def test_a_stage_is_known_only_after_it() -> None:
    """A name that no earlier stage has is an image; so is what COPY --from names."""
    assert ids("FROM b\nFROM scratch AS b\nCOPY --from=tool:latest /x /x\n") == [
        (1, "floating-base"),
        (3, "floating-base"),
    ]


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ("nvidia/cuda:10.2-base", "nearest is 11.8.0"),
        ("nvidia/cuda:11.0-base-ubuntu20.04", "nearest is 11.0.3"),
        ("registry.example/nvidia/cuda:12.1.0-devel-ubuntu22.04", "nearest is 12.1.1"),
        ("nvidia/cuda:11.8.0-cudnn8-devel-centos7", "centos7 has ended"),
        ("nvidia/cuda:latest", "since 2021"),
        ("nvidia/cuda", "since 2021"),
    ],
)
def test_withdrawn_cuda_tags(tag: str, words: str) -> None:
    """Tags of nvidia/cuda that were deleted are named with the nearest that exists."""
    found = [x for x in lint_dockerfile(f"FROM {tag}\n") if x.id == "withdrawn-base"]
    assert len(found) == 1 and words in found[0].message


@pytest.mark.parametrize(
    "tag",
    [
        f"nvidia/cuda:12.1.1-base-ubuntu22.04{DIGEST}",
        f"nvidia/cuda{DIGEST}",
        f"nvidia/cudagl{DIGEST}",
        f"nvidia/cuda:13.0.3-base-ubuntu24.04{DIGEST}",
    ],
)
def test_living_cuda_tags(tag: str) -> None:
    """Tags that exist, or about which nothing is known, are not called withdrawn."""
    assert ids(f"FROM {tag}\n") == []


@pytest.mark.parametrize(
    "run",
    [
        "ADD https://index.example/compute/cuda/repos/x/3bf863cc.pub /k",
        "COPY cuda.list /etc/apt/sources.list.d/cuda.list",
        "RUN apt-key adv --recv-keys A4B469963BF863CC",
        "RUN curl -O https://index.example/compute/cuda/repos/ubuntu2004/x86_64/7fa2af80.pub",
    ],
)
def test_cuda_apt_source_added_by_hand(run: str) -> None:
    """NVIDIA's source or its old key beside apt-get update is a conflict."""
    update = "RUN apt-get update && rm -rf /var/lib/apt/lists/*\n"
    assert ids(f"{GOOD}{run}\n{update}") == [(2, "cuda-apt-source")]


def test_cuda_apt_source_of_an_old_base() -> None:
    """An old nvidia/cuda base fails at its first update, unless the source is removed before."""
    base = f"FROM nvidia/cuda:11.4.3-base-ubuntu20.04{DIGEST}\n"
    update = "RUN apt-get update; rm -rf /var/lib/apt/lists/*\n"
    remove = "RUN rm -f /etc/apt/sources.list.d/cuda.list /etc/apt/sources.list.d/nvidia-ml.list\n"
    assert ids(base + update + update) == [(2, "cuda-apt-source")]
    assert ids(base + remove + update) == []
    assert ids(base.replace("11.4.3", "12.4.1") + update) == []


@pytest.mark.parametrize(
    "line",
    [
        "RUN echo root:hunter2 | chpasswd",
        "RUN printf 'root:hunter2' >> /srv/x",
        "RUN echo hunter2 | passwd --stdin root",
        "RUN passwd -d root",
        "RUN useradd -m -p hunter2 bob",
        "run true && \\\n  echo 'bob:hunter2' \\\n  | chpasswd",
        "RUN <<EOF\nset -e\necho 'bob:hunter2' | chpasswd\nEOF",
        "ONBUILD RUN echo root:hunter2 | chpasswd",
        "ENV ROOT_PASSWORD=hunter2",
        "ENV ROOT_PASSWORD hunter2",
        "ARG password",
    ],
)
def test_passwords_in_the_image(line: str) -> None:
    """Every way to bake a password is found at its line, and the password is not repeated."""
    found = only(f"{GOOD}{line}\n")
    assert (found.line, found.id) == (2, "password")
    assert "hunter2" not in found.message + found.remedy


@pytest.mark.parametrize(
    "line",
    [
        "ENV WANDB_API_KEY=abc",
        "ENV A=1 HF_TOKEN='abc def' B=2",
        "env hf_token abc",
        "ARG GITHUB_TOKEN",
        "ARG A B_KEY=1",
        "ENV AWS_SECRET_ACCESS_KEY=x",
        "ENV INNOCENT=hf_" + "a1B2c3D4e5",
        "LABEL note=ghp_" + "a1B2c3D4e5",
        "RUN pip install -i https://me:hunter2@index.example/simple x",
    ],
)
def test_tokens_in_the_image(line: str) -> None:
    """Names and shapes of tokens are found in ENV, ARG and anywhere else."""
    found = only(f"{GOOD}{line}\n")
    assert (found.line, found.id) == (2, "token")
    assert "hunter2" not in found.message and "a1B2c3D4e5" not in found.message


@pytest.mark.parametrize(
    "line",
    [
        "ENV GPG_KEY=ABCDEF PASSWORD_FILE=/run/secrets/p TOKENIZERS_PARALLELISM=false",
        "ENV HF_TOKEN=",
        "ARG DEBIAN_FRONTEND=noninteractive",
        "RUN pip install -i https://me:$PASS@index.example/simple x",
        "RUN pip install git+https://host.example/lib.git@v1",
        "RUN cat /etc/passwd && chown root:root x",
        "LABEL image=debian:x" + DIGEST,
    ],
)
def test_what_looks_like_a_secret_and_is_none(line: str) -> None:
    """Public keys, paths of secret files, empty values and variables are left alone."""
    assert ids(f"{GOOD}{line}\n") == []


@pytest.mark.parametrize(
    ("run", "left"),
    [
        ("apt-get update && apt-get install -y git", True),
        ("apt -qq -o Acquire::Retries=3 update", True),
        ("apt-get update\nRUN rm -rf /var/lib/apt/lists/*", True),
        ("apt-get update && rm -rf /var/lib/apt/lists/*", False),
        ("apt-get update && apt-get dist-clean", False),
        ("--mount=type=cache,target=/var/lib/apt,sharing=locked apt-get update", False),
        ("<<EOF\napt-get update\nrm -rf /var/lib/apt/lists/*\nEOF", False),
        ("apt-get install -y update-notifier", False),
    ],
)
def test_apt_lists_left(run: str, left: bool) -> None:
    """Lists must go in the RUN that fetched them, or live in a mount."""
    assert ids(f"{GOOD}RUN {run}\n") == ([(2, "apt-lists")] if left else [])


def test_apt_lists_of_a_stage_that_is_thrown_away_do_not_matter() -> None:
    """Only the layers that are shipped count; a parent stage is shipped."""
    update = "RUN apt-get update\n"
    build = f"FROM debian:x{DIGEST} AS build\n{update}"
    assert ids(f"{build}FROM scratch\nCOPY --from=build /a /a\n") == []
    assert ids(f"{build}FROM build\n") == [(2, "apt-lists")]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("CMD python train.py | tee log", True),
        ("entrypoint python train.py 2>&1 |tee log", True),
        ('CMD ["bash", "-c", "python train.py | tee log"]', True),
        ('CMD ["/bin/sh","-ec","a|b"]', True),
        ("CMD bash -c 'python train.py | tee log'", True),
        ("CMD a || b", False),
        ("CMD grep 'a|b' x", False),
        ('CMD ["grep", "a|b", "x"]', False),
        ("CMD python train.py", False),
        ("RUN a | b", False),
    ],
)
def test_shell_form_with_a_pipe(line: str, found: bool) -> None:
    """A pipe in CMD or ENTRYPOINT is found, a quoted bar or `||` is none."""
    assert ids(f"{GOOD}{line}\n") == ([(2, "shell-form")] if found else [])


def test_lines_are_those_of_the_file() -> None:
    """Continuations, comments, blank lines, heredocs and CRLF do not shift line numbers."""
    text = (
        f"{GOOD}\n# note\nRUN a \\\n\n  # inside\n  b\n"
        "COPY <<-'ONE' <<TWO /x\n\tENV HF_TOKEN=x\n\tONE\nsecond\nTWO\n"
        "RUN cat <<<word && echo $((1 <<TWO)) \nENV HF_TOKEN=x\n"
    ).replace("\n", "\r\n")
    assert ids(text) == [(14, "token")]
    assert [one.line for one in instructions(text)] == [1, 4, 8, 13, 14]


def test_heredoc_ends_where_the_shell_ends_it() -> None:
    """Only `<<-` lets the last word be indented; a word that never comes opens nothing."""
    assert ids(f"{GOOD}RUN <<EOF\n  EOF\nENV HF_TOKEN=x\nEOF\n") == []
    assert ids(f"{GOOD}RUN <<-EOF\n  EOF\nENV HF_TOKEN=x\nEOF\n") == [(4, "token")]
    assert ids(f"{GOOD}RUN cat <<EOF\nENV HF_TOKEN=x\n") == [(3, "token")]


def test_other_escape_and_byte_order_mark() -> None:
    """The escape directive and a mark at the start are read as Docker reads them."""
    text = f"\ufeff# escape=`\n{GOOD}RUN a `\n && chpasswd\nRUN dir C:\\\nENV HF_TOKEN=x\n"
    assert ids(text) == [(3, "password"), (6, "token")]


def test_pairs_of_both_spellings() -> None:
    """ENV and ARG give names and values, quoted or not."""
    text = "ENV A=1 B=\"x y\" C='z' D=a\\ b\nENV E f g\nARG F G=1\nENV\n"
    assert [pairs(one) for one in instructions(text)] == [
        [("A", "1"), ("B", "x y"), ("C", "z"), ("D", "a\\ b")],
        [("E", "f g")],
        [("F", ""), ("G", "1")],
        [],
    ]


def test_defaults_that_double_do_not_explode() -> None:
    """Arguments that hold each other stay small."""
    text = "ARG A0=xxxxxxxxxx\n" + "".join(f"ARG A{n + 1}=$A{n}$A{n}\n" for n in range(64))
    assert len(stages(instructions(f"{text}FROM $A64\n"))[0].base) < 1000


def test_garbage_neither_crashes_nor_stalls() -> None:
    """Random bytes and hostile repetitions are read in time that grows with their length."""
    rng = random.Random(31)
    words = ["FROM", "RUN", "ENV", "\\\n", "<<A", "|", '"', "'", "=", "$", "{", "\n", "[", "\x00"]
    texts = [rng.randbytes(2_000).decode("latin-1") for _ in range(100)]
    texts += [" ".join(rng.choices(words, k=200)) for _ in range(200)]
    texts += [piece * 20_000 for piece in ("a", "FROM a\n", "RUN \\\n", "RUN <<A\n", "ENV a='", '\\"', "apt ", "${a:-")]
    texts += [
        f"{word} " + piece * 10_000
        for word in ("ENV", "CMD", "RUN", "FROM")
        for piece in ("a", '"', '\\"', "a=", "[", "echo ", " <<A", "apt-get ", "user:", "--from=")
    ]
    start = time.monotonic()
    for text in texts:
        assert all(finding.line > 0 for finding in lint_dockerfile(text))
    assert time.monotonic() - start < 20
