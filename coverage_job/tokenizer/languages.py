"""The language of a token's text, as far as its letters tell; the rule that told is always given.

A language is named where the writing decides it, or where what is written speaks clearly for one language:
- `zxx`, no linguistic content: no letters at all (digits of any script, punctuation, white space, emoji), and
  code, markup and addresses, told by ASCII signs, digits or capitals inside the letters;
- the script's language, where one language uses the script; where one has nearly all of a script's text
  (Bengali, Ethiopic, Hebrew), that one, unless letters tell of another;
- where languages share a script, the language that alone writes these letters, or whose spelling it is
  (`spelling.py`). Kana is `ja`; Chinese characters go by the national sets that hold them, and what Chinese
  and Japanese share is `zh` from two characters on;
- `und`, letters of an undecided language: one letter, two inside a word, consonants alone, a piece or a name
  that several languages would write, one character that Chinese and Japanese share, a part of a character of
  a shared script.
So an undecided Latin piece is `und`, not English: calling it English would mix the pieces of all other
languages, which a narrow corpus starves first, into the figures for English. Where a corpus says what
language its records are, its counts know better than letters: `by_counts`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import polars as pl

from coverage_job.tokenizer.entries import begun_by
from coverage_job.tokenizer.scripts import (
    COMMON,
    INHERITED,
    SCRIPTS,
    script_counts,
    script_table,
)
from coverage_job.tokenizer.spelling import Asked, spelling

NO_LANGUAGE = "zxx"  # BCP-47: no linguistic content
UNDETERMINED = "und"  # letters, but of an undecided language

# Scripts of (nearly) one language, living ones first. Braille and SignWriting have no letters in Unicode.
_OF_SCRIPT = {
    "Hangul": "ko", "Thai": "th", "Lao": "lo", "Khmer": "km", "Myanmar": "my", "Sinhala": "si",
    "Tamil": "ta", "Telugu": "te", "Kannada": "kn", "Malayalam": "ml", "Gujarati": "gu", "Gurmukhi": "pa",
    "Oriya": "or", "Georgian": "ka", "Armenian": "hy", "Greek": "el", "Tibetan": "bo", "Thaana": "dv",
    "Cherokee": "chr", "Nko": "nqo", "Yi": "ii", "Bopomofo": "zh", "Nushu": "zh", "Hiragana": "ja",
    "Katakana": "ja", "Mongolian": "mn", "Javanese": "jv", "Balinese": "ban", "Sundanese": "su",
    "Tai_Tham": "nod", "Tifinagh": "zgh", "Syriac": "syr", "Ol_Chiki": "sat", "Meetei_Mayek": "mni",
    "Vai": "vai", "Adlam": "ff", "Tai_Le": "tdd", "New_Tai_Lue": "khb", "Tai_Viet": "blt",
    "Buginese": "bug", "Cham": "cjm", "Lepcha": "lep", "Limbu": "lif", "Lisu": "lis", "Osage": "osa",
    "Osmanya": "so", "Syloti_Nagri": "syl", "Tagalog": "tl", "Bamum": "bax", "Bassa_Vah": "bsq",
    "Batak": "bbc", "Buhid": "bku", "Chakma": "ccp", "Deseret": "en", "Shavian": "en", "Dives_Akuru": "dv",
    "Dogra": "doi", "Elbasan": "sq", "Todhri": "sq", "Vithkuqi": "sq", "Garay": "wo",
    "Gunjala_Gondi": "gon", "Masaram_Gondi": "gon", "Gurung_Khema": "gvr", "Hanifi_Rohingya": "rhg",
    "Hanunoo": "hnn", "Kayah_Li": "eky", "Khojki": "sd", "Khudawadi": "sd", "Kirat_Rai": "bap",
    "Makasar": "mak", "Medefaidrin": "dmf", "Mende_Kikakui": "men", "Miao": "hmd", "Modi": "mr",
    "Mro": "mro", "Multani": "skr", "Nag_Mundari": "unr", "Ol_Onal": "unr", "Newa": "new",
    "Nyiakeng_Puachue_Hmong": "hnj", "Pahawh_Hmong": "mww", "Pau_Cin_Hau": "ctd", "Rejang": "rej",
    "Saurashtra": "saz", "Sora_Sompeng": "srb", "Sunuwar": "suz", "Tagbanwa": "tbw", "Tangsa": "nst",
    "Tirhuta": "mai", "Toto": "txo", "Wancho": "nnp", "Warang_Citi": "hoc", "Yezidi": "ku",
    "Samaritan": "sam", "Mandaic": "mid", "Coptic": "cop", "Gothic": "got", "Glagolitic": "cu",
    "Egyptian_Hieroglyphs": "egy", "Cuneiform": "akk", "Ugaritic": "uga", "Avestan": "ae",
    "Phoenician": "phn", "Old_Persian": "peo", "Ahom": "aho", "Anatolian_Hieroglyphs": "hlu",
    "Bhaiksuki": "sa", "Grantha": "sa", "Nandinagari": "sa", "Sharada": "sa", "Siddham": "sa",
    "Carian": "xcr", "Caucasian_Albanian": "xag", "Chorasmian": "xco", "Cypriot": "grc", "Elymaic": "arc",
    "Hatran": "arc", "Imperial_Aramaic": "arc", "Nabataean": "arc", "Palmyrene": "arc",
    "Inscriptional_Pahlavi": "pal", "Psalter_Pahlavi": "pal", "Inscriptional_Parthian": "xpr",
    "Kawi": "kaw", "Kharoshthi": "pgd", "Khitan_Small_Script": "zkt", "Linear_A": "lab", "Linear_B": "gmy",
    "Lycian": "xlc", "Lydian": "xld", "Marchen": "xzh", "Meroitic_Cursive": "xmr",
    "Meroitic_Hieroglyphs": "xmr", "Ogham": "sga", "Old_Hungarian": "hu", "Old_Italic": "ett",
    "Old_North_Arabian": "xna", "Old_Permic": "kv", "Old_Sogdian": "sog", "Sogdian": "sog",
    "Old_South_Arabian": "xsa", "Old_Turkic": "otk", "Old_Uyghur": "oui", "Soyombo": "cmg",
    "Zanabazar_Square": "cmg", "Tangut": "txg",
}  # fmt: skip

# Scripts of which one language has nearly all text.
_MOSTLY = {"Bengali": "bn", "Hebrew": "he", "Ethiopic": "am"}

_OPEN, _CONSONANTS = "[aeiouàáèéìíòóùúịụọẹ]", "[bdfghjklmnprstwy]+"

# (rule, language, pattern), first match wins: letters, marks and words that tell more surely than `spelling`.
_BY_LETTERS: dict[str, list[tuple[str, str, str]]] = {
    "Cyrillic": [
        ("letters_ab", "ab", "[ԥҧҭҩӡҿҽҵҟԤҦҬҨӠҾҼҴҞ]|[ҳҲ]ә|ә[аы]|ажә"),
        ("letters_cv", "cv", "[ӗӑӳӖӐӲ]"),
        ("letters_tg", "tg", "[ӣӯҷӢӮҶ]"),
        ("letters_uz", "uz", "[ўЎ].*[қғҳ]|[қғҳ].*ў"),
        ("letters_os", "os", "[ӕӔ]"),
        ("letters_ce", "ce", "[ӏӀ]"),
    ],
    "Arabic": [
        ("letters_ps", "ps", "[ښځڅړډږګڼۍې]"),
        ("letters_ug", "ug", "[ڭۇۈۋ]|ە|ى[^\\W\u064b-\u0652]"),
        ("letters_ckb", "ckb", "[ێۆڕڵڤ]"),
        ("letters_sd", "sd", "[ٻڀٺٽٿڃڄڇڌڍڏڙڪڱڳڻ]"),
        ("article_ar", "ar", "^ [وبفك]?ال[^پچژگکیےٹڈڑںھہ]{3,}$"),
    ],
    "Devanagari": [("letters_mr", "mr", "ळ|ऱ")],
    "Bengali": [("letters_as", "as", "[ৰৱ]")],
    "Hebrew": [
        ("letters_yi", "yi", "[ײױװ]|[אבכפ][\u05b7\u05b8\u05bc\u05bf]|\u05d9\u05d9?\u05b4\u05d9?"),
        ("words_yi", "yi", "^ (?:און|איז|דער|פון|מיט|נישט|האט|וואס|זענען)$|(?:ונג|קייט)$"),
    ],
    "Ethiopic": [("letters_ti", "ti", "[ኸ-ኾቐ-ቖ]")],
    "Latin": [
        ("fullwidth", UNDETERMINED, "^[\\s\uff00-\uffef]+$"),
        ("letters_is", "is", "[þðÞÐ]"),
        ("letters_az", "az", "[əƏ]"),
        ("letters_mt", "mt", "[ħġĦĠ]"),
        ("letters_eo", "eo", "[ŝĉĝĥĵŭŜĈĜĤĴŬ]"),
        ("letters_ha", "ha", "[ɓɗƙƴƁƊƘƳ]"),
        ("letters_cy", "cy", "[ŵŷŴŶ]"),
        ("letters_sq", "sq", "ç.*ë|ë.*ç"),
        # A dot below in a word of two syllables, which Vietnamese words are not.
        ("letters_ig", "ig", f"(?i)[ịụ]{_CONSONANTS}{_OPEN}|{_OPEN}{_CONSONANTS}[ịụ]"),
        ("letters_yo", "yo", f"(?i)ṣ|[ọẹ]{_CONSONANTS}{_OPEN}|{_OPEN}{_CONSONANTS}[ọẹ]"),
    ],
}  # fmt: skip

# English forms that no alphabet tells, by an apostrophe. After a vowel it may be Dutch (foto's).
_CONTRACTION = re.compile(
    r"['’](?:s|t|re|ve|m|ll|d)|\s*[A-Z]*(?:[B-DF-HJ-NP-TV-XZE]['’]s|n['’]t|['’](?:re|ve|ll|m|d))",
    re.IGNORECASE,
)

# ASCII letters that are no writing: a sign on them (but the hyphen and the apostrophe, which words have),
# digits beside them, capitals inside a name (getName, JSONObject), and the beginnings of addresses.
_CODE = re.compile(r"[!-&(-,./:-@\[-`{-~]|[0-9]|[a-z][A-Z]|[A-Z]{2}[a-z]{3}|^(?:https?|ftp|www)$")

# Tokens added to a language's total: a language of a few pages would else claim what its pages repeat.
_DAMPING = 50_000

# Rules that guess: counts of a corpus with languages overrule them.
_GUESSES = re.compile(
    r"^(?:partial_)?(?:letters_|words_|article_|alphabet$|spelling|short$|no_vowel$|abbreviation$|han_|fullwidth$|script_mostly$|shared$|contraction$)"
)


@lru_cache(maxsize=1)
def _compiled() -> dict[str, list[tuple[str, str, re.Pattern[str]]]]:
    return {
        script: [(rule, language, re.compile(pattern)) for rule, language, pattern in rules]
        for script, rules in _BY_LETTERS.items()
    }


def language_of(text: str) -> tuple[str, str, str]:
    """(script, language, rule) of a token's text.

    >>> language_of(" Glück"), language_of("ing.get")
    (('Latin', 'de', 'spelling'), ('Latin', 'zxx', 'code'))
    >>> language_of("お願い"), language_of("维护"), language_of("我們")
    (('Hiragana', 'ja', 'kana'), ('Han', 'zh', 'han_simplified'), ('Han', 'zh-Hant', 'han_traditional'))
    """
    return languages_of([text])[0]


def languages_of(texts: Sequence[str]) -> list[tuple[str, str, str]]:
    """(script, language, rule) of each token's text; many together are faster than one by one."""
    found: list[tuple[str, str, str]] = []
    open_: dict[str, dict[int, Asked]] = {}  # by script: what its spelling must decide
    for n, text in enumerate(texts):
        script, verdict = _by_letters(text)
        if isinstance(verdict, Asked):
            open_.setdefault(script, {})[n] = verdict
            verdict = UNDETERMINED, "shared"  # where nothing is known of the script's spellings
        found.append((script, *verdict))
    for script, asked in open_.items():
        if (known := spelling(script)) is not None:
            for n, verdict in zip(asked, known.decide(list(asked.values())), strict=True):
                found[n] = script, *verdict
    return found


