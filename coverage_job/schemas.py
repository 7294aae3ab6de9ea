"""Every Arrow schema the program writes, with its version; the public contract of its files.

`FORMAT_VERSION` is stored in each Parquet file's metadata and in `run.json`; it rises when a column
changes its meaning or goes away, not when one is added.
"""

from __future__ import annotations

from enum import Enum

import pyarrow as pa

FORMAT_VERSION = 1


class Stage(str, Enum):
    """When a model sees a corpus."""

    PRETRAINING = "pretraining"
    POSTTRAINING = "posttraining"


class Kind(str, Enum):
    """What a row of the vocabulary is for; every row has exactly one."""

    BASE = "base"
    ADDED = "added"
    SPECIAL = "special"
    BYTE = "byte"
    UNUSED = "unused"


class Decodable(str, Enum):
    """What a token's bytes are, whatever its kind."""

    UTF8 = "utf8"
    PARTIAL = "partial"
    BYTE = "byte"


class Reachability(str, Enum):
    """Whether a text exists whose encoding has the token; decided by encoding."""

    DIRECT = "direct"
    CONTEXTUAL = "contextual"
    MERGE_INTERMEDIATE = "merge_intermediate"
    UNREACHABLE = "unreachable"
    BYTE_NEVER = "byte_never"
    SPECIAL = "special"
    UNUSED = "unused"


class Status(str, Enum):
    """Where a token's measure stands against the job's two thresholds."""

    COVERED = "covered"
    LOW = "low"
    CRITICAL = "critical"
    ABSENT = "absent"
    EXEMPT = "exempt"


FLAGGED: tuple[str, ...] = (Status.LOW.value, Status.CRITICAL.value, Status.ABSENT.value)


class Action(str, Enum):
    """What the manifest proposes for a token."""

    NONE = "none"
    REPEAT = "repeat"
    MIX = "mix"
    REPEAT_AND_MIX = "repeat_and_mix"
    REPEAT_IDS = "repeat_ids"
    PROTECT = "protect"
    PRUNE_CANDIDATE = "prune_candidate"
    EXEMPT = "exempt"


COUNTS: tuple[str, ...] = ("occurrences", "documents", "supervised_occurrences", "supervised_documents")

# Rows of the vocabulary that no training text can ask for: never flagged.
NEVER_FLAGGED: tuple[str, ...] = (
    Reachability.UNUSED.value,
    Reachability.UNREACHABLE.value,
    Reachability.MERGE_INTERMEDIATE.value,
    Reachability.BYTE_NEVER.value,
)

_COUNT_FIELDS = [pa.field(name, pa.int64(), nullable=False) for name in COUNTS]

# One row per token of a partial that occurs at least once; counts add over any rows with one key.
PARTIAL = pa.schema(
    [
        pa.field("unit", pa.string(), nullable=False),
        pa.field("language", pa.string(), nullable=False),
        pa.field("group", pa.string(), nullable=False),
        pa.field("token_id", pa.int32(), nullable=False),
        *_COUNT_FIELDS,
    ]
)

