"""Secrets of an engine's environment: which names hold them, and what may be one.

No text here quotes a value.
"""

from __future__ import annotations

import re

# Where serve writes them on a node (root's alone), and the one that rigbook itself asks with.
SECRETS_PATH = "/etc/rigbook/engine/secrets.env"
API_KEY = "VLLM_API_KEY"
MASK = "***"
MAX_VALUE = 8192
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
    if len(value) > MAX_VALUE:
        return f"is longer than {MAX_VALUE} characters"
    if not value.isprintable():
        return "holds a newline or another control character"
    if name == API_KEY and not (value.isascii() and " " not in value):
        return "has characters no HTTP header can hold"
    return None
