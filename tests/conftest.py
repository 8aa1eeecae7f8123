import os
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """Run a Python file as a program, but in this process, where PyTorch is loaded; gives standard output and error."""

    def run(path: Path, *options: object, folder: Path | None = None) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, options)])
        monkeypatch.syspath_prepend(str(path.parent))
        if folder is not None:
            monkeypatch.chdir(folder)
        threads = torch.get_num_threads()
        capsys.readouterr()
        try:
            runpy.run_path(str(path), run_name="__main__")
        finally:
            torch.set_num_threads(threads)
        return tuple(capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def pair() -> Iterator[Any]:
    """Two processes of one group."""
    from gloo import Pair

    processes = Pair()
    yield processes
    processes.close()


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that a test works in, on a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture
def vmg_command(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line; gives the exit code, standard output and standard error."""
    from vmg.cli.app import run

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Let new tensors have double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def perturb() -> Callable[..., nn.Module]:
    """Moves every parameter away from its start, in place and in float64, so that nothing is small by chance."""

    def move(module: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
        module.to(dtype)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.5 * torch.randn_like(parameter))
        return module

    return move


@pytest.fixture
def data_folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real data, as `VMG_DATA`; a test that asks for it is skipped where there is none."""
    shared = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("VMG_DATA") or shared / "data")
    if not (folder / "uci").is_dir():
        if os.environ.get("CI") == "true" and shared.is_dir():
            pytest.fail(f"no data at {folder}, though this is CI and {shared} exists")
        pytest.skip(f"no data at {folder}")
    monkeypatch.setenv("VMG_DATA", str(folder))
    return folder
