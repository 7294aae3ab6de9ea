"""The compiled twin of patterns.Automaton: pre-tokens of UTF-8 text.

An automaton's steps come as one array with states as offsets of rows. A step is ``offset << 3 | flags``:
MATCH, a match ends before this character; BORDER, moreover the automaton died and began anew with this
character; STOP, it died otherwise. Thus text that never needs to go back is one step per character, without
a branch on where tokens end.
"""

from __future__ import annotations

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
import numpy as np
import numpy.typing as npt

from coverage_job.counting.compiled import compiled, get, inlined, put

MATCH, BORDER, STOP = 1, 2, 4


def lay_out(
    steps: npt.NDArray[np.int32], states: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Steps of one or more automata (patterns.Automaton, back to back, of `states` rows each) as described
    above; and the offset of each one's start state."""
    width = steps.shape[1]
    laid = np.empty_like(steps)
    starts = []
    first = 0
    for n in states.tolist():
        part = steps[first : first + n]
        following, match = part >> 1, part & 1
        again = np.broadcast_to(part[1] >> 1, part.shape)
        dead = following == 0
        anew = dead & (match == 1) & (again != 0)
        flags = match | np.where(anew, BORDER, 0) | np.where(dead & ~anew, STOP, 0)
        laid[first : first + n] = ((np.where(dead, again, following) + first) * width) << 3 | flags
        starts.append((first + 1) * width)
        first += n
    return np.ascontiguousarray(laid.reshape(-1)), np.array(starts, np.int64)


@inlined
def _low_bits(text, at):
    return np.int64(get(text, at)) & 0x3F


@inlined
def decode(text, at):
    """(code point, bytes) of the character at `at`, in valid UTF-8."""
    b = np.int64(get(text, at))
    if b < 0x80:
        point, size = b, 1
    elif b < 0xE0:
        point, size = ((b & 0x1F) << 6) | _low_bits(text, at + 1), 2
    elif b < 0xF0:
        point = ((b & 0x0F) << 12) | (_low_bits(text, at + 1) << 6) | _low_bits(text, at + 2)
        size = 3
    else:
        point = ((b & 0x07) << 18) | (_low_bits(text, at + 1) << 12)
        point |= (_low_bits(text, at + 2) << 6) | _low_bits(text, at + 3)
        size = 4
    return point, size


@inlined
def _match(classes, steps, start, width, text, at, limit):
    """The end of the match that begins at `at`, or -1."""
    state = start
    end = np.int64(-1)
    while at < limit:
        point, size = decode(text, at)
        step = np.int64(get(steps, state + get(classes, point)))
        if step & MATCH:
            end = at
        if step & (BORDER | STOP):
            return end
        state = step >> 3
        at += size
    if steps[state + width - 1] & MATCH:
        end = at
    return end


@compiled
def _gap_end(classes, steps, start, width, text, at, limit):
    """(where the next match begins after `at`, its end); (limit, -1) where none does."""
    end = np.int64(-1)
    at += decode(text, at)[1]
    while at < limit:
        end = _match(classes, steps, start, width, text, at, limit)
        if end >= 0:
            break
        at += decode(text, at)[1]
    return at, end


@compiled
def find_tokens(classes, steps, start, width, text, at, limit, ends):
    """The ends of the pre-tokens of text[at:limit], up to len(ends) of them; `at` begins one. Returns how
    many."""
    n = 0
    most = len(ends)
    token = at
    end = at
    state = start
    while n < most and token < limit:
        stopped = False
        while at < limit and n < most:
            point, size = decode(text, at)
            step = np.int64(get(steps, state + get(classes, point)))
            if step & MATCH:
                end = at
            if step & STOP:
                stopped = True
                break
            # Written always, counted where it is one.
            put(ends, n, at)
            border = (step >> 1) & 1
            n += border
            if border:
                token = at
            state = step >> 3
            at += size
        if n >= most:
            break
        if not stopped and steps[state + width - 1] & MATCH:
            end = limit
        if end == token:
            end = _gap_end(classes, steps, start, width, text, token, limit)[0]
        ends[n] = end
        n += 1
        at = token = end
        state = start
    return n


@compiled
def find_tokens_by_steps(classes, steps, starts, width, text, at, limit, ends, levels):
    """As find_tokens, where each automaton splits the pieces that the one before left.

    levels int64[levels, 3], kept from call to call within text[:limit], -1 at first: the end of each
    automaton's piece; where that is a gap, its end and the end of the match that follows.
    """
    n = 0
    n_levels = len(starts)
    while n < len(ends) and at < limit:
        outer = limit
        for level in range(n_levels):
            if levels[level, 0] <= at:
                if levels[level, 1] == at:
                    levels[level, 0] = levels[level, 2]
                else:
                    end = _match(classes, steps, starts[level], width, text, at, outer)
                    if end < 0:
                        levels[level, 1], levels[level, 2] = _gap_end(
                            classes, steps, starts[level], width, text, at, outer
                        )
                        end = levels[level, 1]
                    levels[level, 0] = end
                # What is inside begins anew.
                for inner in range(level + 1, n_levels):
                    levels[inner, 0] = levels[inner, 1] = -1
            outer = levels[level, 0]
        ends[n] = at = outer
        n += 1
    return n
