"""The documents say what is so: files, commands, targets, codes and tests that they name exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gates.core.codes import CODES
from node.cli.verb_table import ALL as VERBS
from schema.inputs.runbooks import REMOVED, taken
from schema.inputs.runbooks import RUNBOOKS as KINDS
from tests.tiers import TIERS

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


def names(paths: list[Path]) -> list[str]:
    """Paths from the project's root, for the tests' ids."""
    return [path.relative_to(ROOT).as_posix() for path in paths]


def commands(page: Path, program: str) -> Iterator[str]:
    """Every command line of a program on a page: in a code block or between backticks."""
    text = page.read_text()
    spans = [*text.splitlines(), *re.findall(r"`([^`\n]+)`", text)]
    for span in spans:
        found = re.match(rf"\s*(?:[A-Z_]+=\S+ )*{program} (.*)", span)
        if found and "`" not in span:
            yield found[1].partition("  #")[0].strip()


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_somewhere(page: Path) -> None:
    missing = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and f"## {anchor}\n" not in there.read_text()):
            missing.append(target)
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_files_that_a_page_names_exist(page: Path) -> None:
    pattern = rf"(?<![\w./~-])(?:{PARTS})/[\w./*-]*[\w*/]"
    missing = [
        name
        for name in re.findall(pattern, page.read_text())
        if name not in NOT_FILES and not PLACEHOLDER.search(name) and not (ROOT / name).exists()
    ]
    assert missing == []


def deploys() -> list[str]:
    """The deploys that pyinfra executes: the files of deploys/ that nobody imports."""
    imported = {
        name
        for part in ("deploys", "tests", "operations")
        for path in (ROOT / part).rglob("*.py")
        for name in re.findall(
            r"from deploys\.(\w+) import|import deploys\.(\w+)", path.read_text()
        )
        for name in name
    }
    config = re.findall(r"from deploys\.(\w+) import", (ROOT / "config.py").read_text())
    found = {path.stem for path in (ROOT / "deploys").glob("*.py")}
    return sorted(found - imported - set(config) - {"__init__"})


@pytest.mark.parametrize("deploy", deploys())
def test_every_deploy_has_its_runbook(deploy: str) -> None:
    page = RUNBOOKS / f"{deploy}.md"
    assert f"Runbook: docs/runbooks/{deploy}.md" in (ROOT / f"deploys/{deploy}.py").read_text()
    assert page.is_file()
    assert re.findall(r"^## (.+)$", page.read_text(), re.M) == SECTIONS


def test_every_runbook_has_its_deploy() -> None:
    assert {"serve", "stop", "verify", "doctor", "rollback"} <= set(deploys())
    assert sorted(page.stem for page in RUNBOOKS.glob("*.md")) == deploys()


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_pyinfra_commands_can_be_typed(page: Path) -> None:
    for command in commands(page, "pyinfra"):
        words = command.split()
        deploy = next((word for word in words if word.startswith("deploys/")), None)
        assert deploy is None or deploy in NOT_FILES or (ROOT / deploy).is_file(), command
        options = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert options <= OPTIONS, command
        name = deploy.removeprefix("deploys/").removesuffix(".py") if deploy else None
        for pair in re.findall(r"--data (\S+)", command):
            # a sentence may leave the runbook out, and NAME stands for any
            assert pair.partition("=")[0] in TAKEN.get(name or "", KEYS) and "=" in pair, command


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_data_keys_in_sentences_and_tables_exist(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"--data (\w+)=", text))
    for rows in re.findall(r"^\| key \| default \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.M):
        named |= {
            key for row in rows.splitlines() for key in re.findall(r"`(\w+)`", row.split("|")[1])
        }
    # what a release took away is told there
    assert named <= KEYS | (set(REMOVED) if page.name == "CHANGELOG.md" else set())


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_findings_that_a_page_names_exist(page: Path) -> None:
    """`block CODE` and `warn CODE`, in an output or in a table of failures."""
    named = set(re.findall(r"\b(?:block|warn) ([a-z]+(?:-[a-z]+)+)", page.read_text()))
    assert named <= set(CODES)


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_verbs_of_rignode_exist(page: Path) -> None:
    for command in commands(page, "sudo rignode"):
        assert any(re.match(rf"{verb}\b", command) for verb in VERBS), command


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {command.split()[0] for command in commands(page, "make")}
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_tiers_exist(page: Path) -> None:
    for command in commands(page, r"python -m tests\.tiers"):
        assert set(command.split()) <= set(TIERS), command


def test_readme_and_help_know_the_same_targets() -> None:
    """README's two commands stand in the Makefile with a help line."""
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test", "test-full", "lab-down", "help"):
        assert f"`make {target}`" in (ROOT / "README.md").read_text()
        assert re.search(rf"^{target}:.*## ", makefile, re.M)


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
    for code, (_, gate, doctor, _, _) in incidents().items():
        for name in re.findall(r"`([a-z]+(?:-[a-z]+)*)`", gate + doctor):
            assert name in CODES, f"{code}: {name}"


def test_gates_page_and_incidents_agree() -> None:
    """What docs/gates.md says that a gate prevents is said in the incident's row as well."""
    rows = incidents()
    parts = re.split(r"^## (\S+)\n", (ROOT / "docs" / "gates.md").read_text(), flags=re.M)
    for gate, section in zip(parts[1::2], parts[2::2], strict=True):
        for listed in re.findall(r"Incidents ([ABCD0-9, ]+)", " ".join(section.split())):
            for code in re.findall(r"[ABCD]\d+", listed):
                assert f"`{gate}`" in rows[code][1] + rows[code][2], f"{code}: {gate}"


def named_tests(where: str, text: str) -> int:
    """How many tests the text names (`FILE::NAME`, or a case of a table); each must be there."""
    named = re.findall(r"`(tests/[\w/]+\.(?:py|yaml))::([^`]+)`", text)
    for path, name in named:
        line = (
            rf"^(def {name}\(|{name} = )"
            if path.endswith(".py")
            else rf"case: {re.escape(name)}(,|$)"
        )
        assert re.search(line, (ROOT / path).read_text(), re.M), f"{where}: {path}: {name}"
    return len(named)


def test_tests_that_incidents_name_exist() -> None:
    assert sum([named_tests(code, row[4]) for code, row in incidents().items()])


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
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
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


def test_no_file_holds_a_path_of_this_machine() -> None:
    """Neither this checkout's own folder nor, where that is nobody's standard one, its parent."""
    own = [ROOT]
    usual = {"/", "/tmp", "/root", "/home", "/srv", "/opt", "/mnt", "/var", "/usr", "/data"}
    if len(ROOT.parent.parts) == 2 and str(ROOT.parent) not in usual:
        own.append(ROOT.parent)
    pattern = re.compile("|".join(rf"(?<![\w.-]){re.escape(str(path))}(?=/)" for path in own))
    wrong = [f"{path.relative_to(ROOT)}" for path, text in texts() if pattern.search(text)]
    assert wrong == []
