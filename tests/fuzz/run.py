"""A campaign: so many cases of each kind from one seed, going on where it was stopped.

    python tests/fuzz/run.py --seed 1 --cases mutated=20000 forged=10000 table=10000 configuration=1000 kill=500

A case is determined by the seed, its kind and its number; ``--only mutated:17`` runs one with its traceback. The state
is in ``build/fuzz``. A case that ends the process is found there by the next start and counted.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from configurations import configuration
from findings import Finding, Hang
from kills import kill
from model_files import forged, mutated

from tables import table
from vmg.cli.output import visible

Case = Callable[[random.Random, Path], str]
CASES: dict[str, Case] = {f.__name__: f for f in (mutated, forged, table, configuration, kill)}
DEFAULT = {"mutated": 4000, "forged": 2000, "table": 400, "configuration": 100, "kill": 20}  # about ten minutes
TIME_LIMIT = 20.0  # of computing, which other programs on the machine do not lengthen
WAIT_LIMIT = 600.0
MEMORY_LIMIT = 2**30  # beyond what the libraries take


def run_case(kind: str, seed: int, number: int, folder: Path) -> str:
    """The outcome of one case; a Finding where it is none that may be."""

    def stop(*_: object) -> None:
        raise Hang

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, TIME_LIMIT), signal.SIGALRM: (signal.ITIMER_REAL, WAIT_LIMIT)}
    before = {signum: signal.signal(signum, stop) for signum in timers}
    for timer, limit in timers.values():
        signal.setitimer(timer, limit)
    try:
        return CASES[kind](random.Random(f"{seed}:{kind}:{number}"), folder)
    except Finding:
        raise
    except Hang as error:
        raise Finding(f"it computed for more than {TIME_LIMIT:g} s or waited for {WAIT_LIMIT:g}") from error
    except Exception as error:
        raise Finding(f"{type(error).__name__}: {error}") from error
    finally:
        for signum, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(signum, before[signum])


def limit_memory() -> None:
    """Let this process have a gibibyte more than it has now."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_LIMIT, resource.RLIM_INFINITY))


def campaign(seed: int, cases: dict[str, int], state: Path, seconds: float) -> int:
    """Run what is left of a campaign; the number of findings."""
    state.mkdir(parents=True, exist_ok=True)
    log, current = state / f"{seed}.jsonl", state / f"{seed}.current"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = Counter({line["kind"]: line["number"] + 1 for line in lines})
    outcomes = Counter((line["kind"], line["outcome"]) for line in lines)
    end = time.monotonic() + seconds
    with log.open("a", buffering=1) as file, tempfile.TemporaryDirectory() as folder:

        def note(kind: str, number: int, outcome: str, **more: object) -> None:
            file.write(json.dumps({"kind": kind, "number": number, "outcome": outcome, **more}) + "\n")
            outcomes[kind, outcome] += 1
            done[kind] = number + 1

        if current.exists() and current.read_text():
            kind, number = json.loads(current.read_text())
            if number >= done[kind]:
                note(kind, number, "FINDING", what="the process ended")
        for kind, count in cases.items():
            while done[kind] < count and time.monotonic() < end:
                number = done[kind]
                current.write_text(json.dumps([kind, number]))
                try:
                    note(kind, number, run_case(kind, seed, number, Path(folder)))
                except Finding as finding:
                    note(kind, number, "FINDING", what=str(finding))
                    print(visible(f"{kind}:{number}: {finding}"), flush=True)
        current.write_text("")
    for (kind, outcome), n in sorted(outcomes.items()):
        print(f"{kind:14} {outcome:20} {n:7}")
    return sum(n for (_, outcome), n in outcomes.items() if outcome == "FINDING")


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after this time; a next start goes on")
    parser.add_argument("--cases", nargs="*", default=[], metavar="KIND=N", help=f"of {', '.join(CASES)}")
    parser.add_argument("--only", metavar="KIND:NUMBER", help="one case, with its traceback")
    parser.add_argument("--state", type=Path, default=Path("build/fuzz"))
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
    cases = {kind: int(n) for kind, _, n in (part.partition("=") for part in options.cases)} or DEFAULT
    for kind in cases:
        if kind != "kill":
            run_case(kind, options.seed, 0, Path(tempfile.mkdtemp()))  # imports what it needs before memory is limited
    limit_memory()
    return 1 if campaign(options.seed, cases, options.state, options.seconds) else 0


if __name__ == "__main__":
    sys.exit(main())
