"""Checkpoints of the TUPE authors' code as checkpoints of `tupe_*`."""