def _by_letters(text: str) -> tuple[str, tuple[str, str] | Asked]:
    """Script of a text, and either language and rule or what is to be asked of the script's spellings."""
    bare = text.strip()  # of white space of any kind
    if bare.isascii():
        # Most of a vocabulary: the script needs no table.
        if not bare.isalpha() and not any(c.isalpha() for c in bare):
            return COMMON, (NO_LANGUAGE, "no_letters")
        if _CODE.search(bare):
            return "Latin", (NO_LANGUAGE, "code")
        return "Latin", _spelt(text, "Latin")
    counts = script_counts(text)
    script = max(counts, key=counts.__getitem__) if counts else COMMON
    if script == COMMON:
        alphabetic = any(c.isalpha() for c in text)
        return script, (UNDETERMINED, "no_script") if alphabetic else (NO_LANGUAGE, "no_letters")
    if not any(map(_is_writing, text)):
        return script, (NO_LANGUAGE, "no_letters")  # digits of a script
    if "Hiragana" in counts or "Katakana" in counts:
        return script, ("ja", "kana")
    if "Han" in counts and script in ("Han", "Latin"):
        return script, _han(text)  # Latin letters stand in Chinese words
    if (language := _OF_SCRIPT.get(script)) is not None:
        return script, (language, "script")
    for rule, language, pattern in _compiled().get(script, ()):
        if pattern.search(text):
            return script, (language, rule)
    if script in _MOSTLY:
        return script, (_MOSTLY[script], "script_mostly")
    return script, _spelt(text, script)


