"""Claims: Vast.ai's own command line does what the table says it does. The real one, against a server of ours."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hermitcrab.box.power import calls
from hermitcrab.box.power.stops import STOPS, Call
from tests.rented import KEY, Api, served

WAY = next(way for way in STOPS["vast"].ways if way.name == "vastai")
FACTS = {"id": "1234", "key": KEY}


@pytest.fixture(scope="session")
def vastai(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Install the client into an environment of its own."""
    folder = tmp_path_factory.mktemp("vastai")
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:/usr/bin:/usr/local/bin")
    if uv is None:
        pytest.skip("uv is not here to install vastai with")
    for command in (
        [uv, "venv", "-q", "--python", sys.executable, str(folder)],
        [uv, "pip", "install", "-q", "--python", str(folder / "bin/python"), "vastai"],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip("the package index does not answer: vastai cannot be installed")
        if done.returncode:
            pytest.skip(f"vastai cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    return str(folder / "bin/vastai")


def make(vastai: str, call: Call, api: Api) -> calls.Result:
    """Make a call of the table, with the client's own option for where the server is."""
    filled = calls.fill(call, FACTS)
    return calls.make(filled._replace(argv=(vastai, *filled.argv[1:], "--url", api.url)))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes to its user's home, and this one has no proxy."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_it_shows_and_stops_this_instance(vastai: str) -> None:
    """The same calls that the API way makes, with the instance's key."""
    assert WAY.proof
    with served("vast") as api:
        assert make(vastai, WAY.proof, api).ok
        assert make(vastai, WAY.stop, api).ok
        # It also asks who we are, which the key of an instance may not; that stops nothing.
        assert [call for call in api.calls if "instances" in call] == [
            "GET /api/v0/instances/1234/?owner=me",
            'PUT /api/v0/instances/1234/ {"state": "stopped"}',
        ]
        assert api.keys == {f"Bearer {KEY}"}


def test_its_exit_status_hides_a_refusal_and_its_words_do_not(vastai: str) -> None:
    """It ends with 0 when the platform says no success."""
    with served("vast") as api:
        api.refuses = True
        result = make(vastai, WAY.stop, api)
        assert not result.ok
        assert "cannot be stopped" in result.said


def test_an_instance_that_is_not_there_is_no_proof(vastai: str) -> None:
    """Whatever its status."""
    assert WAY.proof
    with served("vast") as api:
        api.rented = False
        result = make(vastai, WAY.proof, api)
        assert not result.ok
        assert KEY not in result.said
