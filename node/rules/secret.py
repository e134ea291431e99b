"""Secrets of an engine's environment: which names hold them, and what may be one.

No text here quotes a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Where serve writes them on a node (root's alone), and the one that rigbook itself asks with.
SECRETS_PATH = "/etc/rigbook/engine/secrets.env"
API_KEY = "VLLM_API_KEY"
MASK = "***"
MAX_SECRET = 8192
# Variables that a host reports of an engine; those of a SECRET_NAME it masks.
WATCHED = (
    "VLLM_", "NCCL_", "GLOO_", "CUDA_", "HF_", "TORCH", "OMP_", "PYTORCH_", "TRITON",
    "FLASHINFER", "DG_", "TILELANG", "TRANSFORMERS_", "GENESIS_", "SNDR_",
)  # fmt: skip
SECRET_NAME = re.compile(
    r"TOKEN|KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|AUTH|(?:^|_)(?:PASS|PAT)(?:_|$)",
    re.IGNORECASE,
)
# A flag of a command line whose values nobody is to see.
SECRET_FLAG = re.compile(
    r"--(?:[a-z0-9_-]+[-_])?(?:api[-_]key|token|secret|passw(?:or)?d|passphrase)\Z"
)
_ENDS = r"api_?key|access_?key|secret_?key|secret|password|passwd|passphrase|credentials?|cookie"
_HOLDS = re.compile(rf"(?:.*_)?(?:{_ENDS}|token)\Z", re.IGNORECASE)
# In a JSON of the engine's, where `image_token` and its like are words of the model.
_HOLDS_INSIDE = re.compile(rf"(?:.*_)?(?:{_ENDS}|(?:api|auth|access|hf)_token)\Z", re.IGNORECASE)
_USER_IN_URL = re.compile(r"://[^/?#]*@")
# `tokens` are what a model makes; a name alone is followed by its value where it is a flag's
_KEY = (
    r"(?:(?:api|access|secret|private)[-_]?key|secret|password|passwd|passphrase|webhook"
    r"|token(?=[^a-z]))s?"
)
_NAMED = re.compile(
    rf"(--[\w-]*{_KEY}\s+|{_KEY}['\"]?\s*[:=]\s*)"
    r"(?:\[[^\]]*\]?|\([^)]*\)?|'[^']*'?|\"[^\"]*\"?|[^\s,;'\"\])}]+)",
    re.IGNORECASE,
)
# "NAME=a value of several words", as systemd writes it
_QUOTED = re.compile(rf"(?P<q>['\"])(?P<name>\w*{_KEY}\w*=)[^'\"]*(?=(?P=q))", re.IGNORECASE)
# values that name themselves (the hub's, GitHub's, NVIDIA's, AWS's, Slack's, a header's), a user's
# in a URL, and a webhook's URL, which is its own password
_BARE = re.compile(
    r"\b(hf_|sk-|ghp_|gho_|github_pat_|glpat-|nvapi-|AKIA|xox[abps]-|Bearer |Authorization: Basic )"
    r"[A-Za-z0-9_.\-+/=]{6,}|(?<=://)[^/?#\s@]*(?=@)"
    r"|(https?://(?:[^\s/'\"]*hooks?\.|ntfy\.|(?=[^\s'\"]*/(?:web)?hooks?/))[^\s/'\"]+/)"
    r"[^\s'\"]+"
)


def masked_line(line: str) -> str:
    """Gives a line of a log with what stands behind a secret's name masked."""
    return _NAMED.sub(rf"\1{MASK}", _QUOTED.sub(rf"\g<q>\g<name>{MASK}", line))


def masked_text(text: str) -> str:
    """Gives a text that leaves for other people: secrets by name, by form and in URLs masked."""
    return _BARE.sub(lambda found: (found[1] or found[2] or "") + MASK, masked_line(text))


