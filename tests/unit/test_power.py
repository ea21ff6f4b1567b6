"""Claims: a box is stopped only where that was proven; each platform in its own way, and loudly when it fails."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from hermitcrab.box import platforms
from hermitcrab.box.power import calls, fire, http, preflight
from hermitcrab.box.power.preflight import Plan, View
from hermitcrab.box.power.stops import STOPS, Call, Stop, Way
from tests import rented
from tests.rented import KEY, Api, Box, GoneError, at, put, served

NO_CLI = ("vastai", "runpodctl")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers of these tests are on this machine."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def plan_of(view: View) -> Plan:
    """Return the plan of a machine that can be stopped."""
    assert view.plan, view.refused
    return view.plan


def fire_at(plan: Plan, clock: Api) -> tuple[bool, list[str]]:
    """Stop a machine whose clock is that of its API; return whether it says it is stopped, and what was said."""
    said: list[str] = []
    return fire.fire(plan, said.append, sleep=clock.sleep), said


@pytest.mark.parametrize("row", STOPS.values(), ids=STOPS)
def test_every_row_is_a_platform_and_says_what_it_costs(row: Stop) -> None:
    """A stop without a known bill is no stop; only one that cannot stop destroys."""
    known = platforms.ROWS[row.platform]
    assert known.billed_after_stop not in {"", "unknown"}
    assert row.ways
    assert row.ends
    assert row.destroys == (row.platform == "lambda")
    names = {value.name for value in row.values} | {"basic"} | ({"id"} if row.platform in preflight.FINDERS else set())
    for way in row.ways:
        for call in filter(None, (way.stop, way.proof)):
            texts = " ".join((*call.argv, call.url, call.body, call.auth, call.says, call.names))
            assert set(re.findall(r"\{(\w+)\}", texts)) <= names
            assert bool(call.argv) != bool(call.url)


@pytest.mark.parametrize("platform", sorted(set(platforms.ROWS) - set(STOPS)))
def test_what_has_no_row_is_never_stopped(platform: str) -> None:
    """Slurm, WSL, Apptainer, consoles without a proven verb, and whatever is not known."""
    assert platform in {
        *("slurm", "wsl", "apptainer", "unknown", "matpool", "gpushare", "lanyun", "huawei", "aliyun-pai-dsw")
    }


REFUSED = {
    "workstation": (rented.workstation, {}, "", "not known"),
    "slurm": (rented.vast, {"SLURM_JOB_ID": "7"}, "", "this is Slurm"),
    "guess": (rented.workstation, {}, "/.launch /root/onstart.sh", "only guessed"),
    "copied .env": (
        rented.workstation,
        {"RUNPOD_POD_ID": "abc123pod", "RUNPOD_API_KEY": KEY},
        "/.dockerenv",
        "not for PID 1",
    ),
    "no container": (rented.workstation, {"AutoDLContainerUUID": "x"}, "/usr/bin/shutdown", "to be a container"),
    "lambda, stop only": (rented.lambda_box, {}, "", "--allow-terminate"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_machine_that_must_not_be_stopped_is_refused(case: tuple[object, ...], tmp_path: Path) -> None:
    """In one line that says why, and nothing is asked of anybody."""
    make, environ, files, said = case
    box: Box = make(tmp_path)  # type: ignore[operator]
    put(tmp_path, "proc/1/environ", box.root.joinpath("proc/1/environ").read_text() or "PATH=/bin\0")
    for name in str(files).split():
        put(tmp_path, name.lstrip("/"), "", 0o755)
    view = preflight.examine({**box.environ, **environ}, tmp_path)  # type: ignore[dict-item]
    assert view.plan is None
    assert str(said) in view.refused
    assert "\n" not in view.refused
    assert dict(preflight.lines(view))["stop path"].startswith("NOT AVAILABLE")


def test_wsl_is_refused(tmp_path: Path) -> None:
    """It is nobody's rented machine."""
    box = rented.workstation(tmp_path)
    put(tmp_path, "proc/sys/kernel/osrelease", "5.15.0-microsoft-standard-WSL2\n")
    assert "WSL" in preflight.examine(box.environ, tmp_path).refused


