"""`crab seal` among links, odd names, other disks and other programs: it takes only what it meant."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermitcrab.box import seal
from hermitcrab.box.seal import places, waste
from hermitcrab.box.seal.clean import _writable, clean_item
from hermitcrab.box.seal.rows import MB
from hermitcrab.box.seal.scan import Item, scan
from tests.unit.seal_root import MOUNTS, PLANTS, PRIVATE, VARIABLES, call, found, make_root, put, tree

ROWS = {row.id: row for row in waste.ROWS}
Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A box with nothing to clean."""
    return make_root(tmp_path)


def link(root: Path, path: str, target: str) -> Path:
    """Make a symbolic link as it would read inside the box."""
    place = Path(f"{root}{path}")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)
    return place


@pytest.mark.parametrize(
    "name", [b"two\nlines", b"\xff\xfe", b"-rf", b"*", b" ", "中文".encode(), b"\x1b[2J", b"a" * 255]
)
def test_any_name_is_found_shown_and_removed(name: bytes, root: Path, capsys: Capsys) -> None:
    """A name is bytes: it neither breaks the answer into lines nor the terminal."""
    for folder in (b"/tmp/", b"/root/.cache/"):
        os.makedirs(os.path.join(os.fsencode(root) + folder + name, name))
        Path(os.fsdecode(os.fsencode(root) + folder + name + b"/" + name + b"/x")).write_text("x")
    put(root, "/root/code/.env", "A_TOKEN=abcdefgh\n").parent.rename(os.fsdecode(os.fsencode(root) + b"/root/" + name))

    assert seal.main([], root, VARIABLES) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said and "two\nlines" not in said
    assert call(capsys, root, "--yes")[1]["failures"] == []
    assert call(capsys, root, "--check")[0] == 0
    left = [path for path in tree(root) if path.endswith(("/x", "/.env"))]
    assert all(path.startswith("/root/autodl-tmp/") for path in left)


def test_a_link_in_a_temporary_folder_is_only_a_link(root: Path, capsys: Capsys) -> None:
    """The link goes; what it leads to, on this disk, on another or nowhere, stays."""
    work, data = put(root, "/root/code/result.txt"), put(root, "/root/autodl-tmp/result.txt")
    links = [
        link(root, "/tmp/a", "/root/code"),
        link(root, "/tmp/b/c", "../../root/autodl-tmp"),
        link(root, "/tmp/d", "/nowhere"),
        link(root, "/tmp/loop", "loop"),
        link(root, "/tmp/b/up", ".."),
    ]

    assert call(capsys, root, "--yes")[0] == 0

    assert work.exists() and data.exists()
    assert not any(path.is_symlink() for path in links)


def test_a_cache_linked_to_the_data_disk_stays(root: Path, capsys: Capsys) -> None:
    """It is in no image: neither the link nor what is behind it is touched."""
    models = put(root, "/root/autodl-tmp/cache/huggingface/hub/m")
    link(root, "/root/.cache", "/root/autodl-tmp/cache")
    link(root, "/home/me/.cache/huggingface", "/root/autodl-tmp/cache/huggingface")
    before = tree(root)

    status, told = call(capsys, root, "--yes")

    assert (status, found(told)) == (0, set())
    assert tree(root) == before
    assert models.exists()


def test_a_link_to_a_cache_or_a_log_elsewhere_is_no_question(root: Path, capsys: Capsys) -> None:
    """It is how a user moves a cache, or a package its log: neither the link nor its end is named."""
    put(root, "/srv/pip/x")
    link(root, "/root/.cache/pip", "/srv/pip")
    link(root, "/var/log/README", "../../usr/share/doc/README.logs")
    put(root, "/usr/share/doc/README.logs")

    assert found(call(capsys, root)[1]) == set()


def test_a_cache_folder_linked_on_this_disk_is_asked_about(root: Path, capsys: Capsys) -> None:
    """The image would hold what is in it."""
    put(root, "/srv/cache/pip/x")
    link(root, "/root/.cache", "../srv/cache")

    assert found(call(capsys, root)[1], "ask") == {("pip", "/srv/cache/pip")}


