"""What GRUB boots with a grub.cfg and an environment block, and whether that is another boot."""

from __future__ import annotations

from node.core.errors import Json, NodeError
from node.kernel import bootloader, grubcfg, grubenv


def menu_of(raw: bytes, env: dict[str, str] | None, folder: str) -> grubcfg.Menu:
    """Gives the menu of these bytes. Raises NodeError for a malformed one."""
    try:
        return bootloader.menu_of(raw.decode("utf-8", "replace"), env, folder)
    except grubcfg.Malformed as error:
        raise NodeError(f"{folder}/grub.cfg is malformed: {error}", "grub_malformed",
                        "sudo update-grub") from None  # fmt: skip


def boots(raw: bytes | None, raw_env: bytes | None, folder: str) -> Json:
    """Gives what GRUB does with these two files: the next boot, and the default."""
    try:
        state, env = "ok", grubenv.parse(raw_env or b"")
    except grubenv.Corrupt as error:
        state, env = str(error), None
    menu = menu_of(raw or b"", env, folder)
    text = (raw or b"").decode("utf-8", "replace")
    return {"next": bootloader.following(menu, env, state),
            "default": bootloader.lasting(menu, env, state, text, folder)}  # fmt: skip


def same(now: Json, before: Json) -> bool:
    """Gives whether two boots run the same kernel, or the same entry where that runs none of ours;
    what is not known is not the same.
    """
    key = "kernel" if now["kernel"] or before["kernel"] else "entry"
    return now[key] is not None and now[key] == before[key]


def other(what: str, now: Json, wanted: object) -> str:
    """Gives the line of a boot that is another one."""
    is_now = now["kernel"] or now["entry"] or "one that is not known"
    return f"the {what} boot would be {is_now}, not {wanted}: {now['why']}"
