"""Files that are written whole or not at all, lines of results that no kill loses, and runs that are resumed."""

import json
import os
import random
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from vmg.files import Run, RunError, append_lines, locked, read_lines, replacing, same_file


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


# -- lines of JSON ----------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "results.jsonl"


def test_what_is_appended_is_read(path):
    assert read_lines(path) == []
    append_lines(path, [{"a": 1}, {"b": "ü"}])
    append_lines(path, [])
    append_lines(path, [{"c": None}])
    assert read_lines(path) == [{"a": 1}, {"b": "ü"}, {"c": None}]


@pytest.mark.parametrize("torn", [b'{"b": 2', b"{", b'{"b": "\xc3', b'{"b": 2}\x00'])
def test_a_line_cut_short_is_left_out_and_cut_off(path, torn):
    append_lines(path, [{"a": 1}])
    with path.open("ab") as file:
        file.write(torn)
    assert read_lines(path) == [{"a": 1}]
    append_lines(path, [{"c": 3}])
    assert path.read_bytes() == b'{"a": 1}\n{"c": 3}\n'


def test_a_last_record_without_its_newline_is_kept(path):
    append_lines(path, [{"a": 1}])
    with path.open("ab") as file:
        file.write(b'{"b": 2}')
    assert read_lines(path) == [{"a": 1}, {"b": 2}]
    append_lines(path, [{"c": 3}])
    assert read_lines(path) == [{"a": 1}, {"b": 2}, {"c": 3}]


def test_a_file_of_one_long_torn_line(path):
    path.parent.mkdir()
    path.write_bytes(b'{"a": "' + b"x" * 200_000)
    append_lines(path, [{"b": 2}])
    assert path.read_bytes() == b'{"b": 2}\n'


def test_whole_lines_are_never_written_again(path, monkeypatch):
    append_lines(path, [{"a": 1}])
    with path.open("ab") as file:
        file.write(b'{"b"')
    written = []
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, place: written.append(place) or real(fd, data, place))
    append_lines(path, [{"c": 3}])
    assert written == [len(b'{"a": 1}\n')]


def test_a_full_disk_leaves_the_file_as_it_was(path, monkeypatch):
    append_lines(path, [{"a": 1}])
    before = path.read_bytes()
    real = os.pwrite

    def fill(descriptor, data, place):
        if place == len(before):
            return real(descriptor, data[:5], place)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", fill)
        with pytest.raises(OSError, match="No space left"):
            append_lines(path, [{"b": 2}])
    assert path.read_bytes() == before


def test_what_is_on_a_line_in_the_middle_and_no_record_is_named(path):
    append_lines(path, [{"a": 1}])
    path.write_bytes(path.read_bytes() + b"nonsense\n" + b'{"b": 2}\n')
    with pytest.raises(ValueError, match="line 2 is not a JSON object"):
        read_lines(path)


WRITER = """
    import sys
    from pathlib import Path
    from vmg.files import append_lines, read_lines
    path, name = Path(sys.argv[1]), sys.argv[2]
    for number in range(10_000):
        append_lines(path, [{"writer": name, "number": number, "filling": "x" * (number % 7_000)}])
        print(number, flush=True)
"""


def test_no_record_is_lost_to_kills_and_two_writers(path):
    """What a writer has told is there after any kill, in order, and nothing in between is torn."""
    rng = random.Random(0)
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(path)]
    told: dict[str, int] = {}
    for trial in range(2):
        writers = [(f"{trial}{k}", subprocess.Popen([*command, f"{trial}{k}"], stdout=subprocess.PIPE)) for k in "ab"]
        for name, writer in writers:
            for _ in range(rng.randrange(20, 200)):
                told[name] = int(writer.stdout.readline())
        for name, writer in writers:
            writer.send_signal(signal.SIGKILL)
            rest = writer.communicate()[0].split(b"\n")[:-1]
            told[name] = int(rest[-1]) if rest else told[name]
    append_lines(path, [{"writer": "end", "number": 0}])
    assert all(isinstance(json.loads(line), dict) for line in path.read_text().splitlines())
    found = read_lines(path)
    for name, last in told.items():
        numbers = [record["number"] for record in found if record["writer"] == name]
        assert numbers == list(range(len(numbers))) and len(numbers) in (last + 1, last + 2)
