"""One difference between what a node's engine is and what its plan says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """One thing that is not as the plan says. `want` and `have` are texts for a person.

    Kinds: flag, environment, forbidden, image, container, mount, venv, file, unit, unknown.
    """

    kind: str
    name: str
    want: str
    have: str

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """One line, such as `max_model_len 200000, recipe says 131072`."""
        if self.kind in ("flag", "environment"):
            return f"{self.name} {self.have}, recipe says {self.want}"
        if self.kind == "forbidden":
            return f"{self.name}={self.have} is forbidden: {self.want}"
        return f"{self.kind} {self.name}: {self.have}, wanted {self.want}"
