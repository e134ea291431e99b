"""How a run says that it lives: each node that it changes notes it, now and then."""

from __future__ import annotations

# a run notes it so often, in seconds
BEAT_S = 15.0
# a run that noted nothing for so long, in seconds, is dead: a machine that loads weights may stall
# for a minute, and a laptop that slept longer is refused at its next write
DEAD_S = 120.0
# with a lease, the nodes go back by themselves after so many seconds without a sign of life
LEASE_S = 120
# less would end a run for two signs of life that were lost
LEAST_LEASE_S = 45
# where the nodes' keepers ask each other (UDP)
LEASE_PORT = 29530
# the deploy's name of a keeper, where a run says its own
KEEPER = "lease"
