"""The documents say what is so: files, commands, targets, codes and tests that they name exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gates.core import CODES
from node.verbs import ALL as VERBS
from schema.keys import REMOVED, taken
from schema.keys import RUNBOOKS as KINDS
from tests.tiers import GROUPS, TIERS, table

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "RELEASE.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
RUNBOOKS = ROOT / "docs" / "runbooks"
# What each runbook takes, on whichever rig; and what any of them does.
TAKEN = {name: {"help", *(k for kind in of for k in taken(kind))} for name, of in KINDS.items()}
KEYS = set().union(*TAKEN.values())
INCIDENTS = ROOT / "docs" / "incidents.md"
HEALTH = ROOT / "docs" / "reference" / "health.md"
FAULTS = ROOT / "docs" / "reference" / "faults.md"
# Names of files that a reader makes, or that a page says are not there yet.
NOT_FILES = {
    "inventory/desk.py",
    "group_data/desk.py",
    "catalog/recipes/my-model.yaml",
    "deploys/NAME.py",
}
PLACEHOLDER = re.compile(r"NAME|HASH|\*")
PARTS = (
    "inventory|group_data|catalog|schema|facts|gates|operations|node|deploys|templates|lab|tests"
    "|docs|requirements|molecule"
)
SECTIONS = [
    "Preconditions",
    "Commands",
    "Expected output",
    "What it does",
    "Failures",
    "Journal and undo",
    "At the console, with no network",
]
# Of pyinfra 3.10's own options, those that the pages use.
OPTIONS = {"-y", "-v", "--dry", "--diff", "--data", "--limit", "--json"}
# Written in two parts, because this file is searched as well.
REGISTRIES = [
    f"{name}.{rest}"
    for name, rest in (
        ("pypi", "org"), ("python" + "hosted", "org"), ("pytorch", "org"), ("ghcr", "io"),
        ("quay", "io"), ("nvcr", "io"), ("huggingface", "co"), ("npmjs", "org"),
        ("golang", "org"), ("debian", "org"), ("ubuntu", "com"), ("registry-1.docker", "io"),
    )
]  # fmt: skip
SKIPPED = {"__pycache__", "build", "pyinfra-debug.log"}
IN_DOT_FOLDERS = (".ci", ".gitignore")


def name(path: Path) -> str:
    """A path from the project's root."""
    return path.relative_to(ROOT).as_posix()


def commands(program: str) -> Iterator[tuple[Path, str]]:
    """Every command line of a program with its page: in a code block or between backticks."""
    for page in PAGES:
        text = page.read_text()
        for span in [*text.splitlines(), *re.findall(r"`([^`\n]+)`", text)]:
            found = re.match(rf"\s*(?:[A-Z_]+=\S+ )*{program} (.*)", span)
            if found and "`" not in span:
                yield page, found[1].partition("  #")[0].strip()


def test_links_lead_somewhere() -> None:
    missing, seen = [], 0
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            if "://" in target:
                continue
            seen += 1
            if not there.exists() or (anchor and f"## {anchor}\n" not in there.read_text()):
                missing.append(f"{name(page)}: {target}")
    assert seen and missing == []


def test_files_that_a_page_names_exist() -> None:
    pattern = rf"(?<![\w./~-])(?:{PARTS})/[\w./*-]*[\w*/]"
    named = {(one, page) for page in PAGES for one in re.findall(pattern, page.read_text())}
    missing = [
        f"{name(page)}: {one}"
        for one, page in named
        if one not in NOT_FILES and not PLACEHOLDER.search(one) and not (ROOT / one).exists()
    ]
    assert named and missing == []


@pytest.mark.parametrize("deploy", sorted(KINDS))
def test_every_deploy_has_its_runbook(deploy: str) -> None:
    page = RUNBOOKS / f"{deploy}.md"
    assert f"Runbook: docs/runbooks/{deploy}.md" in (ROOT / f"deploys/{deploy}.py").read_text()
    assert re.findall(r"^## (.+)$", page.read_text(), re.M) == SECTIONS


def test_every_runbook_has_its_deploy_and_its_keys() -> None:
    found = {path.stem for path in (ROOT / "deploys").glob("*.py")} - {"__init__"}
    assert found == KINDS.keys() == {page.stem for page in RUNBOOKS.glob("*.md")}


def test_pyinfra_commands_can_be_typed() -> None:
    wrong, seen = [], 0
    for page, command in commands("pyinfra"):
        words = command.split()
        deploy = next((word for word in words if word.startswith("deploys/")), None)
        found = Path(deploy).stem if deploy and deploy not in NOT_FILES else ""
        options = {word.partition("=")[0] for word in words if word.startswith("-")}
        pairs = [pair.partition("=") for pair in re.findall(r"--data (\S+)", command)]
        seen += 1
        # a sentence may leave the runbook out, and NAME stands for any
        if (
            (found and not (ROOT / str(deploy)).is_file())
            or not options <= OPTIONS
            or not all(is_pair and key in TAKEN.get(found, KEYS) for key, is_pair, _ in pairs)
        ):
            wrong.append(f"{name(page)}: {command}")
    assert seen and wrong == []


