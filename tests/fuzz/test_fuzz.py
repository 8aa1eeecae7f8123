"""A short slice of the campaign of ``make fuzz``, always the same."""

from pathlib import Path

import pytest
import run

SLICE = {"mutated": 150, "forged": 150, "table": 25, "configuration": 10}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", SLICE)
def test_a_slice_of_the_campaign_finds_nothing(kind, tmp_path):
    for number in range(SLICE[kind]):
        assert run.run_case(kind, 0, number, tmp_path)


@pytest.mark.parametrize("number", range(3))
def test_kills_at_a_few_moments(number, tmp_path):
    assert run.run_case("kill", 0, number, tmp_path)


def test_a_campaign_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    seen = []

    def case(rng, folder):
        seen.append(rng.random())
        if len(seen) == 3:
            raise KeyboardInterrupt
        if len(seen) == 5:
            raise TypeError("of a kind that nobody expects")
        return "fine"

    monkeypatch.setitem(run.CASES, "mutated", case)
    with pytest.raises(KeyboardInterrupt):
        run.campaign(1, {"mutated": 6}, Path(tmp_path), 60)
    assert run.campaign(1, {"mutated": 6}, Path(tmp_path), 60) == 2  # the one that ended the process, and the error
    assert len(seen) == 6 and "mutated:4: TypeError" in capsys.readouterr().out
    assert run.campaign(1, {"mutated": 6}, Path(tmp_path), 60) == 2 and len(seen) == 6