def test_autodl_is_stopped_by_its_own_shutdown_without_arguments(tmp_path: Path) -> None:
    """By its full path, whatever else is on PATH; no server is asked."""
    box = rented.autodl(tmp_path)
    put(tmp_path, "bin/shutdown", f'#!/bin/sh\necho wrong >> "{tmp_path}/calls"\n', 0o755)
    plan = plan_of(preflight.examine(box.environ, tmp_path))

    def clock(_: float) -> None:
        if (tmp_path / "calls").exists():
            raise GoneError

    with pytest.raises(GoneError):
        fire.fire(plan, print, sleep=clock)
    assert (tmp_path / "calls").read_text() == "shutdown \n"


def test_a_shutdown_that_is_the_systems_own_is_not_autodls(tmp_path: Path) -> None:
    """Nor is one that is not there."""
    box = rented.autodl(tmp_path)
    program = tmp_path / "usr/bin/shutdown"
    program.unlink()
    assert "/usr/bin/shutdown is not there" in preflight.examine(box.environ, tmp_path).refused
    program.symlink_to(put(tmp_path, "bin/systemctl", "", 0o755))
    assert "the system's own" in preflight.examine(box.environ, tmp_path).refused


def test_a_shutdown_that_fails_is_tried_again_and_then_shouted_about(tmp_path: Path) -> None:
    """The machine is still up, so it still bills."""
    box = rented.autodl(tmp_path, shutdown="exit 1")
    said: list[str] = []
    assert not fire.fire(plan_of(preflight.examine(box.environ, tmp_path)), said.append, sleep=lambda _: None)
    assert (tmp_path / "calls").read_text().count("shutdown") == fire.ROUNDS
    assert said[-1].startswith("STILL BILLING: AutoDL")


MAKE = {"vast": rented.vast, "runpod": rented.runpod, "lambda": rented.lambda_box}
ID = "0920582c7ff041399e34823a0be62540"
PROOF = {
    "vast": ["GET /api/v0/instances/1234/?owner=me"],
    "runpod": ["GET /v1/pods/abc123pod"],
    "lambda": ["GET /api/v1/instances", "GET /api/v1/instances"],
}
STOP = {
    "vast": 'PUT /api/v0/instances/1234/ {"state": "stopped"}',
    "runpod": "POST /v1/pods/abc123pod/stop",
    "lambda": f'POST /api/v1/instance-operations/terminate {{"instance_ids": ["{ID}"]}}',
}
AUTH = {"vast": f"Bearer {KEY}", "runpod": f"Bearer {KEY}", "lambda": "Basic a2V5LTAxMjM0NTY3ODlhYmNkZWY6"}


