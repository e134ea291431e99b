"""A unit's drop-in: typed directives alone, and a text that systemd reads as it was meant."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from schema.core.errors import SpecError
from schema.inputs.check import host_data
from schema.inputs.runbook_data import UnitData
from schema.render.drop_in import HEADER, DropIn
from tests.unit.builders.spark_rig import host


def data(**changes: object) -> UnitData:
    """The head's data with these keys of --data."""
    return host_data("spark1", host(1, **changes), {}, UnitData)


def test_the_text_resets_exec_start_and_keeps_each_directive_in_its_section() -> None:
    made = data(
        exec_start="/usr/bin/docker exec vllm_ds4 bash /workspace/vllm-head.sh",
        restart="on-failure",
        restart_sec=30,
        environment="A=1,B=two",
    ).override()
    assert made.text() == HEADER + (
        "\n[Service]\nExecStart=\n"
        "ExecStart=/usr/bin/docker exec vllm_ds4 bash /workspace/vllm-head.sh\n"
        'Restart=on-failure\nRestartSec=30\nEnvironment="A=1"\nEnvironment="B=two"\n'
    )
    assert data().override().empty and data(restart_sec=0).override() != DropIn()
    assert "ExecStart" not in data(restart="always").override().text()


@pytest.mark.parametrize(
    ("given", "argv"),
    [
        ("/a/b --x 1", ("/a/b", "--x", "1")),
        (["/a/b", "two words"], ("/a/b", "two words")),
        ("/a/b 'two words' \"$(touch /x)\" `id` ; rm", None),
        ("/a/b '$(touch /x);' '`id`' 100% $HOME", ("/a/b", "$(touch /x);", "`id`", "100%",
                                                    "$HOME")),
    ],
)  # fmt: skip
def test_a_command_line_is_split_and_nothing_in_it_is_run(given: object, argv: object) -> None:
    if argv is None:
        with pytest.raises(SpecError, match="holds a single `;`"):
            data(exec_start=given)
    else:
        assert data(exec_start=given).exec_start == argv


def test_systemd_hands_the_program_exactly_these_words(tmp_path: Path) -> None:
    """Read back by systemd itself: no warning about the file, whatever stands in a word."""
    analyze = shutil.which("systemd-analyze")
    assert analyze, "systemd-analyze is part of the fast tier (package systemd)"
    hostile = ["/bin/echo", "$(touch /x)", "a 'b' \"c\"", "50%n", "${HOME}", "back\\slash", "é", ""]
    text = data(exec_start=hostile, environment=["A=$HOME %n \"x\" 'y' \\z"]).override().text()
    unit = tmp_path / "rigbook-trial.service"
    unit.write_text(text)
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unit": "ssh"}, "unit: 'ssh' is not a service's name"),
        ({"unit": "-x.service"}, "is not a service's name"),
        ({"unit": "a/../b.service"}, "is not a service's name"),
        ({"unit": "x@.service"}, "is not a service's name"),
        ({"unit": "a\n.service"}, "is not a service's name"),
        ({"drop_in": "../x"}, "drop_in: '../x' is not a plain name"),
        ({"drop_in": "-x"}, "is not a plain name"),
        ({"exec_start": ""}, "exec_start: is empty"),
        ({"exec_start": "vllm serve"}, "'vllm' is no program"),
        ({"exec_start": "-/bin/true"}, "'-/bin/true' is no program"),
        ({"exec_start": "/bin/../x"}, "'/bin/../x' is no program"),
        ({"exec_start": "/bin/$X"}, "'/bin/$X' is no program"),
        ({"exec_start": "/bin/%i"}, "'/bin/%i' is no program"),
        ({"exec_start": "/bin/true 'x"}, "has an open quote"),
        ({"exec_start": "/bin/true\nUser=root"}, "holds a newline"),
        ({"exec_start": ["/bin/true", "a\nb"]}, "holds a newline"),
        ({"exec_start": 7}, "exec_start: "),
        ({"restart": "sometimes"}, "restart: is 'sometimes'; allowed: 'no', 'always'"),
        ({"restart_sec": -1}, "restart_sec: is -1; allowed: 0 or more"),
        ({"environment": "A"}, "is no assignment"),
        ({"environment": "1A=x"}, "is not a variable's name"),
        ({"environment": "HF_TOKEN=hf_x"}, "looks like a secret"),
        ({"exec_start": "/bin/vllm serve --api-key hf_x"}, "looks like a secret"),
        ({"exec_start": "/bin/vllm serve --api-key=hf_x"}, "looks like a secret"),
        ({"environment": ["A=x\nExecStart=/x"]}, "holds a newline"),
    ],
)
def test_what_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        data(**changes)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert "hf_x" not in str(caught.value)
