"""The commands: what each asks for, does and says.

A command imports what it needs when it runs, so that ``vmg --help`` waits for no library of numbers.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import vmg
from vmg.cli.bench import bench_command
from vmg.cli.output import print_error, print_json, print_scores, say, say_aside, visible
from vmg.cli.progress import LOG_POSTERIOR, TrainingBar, waiting

if TYPE_CHECKING:
    import pandas as pd

    from vmg.tables import TableModel
    from vmg.tables.target import Task

__all__ = ["app", "run"]

UsageError: Any = typer.BadParameter.__base__  # typer's own class or, in older versions, click's
UNEXPECTED, MISTAKE, INTERRUPTED = 1, 2, 130  # exit codes
TABLE, NETWORK, OUTPUT = "Your table", "Network and training", "Output"  # headings of the help

SCORE_MEANINGS = {
    "rmse": "root mean squared error, in the target's units",
    "r2": "share of the target's variance explained",
    "log_likelihood": "mean log density of the truth; higher is better",
    "crps": "continuous ranked probability score; lower is better",
    "coverage": "share of truths inside their intervals",
    "width": "mean width of the intervals",
    "accuracy": "share of rows whose likeliest class is right",
    "brier": "Brier score, 0 (best) to 2",
    "ece": "expected calibration error of the likeliest class",
}

app = typer.Typer(
    name="vmg",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Predictions from tables, with honest intervals: Bayesian neural networks that know what they do not know.",
    epilog="""Examples:
- `vmg demo`
- `vmg fit houses.csv --target price`
- `vmg evaluate houses.vmg test.csv`
- `vmg predict houses.vmg new.csv --out predictions.csv --coverage 0.95`
- `vmg report houses.vmg test.csv --out report.html`""",
)


app.command("bench", rich_help_panel="Speed", epilog="Example: `vmg bench step predict`")(bench_command)


class TaskChoice(str, Enum):
    """Values of --task."""

    auto = "auto"
    regression = "regression"
    classification = "classification"


def _hidden_sizes(text: str) -> tuple[int, ...] | str:
    if text == "auto":
        return text
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise typer.BadParameter(
            f"must be auto, or sizes of layers such as 50 or 50,50; got '{text}'", param_hint="--hidden"
        )
    return sizes


def _open_share(value: float) -> float:
    if not 0 < value < 1:
        raise typer.BadParameter(f"must be between 0 and 1, such as 0.9; got {value:g}")
    return value


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"vmg {vmg.__version__}")
        raise typer.Exit


DataArgument = Annotated[Path, typer.Argument(metavar="DATA", help="A table: CSV (also .gz) or Parquet.")]
ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="A model that `vmg fit` wrote.")]
CoverageOption = Annotated[
    float, typer.Option(metavar="SHARE", callback=_open_share, help="Probability that an interval holds the truth.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document and nothing else.", rich_help_panel=OUTPUT)
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.", rich_help_panel=OUTPUT)]
DebugOption = Annotated[
    bool,
    typer.Option("--debug", expose_value=False, help="Show the traceback of an error.", rich_help_panel=OUTPUT),
]


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before a command."""


