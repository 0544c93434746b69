"""Presets: `--arch NAME` sets what the command line does not."""

from __future__ import annotations

from typing import Any

from fairseq.models import register_model_architecture


def register_presets(model: str, presets: dict[str, dict[str, Any]]) -> None:
    """presets: name of the architecture -> options in which it differs from the defaults of `model`."""
    for arch, preset in presets.items():
        _register(model, arch, preset)


def _register(model: str, arch: str, preset: dict[str, Any]) -> None:
    @register_model_architecture(model, arch)
    def fill_in(args: Any) -> None:
        for name, value in preset.items():
            setattr(args, name, getattr(args, name, value))
