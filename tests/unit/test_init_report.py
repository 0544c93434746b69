"""The table that a start writes to its log, from reports of this and of earlier versions."""

from __future__ import annotations

import copy

from embinit_fairseq.init.report import render, signature

#: what version 0.1.0 wrote
OLD = {
    "embed_init": 1,
    "version": "0.1.0",
    "strategy": "pretrained",
    "slots": {
        "encoder": {
            "strategy": "pretrained",
            "oov": "xavier",
            "shuffle": None,
            "match": ["casefold", "exact", "marker"],
            "std": None,
            "target_std": None,
            "seed": 1,
            "before": {"min": -1.0, "max": 1.0, "mean": 0.0, "std": 0.25},
            "rows": 1000,
            "dim": 300,
            "tied": [],
            "after": {"min": -3.0, "max": 3.5, "mean": 0.01, "std": 0.1625},
            "embed_scale": 20.0,
            "after_scaled_std": 3.25,
            "position_std": 0.5,
            "absorption_ratio": 6.5,
            "dictionary": "0123456789abcdef",
            "known_rows": "AAAA",
            "source": {
                "path": "/data/glove.txt",
                "name": "glove.txt",
                "format": "glove",
                "rows": 400000,
                "dim": 300,
                "markers": "none",
                "duplicates": 0,
                "broken_lines": 0,
            },
            "source_moments": {"min": -3.0, "max": 3.5, "mean": 0.02, "std": 0.375},
            "markers": "none",
            "rows_by_rule": {"exact": 170, "casefold": 10},
            "composed": 0,
            "found": 180,
            "coverage_types": 0.18,
            "coverage_tokens": 0.71,
            "freeze": None,
            "in_optimizer": True,
            "signature": "init:pretrained|src:glove.txt|dim:300|cov:0.710|oov:xavier|seed:1|v:0.1.0",
        }
    },
}


def lines_of(record):
    return {line.strip().split("  ")[0]: line.split() for line in render(record).splitlines()}


def new_record():
    record = copy.deepcopy(OLD)
    moments = {"min": -3.0, "max": 3.5, "mean": 0.02, "std": 0.375}
    record["slots"]["encoder"] |= {"matched": moments, "matched_scaled_std": 7.5, "matched_absorption_ratio": 15.0}
    return record


def test_reports_of_earlier_versions_are_shown():
    lines = lines_of(OLD)
    assert lines["all rows"][2:] == ["-3", "3.5", "0.01", "0.1625", "3.25", "6.5"]
    assert "rows with a vector" not in lines
    assert lines["position encoding"][2:] == ["0.5"]
    assert "found 180 words (exact 170, casefold 10); coverage 18.0% of types, 71.0% of tokens" in render(OLD)
    assert signature(OLD["slots"]["encoder"], "0.1.0") == OLD["slots"]["encoder"]["signature"]


def test_the_rows_that_have_a_vector_come_first():
    lines = lines_of(new_record())
    assert lines["rows with a vector"][4:] == ["-3", "3.5", "0.02", "0.375", "7.5", "15"]
    assert lines["all rows"][2:] == ["-3", "3.5", "0.01", "0.1625", "3.25", "6.5"]
    titles = list(lines)
    assert titles.index("rows with a vector") < titles.index("all rows")


def test_without_positions_there_is_no_ratio():
    record = new_record()
    record["slots"]["encoder"] |= {"matched_absorption_ratio": None, "absorption_ratio": None, "position_std": None}
    lines = lines_of(record)
    assert lines["rows with a vector"][4:] == ["-3", "3.5", "0.02", "0.375", "7.5"]
    assert "position encoding" not in lines


def test_several_sources_each_with_its_coverage():
    record = new_record()
    file = {"rows_by_rule": {"exact": 9}, "found": 9, "coverage_types": 0.25, "coverage_tokens": 0.5}
    sources = [{**file, "name": "glove.txt"}, {**file, "name": "b.vec", "found": 1}]
    record["slots"]["encoder"]["source"] |= {"name": "concat:glove.txt,b.vec", "found_in_all": 1, "sources": sources}
    text = render(record)
    assert "in all sources: 1 word\n" in text
    assert "glove.txt: 9 words (exact 9); coverage 25.0% of types, 50.0% of tokens\n" in text
    assert "b.vec: 1 word (exact 9); coverage 25.0%" in text
    assert "|src:concat:glove.txt,b.vec|dim:300|" in signature(record["slots"]["encoder"], "0.1.0")


def test_a_multiple_of_xaviers_sigma_is_in_the_signature():
    slot = OLD["slots"]["encoder"] | {"strategy": "shuffled", "shuffle": "rows", "target_std": 0.004, "std": "0.25x"}
    assert "init:shuffled|" in signature(slot, "0.1.0")
    assert "|std:0.25x|" in signature(slot, "0.1.0")
    assert "|std:xavier|" in signature(slot | {"std": None}, "0.1.0")
    assert "|std:0.02|" in signature(slot | {"std": 0.02}, "0.1.0")
    assert "std:" not in signature(slot | {"std": None, "target_std": None}, "0.1.0")
