"""Changes: pyinfra operations that read, then do nothing or act; they know no runbook.

`run` is a rig's change, `apply` the operation that applies steps, `rollback` undoes one; `engine`,
`venv`, `transfer`, `image`, `host`, `cluster` and `adopt` are of one thing each.
"""