@app.command(
    rich_help_panel=TABLE,
    epilog="Example: `vmg fit houses.csv --target price --conformal 0.2`",
)
def fit(
    data: DataArgument,
    target: Annotated[str, typer.Option("--target", "-t", metavar="COLUMN", help="The column to predict.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="MODEL", help="Where the model goes.", show_default="DATA's name, .vmg"),
    ] = None,
    task: Annotated[
        TaskChoice, typer.Option(metavar="TASK", help="What the target is: auto, regression or classification.")
    ] = TaskChoice.auto,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A column to leave out; may come several times.")
    ] = None,
    conformal: Annotated[
        float,
        typer.Option(
            metavar="SHARE", help="Set aside this share of rows to calibrate intervals, so that their coverage holds."
        ),
    ] = 0.0,
    members: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Networks in the ensemble.", show_default="auto", rich_help_panel=NETWORK
        ),
    ] = None,
    hidden: Annotated[
        str, typer.Option(metavar="N,...", help="Units of each hidden layer.", rich_help_panel=NETWORK)
    ] = "auto",
    max_iter: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Most training steps.",
            show_default="auto",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=2**32 - 1, help="Same seed and table, same model.", rich_help_panel=NETWORK
        ),
    ] = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Fit a model to a table and write it to a file.

    Numbers, texts, dates, booleans and missing cells are handled, and it says how. Whether the target asks for
    regression or classification is inferred from it.
    """
    from vmg.tables import TableModel, read_table
    from vmg.tables.phrases import count

    path = _check_output(Path(_stem(data) + ".vmg") if out is None else out, data)
    options: dict[str, Any] = {
        "n_members": "auto" if members is None else members,
        "hidden_layer_sizes": _hidden_sizes(hidden),
        "max_iter": "auto" if max_iter is None else max_iter,
        "random_state": seed,
    }
    silent = quiet or json
    frame, notes = read_table(data)
    if not silent:
        say(f"{data}: {count(len(frame), 'row')}, {count(frame.shape[1], 'column')}")
        for note in notes:
            _bullet(note)
    with TrainingBar("Training", quiet=quiet, terms=LOG_POSTERIOR) as bar:
        model = TableModel.fit(
            frame,
            target,
            task=None if task is TaskChoice.auto else cast("Task", task.value),
            exclude=exclude or (),
            conformal=conformal,
            options=options,
            callbacks=[bar],
            tell=None if silent else _bullet,
        )
    model.save(path)
    last = model.estimator.history_.last
    if json:
        summary = {
            "model": str(path),
            "target": model.target,
            "task": model.task,
            "rows": len(frame),
            "features": model.estimator.n_features_in_,
            "steps": last.step,
            "seconds": last.seconds,
            "log_posterior": last.elbo,
            "fit": last.expected_log_likelihood,
            "complexity": last.kl,
            "notes": [*notes, *model.notes],
        }
        print_json(summary)
    elif not quiet:
        say(f"Trained for {last.seconds:.1f} s, {last.step:,} steps; log posterior {last.elbo:.3f} a row.")
        say(f"Model written to {path}. Next: vmg evaluate {path} DATA, vmg predict {path} DATA --out FILE")


@app.command(
    rich_help_panel=TABLE,
    epilog="Example: `vmg predict houses.vmg new.csv --out predictions.csv --coverage 0.95`",
)
def predict(
    model: ModelArgument,
    data: DataArgument,
    out: Annotated[
        str,
        typer.Option("--out", "-o", metavar="FILE", help="CSV (also .gz) or Parquet, by its ending; - prints CSV."),
    ] = "-",
    coverage: CoverageOption = 0.9,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Predict the rows of a table, with intervals or probabilities.

    Numbers come with mean, std, interval, and the shares of noise (aleatoric) and ignorance (epistemic); classes with
    the probability of each, entropy and mutual information (ignorance).
    """
    from vmg.tables import write_table
    from vmg.tables.phrases import count

    path = None if out == "-" else _check_ending(_check_output(Path(out), model, data))
    fitted, frame = _load_both(model, data, quiet)
    with waiting("Predicting", quiet=quiet):
        predictions = fitted.predict_frame(frame, coverage)
    if path is not None:
        write_table(predictions, path)
    if json:
        rows = predictions.astype(object).to_dict(orient="records")
        print_json({"target": fitted.target, "task": fitted.task, "coverage": coverage, "rows": rows})
    elif path is None:
        from vmg.tables.files import csv_safe

        text = csv_safe(predictions).to_csv(index=False)
        sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    elif not quiet:
        say(f"{count(len(predictions), 'prediction')} written to {path}.")


@app.command(rich_help_panel=TABLE, epilog="Example: `vmg evaluate houses.vmg test.csv`")
def evaluate(
    model: ModelArgument,
    data: DataArgument,
    coverage: CoverageOption = 0.9,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Score a model on rows whose target is known; use rows that it was not fitted to."""
    from vmg.tables.phrases import count

    fitted, frame = _load_both(model, data, quiet=json)
    with waiting("Scoring"):
        scores = fitted.evaluate(frame, coverage)
    if json:
        print_json({"target": fitted.target, "task": fitted.task, **scores, "stated_coverage": coverage})
        return
    rows = int(scores.pop("rows"))
    meanings = SCORE_MEANINGS | {"coverage": f"share of truths inside their {coverage:.0%} intervals"}
    print_scores(f"{fitted.task} of '{fitted.target}' on {count(rows, 'row')}", scores, meanings)


@app.command(rich_help_panel=TABLE, epilog="Example: `vmg report houses.vmg test.csv --out report.html`")
def report(
    model: ModelArgument,
    data: DataArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where the page goes.")] = Path(
        "report.html"
    ),
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Write one self-contained HTML page about a model and the rows of a table."""
    from vmg.report import write_report

    path = _check_output(out, model, data)
    fitted, frame = _load_both(model, data, quiet)
    with waiting("Writing the report", quiet=quiet):
        write_report(fitted, frame, path)
    if not quiet:
        say(f"Report written to {path}.")


@app.command(rich_help_panel="A first look")
def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the figure and the model go.")
    ] = Path("demo"),
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Fit the toy problem of the paper's Figure 1 and scikit-learn's diabetes table; some seconds."""
    from vmg.cli.demo import run_demo

    run_demo(out, quiet=quiet)


@app.command(
    rich_help_panel="The paper",
    add_help_option=False,  # the experiments have help of their own
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def reproduce(context: typer.Context) -> None:
    """Run the paper's experiments and print its figures beside ours."""
    from vmg_paper.cli import reproduce as experiments

    if code := experiments(list(context.args), prog_name="vmg reproduce", standalone_mode=False):
        raise typer.Exit(code)


