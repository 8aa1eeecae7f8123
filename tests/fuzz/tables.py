"""Generated tables through the command line: exit 0, or 2 with one line; never a traceback."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os
import random
from pathlib import Path
from unittest import mock

import typer
from findings import Finding

from vmg.cli import app as cli

COMMANDS = typer.main.get_command(cli.app)  # built once: building takes as long as a small table

CELLS = (
    *("", " ", "NA", "?", "0", "1", "2", "3.5", "-1", "1e5", "1e307", "-1e308", "1e-310", "5e-324", "inf", "nan"),
    *("1,5", "1.234,5", "12 %", "$3", "yes", "no", "true", "a", "b", "a ", "é", "=1+1", "\x1b[31m", "<b>", "'", '"'),
    *("[1, 2]", "2020-01-31", "31/01/2020", "0001-01-01", "9999-12-31", "2020-01-31T10:00:00+02:00", "2020-13-45"),
    *("x" * 300, "0x10", "1_000", "٣", "−5", "\u202e", "1e400", "00012", "None", "-", "10:30", "2020"),
)
NAMES = (
    *("a", "b", "y", "id", "", " y ", "größe", "a,b", "=x", "\x1b[2J", "Unnamed: 0", "y: missing", "1", "date"),
    "A" * 200,
)


def _column(rng: random.Random, n: int) -> list[str]:
    kind = rng.randrange(7)
    if kind == 0:
        return [repr(rng.gauss(0, 10 ** rng.choice((0, 0, 3, 100, -100)))) for _ in range(n)]
    if kind == 1:
        return [str(rng.randrange(rng.choice((1, 2, 3, 50)))) for _ in range(n)]
    if kind == 2:
        return [rng.choice(("red", "green", "blue")) for _ in range(n)]
    if kind == 3:
        return [f"{rng.randrange(1, 9999):04d}-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}" for _ in range(n)]
    if kind == 4:
        few = rng.sample(CELLS, 3)
        return [rng.choice(few) for _ in range(n)]
    if kind == 5:
        return [rng.choice(CELLS) for _ in range(n)]
    strange, share = rng.choice(CELLS), rng.random() * 0.2
    return [strange if rng.random() < share else repr(rng.random()) for _ in range(n)]


def _target(rng: random.Random, n: int) -> list[str]:
    """A column that can be learnt, but for a few cells of it."""
    kind, share = rng.randrange(3), rng.choice((0.0, 0.0, 0.05))
    cells = [(repr(rng.gauss(0, 1)), str(rng.randrange(3)), rng.choice(("yes", "no")))[kind] for _ in range(n)]
    return [rng.choice(CELLS) if rng.random() < share else cell for cell in cells]


def make_table(rng: random.Random) -> tuple[bytes, list[str]]:
    """The bytes of a table, and its names."""
    n = rng.choice((0, 1, 4, 8, 20, 20, 40, 40))
    width = rng.choice((1, 2, 3, 5))
    names = ["y", *rng.sample(NAMES, width)] if rng.random() < 0.9 else rng.sample(NAMES, width)
    columns = [_column(rng, n) for _ in names]
    if rng.random() < 0.6:
        columns[0] = _target(rng, n)
    delimiter, ending = rng.choice(",,,;\t|"), rng.choice(("\n", "\n", "\r\n", "\r"))

    def quoted(cell: str) -> str:
        risky = any(character in cell for character in f'{delimiter}"\n\r')
        return '"' + cell.replace('"', '""') + '"' if risky and rng.random() < 0.95 else cell

    rows = [names, *map(list, zip(*columns, strict=True))]
    text = ending.join(delimiter.join(quoted(cell) for cell in row) for row in rows)
    data = text.encode(rng.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252")), errors="replace")
    if rng.random() < 0.15:
        data = _damage(rng, data)
    if rng.random() < 0.1:
        data = gzip.compress(data)
        if rng.random() < 0.5:
            data = _damage(rng, data)
    return data, names


def make_parquet(rng: random.Random) -> tuple[bytes, list[str]]:
    """The bytes of a Parquet table of odd types, sometimes damaged."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    n = rng.choice((0, 1, 8, 30, 30, 30))
    draws = np.random.default_rng(rng.randrange(2**32))
    whole = draws.integers(-(2**40), 2**40, n)
    made = {
        "float": lambda: pa.array(draws.normal(size=n)),
        "int": lambda: pa.array(whole % rng.choice((2, 5, 1000))),
        "text": lambda: pa.array([rng.choice(CELLS) for _ in range(n)]),
        "list": lambda: pa.array([[1, 2]] * n, type=pa.list_(pa.int64())),
        "struct": lambda: pa.array([{"a": 1}] * n, type=pa.struct([("a", pa.int64())])),
        "moment": lambda: pa.array(whole * 10**4, type=pa.timestamp("us", tz=rng.choice((None, "Europe/Paris")))),
        "day": lambda: pa.array((whole % 2_000_000).astype("int32"), type=pa.date32()),
        "bool": lambda: pa.array(whole % 2 == 0),
        "bytes": lambda: pa.array([bytes([k % 256]) for k in range(n)], type=pa.binary()),
        "nothing": lambda: pa.nulls(n),
        "decimal": lambda: pa.array(whole % 100).cast(pa.decimal128(25, 2)),
        "duration": lambda: pa.array(whole % 10**6, type=pa.duration("s")),
        "word": lambda: pa.array([("u", "v")[k % 2] for k in range(n)]).dictionary_encode(),
    }
    kinds = rng.sample(sorted(made), rng.choice((1, 2, 4)))
    if rng.random() < 0.6:
        kinds[0] = rng.choice(("float", "int", "bool", "word"))
    names = ["y", *[f"c{k}" for k in range(len(kinds) - 1)]]
    buffer = io.BytesIO()
    pq.write_table(pa.table({name: made[kind]() for name, kind in zip(names, kinds, strict=True)}), buffer)
    data = buffer.getvalue()
    return (_damage(rng, data) if rng.random() < 0.3 else data), names


