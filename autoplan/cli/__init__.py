"""The `autoplan` command line: its commands, and their shared options and errors."""
