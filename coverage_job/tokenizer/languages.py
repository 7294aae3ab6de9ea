"""The language of a token's text, as far as its letters tell; the rule that told is always given.

A script that one language uses decides. In the others letters are evidence, then a default that is no more
than the best guess. Where a corpus says what language its records are, its counts know better: `by_counts`.
"""

from __future__ import annotations

import re
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

NO_LANGUAGE = "zxx"  # BCP-47: no linguistic content
UNDETERMINED = "und"

# Scripts of (nearly) one living language, and of old ones.
_OF_SCRIPT = {
    "Hangul": "ko", "Thai": "th", "Lao": "lo", "Khmer": "km", "Myanmar": "my", "Sinhala": "si", "Tamil": "ta",
    "Telugu": "te", "Kannada": "kn", "Malayalam": "ml", "Gujarati": "gu", "Gurmukhi": "pa", "Oriya": "or",
    "Georgian": "ka", "Armenian": "hy", "Greek": "el", "Tibetan": "bo", "Thaana": "dv", "Cherokee": "chr",
    "Nko": "nqo", "Yi": "ii", "Bopomofo": "zh", "Mongolian": "mn", "Javanese": "jv", "Balinese": "ban",
    "Sundanese": "su", "Tai_Tham": "nod", "Canadian_Aboriginal": "iu", "Tifinagh": "zgh", "Syriac": "syr",
    "Coptic": "cop", "Gothic": "got", "Glagolitic": "cu", "Egyptian_Hieroglyphs": "egy", "Ol_Chiki": "sat",
    "Meetei_Mayek": "mni", "Vai": "vai", "Adlam": "ff", "Cuneiform": "akk", "Ugaritic": "uga",
    "Tai_Le": "tdd", "New_Tai_Lue": "khb", "Buginese": "bug", "Cham": "cjm", "Lepcha": "lep", "Limbu": "lif",
    "Lisu": "lis",
    "Osage": "osa", "Osmanya": "so", "Samaritan": "sam", "Mandaic": "mid", "Syloti_Nagri": "syl",
    "Tagalog": "tl", "Avestan": "ae", "Phoenician": "phn", "Old_Persian": "peo", "Nushu": "zh",
    "Hiragana": "ja", "Katakana": "ja",
}  # fmt: skip

