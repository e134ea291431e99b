"""One document of what a host is; a section that cannot be read says why."""
