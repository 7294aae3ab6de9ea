"""Special-token text that stands in a message, encoded as the plain text it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tokenizers import Tokenizer

from coverage_job.errors import TokenizerError

Encoded = tuple[list[int], list[tuple[int, int]]]


def encode_plain(text: str, plain: list[tuple[int, int]], tokenizer: Tokenizer) -> Encoded:
    """(ids, their ranges in characters) of a text in which `plain` holds no control tokens.

    plain: ranges of characters, sorted and disjoint. The text is cut at its true control tokens, and a
    stretch that holds plain text is encoded with special tokens off. The tokenizer must be the caller's
    alone meanwhile. Raises TokenizerError where the tokenizer does not encode such stretches as it
    encodes the whole.
    """
    stretches = list(_stretches(text, plain, tokenizer))
    whole = tokenizer.encode(text, add_special_tokens=False)
    ids, _ = _encode([(start, end, False) for start, end, _ in stretches], text, tokenizer)
    if ids != whole.ids:
        raise TokenizerError(
            "split_special_tokens: this tokenizer encodes text after a special token differently when it "
            "stands alone, so that text of special tokens cannot be taken as plain; set it to false"
        )
    return _encode(stretches, text, tokenizer)


def _encode(stretches: list[tuple[int, int, bool]], text: str, tokenizer: Tokenizer) -> Encoded:
    ids: list[int] = []
    ranges: list[tuple[int, int]] = []
    for start, end, as_text in stretches:
        tokenizer.encode_special_tokens = as_text
        try:
            encoding = tokenizer.encode(text[start:end], add_special_tokens=False)
        finally:
            tokenizer.encode_special_tokens = False
        ids += encoding.ids
        ranges += [(a + start, b + start) for a, b in encoding.offsets]
    return ids, ranges


def _stretches(
    text: str, plain: list[tuple[int, int]], tokenizer: Tokenizer
) -> Iterator[tuple[int, int, bool]]:
    """(start, end, whether it holds plain ranges): control tokens, and what is between them."""
    added = tokenizer.get_added_tokens_decoder().values()
    special = sorted((t.content for t in added if t.special), key=len, reverse=True)
    control = re.compile("|".join(map(re.escape, special)) or "(?!)")
    ranges = iter([*plain, (len(text) + 1, len(text) + 1)])
    first, last = next(ranges)
    low = at = 0
    holds = False
    while (match := control.search(text, at)) is not None:
        while last <= match.start():
            holds = True
            first, last = next(ranges)
        if first <= match.start():
            at = last
            holds = True
            continue
        if low < match.start():
            yield low, match.start(), holds
        yield match.start(), match.end(), False
        low = at = match.end()
        holds = False
    if low < len(text):
        yield low, len(text), holds or first < len(text)
