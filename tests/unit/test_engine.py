"""The engine: which one is used, and that nothing it does ends in a traceback."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import socketserver
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import unquote

import docker
import pytest
import requests
import urllib3
from docker.errors import APIError, DockerException, ImageNotFound

from hermitcrab.build import archive, embedded
from hermitcrab.build import engine as engines
from hermitcrab.build.engine import Engine
from hermitcrab.errors import UserError

CASES = Path(__file__).parents[1] / "cases"


class Daemon(BaseHTTPRequestHandler):
    """Answers as an Engine does, from a table that a test may change."""

    protocol_version = "HTTP/1.1"
    answers: ClassVar[dict[str, tuple[int, str]]] = {}

    def answer(self) -> None:
        """Give what the table has for the path, without its version."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(self.path.partition("?")[0])
        short = path if path in self.answers else "/" + path.split("/", 2)[-1]
        status, body = self.answers.get(short, (404, '{"message": "page not found"}'))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        data = body.encode()
        chunk = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        self.wfile.write(chunk + b"0\r\n\r\n")

    do_GET = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815 - the names are http.server's

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An engine that answers at a socket."""
    answers = {"/version": (200, '{"ApiVersion": "1.45", "MinAPIVersion": "1.24"}'), "/_ping": (200, "OK")}
    monkeypatch.setattr(Daemon, "answers", answers)
    path = tmp_path / "docker.sock"
    with socketserver.ThreadingUnixStreamServer(str(path), Daemon) as made:
        made.daemon_threads = True
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"unix://{path}"
        made.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def bare_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without an engine, which may not run the embedded one either."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "config"))
    monkeypatch.setattr(engines, "SOCKET", f"unix://{tmp_path}/none.sock")
    monkeypatch.setattr(embedded, "possible", lambda: False)


@contextlib.contextmanager
def opened(host: str) -> Iterator[Engine]:
    """An engine whose client is closed again."""
    engine = Engine(host=host)
    with contextlib.closing(engine.client):
        yield engine


def with_client(**parts: Any) -> Engine:
    """An engine with a made-up SDK client."""
    engine = Engine(host="unix:///nowhere")
    engine.__dict__["client"] = SimpleNamespace(**parts)
    return engine


def embedded_started(monkeypatch: pytest.MonkeyPatch, host: str) -> list[str]:
    """Let the embedded engine be possible, at the socket of a server; returns what is asked of it."""
    asked: list[str] = []
    monkeypatch.setattr(embedded, "possible", lambda: True)
    monkeypatch.setattr(embedded, "running", lambda: "start" in asked)
    monkeypatch.setattr(embedded, "start", lambda: asked.append("start"))
    monkeypatch.setattr(embedded, "SOCKET", Path(host.removeprefix("unix://")))
    return asked


def refusal() -> str:
    """The one line with which no engine is found."""
    with pytest.raises(UserError) as caught:
        engines.find()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_named_engine_is_taken(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DOCKER_HOST comes first."""
    monkeypatch.setenv("DOCKER_HOST", server)

    assert engines.find() == Engine(host=server)


@pytest.mark.parametrize("by", ["DOCKER_HOST", "DOCKER_CONTEXT", "currentContext"])
def test_a_named_engine_is_never_replaced(
    by: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent is an error: building elsewhere than the user said is none of our business."""
    asked = embedded_started(monkeypatch, server)
    gone = f"unix://{tmp_path}/gone.sock"
    if by == "DOCKER_HOST":
        monkeypatch.setenv(by, gone)
    else:
        choose_context(by, gone, tmp_path, monkeypatch)

    assert "no Docker here" in refusal()
    assert asked == []


def test_the_usual_socket_is_found(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word of the user."""
    monkeypatch.setattr(engines, "SOCKET", server)

    assert engines.find() == Engine(host=server)


def test_a_rootless_engine_is_found(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket lies in the user's runtime directory."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    assert engines.find() == Engine(host=server)


@pytest.mark.parametrize("by", ["DOCKER_CONTEXT", "currentContext"])
def test_the_context_is_followed(by: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the docker command does: the variable, or what `docker context use` wrote down."""
    choose_context(by, server, tmp_path, monkeypatch)

    assert engines.find() == Engine(host=server)


def choose_context(by: str, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a context of this host and choose it."""
    meta = tmp_path / "config/contexts/meta" / hashlib.sha256(b"far").hexdigest() / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"Name": "far", "Metadata": {}, "Endpoints": {"docker": {"Host": host}}}))
    chosen = {"currentContext": "far"} if by == "currentContext" else {}
    (tmp_path / "config/config.json").write_text(json.dumps(chosen))
    if not chosen:
        monkeypatch.setenv("DOCKER_CONTEXT", "far")


