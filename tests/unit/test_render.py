"""The rendered files: fresh, complete for `docker build`, and true to the matrix."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hermitcrab import matrix as matrices
from hermitcrab.build import bootstrap, lock, render, wheel
from hermitcrab.errors import UserError
from hermitcrab.matrix import Combo

MATRIX = matrices.load()
COMBO = matrices.select(MATRIX, "12.1")
SMALL = replace(MATRIX, combos=(COMBO,))
DOCKERFILES = {combo.id: render.dockerfile(MATRIX, combo) for combo in MATRIX.combos}

each_combo = pytest.mark.parametrize("combo", MATRIX.combos, ids=lambda combo: combo.id)


def steps(text: str) -> list[tuple[str, str]]:
    """Every instruction with the text of its heredoc; comments are left out."""
    found: list[tuple[str, str]] = []
    lines = iter(re.sub(r"\\\n", " ", text).splitlines())
    for line in lines:
        if line and not line.startswith("#"):
            end = re.search(r"<<'(\w+)'", line)
            found.append((line, "\n".join(until(lines, end[1])) if end else ""))
    return found


def until(lines: Iterator[str], end: str) -> Iterator[str]:
    """The lines before the one that ends a heredoc."""
    for line in lines:
        if line == end:
            return
        yield line
    raise AssertionError(f"no {end} ends the heredoc")


def variables(words: str) -> dict[str, str]:
    """NAME=value pairs."""
    return dict(re.findall(r"(\w+)=(\S+)", words))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of the test's own, with one combo, rendered."""
    shutil.copytree(render.TEMPLATES, tmp_path / "templates")
    shutil.copy(render.README, tmp_path)
    monkeypatch.setattr(render, "ROOT", tmp_path)
    monkeypatch.setattr(render, "TEMPLATES", tmp_path / "templates")
    monkeypatch.setattr(render, "IMAGES", tmp_path / "images")
    monkeypatch.setattr(render, "README", tmp_path / "README.md")
    monkeypatch.setattr(bootstrap, "SCRIPT", tmp_path / "bootstrap" / "bootstrap.sh")
    render.write(SMALL)
    return tmp_path


def problems() -> str:
    """What the check complains about."""
    with pytest.raises(UserError, match=r" - run `invoke render` and commit the result$") as caught:
        render.check(SMALL)
    return str(caught.value).partition(" - ")[0]


def test_what_is_committed_is_fresh() -> None:
    """`invoke render --check`."""
    render.check(MATRIX)


def test_write_makes_what_check_wants(project: Path) -> None:
    """All of it at once, and nothing the second time."""
    render.check(SMALL)
    render.check(SMALL, COMBO)
    assert render.write(SMALL) == []
    names = {path.name for path in (project / "images" / COMBO.id).iterdir()}
    assert names == {"Dockerfile", wheel.NAME, ".dockerignore"}


def test_a_stale_file_is_named(project: Path) -> None:
    """A byte is enough."""
    path = project / "images" / COMBO.id / "Dockerfile"
    path.write_text(path.read_text() + "\n")

    assert problems() == f"images/{COMBO.id}/Dockerfile is stale"
    with pytest.raises(UserError, match="is stale"):
        render.check(SMALL, COMBO)
    assert render.write(SMALL) == [path]
    render.check(SMALL)


def test_a_missing_file_is_named(project: Path) -> None:
    """Several at once."""
    for name in (".dockerignore", wheel.NAME):
        (project / "images" / COMBO.id / name).unlink()

    assert set(problems().split("; ")) == {
        f"images/{COMBO.id}/.dockerignore is missing",
        f"images/{COMBO.id}/{wheel.NAME} is missing",
    }


def test_a_file_left_over_is_named_and_removed(project: Path) -> None:
    """Of a combo that is gone, or of an older version."""
    for name in ("gone/Dockerfile", f"{COMBO.id}/old.whl", f"{COMBO.id}/folder/file"):
        path = project / "images" / name
        path.parent.mkdir(exist_ok=True)
        path.touch()

    assert set(problems().split("; ")) == {
        f"images/{COMBO.id}/folder is left over",
        f"images/{COMBO.id}/old.whl is left over",
        "images/gone/Dockerfile is left over",
    }
    render.check(SMALL, COMBO)
    render.write(SMALL)
    render.check(SMALL)