@pytest.mark.parametrize("platform", MAKE)
class TestApi:
    """What is asked of each platform's server, call by call."""

    def test_it_is_proven_before_and_stopped_by_one_call(self, platform: str, tmp_path: Path) -> None:
        """The proof reads only; the key goes to the platform alone, in the form that it wants."""
        with served(platform) as api:
            api.ends = True
            view = preflight.examine(MAKE[platform](tmp_path).environ, tmp_path, stops=at(api), terminate=True)
            assert api.calls == PROOF[platform]
            with pytest.raises(GoneError):
                fire_at(plan_of(view), api)
            assert api.calls == [*PROOF[platform], STOP[platform]]
            assert api.keys == {AUTH[platform]}

    def test_429_and_5xx_are_waited_out(self, platform: str, tmp_path: Path) -> None:
        """A busy platform is no reason to bill all night."""
        with served(platform) as api:
            api.ends = True
            plan = plan_of(preflight.examine(MAKE[platform](tmp_path).environ, tmp_path, stops=at(api), terminate=True))
            api.calls.clear()
            api.stop_statuses = [429, 503]
            with pytest.raises(GoneError):
                fire_at(plan, api)
            assert api.calls == [STOP[platform]] * 3

    def test_a_machine_that_is_not_in_the_account_is_refused(self, platform: str, tmp_path: Path) -> None:
        """Before step 0, with the reason, and without the key."""
        with served(platform) as api:
            api.rented = False
            view = preflight.examine(MAKE[platform](tmp_path).environ, tmp_path, stops=at(api), terminate=True)
            assert view.plan is None
            assert "404" in view.refused
            assert KEY not in view.refused

    def test_without_its_key_it_is_refused(self, platform: str, tmp_path: Path) -> None:
        """And nobody is asked anything."""
        box = MAKE[platform](tmp_path)
        given = {"vast": "VAST_CONTAINERLABEL=C.1234\0CONTAINER_API_KEY=k\0", "runpod": "RUNPOD_POD_ID=abc123pod\0"}
        put(tmp_path, "proc/1/environ", given.get(platform, ""))
        with served(platform) as api:
            view = preflight.examine({**box.environ, "LAMBDA_API_KEY": ""}, tmp_path, stops=at(api), terminate=True)
            assert view.plan is None
            assert "_API_KEY" in view.refused
            assert not api.calls

    def test_a_stop_that_the_platform_confirms_is_done(self, platform: str, tmp_path: Path) -> None:
        """Though this process still lives: the platform takes its time."""
        with served(platform) as api:
            plan = plan_of(preflight.examine(MAKE[platform](tmp_path).environ, tmp_path, stops=at(api), terminate=True))
            done, said = fire_at(plan, api)
            assert done
            assert [call for call in api.calls if call == STOP[platform]] == [STOP[platform]]
            assert "says that it is stopped" in said[-1]

    def test_a_platform_that_goes_on_refusing_is_shouted_about(self, platform: str, tmp_path: Path) -> None:
        """After all rounds, and the key is in none of the lines."""
        with served(platform) as api:
            plan = plan_of(preflight.examine(MAKE[platform](tmp_path).environ, tmp_path, stops=at(api), terminate=True))
            api.calls.clear()
            api.stop_statuses = [403] * 99
            done, said = fire_at(plan, api)
            assert not done
            assert api.calls == [STOP[platform]] * fire.ROUNDS
            assert said[-1].startswith("STILL BILLING")
            assert KEY not in "".join(said)


def test_vasts_no_success_is_no_stop(tmp_path: Path) -> None:
    """It answers 200 and says so in the body."""
    with served("vast") as api:
        api.refuses = True
        plan = plan_of(preflight.examine(rented.vast(tmp_path).environ, tmp_path, stops=at(api)))
        done, said = fire_at(plan, api)
        assert not done
        assert "API: this instance cannot be stopped" in said


def test_the_command_is_the_way_out_when_the_api_is_not(tmp_path: Path) -> None:
    """RunPod's pod-scoped key may be for its own command only: then that is what is proven, and used first."""
    box = rented.runpod(tmp_path)
    log = tmp_path / "calls"
    put(tmp_path, "bin/runpodctl", f'#!/bin/sh\necho "$*" >> "{log}"\necho "abc123pod RUNNING"\n', 0o755)
    with served("runpod") as api:
        api.statuses = [401, 401]
        view = preflight.examine(box.environ, tmp_path, stops=at(api))
        plan = plan_of(view)
        assert [way.name for way in plan.ways] == ["runpodctl", "runpodctl, older", "API"]
        assert "API: 401" in " ".join(view.notes)
        assert log.read_text().splitlines() == ["pod get abc123pod", "get pod abc123pod"]


def test_which_machine_it_is_the_platform_says(tmp_path: Path) -> None:
    """An id that the user exported by mistake would stop another box of his."""
    box = rented.runpod(tmp_path)
    with served("runpod") as api:
        view = preflight.examine({**box.environ, "RUNPOD_POD_ID": "otherpod"}, tmp_path, stops=at(api))
        assert plan_of(view).identity == "abc123pod"


def test_an_id_that_is_none_goes_into_no_address(tmp_path: Path) -> None:
    """Whatever a variable holds."""
    box = rented.runpod(tmp_path)
    put(tmp_path, "proc/1/environ", f"RUNPOD_POD_ID=../../x\0RUNPOD_API_KEY={KEY}\0")
    with served("runpod") as api:
        assert "RUNPOD_POD_ID is nothing" in preflight.examine(box.environ, tmp_path, stops=at(api)).refused
        assert not api.calls


