"""How often rigbook restarts an engine by itself: the watch a silent one, its workers with it."""

from __future__ import annotations

MOST = 3
WINDOW_S = 6 * 3600.0
