import os
import stat

import pytest

from vmg.files import replacing, same_file


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