@pytest.mark.parametrize(
    "addresses", [[], [rented.ADDRESS, rented.ADDRESS], ["10.0.0.1"]], ids=["none", "two", "other"]
)
def test_lambda_destroys_only_what_is_surely_this_machine(addresses: list[str], tmp_path: Path) -> None:
    """Its list must have exactly one instance with this address and these file systems."""
    with served("lambda") as api:
        api.addresses = addresses
        view = preflight.examine(rented.lambda_box(tmp_path).environ, tmp_path, stops=at(api), terminate=True)
        assert "not one" in view.refused


def test_rp_environment_is_read_where_ssh_has_no_variables(tmp_path: Path) -> None:
    """RunPod's own images write one; what is in it is text, and runs nothing."""
    box = rented.runpod(tmp_path)
    put(tmp_path, "proc/1/environ", "")
    put(
        tmp_path,
        "etc/rp_environment",
        f'export RUNPOD_POD_ID="abc123pod"\nexport RUNPOD_X="$(touch {tmp_path}/ran)"\nexport RUNPOD_API_KEY="{KEY}"\n',
    )
    with served("runpod") as api:
        assert preflight.examine(box.environ, tmp_path, stops=at(api)).plan
    assert not (tmp_path / "ran").exists()


KEEPS = (
    ("autodl", "", True),
    ("vast", "", True),
    ("runpod", "", False),
    ("runpod", "2 1 8:2 / /workspace rw - ext4 /dev/sdb rw\n", True),
    ("runpod", "2 1 0:9 / /workspace rw - tmpfs tmpfs rw\n", False),
    ("lambda", "", False),
)


@pytest.mark.parametrize(("platform", "mount", "kept"), KEEPS)
def test_what_a_stop_leaves_is_known(platform: str, mount: str, kept: bool, tmp_path: Path) -> None:
    """A plain folder named /workspace lies on the disk that is wiped."""
    put(tmp_path, "proc/self/mountinfo", rented.LAYERS + mount)
    assert preflight.keeps(STOPS[platform], Path("/workspace/runs/x"), tmp_path) is kept


def test_a_redirect_gets_no_key() -> None:
    """Wherever it points."""
    with served("vast") as api, served("runpod") as other:
        api.statuses = [302]
        answer = http.ask("GET", api.url, headers={"Authorization": KEY})
        assert answer.status == 302
        assert not other.calls


def test_a_server_that_is_not_there_is_given_up_after_all_tries() -> None:
    """With a reason, in bounded time."""
    slept: list[float] = []
    answer = http.ask("GET", "http://127.0.0.1:9/", tries=3, sleep=slept.append)
    assert (answer.ok, answer.error) == (False, "Connection refused")
    assert slept == [1.0, 2.0]


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """A stop path that hangs must not be where the night is spent."""
    script = put(tmp_path, "hang", f"#!/bin/sh\nsleep 60 & echo $! > {tmp_path}/child; wait\n", 0o755)
    begun = time.monotonic()
    result = calls.make(Call((str(script),), timeout=0.5))
    assert result.said == "did not end within 0.5 s"
    assert time.monotonic() - begun < 5
    time.sleep(0.1)
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_the_key_is_in_no_answer(tmp_path: Path) -> None:
    """Not even if the command prints it."""
    script = put(tmp_path, "tell", '#!/bin/sh\necho "bad key $1"; exit 1\n', 0o755)
    filled = calls.fill(Call((str(script), "{key}")), {"key": KEY})
    assert calls.make(filled).said == "status 1: bad key ***"


def test_a_way_falls_back_to_the_next(tmp_path: Path) -> None:
    """Each is tried in each round, in the order of the table."""
    ways = tuple(
        Way(name, Call((str(put(tmp_path, name, f"#!/bin/sh\necho {name} >> {tmp_path}/calls; exit 1\n", 0o755)),)))
        for name in ("one", "two")
    )
    said: list[str] = []
    assert not fire.fire(Plan("x", "X", "", ways, 5.0, destroys=False), said.append, rounds=2, sleep=lambda _: None)
    assert (tmp_path / "calls").read_text().split() == ["one", "two", "one", "two"]


def test_nothing_of_the_environment_changes_where_the_api_is() -> None:
    """Who can set a variable could else be given the key."""
    folder = Path(preflight.__file__).parent
    for path in folder.glob("*.py"):
        assert not re.search(r"environ\[|getenv|_URL\b", path.read_text()), path
    assert os.path.isdir(folder)
