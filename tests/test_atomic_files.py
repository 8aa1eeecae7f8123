import os
import stat
import threading
import time

import pytest

from vmg.files import Run, RunError, locked, replacing, same_file


def write(path, data=b"new"):
    with replacing(path) as temporary:
        temporary.write_bytes(data)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o755])
def test_the_mode_of_an_old_file_is_kept_from_the_first_byte_on(tmp_path, mode):
    path, seen = tmp_path / "model", []
    path.write_bytes(b"old")
    path.chmod(mode)
    with replacing(path) as temporary:
        seen.append(stat.S_IMODE(temporary.stat().st_mode))
        temporary.write_bytes(b"new")
        seen.append(stat.S_IMODE(temporary.stat().st_mode))
    assert path.read_bytes() == b"new"
    assert [*seen, stat.S_IMODE(path.stat().st_mode)] == [mode] * 3


def test_a_new_file_has_the_mode_of_any_new_file(tmp_path):
    write(tmp_path / "new")
    (tmp_path / "ordinary").write_bytes(b"")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


@pytest.mark.parametrize("through", ["itself", "a link"])
def test_devices_and_fifos_stay_what_they_are(tmp_path, through):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path, what in ((fifo, "a FIFO"), ("/dev/null", "a device"), (tmp_path, "a folder")):
        if through == "a link":
            link = tmp_path / f"to {what}"
            link.symlink_to(path)
            path = link
        with pytest.raises(OSError, match=f"it is {what}, not a file"):
            write(path)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_link_keeps_pointing_where_it_did_also_at_nothing(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("target")
    for data in (b"one", b"two"):
        write(link, data)
        assert link.is_symlink() and (tmp_path / "target").read_bytes() == data


def test_a_file_that_may_not_be_written_is_left_alone(tmp_path, monkeypatch):
    path = tmp_path / "model"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda *arguments: False)  # root may write everywhere
    with pytest.raises(PermissionError, match="it may not be written to"):
        write(path)
    assert path.read_bytes() == b"old"


def test_names_as_long_as_the_disk_takes(tmp_path):
    path = tmp_path / ("n" * 251 + ".csv")
    write(path)
    assert path.read_bytes() == b"new"


def test_same_files_are_found_through_links_and_spellings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    open("a", "w").close()
    open("b", "w").close()
    os.symlink("a", "link")
    os.link("a", "hard")
    for other in ("a", "./a", "link", "hard", tmp_path / "a"):
        assert same_file("a", other)
    assert same_file("none", "./none") and not same_file("a", "b") and not same_file("a", "none")


# -- runs that can be resumed -----------------------------------------------------------------------------------------


def test_parts_count_as_done_only_as_they_were_written(tmp_path):
    run = Run({"data": "abc", "options": {"seed": 0}})
    with run.claim(tmp_path / "out") as folder:
        for name in ("a", "b", "c", "d"):
            write(folder.path / name, name.encode())
            folder.add(name, source=f"rows of {name}")
    (tmp_path / "out" / "b").write_bytes(b"damaged")
    (tmp_path / "out" / "c").unlink()
    with run.claim(tmp_path / "out") as folder:
        made_from = {name: folder.source_of(name) for name in ("a", "b", "c", "d", "e")}
        assert made_from == {"a": "rows of a", "b": None, "c": None, "d": "rows of d", "e": None}


def test_a_folder_of_another_run_or_with_other_files_is_refused(tmp_path):
    with Run({"data": "abc", "seed": 0}).claim(tmp_path / "out"):
        pass
    with pytest.raises(RunError, match="must be of a run with seed = 1; got 0"):
        Run({"data": "abc", "seed": 1}).claim(tmp_path / "out").__enter__()
    with pytest.raises(RunError, match="must be of a run with the same data; got another"):
        Run({"data": "d" * 64, "seed": 0}).claim(tmp_path / "out").__enter__()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    with pytest.raises(RunError, match="must be empty or of this run; it has letter"):
        Run({}).claim(tmp_path / "mine").__enter__()
    assert os.listdir(tmp_path / "mine") == ["letter"]


def test_a_kill_between_any_two_steps_of_a_claim_leaves_a_folder_that_can_be_claimed(tmp_path):
    run, out = Run({"seed": 0}), tmp_path / "out"
    out.mkdir()
    (out / ".0123abcd._run.jsonl").write_text('{"se')  # the note, half written
    with run.claim(out) as folder:
        write(folder.path / "a")
        folder.add("a")
    with open(out / "_run.jsonl", "a") as note:
        note.write('{"name": "b", "dig')  # a line that was cut short
    (out / ".0123abcd.c").write_text("a part, half written")
    with run.claim(out) as folder:
        assert folder.source_of("a") is not None and set(folder.parts) == {"a"}
        write(folder.path / "b")
        folder.add("b")
    with run.claim(out) as folder:
        assert set(folder.parts) == {"a", "b"} and sorted(os.listdir(out)) == ["_run.jsonl", "a", "b"]


@pytest.mark.parametrize("contents", [b"[]\n", b"{}\n[]\n", b"{}\n{}\n", b"no\n", b"\xff\n", b"[" * 100_000 + b"\n"])
def test_a_damaged_note_is_one_clear_error(tmp_path, contents):
    (tmp_path / "_run.jsonl").write_bytes(contents)
    with pytest.raises(RunError, match="damaged"):
        Run({"seed": 0}).claim(tmp_path).__enter__()
    (tmp_path / "_run.jsonl").write_bytes(b"")
    with pytest.raises(RunError, match="must be empty or of this run"):
        Run({"seed": 0}).claim(tmp_path).__enter__()


def test_a_lock_is_on_the_file_that_is_there_when_it_is_given(tmp_path):
    """A process that waits for a file which is replaced meanwhile gets the new one."""
    path, seen = tmp_path / "model", []
    path.write_bytes(b"old")

    def wait():
        with locked(path):
            seen.append(path.read_bytes())

    with locked(path):
        with pytest.raises(RunError, match="in use by another process"), locked(path, wait=False):
            pass
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.1)
        assert not seen
        write(path)
    waiting.join(10)
    assert seen == [b"new"]
