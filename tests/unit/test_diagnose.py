"""Case C32 and its kin: whatever an Engine or a build log says becomes one line to act on."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from hermitcrab.build.causes import ROWS
from hermitcrab.build.diagnose import explain, from_stream, one_line

CASES = Path(__file__).parents[1] / "cases"

# (id of the cause, what was said, words the user's line must hold)
SAID = (
    ("disk-full", "ERROR: [Errno 28] No space left on device", "free more space"),
    ("disk-full", "OSError: [Errno 122] Disk quota exceeded: '/opt/venv'", "disk is full"),
    ("disk-full", "write /var/lib/x: EDQUOT", "disk is full"),
    (
        "disk-full",
        "failed to register layer: ApplyLayer exit status 1 stdout:  stderr: write /lib/a.so: no space left on device",
        "a layer does not fit",
    ),
    ("disk-full", "E: You don't have enough free space in /var/cache/apt/archives/.", "disk"),
    (
        "out-of-memory",
        'ERROR: failed to solve: process "/bin/sh -c make" did not complete successfully: exit code: 137',
        "memory",
    ),
    ("out-of-memory", "c++: fatal error: Killed signal: killed", "memory"),
    (
        "http-docker",
        "docker.errors.DockerException: Error while fetching server API version: Not supported URL scheme http+docker",
        "docker >= 7.1",
    ),
    (
        "client-too-old",
        "Error response from daemon: client version 1.41 is too old. Minimum supported API version"
        " is 1.44, please upgrade your client to a newer version",
        "speaks API 1.41, this engine asks for 1.44",
    ),
    (
        "client-too-new",
        "Error response from daemon: client version 1.47 is too new. Maximum supported API version is 1.41",
        "DOCKER_API_VERSION=1.41",
    ),
    (
        "no-rights",
        "permission denied while trying to connect to the Docker daemon socket at"
        " unix:///var/run/docker.sock: Get ...: dial unix /var/run/docker.sock: connect:"
        " permission denied",
        "rootless",
    ),
    (
        "no-rights",
        "Error while fetching server API version: ('Connection aborted.', PermissionError(13, 'Permission denied'))",
        "usermod -aG docker",
    ),
    ("certificate-date", "x509: certificate has expired or is not yet valid: current", "clock"),
    ("certificate", "x509: certificate signed by unknown authority", "not trusted"),
    (
        "certificate",
        "curl: (60) SSL certificate problem: unable to get local issuer",
        "not trusted",
    ),
    ("certificate", "invalid peer certificate: UnknownIssuer", "not trusted"),
    ("ssh-engine", "Install paramiko package to enable ssh:// support", "forward its socket"),
    (
        "no-engine",
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        "no Docker here",
    ),
    (
        "no-engine",
        "Error while fetching server API version: ('Connection aborted.',"
        " ConnectionRefusedError(111, 'Connection refused'))",
        "build elsewhere",
    ),
    (
        "no-engine",
        "Error while fetching server API version: HTTPConnectionPool(host='10.0.0.9', port=2375):"
        " Max retries exceeded with url: /version (Caused by NewConnectionError('[Errno 111]"
        " Connection refused'))",
        "correct DOCKER_HOST",
    ),
    (
        "no-engine",
        'error during connect: Get "http://box.example:2375/_ping": dial tcp: lookup box.example: no such host',
        "DOCKER_HOST",
    ),
    ("no-engine", "dial tcp 203.0.113.9:2376: connect: connection refused", "no Docker here"),
    ("engine-died", "ERROR: failed to receive status: rpc error: code = Unavailable", "its log"),
    (
        "driver-too-old",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update",
        "cuda>=12.8",
    ),
    (
        "no-gpu-runtime",
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
        "the build itself needs no GPU",
    ),
    ("wrong-architecture", "exec /usr/bin/tini: exec format error", "another processor"),
    ("wrong-architecture", "debian:x: no match for platform in manifest: not found", "linux/amd64"),
    (
        "wrong-architecture",
        "WARNING: The requested image's platform (linux/arm64) does not match the detected host"
        " platform (linux/amd64/v3)",
        "linux/amd64",
    ),
    ("no-buildx", "docker: 'buildx' is not a docker command.", "docker-buildx-plugin"),
    ("no-buildx", "docker: unknown command: docker buildx", "docker-buildx"),
    ("no-buildx", "unknown flag: --progress=rawjson", "docker-buildx"),
    ("no-buildx", "ERROR: invalid progress mode rawjson", "too old"),
    ("no-docker-command", "No such file or directory: '/usr/bin/docker'", "docker-cli"),
    ("pull-limit", "toomanyrequests: You have reached your pull rate limit.", "docker login"),
    (
        "registry-denied",
        "pull access denied for a/b, repository does not exist or may require 'docker login'",
        "docker login",
    ),
    ("registry-denied", "unauthorized: authentication required", "docker login"),
    ("registry-denied", "denied: requested access to the resource is denied", "no rights"),
    (
        "no-such-image",
        "manifest for nvidia/cuda:11.0-base-ubuntu20.04 not found: manifest unknown: manifest unknown",
        "nvidia/cuda:11.0-base-ubuntu20.04 does not exist",
    ),
    (
        "no-such-image",
        "failed to resolve source metadata for registry.example/a:1: registry.example/a:1: not found",
        "image registry.example/a:1 does not exist",
    ),
    ("no-such-image", "manifest unknown", "withdrawn"),
    ("lock-mismatch", "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE", "lock"),
    ("lock-mismatch", "Hash mismatch for `torch==2.4.1`", "the index serves another file"),
    (
        "cuda-apt-key",
        "W: GPG error: https://index.example/compute/cuda/repos/ubuntu2004/x86_64  InRelease:"
        " The following signatures couldn't be verified because the public key is not available:"
        " NO_PUBKEY A4B469963BF863CC",
        "cuda.list",
    ),
    ("apt-key", "W: GPG error: ... NO_PUBKEY 871920D1991BC93C", "871920D1991BC93C"),
    (
        "apt-release-gone",
        "E: The repository 'x buster Release' does not have a Release file.",
        "newer",
    ),
    (
        "apt-stale",
        "E: Failed to fetch http://a.example/x.deb  404  Not Found [IP: 1]",
        "without cache",
    ),
    ("apt-mismatch", "E: Failed to fetch x  Hash Sum mismatch", "mirror"),
    (
        "cuda-index-missing",
        "ERROR: Could not find a version that satisfies the requirement torch==1.12.1+cu113 (from"
        " versions: 1.13.0, 2.0.0, 2.4.0)",
        "--extra-index-url",
    ),
    (
        "cuda-index-missing",
        "Because there is no version of torch==2.1.2+cu118 and you require it, no solution",
        "this Python version has no such build",
    ),
    (
        "python-has-no-build",
        "ERROR: Could not find a version that satisfies the requirement torch==1.12.0 (from"
        " accelerate) (from versions: 2.2.0)",
        "torch==1.12.0 has no build",
    ),
    (
        "cuda-index-missing",
        "No matching distribution found for torch==2.1.2+cu118",
        "+cu118: no index",
    ),
    (
        "python-has-no-build",
        "ERROR: Could not find a version that satisfies the requirement torch==2.1.0+cu121 (from"
        " versions: 2.2.0, 2.2.0+cpu, 2.2.0+cu121)",
        "torch==2.1.0+cu121 has no build for this Python version",
    ),
    (
        "python-has-no-build",
        "ERROR: Could not find a version that satisfies the requirement torch==1.12.0 (from versions: 2.2.0, 2.2.1)",
        "offered: 2.2.0",
    ),
    (
        "python-has-no-build",
        "ERROR: Ignored the following versions that require a different python version: 2.5.0",
        "this Python version",
    ),
    ("python-has-no-build", "No matching distribution found for torch", "torch has no build"),
    ("network", "dial tcp: lookup registry.example: no such host", "network"),
    ("network", "Get x: net/http: TLS handshake timeout", "proxy"),
    ("network", "Temporary failure resolving 'a.example'", "DNS"),
    (
        "network",
        "NewConnectionError: Failed to establish a new connection: [Errno 111] Connection refused",
        "mirror",
    ),
    (
        "forbidden",
        "unexpected status from HEAD request to https://r.example/v2: 403 Forbidden",
        "403",
    ),
    ("apt-no-package", "E: Unable to locate package tini", "apt-get update"),
)


@pytest.mark.parametrize(("cause", "said", "words"), SAID, ids=range(len(SAID)))
def test_each_message_is_told_as_its_cause(cause: str, said: str, words: str) -> None:
    """Every known message gives its cause, the next step, and both in one line."""
    diagnosis = explain([said])
    assert diagnosis is not None
    assert (diagnosis.id, "\n" in diagnosis.message) == (cause, False)
    assert words in diagnosis.message


def test_every_row_of_the_table_is_proven() -> None:
    """A row without a message in this file would be a guess: each pattern is hit by some."""
    unproven = [
        row.pattern.pattern
        for row in ROWS
        if not any(row.id == cause and row.pattern.search(said) for cause, said, _ in SAID)
    ]
    assert unproven == []


def case(name: str) -> list[str]:
    """The lines of an Engine's answer from the field."""
    return from_stream((CASES / name).read_text(encoding="utf-8"))


