"""Claims: a box is stopped after a run only if that was asked for, and nothing of the results can be lost by it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from hermitcrab.box.files import read_json
from hermitcrab.errors import UserError
from hermitcrab.train import gate
from hermitcrab.train.gate import Armed, deadline
from hermitcrab.train.journal import Journal, lines
from hermitcrab.train.places import Run
from hermitcrab.train.watch import cost
from tests import rented
from tests.rented import Api, Box, GoneError, at, put, served

HOUR = 3600.0


class Outcome(NamedTuple):
    """How a run ended, as the supervisor says it."""

    verdict: str
    failure: str = ""
    reason: str = ""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The servers are on this machine, and nobody sits at its tmux or copies on it."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "CRAB_NOTIFY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("hermitcrab.train.gate.busy.PROC", tmp_path / "no-proc")


def options(*given: str) -> argparse.Namespace:
    """Read options as `crab train` does."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    cost.add_options(parser)
    gate.add_options(parser)
    return parser.parse_args(given)


def make_run(folder: Path) -> Run:
    """Make a run with a log and a result."""
    put(folder, "log.txt", "step 1\n")
    put(folder, "checkpoints/final.txt", "weights")
    return Run(folder)


def environ_of(box: Box, tmp_path: Path) -> dict[str, str]:
    """Return the environment of a box, without anybody's tmux."""
    return {**box.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "TMUX_TMPDIR": str(tmp_path)}


class Rented:
    """An AutoDL box with a run on it: what is said, what was called, and its clock."""

    def __init__(self, tmp_path: Path, shutdown: str = "exit 0") -> None:
        self.box = rented.autodl(tmp_path / "root", shutdown=shutdown)
        self.run = make_run(tmp_path / "runs/exp")
        self.journal = Journal(self.run)
        self.environ = environ_of(self.box, tmp_path)
        self.said: list[str] = []
        self.slept = 0.0
        self.works = shutdown == "exit 0"

    def arm(self, *given: str) -> Armed | None:
        """Prove it before step 0."""
        return gate.preflight(options(*given), self.run, self.environ, root=self.box.root, say=self.said.append)

    def close(self, armed: Armed | None, outcome: Outcome, up: float = HOUR) -> bool:
        """End the run; says whether the machine was stopped."""
        self.journal.update(began=deadline.clock() - up)
        try:
            gate.close(
                armed,
                self.run,
                self.journal,
                outcome,
                self.environ,
                say=self.said.append,
                sleep=self.sleep,
                clock=lambda: self.slept,
            )
        except GoneError:
            return True
        return False

    def sleep(self, seconds: float) -> None:
        """Let time pass; a machine that is off has none."""
        self.slept += seconds
        assert self.slept < 10 * HOUR, "waits for ever"
        if self.calls and self.works:
            raise GoneError

    @property
    def calls(self) -> list[str]:
        """What was called."""
        path = self.box.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def events(self) -> list[tuple[str, str]]:
        """Return kind and text of what the journal has."""
        return [(event["kind"], event.get("text", "")) for event in lines(self.run.events)]


@pytest.fixture
def autodl(tmp_path: Path) -> Rented:
    """An AutoDL box; its countdown runs by its own clock."""
    return Rented(tmp_path)


TABLE = {
    # verdict, up: the policies that stop the box
    ("done", HOUR): {"success", "finished", "always"},
    ("done", 10.0): {"success", "finished", "always"},
    ("smoke", HOUR): {"success", "finished", "always"},
    ("failed", HOUR): {"finished", "always"},
    ("failed", 10.0): {"always"},
    ("stopped", HOUR): {"always"},
    ("preempted", HOUR): set(),
}


@pytest.mark.parametrize("policy", ["never", "success", "finished", "always"])
@pytest.mark.parametrize("case", TABLE, ids=str)
def test_the_table_of_policies(case: tuple[str, float], policy: str, autodl: Rented) -> None:
    """A crash in the first minutes leaves the box up, unless always was said; a preempted one is the platform's."""
    with told() as messages:
        armed = autodl.arm("--poweroff", policy, "--notify", messages.url)
        fired = autodl.close(armed, Outcome(case[0], "crash", "it broke"), case[1])
        assert len(messages.calls) == 1
    assert fired == (policy in TABLE[case])
    assert autodl.calls == (["shutdown "] if fired else [])
    state = read_json(autodl.run.state)["poweroff"]
    assert state["decision"] == ("fire" if fired else "stay")
    assert state["reason"]


def test_nothing_is_armed_unless_it_is_asked_for(autodl: Rented) -> None:
    """And nothing is asked of the machine."""
    assert autodl.arm() is None
    autodl.close(None, Outcome("done"))
    assert not autodl.calls
    assert not autodl.events()