HISTOGRAM = pa.schema(
    [
        pa.field("token_id", pa.int32(), nullable=False),
        pa.field("corpus", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("language", pa.string(), nullable=False),
        pa.field("group", pa.string(), nullable=False),
        *_COUNT_FIELDS,
    ]
)

# The vocabulary table: one row per id of the model's matrix, in order; free of corpora.
VOCABULARY = pa.schema(
    [
        pa.field("token_id", pa.int32(), nullable=False),
        pa.field("token", pa.string(), nullable=False),
        pa.field("token_bytes", pa.binary(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("decodable", pa.string(), nullable=False),
        pa.field("round_trip", pa.bool_(), nullable=False),
        pa.field("reachability", pa.string(), nullable=False),
        pa.field("example", pa.string()),
        pa.field("script", pa.string(), nullable=False),
        pa.field("language", pa.string(), nullable=False),
        pa.field("language_rule", pa.string(), nullable=False),
        pa.field("category", pa.string(), nullable=False),
        pa.field("category_rule", pa.string(), nullable=False),
    ]
)

COVERAGE_COUNTS: tuple[str, ...] = (
    "pretraining_occurrences",
    "pretraining_documents",
    "posttraining_occurrences",
    "posttraining_documents",
    "posttraining_supervised_occurrences",
    "posttraining_supervised_documents",
)

DRIFT_COLUMNS: tuple[str, ...] = ("lm_head_cosine", "lm_head_l2", "embedding_cosine", "embedding_l2")

COVERAGE = pa.schema(
    [
        *VOCABULARY,
        *[pa.field(name, pa.int64(), nullable=False) for name in COVERAGE_COUNTS],
        pa.field("expected_updates", pa.float64(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("deficit", pa.int64(), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        *[pa.field(name, pa.float64()) for name in DRIFT_COLUMNS],
    ]
)

MANIFEST = pa.schema(
    [
        pa.field("token_id", pa.int32(), nullable=False),
        pa.field("token", pa.string(), nullable=False),
        pa.field("deficit", pa.int64(), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("context", pa.string()),
    ]
)

SUMMARY = pa.schema(
    [
        pa.field("by", pa.string(), nullable=False),
        pa.field("value", pa.string(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("covered", pa.int64(), nullable=False),
        pa.field("under", pa.int64(), nullable=False),
        pa.field("critical", pa.int64(), nullable=False),
        pa.field("absent", pa.int64(), nullable=False),
        pa.field("exempt", pa.int64(), nullable=False),
        pa.field("covered_rate", pa.float64()),
        pa.field("under_rate", pa.float64()),
        pa.field("absent_rate", pa.float64()),
        pa.field("tokens_counted", pa.int64(), nullable=False),
        pa.field("supervised_tokens_counted", pa.int64(), nullable=False),
    ]
)

BAD_RECORDS = pa.schema(
    [
        pa.field("corpus", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("first_bytes", pa.binary(), nullable=False),
    ]
)

# Letters of a script foreign to the record's language, in supervised messages; start and end are
# characters of the message's text.
MIXED_SCRIPT = pa.schema(
    [
        pa.field("corpus", pa.string(), nullable=False),
        pa.field("place", pa.string(), nullable=False),
        pa.field("language", pa.string(), nullable=False),
        pa.field("script", pa.string(), nullable=False),
        pa.field("message", pa.int32(), nullable=False),
        pa.field("start", pa.int32(), nullable=False),
        pa.field("end", pa.int32(), nullable=False),
        pa.field("excerpt", pa.string(), nullable=False),
    ]
)


# One row per row of the after checkpoint's matrix; null where a value is not defined or was not asked for.
DRIFT = pa.schema(
    [
        pa.field("token_id", pa.int32(), nullable=False),
        pa.field("token", pa.string(), nullable=False),
        pa.field("language", pa.string(), nullable=False),
        pa.field("category", pa.string(), nullable=False),
        *[
            pa.field(f"{role}_{name}", type_)
            for role in ("lm_head", "embedding")
            for name, type_ in (
                ("cosine", pa.float64()),
                ("l2", pa.float64()),
                ("relative_l2", pa.float64()),
                ("norm_before", pa.float64()),
                ("norm_after", pa.float64()),
                ("rank", pa.int32()),
                ("neighbours_before", pa.list_(pa.int32())),
                ("neighbours_after", pa.list_(pa.int32())),
                ("neighbour_overlap", pa.float64()),
            )
        ],
        # Under-trained indicators of the after checkpoint's output rows, against the mean of unused rows.
        pa.field("unused_cosine", pa.float64()),
        pa.field("unused_l2", pa.float64()),
        pa.field("unused_cosine_centred", pa.float64()),
        pa.field("unused_cosine_without_first", pa.float64()),
        pa.field("under_trained", pa.bool_()),
    ]
)

# A dialogue of the repeat set, as trainers read it.
REPEAT = pa.schema(
    [
        pa.field(
            "messages",
            pa.list_(pa.struct([pa.field("role", pa.string()), pa.field("content", pa.string())])),
            nullable=False,
        )
    ]
)

# A row of the repeat set by ids; labels are unshifted, -100 where no loss is taken.
REPEAT_IDS = pa.schema(
    [
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("labels", pa.list_(pa.int32()), nullable=False),
    ]
)

# What each token was promised and what was counted in the files written; `how`: text | ids | none.
REPEAT_PROOF = pa.schema(
    [
        pa.field("token_id", pa.int32(), nullable=False),
        pa.field("token", pa.string(), nullable=False),
        pa.field("promised", pa.int64(), nullable=False),
        pa.field("counted", pa.int64(), nullable=False),
        pa.field("how", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
    ]
)

# One row per prompt that was answered: what a probe found.
PROBE = pa.schema(
    [
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("token_id", pa.int32(), nullable=False),
        pa.field("token", pa.string(), nullable=False),
        pa.field("language", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("response", pa.string(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("substitute", pa.string()),
        pa.field("substitute_id", pa.int32()),
        # Cosine of the token's and the substitute's output rows in the model that answered.
        pa.field("substitute_cosine", pa.float64()),
        # Whether the answer's ids hold the token itself; a text can be spelt by other ids.
        pa.field("id_written", pa.bool_()),
        # The largest probability of the token over its verification contexts.
        pa.field("max_probability", pa.float64()),
    ]
)

# One row per response: whether it keeps to the language that was expected.
CONFUSION = pa.schema(
    [
        pa.field("prompt_id", pa.string()),
        pa.field("source", pa.string(), nullable=False),
        pa.field("language", pa.string(), nullable=False),
        pa.field("response", pa.string(), nullable=False),
        pa.field("letters", pa.int64(), nullable=False),
        pa.field("foreign_letters", pa.int64(), nullable=False),
        pa.field("foreign_scripts", pa.list_(pa.string()), nullable=False),
        pa.field("lines", pa.int64(), nullable=False),
        pa.field("wrong_lines", pa.int64(), nullable=False),
        pa.field("wrong_languages", pa.list_(pa.string()), nullable=False),
        pa.field("english_words", pa.list_(pa.string()), nullable=False),
    ]
)

# A candidate passage of the mix: what it holds of the tokens that are short. A row with position -1
# says how many lines began in a piece, so that positions in a piece become positions in a file.
MIX_CANDIDATES = pa.schema(
    [
        pa.field("corpus", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("text_hash", pa.int64(), nullable=False),
        pa.field("ids", pa.binary(), nullable=False),
        pa.field("counts", pa.binary(), nullable=False),
        pa.field("passage_start", pa.int64(), nullable=False),
        pa.field("passage_end", pa.int64(), nullable=False),
    ]
)

# The text of a chosen passage, with its place in the piece it was read from.
MIX_TEXTS = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("passage_start", pa.int64(), nullable=False),
    ]
)

# A passage of the mix, a document or a part of one: bytes [passage_start, passage_end) of its text.
# `contributes`: the tokens it was taken for, each with how many were still needed.
MIX = pa.schema(
    [
        pa.field("text", pa.string(), nullable=False),
        pa.field("corpus", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field(
            "contributes",
            pa.list_(pa.struct([pa.field("token_id", pa.int32()), pa.field("count", pa.int32())])),
            nullable=False,
        ),
        pa.field("passage_start", pa.int64(), nullable=False),
        pa.field("passage_end", pa.int64(), nullable=False),
    ]
)

# What each token lacked, what was counted in the documents written, and what is left for the repeat set.
MIX_PROOF = pa.schema(
    [
        pa.field("token_id", pa.int32(), nullable=False),
        pa.field("token", pa.string(), nullable=False),
        pa.field("needed", pa.int64(), nullable=False),
        pa.field("counted", pa.int64(), nullable=False),
        pa.field("left", pa.int64(), nullable=False),
    ]
)
