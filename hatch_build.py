"""Build hook: compile ``src/vmg/fused/csrc`` where a C++ compiler is found, and install without it elsewhere.

A wheel runs on every machine of its platform: it has a library for any processor and, on x86-64, one for those with
AVX2; ``vmg.fused.library`` chooses when it is loaded. An editable install is for this machine alone. ``CXX`` names the
compiler and ``CXXFLAGS`` is appended.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/vmg/fused/csrc/kernels.cpp")
LIBRARY = "_kernels_base.so"  # as in vmg/fused/library.py
# -fopenmp-simd vectorises marked loops without any runtime library. The two -fno flags concern errno and traps, which
# nobody reads; NaN and infinity keep their meaning, which -ffast-math would take from them.
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fopenmp-simd", "-pthread"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math"]
NATIVE: list[list[str]] = [["-march=native"], ["-mcpu=native"], []]  # the first that the compiler accepts
V3_LIBRARY = "_kernels_v3.so"  # as in vmg/fused/library.py
V3 = [["-march=x86-64-v3"], ["-mavx2", "-mfma", "-mbmi", "-mbmi2"]]  # older compilers do not know the level by its name


def find_compiler() -> list[str] | None:
    """The command of a C++ compiler, or None."""
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command
    return None


def build_libraries(folder: Path, *, native: bool = False) -> list[Path]:
    """Compile ``csrc/kernels.cpp`` of a folder into that folder, for this machine or for all; the libraries made."""
    source, plain, v3 = folder / "csrc" / SOURCE.name, folder / LIBRARY, folder / V3_LIBRARY
    wanted = {plain: NATIVE if native else [[]]}
    if not native and platform.machine().lower() in ("x86_64", "amd64"):
        wanted[v3] = V3
    for library in (plain, v3):
        library.unlink(missing_ok=True)  # of an earlier build
    return [library for library, tunings in wanted.items() if compile_kernels(source, library, tunings)]


def compile_kernels(source: Path, target: Path, tunings: list[list[str]] = NATIVE) -> bool:
    """Compile ``source`` to the library ``target`` with the first of ``tunings`` that works; False if none does."""
    compiler = find_compiler()
    if compiler is None:
        return False
    extra = shlex.split(os.environ.get("CXXFLAGS", ""))
    sources = b"".join(path.read_bytes() for path in sorted(source.parent.glob("*.?pp")))
    digest = f'-DVMG_SOURCES="{hashlib.sha256(sources).hexdigest()}"'  # vmg/fused/library.py compares it
    partial = target.with_suffix(".partial")  # renamed when whole, so that no other process loads half a library
    for tuning in tunings:
        command = [*compiler, *FLAGS, digest, *tuning, *extra, str(source), "-o", str(partial)]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            partial.replace(target)
            return True
    partial.unlink(missing_ok=True)
    return False


class KernelBuildHook(BuildHookInterface):
    """Puts the compiled libraries beside their source; a wheel that holds them is for this platform only."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before hatchling collects the files."""
        if self.target_name != "wheel":  # a source distribution holds sources
            return
        libraries = build_libraries(Path(self.root, SOURCE).parents[1], native=version == "editable")
        if libraries:
            build_data["artifacts"] += [library.relative_to(self.root).as_posix() for library in libraries]
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform_tag()}"
        else:
            self.app.display_info("vmg: no working C++ compiler, installing without compiled kernels")


def _platform_tag() -> str:
    """The platform part of a wheel's name; the library needs no particular Python."""
    if sys.platform == "darwin":
        release = os.environ.get("MACOSX_DEPLOYMENT_TARGET") or platform.mac_ver()[0]
        major, minor = [*release.split("."), "0"][:2]
        return f"macosx_{major}_{0 if int(major) > 10 else minor}_{platform.machine()}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