def test_the_order_loses_nothing(autodl: Rented, tmp_path: Path) -> None:
    """Copied and compared, decided, told, counted down, stopped; and the line for the next login is there before."""
    put(tmp_path / "root/bin", "rsync", f'#!/bin/sh\necho rsync >> "{tmp_path}/order"\n', 0o755)
    with told() as messages:
        armed = autodl.arm("--poweroff", "success", "--sync", "me@home:runs", "--notify", f"{messages.url}/hook")
        assert autodl.close(armed, Outcome("done"))
        assert [kind for kind, _ in autodl.events()] == [
            *("sync", "sync", "poweroff", "notify", "countdown", "poweroff", "poweroff", "poweroff"),
        ]
        assert read_json(autodl.run.state)["synced"] is True
        assert autodl.slept >= 300
        (message,) = messages.calls
        assert "is done; powers off" in message
    line = (tmp_path / "state/hermitcrab/poweroff").read_text()
    assert "powered off at 20" in line
    assert f"results: {autodl.run.folder}, copied to me@home:runs" in line
    assert "/hook" not in (autodl.run.events.read_text() + autodl.run.state.read_text() + "".join(autodl.said))


def test_a_failed_sync_may_stop_but_is_shouted_about(autodl: Rented, tmp_path: Path) -> None:
    """AutoDL's disk survives."""
    place = put(tmp_path / "root/bin", "rsync", "#!/bin/sh\nexit 0\n", 0o755)
    armed = autodl.arm("--poweroff", "success", "--sync", "me@home:runs", "--sync-time", "1")
    place.write_text("#!/bin/sh\nexit 12\n")
    assert autodl.close(armed, Outcome("done"))
    assert read_json(autodl.run.state)["synced"] is False
    assert ("sync", "FAILED, results are not synced: rsync: status 12: ") in autodl.events()
    assert "(NOT synced)" in (tmp_path / "state/hermitcrab/poweroff").read_text()


def test_a_hold_keeps_the_box_up_until_it_is_let_go(autodl: Rented, monkeypatch: pytest.MonkeyPatch) -> None:
    """And then the countdown begins anew."""
    armed = autodl.arm("--poweroff", "success", "--grace", "10s")
    autodl.run.hold.touch()
    plain = autodl.sleep

    def sleep(seconds: float) -> None:
        plain(seconds)
        if autodl.slept > 100:
            autodl.run.hold.unlink(missing_ok=True)

    monkeypatch.setattr(autodl, "sleep", sleep)
    assert autodl.close(armed, Outcome("done"))
    assert autodl.slept > 110
    held = [text for kind, text in autodl.events() if kind == "hold"]
    assert held == [
        f"waits: held: `crab hold {autodl.run.name} --off` lets it go",
        "nothing holds it any more: 10 s from now",
    ]


def test_it_can_be_given_up(autodl: Rented) -> None:
    """By a second Ctrl-C, say: the box stays up, and that is said."""
    armed = autodl.arm("--poweroff", "success")
    gate.close(
        armed,
        autodl.run,
        autodl.journal,
        Outcome("done"),
        autodl.environ,
        say=autodl.said.append,
        sleep=autodl.sleep,
        clock=lambda: autodl.slept,
        given_up=lambda: autodl.slept > 20,
    )
    assert not autodl.calls
    assert autodl.said[-1] == "given up: the box stays up, and bills on"


def test_a_stop_that_fails_is_loud(tmp_path: Path) -> None:
    """In the journal, to whoever listens, and by message; and no line claims that it was powered off."""
    machine = Rented(tmp_path, shutdown="exit 1")
    with told() as messages:
        armed = machine.arm("--poweroff", "always", "--notify", messages.url)
        assert not machine.close(armed, Outcome("failed", "nan", "loss is NaN"))
        assert len(machine.calls) == 3
        assert machine.said[-1].startswith("STILL BILLING")
        assert "STILL BILLING" in messages.calls[-1]
    assert not (tmp_path / "state/hermitcrab/poweroff").exists()


def test_an_unknown_machine_is_refused_before_step_0(tmp_path: Path) -> None:
    """For each of the three options that would stop it; a copy or a message alone needs no platform."""
    box = rented.workstation(tmp_path / "root")
    run = make_run(tmp_path / "runs/exp")
    environ = environ_of(box, tmp_path)
    for given in (["--poweroff", "success"], ["--max-hours", "2"], ["--max-cost", "2", "--price", "1"]):
        with pytest.raises(UserError, match="not known: nothing here may power it off"):
            gate.preflight(options(*given), run, environ, root=box.root)
    assert gate.preflight(options("--notify", "https://x.example/y"), run, environ, root=box.root)


