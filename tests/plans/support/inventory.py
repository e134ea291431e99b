"""The inventory of the plan tests: hosts of pyinfra's @fake connector, as a scenario wants them."""

from tests.plans.support.fakehost import scenario_hosts

rig = scenario_hosts()
