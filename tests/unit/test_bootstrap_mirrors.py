"""Mirrors: as configured, as asked for, or the quickest of a probe that ends in time."""

from __future__ import annotations

import http.server
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hermitcrab.box.bootstrap import mirrors
from hermitcrab.box.bootstrap.mirrors import Mirror
from hermitcrab.box.bootstrap.run import Places, Run
from hermitcrab.errors import UserError

PAGE: Final = b"x" * 300_000


class Index(http.server.BaseHTTPRequestHandler):
    """An index that is as quick as its path says: /quick/, /slow/, /silent/, /none/."""

    def do_GET(self) -> None:
        """Answer, or not."""
        kind = self.path.split("/")[1]
        if kind == "silent":
            time.sleep(5)
        if kind == "none":
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        for start in range(0, len(PAGE), 30_000):
            if kind == "slow":
                time.sleep(0.05)
            self.wfile.write(PAGE[start : start + 30_000])

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """The address of a server on the loopback."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # a probe that hangs up is no fault
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run without settings of its own."""
    (tmp_path / "work").mkdir()
    return Run(
        False, Places(tmp_path, tmp_path / "etc", tmp_path / "venv"), tmp_path / "work", {"PATH": os.environ["PATH"]}
    )


def pip(folder: Path, official: str, config: str = "") -> list[str]:
    """A pip whose default index is this one."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nif [ \"$1\" = -c ]; then echo '{official}'; else printf '{config}'; fi\n")
    python.chmod(0o755)
    return [str(python), "-m", "pip"]


def rows(base: str, **kinds: str) -> dict[str, Mirror]:
    """Mirrors of some kinds."""
    return {name: Mirror(name, f"{base}/{kind}/simple/", "simple", "d", "s", "u") for name, kind in kinds.items()}


def test_a_probe_measures_and_ends_in_time(base: str) -> None:
    """The silent one and the one without the page have no rate; nobody waits for them."""
    begun = time.monotonic()
    names = {name: f"{base}/{name}/simple" for name in ("quick", "slow", "silent", "none")}
    rates = mirrors.probe({**names, "closed": "http://127.0.0.1:9/simple", "": ""}, {}, seconds=1.5)
    assert time.monotonic() - begun < 2.5
    assert rates.keys() == {"quick", "slow"}
    assert rates["quick"] > rates["slow"]
    assert mirrors.PROBE_S <= 3


def test_a_quicker_mirror_is_taken(base: str, run: Run) -> None:
    """When the official index is slow, or does not answer at all."""
    known = rows(base, one="slow", two="quick")
    for official in ("slow", "none"):
        found = mirrors.choose(run, "auto", pip(run.work, f"{base}/{official}/simple"), known)
        assert found is not None
        assert found.name == "two"
        assert found.variables == {
            "PIP_INDEX_URL": f"{base}/quick/simple/",
            "UV_DEFAULT_INDEX": f"{base}/quick/simple/",
        }


def test_no_mirror_where_none_is_better(base: str, run: Run) -> None:
    """The official index stays, also when nobody answers."""
    assert mirrors.choose(run, "auto", pip(run.work, f"{base}/quick/simple"), rows(base, one="slow")) is None
    assert mirrors.choose(run, "auto", pip(run.work, f"{base}/none/simple"), rows(base, one="none")) is None


def test_asked_for_or_refused(base: str, run: Run) -> None:
    """By name, none at all, and status 2 for a name that is none."""
    known = rows(base, one="none")
    words = pip(run.work, "")
    assert mirrors.choose(run, "one", words, known) == known["one"]
    assert mirrors.choose(run, "none", words, known) is None
    with pytest.raises(UserError, match="known are auto, none, one") as refused:
        mirrors.check("two", known)
    assert refused.value.code == 2


@pytest.mark.parametrize(
    ("environ", "config"),
    [
        ({"PIP_INDEX_URL": "x"}, ""),
        ({"UV_DEFAULT_INDEX": "x"}, ""),
        ({}, "global.index-url=x"),
        ({}, ":env:.index-url=x"),
    ],
)
def test_the_user_s_own_index_stays(environ: dict[str, str], config: str, base: str, run: Run) -> None:
    """Nothing is probed, whatever would be quicker."""
    own = run._replace(environ={**run.environ, **environ})
    words = pip(run.work, f"{base}/none/simple", config)
    assert mirrors.choose(own, "auto", words, rows(base, one="quick")) is None


def test_an_extra_index_is_no_choice(base: str, run: Run) -> None:
    """It adds to the index, it does not say which."""
    words = pip(run.work, f"{base}/none/simple", "global.extra-index-url=x")
    assert mirrors.choose(run, "auto", words, rows(base, one="quick")) is not None


def test_apt_by_a_mirror(run: Run) -> None:
    """For this run only: no file of the system's is written."""
    mirror = mirrors.table()["tuna"]
    options = mirrors.apt_options(mirror, "debian", "bookworm", run.work)
    text = (run.work / "mirror.list").read_text()
    assert f"deb {mirror.security} bookworm-security main\n" in text
    assert any(str(run.work) in option for option in options)
    mirrors.apt_options(mirror, "ubuntu", "noble", run.work)
    assert f"deb {mirror.ubuntu} noble-security main universe\n" in (run.work / "mirror.list").read_text()


def test_the_table_is_well_formed() -> None:
    """Packages by https, the archives by http as long as a bare box has no certificates; every style known."""
    for mirror in mirrors.table().values():
        assert mirror.packages.startswith("https://")
        assert mirror.packages.endswith("/")
        assert all(address.startswith("http://") for address in (mirror.debian, mirror.security, mirror.ubuntu))
        assert mirror.style in mirrors.VARIABLES
    names = list(json.loads(Path(mirrors.__file__).with_name("mirrors.json").read_text()))
    assert names == sorted(names)
