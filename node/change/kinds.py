"""The kinds of journalled steps: each a class (node/change/kinds.py), loaded when it is met."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from node.change import journal
from node.change.journal import DONE, INTENT, UNDONE, UNKNOWN, subject
from node.core import validate
from node.core.errors import CannotRead, Json, NodeError, OtherProgram, io_reason

# What every kind of journalled step is: one class, the same verbs (docs/adr/0018).
#
# It lies in core because systemd's own step is a kind, and apply asks systemd's rules.

# the order in which an undo takes them: unit is stopped before the others and started after them
UNIT, TAG, PATH, SPECIAL = "unit", "tag", "path", "special"
PHASES = (TAG, PATH, SPECIAL)


class Steps:
    """The steps of a change, and how they are written to the disk."""

    def __init__(self, change: Json, write: Callable[[], None]) -> None:
        self.change = change
        self.write = write
        # an earlier step of this very call changed something
        self.changed_before = False

    @property
    def rows(self) -> list[Json]:
        """Gives the recorded steps, oldest first."""
        rows: list[Json] = self.change["steps"]
        return rows

    def finish(self, entry: Json, state: str = DONE, **more: object) -> None:
        """Write what became of an announced step."""
        entry.update(state=state, **more)
        self.write()


class Seen:
    """What the steps of one plan or undo find, one after the other, without anything being done."""

    def __init__(self, overwrite: list[str] | None = None) -> None:
        # path to description, as the steps looked at so far leave it
        self.now: dict[str, Json] = {}
        self.made: set[str] = set()
        self.moved: list[str] = []
        self.overwrite = overwrite or []
        self.changed_before = False


def differing(about: str, now: object, wanted: object) -> list[str]:
    """Gives the line of a verify: none when the thing is as wanted."""
    return [] if now == wanted else [f"{about} is {now}, not {wanted}"]


# what a step found, and what it left: the two things that it can be compared with
PRE, POST = "pre", "post"


class Kind:
    """One kind of step. `op` is its name in a request and in the journal.

    `step` is a parsed row of a request, `entry` a row of the journal.
    """

    # what a request may and must hold beside `op`; none: only other verbs write this kind
    keys: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    # when an undo takes it (PHASES)
    phase = SPECIAL
    # undo passes it over, and close does not wait for it
    irreversible = False
    # nothing of it lasts: where a kill cut it short, its change may be COMMITTED all the same
    passing = False
    # planning only reads and is cheap: done for all such steps before the first one changes a thing
    plans_ahead = False
    # a call that fails takes it back at once; else the change stays OPEN
    taken_back = True
    # what lies below its path goes away with it
    moves = False
    # keys of the entry that the answer of apply repeats
    told: tuple[str, ...] = ()

    def __init__(self, op: str) -> None:
        self.op = op

    def parse(self, step: Json, where: str) -> Json:
        """Gives the step with every value checked. Raises NodeError (`bad_request`)."""
        raise NodeError(f"{where}.op: {self.op!r} is not asked for in a request", "bad_request")

    def plan(self, step: Json, seen: Seen) -> tuple[bool, str]:
        """Gives whether the step would change something, and what in words; changes nothing."""
        raise NotImplementedError(self.op)

    def do(self, step: Json, steps: Steps) -> tuple[bool, str]:
        """Do it, announced before and finished after; gives whether it changed something, and what.

        Raises NodeError and OSError; what is announced then is taken back or stays for an undo.
        """
        raise NotImplementedError(self.op)

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """Gives the state of a step that a kill left announced, and finishes what it can.

        May append steps to `rows`. kinds.recover makes "unknown" of what it raises.
        """
        return UNKNOWN

    def conflicts(self, entry: Json, seen: Seen) -> bool:
        """Gives whether the thing was edited after the step. Raises NodeError when there is no way
        back. Reads only, steps newest first: `seen` is what the newer ones' undo leaves.
        """
        return False

    def revert(self, entry: Json, overwrite: bool) -> str:
        """Put back what the step found; gives what was done in words. A later edit is kept unless
        `overwrite`. Raises NodeError, CannotRead and OSError; once more is always allowed.
        """
        raise NotImplementedError(self.op)

    def discard(self, entry: Json) -> None:
        """Remove what a step that was taken back leaves behind, where its row goes too."""

    def describe(self, entry: Json) -> str:
        """Gives the step in words; the state is not in them."""
        about = subject(entry)
        return self.op if about == self.op else f"{self.op} {about}"

    def passed_over(self, entry: Json) -> str:
        """Gives what an undo says of an irreversible step."""
        return f"cannot be undone and is passed over ({entry['state']})"

    def verify(self, entry: Json, side: str) -> list[str]:
        """Gives the lines in which the thing now differs from what the entry recorded.

        `side` is PRE (what the step found) or POST (what it left). Reads only; raises
        NodeError, CannotRead and OSError where it cannot be read. Of a step that cannot be undone
        the lines of PRE say what of it stays.
        """
        return []

    def unknown(self, entry: Json) -> str | None:
        """Gives what of a row another version wrote and this one does not know, or None. Raises
        nothing: the row may be damaged.
        """
        return None

    def about(self, entry: Json) -> str:
        """Gives what the step is about: of two about the same thing the older one tells what was
        before them."""
        return f"{self.op} {subject(entry)}"

    def folded(self, rows: list[Json], side: str) -> Json:
        """Gives the one entry that tells the PRE or POST of all these, oldest first."""
        return rows[0 if side == PRE else -1]

    def leave(self, entry: Json, words: str) -> str:
        """Note that an undo leaves what somebody did later, and has nothing to compare it with."""
        entry["left"] = words
        return words

    def quiesce(self, rows: list[Json]) -> list[str]:
        """Stop one unit before files go back (phase UNIT); `rows` newest first; gives the commands
        that ran."""
        return []

    def resume(self, rows: list[Json], start: bool) -> tuple[list[str], bool]:
        """Bring that unit back to what it was; gives the commands that ran, and whether it is still
        to be started (`start` False)."""
        return [], False

    def announce(self, entry: Json, steps: Steps) -> Json:
        """Write an entry before anything of it is done; the words that its kind has for it stay in
        it, because the snapshot tells the journal without the kinds.
        """
        entry.setdefault("state", INTENT)
        words = self.describe(entry)
        if words != Kind.describe(self, entry):
            entry["words"] = words
        steps.rows.append(entry)
        steps.write()
        return entry

    def record(self, steps: Steps, **entry: Any) -> Json:
        """Announce a new entry of this kind."""
        return self.announce({"op": self.op, **entry}, steps)


# The kinds that cannot be undone (reap, shm, caches): told, and passed over.
#
# They took what was proven to be nobody's (orphans, unmapped segments), or what comes back by
# itself
# (the page cache). So is node/kube/deployment_step.py, whose pods last.


class Irreversible(Kind):
    """What was ended, removed or begun stays so; whoever runs the verb again finishes it."""

    irreversible = True
    passing = True
    taken_back = False

    def about(self, entry: Json) -> str:
        """Each step is about something of its own."""
        return f"{self.op} {id(entry)}"

    def recover(self, entry: Json, rows: list[Json]) -> str:
        """The verb itself takes its announced step up again."""
        return str(entry["state"])


_FILE = "node.change.apply:FileKind"
_PASSED = "node.change.kinds:Irreversible"
# a new kind is one row here and one file
KINDS: dict[str, str] = {
    "file": _FILE,
    "absent": _FILE,
    "directory": _FILE,
    "unit": "node.change.unit_step:UnitKind",
    "link": "node.change.tree_step:LinkKind",
    "tree": "node.change.tree_step:TreeKind",
    "kube": "node.kube.deployment_step:DeploymentKind",
    "grub": "node.kernel.grub_step:GrubKind",
    "hold": "node.kernel.grub_step:AptHoldKind",
    "packages": "node.kernel.packages_step:PackagesKind",
    "wol": "node.change.host_step:WolKind",
    "sysctl": "node.change.host_step:SysctlKind",
    "reread": "node.change.host_step:RereadKind",
    "crontab": "node.adopt:CrontabKind",
    "restart_policy": "node.adopt:RestartPolicyKind",
    "container": "node.adopt:ContainerKind",
    "former_engine": "node.adopt:EngineKind",
    # these are written by other verbs than apply
    "work": "node.change.tree_step:WorkFolderKind",
    "tag": "node.docker.load:TagKind",
    "tool": "node.venv.patch_tool:ToolKind",
    "weights_set": "node.transfer.weights_set:SetKind",
    "reap": _PASSED,
    "shm": _PASSED,
    "caches": _PASSED,
    "restart": "node.kube.deployment_step:RestartKind",
}


@functools.cache
def _load(op: str, where: str) -> Kind:
    module, _, name = where.partition(":")
    kind: Kind = getattr(importlib.import_module(module), name)(op)
    return kind


def get(op: str) -> Kind:
    """Gives the kind of that name, which must be one."""
    return _load(op, KINDS[op])


def of(entry: Json) -> Kind:
    """Gives the kind of a recorded or parsed step."""
    return get(entry["op"])


def parse(value: object, where: str) -> Json:
    """Gives a step of a request with every value checked. Raises NodeError (`bad_request`)."""
    if not isinstance(value, dict):
        raise validate.bad(f"{where} is not an object")
    kind = get(validate.choice(value.get("op"), f"{where}.op", KINDS))
    if not kind.keys:
        raise validate.bad(f"{where}.op: {kind.op!r} is not asked for in a request")
    step = validate.keys(value, where, ("op", *kind.keys), ("op", *kind.required))
    return kind.parse(step, where)


def require_known(change: Json) -> None:
    """Raise OtherProgram for a change that another version wrote and this one cannot judge."""
    form = change.get("format", journal.FORMAT)
    if form != journal.FORMAT:
        raise _foreign(change, "unknown_format", f"has format {form!r}")
    for entry in change["steps"]:
        if entry.get("op") not in KINDS:
            raise _foreign(change, "unknown_kind", f"has a step of the kind {entry.get('op')!r}")
        if what := of(entry).unknown(entry):
            raise _foreign(change, "unknown_kind", what)


def _foreign(change: Json, code: str, what: str) -> OtherProgram:
    """Gives the error for a change of another version, which names the program that wrote it."""
    identifier, program = change["id"], change.get("program")
    remedy = "use the rignode that wrote it: ls -t /usr/local/lib/rigbook"
    if program:
        what += f", written by {os.path.basename(program)}"
        remedy = f"python3 {program} undo {identifier}"
        if not os.path.exists(program):
            remedy = ("that program is gone: pyinfra INVENTORY deploys/rollback.py -y --data "
                      f"change={identifier}, from the checkout of {change['operator']} that wrote "
                      "it")  # fmt: skip
    text = f"change {identifier} {what}, unknown to this rignode; it is left"
    return OtherProgram(text, code, remedy, program)


def reason(error: Exception) -> str:
    """Gives an error of a step as one line; one that no kind raises is a damaged row's."""
    if isinstance(error, (NodeError, CannotRead)):
        return str(error)
    if isinstance(error, OSError):
        return io_reason(error)
    return f"{type(error).__name__}: {error}"


