"""The Invoke face: a user's error is one line and an exit status, and a version stays text."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit

import tasks
from hermitcrab import matrix as matrices
from hermitcrab.build import embedded, engine, image, quality, render, show
from hermitcrab.errors import UserError

MATRIX = matrices.load()
ROOT = Path(__file__).parents[2]


def fresh_tasks() -> ModuleType:
    """The tasks as nobody has used them yet."""
    spec = importlib.util.spec_from_file_location("fresh_tasks", ROOT / "tasks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def leaves_with(*words: str) -> tuple[int, str]:
    """Exit status and stderr of a command line."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "invoke", "--search-root", str(ROOT), *words],
        cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cuda", "12.3"), "no combo for CUDA 12.3; nearest: "),
        (("--cuda", "12.10"), "no combo for CUDA 12.10; nearest: "),
        (("--cuda", "12.1", "--torch", "2.8"), "CUDA 12.1 has torch "),
    ],
)
def test_an_impossible_wish_is_one_line_and_2(words: tuple[str, ...], said: str) -> None:
    """From the command line, wherever it is started; 12.10 is not taken for 12.1."""
    code, stderr = leaves_with("build", *words)

    assert code == 2
    assert stderr.startswith(f"invoke: {said}")
    assert stderr.count("\n") == 1


def test_the_default_row_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A choice made for the user is told to the user; one of the user's own is not."""
    _, combo = tasks._select("12.1", "")
    assert capsys.readouterr().out == f"combo: {combo.id}, the default for CUDA 12.1\n" + (
        f"note: {combo.status}: {combo.reason}\n" if combo.reason else ""
    )

    tasks._select("12.1", combo.torch)
    assert "default" not in capsys.readouterr().out


def test_a_legacy_row_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is built of it."""
    combo = next(combo for combo in MATRIX.combos if combo.status == "legacy")

    tasks._select(combo.cuda, combo.torch)

    assert f"note: legacy: {combo.reason}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UserError("no such thing", code=2), 2, "invoke: no such thing"),
        (UserError("the disk is full"), 1, "invoke: the disk is full"),
        (UserError("cannot read a\nb"), 1, "invoke: cannot read a b"),
        (OSError(28, "No space left on device", "x"), 1, "invoke: [Errno 28] No space left on device: 'x'"),
        (KeyboardInterrupt(), 130, "invoke: stopped"),
    ],
)
def test_a_user_error_is_one_line_and_its_code(error: BaseException, code: int, said: str) -> None:
    """Ctrl-C as well."""

    def body() -> None:
        raise error

    with pytest.raises(Exit) as caught:
        tasks.one_line(body)()
    assert (caught.value.code, caught.value.message) == (code, said)
    assert caught.value.__cause__ is None


def test_a_reader_that_has_enough_is_no_fault() -> None:
    """As `| head` is one: not a word, and no traceback when Python ends."""
    code = "import tasks\ndef body():\n    while True: print('x')\ntasks.one_line(body)()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr and process.stdout.readline() == "x\n"
        process.stdout.close()
        assert "Broken pipe" not in process.stderr.read()


@pytest.mark.parametrize("word", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("ignored", [False, True])
def test_a_kill_ends_as_ctrl_c_does(word: str, ignored: bool) -> None:
    """With what `with` and `finally` clean up; nohup holds."""
    code = f"""
import os, signal, tasks
signal.signal(signal.{word}, signal.SIG_IGN if {ignored} else signal.SIG_DFL)
def body():
    try: os.kill(os.getpid(), signal.{word}); print("goes on")
    finally: print("cleaned")
tasks.one_line(body)()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.stdout == ("goes on\ncleaned\n" if ignored else "cleaned\n")
    assert ("invoke: stopped" in done.stderr) != ignored


def test_a_fault_of_ours_stays_a_traceback() -> None:
    """It is not dressed up as the user's."""

    def body() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tasks.one_line(body)()


def test_every_task_takes_text() -> None:
    """Invoke takes a flag's kind from its default: a number would turn 12.10 into 12.1."""
    # Of a copy: a task forgets its help once its arguments have been asked for, as another test may have done.
    found = Collection.from_module(fresh_tasks()).tasks

    assert {"list", "build", "verify", "size", "save", "push", "render", "lock", "lint", "engine", "test"} <= set(found)
    for each in found.values():
        arguments = {argument.name: argument for argument in each.get_arguments()}
        assert all(arguments[name].kind is str for name in ("cuda", "torch") if name in arguments)
        assert all(argument.help for argument in arguments.values())
        assert each.__doc__


def test_the_face_loads_nothing_heavy() -> None:
    """`invoke --list` and `invoke list` answer at once."""
    code = "import sys, tasks; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert not {"docker", "jinja2", "zstandard", "hermitcrab.build.engine"} & set(done.stdout.split())


def test_build_builds_and_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the words of the command line."""
    asked: list[object] = []
    monkeypatch.setattr(engine, "find", lambda: "engine")
    monkeypatch.setattr(image, "build", lambda *given, **named: asked.append((*given, named)))
    monkeypatch.setattr(show, "result", lambda *given: asked.append(given))

    tasks.build(Context(), cuda="12.1", base="packages", no_cache=True)

    matrix, combo = tasks._select("12.1", "")
    assert asked == [("engine", matrix, combo, {"base": "packages", "cache": False}), ("engine", combo)]


def test_save_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """And says how to load what it wrote."""
    monkeypatch.setattr(engine, "find", lambda: "engine")
    monkeypatch.setattr(image, "save", lambda *given: 2_400_000_000 if given[3].suffix == ".zst" else 0)

    tasks.save(Context(), cuda="12.1")

    name = f"hermitcrab-{tasks._select('12.1', '')[1].id}.tar.zst"
    assert f"{name}: 2.40 GB; load it with: zstd -dc {name} | docker load" in capsys.readouterr().out


def test_render_checks_or_writes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The check changes nothing."""
    monkeypatch.setattr(render, "check", lambda _: print("checked"))
    monkeypatch.setattr(render, "write", lambda _: [render.ROOT / "images/x/Dockerfile"])

    tasks.render(Context(), check=True)
    assert capsys.readouterr().out == "checked\n"
    tasks.render(Context())
    assert capsys.readouterr().out == "images/x/Dockerfile\n"


@pytest.mark.parametrize("ran", [True, False])
def test_the_engine_is_stopped(ran: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Harmless when none runs; with its data when asked to."""
    purged: list[bool] = []

    def stop(*, purge: bool) -> bool:
        purged.append(purge)
        return ran

    monkeypatch.setattr(embedded, "stop", stop)

    tasks.engine(Context(), stop=True)
    tasks.engine(Context(), purge=True)

    assert purged == [False, True]
    assert ("was not running" in capsys.readouterr().out) != ran


def test_lint_of_requirements_needs_a_combo(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is chosen when it is needed."""
    monkeypatch.setattr(show, "lint", lambda _, choose: choose())

    tasks.lint(Context(), "requirements.txt", cuda="12.1")
    with pytest.raises(Exit, match="which CUDA") as caught:
        tasks.lint(Context(), "requirements.txt")
    assert caught.value.code == 2


def test_test_passes_its_choice_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its failure."""

    def run(only: str, *, nightly: bool) -> None:
        raise UserError(f"failed: {only} {nightly}")

    monkeypatch.setattr(quality, "run", run)

    with pytest.raises(Exit, match="failed: unit True"):
        tasks.test(Context(), only="unit", nightly=True)
