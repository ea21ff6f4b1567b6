"""The known causes of a failed build and what to do about each: data for ``diagnose.py``.

Order is meaning: the first row that matches any line wins, so what breaks everything stands
above what breaks one step, and a line that may be a mere warning stands low. Named groups of a
pattern can be used in the texts; ``{room}`` is the disk space the build needs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cause: how it sounds, what it is, what to do next."""

    id: str
    pattern: re.Pattern[str]
    cause: str
    step: str


def _row(name: str, pattern: str, cause: str, step: str) -> Row:
    return Row(id=name, pattern=re.compile(pattern, re.IGNORECASE), cause=cause, step=step)


_UPGRADE_CLIENT = (
    "upgrade the client: docker command 25 or later, Python packages docker >= 7.1 with"
    ' version="auto"; unset DOCKER_API_VERSION'
)
_NEW_TAG = "choose a combo of `./invoke list` or another tag, or build without a registry: `--base packages`"
_OTHER_PYTHON = "choose a combo with another Python, or a version built for this one"
_ADD_INDEX = "add the --extra-index-url of that CUDA build; if it is there, this Python version has no such build"
_RIGHT_PLATFORM = "use a linux/amd64 base and machine, or set up emulation (binfmt) for the other architecture"

ROWS: tuple[Row, ...] = (
    _row(
        "disk-full",
        r"^(?!.{0,400}inotify).*?(?:no space left on device|\[errno (?:28|122)\]|\bENOSPC\b"
        r"|\bEDQUOT\b|disk quota exceeded|not enough (?:free |disk )?space"
        r"|enough free space in|free data blocks which is less than minimum)",
        "the disk is full, or a layer does not fit on it",
        "free {room} where the engine keeps its data (`docker system df`, `docker builder prune`), then build again",
    ),
    _row(
        "out-of-memory",
        r"exit code: 137\b|non-zero code: 137\b|signal: killed|\bOOMKilled\b|out of memory: kill"
        r"|cannot allocate memory|\[errno 12\]",
        "a build step was killed, most likely for lack of memory",
        "give the machine or its Docker VM more memory or swap, or build with fewer jobs at once",
    ),
    _row(
        "http-docker",
        r"not supported url scheme http\+docker|no connection adapters .{0,80}http\+docker",
        "this docker package is too old for its requests package (http+docker refused)",
        "upgrade to docker >= 7.1, or hold requests < 2.32",
    ),
    _row(
        "client-too-old",
        r"client version (?P<client>[\d.]+) is too old\W+minimum supported api version is"
        r" (?P<engine>\d+(?:\.\d+)*)",
        "the client speaks API {client}, this engine asks for {engine} or newer",
        _UPGRADE_CLIENT,
    ),
    _row(
        "client-too-new",
        r"client version (?P<client>[\d.]+) is too new\W+maximum supported api version is"
        r" (?P<engine>\d+(?:\.\d+)*)",
        "the client speaks API {client}, this engine only up to {engine}",
        'upgrade the engine, or set DOCKER_API_VERSION={engine} (Python: version="auto")',
    ),
    _row(
        "no-rights",
        r"docker\.sock.{0,200}permission denied|dial unix.{0,200}permission denied"
        r"|permission denied while trying to connect to the docker|aborted\.', PermissionError",
        "no rights on the Docker socket",
        "join the group (`sudo usermod -aG docker $USER`, then log in again), run as root, or"
        " point DOCKER_HOST at a rootless engine",
    ),
    _row(
        "certificate-date",
        r"certificate (?:has expired|is not yet valid)|certificate expired",
        "certificate not trusted: it has expired, or this machine's clock is wrong",
        "compare `date` with the real time, then try again",
    ),
    _row(
        "certificate",
        r"x509: |certificate[ _]verify[ _]failed|certificate verification failed|curl: \(60\)"
        r"|ssl certificate problem|invalid peer certificate|UnknownIssuer|SEC_ERROR_UNKNOWN_ISSUER"
        r"|certificate is not trusted|self[- ]signed certificate",
        "certificate not trusted: something on the way, such as a company proxy, signs with its own authority",
        "add that authority to this machine's CA certificates and build again; do not turn verification off",
    ),
    _row(
        "ssh-engine",
        r"install paramiko package",
        "an engine behind ssh:// cannot be reached from here",
        "forward its socket: `ssh -NL /tmp/docker.sock:/var/run/docker.sock HOST`, then"
        " DOCKER_HOST=unix:///tmp/docker.sock",
    ),
    _row(
        "no-engine",
        r"cannot connect to the docker daemon|is the docker daemon running"
        r"|error while fetching server api version|error during connect"
        r"|dial unix .{0,200}connect: (?:no such file|connection refused)"
        r"|aborted\.', (?:FileNotFoundError|ConnectionRefusedError)"
        r"|(?:port=|:)237[56]\b.{0,300}(?:connection refused|no such host|timed? ?out)",
        "no Docker here: no engine answers at DOCKER_HOST, the context or the socket",
        "rented containers have none, so build elsewhere: on a machine with Docker, or on Debian"
        " or Ubuntu as root; or start the engine, or correct DOCKER_HOST",
    ),
    _row(
        "engine-died",
        r"error reading from server: eof|code = unavailable|transport is closing"
        r"|aborted\.', (?:RemoteDisconnected|ConnectionResetError|BadStatusLine)",
        "the engine stopped answering in the middle of the work",
        "look into its log; a full disk or too little memory are the usual reasons",
    ),
    _row(
        "driver-too-old",
        r"nvidia-container-cli: requirement error: unsatisfied condition: (?P<need>[^,]{1,80})",
        "the base image refuses this machine's NVIDIA driver (it asks for {need})",
        "use a plain Debian or Ubuntu base, as the combos do, or upgrade the host's driver",
    ),
    _row(
        "no-gpu-runtime",
        r"could not select device driver .{0,20}with capabilities|unresolvable CDI devices? nvidia"
        r"|unknown or invalid runtime name: nvidia|nvidia-container-cli: initialization error",
        "the engine cannot hand out a GPU: NVIDIA driver or container toolkit missing",
        "install nvidia-container-toolkit, run `nvidia-ctk runtime configure --runtime=docker`"
        " and restart Docker; the build itself needs no GPU",
    ),
    _row(
        "wrong-architecture",
        r"exec format error|no match for platform in manifest|no matching manifest for",
        "wrong architecture: the image or base is made for another processor",
        _RIGHT_PLATFORM,
    ),
    _row(
        "no-buildx",
        r"'buildx' is not a docker command|unknown command: docker buildx|buildx component is"
        r" missing|docker-buildx: no such file|the --mount option requires buildkit"
        r"|invalid progress mode|unknown shorthand flag: '[tfo]' in -|unknown flag: --(?:progress"
        r"|secret|output|builder|load|platform|provenance|metadata-file|build-arg|cache-|tag)",
        "buildx is missing or too old",
        "install docker-buildx (Debian and Ubuntu's own packages) or docker-buildx-plugin"
        " (Docker's packages), 0.13 or later",
    ),
    _row(
        "no-docker-command",
        r"no such file or directory: '(?:[\w./-]{0,80}/)?docker'|docker: (?:command )?not found",
        "the docker command is missing",
        "install docker-cli (Debian) or docker-ce-cli (Docker's packages) and docker-buildx",
    ),
    _row(
        "pull-limit",
        r"toomanyrequests|pull rate limit|too many requests",
        "the registry's pull limit is reached",
        "log in (`docker login`) or wait some hours, or build without a registry: `--base packages`",
    ),
    _row(
        "registry-denied",
        r"pull access denied|unauthorized: |authentication required|no basic auth credentials"
        r"|requested access to the resource is denied|insufficient_scope|401 unauthorized"
        r"|incorrect username or password|\b401\b.{0,40}(?:unauthorized|credentials)",
        "the registry refused: not logged in, no rights on it, or no such image",
        "log in with `docker login <registry>` and check the name of the image",
    ),
    _row(
        "no-such-image",
        r"(?:manifest for|source metadata for|unable to find image) '?(?P<image>[^\s']{1,200}?)'?:?"
        r" .{0,300}not found",
        "the image {image} does not exist: its tag was withdrawn or is misspelt",
        _NEW_TAG,
    ),
    _row(
        "no-such-image",
        r"manifest[ _]unknown|manifest not found",
        "the image does not exist: its tag was withdrawn or is misspelt",
        _NEW_TAG,
    ),
    _row(
        "lock-mismatch",
        r"these packages do not match the hashes|hash mismatch for",
        "a downloaded package is not the one in the lock: the index serves another file",
        "use another mirror, or renew the lock on purpose; do not drop the hashes",
    ),
    _row(
        "cuda-apt-key",
        r"NO_PUBKEY A4B469963BF863CC|compute/cuda/repos.{0,200}(?:not signed|NO_PUBKEY)",
        "the base image carries NVIDIA's CUDA apt source, whose key was changed in 2022",
        "remove /etc/apt/sources.list.d/cuda.list and nvidia-ml.list before `apt-get update`: the wheels bring CUDA",
    ),
    _row(
        "apt-key",
        r"NO_PUBKEY (?P<key>[0-9A-F]{8,40})",
        "an apt source is signed with the key {key}, which the image does not know",
        "remove that source, or install its key before `apt-get update`",
    ),
    _row(
        "apt-release-gone",
        r"does not have a release file|no longer has a release file",
        "an apt source has no such release: it has left the archive, or the name is wrong",
        "take a newer base; an old release has moved to the distribution's archive of old ones",
    ),
    _row(
        "apt-stale",
        r"failed to fetch .{0,400}\b404\b|\b404  not found",
        "apt's lists are out of date: a package in them has been replaced (404)",
        "build again without cache, with `apt-get update` in the same RUN as the install",
    ),
    _row(
        "apt-mismatch",
        r"hash sum mismatch|file has unexpected size",
        "the apt mirror was caught while it was being updated, or a proxy keeps old files",
        "try again in some minutes or with another mirror",
    ),
    _row(
        "cuda-index-missing",
        r"the requirement [^\s()]{1,200}\+(?:cu|rocm|cpu)[^\s()]{0,40}.{0,300}?"
        r"\(from versions: (?!none)[^+)]{1,4000}\)"
        r"|there is no version of [^\s()]{1,200}\+(?:cu|rocm|cpu)",
        "no index that was asked offers CUDA builds of the package, only plain versions",
        _ADD_INDEX,
    ),
    _row(
        "python-has-no-build",
        r"the requirement (?P<package>[^\s()]{1,200}).{0,300}?"
        r"\(from versions: (?P<first>(?!none)[^\s,()]{1,60})",
        "{package} has no build for this Python version (offered: {first} ...)",
        _OTHER_PYTHON,
    ),
    _row(
        "python-has-no-build",
        r"versions that require a different python version|requires a different python:"
        r"|no wheels with a matching python",
        "a package has no build for this Python version",
        _OTHER_PYTHON,
    ),
    _row(
        "network",
        r"temporary failure (?:in name resolution|resolving)|could not resolve (?:host|proxy|')"
        r"|no such host|name or service not known|i/o timeout|tls handshake timeout|timed out"
        r"|client\.timeout exceeded|context deadline exceeded|ReadTimeout|ConnectTimeout"
        r"|network is unreachable|no route to host|connection (?:reset by peer|refused)|dns error"
        r"|failed to establish a new connection|proxyconnect|tunnel connection failed"
        r"|cannot connect to proxy",
        "the network does not reach a server the build needs (name, route, proxy or timeout)",
        "check DNS and the proxy settings, or use a mirror; without a registry: `--base packages`",
    ),
    _row(
        "forbidden",
        r"\b403\b.{0,30}forbidden|http(?: error)? 403\b|status(?: code)?:? 403\b|error: 403\b",
        "a server refused the download (403)",
        "log in, if it is a registry of yours; else use another mirror or ask whoever runs the proxy",
    ),
    _row(
        "cuda-index-missing",
        r"no matching distribution found for (?P<package>[^\s()]{1,200}\+(?:cu|rocm|cpu)\S{0,40})",
        "{package}: no index that was asked offers CUDA builds of the package",
        _ADD_INDEX,
    ),
    _row(
        "python-has-no-build",
        r"no matching distribution found for (?P<package>\S{1,200})",
        "{package} has no build for this Python version and platform",
        "check its name, and " + _OTHER_PYTHON,
    ),
    _row(
        "apt-no-package",
        r"unable to locate package (?P<package>\S{1,100})|E: package '[^']{1,100}' has no",
        "apt knows no such package: it is misspelt, not in this release, or the lists are missing",
        "run `apt-get update` in the same RUN, build again without cache, and check the name",
    ),
    _row(
        "wrong-architecture",
        r"does not match the (?:detected host|expected) platform",
        "wrong architecture: the image is made for another processor than this machine's",
        _RIGHT_PLATFORM,
    ),
)