def _is_writing(c: str) -> bool:
    """Whether a character is a letter, or a mark that writes a sound with one."""
    return c.isalpha() or (not c.isascii() and unicodedata.category(c) in ("Mn", "Mc"))


def _spelt(text: str, script: str) -> tuple[str, str] | Asked:
    """Language and rule of text in a script that languages share, or what to ask of its spellings."""
    if script != "Latin" or not _CONTRACTION.fullmatch(text):
        return _asked(text)
    # Other languages have it too (Hans's, geht's).
    if text[-1] in "sS" and text[:-2].strip() and (latin := spelling(script)) is not None:
        ((language, rule),) = latin.decide([_asked(text[:-2])])
        if language not in ("en", UNDETERMINED):
            return language, rule
    return "en", "contraction"


def _asked(text: str) -> Asked:
    letters = text.strip()
    if not letters.isalpha():
        letters = "".join(filter(_is_writing, text))
    # A word begins after what is no letter, and with a capital before small letters.
    spaced, capital, capitals = not text.startswith(letters[:1]), letters[:1].isupper(), letters.isupper()
    begins = spaced or (capital and not capitals)
    return Asked(letters.lower(), begins, capitals, joined=capital and not spaced)


def _han(text: str) -> tuple[str, str]:
    """Language and rule of Chinese characters without kana, by the national character sets that hold them.

    GB 2312 holds the simplified forms, Big5 the traditional ones, JIS X 0208 the Japanese ones; its second
    level (rows 48 and on) has forms that Japanese gave up, and is no evidence against Chinese.
    """
    han = "".join(c for c in text if not c.isascii() and c.isalpha())
    simplified, traditional, japanese = (_holds(name, han) for name in ("gb2312", "big5", "shift_jis"))
    # In use in Japanese; where `modern` is False, Chinese is what uses all of these.
    modern = japanese and all(row < 0xA0 + 48 for row in han.encode("euc_jp")[::2])
    if simplified and not modern:
        return "zh", "han_simplified" if not traditional else "han_chinese"
    if traditional and not simplified:
        return (UNDETERMINED, "han_shared") if modern else ("zh-Hant", "han_traditional")
    if simplified:
        return ("zh", "han_default") if len(han) > 1 else (UNDETERMINED, "han_shared")
    if japanese:
        return "ja", "han_japanese"
    return "zh", "han_chinese"


