"""The version: in reports, signatures and `embinit --version`."""

VERSION = "0.1.0"
