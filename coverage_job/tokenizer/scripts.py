"""Unicode scripts of characters, and what is foreign to a language's writing.

Python's `unicodedata` lacks the Script property. The regular expressions of Polars have it, so the table is
asked of them, once per process (half a second): no data is shipped that could age.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import polars as pl

COMMON, INHERITED = "Common", "Inherited"

# Every script of Unicode 16 by its long name; position in `SCRIPTS` is the number in `script_table`.
_NAMES = """
Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali Bhaiksuki
Bopomofo Brahmi Braille Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian Chakma Cham Cherokee
Chorasmian Coptic Cuneiform Cypriot Cypro_Minoan Cyrillic Deseret Devanagari Dives_Akuru Dogra Duployan
Egyptian_Hieroglyphs Elbasan Elymaic Ethiopic Garay Georgian Glagolitic Gothic Grantha Greek Gujarati
Gunjala_Gondi Gurmukhi Gurung_Khema Han Hangul Hanifi_Rohingya Hanunoo Hatran Hebrew Hiragana
Imperial_Aramaic Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kawi
Kayah_Li Kharoshthi Khitan_Small_Script Khmer Khojki Khudawadi Kirat_Rai Lao Latin Lepcha Limbu Linear_A
Linear_B Lisu Lycian Lydian Mahajani Makasar Malayalam Mandaic Manichaean Marchen Masaram_Gondi
Medefaidrin Meetei_Mayek Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mongolian Mro
Multani Myanmar Nabataean Nag_Mundari Nandinagari New_Tai_Lue Newa Nko Nushu Nyiakeng_Puachue_Hmong Ogham
Ol_Chiki Ol_Onal Old_Hungarian Old_Italic Old_North_Arabian Old_Permic Old_Persian Old_Sogdian
Old_South_Arabian Old_Turkic Old_Uyghur Oriya Osage Osmanya Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa
Phoenician Psalter_Pahlavi Rejang Runic Samaritan Saurashtra Sharada Shavian Siddham SignWriting Sinhala
Sogdian Sora_Sompeng Soyombo Sundanese Sunuwar Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham
Tai_Viet Takri Tamil Tangsa Tangut Telugu Thaana Thai Tibetan Tifinagh Tirhuta Todhri Toto Tulu_Tigalari
Ugaritic Vai Vithkuqi Wancho Warang_Citi Yezidi Yi Zanabazar_Square
"""
SCRIPTS: tuple[str, ...] = ("Unknown", COMMON, INHERITED, *_NAMES.split())

# Marks of kana that Unicode calls Common, since several scripts use them: Japanese writing all the same.
KANA_MARKS = frozenset("ーｰﾞﾟ゙゚゛゜")

# The scripts that languages are written in, where it is not Latin alone. By BCP-47 base language.
_WRITTEN = """
Han Hiragana Katakana: ja
Han Bopomofo: zh yue nan wuu gan hak
Hangul: ko
Cyrillic: ru uk be bg mk ky tg ba cv sah ce os ab av kv udm mhr mrj bxr tyv kbd rue
Arabic: ar fa ur ps ug ckb arz azb pnb glk mzn lrc
Devanagari: hi mr ne sa bho mai new kok gom
Cyrillic Latin: sr uz tt
Cyrillic Latin Arabic: az kk
Cyrillic Mongolian: mn
Latin Arabic: ku ms ha
Gurmukhi Arabic: pa
Arabic Devanagari: sd ks
Latin Tifinagh: ber kab zgh
Canadian_Aboriginal Latin: iu cr
Bengali: bn as bpy
Hebrew: he yi
Ethiopic: am ti
Tibetan: bo dz
Georgian: ka xmf
Greek: el
Armenian: hy hyw
Thai: th
Lao: lo
Khmer: km
Myanmar: my
Sinhala: si
Tamil: ta
Telugu: te
Kannada: kn
Malayalam: ml
Gujarati: gu
Oriya: or
Thaana: dv
Syriac: syr
Cherokee: chr
Nko: nqo
Yi: ii
"""
_WRITTEN_IN = {
    language: tuple(scripts.split())
    for scripts, _, languages in (line.partition(": ") for line in _WRITTEN.strip().splitlines())
    for language in languages.split()
}


@lru_cache(maxsize=1)
def script_table() -> npt.NDArray[np.uint8]:
    """uint8[0x110000]: the script of each code point, as its position in `SCRIPTS`; 0 where it has none."""
    planes = [*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE0200)]
    text = pl.Series(["".join(map(chr, planes))])
    table = np.zeros(0x110000, np.uint8)
    for number, name in enumerate(SCRIPTS[1:], 1):
        try:
            runs = text.str.extract_all(rf"\p{{Script={name}}}+")[0].to_list()
        except pl.exceptions.ComputeError:
            continue  # a script newer than the installed Polars
        for run in runs:
            # A run may go on over code points that were left out between planes.
            table[np.frombuffer(run.encode("utf-32-le"), np.uint32)] = number
    return table


@lru_cache(maxsize=1)
def _numbers() -> bytes:
    return script_table().tobytes()  # one look-up in it takes a third of one in an array


def script_of(character: str) -> str:
    """The script of one character.

    >>> script_of("a"), script_of("ж"), script_of("嘉"), script_of("1")
    ('Latin', 'Cyrillic', 'Han', 'Common')
    """
    return SCRIPTS[_numbers()[ord(character)]]


def script_counts(text: str) -> dict[str, int]:
    """Characters per script, Common and Inherited left out, the script met first coming first.

    >>> script_counts("嘉祺 and お")
    {'Han': 2, 'Latin': 3, 'Hiragana': 1}
    """
    numbers = _numbers()
    counts: dict[str, int] = {}
    for c in text:
        name = "Katakana" if c in KANA_MARKS else SCRIPTS[numbers[ord(c)]]
        counts[name] = counts.get(name, 0) + 1
    for name in ("Unknown", COMMON, INHERITED):
        counts.pop(name, None)
    return counts


def main_script(text: str) -> str:
    """The script of most of a text's characters, the first met where two have as many; `Common` for none.

    >>> main_script(" the"), main_script("お願い"), main_script(" 12")
    ('Latin', 'Hiragana', 'Common')
    """
    counts = script_counts(text)
    return max(counts, key=counts.__getitem__) if counts else COMMON


def scripts_of_language(language: str) -> tuple[str, ...]:
    """The scripts that a language (BCP-47) is written in; Latin where nothing else is known.

    >>> scripts_of_language("zh-Hant"), scripts_of_language("pt-BR"), scripts_of_language("sr-Latn")
    (('Han', 'Bopomofo'), ('Latin',), ('Latin',))
    """
    base, *tags = language.split("-")
    if "Latn" in tags:
        return ("Latin",)
    if "Cyrl" in tags:
        return ("Cyrillic",)
    if "Arab" in tags:
        return ("Arabic",)
    return _WRITTEN_IN.get(base.lower(), ("Latin",))


# What may be foreign and is no mixing: code, formulas, tags, URLs and addresses, and what is quoted or put in
# brackets, which is where texts give names in their own writing. A long run of letters is not gone
# over again from each of them: a formula holds no second beginning, an address begins where its letters do,
# and the protocol of a URL is short.
_SET_ASIDE = re.compile(
    r"```.*?(?:```|\Z)"
    r"|`[^`\n]*`"
    r"|\$\$.*?\$\$|\$[^$\n]{1,200}\$|\\\((?:(?!\\\().)*?\\\)|\\\[(?:(?!\\\[).)*?\\\]"
    r"|<[^<>\n]{1,200}>"
    r"|[A-Za-z][A-Za-z0-9+.-]{0,30}://\S+|www\.\S+|(?<![\w.+-])[\w.+-]+@[\w.-]+\.\w+"
    r"|\"[^\"\n]{1,80}\"|“[^”\n]{1,80}”|«[^»\n]{1,80}»|「[^」\n]{1,80}」|『[^』\n]{1,80}』|《[^》\n]{1,80}》"
    r"|\([^()\n]{1,80}\)|（[^（）\n]{1,80}）",
    re.DOTALL,
)


def mixed_script(text: str, language: str, quoted: str = "") -> list[tuple[int, int, str]]:
    """Runs of letters whose script is foreign to `language`: (start, end, script), positions in `text`.

    Set aside are code, formulas, markup, URLs, what stands in quotation marks or brackets, and runs that
    `quoted` (the user's own text) holds too. Latin letters are never foreign: names, abbreviations and
    technical words stand in every language's text; nor is a Greek letter alone, which is a symbol.

    >>> mixed_script("답은 正确입니다 `код`", "ko")
    [(3, 5, 'Han')]
    >>> mixed_script("답은 正确입니다", "ko", quoted="正确 무엇?")
    []
    """
    if text.isascii():
        return []
    table = script_table()[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)]
    own = {SCRIPTS.index(name) for name in (*scripts_of_language(language), "Latin")}
    foreign = ~np.isin(table, [0, 1, 2, *own])
    if not foreign.any():
        return []
    for match in _SET_ASIDE.finditer(text):
        foreign[match.start() : match.end()] = False
    # Marks belong to the letter before them; a run ends where the script changes.
    at = np.flatnonzero(foreign)
    runs = np.split(at, np.flatnonzero((np.diff(at) != 1) | (np.diff(table[at].astype(np.int16)) != 0)) + 1)
    found = [(int(run[0]), int(run[-1]) + 1, SCRIPTS[int(table[run[0]])]) for run in runs if len(run)]
    return [
        (start, end, script)
        for start, end, script in found
        if any(c.isalpha() for c in text[start:end])
        and text[start:end] not in quoted
        and (script != "Greek" or end - start > 1)
    ]
