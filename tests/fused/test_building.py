"""Building the compiled kernels, and choosing among them when they are loaded."""

import importlib.util
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vmg.fused import library

ROOT = Path(__file__).parents[2]


def build_module():
    pytest.importorskip("hatchling")
    path = ROOT / "hatch_build.py"
    if not path.exists():
        pytest.skip("an installed package has no build hook")
    spec = importlib.util.spec_from_file_location("hatch_build", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_wheel_has_no_instruction_of_this_machine_alone(tmp_path, monkeypatch):
    module = build_module()
    if module.find_compiler() is None:
        pytest.skip("no C++ compiler")
    commands = []
    real = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda command, **options: commands.append(command) or real(command, **options)
    )
    shutil.copytree((ROOT / module.SOURCE).parent, tmp_path / "csrc")
    names = [made.name for made in module.build_libraries(tmp_path)]
    assert not any("native" in part for command in commands for part in command)
    assert names[0] == library.LIBRARY and module.V3_LIBRARY == library.V3_LIBRARY
    assert not any(part.startswith(("-march", "-m")) for part in commands[0])
    if platform.machine() == "x86_64":
        assert names[1:] == [library.V3_LIBRARY]
    assert [made.name for made in module.build_libraries(tmp_path, native=True)] == [library.LIBRARY]
    assert not (tmp_path / library.V3_LIBRARY).exists()  # of the build before


def test_a_library_of_other_sources_is_refused(tmp_path, monkeypatch):
    module = build_module()
    if module.find_compiler() is None:
        pytest.skip("no C++ compiler")
    shutil.copytree((ROOT / module.SOURCE).parent, tmp_path / "csrc")
    target = tmp_path / library.LIBRARY
    assert module.compile_kernels(tmp_path / "csrc" / "kernels.cpp", target)
    assert sorted(tmp_path.iterdir()) == [target, tmp_path / "csrc"]
    monkeypatch.delenv("VMG_NATIVE", raising=False)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    find = library._library.__wrapped__
    assert find() is not None
    with (tmp_path / "csrc" / "layer.hpp").open("a") as file:
        file.write("// changed\n")
    with pytest.warns(UserWarning, match=f"{library.LIBRARY} was compiled from other sources .* PyTorch instead"):
        assert find() is None
    (tmp_path / "csrc" / "kernels.cpp").write_text('extern "C" int vmg_runs_v3() { return 0; }\n')
    assert module.compile_kernels(tmp_path / "csrc" / "kernels.cpp", target)
    with pytest.warns(UserWarning, match="other sources"):
        assert find() is None, "a library that does not name its sources"


def test_the_library_of_the_processor_is_chosen_when_it_is_loaded(tmp_path, monkeypatch):
    loaded = []

    class Library:
        runs_v3 = True

        def __init__(self, path):
            loaded.append(Path(path).name)
            self.vmg_sources = lambda: b"a digest"
            self.vmg_runs_v3 = lambda: Library.runs_v3
            self.vmg_normals = lambda *arguments: 0

    monkeypatch.delenv("VMG_NATIVE", raising=False)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    monkeypatch.setattr(library.ctypes, "CDLL", Library)
    monkeypatch.setattr(library, "_digest", lambda sources: "a digest")
    (tmp_path / library.LIBRARY).touch()
    find = library._library.__wrapped__
    assert find() is not None and loaded == [library.LIBRARY]
    (tmp_path / library.V3_LIBRARY).touch()
    find()
    assert loaded[1:] == [library.LIBRARY, library.V3_LIBRARY]
    monkeypatch.setattr(Library, "runs_v3", False)
    find()
    assert loaded[3:] == [library.LIBRARY]


def test_without_a_working_compiler_nothing_is_left_behind(tmp_path, monkeypatch):
    module = build_module()
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not module.compile_kernels(ROOT / module.SOURCE, tmp_path / library.LIBRARY)
    monkeypatch.setenv("CXX", f"{sys.executable} -c 'raise SystemExit(1)'")
    assert not module.compile_kernels(ROOT / module.SOURCE, tmp_path / library.LIBRARY)
    assert list(tmp_path.iterdir()) == []