def test_what_it_will_mean_is_said_before_step_0(autodl: Rented) -> None:
    """The platform and how it is known, how it is stopped, and what is billed on."""
    autodl.arm("--poweroff", "success")
    told = {line[:14].strip(): line[14:] for line in autodl.said}
    assert told["platform"] == "AutoDL (container), confidence high"
    assert told["still billed"] == "the paid part of the data disk; file storage over 20 GB"
    assert told["stop path"].startswith("stop, by the platform's own shutdown")


def test_results_that_a_stop_wipes_are_refused_before_step_0(tmp_path: Path) -> None:
    """RunPod wipes the container's disk: runs belong on the volume, or are copied away."""
    run = make_run(tmp_path / "runs/exp")
    with served("runpod") as api:
        box = rented.runpod(tmp_path / "root")
        environ = environ_of(box, tmp_path)
        with pytest.raises(UserError, match=f"{run.folder} is lost when the box stops: keep runs below /workspace"):
            gate.preflight(options("--poweroff", "success"), run, environ, root=box.root, stops=at(api))
        with pytest.raises(UserError, match=f"a deadline would destroy {run.folder}, copied or not"):
            gate.preflight(
                options("--max-hours", "1", "--sync", "me@home:x"),
                run,
                environ | {"PATH": stub_path(tmp_path)},
                root=box.root,
                stops=at(api),
            )
        with pytest.raises(UserError, match="is lost with this box"):
            gate.preflight(
                options("--poweroff", "success", "--sync", str(tmp_path / "to")),
                run,
                environ_of(box, tmp_path) | {"PATH": stub_path(tmp_path)},
                root=box.root,
                stops=at(api),
            )


def stub_path(tmp_path: Path) -> str:
    """Return a PATH with an rsync that does nothing, well."""
    put(tmp_path / "stubs", "rsync", "#!/bin/sh\nexit 0\n", 0o755)
    return f"{tmp_path}/stubs:/usr/bin:/bin"


@pytest.mark.parametrize("copies", [True, False], ids=["copied", "not copied"])
def test_a_disk_that_is_wiped_is_stopped_only_after_a_verified_copy(copies: bool, tmp_path: Path) -> None:
    """On RunPod with runs on the container's disk a failed copy keeps the box up."""
    run = make_run(tmp_path / "runs/exp")
    with served("runpod") as api:
        box = rented.runpod(tmp_path / "root")
        environ = environ_of(box, tmp_path) | {"PATH": stub_path(tmp_path)}
        given = options("--poweroff", "success", "--sync", "me@home:x", "--sync-time", "1", "--grace", "0")
        armed = gate.preflight(given, run, environ, root=box.root, stops=at(api), say=print)
        if not copies:
            put(tmp_path / "stubs", "rsync", "#!/bin/sh\nexit 1\n", 0o755)
        assert stops(armed, run, api, environ) == copies
        assert ("POST /v1/pods/abc123pod/stop" in api.calls) == copies
    decided = read_json(run.state)["poweroff"]
    assert decided["decision"] == ("fire" if copies else "stay")
    assert copies or "would be lost" in decided["reason"]


def test_checkpoints_that_lie_elsewhere_are_copied_too(autodl: Rented, tmp_path: Path) -> None:
    """By --ckpt-dir, by --results, or where the program itself put the newest one."""
    put(tmp_path / "root/bin", "rsync", f'#!/bin/sh\necho "$*" >> "{tmp_path}/copies"\n', 0o755)
    put(tmp_path, "own/step_00000003/state.pt", "x")
    put(tmp_path, "out/model.pt", "x")
    armed = autodl.arm("--sync", "me@home:x", "--results", str(tmp_path / "out"))
    autodl.journal.update(checkpoint=str(tmp_path / "own/step_00000003"))
    autodl.close(armed, Outcome("done"))
    copies = (tmp_path / "copies").read_text()
    assert f"{tmp_path}/out/ me@home:x/exp/results-1-out/" in copies
    assert f"{tmp_path}/own/ me@home:x/exp/results-2-own/" in copies


def stops(armed: Armed | None, run: Run, api: Api, environ: dict[str, str]) -> bool:
    """End a run; says whether the platform was told to stop the machine."""
    api.ends = True
    try:
        gate.close(armed, run, Journal(run), Outcome("done"), environ, say=print, sleep=api.sleep)
    except GoneError:
        return True
    return False


