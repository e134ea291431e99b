"""`python -m operations.door LOGIN`: prints the script that root runs on the host."""

from __future__ import annotations

import sys

from operations.door.script import script


def main(argv: list[str]) -> int:
    """Prints the script; gives the exit status: 2 after one line about a wrong command line."""
    try:
        (login,) = argv
        print(script(login), end="")
    except ValueError as error:
        said = str(error) if len(argv) == 1 else "name one login"
        print(f"usage: python -m operations.door LOGIN ({said})", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