def test_a_secret_behind_a_link_on_this_disk_is_asked_about(root: Path, capsys: Capsys) -> None:
    """The image would hold it, but a link may lead to anything: nothing is removed through it."""
    secret = put(root, "/srv/dotfiles/netrc", "machine x\n")
    link(root, "/root/.netrc", "../srv/dotfiles/netrc")

    assert call(capsys, root, "--yes")[0] == 0
    assert secret.exists()
    status, told = call(capsys, root, "--check")
    assert (status, found(told, "ask")) == (1, {("netrc", "/srv/dotfiles/netrc")})
    assert told["items"][0]["note"] == "reached through the link /root/.netrc"

    assert call(capsys, root, "--yes", "--include", "/srv/dotfiles/netrc")[0] == 0
    assert not secret.exists()


def test_links_that_lead_out_of_the_root_or_to_devices_are_nothing(root: Path, tmp_path: Path, capsys: Capsys) -> None:
    """An absolute link is read inside the box; one that climbs too far ends at its root."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ".netrc").write_text("x")
    link(root, "/root/.bash_history", "/dev/null")
    link(root, "/root/.netrc", f"{'../' * 30}{outside}/.netrc")
    link(root, "/home/me/.aws", str(outside))

    assert found(call(capsys, root, "--yes")[1]) == set()
    assert (outside / ".netrc").exists()


@pytest.mark.parametrize("row", ["temp", "logs", "git-remotes", "netrc"])
def test_a_folder_that_becomes_a_link_after_the_scan_is_not_followed(row: str, root: Path, tmp_path: Path) -> None:
    """Between looking and removing, someone puts a link in the way: it is a failure, and nothing is lost."""
    place = places.find(root, {})
    kept = tmp_path / "precious"
    (kept / "deep").mkdir(parents=True)
    for file in (kept / "file", kept / "deep" / "file"):
        file.write_text("[remote]\n url = https://x:y@z/")
    link(root, "/tmp/way", str(kept))

    for path in ("/tmp/way/file", "/tmp/way/deep"):
        failures = clean_item(place, Item(ROWS[row], path, 0, 1, asked=False), ())
        assert failures and "/tmp/way" in failures[0]

    assert (kept / "file").read_text() == (kept / "deep" / "file").read_text() == "[remote]\n url = https://x:y@z/"


def test_what_is_mounted_inside_waste_stays(root: Path, capsys: Capsys) -> None:
    """Folders and single files that are mounted are no part of the system disk, whatever they lie in."""
    mounts = "3 1 9:1 / /root/.cache/huggingface rw - xfs /dev/md1 rw\n4 1 9:1 /f /tmp/a\\040b/f rw - xfs /dev/md1 rw\n"
    put(root, "/proc/self/mountinfo", MOUNTS + mounts)
    stays = [put(root, path) for path in ("/root/.cache/huggingface/token", "/tmp/a b/f")]
    goes = [put(root, path) for path in ("/root/.cache/pip/x", "/tmp/a b/g")]

    assert call(capsys, root, "--yes")[1]["failures"] == []

    assert all(path.exists() for path in stays) and not any(path.exists() for path in goes)
    assert call(capsys, root, "--check")[0] == 0


def test_another_device_is_never_entered(root: Path) -> None:
    """Without a list of mounts the folders' device tells; here it is every folder's."""
    put(root, "/tmp/x")
    place = places.find(root, {})._replace(device=-1)

    assert scan(place).items == ()
    assert clean_item(place, Item(ROWS["temp"], "/tmp/x", 0, 1, asked=False), ()) == ["/tmp: is on another disk"]
    assert (root / "tmp/x").exists()


def test_sockets_and_pipes_stay_and_do_not_block(root: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tmux server's socket is the way back to the session; a pipe named .env waits for a writer."""
    put(root, "/tmp/tmux-0/x")
    monkeypatch.chdir(root / "tmp/tmux-0")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("default")
    os.mkfifo(root / "root/code/.env")
    os.mkfifo(root / "root/.netrc")
    os.mkfifo(root / "tmp/pipe")

    assert call(capsys, root, "--yes")[0] == 0

    assert (root / "tmp/tmux-0/default").is_socket() and (root / "tmp/pipe").is_fifo()
    assert not (root / "tmp/tmux-0/x").exists()
    assert call(capsys, root, "--check")[0] == 0