def holds_secret(name: str, inside: bool = False) -> bool:
    """Gives True for a name whose value is a secret: HF_TOKEN, api_key; not TOKENIZER.

    `inside`: a key in a JSON value.
    """
    return bool((_HOLDS_INSIDE if inside else _HOLDS).match(name.replace("-", "_")))


def is_reported(name: str) -> bool:
    """Gives True for a variable whose value a host reports as it is."""
    return name.startswith(WATCHED) and not SECRET_NAME.search(name)


def has_credentials(text: str) -> bool:
    """Gives True for a text with a URL that holds a user name or a password."""
    return bool(_USER_IN_URL.search(text))


def unfit(name: str, value: str) -> str | None:
    """Gives why a value cannot be the secret `name`, or None; the value is not in it."""
    if not value:
        return "is empty"
    if len(value) > MAX_SECRET:
        return f"is longer than {MAX_SECRET} characters"
    if not value.isprintable():
        return "holds a newline or another control character"
    if name == API_KEY and not (value.isascii() and " " not in value):
        return "has characters no HTTP header can hold"
    return None


# What of an environment or a command line may leave the host.

# a path list of an engine is a few KB; a process of anybody may have 2 MB
MAX_ENVIRON_VALUE = 32 << 10
_ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def watched_environ(environ: dict[str, str]) -> dict[str, str]:
    """Gives the variables that rigbook watches, sorted; values of secrets are masked."""
    return {
        name: MASK if SECRET_NAME.search(name) else environ[name][:MAX_ENVIRON_VALUE]
        for name in sorted(environ)
        if name.startswith(WATCHED)
    }


def masked_cmdline(text: str) -> str:
    """Gives a kernel's command line with the values of secrets masked: set_credential=… too."""
    pairs = (word.partition("=") for word in text.split())
    return " ".join(
        f"{name}={MASK}" if value and (SECRET_NAME.search(name) or "credential" in name)
        else f"{name}{equals}{value}" for name, equals, value in pairs
    )  # fmt: skip


def is_secret(name: str, value: str) -> bool:
    """Gives True for a variable whose value nobody is to see, by its name or by a URL's password.

    A number, a word such as `false` or a path is none, whatever the name (TOKENIZERS_PARALLELISM).
    """
    if holds_secret(name) or has_credentials(value):
        return True
    return bool(SECRET_NAME.search(name)) and len(value) > 5 and not value.startswith("/")


def masked_argv(argv: Iterable[str]) -> tuple[str, ...]:
    """Gives argv with the values of --api-key and its like masked.

    `--api-key` of vLLM takes several values, so all up to the next option are masked.
    """
    out: list[str] = []
    hiding = False
    for arg in argv:
        flag, equals, _ = arg.partition("=")
        if SECRET_FLAG.match(flag):
            hiding = not equals
            out.append(f"{flag}={MASK}" if equals else arg)
        elif hiding and not arg.startswith("-"):
            out.append(MASK)
        else:
            hiding = False
            out.append(arg)
    return tuple(out)


def masked_labels(labels: dict[str, str]) -> dict[str, str]:
    """Gives a container's labels, sorted, with the values of secrets masked."""
    return {
        name: MASK if SECRET_NAME.search(name) else str(labels[name]) for name in sorted(labels)
    }


def masked_env_file(text: str, every: bool = False) -> str | None:
    """Gives an environment file's text with the values of secrets masked; with `every` all values,
    and the words of comments.

    None when a line is neither NAME=VALUE, a comment nor empty: it is then no environment file,
    and what it holds is not ours to tell.
    """
    out: list[str] = []
    for line in text.splitlines(keepends=True):
        name, equals, _ = line.partition("=")
        if line.strip() and not line.startswith("#") and not (equals and _ENV_NAME.match(name)):
            return None
        ending = line[len(line.rstrip("\r\n")) :]
        if line.startswith("#"):
            out.append(f"#{ending}" if every else line)
        else:
            secret = equals and (every or SECRET_NAME.search(name))
            out.append(f"{name}={MASK}{ending}" if secret else line)
    return "".join(out)
