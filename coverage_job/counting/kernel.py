"""Batches of text to ids, exactly the reference's, at the speed of looking chunks up."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from coverage_job.corpus.documents import Int32, Int64, TextBatch, TokenBatch, UInt8
from coverage_job.counting import added, scan, split, table, unigram
from coverage_job.counting.bpe import index_merges
from coverage_job.counting.cuts import Cuts
from coverage_job.counting.reference import ReferenceKernel
from coverage_job.counting.unigram_model import character_map

_MIB = 1 << 20
_ROW_BYTES = 32
_FIRST_ROWS = 1 << 15
_PART_BYTES = 1 << 16
# Shares of the table's memory: rows, bytes of longer chunks, ids of chunks with more than two.
# A group may need as much: a chunk has one id more than bytes where a sign is put before the text.
_LEAST_BYTES = scan.GROUP * (table.LONG + 1)


class _Cache:
    """The table of chunks, which grows up to a limit and then begins anew; counts never depend on it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.dropped = 0
        self.table: table.Table = _empty_table(_FIRST_ROWS, _LEAST_BYTES, _LEAST_BYTES)

    def make_room(self, ids_needed: int) -> None:
        """Double what is full; where that would pass the limit, drop all chunks."""
        rows, data, ids, used = self.table
        n_rows, n_bytes, n_ids = len(rows), len(data), len(ids)
        if 2 * (int(used[0]) + scan.GROUP) > n_rows:
            n_rows *= 2
        if int(used[1]) + _LEAST_BYTES > n_bytes:
            n_bytes *= 2
        if int(used[2]) + max(ids_needed, _LEAST_BYTES) > n_ids:
            n_ids *= 2
        if n_rows * _ROW_BYTES + n_bytes + 4 * n_ids > self._limit:
            self.dropped += 1
            # As large as it was: a corpus that filled it once will again.
            rows[:] = 0
            used[:] = 0
            return
        if n_bytes > len(data):
            data = np.concatenate([data, np.empty(n_bytes - len(data), np.uint8)])
        if n_ids > len(ids):
            ids = np.concatenate([ids, np.empty(n_ids - len(ids), np.int32)])
        bigger = table.Table(rows, data, ids, used)
        if n_rows > len(rows):
            bigger = table.Table(np.zeros((n_rows, 4), np.uint64), data, ids, used)
            table.regrow(self.table, bigger)
        self.table = bigger


def _empty_table(rows: int, data: int, ids: int) -> table.Table:
    return table.Table(
        np.zeros((rows, 4), np.uint64),
        np.empty(data, np.uint8),
        np.empty(ids, np.int32),
        np.zeros(3, np.int64),
    )


@dataclass
class Counters:
    """What a kernel did. reference_bytes: bytes that took the reference path, by reason."""

    bytes: int = 0
    reference_bytes: Counter[str] = field(default_factory=Counter)
    compile_seconds: float = 0.0
    tables_dropped: int = 0