def test_lambda_is_never_destroyed_without_verified_results(tmp_path: Path) -> None:
    """By its own permission only, and only after a copy that was compared."""
    run = make_run(tmp_path / "runs/exp")
    with served("lambda") as api:
        box = rented.lambda_box(tmp_path / "root")
        environ = environ_of(box, tmp_path) | {"PATH": stub_path(tmp_path)}
        given = ["--poweroff", "success", "--sync", "me@home:x", "--sync-time", "1", "--grace", "0"]
        with pytest.raises(UserError, match="--allow-terminate"):
            gate.preflight(options(*given), run, environ, root=box.root, stops=at(api))
        given.append("--allow-terminate")
        armed = gate.preflight(options(*given), run, environ, root=box.root, stops=at(api), say=print)
        put(tmp_path / "stubs", "rsync", "#!/bin/sh\nexit 1\n", 0o755)
        assert not stops(armed, run, api, environ)
        put(tmp_path / "stubs", "rsync", "#!/bin/sh\nexit 0\n", 0o755)
        assert stops(armed, run, api, environ)
        with pytest.raises(UserError, match="a deadline would destroy"):
            gate.preflight(options(*given, "--max-hours", "1"), run, environ, root=box.root, stops=at(api))


def test_lambdas_file_system_needs_a_verified_checkpoint(tmp_path: Path) -> None:
    """Without a copy, results must lie on what stays, and at least one checkpoint must be whole."""
    nfs = tmp_path / "nfs"
    run = make_run(nfs / "runs/exp")
    with served("lambda") as api:
        box = rented.lambda_box(tmp_path / "root", mounted=str(nfs))
        environ = environ_of(box, tmp_path)
        given = options("--poweroff", "success", "--grace", "0", "--allow-terminate")
        armed = gate.preflight(given, run, environ, root=box.root, stops=at(api), say=print)
        assert not stops(armed, run, api, environ)
        assert "no verified checkpoint" in read_json(run.state)["poweroff"]["reason"]


def test_a_copy_into_itself_is_refused(autodl: Rented) -> None:
    """It would never end."""
    put(autodl.box.root / "bin", "rsync", "#!/bin/sh\n", 0o755)
    with pytest.raises(UserError, match="lies in"):
        autodl.arm("--sync", str(autodl.run.folder / "checkpoints"))


LIMITS = (
    (["--max-hours", "2"], 7200.0, "--max-hours 2"),
    (["--max-cost", "9", "--price", "4.5/h"], 7200.0, "--max-cost 9"),
    (["--max-hours", "1", "--max-cost", "9", "--price", "4.5"], 3600.0, "--max-hours 1"),
)


@pytest.mark.parametrize(("given", "seconds", "why"), LIMITS)
def test_limits_in_hours_and_money(given: list[str], seconds: float, why: str, autodl: Rented) -> None:
    """The nearer one counts."""
    armed = autodl.arm(*given)
    assert armed
    assert (armed.limit, armed.limit_why) == (seconds, why)


def test_what_was_spent_before_counts_and_is_never_armed_in_the_past(autodl: Rented) -> None:
    """A box that was started again must not be stopped at once."""
    autodl.journal.update(spent=4.5)
    armed = autodl.arm("--max-cost", "9", "--price", "4.5")
    assert armed
    assert armed.limit == 3600.0
    autodl.journal.update(spent=9.5)
    with pytest.raises(UserError, match=r"has cost 9\.50 already"):
        autodl.arm("--max-cost", "9", "--price", "4.5")
    with pytest.raises(UserError, match="needs --price"):
        autodl.arm("--max-cost", "9")


def test_past_the_limit_the_supervisor_stops_the_box_itself(autodl: Rented) -> None:
    """Where it is a container's main process, the deadline ends together with it; a policy does not matter then."""
    armed = autodl.arm("--max-hours", "2")
    autodl.journal.update(deadline=deadline.clock() - 1)
    assert autodl.close(armed, Outcome("stopped", "stopped", "SIGTERM"))
    assert read_json(autodl.run.state)["poweroff"]["reason"] == "the limit is reached (--max-hours 2)"
    assert autodl.slept < 10


@pytest.mark.parametrize("text", ["0", "-1", "x", "nan", "inf"])
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    """Before anything is rented for it."""
    with pytest.raises(SystemExit):
        options("--max-hours", text)


def test_the_next_run_takes_the_line_away(autodl: Rented, tmp_path: Path) -> None:
    """Somebody is at work again."""
    line = put(tmp_path / "state/hermitcrab", "poweroff", "hermitcrab: powered off\n")
    assert autodl.arm() is None
    assert not line.exists()


class told:  # noqa: N801
    """A webhook that keeps what it is told."""

    def __init__(self) -> None:
        self._served = served("vast")

    def __enter__(self) -> Api:
        api = self._served.__enter__()
        api.answer = lambda method, path, body: (api.calls.append(json.loads(body)["text"]), (200, {}))[1]  # type: ignore[method-assign, func-returns-value]  # noqa: ARG005
        return api

    def __exit__(self, *_: object) -> None:
        self._served.__exit__(None, None, None)