# -- small things the commands share ----------------------------------------------------------------------------------


def _bullet(note: str) -> None:
    say(f"  - {note}")


def _stem(data: Path) -> str:
    """houses.csv.gz -> houses."""
    return data.name.removesuffix(".gz").rsplit(".", 1)[0]


def _check_output(path: Path, *inputs: Path) -> Path:
    """Say what is wrong with an output path before the long work, not after."""
    from vmg.atomic_files import check_output, same_file

    try:
        check_output(path)
    except OSError as error:
        raise typer.BadParameter(f"cannot be {path}: {error.strerror}", param_hint="--out") from error
    if not path.parent.is_dir():
        raise typer.BadParameter(f"must be in a folder that exists; there is no {path.parent}", param_hint="--out")
    for source in inputs:
        if same_file(path, source):
            raise typer.BadParameter(f"must not be what is read; got {path}, which is {source}", param_hint="--out")
    return path


def _check_ending(path: Path) -> Path:
    endings = (".csv", ".csv.gz", ".parquet", ".pq")
    if not path.name.lower().endswith(endings):
        raise typer.BadParameter(f"must end in {', '.join(endings)}; got {path.name}", param_hint="--out")
    return path


def _load_both(path: Path, data: Path, quiet: bool) -> tuple[TableModel, pd.DataFrame]:
    """The model and the table, with remarks on how they fit together on standard error."""
    from vmg.persistence import ModelFileError
    from vmg.tables import TableModel, read_table

    model = vmg.load(path)
    if not isinstance(model, TableModel):
        raise ModelFileError(
            f"{path} holds a {type(model).__name__} without a table's columns; use vmg.load in Python, or vmg fit"
        )
    frame, notes = read_table(data)
    model.encoder.check(frame)
    if not quiet:
        for note in [*notes, *model.encoder.remarks(frame, model.target)]:
            say_aside(note)
    return model, frame


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code: 0, 2 for a user's mistake, 1 for the unexpected, 130 for Ctrl-C."""
    try:
        code = app(list(arguments) or ["--help"], prog_name="vmg", standalone_mode=False)
        sys.stdout.flush()  # a full disk behind it is an error of this command, not of Python's end
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:  # whoever read has gone, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNEXPECTED
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        message, code = _explain(error)
        if message:  # a group of commands without one has shown its help already
            print_error(message)
        return code
    if code == INTERRUPTED:  # newer versions of typer turn Ctrl-C into this code themselves
        print_error("interrupted")
    return code or 0


def _explain(error: Exception) -> tuple[str, int]:
    """One line about an error, and the exit code."""
    if isinstance(error, UsageError):
        return error.format_message(), MISTAKE
    if isinstance(error, OSError):
        place = "" if error.filename is None else f"{error.filename}: "
        return f"{place}{error.strerror or error}", MISTAKE
    if isinstance(error, ModuleNotFoundError):
        return f"this needs the package {error.name}; install it with: pip install 'vmg[app]'", MISTAKE
    from vmg.persistence import ModelFileError
    from vmg.prediction.conformal import CoverageError  # these at last: a mistyped option needs no PyTorch
    from vmg.tables import TableError

    if isinstance(error, TableError | ModelFileError | CoverageError):
        return str(error), MISTAKE
    return f"{type(error).__name__}: {error} (add --debug for the traceback)", UNEXPECTED