class FastKernel:
    """Encodes batches of text; what has no fast and exact path goes to the reference.

    cache_mib: limit of the table of chunks, in MiB.
    """

    def __init__(self, tokenizer: Tokenizer, cuts: Cuts, cache_mib: int = 256) -> None:
        self._tokenizer = tokenizer
        self._reference = ReferenceKernel(tokenizer)
        self._reason = cuts.reason
        self.counters = Counters()
        if cuts.reason:
            return
        start = time.perf_counter()
        self._arrays = cuts.arrays
        self._unigram = _unigram(cuts) if cuts.facts["family"] == "unigram" else None
        if self._unigram is not None:
            self._map = character_map(json.loads(self._arrays["character_step"].tobytes()))
        else:
            self._normal_form = cuts.facts["normal_form"]
            self._words = cuts.facts["family"] == "words"
            self._model = _model(cuts)
            self._vocabulary = _vocabulary(cuts)
            self._cache = _Cache(cache_mib * _MIB)
            self._group = scan.new_group()
        # Compiling, or loading what was compiled, is paid here and not by the first batch.
        self.encode(_warm_up(False))
        self.encode(_warm_up(True))
        self.counters = Counters(compile_seconds=time.perf_counter() - start)

    def encode(self, batch: TextBatch) -> TokenBatch:
        """The ids of every document, as ReferenceKernel gives them."""
        # For numba arrays that can be written are another type, and compiled for once more.
        text = batch.text.view()
        text.flags.writeable = False
        batch = replace(batch, text=text)
        self.counters.bytes += len(text)
        if self._reason:
            self.counters.reference_bytes[self._reason] += len(batch.text)
            return self._reference.encode(batch)
        n_pieces = len(batch.pieces) - 1
        skip = np.zeros(n_pieces, np.uint8)
        matches = self._find(batch, "raw", "normal")
        flagged = matches[:, 2] == -2
        if flagged.any():
            self._leave(
                batch, skip, np.unique(matches[flagged, 3]), "an added token that takes white space or words"
            )
        if batch.plain is not None:
            at = np.searchsorted(batch.pieces, batch.plain[:, 0], side="right") - 1
            self._leave(batch, skip, np.unique(at), "special-token text in messages")
        if self._unigram is not None:
            ids, mask, ends, seams = self._run_unigram(self._unigram, batch, matches, skip)
        else:
            ids, mask, ends, seams = self._run_chunks(batch, matches, skip)
        if skip.any():
            ids, mask, ends, seams = self._with_reference(batch, skip, ids, mask, ends, seams)
        ends = np.concatenate([[0], ends])
        sums = np.concatenate([[0], np.cumsum(seams, dtype=np.int64)])[batch.documents]
        return TokenBatch(
            ids=ids,
            documents=ends[batch.documents],
            supervised=mask if batch.spans is not None else None,
            seams=np.diff(sums).astype(np.int32) if batch.spans is not None else None,
            keys=batch.keys,
        )

    def _run_chunks(self, batch: TextBatch, matches: Int64, skip: UInt8) -> tuple[Int32, UInt8, Int64, Int32]:
        """Ids, mask, tokens up to each piece's end, and seams by piece; of skipped pieces there are none."""
        prepared = batch
        if len(self._arrays["suspect_nodes"]) > 1:
            suspects = self._find(batch, "suspect", "suspect")[:, 3]
            if len(suspects):
                self._leave(
                    batch, skip, np.unique(suspects), "an added token that is looked for in normalized text"
                )
        if self._normal_form:
            prepared, matches = self._normalized(batch, matches, skip)
        if self._words:
            unsettled = np.flatnonzero(
                added.find_unsettled(batch.text, batch.pieces, self._arrays["unsettled"])
            )
            self._leave(batch, skip, unsettled, "characters whose normalizing depends on others")
        ids, mask, ends, seams = self._run(prepared, matches, skip)
        if (seams < 0).any():
            self._leave(batch, skip, np.flatnonzero(seams < 0), "the border of a span inside a word")
            ids, mask, ends, seams = self._run(prepared, matches, skip)
        return ids, mask, ends, seams

    def _run_unigram(
        self, model: unigram.Model, batch: TextBatch, matches: Int64, skip: UInt8
    ) -> tuple[Int32, UInt8, Int64, Int32]:
        """As `_run_chunks`."""
        prepared, moved, normal = batch, matches, np.zeros(len(skip), np.uint8)
        if self._arrays["unsettled"].any():
            prepared, moved, normal = self._mapped(batch, matches, skip)
        spans = np.empty((0, 2), np.int64) if batch.spans is None else np.ascontiguousarray(batch.spans)
        has_spans = batch.spans is not None
        ids, mask, ends, seams, left = unigram.run(
            model,
            unigram.Source(
                prepared.text, prepared.pieces, skip, normal, moved, batch.pieces, matches, spans, has_spans
            ),
        )
        for why, reason in (
            (unigram.BORDER, "the border of a span in text that normalizing makes longer or shorter"),
            (unigram.HIDDEN, "an added token that is looked for in normalized text"),
        ):
            self._leave(batch, skip, np.flatnonzero(left == why), reason)
        return ids, mask, ends, seams

    def _mapped(self, batch: TextBatch, matches: Int64, skip: UInt8) -> tuple[TextBatch, Int64, UInt8]:
        """The batch where each piece that holds an unsettled character has its characters mapped by
        the tokenizer, but for its added tokens; where these are then; and which pieces those are."""
        normal = added.find_unsettled(batch.text, batch.pieces, self._arrays["unsettled"]) & (1 - skip)
        if not normal.any():
            return batch, matches, normal
        blob = batch.text.data
        changed: dict[int, bytes] = {}
        moved = matches.copy()
        moved[:, :2] -= batch.pieces[moved[:, 3]][:, None]
        for piece in np.flatnonzero(normal).tolist():
            first, last = np.searchsorted(matches[:, 3], [piece, piece + 1]).tolist()
            at, stop = int(batch.pieces[piece]), int(batch.pieces[piece + 1])
            parts, size = [], 0
            for row in range(first, last + 1):
                start, end = matches[row, :2].tolist() if row < last else (stop, stop)
                while at < start:
                    # In parts, for the library takes fifty bytes of memory a byte.
                    border = unigram.next_border(
                        batch.text, min(at + _PART_BYTES, start), start, self._arrays["unsettled"]
                    )
                    parts.append(self._map(str(blob[at:border], "utf-8")).encode())
                    size += len(parts[-1])
                    at = border
                if row < last:
                    moved[row, :2] = size, size + end - start
                parts.append(bytes(blob[start:end]))
                size += end - start
                at = end
            changed[piece] = b"".join(parts)
        prepared = _with_pieces(batch, changed)
        moved[:, :2] += prepared.pieces[moved[:, 3]][:, None]
        return prepared, moved, normal

    def _leave(self, batch: TextBatch, skip: UInt8, pieces: Int64, reason: str) -> None:
        """Leave pieces to the reference."""
        pieces = pieces[skip[pieces] == 0]
        if not len(pieces):
            return
        skip[pieces] = 1
        sizes = batch.pieces[pieces + 1] - batch.pieces[pieces]
        self.counters.reference_bytes[reason] += int(sizes.sum())

    def _find(self, batch: TextBatch, first: str, then: str) -> Int64:
        """Added tokens of two tries as rows (start, end, id, piece)."""
        arrays = self._arrays
        room = 1024
        while True:
            matches = np.empty((room, 4), np.int64)
            n = added.find_added(
                batch.text,
                batch.pieces,
                arrays[f"{first}_nodes"],
                arrays[f"{first}_first"],
                arrays[f"{then}_nodes"],
                arrays[f"{then}_first"],
                matches,
            )
            if n <= room:
                return matches[:n]
            room = n

    def _normalized(self, batch: TextBatch, matches: Int64, skip: UInt8) -> tuple[TextBatch, Int64]:
        """The batch with its texts in normal form, and its added tokens.

        Only pieces with a character that leaves it open are looked at. One that changes is replaced where
        no span needs its places in the original; its added tokens must be the same, in the same order.
        """
        open_pieces = np.flatnonzero(
            added.find_unsettled(batch.text, batch.pieces, self._arrays["unsettled"]) & ~skip
        )
        changed: dict[int, bytes] = {}
        normalize = self._tokenizer.normalizer.normalize_str
        blob = batch.text.data
        for piece in open_pieces.tolist():
            first, last = np.searchsorted(matches[:, 3], [piece, piece + 1])
            at, stop = int(batch.pieces[piece]), int(batch.pieces[piece + 1])
            parts, same = [], True
            for start, end in [*matches[first:last, :2].tolist(), [stop, stop]]:
                text = str(blob[at:start], "utf-8")
                normal = normalize(text)
                same = same and normal == text
                parts += [normal.encode(), bytes(blob[start:end])]
                at = end
            if not same:
                changed[piece] = b"".join(parts)
        if not changed:
            return batch, matches
        which = np.array(sorted(changed))
        if batch.spans is not None:
            self._leave(batch, skip, which, "text with spans that is not in normal form")
            return batch, matches
        prepared = _with_pieces(batch, changed)
        found = self._find(prepared, "raw", "normal")
        was = np.isin(matches[:, 3], which)
        now = np.isin(found[:, 3], which)
        if was.any() or now.any():
            # Normalizing may make or unmake the text of an added token; the reference decides.
            differ = which[
                [
                    not np.array_equal(matches[matches[:, 3] == w, 2], found[found[:, 3] == w, 2])
                    for w in which
                ]
            ]
            self._leave(batch, skip, differ, "an added token whose text depends on normalizing")
        return prepared, found

    def _run(self, batch: TextBatch, matches: Int64, skip: UInt8) -> tuple[Int32, UInt8, Int64, Int32]:
        n_pieces = len(batch.pieces) - 1
        has_spans = batch.spans is not None
        spans = batch.spans if batch.spans is not None else np.empty((0, 2), np.int64)
        source = scan.Batch(batch.text, batch.pieces, skip, matches, np.ascontiguousarray(spans), has_spans)
        state = np.zeros(scan.STATE_SIZE, np.int64)
        state[[scan.AT, scan.SEGMENT_END, scan.TOKEN_START, scan.TOKEN_END]] = batch.pieces[0]
        piece_ends, seams = np.zeros(n_pieces, np.int64), np.zeros(n_pieces, np.int32)
        ids: list[Int32] = []
        masks: list[UInt8] = []
        room = len(batch.text) // 3 + 4 * scan.GROUP
        while True:
            out_ids = np.empty(room, np.int32)
            out_mask = np.empty(room if has_spans else 0, np.uint8)
            out = scan.Output(out_ids, out_mask, piece_ends, seams)
            why, n, needed = scan.run(
                self._model, self._vocabulary, self._cache.table, source, state, self._group, out
            )
            if n:
                ids.append(out_ids[:n])
                masks.append(out_mask[:n])
            state[scan.TOTAL] += n
            if why == scan.DONE:
                break
            if why == scan.TABLE_FULL:
                self._cache.make_room(needed)
                self.counters.tables_dropped = self._cache.dropped
            left = len(batch.text) - int(state[scan.AT])
            room = max(needed, left // 3) + 4 * scan.GROUP
        if len(ids) == 1:
            return ids[0], masks[0], piece_ends, seams
        return (
            np.concatenate([np.empty(0, np.int32), *ids]),
            np.concatenate([np.empty(0, np.uint8), *masks]),
            piece_ends,
            seams,
        )

    def _with_reference(
        self, batch: TextBatch, skip: UInt8, ids: Int32, mask: UInt8, ends: Int64, seams: Int32
    ) -> tuple[Int32, UInt8, Int64, Int32]:
        """Put the reference's tokens of the skipped pieces in their places."""
        which = np.flatnonzero(skip)
        own_ids: list[Int32] = []
        own_masks: list[UInt8] = []
        at = 0
        lengths = np.diff(np.concatenate([[0], ends]))
        for piece in which.tolist():
            # As a document of its own, over the same text.
            alone = TextBatch(
                text=batch.text,
                pieces=batch.pieces[piece : piece + 2],
                documents=np.array([0, 1], np.int64),
                spans=batch.spans,
                keys=np.zeros(1, np.int32),
                plain=batch.plain,
            )
            tokens = self._reference.encode(alone)
            before = int(ends[piece])
            own_ids += [ids[at:before], tokens.ids]
            if tokens.supervised is not None and tokens.seams is not None:
                own_masks += [mask[at:before], tokens.supervised]
                seams[piece] = tokens.seams[0]
            lengths[piece] = len(tokens.ids)
            at = before
        own_ids.append(ids[at:])
        own_masks.append(mask[at:])
        return np.concatenate(own_ids), np.concatenate(own_masks), np.cumsum(lengths), seams


def _with_pieces(batch: TextBatch, changed: dict[int, bytes]) -> TextBatch:
    """The batch with other texts in the place of some pieces."""
    blob, at = batch.text.data, 0
    texts: list[bytes] = []
    sizes = np.diff(batch.pieces)
    for piece, data in sorted(changed.items()):
        texts += [bytes(blob[at : int(batch.pieces[piece])]), data]
        at = int(batch.pieces[piece + 1])
        sizes[piece] = len(data)
    texts.append(bytes(blob[at:]))
    pieces = np.concatenate([batch.pieces[:1], batch.pieces[0] + np.cumsum(sizes)])
    return replace(batch, text=np.frombuffer(b"".join(texts), np.uint8), pieces=pieces)


def _model(cuts: Cuts) -> scan.Model:
    arrays = cuts.arrays
    steps, starts = split.lay_out(arrays["steps"], arrays["states"])
    return scan.Model(
        classes=arrays["classes"],
        steps=steps,
        starts=starts,
        width=arrays["steps"].shape[1],
        pairs=arrays["pairs"],
        pair_shift=_shift(arrays["pairs"]),
        torn=arrays["torn"],
        torn_shift=_shift(arrays["torn"]),
        groups=arrays["groups"],
        run=scan.RUN if len(starts) else 0,
        family={"byte_bpe": scan.BYTES, "char_bpe": scan.CHARACTERS, "words": scan.WORDS}[
            cuts.facts["family"]
        ],
        start_kind=scan.WHOLE
        if cuts.facts["ignore_merges"]
        else scan.FIRST
        if cuts.facts["prefix"]
        else scan.PART,
        single=arrays["single"],
        symbols=arrays["symbols"],
        widths=arrays["widths"],
        spans=arrays["spans"],
        merges=index_merges(
            arrays["merges"],
            np.concatenate([arrays["single"], arrays["symbols"]]),
            len(arrays["widths"]),
        ),
        becomes=arrays.get("becomes", np.zeros((0, 2), np.int32)),
        becomes_bytes=arrays.get("becomes_bytes", np.zeros(0, np.uint8)),
        unknown=cuts.facts.get("unknown", -1),
        most_characters=cuts.facts.get("most_characters", 0),
    )


def _shift(bits: npt.NDArray[np.uint8]) -> int:
    """What takes a hash to one of the bits that come after those of ASCII pairs."""
    return 64 - (8 * len(bits) - scan.ASCII_PAIRS - 1).bit_length()


def _unigram(cuts: Cuts) -> unigram.Model:
    own = {"kinds", "normal_kinds", "becomes", "becomes_bytes", "units", "scores", "widths", "single"}
    facts: dict[str, Any] = {n: value for n, value in cuts.facts.items() if n in unigram.Model._fields}
    facts |= {name: np.frombuffer(facts[name].encode(), np.uint8) for name in ("sign", "prefix")}
    facts |= {name: cuts.arrays[name] for name in own | {"hidden_nodes", "hidden_first"}}
    return unigram.Model(**facts)


def _vocabulary(cuts: Cuts) -> table.Table:
    """Entries that are taken whole, of kind WHOLE; for WordPiece those that begin a word, and of kind PART
    those that go on with it."""
    lists = [("whole", scan.WHOLE), ("inner", scan.PART)]
    arrays = cuts.arrays
    parts = [
        ([arrays[f"{name}_{k}"] for k in ("ids", "ends", "bytes")], kind)
        for name, kind in lists
        if f"{name}_ids" in arrays
    ]
    entries = sum(len(ids) for (ids, _, _), _ in parts)
    vocabulary = _empty_table(
        1 << max(4, (2 * entries).bit_length()), sum(len(data) for (_, _, data), _ in parts), 0
    )
    for (ids, ends, data), kind in parts:
        table.preload(vocabulary, data, ends, ids, kind)
    return vocabulary


def _warm_up(spans: bool) -> TextBatch:
    text = np.frombuffer(b"The first 12 words. " * 4, np.uint8)
    ends: npt.NDArray[np.int64] = np.array([0, len(text)], np.int64)
    return TextBatch(
        text, ends, np.array([0, 1], np.int64), ends.reshape(1, 2) if spans else None, np.zeros(1, np.int32)
    )
