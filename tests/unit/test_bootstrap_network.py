"""What reaches the network: certificates that a network adds, proxies, and the settings that a user has already."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from hermitcrab.box.bootstrap import network, pip
from hermitcrab.box.bootstrap.run import Places, Run, clean

ROOT: Final = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of a plain user in a home of the test's own."""
    (tmp_path / "work").mkdir()
    places = Places(tmp_path, tmp_path / "settings", tmp_path / "venv")
    return Run(False, places, tmp_path / "work", {"PATH": os.environ["PATH"]}, str(tmp_path / "log"))


# --- an authority that the network adds


def test_one_setting_for_all(tmp_path: Path) -> None:
    """C27: every program's name for it is set to one file, which holds what was trusted before as well."""
    (tmp_path / "extra").write_text("EXTRA\n")
    (tmp_path / "own").write_text("OWN\n")
    environ = network.trusting({"SSL_CERT_FILE": str(tmp_path / "own")}, str(tmp_path / "extra"), tmp_path)
    assert (tmp_path / "ca.pem").read_text() == "OWN\n\nEXTRA\n"
    names = ("PIP_CERT", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE", "CONDA_SSL_VERIFY")
    assert {environ[name] for name in names} == {str(tmp_path / "ca.pem")}
    assert network.trusting({"A": "b"}, "", tmp_path) == {"A": "b"}


class Refuses(BaseHTTPRequestHandler):
    """A server that has nothing: whoever is told so has trusted it."""

    def do_GET(self) -> None:
        """Say so."""
        self.send_error(404, "nothing here")

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def looked_into(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a server whose certificate nobody knows, and that certificate."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl here to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    words = ["-keyout", "key", "-out", "cert", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subprocess.run([*make, *words], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert", folder / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # those who do not trust it hang up
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://localhost:{server.server_address[1]}/simple/", folder / "cert"
    server.shutdown()
    server.server_close()


ASK: Final = "import sys, urllib.request as r; r.urlopen(sys.argv[1])"
CLIENTS: Final = {
    "curl": ["curl", "-sS", "--fail", "ADDRESS"],
    "git": ["git", "ls-remote", "ADDRESS"],
    "pip": [sys.executable, "-m", "pip", "download", "--retries=0", "--no-deps", "-d", ".", "--index-url=ADDRESS", "x"],
    "python": [sys.executable, "-c", ASK, "ADDRESS"],
}


@pytest.mark.parametrize("client", CLIENTS)
def test_each_client_trusts_whom_the_one_setting_names(
    client: str, looked_into: tuple[str, Path], tmp_path: Path
) -> None:
    """C27: without it each refuses for the certificate; with it each is answered, whatever the answer is."""
    address, certificate = looked_into
    command = [word.replace("ADDRESS", address) for word in CLIENTS[client]]
    if not shutil.which(command[0]):
        pytest.skip(f"no {command[0]} here")
    plain = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C", "no_proxy": "localhost"}

    def said(environ: dict[str, str]) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert done.returncode
        return (done.stdout + done.stderr).lower()

    assert "certificate" in said(plain)
    trusting = said(network.trusting(plain, str(certificate), tmp_path))
    assert "certificate" not in trusting.replace("no matching", "")
    assert re.search("404|not found|no matching distribution", trusting), trusting


@pytest.mark.parametrize("said", ["SSLError(CERTIFICATE_VERIFY_FAILED)", "invalid peer certificate: UnknownIssuer"])
def test_an_untrusted_certificate_is_called_so(said: str) -> None:
    """C27: not "no matching distribution"."""
    assert "certificate is not trusted" in pip.why(f"{said}\nERROR: No matching distribution found for uv")


def test_no_network_is_called_so() -> None:
    """Not "no matching distribution" either."""
    said = "NameResolutionError: Temporary failure in name resolution\nERROR: No matching distribution found"
    assert "cannot be reached" in pip.why(said)


def test_turbo_stays_in_its_shell(tmp_path: Path) -> None:
    """The script's proxies reach downloads; nothing else of it does, and our own environment stays as it is."""
    script = tmp_path / "turbo"
    script.write_text(
        "export http_proxy=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9 EVIL=1; cd /; set -e; echo hi\n"
    )
    before = dict(os.environ)
    environ = network.turbo({"PATH": os.environ["PATH"]}, str(script))
    assert environ["https_proxy"] == "http://127.0.0.1:9"
    assert "EVIL" not in environ
    assert dict(os.environ) == before
    assert network.turbo({"A": "b"}, "/nonexistent").get("https_proxy") is None


def test_pip_s_settings_reach_uv(run: Run) -> None:
    """The user's index, proxy and certificate hold; what would bend the lock does not."""
    listing = "global.index-url='https://mirror.example/simple'\n:env:.index-url='https://env.example/simple'\nglobal.cert='/ca'\n"
    fake = run.work / "pip"
    fake.write_text(f"#!/bin/sh\nprintf '%s' \"{listing}\"\n")
    fake.chmod(0o755)
    environ = pip.environment(run, (str(fake),))
    assert environ["UV_DEFAULT_INDEX"] == "https://env.example/simple"
    assert environ["SSL_CERT_FILE"] == "/ca"
    assert (
        pip.environment(run._replace(environ={"UV_DEFAULT_INDEX": "mine"}), (str(fake),))["UV_DEFAULT_INDEX"] == "mine"
    )
    assert clean({"PIP_CONSTRAINT": "x", "PIP_INDEX_URL": "y"}) == {"PIP_INDEX_URL": "y"}
