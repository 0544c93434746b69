"""Define the version: in reports, signatures and `embinit --version`."""

VERSION = "0.2.0"
