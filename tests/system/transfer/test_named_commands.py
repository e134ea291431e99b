"""serve refuses what one host lacks or has otherwise, and the commands that it names mend that."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.system.lab import test_weights as w
from tests.system.lab.support import moving as m
from tests.system.rehearsal import PYINFRA, Done, Lab

MEND = re.compile(r"mend: +pyinfra (inventory/\S+ deploys/(image|weights)\.py.*)")
CHOSEN = "--data recipe=small-image --data recipes_dir=tests/system/lab/recipes"


@pytest.fixture
def one_sided(lab: Lab) -> Iterator[Lab]:
    """test1 has image and weights, test2 has neither."""
    w.clear(lab)
    m.make_image(lab, "test1", 100_000)
    lab.ssh("test1", "sudo python3 -", stdin=w.MAKE.format(size=100_000))
    yield lab
    w.clear(lab)


def refused(lab: Lab, *codes: str) -> dict[str, str]:
    """serve, stopped by these findings on test2; the command that each deploy is named with."""
    before = lab.snapshots()
    done = lab.pyinfra("serve", *m.RECIPE)
    assert done.rc == 1 and "nothing was changed: " in done.text, done.text
    assert "Traceback" not in done.text and lab.snapshots() == before
    for code in codes:
        assert f"block {code} [test2]" in done.text, done.text
    return {deploy: words.split(" (or")[0] for words, deploy in MEND.findall(done.text)}


def run(lab: Lab, words: str) -> Done:
    """A command as it was named, and nobody asked."""
    return lab.run(str(PYINFRA), *shlex.split(words), "-y")


def of_image_or_weights(lab: Lab) -> list[str]:
    """What serve still says of image or weights, changing nothing."""
    done = lab.run(str(PYINFRA), "inventory/lab.py", "deploys/serve.py", "--dry", *m.RECIPE)
    return re.findall(r"block (?:image|weights)-\S+.*", done.text)


def test_what_is_missing_and_what_differs_is_mended_by_the_named_commands(one_sided: Lab) -> None:
    named = refused(one_sided, "image-missing", "weights-missing")
    for deploy in ("image", "weights"):
        assert named[deploy] == f"inventory/lab.py deploys/{deploy}.py {CHOSEN} --data from=test1"
        done = run(one_sided, named[deploy])
        assert done.rc == 0, done.text
    assert of_image_or_weights(one_sided) == []

    m.make_image(one_sided, "test2", 100_000)
    one_sided.ssh("test2", f"sudo sh -c 'echo {{}} >> {w.FOLDER}/config.json'")
    named = refused(one_sided, "image-differs", "weights-differ")
    for deploy in ("image", "weights"):
        assert "--data from=test1" in named[deploy] and run(one_sided, named[deploy]).rc == 0
    assert of_image_or_weights(one_sided) == []
    assert w.sums(one_sided, "test1") == w.sums(one_sided, "test2") != ""
