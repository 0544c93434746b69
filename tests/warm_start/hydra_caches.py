"""Makes hydra compose a configuration of fairseq in a third of its time; the configuration is the same."""

from __future__ import annotations

import argparse
import copy
import functools


def cache_hydra() -> None:
    """Parse each text once per process: nearly all of the 200 options are the same in every configuration of fairseq.

    Leave out the copy of hydra's repository of configurations, which fairseq makes for each configuration, and the
    options of fairseq's own sections that have their defaults, which hydra knows.
    """
    from fairseq.dataclass import utils
    from hydra._internal.config_repository import CachingConfigRepository
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = functools.cache(functools.partial(OverridesParser.parse_rule, OverridesParser.create()))
    OverridesParser.parse_rule = lambda _, text, rule: copy.copy(parsed(text, rule))
    CachingConfigRepository.__init__ = lambda self, delegate: vars(self).update(delegate=delegate, cache={})
    utils.compose = without_defaults(utils.compose, utils.override_module_args(argparse.Namespace())[0])


def without_defaults(compose, defaults):
    """Return hydra's function for all options but these."""
    usual = frozenset(defaults)

    @functools.wraps(compose)
    def compose_others(name, overrides=(), **more):
        return compose(name, overrides=[text for text in overrides if text not in usual], **more)

    return compose_others
