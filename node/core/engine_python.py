"""Which Python an image's vLLM has, for programs that run in its place."""

from __future__ import annotations

# `python3` of an image may be another one than that of its `vllm` (an image with a venv). What
# stands behind it is Python's: the program, which follows -c, and its arguments.
SHELL = """\
p=$(command -v vllm) && read -r first < "$p" && case $first in
"#!"*python*) exec ${first#??} -c "$@";; esac
exec python3 -c "$@"
"""
