"""``python -m vmg``, which ``torchrun -m vmg`` starts in every process."""

from vmg.cli import main

if __name__ == "__main__":
    main()
