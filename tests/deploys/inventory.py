"""The inventory of the plan tests: hosts of pyinfra's @fake connector, as a scenario wants them."""

from tests.deploys.fakehost import scenario_hosts

rig = scenario_hosts()