def failed(step: Json, error: Exception) -> str:
    """Gives what a step met as one line that names the step and its path."""
    why, about = reason(error), subject(step)
    return f"{step['op']} {why}" if why.startswith(about) else f"{step['op']} {about}: {why}"


def recover(rows: list[Json]) -> bool:
    """Find out what became of the steps that a kill left announced; gives whether any state is new.

    Never raises: what cannot be found out is "unknown", with the reason, and is asked again by
    the next one who comes. What a kind says is looked at once more.
    """
    changed = False
    for entry in list(rows):
        if entry["state"] not in (INTENT, UNKNOWN):
            continue
        why = "what lies there is neither what it found nor what it was to leave"
        try:
            kind = of(entry)
            state = kind.recover(entry, rows)
            side = {UNDONE: PRE, DONE: POST}.get(state)
            if lines := kind.verify(entry, side) if side else []:
                state, why = UNKNOWN, "; ".join(lines)
        except Exception as error:
            state, why = UNKNOWN, reason(error)
        if state == UNKNOWN:
            entry["why"] = why
        else:
            entry.pop("why", None)
        changed = changed or state != entry["state"]
        entry["state"] = state
    return changed


def in_undo_order(rows: list[Json]) -> list[Json]:
    """Gives the steps in the order of an undo, without units and what cannot be undone."""
    kept = [row for row in reversed(rows) if not of(row).irreversible]
    return [row for phase in PHASES for row in kept if of(row).phase == phase]


