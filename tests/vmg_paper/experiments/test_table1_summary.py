import json
from pathlib import Path

import pytest

from vmg_paper.experiments import results_file
from vmg_paper.experiments.published import BEST, BEST_ONE_LAYER, PAPER_BASELINES, PAPER_TABLE1
from vmg_paper.experiments.table1_methods import TABLE_METHODS
from vmg_paper.experiments.table1_summary import HEADER, render, summarise


def line(split, rmse, log_likelihood):
    key = {"experiment": "table1", "method": "vmg", "dataset": "yacht", "split": split}
    scores = {"rmse": rmse, "log_likelihood": log_likelihood, "coverage_90": 0.9, "interval_width_90": 1.0}
    return {**key, **scores, "crps": 0.1, "seconds": 2.0}


def test_means_and_standard_errors():
    [row] = summarise([line(0, 0.5, -1.0), line(1, 0.7, -2.0)])
    assert row["splits"] == 2
    assert row["rmse"] == pytest.approx(0.6)
    assert row["rmse_error"] == pytest.approx(0.1)  # the standard deviation is √0.02, over √2
    assert row["log_likelihood_error"] == pytest.approx(0.5)


def test_other_experiments_are_left_out():
    assert summarise([{"experiment": "table2"}]) == []


def test_each_figure_of_others_is_marked_by_how_ours_compares():
    """Yacht: the paper has 0.71 and -1.30, the best with one layer 0.67 and -0.47, the best of all 0.56 and -0.46."""
    text = render(summarise([line(0, 0.60, -0.50)]), "markdown").splitlines()
    assert text[0].count("|") == text[2].count("|") == len(HEADER) + 1
    cells = [cell.strip() for cell in text[2].strip("|").split("|")]
    assert cells[4:7] == ["0.71 +", "0.67 +", "0.56 −"]
    assert cells[8:11] == ["-1.30 +", "-0.47 −", "-0.46 −"]


def test_a_baseline_stands_beside_the_papers_own_figure_for_it():
    """PBP has 1.02 and -1.63 on yacht in the paper's table."""
    text = render(summarise([line(0, 1.01, -1.64) | {"method": "pbp"}]), "markdown").splitlines()[2]
    cells = [cell.strip() for cell in text.strip("|").split("|")]
    assert (cells[4], cells[8]) == ("1.02 +", "-1.63 −")
    assert all(table.keys() == PAPER_TABLE1.keys() for table in PAPER_BASELINES.values())


def test_equal_as_printed_counts_as_reached():
    cells = render(summarise([line(0, 0.7149, -1.3049)]), "markdown").splitlines()[2].split("|")
    assert [cells[5].strip(), cells[9].strip()] == ["0.71 +", "-1.30 +"]


def test_formats():
    summary = summarise([line(0, 0.6, -1.0)])
    assert json.loads(render(summary, "json")) == summary
    latex = render(summary, "latex")
    assert latex.startswith(r"\begin{tabular}")
    assert latex.splitlines()[1].endswith(r"\\")
    assert not set("%±−") & set(latex.replace(r"\%", ""))
    with pytest.raises(ValueError, match="format must be one of"):
        render(summary, "html")


def test_the_best_of_all_is_no_worse_than_the_best_with_one_layer():
    assert BEST.keys() == BEST_ONE_LAYER.keys() == PAPER_TABLE1.keys()
    for name, (rmse, log_likelihood) in BEST.items():
        assert rmse.mean <= BEST_ONE_LAYER[name][0].mean
        assert log_likelihood.mean >= BEST_ONE_LAYER[name][1].mean


def test_the_page_shows_what_the_results_file_holds():
    root = Path(__file__).parents[3]
    page = (root / "docs" / "table1.md").read_text(encoding="utf-8")
    summary = summarise(results_file.read(root / "results" / "table1.jsonl"))
    assert {row["method"] for row in summary} <= set(TABLE_METHODS)
    for row in render(summary, "markdown").splitlines()[2:]:
        assert row in page
