"""``python -m pystate``: the command line."""

from pystate.cli.program import main

if __name__ == "__main__":
    main()