def test_data_keys_in_sentences_and_tables_exist() -> None:
    named = set()
    for page in PAGES:
        text = page.read_text()
        found = set(re.findall(r"--data (\w+)=", text))
        # what a release took away is told there
        named |= found - set(REMOVED) if page.name == "CHANGELOG.md" else found
        for rows in re.findall(r"^\| key \| default \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.M):
            for row in rows.splitlines():
                named |= set(re.findall(r"`(\w+)`", row.split("|")[1]))
    assert named and named <= KEYS


def test_findings_that_a_page_names_exist() -> None:
    """`block CODE` and `warn CODE`, in an output or in a table of failures."""
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"\b(?:block|warn) ([a-z]+(?:-[a-z]+)+)", text))
    assert named and named <= set(CODES)


def test_verbs_of_rignode_exist() -> None:
    typed = [command for _, command in commands("sudo rignode")]
    assert typed
    assert [one for one in typed if not any(re.match(rf"{v}\b", one) for v in VERBS)] == []


def test_make_targets_and_tiers_exist() -> None:
    """Also `make test TIER=NAME`, and `make test-NAME`, its former form."""
    targets = set(re.findall(r"^([a-z-]+)(?= [a-z ]+:|:)", (ROOT / "Makefile").read_text(), re.M))
    targets |= {"chaos", *(f"test-{one}" for one in (*TIERS, *GROUPS))}
    typed = [command for _, command in commands("make")]
    assert typed and {command.split()[0] for command in typed} <= targets
    tiers = [one for command in typed for one in re.findall(r"TIER=([a-z0-9]+)", command)]
    tiers += [one for _, command in commands(r"python -m tests\.tiers") for one in command.split()]
    assert tiers and set(tiers) <= {*TIERS, *GROUPS}


def test_the_tiers_are_one_table() -> None:
    """CONTRIBUTING.md has tests/tiers.py's, its folders are there, and each folder has its tier."""
    assert table() in (ROOT / "CONTRIBUTING.md").read_text()
    words = (word for tier in TIERS.values() for command in tier.commands for word in command)
    paths = {word for word in words if word.startswith("tests/")}
    assert [path for path in paths if not (ROOT / path).exists()] == []
    suites = {name(path.parent) for path in (ROOT / "tests/system").glob("*/test_*.py")}
    # by hand, on a machine with a GPU
    assert suites - {"tests/system/gpu"} <= paths
    needs = [need for tier in TIERS.values() for need in tier.needs]
    sets = re.findall(r"^SETS := (.*)$", (ROOT / "Makefile").read_text(), re.M)[0].split()
    assert {one for need in needs for one in need.packages} <= set(sets)
    tools = re.findall(r"^ +(\w+)\) wanted", (ROOT / "lab/install-tools").read_text(), re.M)
    assert {need.tools for need in needs} - {""} <= set(tools)


def incidents() -> dict[str, list[str]]:
    """The rows of docs/incidents.md by code: symptom, gate, doctor, runbook, test."""
    rows = {}
    for line in INCIDENTS.read_text().splitlines():
        found = re.match(r"\| ([ABCD]\d+) \| (.*) \|$", line)
        if found:
            assert found[1] not in rows, f"{found[1]} stands twice"
            rows[found[1]] = found[2].split(" | ")
    return rows


def test_all_thirty_incidents_have_a_full_row() -> None:
    wanted = [f"{group}{n}" for group, last in (("A", 6), ("B", 8), ("C", 16))
              for n in range(1, last + 1)]  # fmt: skip
    rows = incidents()
    assert list(rows)[: len(wanted)] == wanted
    later = list(rows)[len(wanted) :]
    assert later == sorted(later, key=lambda code: int(code[1:]))
    assert {code[0] for code in later} <= {"D"}
    assert {code for code, row in rows.items() if len(row) != 5 or not all(row)} == set()


def test_codes_in_incidents_are_codes_of_gates() -> None:
    """A gate or a finding is named by its code alone between backticks."""
    named = [(code, one) for code, (_, gate, doctor, _, _) in incidents().items()
             for one in re.findall(r"`([a-z]+(?:-[a-z]+)*)`", gate + doctor)]  # fmt: skip
    assert named and [(code, one) for code, one in named if one not in CODES] == []


def test_gates_page_and_incidents_agree() -> None:
    """What docs/gates.md says that a gate prevents is said in the incident's row as well."""
    rows = incidents()
    parts = re.split(r"^## (\S+)\n", (ROOT / "docs" / "gates.md").read_text(), flags=re.M)
    told = [
        (gate, code)
        for gate, section in zip(parts[1::2], parts[2::2], strict=True)
        for listed in re.findall(r"Incidents? ([ABCD0-9, ]+)", " ".join(section.split()))
        for code in re.findall(r"[ABCD]\d+", listed)
    ]
    assert (
        told
        and [
            (gate, code) for gate, code in told if f"`{gate}`" not in rows[code][1] + rows[code][2]
        ]
        == []
    )