# (rule, language, pattern), first match wins; then the script's default.
_BY_LETTERS: dict[str, list[tuple[str, str, str]]] = {
    "Cyrillic": [
        ("letters_uk", "uk", "[їєґЇЄҐ]"),
        ("letters_mk", "mk", "[ѓќѕЃЌЅ]"),
        ("letters_sr", "sr", "[јљњћђџЈЉЊЋЂЏ]"),
        ("letters_ab", "ab", "[ԥҧҭҩӡҿҽҵԤҦҬҨӠҾҼҴ]"),
        ("letters_ba", "ba", "[ҡҙҠҘ]"),
        ("letters_cv", "cv", "[ӗӑӳҫӖӐӲҪ]"),
        ("letters_tg", "tg", "[ӣӯҷӢӮҶ]"),
        ("letters_kk", "kk", "[ұҰ]|[қғҚҒ].*[іәІӘ]|[іәІӘ].*[қғҚҒ]"),
        ("letters_uz", "uz", "[ўЎ].*[қғҳ]|[қғҳ].*ў|[ҳҲ]"),
        ("letters_kk", "kk", "[қғҚҒ]"),
        ("letters_be", "be", "[ўЎ]"),
        ("letters_tt", "tt", "[җҖ]|[һҺ]"),
        ("letters_os", "os", "[ӕӔ]"),
        ("letters_ce", "ce", "[ӏӀ]"),
        ("letters_kk", "kk", "[әӘ]"),
        ("letters_ky", "ky", "[ңҢ]"),
        ("letters_mn", "mn", "[өүӨҮ]"),
        ("letters_uk", "uk", "[іІ]|^ (?:від|під|цьо|цих|що)"),
        ("cyrillic_default", "ru", ""),
    ],
    "Arabic": [
        ("letters_ps", "ps", "[ښځڅړډږګڼۍېټ]"),
        ("letters_ur", "ur", "[ٹڈڑںےھہ](?!ە)"),
        ("letters_ug", "ug", "[ڭۇۆۈۋې]|ە|چى"),
        ("letters_ckb", "ckb", "[ێۆڕڵڤ]"),
        ("letters_sd", "sd", "[ٻڀٺٽٿڃڄڇڌڍڏڙڪڱڳڻ]"),
        ("letters_fa", "fa", "[پچژگکی]"),
        ("arabic_default", "ar", ""),
    ],
    "Devanagari": [
        ("letters_mr", "mr", "ळ|ऱ|^ (?:आहे|आणि)"),
        ("words_ne", "ne", "छन्|गर्|हुन्|लाई|^ (?:छ|पनि|भएको|नेपाल)$"),
        ("devanagari_default", "hi", ""),
    ],
    "Bengali": [("letters_as", "as", "[ৰৱ]"), ("bengali_default", "bn", "")],
    "Hebrew": [("letters_yi", "yi", "[ײױװײַ]|[אייבכפ][ַָּֿ]"), ("hebrew_default", "he", "")],
    "Ethiopic": [("letters_ti", "ti", "[ኸ-ኾቐ-ቖ]"), ("ethiopic_default", "am", "")],
    "Latin": [
        ("fullwidth", UNDETERMINED, "^[\\s\uff00-\uffef]+$"),
        ("letters_vi", "vi", "[ơưƠƯ\u1ea0-\u1ef9]|^ [đĐ]|[đĐ][áàâêôăéèíìóòúù]"),
        ("letters_de", "de", "[ßẞ]"),
        ("letters_pl", "pl", "[łśźżńŁŚŹŻŃ]"),
        ("letters_cs", "cs", "[řěůŘĚŮ]"),
        ("letters_sk", "sk", "[ľĺŕĽĹŔ]"),
        ("letters_hu", "hu", "[őűŐŰ]"),
        ("letters_ro", "ro", "[ășțţĂȘȚŢ]"),
        ("letters_tr", "tr", "[ğıĞİşŞ]"),
        ("letters_az", "az", "[əƏ]"),
        ("letters_mt", "mt", "[ħġĦĠ]"),
        ("letters_is", "is", "[þðÞÐ]"),
        ("letters_lv", "lv", "[ķļņģĶĻŅĢ]|[āēīū].*[āēīū]"),
        ("letters_lt", "lt", "[ėįųĖĮŲ]"),
        ("letters_pl", "pl", "[ąęĄĘ]"),
        ("letters_eo", "eo", "[ŝĉĝĥĵŭŜĈĜĤĴŬ]"),
        ("letters_ha", "ha", "[ɓɗƙƴƁƊƘƳ]"),
        ("letters_pl", "pl", "[aeyś]ć$"),
        ("letters_hr", "hr", "[ćđĆĐ]"),
        ("letters_cs", "cs", "[čšžďťňČŠŽĎŤŇ]"),
        ("letters_pt", "pt", "[ãõÃÕ]"),
        ("letters_es", "es", "[ñÑ¿¡]"),
        ("letters_da", "da", "[øæØÆ]"),
        ("letters_sv", "sv", "[åÅ]"),
        ("letters_sq", "sq", "ë$"),
        ("letters_fr", "fr", "[çèêëîïûùœÇÈÊÎÛŒ]"),
        ("letters_de", "de", "[äöüÄÖÜ]"),
        ("letters_pt", "pt", "[âô]|[íáéúó][a-z]*(?:ncia|vel)$"),
        ("letters_fr", "fr", "é$|ées?$|é[a-z]*e$"),
        ("letters_it", "it", "[òìà]"),
        ("letters_es", "es", "[áéíóúÁÉÍÓÚ]"),
        ("latin_other", UNDETERMINED, "[^\\x00-\\x7f]"),
        ("words_es", "es", r"^ (?:el|las|una|unos|pero|porque|cuando|donde|desde|hasta|muy|tiene|tienen|"
         r"puede|pueden|hacer|entre|otros|otras|todos|todas|[a-z]{3,}(?:ciones|amiento|amientos|mente))$"),
        ("words_pt", "pt", r"^ (?:os|uma|umas|dos|das|nas|pelo|pela|mais|muito|muitos|outros|seus|suas|"
         r"isso|esse|essa|quem|onde|fazer|sem|foram|[a-z]{3,}(?:agem|agens|idades))$"),
        ("words_fr", "fr", r"^ (?:le|les|des|une|dans|pour|avec|sur|plus|nous|vous|leur|leurs|cette|ces|sont|"
         r"mais|aussi|tous|toutes|[a-z]{3,}(?:aient|euse|euses|eaux))$"),
        ("words_de", "de", r"^ (?:der|das|und|nicht|ein|eine|einer|eines|einem|einen|mit|auf|ist|sich|von|"
         r"auch|nach|wird|bei|aus|werden|[A-Z]?[a-z]{2,}(?:ungen|keit|heiten|lich|liche|lichen|schaft|"
         r"schaften))$"),
        ("words_it", "it", r"^ (?:il|gli|della|delle|degli|nella|che|sono|anche|questo|questa|"
         r"[a-z]{3,}(?:zione|zioni))$"),
        ("words_nl", "nl", r"^ (?:het|een|van|niet|voor|zijn|deze|naar|ook|worden|wordt|"
         r"[a-z]{2,}(?:heid|lijk|lijke|lijks))$"),
        ("words_id", "id", r"^ (?:yang|dan|untuk|dengan|dari|pada|ini|itu|adalah|tidak|akan|oleh|juga|"
         r"[a-z]{3,}nya)$"),
        ("words_pl", "pl", r"^ (?:nie|jest|przez|oraz|tego|jako|dla|[a-z]{3,}(?:nych|nego|owych|owy))$"),
        ("words_tr", "tr", r"^ (?:ve|bir|bu|ile|olarak|olan|daha)$|(?:lar|ler)(?:la|le|da|de|dan|den)$"),
        ("latin_short", UNDETERMINED, r"^[A-Za-z]{1,2}$"),
        ("latin_default", "en", ""),
    ],
}  # fmt: skip

