"""What all other packages of node need: errors, validation, processes, commands with limits."""
