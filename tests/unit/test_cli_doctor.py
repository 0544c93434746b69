"""The doctor: what works is ok, what is broken is named with a remedy and gives exit code 1."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from embinit_fairseq.cli import doctor
from embinit_fairseq.cli import doctor as checks
from embinit_fairseq.cli.main import main

pytest.importorskip("fairseq", reason="the doctor looks at fairseq; install it with scripts/setup.sh")


def statuses(findings) -> dict[str, str]:
    return {finding.check: finding.status for finding in findings}


def test_steps_of_stock_architectures_and_registration(capsys):
    code = main(["doctor", "--json", "--arch", "transformer", "roberta_base", "lstm", "transformer_lm"])
    record = json.loads(capsys.readouterr().out)
    found = {finding["check"]: finding for finding in record["findings"]}
    for arch in ("transformer", "roberta_base", "lstm", "transformer_lm"):
        assert found[f"step {arch}"]["status"] == "ok", found[f"step {arch}"]
        assert found[f"step {arch}"]["data"]["loss"] > 0
    assert {"xavier", "pretrained", "shuffled"} <= set(found["registration"]["data"]["embed_init"])
    assert "embinit_classifier" in found["registration"]["data"]["architectures"]
    assert code == (0 if record["ok"] else 1)


def test_own_architectures_do_not_include_stock_ones():
    assert "transformer" not in checks.own_architectures()


@pytest.mark.parametrize("arch", ["electra_tiny", "electra_tupe_base"])
def test_electra_is_tried_with_both_of_its_losses(arch):
    """A discriminator that knows nothing loses log 2 a token, 50 times that with its weight; the generator log 20."""
    (finding,) = checks.steps([arch])
    assert (finding.status, finding.detail.split(",")[0]) == ("ok", "masked_lm")
    assert 25 < finding.data["loss"] < 55


def test_an_unknown_architecture_is_broken_not_a_traceback():
    (finding,) = checks.steps(["no_such_arch"])
    assert (finding.status, "no_such_arch" in finding.detail) == ("broken", True)


def test_a_loss_that_is_not_finite_is_broken(monkeypatch):
    from embinit_fairseq.bench import steps as training_step

    monkeypatch.setattr(training_step, "math", SimpleNamespace(isfinite=lambda value: False))
    (finding,) = checks.steps(["transformer"])
    assert finding.status == "broken"
    assert "ArithmeticError" in finding.detail


def test_a_broken_finding_gives_exit_code_1_and_its_remedy(capsys, monkeypatch):
    broken = checks.Finding("import fairseq", "broken", "ValueError: mutable default", "run the setup")
    monkeypatch.setattr(checks, "fairseq_import", lambda: broken)
    assert main(["doctor", "--no-steps"]) == 1
    text = capsys.readouterr().out
    assert "-> run the setup" in text
    assert "1 broken" in text
    assert "registration" not in text  # rests on the import


def test_missing_packages(monkeypatch):
    monkeypatch.setattr(checks, "PACKAGES", {"no-such-package": "", "no-such-extra": "no pictures", "numpy": ""})
    found = statuses(checks.versions())
    assert (found["no-such-package"], found["no-such-extra"], found["numpy"]) == ("broken", "warning", "ok")


def test_a_fix_that_is_needed_and_not_active_is_broken(monkeypatch):
    class Fix:
        fix, reason = "numpy_aliases", "loaded before the hook"

        def __init__(self, needed, active):
            self.needed, self.active = needed, active

    module = type(sys)("fairseq_compat")
    monkeypatch.setitem(sys.modules, "fairseq_compat", module)
    for needed, active, expected in ((True, False, "broken"), (True, True, "ok"), (False, False, "ok")):
        module.status = lambda needed=needed, active=active: [Fix(needed, active)]
        (finding,) = checks.compatibility()
        assert finding.status == expected
        assert bool(finding.hint) == (expected == "broken")


def test_without_fairseq_compat_there_is_a_hint(monkeypatch):
    monkeypatch.setitem(sys.modules, "fairseq_compat", None)
    (finding,) = checks.compatibility()
    assert (finding.status, "setup.sh" in finding.hint) == ("warning", True)


def test_rendering_ends_in_a_verdict():
    ok = checks.Finding("torch", "ok", "2.0")
    assert doctor.render([ok]).endswith("everything works")
    absent = checks.Finding("x", "warning", "absent", "install it")
    assert doctor.render([ok, absent]).endswith("0 broken, 1 warning")
    assert doctor.render([absent, absent]).endswith("0 broken, 2 warnings")
