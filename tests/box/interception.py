"""A network that looks into TLS: a proxy on the loopback that answers for every host with a certificate of its own.

What it lets through it asks for by itself, with the certificates that this machine trusts.
"""

from __future__ import annotations

import contextlib
import http.server
import shutil
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any, Final, NamedTuple

EC: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-sha256", "-days", "2")
AUTHORITY: Final = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign")
OWN: Final = {"connection", "transfer-encoding", "keep-alive", "proxy-connection", "host"}  # not passed on
PIECE: Final = 1 << 16


class Network(NamedTuple):
    """Where the proxy is, whom to trust there, and what was asked by those who did."""

    proxy: str
    authority: bytes
    seen: list[str]


class _Stay(urllib.request.HTTPRedirectHandler):
    """Leaves it to the client to follow."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Server(http.server.ThreadingHTTPServer):
    """The proxy: what it was asked, and the certificates that it has made."""

    daemon_threads = True

    def __init__(self, folder: Path, plain: Set[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.authority, self.plain, self.seen = authorize(folder / "authority"), plain, list[str]()
        self.contexts, self.lock = dict[str, ssl.SSLContext](), threading.Lock()
        behind = urllib.request.HTTPSHandler(context=ssl.create_default_context())
        self.opener = urllib.request.build_opener(_Stay, behind)

    def context(self, host: str) -> ssl.SSLContext:
        """What a host's certificate is shown by."""
        with self.lock:
            if host not in self.contexts:
                self.contexts[host] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                self.contexts[host].load_cert_chain(_sign(self.authority.with_name(host), host, self.authority))
            return self.contexts[host]


class _Handler(http.server.BaseHTTPRequestHandler):
    """One client: first a tunnel, then what is asked in it."""

    protocol_version = "HTTP/1.1"
    server: _Server
    host = ""

    def do_CONNECT(self) -> None:
        self.host = self.path.partition(":")[0]
        self.send_response(200)
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):  # a client that does not trust it says so, and goes
            inner = self.server.context(self.host).wrap_socket(self.connection, server_side=True)
            self.connection, self.rfile, self.wfile = inner, inner.makefile("rb"), inner.makefile("wb")
            self.close_connection = False

    def do_GET(self) -> None:
        self.server.seen.append(f"{self.host}{self.path}")
        scheme = "http" if self.host in self.server.plain else "https"
        headers = {name: value for name, value in self.headers.items() if name.lower() not in OWN}
        request = urllib.request.Request(f"{scheme}://{self.host}{self.path}", headers=headers, method=self.command)  # noqa: S310
        try:
            answer = self.server.opener.open(request, timeout=60)
        except urllib.error.HTTPError as error:  # not modified, or somewhere else
            answer = error
        with answer:
            self._pass(answer)

    do_HEAD = do_GET  # noqa: N815

    def finish(self) -> None:
        super().finish()
        self.connection.close()

    def _pass(self, answer: Any) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in OWN:
                self.send_header(name, value)
        if "Content-Length" not in answer.headers and answer.status != http.HTTPStatus.NOT_MODIFIED:
            self.send_header("Connection", "close")  # its end is what tells its length
        self.end_headers()
        shutil.copyfileobj(answer, self.wfile, PIECE)

    def log_message(self, *_: object) -> None:
        return


@contextlib.contextmanager
def intercepting(folder: Path, *, plain: Set[str] = frozenset()) -> Iterator[Network]:
    """Serve such a network; the hosts in ``plain`` are asked without TLS behind it, as package archives are."""
    with _Server(folder, plain) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        authority = server.authority.with_suffix(".pem").read_bytes()
        yield Network(f"http://127.0.0.1:{server.server_address[1]}", authority, server.seen)
        server.shutdown()


def authorize(path: Path) -> Path:
    """Make an authority that nobody knows: its key, and beside it its certificate as .pem."""
    _openssl("req", "-x509", *EC, *_own(path, "A network that looks into TLS", *AUTHORITY), "-out", f"{path}.pem")
    return path


def _sign(path: Path, host: str, authority: Path) -> Path:
    """Make a certificate for a host, its key in the same file."""
    by = ("-CA", f"{authority}.pem", "-CAkey", str(authority))
    _openssl("req", "-x509", *by, *EC, *_own(path, host, f"subjectAltName=DNS:{host}"), "-out", f"{path}.pem")
    whole = path.with_suffix(".both")
    whole.write_bytes(path.read_bytes() + Path(f"{path}.pem").read_bytes())
    return whole


def _own(path: Path, name: str, *extensions: str) -> list[str]:
    """Words for a key of its own and a name, with nothing of this machine's configuration."""
    config = Path(f"{path}.conf")
    config.write_text("[req]\ndistinguished_name=name\n[name]\n")
    added = [word for extension in extensions for word in ("-addext", extension)]
    return ["-config", str(config), "-keyout", str(path), "-subj", f"/CN={name}", *added]


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, stdin=subprocess.DEVNULL)
