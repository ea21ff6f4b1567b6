"""Brings the bootstrap script to a box: over SSH with its progress shown, or served on the local network."""

from __future__ import annotations

import http.server
import ipaddress
import shlex
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Final

from hermitcrab.build import bootstrap
from hermitcrab.errors import UserError

NAME: Final = "/bootstrap.sh"
PORT: Final = 8080
SSH_FAILED: Final = 255
SSH: Final = ("ssh", "-T", "-o", "ServerAliveInterval=30", "-o", "ServerAliveCountMax=10")
# What the script's statuses mean, for the one who sent it.
SAID: Final = {
    2: "wrong use: see the line above",
    3: "done in part: the box gives this user no root's rights; what was left out stands above",
    4: "nothing fits this machine: see above what would work",
    SSH_FAILED: "the box cannot be reached: try `ssh HOST` by hand",
}


def send(host: str, words: Sequence[str] = ()) -> None:
    """Run the script on a host over SSH, its progress on this terminal; UserError when it fails.

    The host is whatever ssh understands: a name of ~/.ssh/config, or user@address. The script comes by
    standard input, so the box needs neither curl nor a way back to this machine.
    """
    if not host or host.startswith("-") or any(letter.isspace() for letter in host):
        raise UserError(f"--host {host!r} is no host that ssh could reach; give a name of ~/.ssh/config", code=2)
    command = [*SSH, "--", host, shlex.join(["sh", "-s", *(["--", *words] if words else [])])]
    print("+", shlex.join(command), flush=True)
    try:
        with bootstrap.SCRIPT.open("rb") as script:
            status = subprocess.run(command, stdin=script, check=False).returncode
    except FileNotFoundError as error:
        raise UserError(
            f"{error.filename or 'ssh'} is not here: install openssh-client, or run `invoke render`"
        ) from error
    if status:
        raise UserError(f"{host}: {SAID.get(status, f'the bootstrap ended with {status}')}", code=status)


def serve(port: int = PORT, *, at: str = "", ready: Callable[[http.server.HTTPServer], None] | None = None) -> None:
    """Serve the script, and nothing else, until Ctrl-C; print the line to run on the box."""
    script = bootstrap.SCRIPT.read_bytes()
    try:
        server = http.server.ThreadingHTTPServer((at, port), _handler(script))
    except OSError as error:
        raise UserError(
            f"port {port} cannot be served: {error.strerror}; choose another with --port", code=2
        ) from error
    with server:
        for address in [at] if at else addresses():
            print(f"curl -fsSL http://{address}:{server.server_address[1]}{NAME} | bash", flush=True)
        print("this machine's network can read it until Ctrl-C", flush=True)
        if ready:
            ready(server)
        server.serve_forever()


def addresses() -> list[str]:
    """Addresses by which others on the network reach this machine; the loopback's when there is none."""
    found = []
    # No packet is sent: connecting a datagram socket only chooses the address to send from.
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((far, 9))
            except OSError:
                continue
            address = ipaddress.ip_address(probe.getsockname()[0])
            found.append(f"[{address}]" if address.version == 6 else str(address))
    return found or ["127.0.0.1"]


def _handler(script: bytes) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        """Answers one path; the rest of this machine stays its own."""

        def do_GET(self) -> None:
            """Send the script."""
            found = self.path in {"/", NAME}
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/x-shellscript; charset=us-ascii")
            self.send_header("Content-Length", str(len(script) if found else 0))
            self.end_headers()
            if found:
                self.wfile.write(script)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the library
            """One line per box."""
            print(f"{self.address_string()}: {format % args}", flush=True)

    return Handler


def words(options: str) -> list[str]:
    """Split what is to be passed on to the script."""
    try:
        return shlex.split(options)
    except ValueError as error:
        raise UserError(f"--options {options!r}: {error}", code=2) from error