def test_a_log_with_another_name_is_not_emptied(root: Path, capsys: Capsys) -> None:
    """A hard link to a user's file put among the logs costs the link, not the file."""
    work = put(root, "/root/code/result.txt", "precious")
    os.link(work, root / "var/log/trap.log")

    assert call(capsys, root, "--yes")[0] == 0

    assert work.read_text() == "precious"
    assert not (root / "var/log/trap.log").exists()


def test_shared_bytes_are_not_promised(root: Path, capsys: Capsys) -> None:
    """A cache whose files are hard-linked into the environment frees nothing; one linked within itself does."""
    inside = put(root, "/opt/venv/lib/python3.11/site-packages/x.so", MB)
    (root / "root/.cache/uv").mkdir(parents=True)
    os.link(inside, root / "root/.cache/uv/x.so")
    pair = put(root, "/root/.cache/pip/a", MB)
    os.link(pair, pair.with_name("b"))

    told = call(capsys, root, "--yes")[1]
    gains = {item["row"]: item["bytes"] for item in told["items"]}

    assert gains["uv"] < MB // 2 < gains["pip"] < MB * 1.5
    assert inside.stat().st_size == MB


def test_a_token_with_another_name_is_told(root: Path, capsys: Capsys) -> None:
    """The other name keeps the secret, so it must be said."""
    os.link(put(root, "/root/.netrc", "machine x\n"), root / "root/code/copy")

    assert "hard link" in call(capsys, root)[1]["items"][0]["note"]


def test_read_only_files_and_folders_go(root: Path, capsys: Capsys) -> None:
    """A Go module cache is all read-only; a mode is no reason to keep a secret."""
    for path in ("/root/.cache/go/a/b", "/root/.netrc"):
        put(root, path).chmod(0o400)
    for folder in ("root/.cache/go/a", "root/.cache/go"):
        (root / folder).chmod(0o555)

    assert call(capsys, root, "--yes")[1]["failures"] == []
    assert call(capsys, root, "--check")[0] == 0


def test_a_user_s_own_read_only_folder_is_opened_for_the_removal(tmp_path: Path) -> None:
    """Root may do without; the owner needs the mode."""
    tmp_path.chmod(0o555)
    handle = os.open(tmp_path, os.O_RDONLY)

    with _writable(handle):
        assert os.fstat(handle).st_mode & 0o200
    os.close(handle)


def test_content_is_never_read_through_a_link(root: Path) -> None:
    """What was a file when it was listed may be a link when it is read."""
    link(root, "/root/.netrc", "/root/code/train.py")

    with pytest.raises(OSError, match="symbolic links"):
        places.find(root, {}).read("/root/.netrc", 9)


def test_an_edited_file_keeps_its_mode_and_leaves_no_copy(root: Path, capsys: Capsys) -> None:
    """A killed run may have left its half-written file: the next one uses that name again."""
    path = put(root, "/root/.config/pip/pip.conf", "index-url = https://me:pw@x/\n")
    path.chmod(0o640)
    put(root, "/root/.config/pip/.pip.conf.crab-seal", "half")

    assert call(capsys, root, "--yes")[0] == 0

    assert (path.read_text(), path.stat().st_mode & 0o777) == ("index-url = https://x/\n", 0o640)
    assert [one.name for one in path.parent.iterdir()] == ["pip.conf"]


