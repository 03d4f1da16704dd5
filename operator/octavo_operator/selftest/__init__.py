"""`octavo-operator selftest`: the real controller against a cluster in memory, with faults, in virtual time."""