def _holds(codec: str, text: str) -> bool:
    try:
        text.encode(codec)
    except UnicodeEncodeError:
        return False
    return True


def language_of_bytes(data: bytes) -> tuple[str, str, str]:
    """(script, language, rule) of bytes that are no whole text: by their whole characters, else by the
    characters that their last bytes may begin.

    >>> language_of_bytes("嘉".encode()[:2]), language_of_bytes(b"\\x98\\x89")
    (('Han', 'und', 'partial_shared'), ('Unknown', 'und', 'partial_unknown'))
    """
    text = data.decode("utf-8", errors="ignore")
    if script_counts(text):
        script, language, rule = language_of(text)
        return script, language, f"partial_{rule}"
    start = len(data) - 1
    while start > 0 and data[start] & 0xC0 == 0x80:
        start -= 1
    scripts, letters = _begun(data[start:]) if data else (frozenset(), True)
    if not letters:
        return COMMON, NO_LANGUAGE, "partial_no_letters"
    if len(scripts) == 1:
        (script,) = scripts
        language = _OF_SCRIPT.get(script, UNDETERMINED)
        return script, language, "partial_shared" if language == UNDETERMINED else "partial_script"
    return "Unknown", UNDETERMINED, "partial_unknown"


@lru_cache(maxsize=4096)
def _begun(head: bytes) -> tuple[frozenset[str], bool]:
    """The scripts of all characters whose UTF-8 begins so, and whether letters are among them.

    No scripts where no character begins so; then nothing speaks against letters.
    """
    codes = begun_by(head)
    numbers = np.unique(script_table()[codes.start : codes.stop]) if codes else np.array([], np.uint8)
    scripts = frozenset(SCRIPTS[int(n)] for n in numbers) - {"Unknown"}
    letters = not scripts or any(chr(code).isalpha() for code in codes)
    return scripts - {COMMON, INHERITED}, letters


