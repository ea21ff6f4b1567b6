"""The Docker Engine: found, or started from the cache; the only module that talks to Docker.

Building goes through `docker buildx`, since the SDK reaches the classic builder only (ADR 1); the
SDK does all else. Every failure leaves here as one line of cause and next step.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import docker
import requests
import urllib3
from docker.errors import DockerException, ImageNotFound
from docker.models.images import Image
from docker.utils import kwargs_from_env

from hermitcrab.build import buildx, diagnose, embedded
from hermitcrab.errors import UserError

__all__ = ["Engine", "Image", "failures", "find"]  # Image for the types of others

SOCKET: Final = "unix:///var/run/docker.sock"
PROBE_S: Final = 5.0  # how long `--base auto` waits for a registry
ANSWER_S: Final = 10.0  # how long an engine may take to say that it is there
TIMEOUT_S: Final = 600.0
# One plain image that the engine keeps: an attestation beside it would hold the time of the build.
FLAGS: Final = ("--progress=rawjson", "--load", "--provenance=false")


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A Docker Engine that answers, and the command line that fits it."""

    host: str
    embedded: bool = False
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)

    @property
    def network(self) -> str | None:
        """The network for builds and runs: the embedded engine has the host's only."""
        return "host" if self.embedded else None

    @cached_property
    def client(self) -> docker.DockerClient:
        """The SDK's client, at the newest API version both sides know."""
        return _client(self.host, TIMEOUT_S)

    @cached_property
    def docker(self) -> str:
        """The docker command whose buildx works with this engine."""
        return buildx.command(self.environment)

    def check_platform(self, platform: str) -> None:
        """Raise UserError unless the engine's machine is the one the combos are made for."""
        with failures("asking the engine what machine it is"):
            machine = str(self.client.info()["Architecture"])
        have = "linux/" + {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
        if have != platform:
            raise UserError(f"this engine is {have}, the combos are for {platform} - build on such a machine")

    @property
    def data_root(self) -> Path | None:
        """Where the engine keeps its data; None when that may be another machine's disk."""
        if not self.host.startswith("unix://"):
            return None
        with failures("asking the engine for its data directory"):
            return Path(str(self.client.info().get("DockerRootDir", "")))

    def image(self, tag: str) -> Image | None:
        """The image of a tag, or None."""
        with failures(f"looking for {tag}"):
            try:
                return self.client.images.get(tag)
            except ImageNotFound:
                return None

    def import_base(self, archive: Path, tag: str) -> None:
        """Make an image of a root filesystem."""
        repository, _, version = tag.rpartition(":")
        with failures(f"importing {archive.name}"):
            self.client.api.import_image_from_file(str(archive), repository=repository, tag=version)

    def registry_has(self, reference: str, timeout: float = TIMEOUT_S) -> None:
        """Raise UserError with the reason when the registry does not hand out this reference."""
        asking = failures(f"asking the registry for {reference}")
        with asking, contextlib.closing(_client(self.host, timeout)) as client:
            client.images.get_registry_data(reference)

    def build(
        self,
        folder: Path,
        *,
        tag: str,
        arguments: Mapping[str, str],
        secrets: Mapping[str, Path],
        cache: bool,
        show: Callable[[buildx.Message], None],
        needed_gb: float | None = None,
    ) -> None:
        """Build ``folder`` with BuildKit; ``show`` gets each progress message as it comes.

        Raises UserError naming the true cause, which may stand far above the last line.
        """
        command = [self.docker, "buildx", "build", *FLAGS, f"--tag={tag}"]
        command += [*(["--network=host"] if self.embedded else []), *([] if cache else ["--no-cache"])]
        # Names only: a proxy's password in the command line would be there for every user of this machine.
        command += [f"--build-arg={name}" for name in arguments]
        command += [f"--secret=id={name},src={path}" for name, path in secrets.items()]
        status, said = buildx.run([*command, str(folder)], {**self._build_environment(), **arguments}, show)
        if status:
            raise UserError(diagnose.one_line(said, fallback="the build failed", needed_gb=needed_gb))

    def read_file(self, tag: str, path: str) -> bytes:
        """One small file of an image, without starting it."""
        with self._created(tag) as container, failures(f"reading {path} of {tag}"):
            chunks, _ = container.get_archive(path)
            with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
                member = archive.extractfile(archive.next() or path)
                return member.read() if member else b""

    def save(self, tag: str) -> Iterator[bytes]:
        """The image as `docker save` writes it."""
        with failures(f"saving {tag}"):
            yield from self.client.images.get(tag).save(named=tag)

    def push(self, tag: str) -> str:
        """Push, and return the digest the registry gave it."""
        said: list[str] = []
        digest = ""
        with failures(f"pushing {tag}"):
            for message in self.client.images.push(tag, stream=True, decode=True):
                said.append(json.dumps(message))
                digest = message.get("aux", {}).get("Digest", digest)
        if not digest:
            raise UserError(diagnose.one_line(said, fallback=f"the registry gave no digest for {tag}"))
        return digest

    def remove(self, tag: str) -> None:
        """Forget a tag, and the image with it when nothing else names it."""
        with failures(f"removing {tag}"), contextlib.suppress(ImageNotFound):
            self.client.images.remove(tag, force=True)

    @contextlib.contextmanager
    def _created(self, tag: str) -> Iterator[Any]:
        with failures(f"opening {tag}"):
            container = self.client.containers.create(tag, command=["true"], network_mode=self.network or "none")
        try:
            yield container
        finally:
            with failures(f"closing {tag}"):
                container.remove(force=True)

    def _build_environment(self) -> dict[str, str]:
        # The builder "default" is the engine itself; one chosen by `docker buildx use` would build elsewhere.
        return {**self.environment, "DOCKER_HOST": self.host, "BUILDX_BUILDER": "default"}


def find(*, start: bool = True) -> Engine:
    """The user's engine if one answers, else the embedded one, which is started unless told otherwise.

    An engine the user named, in DOCKER_HOST or by a context, is never replaced by another.
    """
    host = _configured()
    reason = _silent(host)
    if reason is None:
        return Engine(host=host)
    named = os.environ.get("DOCKER_HOST") or host != SOCKET
    if named or _forbidden(host) or not embedded.possible():
        raise UserError(reason)
    if start:
        embedded.start()
    elif not embedded.running():
        raise UserError("no engine runs here - `invoke build` starts the embedded one")
    host = f"unix://{embedded.SOCKET}"
    reason = _silent(host)
    if reason is not None:
        raise UserError(reason)
    return Engine(host=host, embedded=True, environment=embedded.environment())


@contextlib.contextmanager
def failures(doing: str) -> Iterator[None]:
    """Turn whatever the SDK raises into one line of cause and next step."""
    try:
        yield
    except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        said = [*str(getattr(error, "explanation", None) or "").splitlines(), str(error)]
        known = diagnose.explain(said)
        words = diagnose.one_line(said, fallback="no word of why")
        raise UserError(known.message if known else f"{diagnose.mask(doing)} failed: {words}") from error


def _configured() -> str:
    """Where the docker command would go: DOCKER_HOST, the current context, the usual socket."""
    if named := os.environ.get("DOCKER_HOST"):
        return named
    wanted = os.environ.get("DOCKER_CONTEXT")
    with contextlib.suppress(Exception):  # a broken or lost context file means no context
        context = docker.ContextAPI.get_context(wanted)
        if context.Host and context.name != "default":
            return str(context.Host)
    if wanted and wanted != "default":
        raise UserError(f"no docker context {wanted!r}, which DOCKER_CONTEXT names - see: docker context ls", code=2)
    rootless = Path(os.environ.get("XDG_RUNTIME_DIR", "/nonexistent")) / "docker.sock"
    return f"unix://{rootless}" if rootless.exists() and not Path(SOCKET[7:]).exists() else SOCKET


def _client(host: str, timeout: float) -> docker.DockerClient:
    """The SDK's client, at the newest API version both sides know; TLS as DOCKER_TLS_VERIFY asks."""
    settings: dict[str, Any] = {**kwargs_from_env(), "base_url": host}
    return docker.DockerClient(**settings, version="auto", timeout=int(timeout))


def _silent(host: str) -> str | None:
    """Why an engine does not answer, or None when it does."""
    try:
        with failures(f"reaching the Docker Engine at {host}"), contextlib.closing(_client(host, ANSWER_S)) as client:
            client.ping()
    except UserError as error:
        return str(error)
    return None


def _forbidden(host: str) -> bool:
    """Whether a socket is there that we may not open: then the rights are at fault, not the engine."""
    path = Path(host.removeprefix("unix://"))
    return host.startswith("unix://") and path.exists() and not os.access(path, os.W_OK)
