"""A rig with a ghost unit, a container of others and other flags is recorded; its twin has them.

A twin stands for the rig: what is recorded of it is given the rig's name.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path

from lab.rehearsal import incident
from lab.rehearsal.incidents import breaks
from lab.rehearsal.incidents.table import Rig
from schema.machine import rig_snapshot
from tests.system.rehearsal import Lab, rehearsal
from tests.system.rehearse.conftest import Twins, where
from tests.system.rehearse.in_a_row import SHOWS_S

GHOST, BOX = "vllm-ds4-head.service", "vllm_ds4"
UNIT = """\
[Service]
Environment=LITELLM_AUTH=S3cr3tS3cr3t
ExecStart=/opt/gone/vllm-head.sh --api-key S3cr3tS3cr3t
Restart=always
RestartSec=30
[Install]
WantedBy=multi-user.target
# vllm serve
"""
SPARK = "inventory/spark.py"


def disordered(lab: Lab, rig: Rig) -> None:
    """The head as the seed's was one evening."""
    path = shlex.quote(f"/etc/systemd/system/{GHOST}")
    lab.ssh(rig.head, f"sudo tee {path} >/dev/null", stdin=UNIT)
    lab.ssh(rig.head, f"sudo systemctl enable -q --now {GHOST}", check=False)
    image = rig.recipe["container"]["image"]
    words = f"--name {BOX} --restart unless-stopped --network host --label by=hand {image}"
    lab.ssh(rig.head, f"sudo docker run -d {words} sleep infinity")
    breaks.relaunch(lab, rig.head, *breaks.edits({"max_num_seqs": 3}))


def shown(rig: Rig) -> dict[str, str]:
    """The doctor's findings of the head, by code, once they tell the ghost and the live flag."""
    began = time.monotonic()
    while True:
        found: dict[str, str] = {}
        for row in incident.doctor(rig):
            if row["node"] == rig.head:
                told = f"{row['summary']} {row['evidence']}"
                found[str(row["code"])] = f"{found.get(str(row['code']), '')} {told}"
        if GHOST in found.get("unit-ghost", "") and "max_num_seqs" in found.get("drift", ""):
            return found
        assert time.monotonic() - began < SHOWS_S, found


def test_the_twin_begins_with_the_disorder(twin_of: Twins, tmp_path: Path) -> None:
    os.environ[rig_snapshot.VARIABLE] = str(tmp_path)
    try:
        with twin_of(SPARK) as (lab, rig):
            disordered(lab, rig)
            real = shown(rig)
            done = lab.pyinfra("snapshot", inventory=rig.inventory)
            assert done.rc == 0, done.text
    finally:
        del os.environ[rig_snapshot.VARIABLE]
    text = (tmp_path / "spark-twin.json").read_text()
    assert "S3cr3t" not in text and "LITELLM_AUTH" in text
    kept = tmp_path / "spark.json"
    kept.write_text(json.dumps({**json.loads(text), "rig": "spark"}))
    with rehearsal(SPARK, "--snapshot", str(kept), verb="rehearse", place=where()) as lab:
        rig = incident.rig_of(lab.settings)
        twin = shown(rig)
        assert "/opt/gone/vllm-head.sh" in real["unit-ghost"]
        assert "/opt/gone/vllm-head.sh" in twin["unit-ghost"]
        box = json.loads(lab.ssh(rig.head, f"sudo docker inspect {BOX}"))[0]
        assert box["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
        assert box["Config"]["Labels"]["by"] == "hand"
        assert {"second-unit", "restart-policy"} <= real.keys() & twin.keys()
        assert not {"module-missing", "patch-missing"} & twin.keys(), (
            "its own image, with stand-ins"
        )
        print(f"TABLE snapshot: of the rig's {sorted(real)} the twin has {sorted(twin)}")