def test_c32_pull_limit_in_the_stream() -> None:
    """C32: HTTP 200 with errorDetail: log in or wait."""
    assert one_line(case("C32.txt"), fallback="build failed") == (
        "the registry's pull limit is reached - log in (`docker login`) or wait some hours, or"
        " build without a registry: `--base packages`"
    )


def test_c32b_full_disk_said_before_the_error() -> None:
    """C32b: the cause stands in a stream line before errorDetail, and the size needed is named."""
    line = one_line(case("C32b.txt"), fallback="build failed", needed_gb=11.3)
    assert line.startswith("the disk is full") and "at least 11.3 GB" in line


def test_c32f_no_daemon() -> None:
    """C32f: no Docker here, rented containers have none, build elsewhere."""
    line = one_line(case("C32f.txt"), fallback="build failed")
    for words in ("no Docker here", "rented containers have none", "build elsewhere"):
        assert words in line


def test_the_deeper_cause_wins_wherever_it_stands() -> None:
    """A later generic error hides nothing, and neither does a shallower cause before it."""
    lines = [
        "E: Unable to locate package tini",
        "x: No space left on device",
        "ERROR: No matching distribution found for torch==2.4.1",
        "The command '/bin/sh -c x' returned a non-zero code: 1",
    ]
    found = explain(lines)
    assert found is not None and found.id == "disk-full"