def test_a_broken_context_is_none(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost context file is no reason for a traceback."""
    monkeypatch.setattr(engines, "SOCKET", server)
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.json").write_text("{")

    assert engines.find() == Engine(host=server)


def test_a_context_that_is_lost_is_wrong_input(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another engine is not what the user asked for."""
    monkeypatch.setattr(engines, "SOCKET", server)
    monkeypatch.setenv("DOCKER_CONTEXT", "lost")

    assert "no docker context 'lost'" in refusal()
    monkeypatch.setenv("DOCKER_CONTEXT", "default")
    assert engines.find() == Engine(host=server)


def test_only_a_disk_of_this_machine_is_looked_at(server: str) -> None:
    """A far engine's /var/lib/docker is not ours."""
    Daemon.answers["/info"] = (200, '{"DockerRootDir": "/data"}')

    assert Engine(host=server).data_root == Path("/data")
    assert Engine(host="tcp://far.example:2376").data_root is None


def test_no_engine_says_where_to_build() -> None:
    """Case C32f, from the SDK's own words."""
    assert "FileNotFoundError" in (CASES / "C32f.txt").read_text()
    assert refusal() == (
        "no Docker here: no engine answers at DOCKER_HOST, the context or the socket - rented containers have none, "
        "so build elsewhere: on a machine with Docker, or on Debian or Ubuntu as root; or start the engine, "
        "or correct DOCKER_HOST"
    )


def test_the_embedded_engine_is_the_last_resort(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none answers and it can run, it is started, with an environment of its own."""
    asked = embedded_started(monkeypatch, server)

    found = engines.find()

    assert asked == ["start"]
    assert (found.host, found.embedded, found.network) == (server, True, "host")
    assert found.environment["DOCKER_HOST"] == server


def test_asking_starts_nothing(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``start=False`` only looks."""
    asked = embedded_started(monkeypatch, server)

    with pytest.raises(UserError, match="no engine runs here - `invoke build` starts the embedded one"):
        engines.find(start=False)
    assert asked == []


def test_an_embedded_engine_that_stays_silent_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started is not enough."""
    embedded_started(monkeypatch, f"unix://{tmp_path}/gone.sock")

    assert "no Docker here" in refusal()


def test_no_rights_is_not_no_engine(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that we may not use is named as such, and no second one is started."""
    asked = embedded_started(monkeypatch, server)
    monkeypatch.setattr(engines, "SOCKET", server)
    monkeypatch.setattr(os, "access", lambda *_: False)

    def client(*_: object, **__: object) -> None:
        raise DockerException(
            "Error while fetching server API version: ('Connection aborted.', PermissionError(13, ''))"
        )

    monkeypatch.setattr(docker, "DockerClient", client)

    assert refusal().startswith("no rights on the Docker socket - ")
    assert asked == []


def test_an_engine_too_old_is_one_line(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's words for an API older than its own."""
    Daemon.answers["/version"] = (200, '{"ApiVersion": "1.12"}')
    monkeypatch.setenv("DOCKER_HOST", server)

    assert "API versions below" in refusal()


def test_a_sick_engine_is_one_line(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers, and not well."""
    Daemon.answers["/_ping"] = (500, '{"message": "write /var/lib/docker: no space left on device"}')
    monkeypatch.setenv("DOCKER_HOST", server)

    assert refusal().startswith("the disk is full")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (APIError("x", explanation="unauthorized: authentication required"), "the registry refused"),
        (APIError("x", explanation="a\nb: no space left on device\nc"), "the disk is full"),
        (requests.ConnectionError("('Connection aborted.', ConnectionResetError(104, ''))"), "stopped answering"),
        (requests.ReadTimeout("Read timed out. (read timeout=5)"), "the network does not reach"),
        (urllib3.exceptions.ProtocolError("IncompleteRead(0 bytes read)"), "IncompleteRead"),
        (FileNotFoundError(2, "No such file or directory", "base.tar"), "base.tar"),
        (DockerException(""), "lifting the anchor failed"),
        (ValueError("Invalid IPv6 URL"), "lifting the anchor failed: Invalid IPv6 URL"),
    ],
)
def test_every_failure_becomes_one_line(error: Exception, said: str) -> None:
    """Cause and next step; what has no known cause keeps its own words."""
    with pytest.raises(UserError) as caught, engines.failures("lifting the anchor"):
        raise error
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_our_own_errors_pass() -> None:
    """What is one line already stays as it is, and a fault of ours stays a fault."""
    with pytest.raises(UserError, match=r"^mine$"), engines.failures("x"):
        raise UserError("mine")
    with pytest.raises(ZeroDivisionError), engines.failures("x"):
        raise ZeroDivisionError


@pytest.mark.parametrize(("machine", "platform"), [("x86_64", "linux/amd64"), ("aarch64", "linux/arm64")])
def test_the_platform_is_compared(machine: str, platform: str) -> None:
    """An engine for other machines is refused before anything is built."""
    engine = with_client(info=lambda: {"Architecture": machine})

    engine.check_platform(platform)
    with pytest.raises(UserError, match=f"this engine is {platform}, the combos are for linux/s390x"):
        engine.check_platform("linux/s390x")


def test_an_image_that_is_not_there_is_none(server: str) -> None:
    """None for missing; any other answer is an error."""
    Daemon.answers["/images/lost:1/json"] = (404, '{"message": "No such image: lost:1"}')
    Daemon.answers["/images/sick:1/json"] = (500, '{"message": "no space left on device"}')
    Daemon.answers["/images/here:1/json"] = (200, '{"Id": "sha256:12"}')

    with opened(server) as engine:
        assert engine.image("lost:1") is None
        image = engine.image("here:1")
        assert image is not None
        assert image.id == "sha256:12"
        with pytest.raises(UserError, match="the disk is full"):
            engine.image("sick:1")


def test_removing_what_is_gone_is_done() -> None:
    """Only what the engine refuses is an error."""

    def remove(tag: str, force: bool) -> None:
        assert force
        raise ImageNotFound("x") if tag == "gone" else APIError("x", explanation="engine says no: error")

    engine = with_client(images=SimpleNamespace(remove=remove))

    engine.remove("gone")
    with pytest.raises(UserError, match="engine says no"):
        engine.remove("kept")


def test_a_registry_that_refuses_says_why(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for a reference, with the time that is given to it."""
    waits: list[object] = []
    made = docker.DockerClient

    def client(**given: Any) -> docker.DockerClient:
        waits.append(given["timeout"])
        return made(**given)

    monkeypatch.setattr(docker, "DockerClient", client)
    Daemon.answers["/distribution/debian@sha256:00/json"] = (200, '{"Descriptor": {"digest": "sha256:00"}}')
    Daemon.answers["/distribution/lost:1/json"] = (403, '{"message": "requested access to the resource is denied"}')

    engine = Engine(host=server)
    engine.registry_has("debian@sha256:00")
    with pytest.raises(UserError, match="the registry refused"):
        engine.registry_has("lost:1", timeout=5.0)
    assert waits == [int(engines.TIMEOUT_S), 5]


def test_push_gives_the_digest(server: str) -> None:
    """Out of the last words of a stream."""
    said = [{"status": "Pushed"}, {"progressDetail": {}, "aux": {"Tag": "1", "Digest": "sha256:ab", "Size": 9}}]
    Daemon.answers["/images/r.example/x/push"] = (200, "\n".join(map(json.dumps, said)))

    with opened(server) as engine:
        assert engine.push("r.example/x:1") == "sha256:ab"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"errorDetail": {"message": "denied: requested access to the resource is denied"}}', "the registry refused"),
        ((CASES / "C32.txt").read_text(), "pull limit"),
        ('{"status": "Preparing"}', "Preparing"),
        ("", "gave no digest for r.example/x:1"),
    ],
)
def test_a_push_refused_with_status_200_is_an_error(body: str, said: str, server: str) -> None:
    """The engine tells it in the stream only."""
    Daemon.answers["/images/r.example/x/push"] = (200, body)

    with opened(server) as engine, pytest.raises(UserError) as caught:
        engine.push("r.example/x:1")
    assert said in str(caught.value)


def test_a_file_is_read_without_starting_the_image() -> None:
    """From a container that is created and removed again, also when the file is missing."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as made:
        entry = tarfile.TarInfo("manifest.json")
        entry.size = 2
        made.addfile(entry, io.BytesIO(b"{}"))
    events: list[str] = []

    def get_archive(path: str) -> tuple[Iterator[bytes], dict[str, int]]:
        events.append(path)
        if path != "/etc/manifest.json":
            raise docker.errors.NotFound("x", explanation=f"Could not find the file {path}")
        return iter([packed.getvalue()[:100], packed.getvalue()[100:]]), {}

    def create(tag: str, **options: object) -> SimpleNamespace:
        events.append(f"{tag} {options['network_mode']}")
        return SimpleNamespace(get_archive=get_archive, remove=lambda force: events.append(f"removed {force}"))

    engine = with_client(containers=SimpleNamespace(create=create))

    assert engine.read_file("x:1", "/etc/manifest.json") == b"{}"
    with pytest.raises(UserError, match="Could not find the file /lost"):
        engine.read_file("x:1", "/lost")
    assert events == ["x:1 none", "/etc/manifest.json", "removed True", "x:1 none", "/lost", "removed True"]


def docker_command(folder: Path, body: str) -> Path:
    """A docker command with buildx, whose builds do this."""
    path = folder / "bin/docker"
    path.parent.mkdir()
    version = '[ "$2" = version ] && echo github.com/docker/buildx v0.13.1 x && exit'
    path.write_text(f"#!/bin/sh\n{version}\n{body}\n")
    path.chmod(0o755)
    return path


def build(engine: Engine, folder: Path, **changes: Any) -> None:
    """Build a folder with all there is to say."""
    usual: dict[str, Any] = {"tag": "x:1", "arguments": {"BASE": "b"}, "secrets": {"ca": Path("/ca.pem")}}
    usual |= {"cache": True, "show": lambda _: None}
    engine.build(folder, **{**usual, **changes})


def test_build_says_all_to_buildx(tmp_path: Path) -> None:
    """The tag, arguments by name, secrets by file; the engine's own builder, wherever the user's stands.

    Every user of a machine can read its command lines, and a proxy may have a password.
    """
    log = tmp_path / "asked"
    program = docker_command(tmp_path, f'printf "%s\\n" "$@" "$DOCKER_HOST" "$BUILDX_BUILDER" "$HTTP_PROXY" > {log}')
    environment = {"PATH": f"{program.parent}:/usr/bin:/bin", "BUILDX_BUILDER": "cloud", "DOCKER_HOST": "tcp://far"}

    proxy = "http://user:word@proxy.example:3128"
    build(Engine(host="unix:///own", environment=environment), tmp_path / "folder", arguments={"HTTP_PROXY": proxy})
    plain = log.read_text().splitlines()
    build(Engine(host="unix:///own", environment=environment, embedded=True), tmp_path, cache=False)
    own = log.read_text().splitlines()

    assert plain == [
        *("buildx", "build", "--progress=rawjson", "--load", "--provenance=false", "--tag=x:1"),
        *("--build-arg=HTTP_PROXY", "--secret=id=ca,src=/ca.pem", str(tmp_path / "folder")),
        *("unix:///own", "default", proxy),
    ]
    assert {"--network=host", "--no-cache"} <= set(own)


def test_a_failed_build_names_the_true_cause(tmp_path: Path) -> None:
    """It stands in a log line, far above the error that ends the build."""
    said = tmp_path / "said"
    full = "RVJST1I6IENvdWxkIG5vdCBpbnN0YWxsOiBbRXJybm8gMjhdIE5vIHNwYWNlIGxlZnQgb24gZGV2aWNlCg=="
    messages = [
        {"vertexes": [{"digest": "sha256:aa", "name": "[wheels 2/2] RUN"}]},
        {"logs": [{"vertex": "sha256:aa", "stream": 2, "data": full}]},
        *({"logs": [{"vertex": "sha256:aa", "stream": 1, "data": "YSBsaW5lCg=="}]} for _ in range(50)),
        {"vertexes": [{"digest": "sha256:aa", "name": "x", "error": 'process "sh" did not complete: exit code: 1'}]},
    ]
    said.write_text("\n".join(json.dumps(message, indent=2) for message in messages) + "\nERROR: failed to solve: x\n")
    program = docker_command(tmp_path, f"cat {said} >&2; exit 1")
    engine = Engine(host="unix:///own", environment={"PATH": f"{program.parent}:/usr/bin:/bin"})
    shown: list[object] = []

    with pytest.raises(UserError) as caught:
        build(engine, tmp_path, show=shown.append, needed_gb=13.3)
    assert str(caught.value).startswith("the disk is full, or a layer does not fit on it - free at least 13.3 GB")
    assert len(shown) == len(messages)


def test_a_build_that_dies_without_a_word_still_says_something(tmp_path: Path) -> None:
    """The last resort."""
    program = docker_command(tmp_path, "exit 1")

    with pytest.raises(UserError, match=r"^the build failed$"):
        build(Engine(host="x", environment={"PATH": f"{program.parent}:/usr/bin:/bin"}), tmp_path)


def test_only_real_hosts_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests touch neither this machine's engine nor its archive."""
    monkeypatch.setattr(archive, "host", lambda: pytest.fail("the host was asked"))

    assert "no Docker here" in refusal()
