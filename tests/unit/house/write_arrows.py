"""Prints tests/unit/house/arrows.py as the code is now: read the difference before you keep it.

`python -m tests.unit.house.write_arrows > tests/unit/house/arrows.py`
"""

from __future__ import annotations

from tests.unit.house.import_graph import PARTS, package_arrows

HEAD = '''"""Which package may import from which, inside each layer: what the import test holds.

A new arrow is a decision: it goes here by hand, with the change that needs it.
"""

from __future__ import annotations

ALLOWED: dict[str, dict[str, set[str]]] = {'''


def main() -> None:
    """Prints the table."""
    print(HEAD)
    for part in PARTS:
        print(f'    "{part}": {{')
        for package, targets in sorted(package_arrows(part).items()):
            if targets:
                print(f'        "{package}": {{{", ".join(repr(t) for t in sorted(targets))}}},')
        print("    },")
    print("}")


if __name__ == "__main__":
    main()