# The rules that text of ASCII letters, most of a vocabulary, can meet.
_IN_ASCII = [rule for rule in _BY_LETTERS["Latin"] if rule[0].startswith(("words_", "latin_"))]

# Tokens added to a language's total: a language of a few pages would else claim what its pages repeat.
_DAMPING = 50_000

# Rules that guess: counts of a corpus with languages overrule them.
_GUESSES = re.compile(r"_default$|^latin_|^han_|^words_|^letters_|^fullwidth$")


@lru_cache(maxsize=1)
def _compiled() -> dict[str, list[tuple[str, str, re.Pattern[str]]]]:
    return {
        script: [(rule, language, re.compile(pattern)) for rule, language, pattern in rules]
        for script, rules in (_BY_LETTERS | {"ASCII": _IN_ASCII}).items()
    }


def language_of(text: str) -> tuple[str, str, str]:
    """(script, language, rule) of a token's text.

    >>> language_of(" Glück")
    ('Latin', 'de', 'letters_de')
    >>> language_of("お願い"), language_of("维护"), language_of("我們")
    (('Hiragana', 'ja', 'kana'), ('Han', 'zh', 'han_simplified'), ('Han', 'zh-Hant', 'han_traditional'))
    """
    if text.isascii():
        # Most of a vocabulary: the script needs no table.
        script = "Latin" if any(c.isalpha() for c in text) else COMMON
    else:
        counts = script_counts(text)
        script = max(counts, key=counts.__getitem__) if counts else COMMON
        if "Hiragana" in counts or "Katakana" in counts:
            return script, "ja", "kana"
    if script == COMMON:
        alphabetic = any(c.isalpha() for c in text)
        return (
            script,
            UNDETERMINED if alphabetic else NO_LANGUAGE,
            "no_script" if alphabetic else "no_letters",
        )
    if script == "Han":
        return script, *_han(text)
    if (language := _OF_SCRIPT.get(script)) is not None:
        return script, language, "script"
    for rule, language, pattern in _compiled().get("ASCII" if text.isascii() else script, ()):
        if pattern.search(text):
            return script, language, rule
    return script, UNDETERMINED, "script_unknown"


def _han(text: str) -> tuple[str, str]:
    """Language and rule of Chinese characters without kana, by the national character sets that hold them.

    GB 2312 holds the simplified forms, Big5 the traditional ones, JIS X 0208 the Japanese ones; its second
    level (rows 48 and on) has forms that Japanese gave up, and is no evidence against Chinese.
    """
    han = "".join(c for c in text if not c.isascii() and c.isalpha())
    simplified, traditional, japanese = (_holds(name, han) for name in ("gb2312", "big5", "shift_jis"))
    if simplified:
        if not traditional:
            return "zh", "han_simplified_or_japanese" if japanese else "han_simplified"
        return "zh", "han_shared"
    if traditional:
        modern = japanese and all(row < 0xA0 + 48 for row in han.encode("euc_jp")[::2])
        return "zh-Hant", "han_traditional_or_japanese" if modern else "han_traditional"
    return ("ja", "han_japanese") if japanese else ("zh", "han_default")


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
    (('Han', 'zh', 'partial_script'), ('Unknown', 'und', 'partial_unknown'))
    """
    text = data.decode("utf-8", errors="ignore")
    if script_counts(text):
        script, language, rule = language_of(text)
        return script, language, f"partial_{rule}"
    start = len(data) - 1
    while start > 0 and data[start] & 0xC0 == 0x80:
        start -= 1
    scripts = _scripts_beginning(data[start:]) if data else frozenset()
    if len(scripts) == 1:
        (script,) = scripts
        if script == "Han":
            return script, "zh", "partial_script"
        language = _OF_SCRIPT.get(
            script, _compiled()[script][-1][1] if script in _compiled() else UNDETERMINED
        )
        return script, language, "partial_script"
    return "Unknown", UNDETERMINED, "partial_unknown"


@lru_cache(maxsize=4096)
def _scripts_beginning(head: bytes) -> frozenset[str]:
    """The scripts of all characters whose UTF-8 begins so; empty where none does."""
    codes = begun_by(head)
    numbers = np.unique(script_table()[codes.start : codes.stop]) if codes else np.array([], np.uint8)
    return frozenset(SCRIPTS[int(n)] for n in numbers) - {"Unknown", COMMON, INHERITED}


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

    >>> is_guess("latin_default"), is_guess("script"), is_guess("kana")
    (True, False, False)
    """
    return _GUESSES.search(rule) is not None