def named_tests(where: str, text: str) -> int:
    """How many tests the text names (`FILE::NAME`, or a case of a table); each must be there."""
    named = re.findall(r"`(tests/[\w/]+\.(?:py|yaml))::([^`]+)`", text)
    for path, test in named:
        line = (
            rf"^(def {test}\(|{test} = )"
            if path.endswith(".py")
            else rf"case: {re.escape(test)}(,|$)"
        )
        assert re.search(line, (ROOT / path).read_text(), re.M), f"{where}: {path}: {test}"
    return len(named)


def test_every_incident_has_a_test_that_exists() -> None:
    assert [code for code, row in incidents().items() if not named_tests(code, row[4])] == []


# an old unit at the next boot: not tested yet
OTHERS = {66}


def test_every_fault_has_a_test_that_exists() -> None:
    """Each has a row in docs/reference/faults.md, in its order, and each test is there."""
    rows = re.findall(r"^\| (\d+|none) \| (.+) \| (.+) \|$", FAULTS.read_text(), re.M)
    numbers = [number for number, _, _ in rows if number != "none"]
    assert sorted(map(int, numbers)) == [*(set(range(1, 69)) - OTHERS)]
    for number, what, tests in rows:
        assert named_tests(number, tests), f"{number} {what}"


def test_every_fault_of_a_transfer_has_a_test_that_exists() -> None:
    """Fault 44 and the list of section 5 of the issue that asked for the move."""
    part = FAULTS.read_text().partition("## Faults of a transfer")[2]
    rows = re.findall(r"^\| ([a-z].+?) \| (.+) \| (.*) ?\|$", part, re.M)[1:]
    assert len(rows) >= 12
    for what, image, weights in rows:
        assert named_tests(what, image + weights), what


def test_every_check_of_the_machine_has_a_test_that_exists() -> None:
    row = r"^\| ([^|]+) \|(?: [^|]+ \|){5} ([^|]+) \| ([^|]+) \|$"
    rows = re.findall(row, HEALTH.read_text(), re.M)
    assert len(rows) == 1 + 25 and rows[0][1] == "rigbook"
    for what, ours, tests in rows[1:]:
        assert ours == "y" and named_tests(what, tests), what


def test_adrs_are_numbered_and_whole() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert pages and [int(page.name[:4]) for page in pages] == [*range(1, len(pages) + 1)]
    for page in pages:
        text = page.read_text()
        assert text.startswith(f"# {page.name[:4]}: ")
        assert re.findall(r"^## (.+)$", text, re.M) == ["Context", "Decision", "Consequences"]


def texts() -> Iterator[tuple[Path, str]]:
    """Every text file of the tree that git would track."""
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        if SKIPPED & set(parts) or (parts[0].startswith(".") and parts[0] not in IN_DOT_FOLDERS):
            continue
        if path.is_file():
            try:
                yield path, path.read_text()
            except UnicodeDecodeError:
                continue


def test_no_file_names_a_package_registry() -> None:
    """pip, docker and apt look where the operator has set them up to; an image is data."""
    wrong = [
        f"{path.relative_to(ROOT)}: {host}"
        for path, text in texts()
        if path.relative_to(ROOT).parts[0] not in ("catalog", "tests")
        for host in REGISTRIES
        if host in text
    ]
    assert wrong == []


# Who a page or a test may give a home, and what root's has on a node.
_WHO, _ROOTS = "a|ada|me|milo|op|pc|rig|user|USER|v", "restic|ngc|webhook"
MACHINE = re.compile(
    rf"(?<![\w.~$}}-])/(?:home/(?!(?:{_WHO})(?![\w.-]))|Users/|work/|root/(?!{_ROOTS}))\w+"
)


def test_no_file_holds_a_path_of_somebodys_machine() -> None:
    """The tests may name what lies in a host's /root."""
    wrong = [
        f"{name(path)}: {found[0]}"
        for path, text in texts()
        for found in MACHINE.finditer(text)
        if not (name(path).startswith("tests/") and found[0].startswith("/root/"))
    ]
    assert wrong == []


@pytest.mark.parametrize(("path", "seen"), [
    ("/home" + "/olga/rigbook", True), ("see /work" + "/h1/tests", True),
    ("/Users" + "/me/x", True), ("/root" + "/rigbook/lab", True), ("/home/milo/models", False),
    ("~/" + "work/x", False),
    ("/root/.cache/vllm", False), ("/workspace/start.sh", False),
])  # fmt: skip
def test_such_a_path_is_seen(path: str, seen: bool) -> None:
    assert bool(MACHINE.search(path)) == seen
