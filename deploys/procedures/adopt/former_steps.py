"""What ends a former setup on one node, as node's steps, and what cannot be ended with a way back.

Pure. First what would start the engine again, then what runs it: in between it goes on serving.
"""

from __future__ import annotations

from collections.abc import Iterator

from operations.change.apply import Steps
from operations.change.steps import unit_step
from schema.observed.former import Former, FormerEngine, Supervisor

# A unit that neither runs nor comes back is left as it is.
_DOWN = ("inactive", "failed")
_ENABLED = ("enabled", "enabled-runtime")


def refusals(former: Former) -> Iterator[str]:
    """Why the former setup of a node is not taken over, each with what to do; none: it may be."""
    yield from (f"not all could be looked at: {line}" for line in former.unread)
    if len(former.engines) > 1:
        which = ", ".join(f"pid {e.pid} on port {e.port}" for e in former.engines)
        yield (
            f"{len(former.engines)} engines run here ({which}), and a rig has one recipe: stop "
            "what this rig is not to serve, then run it again"
        )
    for row in former.supervisors:
        if row.kind == "pod" and row.uid is None:
            yield f"{row.evidence}: what made it has to end it: kubectl describe pod {row.name}"
    boxes = {box.name: box for box in former.containers}
    for engine in former.engines:
        box = boxes.get(engine.container or "")
        if engine.inside_of == "main" and box and box.auto_remove and not _units(former):
            yield (
                f"container {box.name} was made with --rm: a stop removes it, and nothing could "
                "bring it back; make it anew without --rm, then run it again"
            )


def _scale(row: Supervisor) -> dict[str, object]:
    """The step that leaves a Deployment no pod; undo gives it those that it had."""
    return {
        "op": "kube", "kubectl": "auto", "namespace": row.namespace, "deployment": row.deployment,
        "container": row.template_container, "replicas": 0, "uid": row.uid,
        "resource_version": row.resource_version,
    }  # fmt: skip


def grace_s(former: Former) -> float:
    """How long the pods of a former setup may take to end, in seconds."""
    return max((row.grace_s for row in former.supervisors if row.kind == "pod"), default=0.0)


def release_steps(former: Former) -> Steps:
    """The steps after which nothing would start the engine again; it goes on running."""
    steps: Steps = []
    for row in _units(former):
        steps += [unit_step(name, "stop", enabled=False) for name in row.triggered_by]
        if row.enabled in _ENABLED:
            steps.append(unit_step(row.name, enabled=False, reload=False))
    steps += [
        {"op": "restart_policy", "container": name, "policy": "no"}
        for name in _names(row.name for row in former.supervisors if row.kind == "container-policy")
    ]
    lines: dict[str, list[dict[str, object]]] = {}
    for row in former.supervisors:
        if row.kind == "cron":
            lines.setdefault(str(row.file), []).append({"line": row.line, "text": row.text})
    return steps + [{"op": "crontab", "path": path, "lines": rows} for path, rows in lines.items()]


def end_steps(former: Former) -> Steps:
    """The steps that end the engine: its units, its containers, and what was started by hand."""
    steps: Steps = [
        unit_step(row.name, "stop", reload=False) for row in _units(former) if _runs(row)
    ]
    steps += [_scale(row) for row in former.supervisors if row.kind == "pod"]
    of_compose = (n for row in former.supervisors if row.kind == "compose" for n in row.containers)
    main = (str(e.container) for e in former.engines if e.inside_of == "main")
    running = {box.name for box in former.containers if box.state in ("running", "restarting")}
    by_hand = {engine.container for engine in former.engines if engine.inside_of == "exec"}
    steps += [
        {"op": "container", "container": name}
        for name in _names((*of_compose, *main))
        if name in running and name not in by_hand
    ]
    for engine in former.engines:
        if engine.inside_of == "exec":
            steps.append({"op": "former_engine", "container": engine.container})
        elif engine.inside_of == "host" and not _has_unit(former, engine):
            process = {"pid": engine.pid, "start_ticks": engine.start_ticks}
            steps.append({"op": "former_engine", **process})
    return steps


def who(former: Former) -> str:
    """Who runs the engine, in words: `unit vllm-ds4.service, container vllm_ds4`."""
    kinds = {"unit": "unit", "cron": "crontab", "compose": "compose project",
             "pod": "Deployment"}  # fmt: skip
    awake = {row.name for row in _units(former)}
    rows = [
        f"{kinds[row.kind]} {row.name}"
        for row in former.supervisors
        if row.kind in kinds and (row.kind != "unit" or row.name in awake)
    ]
    # a pod has another name each time
    boxes = [f"container {e.container}" for e in former.engines
             if e.container and e.inside_of != "pod"]  # fmt: skip
    pids = [f"pid {e.pid}" for e in former.engines if not e.container and not rows]
    return ", ".join(_names((*rows, *boxes, *pids)))


def _units(former: Former) -> list[Supervisor]:
    """The units that run or come back."""
    found = (row for row in former.supervisors if row.kind == "unit")
    return [row for row in found if row.starts_at_boot or _runs(row)]


def _runs(row: Supervisor) -> bool:
    """Whether a unit is up, or is started again and again."""
    return not (row.active or "").startswith(_DOWN)


def _has_unit(former: Former, engine: FormerEngine) -> bool:
    return any(row.name == engine.unit for row in _units(former))


def _names(found: Iterator[str] | tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(found))
