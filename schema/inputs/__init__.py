"""What people write: inventory, group data, --data; and the loader that makes a plan of it."""
