"""Files of translations: what is refused as another form, what is text, whole logs, shards of one output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_folders import end, write_lines

from embinit_fairseq.errors import DataError
from embinit_fairseq.runs.log import CONFIGURATION
from embinit_fairseq.runs.text_files import read_file
from embinit_fairseq.runs.translations import read_translations

SENTENCES = [f'"The {a}\'s {b}", says {c} & Co, is well-known.' for a in ("dog", "cat") for b in "uvw" for c in "xyz"]


GENERATED = [f"D-{at}\t-0.5{at}\t{line}" for at, line in reversed(list(enumerate(SENTENCES)))]
FORMS = {
    "grep -n": [f"{at * 5}:{line}" for at, line in enumerate(GENERATED)],
    "grep -H": [f"some.log:{line}" for line in GENERATED],
    "indented": [f"  {line}" for line in GENERATED],
    "timestamps": [f"2026-01-01T10:00:00Z {line}" for line in GENERATED],
    "tabs as spaces": [line.replace("\t", " ") for line in GENERATED],
    "references with spaces": [f"T-{at} {line}" for at, line in enumerate(SENTENCES)],
    "csv of a log": [",".join(f'"{part}"' for part in line.split("\t")) for line in GENERATED],
    "scores, Sockeye": [f"-0.{at}\t{line}" for at, line in enumerate(SENTENCES)],
    "score after": [f"{line}\t-0.5" for line in SENTENCES],
    "scores with spaces": [f"-0.5{at} {line}" for at, line in enumerate(SENTENCES)],
    "sacrebleu --echo": [f"{line}\t{line}" for line in SENTENCES],
    "Moses, Marian": [f"{at} ||| {line} ||| F0= -1.2 ||| -0.5" for at, line in enumerate(SENTENCES)],
    "CTranslate2": [f"-0.5 ||| {line}" for line in SENTENCES],
    "segments of Moses": [f"{line} |0-1| again |2-2|" for line in SENTENCES],
    "OpenNMT": [f"PRED {at}: {line}" for at, line in enumerate(SENTENCES, 1)],
    "OpenNMT's log": [
        line
        for at, text in enumerate(SENTENCES, 1)
        for line in (
            "[2026-01-01 10:00:00,001 INFO] ",
            f"SENT {at}: ['x', 'y']",
            f"PRED {at}: {text}",
            "PRED SCORE: -1.2",
            "",
        )
    ],
    "Marian's log": [f"[2026-01-01 10:00:00] Best translation {at} : x {at % 3}" for at in range(9)],
    "jsonl": [json.dumps({"translation": line}) for line in SENTENCES],
    "json": ["[", *(f"  {json.dumps(line)}," for line in SENTENCES), "]"],
    "Python's bytes": [str(line.encode()) for line in SENTENCES],
    "sgm": ["<doc>", *(f'<seg id="{at}">{line}</seg>' for at, line in enumerate(SENTENCES)), "</doc>"],
    "Markdown": ["| text | score |", "|---|---|", *(f"| {line} | 1 |" for line in SENTENCES)],
    "csv": [f"{at},{line}" for at, line in enumerate(SENTENCES)],
    "csv of one column": [f'"{line}"' if at % 3 else f"word {at}" for at, line in enumerate(SENTENCES)],
    "1.": [f"{at}. {line}" for at, line in enumerate(SENTENCES, 1)],
    "cat -n": [f"     {at}\t{line}" for at, line in enumerate(SENTENCES, 1)],
    "colours without ESC": [f"[1;32m{line}[0m" for line in SENTENCES],
    "UTF-16": [f"{line}\0" for line in SENTENCES],
}
QUOTED = [f'"{at} words," they said, "are many."' for at in ("Two", "Three", "Four")]
TEXTS = {
    "marks in some lines": [
        *SENTENCES,
        "a\tb",
        "x ||| y",
        "T-34 tanks",
        '"Yes."',
        "D-7\t1",
        "1. one",
        '{"a": 1}',
        "|a|",
    ],
    "few numbers": ["1. FC", "2. FC", "3. FC"],
    "one line": ["T-34 tanks"],
    "one number": ["1,000 people"],
    "quotations and others": [*QUOTED, "Yes, they are.", "No, they said."],
    "few quotations": [*QUOTED, '"No."', *(f"word {at % 7}" for at in range(50))],
    "numbers": [f"{7 * at % 50} people, {at},000 euros" for at in range(40)],
    "integers": ["12 45 3", "7 8 1", "9 9 4", "12 0 3", "1 4 4"],
    "tags": [f"<de> {line} <unk>" for line in SENTENCES],
    "verses": [f"1:{at % 5} {line}" for at, line in enumerate(SENTENCES)],
    "empty": ["", "", "", ""],
}


@pytest.mark.parametrize("form", FORMS)
def test_another_form_is_refused_on_all_sides(tmp_path, refused, form) -> None:
    lines = list(map(str, FORMS[form]))
    write_lines(tmp_path / "form", lines)
    write_lines(tmp_path / "text", [f"text {at % 4}" for at in range(len(lines))])
    form, text = str(tmp_path / "form"), str(tmp_path / "text")
    for arguments in (
        ("score", form, "--ref", text),
        ("score", text, "--ref", form),
        ("score", text, "--ref", text, "--src", form),
        ("compare", text, form, "--ref", text),
    ):
        assert form in refused(*arguments)


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_text(tmp_path, text) -> None:
    assert read_translations([write_lines(tmp_path / "text", TEXTS[text])]).tokens == TEXTS[text]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("\x1b[2KThe dog", "without a terminal"),  # erases what is before it
        ("a\x1b[3Db", "without a terminal"),
        ("5%\b\b6%", "without a terminal"),
        ("a\x07b", r"tr '\007' ' ' <"),
        ("a\x7fb", r"tr '\177' ' ' <"),
        (" 50%|##  | 1/2\rThe dog", r"tr '\r' ' ' <"),
        ("The dog\rTranslating ...", r"tr '\r' ' ' <"),
        ("\x1b[1;31mThe \x1b[0mdog\x1b(B\x1b[m\x1b[K", ""),
        ("\x1b]0;a title\x07The \x1b]8;;https://x.org\x1b\\dog\x1b]8;;\x1b\\", ""),
        ("\x1b[?25lThe dog\x1b[?25h", ""),
    ],
)
def test_codes_of_a_terminal_are_no_text(tmp_path, line, said) -> None:
    """Codes that change no character are taken out; what moves, erases or writes over text is refused."""
    path = write_lines(tmp_path / "text", ["first", line])
    if not said:
        assert read_translations([path]).tokens == ["first", "The dog"]
        return
    with pytest.raises(DataError) as error:
        read_translations([path])
    assert f"{path}:2: " in str(error.value)
    assert said in str(error.value)
    if "\r" in line:  # of some references
        assert read_file(path) == (["first", line], False)


def full_log(path: Path, numbers: list[int], last: bool = True, **options: str) -> list[str]:
    """Write a log of some sentences as fairseq prints it, with lines of all kinds; return its lines."""
    values = {"gen_subset": "test", "data": "bin", "target_lang": "en", **options}
    lines = [f"2026-01-01 00:00:00 | INFO | fairseq_cli.generate | {CONFIGURATION}{{}}, 'generation': {values}}}"]
    for at in numbers:
        lines += [f"S-{at}\tx", f"T-{at}\ty", f"H-{at}\t-1\tw@@ {at}", f"D-{at}\t-1\tw{at}", f"P-{at}\t-1"]
    lines += [end(len(numbers))] * last
    write_lines(path, lines)
    return lines


def test_a_log_is_whole(tmp_path) -> None:
    """Each sentence has its lines, and the log its end, which names as many sentences."""
    whole = full_log(tmp_path / "log", [2, 0, 1])
    assert read_translations([tmp_path / "log"]).decoded == ["w0", "w1", "w2"]
    for said, lines in {
        "D-1 0 times": [line for line in whole if line[:3] != "D-1"],
        "T-1 0 times": [line for line in whole if line[:3] != "T-1"],
        "D-1 1 times, expected 0": [line for line in whole if line[0] in "DH" and line[:3] != "H-1"],
        "P-1 0 times": whole[:-2],
        "its end is missing": whole[:-1],
        "4 sentences translated": [*whole[:-1], end(4)],
        "two outputs": [line for line in whole if line[:2] in ("H-", "D-")] * 2,
        "D-1 is not alone": [line.replace("D-1", "  0%|   | 0/3\rD-1") for line in whole],
        "H-1 is not alone": [line.replace("H-1\t-1\t", "H-1\t-1\tw 2026-01-01 00:00:00 | INFO | x") for line in whole],
        r"'\\x1b\[2K'": [line.replace("\tw", "\t\x1b[2Kw") for line in whole],
        "H-0 is not alone": [f"{line}[0m" if line[:3] == "H-0" else line for line in whole],
        "expected a tab": [line.replace("\t", " ") for line in whole],
    }.items():
        with pytest.raises(DataError, match=said):
            read_translations([write_lines(tmp_path / "log", lines)])
    for kind in "STHDP":  # > log 2>&1, with the end of a block of stdout before the end of a line
        at = next(number for number, line in enumerate(whole) if line.startswith(f"{kind}-2"))
        log = ["2026-01-01 00:00:00 | INFO | x", "2026-01-01 00:00:00 | WARNING | y"]
        write_lines(tmp_path / "log", [*whole[:at], whole[at] + log[0], log[1], "", *whole[at + 1 :]])
        assert read_translations([tmp_path / "log"]).decoded == ["w0", "w1", "w2"]
    coloured = [f"\x1b]0;title\x07\x1b[1;32m{line}\x1b(B\x1b[m\x1b[K" for line in whole]
    assert read_translations([write_lines(tmp_path / "log", coloured)]).decoded == ["w0", "w1", "w2"]
    several = [line for line in whole for _ in range(2 if line[:2] in ("H-", "D-") else 1) if line[:2] != "P-"]
    assert read_translations([write_lines(tmp_path / "log", several)]).search() == "--nbest 2"


def test_shards_are_of_one_output(tmp_path) -> None:
    """Also in one file, and after the log of the training; shards of other data, languages and steps are refused."""
    first, second = (full_log(tmp_path / f"{at}.log", [at, at + 2]) for at in (0, 1))
    training = [f"... | INFO | fairseq_cli.train | {CONFIGURATION}{{}}, 'beam': 9", "done training"]
    write_lines(tmp_path / "log", [*training, *first, *second])
    found = read_translations([tmp_path / "log"])
    assert (found.decoded, found.option("gen_subset")) == (["w0", "w1", "w2", "w3"], "test")
    for option in ("gen_subset", "data", "source_lang", "target_lang", "post_process", "max_len_b"):
        other = full_log(tmp_path / "1.log", [1, 3], **{option: "x"})
        for places in (["0.log", "1.log"], [write_lines(tmp_path / "log", [*first, *other]).name]):
            with pytest.raises(DataError, match=f"--{option.replace('_', '-')} x"):
                read_translations([tmp_path / place for place in places])
    write_lines(tmp_path / "1.log", [line for line in second if line[:2] != "D-"])
    with pytest.raises(DataError, match="only some"):
        read_translations([tmp_path / "0.log", tmp_path / "1.log"])