def test_what_cannot_be_looked_at_is_no_pass(root: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable folder is told, does not stop the walk, and fails the check."""
    (root / "srv/closed").mkdir(parents=True)
    put(root, "/tmp/x")
    real: Callable[..., Any] = os.scandir

    def refuse(path: str) -> Any:
        if path.endswith("/srv/closed"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)

    status, told = call(capsys, root, "--yes")
    assert (status, told["unread"]) == (0, [{"path": "/srv/closed", "reason": "Permission denied"}])
    assert not (root / "tmp/x").exists()
    assert call(capsys, root, "--check")[0] == 1


def test_what_cannot_be_removed_is_told_and_the_rest_goes_on(
    root: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One immutable file is a failure with its path, and exit status 1."""
    put(root, "/root/.netrc"), put(root, "/root/.pypirc")
    real: Callable[..., None] = os.unlink

    def refuse(name: str, **options: Any) -> None:
        if name == ".netrc":
            raise PermissionError(1, "Operation not permitted")
        real(name, **options)

    monkeypatch.setattr(os, "unlink", refuse)

    status, told = call(capsys, root, "--yes")
    assert (status, told["failures"]) == (1, ["/root/.netrc: Operation not permitted"])
    assert not (root / "root/.pypirc").exists()


def test_killed_at_any_moment_and_run_again_it_is_sealed(tmp_path: Path, capsys: Capsys) -> None:
    """Whatever call was the last, the next run finishes, and edited files are whole at every moment."""
    innocent: dict[str, Any] = {}
    for moment in (0, 1, 5, 20, 60, 100):
        root = make_root(tmp_path / str(moment))
        innocent = tree(root)
        edited = {plant.path: {plant.text, plant.left} for plant in PLANTS if plant.left}
        for plant in PLANTS:
            put(root, plant.path, 10 if isinstance(plant.text, int) else plant.text)

        with pytest.MonkeyPatch.context() as patch:
            _die_after(moment, patch)
            with pytest.raises(KeyboardInterrupt):
                call(capsys, root, "--yes", "--include", "shell-settings")
        for path, texts in edited.items():
            assert Path(f"{root}{path}").read_text() in texts

        assert call(capsys, root, "--yes", "--include", "shell-settings")[0] == 0
        keep = ["--keep", "token-in-file", "--keep", "key-files"]
        assert call(capsys, root, "--check", *keep)[0] == 0
        after = tree(root)
        assert {path: after.get(path) for path in innocent} == innocent


def test_a_very_deep_folder_is_removed(root: Path, capsys: Capsys) -> None:
    """However deep, no recursion and no handle for each level."""
    here = os.open(root / "tmp", os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(os.open("x", os.O_CREAT, dir_fd=here))
    os.close(here)

    assert call(capsys, root, "--yes")[1]["failures"] == []
    assert not os.listdir(root / "tmp")


@pytest.mark.parametrize("value", ["/", "", "relative", "/root", "/root/code", "/root/autodl-tmp", "//"])
def test_a_variable_that_names_too_much_takes_nothing(value: str, root: Path, capsys: Capsys) -> None:
    """PIP_CACHE_DIR=/root must not cost the home; on the data disk nothing is touched."""
    put(root, "/proc/1/environ", "")
    before = tree(root)
    names = {pattern[1:].split("/")[0] for row in waste.ROWS for pattern in row.patterns if pattern.startswith("$")}

    assert seal.main(["--yes"], root, dict.fromkeys(names, value)) == 0

    capsys.readouterr()
    assert tree(root) == before


def test_variables_of_pid_1_are_heeded(root: Path) -> None:
    """What the platform gave to PID 1 has not reached this shell."""
    put(root, "/proc/1/environ", b"HF_HOME=/workspace/hf\0")
    token = put(root, "/workspace/hf/token")

    assert seal.main(["--yes"], root, {}) == 0
    assert not token.exists()


def test_private_keys_are_known_by_their_content(root: Path, capsys: Capsys) -> None:
    """A name proves nothing: public keys, certificates and settings in .ssh stay."""
    for name in ("deploy", "odd name.txt", "id_rsa"):
        put(root, f"/root/.ssh/{name}", PRIVATE)
    stays = [put(root, f"/root/.ssh/{name}", "ssh-rsa AAAA") for name in ("id_rsa.pub", "id_x")]

    assert call(capsys, root, "--yes")[0] == 0

    assert {path.name for path in (root / "root/.ssh").iterdir()} == {"config", "id_ed25519.pub"} | {
        path.name for path in stays
    }


def _die_after(moment: int, patch: pytest.MonkeyPatch) -> None:
    """End the run at its n-th change to the disk."""
    left = [moment]
    for name in ("unlink", "rmdir", "replace", "ftruncate"):
        real = getattr(os, name)

        def dying(*arguments: Any, real: Any = real, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return real(*arguments, **options)

        patch.setattr(os, name, dying)