def _damage(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(rng.choice((1, 3, 10))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed[: rng.randrange(1, len(changed) + 1)] if rng.random() < 0.3 else changed)


def table(rng: random.Random, folder: Path) -> str:
    """Fit to a table, and predict, score and report other rows of it or another table."""
    maker = make_parquet if rng.random() < 0.2 else make_table
    data, names = maker(rng)
    here = os.getcwd()
    os.chdir(folder)
    try:
        Path("t.csv").write_bytes(data)
        target = rng.choice([*names, *["y"] * 8]) or "y"
        quick = ["--max-iter", "1", "--hidden", "2"]
        task = rng.choice(("auto", "auto", "auto", "regression", "classification"))
        ways: dict[str, list[str]] = {"whole": [], "streamed": ["--stream"], "fleet": [f"--by={rng.choice(names)}"]}
        way = rng.choice(("whole", "whole", "streamed", "fleet"))
        if _command(["fit", "t.csv", f"--target={target}", *quick, "-o", "m.vmg", "--task", task, *ways[way]]):
            return f"{way}: refused"
        if rng.random() < 0.3:
            Path("t.csv").write_bytes(maker(rng)[0])
        if maker is make_parquet:  # text is no part of a dataset
            Path("parts").mkdir()
            for name in ("a", "b"):
                Path("parts", f"{name}.parquet").write_bytes(Path("t.csv").read_bytes())
            _command(["predict", "m.vmg", "parts", "-o", "scored/", "--jobs", "1"])
        written = rng.choice(("p.csv", "p.csv", "p.parquet", "-"))
        if _command(["predict", "m.vmg", "t.csv", "-o", written]) == 0 and written == "p.csv":
            _check_flags(Path(written))
        _command(["evaluate", "m.vmg", "t.csv", "--json"])
        if rng.random() < 0.3:
            _command(["update", "m.vmg", "t.csv", "-o", "new.vmg"])
        return f"{way}: fitted"
    finally:
        os.chdir(here)


def _check_flags(path: Path) -> None:
    """Refuse a predicted number that is not finite in a row without a flag."""
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            names = [name for name in row if name != "flags" and not row["flags"]]
            if any("_probability_" in name for name in names):
                names = names[1:]  # the first is a class, whose name may be anything, inf too
            numbers = [row[name] for name in names]
            if any(cell.strip().lower().lstrip("+-") in ("", "nan", "inf", "infinity") for cell in numbers):
                raise Finding(f"a number that is not finite, without a flag: {row}")


def _command(arguments: list[str]) -> int:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.object(cli, "app", COMMANDS):
        code = cli.run(arguments)
    said = err.getvalue()
    errors = [line for line in said.split("\n") if line.startswith("error: ")]
    if code not in (0, 2) or "Traceback" in said or (code == 2 and (len(errors) != 1 or not errors[0][7:].strip())):
        raise Finding(f"vmg {' '.join(arguments)!r} ended with {code} and said {said!r:.500}")
    if "\x1b" in said or ("-" not in arguments and "\x1b" in out.getvalue()):
        raise Finding(f"vmg {' '.join(arguments)!r} printed a control code: {said + out.getvalue()!r:.300}")
    return code
