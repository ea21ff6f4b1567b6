"""What reaches the network and how: certificates that a network adds, and a platform's proxy script."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Mapping

BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
# One setting for all: pip, uv, Python, curl, git, conda and requests each have a name for it.
VARIABLES = (
    *("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "CONDA_SSL_VERIFY"),
    "NODE_EXTRA_CA_CERTS",
)
OWN = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # a whole bundle that the user has named
TURBO = "/etc/network_turbo"  # AutoDL; it exports proxies and a certificate
GIVEN_BY_TURBO = ("http_proxy", "https_proxy", "no_proxy", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")


def trusting(environ: Mapping[str, str], ca: str, work: Path) -> dict[str, str]:
    """Return an environment that trusts one more certificate, for this run only.

    Without one: in which the bundle that the user has named to some program is named to all.
    """
    if not ca:
        named = next((environ[name] for name in OWN if os.path.isfile(environ.get(name, ""))), "")
        return {**(dict.fromkeys(VARIABLES, named) if named else {}), **environ}
    own = next((path for path in map(Path, (environ.get("SSL_CERT_FILE", ""), *BUNDLES)) if path.is_file()), None)
    bundle = work / "ca.pem"
    bundle.write_bytes((own.read_bytes() + b"\n" if own else b"") + Path(ca).read_bytes())
    return {**environ, **dict.fromkeys(VARIABLES, str(bundle))}


def turbo(environ: Mapping[str, str], script: str = TURBO) -> dict[str, str]:
    """Return an environment with the proxies of the platform's script, which runs in a shell of its own."""
    code = f". {script} >/dev/null 2>&1; env -0"
    try:
        done = subprocess.run(
            ["bash", "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return dict(environ)
    pairs = (entry.partition("=") for entry in done.stdout.decode(errors="surrogateescape").split("\0"))
    return {**environ, **{name: value for name, _, value in pairs if name in GIVEN_BY_TURBO and value}}