# The look that an undo ends with: is each thing as its steps recorded it? Reads only.


def _things(rows: list[Json], side: str) -> list[list[Json]]:
    """Gives the rows about one thing each, oldest first.

    What lies below a path that trades places is left out, where it lies in the other tree.
    """
    found: dict[str, list[Json]] = {}
    moved: list[str] = []
    for row in rows if side == PRE else reversed(rows):
        kind, path = of(row), str(row.get("path", ""))
        if any(path.startswith(tree + "/") for tree in moved):
            continue
        if kind.moves:
            moved.append(path)
        found.setdefault(kind.about(row), []).append(row)
    return [group if side == PRE else group[::-1] for group in found.values()]


def differing_things(
    rows: list[Json], side: str, to_start: tuple[str, ...] = ()
) -> Iterator[tuple[list[Json], list[str]]]:
    """Gives each thing that is not as recorded: its rows, and the lines in which it differs.

    `to_start`: units that are down because the caller starts them. What cannot be read differs.
    """
    for group in _things(rows, side):
        entry = group[0 if side == PRE else -1]
        if any("left" in row for row in group):
            continue
        kind = of(entry)
        entry = kind.folded(group, side)
        if kind.phase == UNIT and subject(entry) in to_start:
            entry = {**entry, PRE: {**entry[PRE], "active": "inactive"}}
        try:
            lines = kind.verify(entry, side)
        except Exception as error:  # a row of a damaged journal as well
            lines = [f"{kind.about(entry)} cannot be looked at: {reason(error)}"]
        if lines:
            yield group, lines


def lines_of_differences(rows: list[Json], side: str) -> list[str]:
    """Gives the lines in which the things of these rows are not as recorded."""
    return [line for _, found in differing_things(rows, side) for line in found]


def side_of(change: Json) -> str:
    """Gives whether the host is to be as the change left it, or (it went back) as it found it."""
    return PRE if change["status"] in ("ROLLED_BACK", "INCONSISTENT") else POST


def of_change(change: Json) -> list[str]:
    """Gives the lines in which the host is now not as the journal says of a change.

    Raises NodeError for one that another version wrote.
    """
    require_known(change)
    rows = change["steps"]
    if side_of(change) == PRE:
        return lines_of_differences(rows, PRE)
    done = [row for row in rows if row["state"] == DONE]
    touched = {of(row).about(row) for row in done}
    back = [row for row in rows if row["state"] == UNDONE
            and of(row).about(row) not in touched]  # fmt: skip
    unclear = [journal.describe(row) for row in rows if row["state"] in (INTENT, UNKNOWN)]
    return [*lines_of_differences(done, POST), *lines_of_differences(back, PRE), *unclear]
