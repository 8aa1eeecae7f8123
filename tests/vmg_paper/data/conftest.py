import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder, the only place to look in: `VMG_DATA` is not set."""
    folder = tmp_path / "cache"
    monkeypatch.delenv("VMG_DATA", raising=False)
    for module in ("download", "year", "tables"):
        monkeypatch.setattr(f"vmg_paper.data.{module}.cache_folder", lambda: folder)
    return folder


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a web server on this machine, and the folder whose files it serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder)) as http_server:
        thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http_server.server_port}", folder
        http_server.shutdown()
        thread.join()


@pytest.fixture
def no_pooch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if pooch were not installed."""
    monkeypatch.setitem(sys.modules, "pooch", None)
