"""The scan of root filesystems: each thing it looks for is planted and found, and what belongs there is not."""

from __future__ import annotations

import base64
import io
import tarfile
from typing import Final

import pytest

from tests.image import scan

EPOCH: Final = 1_700_000_000
KEY_BODY: Final = base64.b64encode(bytes(range(120))).decode()
RSA: Final = f"-----BEGIN RSA {'PRIVATE'} KEY-----\n{KEY_BODY}\n"
OPENSSH: Final = f"-----BEGIN OPENSSH {'PRIVATE'} KEY-----\n{KEY_BODY}\n"


def certificate(seed: int) -> str:
    """What a certificate looks like; nothing signed it."""
    body = base64.encodebytes(bytes((n * seed + seed) % 251 for n in range(700))).decode()
    return f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n"


def root(files: dict[str, str], *, mtime: int = EPOCH, kind: bytes = tarfile.REGTYPE) -> io.BytesIO:
    """A root filesystem of some files, in the directories they need."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.type, member.mtime, data = kind, mtime, text.encode()
            member.size = len(data) if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(data))
    packed.seek(0)
    return packed


def findings(files: dict[str, str], **foreign: bytes) -> list[scan.Finding]:
    """All findings in some files."""
    return scan.scan(root(files), epoch=EPOCH, foreign=foreign)


PLANTED: Final = (
    ("root/.cache/pip/http/a", "x", "cache"),
    ("home/me/.cache/uv/b", "x", "cache"),
    ("var/cache/ldconfig/aux-cache", "x", "cache"),
    ("var/cache/apt/archives/git.deb", "x", "apt cache"),
    ("var/cache/apt/pkgcache.bin", "x", "apt cache"),
    ("var/lib/apt/lists/main_Packages", "x", "apt list"),
    ("opt/venv/lib/__pycache__/a.cpython-311.pyc", "x", "byte-compiled file"),
    ("usr/lib/python3/a.pyc", "x", "byte-compiled file"),
    ("hermitcrab-0.1.0-py3-none-any.whl", "x", "wheel"),
    ("etc/ssh/ssh_host_rsa_key", "x", "host key"),
    ("opt/ssh_host_ed25519_key.pub", "x", "host key"),
    ("root/.ssh/authorized_keys", "", "authorized_keys"),
    ("etc/ssh/authorized_keys", "x", "authorized_keys"),
    ("home/me/.ssh/config", "x", "file in .ssh"),
    ("tmp/uv.lock", "x", "temporary file"),
    ("var/tmp/x", "x", "temporary file"),
    ("var/log/dpkg.log", "", "log"),
    ("root/.bash_history", "x", "history"),
    ("root/.wget-hsts", "x", "history"),
    ("root/.netrc", "x", "credentials"),
    ("root/.docker/config.json", "{}", "credentials"),
    ("etc/pip.conf", "x", "settings of the build's pip or uv"),
    ("root/.config/uv/uv.toml", "x", "settings of the build's pip or uv"),
    ("usr/local/share/ca-certificates/corp.crt", "x", "extra CA"),
    ("run/secrets/index", "x", "secret of the build"),
    ("var/lib/dpkg/status-old", "x", "package manager's leftover"),
    ("etc/shadow-", "", "package manager's leftover"),
    ("etc/nanorc.dpkg-old", "x", "package manager's leftover"),
    ("etc/machine-id", "0123456789abcdef\n", "machine id"),
    ("var/lib/dbus/machine-id", "0123456789abcdef\n", "machine id"),
    ("etc/shadow", "root:$y$j9T$salt$hash:19000:0:99999:7:::\n", "password"),
    ("etc/shadow", "daemon:*:19000::::::\nroot::19000::::::\n", "password"),
    ("etc/passwd", "root::0:0:root:/root:/bin/bash\n", "password"),
    ("etc/gshadow", "sudo:$6$salt$hash::\n", "password"),
    ("var/cache/debconf/passwords.dat", "Name: x/password\n", "password"),
    ("etc/hostname", "build-host\n", "network of the build host"),
    ("etc/resolv.conf", "nameserver 203.0.113.1\n", "network of the build host"),
    ("etc/environment", "HTTPS_PROXY=http://203.0.113.1:3128\n", "proxy"),
    ("etc/profile.d/x.sh", "a=1\nexport no_proxy=example\n", "proxy"),
    ("etc/apt/apt.conf.d/95proxy", 'Acquire::http::Proxy "http://203.0.113.1";\n', "proxy"),
    ("root/.gitconfig", "[http]\n\tproxy = http://203.0.113.1\n", "proxy"),
    ("root/.ssh/id_rsa", RSA, "private key"),
    ("home/me/.ssh/backup/key.txt", f"my key\n{OPENSSH}", "private key"),
    ("opt/app/service.json", RSA.replace("\n", "\\n"), "private key"),
    ("opt/app/.env", f"HF={'hf'}_abcdefghijklmnop\n", "token"),
    ("opt/app/x.sh", f"T={'ghs'}_a1b2c3d4e5f6A7B8\n", "token"),
    ("etc/apt/sources.list", "deb https://me:s3cret@example.org/debian x main\n", "token"),
    ("usr/lib/a.py", f"KEY = '{'AKIA'}ABCDEFGHIJKLMNOP'\n", "token"),
)


@pytest.mark.parametrize(("path", "text", "what"), PLANTED)
def test_planted_thing_is_found(path: str, text: str, what: str) -> None:
    """Each rule finds what it is for, and says in which file."""
    assert scan.Finding(path, what) in findings({path: text})


def test_every_rule_is_planted() -> None:
    """No rule is without a case that shows it can fail."""
    rules = {what for what, _ in scan.NAMES} | {what for what, _, _ in scan._CONTENT}
    assert rules == {what for _, _, what in PLANTED}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("etc/machine-id", "uninitialized\n"),
        ("etc/shadow", "root:*:19000:0:99999:7:::\nme:!:19000::::::\nold:!*:1::::::\n"),
        ("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n"),
        ("etc/hostname", ""),
        ("etc/ssh/sshd_config", "HostKey /etc/ssh/ssh_host_rsa_key\n"),
        ("etc/wgetrc", "# http_proxy = http://proxy.example:18023/\n"),
        ("usr/share/python-wheels/pip-1-py3-none-any.whl", "x"),
        ("usr/lib/ssh.py", f'MARK = b"-----BEGIN RSA {"PRIVATE"} KEY-----"\n'),
        ("usr/lib/python3/url.py", "# https://user:password@example.org\n"),
        ("usr/lib/keys.py", 'TYPES = ("sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com")\n'),
        ("usr/lib/Find.cmake", 'set(ghs_toolpath "/opt/ghs")\n'),
        ("usr/lib/data.bin", f"\0{'AKIA'}ABCDEFGHIJKLMNOP"),
    ],
)
def test_what_belongs_there_is_no_finding(path: str, text: str) -> None:
    """An image of Debian with torch holds all of these."""
    assert findings({path: text}) == []


def test_empty_directories_are_no_finding() -> None:
    """A package's own directory of caches or logs may be there."""
    folders = dict.fromkeys(("var/cache/apt", "var/log", "root/.ssh", "tmp", "usr/__pycache__"), "")
    assert scan.scan(root(folders, kind=tarfile.DIRTYPE), epoch=EPOCH) == []


