"""Runs the `autoplan` command for `python -m autoplan`."""

from autoplan.cli.commands import main

if __name__ == "__main__":
    main()
