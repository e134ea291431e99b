"""pyinfra-testing's makers, without what importing them does to the test process."""

from __future__ import annotations

from unittest.mock import patch

# pyinfra's command line patches the whole standard library for gevent when it is imported; in a
# test process that has sockets and threads already, that breaks them.
with patch("gevent.monkey.patch_all"):
    from pyinfra_testing.facts import make_fact_tests
    from pyinfra_testing.operations import make_operation_tests

__all__ = ["make_fact_tests", "make_operation_tests"]