def test_untrusted_certificate_is_never_told_as_missing_version() -> None:
    """C27: pip ends with 'no matching distribution' when it only could not trust the index."""
    found = explain(
        [
            "WARNING: Retrying after connection broken by 'SSLError(SSLCertVerificationError(1,"
            " '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed'))'",
            "ERROR: Could not find a version that satisfies the requirement torch (from versions: none)",
            "ERROR: No matching distribution found for torch",
        ]
    )
    assert found is not None and found.id == "certificate"


def test_unreachable_index_is_told_as_network() -> None:
    """'from versions: none' after failed connections is the network, not the Python version."""
    found = explain(
        [
            "WARNING: Retrying after 'NewConnectionError(Temporary failure in name resolution)'",
            "ERROR: No matching distribution found for torch==2.1.2+cu118",
        ]
    )
    assert found is not None and found.id == "network"


@pytest.mark.parametrize(
    "line",
    [
        "Step 3/9 : RUN echo 'no space left on device'",
        "#8 [4/9] RUN test -n 'manifest unknown'",
        "  12 | >>> RUN echo exec format error",
        "=> [2/3] RUN echo unauthorized: x",
        'ERROR: process "/bin/sh -c echo no space left on device" did not complete successfully: exit code: 3',
        "failed to add inotify watch: no space left on device",
        "docker-entrypoint.sh: permission denied",
        "Successfully installed torch-2.4.1",
        "",
    ],
)
def test_what_only_sounds_like_a_cause_is_none(line: str) -> None:
    """Echoed commands of the Dockerfile and look-alikes give no diagnosis."""
    assert explain([line]) is None


def test_unknown_failure_shows_the_last_line_that_says_something() -> None:
    """Hollow last words such as 'exit code: 1' are passed over."""
    lines = [
        "#9 1.2 cc: fatal error: foo.h is missing",
        "#9 1.3 make: leaving",
        "------",
        "Dockerfile:12",
        '"/bin/sh -c make" did not complete successfully: exit code: 2',
    ]
    assert one_line(lines, fallback="build failed") == "#9 1.2 cc: fatal error: foo.h is missing"
    assert one_line(["plain words"], fallback="build failed") == "plain words"
    assert one_line(["", "\x1b[0m"], fallback="build failed") == "build failed"


def test_no_secret_gets_out() -> None:
    """Tokens are masked in the shown line, in the evidence and in named values."""
    token = "hf_" + "Abcdefgh12345678"
    assert token not in one_line([f"error: bad answer for {token}"], fallback="x")
    assert token not in one_line([], fallback=f"cannot use {token}")
    found = explain([f"manifest for user:{token}@r.example/a:1 not found"])
    assert found is not None
    assert token not in found.message + found.evidence


def test_stream_is_joined_and_cleaned() -> None:
    """Stream pieces are parts of lines; colours, progress and noise go; garbage stays as text."""
    body = "\n".join(
        [
            json.dumps({"stream": "\x1b[91mCollecting "}),
            json.dumps({"stream": "torch\x1b[0m\n"}),
            json.dumps({"status": "Pulling", "id": "61e5", "progressDetail": {}}),
            json.dumps({"aux": {"ID": "sha256:1"}}),
            "not json {",
            "[1, 2]",
            "{}",
            json.dumps({"message": "No such image"}),
            json.dumps({"errorDetail": {"code": 1, "message": "boom"}, "error": "boom"}),
            json.dumps({"errorDetail": "odd", "error": ["odd"]}),
        ]
    )
    assert from_stream(body) == [
        "Collecting torch",
        "Pulling",
        "not json {",
        "[1, 2]",
        "No such image",
        "boom",
    ]


def test_hostile_answers_neither_crash_nor_stall() -> None:
    """Random bytes, deep nesting, lone surrogates and long lines are all just text."""
    rng = random.Random(32)
    noise = rng.randbytes(60_000).decode("latin-1")
    bodies = [
        noise,
        "[" * 200_000,
        '{"stream":"\\ud800 x"}',
        '{"error":' + "9" * 6000 + "}",
        "the requirement (from versions: " * 8_000,
        'process "' * 20_000,
        "\x1b]" * 50_000,
        "a:a@" * 50_000,
    ]
    start = time.monotonic()
    for body in bodies:
        line = one_line(from_stream(body), fallback="build failed")
        assert line.encode() and "\n" not in line
    assert time.monotonic() - start < 5
