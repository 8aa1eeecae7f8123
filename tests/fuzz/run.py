"""A campaign: so many cases of each kind from one seed, going on where it was stopped.

    python tests/fuzz/run.py --seed 1                                   # ten minutes, as ``make fuzz``
    python tests/fuzz/run.py --seed 1 --whole --seconds 7200 --record results/fuzz.jsonl    # a whole campaign

A case is determined by the seed, its kind and its number; ``--only mutated:17`` runs one with its traceback. All kinds
go on together: each case is of the kind that is farthest from its end. The state is in ``build/fuzz``. Cases run in a
process of their own: one that ends it, or that hangs so deep in a library that no signal reaches it, is counted, and
the campaign goes on with the next. ``--record`` appends the counts to a file of results.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from configurations import configuration
from findings import MEMORY_LIMIT, TIME_LIMIT, WAIT_LIMIT, Finding, Hang, memory_in_use
from kills import kill
from model_files import forged, mutated

from tables import table
from vmg.cli.output import visible
from vmg.files import append_lines, read_lines
from vmg_paper.experiments.results_file import Record

Case = Callable[[random.Random, Path], str]
CASES: dict[str, Case] = {f.__name__: f for f in (mutated, forged, table, configuration, kill)}
DEFAULT = {"mutated": 8000, "forged": 4000, "table": 2000, "configuration": 400, "kill": 60}  # about ten minutes
WHOLE = {"mutated": 20_000, "forged": 10_000, "table": 10_000, "configuration": 1_000, "kill": 500}
FOUND = 3  # exit code of a campaign at its end that has findings; one that was ended has others
LAST_RESORT = 1.2 * WAIT_LIMIT  # seconds after which a process that heeds no signal is ended


def run_case(kind: str, seed: int, number: int, folder: Path) -> str:
    """The outcome of one case; a Finding where it is none that may be."""

    def stop(*_: object) -> None:
        raise Hang

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, TIME_LIMIT), signal.SIGALRM: (signal.ITIMER_REAL, WAIT_LIMIT)}
    before = {signum: signal.signal(signum, stop) for signum in timers}
    for timer, limit in timers.values():
        signal.setitimer(timer, limit)
    faulthandler.dump_traceback_later(LAST_RESORT, exit=True, file=sys.__stderr__)
    try:
        for path in folder.iterdir():  # of the case before
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return CASES[kind](random.Random(f"{seed}:{kind}:{number}"), folder)
    except Finding:
        raise
    except Hang as error:
        raise Finding(f"it computed for more than {TIME_LIMIT:g} s or waited for {WAIT_LIMIT:g}") from error
    except Exception as error:
        raise Finding(f"{type(error).__name__}: {error}") from error
    finally:
        faulthandler.cancel_dump_traceback_later()
        for signum, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(signum, before[signum])


def limit_memory() -> None:
    """Let this process have a gibibyte more than it has now."""
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (memory_in_use() + MEMORY_LIMIT, most))


def campaign(seed: int, cases: dict[str, int], state: Path, seconds: float) -> list[Record]:
    """Run what is left of a campaign; the counts of each kind so far."""
    state.mkdir(parents=True, exist_ok=True)
    log, current = state / f"{seed}.jsonl", state / f"{seed}.current"
    lines = read_lines(log)
    done = Counter(dict.fromkeys(cases, 0)) + Counter(line["kind"] for line in lines)
    end = time.monotonic() + seconds
    with log.open("a", buffering=1) as file, tempfile.TemporaryDirectory() as folder:

        def note(kind: str, number: int, outcome: str, **more: object) -> None:
            line = {"kind": kind, "number": number, "outcome": outcome, **more}
            file.write(json.dumps(line) + "\n")
            lines.append(line)
            done[kind] = number + 1

        if current.exists() and current.read_text():
            kind, number = json.loads(current.read_text())
            if number >= done[kind]:
                note(kind, number, "FINDING", what="the process ended, or hung until it was ended")
        while time.monotonic() < end and (
            left := {kind: done[kind] / n for kind, n in cases.items() if done[kind] < n}
        ):
            kind = min(left, key=lambda name: left[name])
            number = done[kind]
            current.write_text(json.dumps([kind, number]))
            started = time.process_time()
            try:
                outcome, more = run_case(kind, seed, number, Path(folder)), {}
            except Finding as finding:
                outcome, more = "FINDING", {"what": str(finding)}
                print(visible(f"{kind}:{number}: {finding}"), flush=True)
            note(kind, number, outcome, seconds=round(time.process_time() - started, 3), **more)
        current.write_text("")
    return counts(seed, lines)


def supervise(arguments: list[str], seconds: float) -> int:
    """Run the campaign in a process of its own, and again after a case has ended it; the exit code of the last."""
    end = time.monotonic() + seconds
    while True:
        left = str(max(1.0, end - time.monotonic()))
        command = [sys.executable, __file__, *arguments, "--worker", "--seconds", left]
        code = subprocess.run(command, check=False).returncode
        if code in (0, 2, FOUND, -signal.SIGINT) or time.monotonic() > end:
            return 1 if code == FOUND else code


def counts(seed: int, lines: list[Record]) -> list[Record]:
    """One record for each kind: cases, outcomes, findings, and the longest time of computing."""
    found = []
    for kind in dict.fromkeys(line["kind"] for line in lines):
        own = [line for line in lines if line["kind"] == kind]
        outcomes = Counter(line["outcome"] for line in own)
        wrong = [line for line in own if line["outcome"] == "FINDING"]
        findings = [f"{kind}:{line['number']}: {line.get('what', ''):.100}" for line in wrong]
        slowest = max(line.get("seconds", 0.0) for line in own)
        record = {"seed": seed, "kind": kind, "cases": len(own), "findings": findings}
        found.append({**record, "outcomes": dict(sorted(outcomes.items())), "slowest_seconds": slowest})
    return found


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after this time; a next start goes on")
    parser.add_argument("--whole", action="store_true", help=f"as many cases as {WHOLE}")
    parser.add_argument("--record", type=Path, help="a file of results to append the counts to")
    parser.add_argument("--cases", nargs="*", default=[], metavar="KIND=N", help=f"of {', '.join(CASES)}")
    parser.add_argument("--only", metavar="KIND:NUMBER", help="one case, with its traceback")
    parser.add_argument("--state", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        kind, number = options.only.split(":")
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(run_case(kind, options.seed, int(number), Path(folder)))
            except Finding:
                traceback.print_exc()
                return 1
        return 0
    if not options.worker:
        return supervise(sys.argv[1:], options.seconds)
    cases = {kind: int(n) for kind, _, n in (part.partition("=") for part in options.cases)}
    cases = cases or (WHOLE if options.whole else DEFAULT)
    for kind in cases:
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Finding):
            run_case(kind, options.seed, 0, Path(folder))  # imports what it needs before memory is limited
    limit_memory()
    found = campaign(options.seed, cases, options.state, options.seconds)
    for record in found:
        record["peak_gigabytes"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 3)
        for outcome, n in record["outcomes"].items():
            print(f"{record['kind']:14} {outcome:24} {n:7}")
    print("\n".join(visible(finding) for record in found for finding in record["findings"]))
    if options.record is not None:
        append_lines(options.record, found)
    return FOUND if any(record["findings"] for record in found) else 0


if __name__ == "__main__":
    sys.exit(main())
