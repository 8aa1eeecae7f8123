"""What an import or a command loads: nothing that it does not need."""

import subprocess
import sys

import pytest

import vmg

COMMAND = "sys.argv = ['vmg', {!r}]\nfrom vmg.__main__ import main\ntry:\n    main()\nexcept SystemExit:\n    pass"
HEAVY = {"torch", "numpy", "pandas", "sklearn", "scipy", "pyarrow", "matplotlib"}


def loaded(code):
    """Top-level packages that a new interpreter has loaded once it has run some code."""
    code += "\nprint('LOADED', *{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", f"import sys\n{code}"], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("LOADED")[2].split())


@pytest.mark.parametrize("option", ["--version", "--help", "fitt"])
def test_questions_about_the_command_load_no_library_of_numbers(option):
    found = loaded(COMMAND.format(option))
    assert "vmg" in found and not found & (HEAVY | {"vmg_paper"})


def test_the_package_itself_loads_nothing():
    assert not loaded("import vmg\nvmg.__version__\ndir(vmg)") & (HEAVY | {"vmg_paper", "typer", "rich"})


def test_layers_load_torch_alone():
    found = loaded("import vmg.nn\nimport vmg\nvmg.nn.MLP\nvmg.elbo\nvmg.MatrixNormal")
    assert "torch" in found and not found & {"pandas", "sklearn", "scipy", "pyarrow", "matplotlib", "vmg_paper"}


def test_the_product_never_loads_the_experiments():
    assert "vmg_paper" not in loaded("from vmg import TableRegressor\nimport vmg\nvmg.load\nimport vmg.tables")


def test_every_public_name_is_there_and_listed():
    for name in vmg.__all__:
        assert getattr(vmg, name) is getattr(vmg, name)
    assert set(vmg.__all__) <= set(dir(vmg))
    with pytest.raises(AttributeError, match="module 'vmg' has no attribute 'nothing'"):
        vmg.nothing  # noqa: B018