def by_counts(counts: pl.DataFrame, *, min_occurrences: int = 20, min_share: float = 0.5) -> pl.DataFrame:
    """The language under which each token is most over-represented.

    counts: token_id, language, occurrences (rows of one pair add up), of corpora whose records say their
    language; regions are put together (de-DE, de-AT: de), scripts are not (zh-Hant). A token's rate in a
    language is its occurrences over all of the language's; its share is that rate over the sum of its rates
    in all languages. Given are tokens whose best language has at least `min_occurrences` of them and
    `min_share`: token_id, language, share.
    """
    parts = pl.col("language").str.extract_groups(r"^([a-z]{2,3})(-[A-Z][a-z]{3})?(?:-([A-Z]{2}))?")
    base, script, region = (parts.struct.field(str(n)) for n in (1, 2, 3))
    hant = (base == "zh") & script.is_null() & region.is_in(["TW", "HK", "MO"])
    language = pl.when(hant).then(pl.lit("zh-Hant")).otherwise(pl.concat_str(base, script.fill_null("")))
    known = (
        counts.filter(pl.col("language").str.contains(r"^[a-z]{2,3}(?:-|$)"))
        .with_columns(language=language)
        .filter(~pl.col("language").is_in([UNDETERMINED, NO_LANGUAGE, "mul"]))
    )
    summed = known.group_by("token_id", "language").agg(pl.col("occurrences").sum())
    total = pl.col("occurrences").sum().over("language") + _DAMPING
    return (
        summed.with_columns(rate=pl.col("occurrences") / total)
        .with_columns(share=pl.col("rate") / pl.col("rate").sum().over("token_id"))
        .sort("token_id", "share", "occurrences", "language", descending=[False, True, True, False])
        .unique("token_id", keep="first", maintain_order=True)
        .filter((pl.col("occurrences") >= min_occurrences) & (pl.col("share") >= min_share))
        .select("token_id", "language", "share")
    )


def is_guess(rule: str) -> bool:
    """Whether a rule's answer gives way to a corpus's own counts.

    >>> is_guess("spelling"), is_guess("script"), is_guess("kana")
    (True, False, False)
    """
    return _GUESSES.search(rule) is not None