def test_links_count_as_files() -> None:
    """A link to a secret is one."""
    assert scan.scan(root({"root/.ssh/id": ""}, kind=tarfile.SYMTYPE), epoch=EPOCH)


def test_newer_than_the_epoch() -> None:
    """One second is enough; what the engine itself puts into a container is not the image's."""
    archive = root({"usr/a": "", "etc/hosts": "", ".dockerenv": ""}, mtime=EPOCH + 1)
    assert scan.scan(archive, epoch=EPOCH) == [scan.Finding("usr/a", "newer than the epoch")]


def test_trusted_ca_of_no_package() -> None:
    """The bundle holds what packages brought, and nothing else."""
    packaged = {"usr/share/ca-certificates/mozilla/a.crt": certificate(1)}
    bundle = "etc/ssl/certs/ca-certificates.crt"
    assert findings({**packaged, bundle: certificate(1)}) == []
    assert findings({**packaged, bundle: certificate(1) + certificate(2)}) == [
        scan.Finding(bundle, "trusted CA of no package")
    ]


def test_foreign_bytes_are_found_anywhere() -> None:
    """A CA of the build host is known again, in whatever bundle it was put."""
    known, mine = certificate(1), certificate(2)
    [sample] = scan.certificates_of((known + mine).encode(), known.encode())
    vendored = "opt/venv/lib/python3.11/site-packages/certifi/cacert.pem"
    assert findings({vendored: known}, ca=sample) == []
    assert findings({vendored: known + mine}, ca=sample) == [scan.Finding(vendored, "ca")]


def test_a_secret_in_a_large_file_is_beyond_it() -> None:
    """Libraries are not read: the limit is where the scan says it is."""
    key = {"opt/blob": RSA + "x" * scan.SMALL}
    assert findings(key) == []


def saved(*layers: dict[str, str]) -> io.BytesIO:
    """An image as `docker save` writes it: layers in a tar file, and a config beside them."""
    image = io.BytesIO()
    with tarfile.open(fileobj=image, mode="w") as made:
        for number, files in enumerate(layers):
            layer = io.BytesIO()
            with tarfile.open(fileobj=layer, mode="w") as packed:
                for name, text in files.items():
                    info = tarfile.TarInfo(name)
                    info.size = len(text)
                    packed.addfile(info, io.BytesIO(text.encode()))
            add(made, f"blobs/sha256/{number}", layer.getvalue())
        add(made, "blobs/sha256/config", b'{"config": 1}' * 1000)
    image.seek(0)
    return image


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """One more file."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize(
    ("upper", "found"),
    [
        ({"c": "x"}, []),
        ({"a": ""}, []),
        ({".wh.a": ""}, [".wh.a"]),
        ({"b/.wh..wh..opq": ""}, ["b/.wh..wh..opq"]),
        ({"a": "y"}, ["a"]),
    ],
)
def test_what_a_layer_hides_is_found(upper: dict[str, str], found: list[str]) -> None:
    """Removed or replaced; an empty file has nothing to hide."""
    assert scan.hidden(saved({"a": "x", "b/a": "x"}, upper)) == found
