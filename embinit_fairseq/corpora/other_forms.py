"""Recognise a file that does not have a text per line: markup, subtitles, columns, tags.

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
    """

    name: str
    pattern: str
    share: float
    remedy: str


#: a sentence may have the form of a line by chance, so that nearly all lines must have it
_NEARLY_ALL = 0.9
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
    _Form(
        "XML or HTML",
        r"\s*(?:<(\w[\w:.-]*)\b[^<>]*>.*</\1>|</?[!?\w][^<>]*>)\s*$",
        _NEARLY_ALL,
        "write its text, a sentence per line",
    ),
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
)


def other_form(lines: Sequence[str]) -> tuple[str, str] | None:
    """Return (name of the form, remedy) if the first lines of a file are not a text per line, else None.

    lines: lines with words, at most FIRST.
    """
    for form in _FORMS:
        fitting = sum(map(bool, map(re.compile(form.pattern).match, lines)))
        if lines and fitting >= form.share * len(lines) and fitting:
            return form.name, form.remedy
    return None
