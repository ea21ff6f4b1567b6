"""Claim: in a network that looks into TLS the box trusts whom its user names, and nobody else; nothing is left of it.

C27: the archive and the index are behind certificates that only that network's authority vouches for. Nothing that
is asked there comes from a client that did not verify them: the proxy tells what it could read.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Final

import pytest

from tests.box import interception, machine
from tests.box.bootstrapping import HASTE, STAMP, TREE, WORDS, Ready, Served, changed, run, told
from tests.box.conftest import Start
from tests.box.interception import Network
from tests.box.machine import Box

CA: Final = "/network.pem"
OTHER: Final = "/other.pem"
HOSTS: Final = (
    "sed -n 's#^.*http://\\([^/ ]*\\).*#\\1#p' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | sort -u"
)
TO_TLS: Final = "sed -i 's#http://#https://#' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true"
# One small package is fetched from the archive, or is there.
AWAY: Final = "mv /var/cache/apt/archives/nano_*.deb /nano.deb"
LACKING: Final = {"archive": "dpkg --purge nano >/dev/null 2>&1", "index": "dpkg -i /nano.deb >/dev/null"}


@pytest.fixture(scope="module")
def behind(start: Start, ready: Ready, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Box, Network]]:
    """A box whose archive is asked by TLS, and all of whose TLS is looked into."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl here to make certificates with")
    box = ready(start, mounts=[])
    folder = tmp_path_factory.mktemp("network")
    other = interception.authorize(folder / "other").with_suffix(".pem").read_bytes()
    with interception.intercepting(folder, plain=set(box.shell(HOSTS).split())) as network:
        machine.put(box.container, {CA: network.authority, OTHER: other})
        box.shell(f"{TO_TLS}; {AWAY}")
        yield box, network


def go(behind: tuple[Box, Network], served: Served, words: str = "", **environ: str) -> tuple[int, str]:
    """Run the line in that network."""
    box, network = behind
    network.seen.clear()
    proxies = {"https_proxy": network.proxy, "HTTPS_PROXY": network.proxy}
    return run(box, f"{served.curl()} | bash -s -- {WORDS} {words}", environ={**HASTE, **proxies, **environ})


@pytest.mark.parametrize("words", ["", f"--ca {OTHER}"], ids=["nobody named", "another named"])
@pytest.mark.parametrize("lacking", ["archive", "index"])
def test_who_is_not_named_is_not_trusted(behind: tuple[Box, Network], served: Served, lacking: str, words: str) -> None:
    """The last line says that it is the certificate and what to do; no request was made, and nothing changed."""
    box, network = behind
    box.shell(LACKING[lacking])
    before = box.shell(TREE)
    status, said = go(behind, served, words)
    assert status == 1, said
    assert "certificate" in said.splitlines()[-1].lower(), said
    assert said.rstrip().endswith("name your network's CA bundle with --ca FILE")
    assert network.seen == []
    assert changed(before, box.shell(TREE)) == []
    assert not box.host.file(STAMP).exists


@pytest.mark.parametrize(
    ("words", "environ"),
    [(f"--ca {CA}", {}), ("", {"HERMITCRAB_CA": CA})],
    ids=["--ca", "HERMITCRAB_CA"],
)
def test_who_is_named_is_trusted(
    behind: tuple[Box, Network], served: Served, words: str, environ: dict[str, str]
) -> None:
    """Packages and wheels come through; afterwards the box trusts that authority no more than before."""
    box, network = behind
    box.shell(f"{LACKING['archive']}; rm -f /var/cache/apt/archives/nano_*.deb")
    status, said = go(behind, served, words, **environ)
    assert status == 0, said
    assert told(box)["result"] == "done"
    assert any("/nano_" in one for one in network.seen)
    assert any("/uv-" in one for one in network.seen)
    line = network.authority.decode().splitlines()[2]
    assert box.shell(f"grep -rlF '{line}' /etc /usr /opt /root /var /home || true") == ""
    go(behind, served, "--uninstall")


@pytest.mark.parametrize("name", ["PIP_CERT", "SSL_CERT_FILE"])
def test_what_the_user_has_set_for_his_tools_is_enough(behind: tuple[Box, Network], served: Served, name: str) -> None:
    """Where apt is not needed: the variable that pip, or every other program, is told the authority by."""
    box, network = behind
    box.shell(LACKING["index"])
    status, said = go(behind, served, **{name: CA})
    assert status == 0, said
    assert any("/uv-" in one for one in network.seen)
    go(behind, served, "--uninstall")
