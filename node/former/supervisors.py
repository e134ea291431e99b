"""Who starts a former engine, or would at the next boot: units, docker's policies, compose, cron.

A row is a Supervisor (schema/observed/former.py). Nothing is guessed: each says where it was seen.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence

from node.core.errors import CannotRead, Json
from node.docker import clients
from node.former.engines import OURS, USERS, user_name
from node.snapshot import cron, units

_PROJECT = "com.docker.compose.project"
# docker's own words (docs.docker.com, "Start containers automatically"): on-failure starts nothing
# when the daemon starts; unless-stopped starts what ran
_AT_BOOT = {"always": True, "unless-stopped": True, "on-failure": False}


def _means(words: set[str], engines: Sequence[Json], boxes: Sequence[Json]) -> str | None:
    """Gives what words of a command line name of this host's engines, or None."""
    vllm = next((word for word in sorted(words) if "vllm" in word.lower()), None)
    named = next((b["name"] for b in boxes if {b["name"], b["id"][:12], b["id"]} & words), None)
    if named:
        return f"names container {named}"
    if vllm:
        return f"names {vllm}"
    for box in boxes:
        labels = box["labels"]
        where = labels.get(f"{_PROJECT}.working_dir")
        files = labels.get(f"{_PROJECT}.config_files", "").split(",")
        if ({where, *files} - {"", None}) & words:
            return f"names compose project {labels.get(_PROJECT)}"
    venvs = [engine["venv"] for engine in engines if engine["venv"]]
    found = next((word for word in sorted(words) for v in venvs if word.startswith(f"{v}/")), None)
    return f"names {found}" if found else None


def of_units(engines: Sequence[Json], boxes: Sequence[Json], unread: list[str]) -> Iterator[Json]:
    """Gives the units that hold an engine or name one, its container, or a script that does."""
    try:
        rows = units.read([])
    except CannotRead as error:
        unread.append(f"units: {error}")
        return
    held = clients.read() if boxes else []
    for row in rows:
        name = str(row["name"])
        if name.startswith(OURS) or row["load_state"] == "not-found":
            continue
        holds = [e["pid"] for e in engines if e["unit"] == name]
        runs = [b["name"] for b in boxes if name in clients.units_of(held, b["name"], b["id"])]
        told = {*row["exec_start"], *" ".join(row["exec_start_pre"]).split(), *row["script_words"]}
        why = (
            f"its cgroup holds pid {holds[0]}" if holds
            else f"its docker client holds container {runs[0]}" if runs
            else _means(told, engines, boxes)
        )  # fmt: skip
        if why:
            yield {
                "kind": "unit",
                "name": name,
                "starts_at_boot": row["enabled"] == "enabled" or bool(row["triggered_by"]),
                "evidence": f"{row['fragment']}: {why}",
                "enabled": row["enabled"],
                "active": f"{row['active_state']}/{row['sub_state']}",
                "restart": row["restart"],
                "triggered_by": row["triggered_by"],
            }


def of_users(cgroup: str, unread: list[str]) -> Iterator[Json]:
    """Gives the unit of somebody's own systemd that a cgroup is of; `unread` says that its state is
    not looked at, since only that user's manager tells it.
    """
    found = USERS.search(cgroup)
    if found is None:
        return
    uid, unit = int(found.group(1)), found.group(2)
    user = user_name(uid) or str(uid)
    unread.append(
        f"{unit} is a unit of {user}'s own systemd, which rigbook does not change: sudo systemctl "
        f"--user -M {user}@ disable --now {shlex.quote(unit)}"
    )
    yield {
        "kind": "unit",
        "name": unit,
        # with lingering that manager starts at the boot, else at the next login
        "starts_at_boot": os.path.exists(f"/var/lib/systemd/linger/{user}"),
        "evidence": f"cgroup {cgroup}: systemctl --user of {user}",
        "active": "active/running",
    }


def of_docker(boxes: Sequence[Json]) -> Iterator[Json]:
    """Gives a row for each container that docker starts again, and one for each compose project."""
    projects: dict[str, list[Json]] = {}
    for box in boxes:
        policy = box["restart_policy"]
        if policy not in ("no", ""):
            # one that was stopped by hand stays down with unless-stopped
            ran = policy == "always" or box["state"] in ("running", "restarting")
            yield {
                "kind": "container-policy",
                "name": box["name"],
                "starts_at_boot": _AT_BOOT.get(policy, True) and ran,
                "evidence": f"restart policy {policy}, {box['state']}",
                "containers": [box["name"]],
                "restart": policy,
            }
        if box["labels"].get(_PROJECT):
            projects.setdefault(box["labels"][_PROJECT], []).append(box)
    for project, members in projects.items():
        labels = members[0]["labels"]
        files = [f for f in labels.get(f"{_PROJECT}.config_files", "").split(",") if f]
        yield {
            "kind": "compose",
            "name": project,
            # compose itself starts nothing at boot: a policy, a unit or cron does
            "starts_at_boot": False,
            "evidence": f"labels of container {members[0]['name']}: {', '.join(files)}",
            "containers": [box["name"] for box in members],
            "project": project,
            "files": files,
            "working_dir": labels.get(f"{_PROJECT}.working_dir"),
            "services": [box["labels"].get("com.docker.compose.service", "") for box in members],
        }


def of_cron(engines: Sequence[Json], boxes: Sequence[Json], unread: list[str]) -> Iterator[Json]:
    """Gives the lines of crontabs that name an engine, its container, or a script that does."""
    try:
        rows = cron.read()
    except CannotRead as error:
        unread.append(f"crontabs: {error}")
        return
    for row in rows:
        why = _means(set(row["words"]), engines, boxes)
        if why:
            yield {
                "kind": "cron",
                "name": f"{row['file']}:{row['line']}",
                # a periodic line starts it some time after the boot
                "starts_at_boot": True,
                "evidence": f"{row['text'][:300]} ({why})",
                "file": row["file"],
                "line": row["line"],
                "text": row["text"],
            }


def _awake(row: Json) -> bool:
    """Gives False for a unit that neither runs nor comes back at the next boot."""
    return row["starts_at_boot"] or not row["active"].startswith(("inactive", "failed"))


def of_hands(engines: Sequence[Json], rows: Sequence[Json]) -> Iterator[Json]:
    """Gives a row for each engine that nothing of `rows` would start again."""
    containers = {name for row in rows for name in row.get("containers") or []}
    named = any(row["kind"] == "cron" or (row["kind"] == "unit" and _awake(row)) for row in rows)
    for engine in engines:
        main_of = engine["inside_of"] == "main" and engine["container"] in containers
        if main_of or engine["inside_of"] == "pod" or named:
            continue
        where = f" in container {engine['container']}" if engine["container"] else ""
        how = "docker exec" if engine["inside_of"] == "exec" else "docker run" if where else "shell"
        yield {
            "kind": "shell",
            "name": str(engine["pid"]),
            "starts_at_boot": False,
            "evidence": f"pid {engine['pid']}{where}: started by hand ({how}), nothing starts it "
            "again",
        }
