"""Recognise a file that does not have a text per line: markup, subtitles, transcripts, sequences, columns, tags.

Marks would become words, and nobody would notice. The error has the command that makes a text or a table of the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

#: number of lines with words at the beginning of a file that show its form
FIRST = 100


class _Form(NamedTuple):
    """Describe a form that a file may have.

    Args:
        name: name of the form, for messages.
        pattern: the beginning of its lines.
        share: smallest share of the first lines that fit the pattern.
        remedy: the command that makes a text or a table of FILE.
        first: the beginning of the first line, without which the pattern is too common.
    """

    name: str
    pattern: str
    share: float
    remedy: str
    first: str = ""


#: a sentence may have the form of a line by chance, so that nearly all lines must have it
_NEARLY_ALL = 0.9
#: a line that is an element or a tag
_TAG = r"\s*(?:<(\w[\w:.-]*)\b[^<>]*>.*</\1>|</?[!?\w][^<>]*>)\s*$"
_OWN_TEXT = "write its text, a sentence per line (ELAN, Transcriber: export it as a table or as text)"
_TIME = r"\d+(?:\.\d+)?"
_FORMS = (
    _Form(
        "translations in TMX",
        r".*<(?:tmx|tuv?)\b",
        0.2,
        "make a table of it: python -c \"import json, xml.etree.ElementTree as E; n = 'lang', "
        "'{http://www.w3.org/XML/1998/namespace}lang'; [print(json.dumps({v.get(n[1], v.get(n[0])): "
        "''.join(v.find('seg').itertext()) for v in u.iter('tuv')})) for _, u in E.iterparse('FILE') "
        "if u.tag == 'tu']\" > NEW.jsonl",
    ),
    _Form(
        "segments in SGML or XML",
        r"\s*<seg\b.*</seg>",
        0.1,
        "take them out: python -c \"import html, re; [print(' '.join(html.unescape(s).split())) for s in "
        "re.findall('(?is)<seg[^>]*>(.*?)</seg>', open('FILE', encoding='utf-8').read())]\" > NEW",
    ),
    _Form("XML or HTML", _TAG, _NEARLY_ALL, _OWN_TEXT),
    _Form("XML or HTML", _TAG, 0.2, _OWN_TEXT, first=r"\ufeff?\s*<(?:\?xml|!DOCTYPE)\b"),
    _Form(
        "JSON",
        r"\s*(?:(?:\[\s*)*\{\s*\"|\[\s*\"|[\[{}\]]+,?\s*$|\"[^\"]*\"\s*:)",
        _NEARLY_ALL,
        "name it FILE.jsonl, and its columns by --text-columns",
    ),
    _Form(
        "subtitles",
        r"(?:\d+:)?\d\d:\d\d[.,]\d+ +--> ",
        0.2,
        "take their text, a subtitle per line: tr -d '\\r' < FILE | LC_ALL=C awk -v RS= 'sub(/^([^\\n]*\\n)?[^\\n]*-->"
        '[^\\n]*\\n?/, "") {gsub(/<[^>]*>|[{]\\\\[^}]*[}]/, ""); gsub(/\\n/, " "); print}\' > NEW',
    ),
    _Form(
        "a transcript in CHAT",
        r"[@*%]\w|\t",
        _NEARLY_ALL,
        "take its utterances without their times (another tier, such as translations: T=%eng:): awk -v T='*' 'function "
        'out() {if (index(s, T) == 1) {sub(/^[^\\t]*\\t/, "", s); print s}} {sub(/\\r$/, ""); '
        'gsub(/ ?\\025[^\\025]*\\025/, "")} /^\\t/ {s = s " " substr($0, 2); next} {out(); s = $0} END {out()}\' '
        "FILE > NEW",
        first=r"\ufeff?@(?:UTF8|Begin|Font|PID|Window)\b",
    ),
    _Form(
        "a TextGrid of Praat",
        r"\ufeff?(?:File type|Object class)|\s*(?:[a-z ]+(?: ?\[\d*\])?:|(?:[xyz]?min|[xyz]?max|size|class|name|text|"
        r"mark|number|time|value) = |tiers\?)",
        _NEARLY_ALL,
        "take the texts of its intervals: sed -nE 's/^ *text = \"(.*)\" *\\r?$/\\1/p' FILE > NEW",
    ),
    _Form(
        "times of words in CTM",
        rf"\S+ +(?:\d|[A-Z])\w* +{_TIME} +{_TIME} +\S+",
        _NEARLY_ALL,
        'write a recording per line: awk \'$1 != f {if (NR > 1) print ""; f = $1} {printf "%s ", $5} END {print ""}\' '
        "FILE > NEW",
    ),
    _Form(
        "segments in STM",
        rf"\S+ +\S+ +\S+ +{_TIME} +{_TIME} +\S",
        _NEARLY_ALL,
        "take their text: sed -E '/^;;/d; s/^(\\S+ +){5}(<\\S*> *)?//' FILE > NEW",
    ),
    _Form(
        "sequences in FASTA",
        r"[>;]|[A-Za-z*.-]+\s*$",
        _NEARLY_ALL,
        "write a sequence per line, as words of K capitals: awk -v K=6 'function out(  i) {for (i = 1; i + "
        'K <= length(s) + 1; i++) printf "%s ", substr(s, i, K); if (s) print ""; s = ""} {sub(/\\r$/, "")} /^[>;]/ '
        "{out(); next} {s = s toupper($0)} END {out()}' FILE > NEW",
        first=r"\ufeff?[>;]\S",
    ),
    _Form(
        "reads in FASTQ",
        r"[ACGTUN.]+\s*$|\+",
        0.45,
        "write it as FASTA first: awk 'NR % 4 == 1 {sub(/^@/, \">\"); print} NR % 4 == 2' FILE > NEW",
        first=r"@\S+",
    ),
    _Form(
        "tokens in CoNLL-U",
        r"\d+(?:[-.]\d+)?\t(?:[^\t]*\t){8}",
        0.3,
        "take its sentences: sed -n 's/^# text = //p' FILE > NEW",
    ),
    _Form(
        "tokens with their tags",
        r"-DOCSTART-|\S+(?:[ \t]+\S+)*[ \t]+(?:O|[BIESLU]-\S+)\s*$",
        _NEARLY_ALL,
        'write their sentences: awk \'{sub(/\\r$/, "")} /^-DOCSTART-/ {next} NF {s = s $1 " "} !NF && s {print s; '
        's = ""} END {if (s) print s}\' FILE > NEW',
    ),
    _Form(
        "labels of fastText",
        r"__label__\S+\s",
        _NEARLY_ALL,
        "make a table of it: (printf 'label\\ttext\\n'; sed -E 's/^__label__(\\S+)\\s+/\\1\\t/' FILE) > NEW.tsv",
    ),
    _Form(
        "trees in brackets",
        r"\(\S+ \(.*\)\)\s*$",
        _NEARLY_ALL,
        "take their words: sed -E 's/\\(\\S+ //g; s/\\)//g' FILE > NEW",
    ),
    _Form(
        "two texts per line (|||)",
        r".*\S \|\|\| \S",
        _NEARLY_ALL,
        "write them into two files: sed 's/ ||| .*//' FILE > train.de; sed 's/.* ||| //' FILE > train.en",
    ),
    _Form(
        "columns separated by tabs",
        r".*\S\t.*\S",
        _NEARLY_ALL,
        "name it .tsv, with the names of the columns in line 1, and give --text-columns; if tabs are spaces of the "
        "text: tr '\\t' ' ' < FILE > NEW",
    ),
    _Form(
        "a name of a recording before each text",  # of Kaldi or LibriSpeech; a text may begin with a date or PROJ-123
        r"(?!\d{4}-\d\d-\d\d\b)(?=\S*\d{3})(?=\S*[-_]\S*[-_]|\S*\D0\d\d)\w+[-_]\S+ +\S[^\t]*$",
        _NEARLY_ALL,
        "take the texts alone: sed -E 's/^\\S+ +//' FILE > NEW",
    ),
)


def other_form(lines: Sequence[str]) -> tuple[str, str] | None:
    """Return (name of the form, remedy) if the first lines of a file are not a text per line, else None.

    lines: lines with words, at most FIRST.
    """
    for form in _FORMS:
        if not lines or not re.match(form.first, lines[0]):
            continue
        fitting = sum(map(bool, map(re.compile(form.pattern).match, lines)))
        if fitting and fitting >= form.share * len(lines):
            return form.name, form.remedy
    return None
