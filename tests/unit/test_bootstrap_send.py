"""Sending the script: over an ssh that is a stand-in, and by a server on the loopback."""

from __future__ import annotations

import http.server
import os
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from hermitcrab.build import bootstrap, bootstrap_send
from hermitcrab.errors import UserError


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script of the test's own in the rendered one's place."""
    path = tmp_path / "bootstrap.sh"
    path.write_text('echo "ran with $#: $*"\n')
    monkeypatch.setattr(bootstrap, "SCRIPT", path)
    return path


def ssh(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ssh that runs this; its last word is the command for the host."""
    folder.mkdir()
    (folder / "ssh").write_text(f"#!/bin/sh\nfor last; do :; done\n{code}\n")
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_it_runs_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By standard input, with the words as they are, its output shown."""
    ssh(tmp_path / "bin", 'eval "$last"', monkeypatch)
    bootstrap_send.send("mygpu", ["--cuda", "a b'c"])
    said = capfd.readouterr().out
    assert "ran with 2: --cuda a b'c" in said
    assert said.startswith("+ ssh -T")


@pytest.mark.parametrize("host", ["", "-oProxyCommand=evil", "a b", "a\nb"])
def test_what_is_no_host_is_refused(host: str) -> None:
    """Before ssh is started."""
    with pytest.raises(UserError, match="is no host") as refused:
        bootstrap_send.send(host)
    assert refused.value.code == 2


STATUSES = [(3, "done in part"), (4, "nothing fits"), (255, "cannot be reached"), (9, "ended with 9")]


@pytest.mark.parametrize(("status", "said"), STATUSES)
def test_its_status_becomes_ours(status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a word on what it means."""
    ssh(tmp_path / "bin", f"exit {status}", monkeypatch)
    with pytest.raises(UserError, match=said) as failed:
        bootstrap_send.send("mygpu")
    assert failed.value.code == status


def test_only_the_script_is_served(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Byte for byte; every other path of this machine is 404; the line to run is printed."""
    started, servers = threading.Event(), list[http.server.HTTPServer]()

    def ready(server: http.server.HTTPServer) -> None:
        servers.append(server)
        started.set()

    thread = threading.Thread(target=lambda: bootstrap_send.serve(0, at="127.0.0.1", ready=ready), daemon=True)
    thread.start()
    assert started.wait(10)
    base = f"http://127.0.0.1:{servers[0].server_address[1]}"
    with urllib.request.urlopen(f"{base}/bootstrap.sh", timeout=10) as answer:  # noqa: S310 - http
        assert answer.read() == script.read_bytes()
    for path in ("/../etc/passwd", "/bootstrap.sh/..", "/other"):
        with pytest.raises(urllib.error.HTTPError, match="404") as missing:
            urllib.request.urlopen(base + path, timeout=10)  # noqa: S310 - http
        missing.value.close()
    servers[0].shutdown()
    thread.join(10)
    assert f"curl -fsSL {base}/bootstrap.sh | bash" in capsys.readouterr().out


def test_a_taken_port_is_told() -> None:
    """Status 2, and what to do."""
    with (
        http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as taken,
        pytest.raises(UserError, match="choose another with --port") as refused,
    ):
        bootstrap_send.serve(int(taken.server_address[1]), at="127.0.0.1")
    assert refused.value.code == 2


def test_there_is_an_address() -> None:
    """Also without a network."""
    assert bootstrap_send.addresses()


def test_words_are_split_as_a_shell_does() -> None:
    """And a lost quote is wrong use."""
    assert bootstrap_send.words("--cuda '12.1' --yes") == ["--cuda", "12.1", "--yes"]
    with pytest.raises(UserError, match="quotation"):
        bootstrap_send.words("'")
