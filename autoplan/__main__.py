"""`python -m autoplan`: the same as the `autoplan` command."""

from autoplan.cli.commands import main

if __name__ == "__main__":
    main()