def test_a_template_with_a_typo_does_not_render(project: Path) -> None:
    """A hole in a Dockerfile would be found by the build, or by nobody."""
    template = project / "templates/Dockerfile.j2"
    text = template.read_text()
    for fault, said in (("# {{ combo.tourch }}", ": .*tourch"), ("{% if %}", rf":{text.count(chr(10)) + 1}: ")):
        template.write_text(f"{text}{fault}\n")
        with pytest.raises(UserError, match=rf"^templates/Dockerfile\.j2{said}"):
            render.write(SMALL)


def test_a_full_disk_leaves_the_old_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README is a source as well: half of it would be the end of the rest."""
    readme = project / "README.md"
    old = readme.read_text(encoding="utf-8").replace("| current |", "| stale |").replace("| legacy |", "| stale |")
    readme.write_text(old, encoding="utf-8")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        render.write(SMALL)
    assert readme.read_text(encoding="utf-8") == old
    assert {path.name for path in project.iterdir()} == {"README.md", "bootstrap", "images", "templates"}


def test_what_an_editor_leaves_is_not_rendered(project: Path) -> None:
    """Swap files are no text, and locks are links to nowhere."""
    (project / "templates/parts/.apt.sh.swp").write_bytes(b"b0VIM\xff\xfe")
    (project / "templates/parts/.#apt.sh").symlink_to("me@here.1")

    render.check(SMALL)


def test_the_locale_has_no_say() -> None:
    """The README and the settings are UTF-8, also where text is not."""
    flags = ["-P", "-X", "warn_default_encoding", "-W", "error::EncodingWarning:hermitcrab.build.render"]
    code = "from hermitcrab import matrix; from hermitcrab.build import render; render.render(matrix.load())"
    environment = {**os.environ, "PYTHONPATH": str(render.TEMPLATES.parent)}
    subprocess.run([sys.executable, *flags, "-c", code], env=environment, check=True)


def test_windows_line_ends_do_not_reach_the_output(project: Path) -> None:
    """A checkout with CRLF renders the same bytes."""
    for path in (project / "templates").rglob("*.*"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))

    render.check(SMALL)


def test_a_line_of_a_file_that_ends_its_heredoc_is_found(project: Path) -> None:
    """The guard below can fail."""
    path = project / "templates/home/tmux.conf"
    path.write_text(path.read_text() + "FILE\n")

    assert unbalanced(render.dockerfile(SMALL, COMBO)) == {"FILE"}


def unbalanced(text: str) -> set[str]:
    """Delimiters that stand on a line of their own more often than a heredoc begins."""
    lines = text.splitlines()
    delimiters = set(re.findall(r"<<-?'?(\w+)'?$|<<'(\w+)'", text, re.MULTILINE))
    names = {name for pair in delimiters for name in pair if name}
    return {name for name in names if lines.count(name) != len(re.findall(rf"<<'{name}'", text))}


@each_combo
def test_heredocs_end_where_they_should(combo: Combo) -> None:
    """No line of what is embedded is a delimiter, and all are quoted: nothing is expanded in between."""
    text = DOCKERFILES[combo.id]

    assert set(re.findall(r"<<(\S+)", text)) == {"'SH'", "'PY'", "'FILE'", "'CONF'"}
    assert unbalanced(text) == set()
    known = {"ARG", "FROM", "RUN", "COPY", "ENV", "WORKDIR", "ENTRYPOINT", "EXPOSE", "LABEL"}
    assert {line.split()[0] for line, _ in steps(text)} == known


@each_combo
def test_it_builds_anywhere(combo: Combo) -> None:
    """No frontend to fetch, no CUDA base, one base by digest, and LF line ends."""
    text = DOCKERFILES[combo.id]

    assert "\r" not in text
    assert not re.search(r"^#\s*syntax\s*=", text, re.MULTILINE | re.IGNORECASE)
    assert "nvidia/cuda" not in text
    assert text.endswith("\n") and not text.endswith("\n\n")
    froms = [line.split() for line, _ in steps(text) if line.startswith("FROM")]
    stages = {words[3] for words in froms}
    assert {words[1] for words in froms} <= {"${BASE}", "scratch", *stages}
    assert f"ARG BASE={combo.base.reference}@sha256:" in text


@each_combo
def test_the_folder_holds_all_that_is_copied(combo: Combo) -> None:
    """And its .dockerignore lets it through."""
    folder = render.IMAGES / combo.id
    ignored = (folder / ".dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (?!--from=|<<)(\S+) ", DOCKERFILES[combo.id], re.MULTILINE)

    assert set(copied) == {"requirements.lock", wheel.NAME}
    for name in copied:
        assert (folder / name).is_file()
        assert any(Path(name).match(pattern[1:]) for pattern in ignored if pattern.startswith("!"))


@each_combo
def test_secrets_are_mounted_where_they_are_read(combo: Combo) -> None:
    """In those steps only: whoever cannot read a secret cannot leave it behind."""
    mounted = 0
    for line, body in steps(DOCKERFILES[combo.id]):
        asked = set(re.findall(r"--mount=type=secret,id=(\w+)", line))
        read = set(re.findall(r"/run/secrets/(\w+)", body))
        assert asked == read, line
        mounted += len(asked)
    assert mounted >= 3


@each_combo
def test_every_layer_is_copied_once_and_the_calmest_first(combo: Combo) -> None:
    """What wheels.sh sorts in a stage and what the image takes from it are one list."""
    text = DOCKERFILES[combo.id]
    copied = re.findall(r"^COPY --from=(nvidia|wheels) /layers/(\w+)/ /$", text, re.MULTILINE)
    stages = re.findall(r"^FROM tools AS (nvidia|wheels)$", text, re.MULTILINE)
    tables = re.findall(r'^layers="(.*?)"$', text, re.MULTILINE | re.DOTALL)
    listed = [
        (stage, line.split()[0]) for stage, table in zip(stages, tables, strict=True) for line in table.splitlines()
    ]

    assert copied == [*listed, ("wheels", render.LAST_LAYER)]
    # A torch from an index carries NVIDIA's libraries inside itself.
    assert [name for _, name in copied] == [*(["cudnn", "cuda"] if combo.wheels == "pypi" else []), "torch", "rest"]
    order = [line for line, _ in steps(text)]
    system = order.index("COPY --from=system / /")
    assert max(order.index(f"COPY --from={stage} /layers/{name}/ /") for stage, name in copied) < system
    assert system < order.index("COPY --from=box /box/ /")


@each_combo
def test_every_wheel_is_installed_in_one_stage(combo: Combo) -> None:
    """What one stage takes from the lock the others leave, and the proof sees them all."""
    text = DOCKERFILES[combo.id]
    pins = [line for line in lock.lock_path(combo).read_text().splitlines() if "==" in line and line[0] not in "# "]
    taken = []
    for words in re.findall(r'^wheels="(.*)"$', text, re.MULTILINE):
        taken += subprocess.check_output(["grep", *words.split()], input="\n".join(pins), text=True).splitlines()
    stages = re.findall(r"^FROM tools AS (nvidia|wheels)$", text, re.MULTILINE)
    (proof,) = (line for line, _ in steps(text) if "source=/layers" in line)

    assert sorted(taken) == sorted(pins)
    assert re.findall(r"from=(\w+),source=/layers,target=/layers/\1\b", proof) == stages


@each_combo
def test_one_environment_for_every_way_in(combo: Combo) -> None:
    """`docker run`, an SSH command and a login shell find the same; the files of home are in the image."""
    (env,) = (line for line, _ in steps(DOCKERFILES[combo.id]) if line.startswith("ENV"))
    home = render.TEMPLATES / "home"
    sshd = (home / "sshd.conf").read_text()
    (given,) = re.findall(r"^SetEnv (.*)$", sshd, re.MULTILINE)
    image = variables(env)

    assert {name: value for name, value in image.items() if not name.startswith("NVIDIA_")} == variables(given)
    assert image["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert image["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    login = (home / "profile.sh").read_text()
    for name, value in variables(given).items():
        if name == "PATH":
            assert f"{value.split(':')[0]}:$PATH" in login
        else:
            assert f"{name}={value}" in login or f'{name}="${{{name}:-{value}}}"' in login
    given_files = dict(render._home_files(combo))
    assert sshd.rstrip("\n") in given_files.values() and login.rstrip("\n") in given_files.values()
    for target, text in given_files.items():
        assert f"{target} <<'FILE'\n{text}\nFILE\n" in DOCKERFILES[combo.id]


@each_combo
def test_constraints_hold_torch_and_its_cuda(combo: Combo) -> None:
    """All that was built together, at its exact version, and nothing a user may want newer."""
    pins = {pin.name: pin.version for pin in lock.read(lock.lock_path(combo))}
    lines = render._constraints(combo)
    kept = dict(line.split("==") for line in lines if "==" in line)

    assert {"torch", "torchvision", "torchaudio"} <= kept.keys()
    assert {name for name in pins if name.startswith("nvidia-")} <= kept.keys()
    assert all(pins[name] == version for name, version in kept.items())
    assert not {"requests", "numpy", "pip", "setuptools"} & kept.keys()
    assert ("numpy<2" in lines) == pins["numpy"].startswith("1.")
    assert "\n".join(lines) in DOCKERFILES[combo.id]
    assert DOCKERFILES[combo.id].count("_CONSTRAINT=/etc/hermitcrab/constraints.txt") >= 4


@each_combo
def test_labels_tell_what_the_image_is(combo: Combo) -> None:
    """Combo, driver, cards, lock, revision, licences."""
    (line,) = (line for line, _ in steps(DOCKERFILES[combo.id]) if line.startswith("LABEL"))
    labels = dict(re.findall(r'([\w.]+)="([^"]*)"', line))

    assert labels["hermitcrab.combo"] == combo.id
    assert labels["hermitcrab.driver"] == combo.driver
    assert labels["hermitcrab.arch"] == " ".join(f"sm_{sm}" for sm in combo.arch)
    assert labels["hermitcrab.lock"] == f"sha256:{lock.digest(lock.lock_path(combo))}"
    assert labels["org.opencontainers.image.revision"] == "${REVISION}"
    assert "NVIDIA" in labels["org.opencontainers.image.licenses"]
    assert "ARG REVISION=unknown\nLABEL " in DOCKERFILES[combo.id]


@each_combo
def test_the_proof_wants_what_the_row_says(combo: Combo) -> None:
    """The build asserts the row, not a copy of it."""
    (body,) = re.findall(r"<<'PY'\n(.*?)\nPY\n", DOCKERFILES[combo.id], re.DOTALL)
    (wanted,) = re.findall(r'^WANTED = r"""(.*?)"""$', body, re.MULTILINE | re.DOTALL)
    row = json.loads(wanted)

    assert row.items() >= {
        "combo": combo.id, "cuda": combo.cuda, "python": combo.python, "torch": combo.torch,
        "torchvision": combo.torchvision, "torchaudio": combo.torchaudio, "compiles": combo.compiles,
    }.items()  # fmt: skip
    assert (tuple(row["arch"]), tuple(row["ptx"])) == (combo.arch, combo.ptx)
    compile(body, "proof", "exec")


@each_combo
def test_a_build_depends_on_nothing_but_the_folder(combo: Combo) -> None:
    """Date, versions and hashes are written out; a generated file says so and has no time stamp."""
    text = DOCKERFILES[combo.id]

    assert text.startswith("# Generated by `invoke render`")
    assert not re.search(r"\b20\d\d-\d\d-\d\d\b", text)
    assert f"SOURCE_DATE_EPOCH={MATRIX.epoch}" in text
    assert MATRIX.tools["uv"].sha256 in text
    assert "--require-hashes" in text
