"""A corpus' dialogues through its chat template, with the mask audit kept on the way."""

from __future__ import annotations

import re
from datetime import datetime

from tokenizers import Tokenizer

from coverage_job.config import TrainOn
from coverage_job.corpus import shapes
from coverage_job.corpus.audit import MaskAudit
from coverage_job.corpus.chat import Rendered, Renderer
from coverage_job.corpus.sandbox import RenderError
from coverage_job.corpus.template import TemplateSpec


def template_renderer(
    template: TemplateSpec,
    tokenizer: Tokenizer,
    *,
    train_on: TrainOn = "all_assistant",
    train_end_of_turn: bool = True,
    split_special_tokens: bool = False,
    now: datetime,
) -> TemplateRenderer:
    """A renderer that knows the tokenizer's special tokens. Raises JobError for a template that is none."""
    added = list(tokenizer.get_added_tokens_decoder().values())
    renderer = Renderer(
        template,
        train_on=train_on,
        train_end_of_turn=train_end_of_turn,
        split_special_tokens=split_special_tokens,
        special_tokens=[token.content for token in added if token.special],
        added_tokens=[token.content for token in added],
        now=now,
    )
    return TemplateRenderer(renderer)


def special_pattern(tokenizer: Tokenizer) -> re.Pattern[str]:
    """Finds the texts of a tokenizer's special tokens, the longest first."""
    texts = [t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special and t.content]
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")


def audit_without_template(
    audit: MaskAudit, dialogue: shapes.Dialogue, special: re.Pattern[str], place: str
) -> None:
    """Adds to the mask audit what a dialogue shows of itself where no template renders it."""
    roles = [shapes.role_key(m["role"]) for m in dialogue.messages]
    lost = sum(len(m.get("tool_calls") or ()) for m in dialogue.messages)
    found = Rendered(
        b"",
        [],
        special_texts=sum(len(special.findall(text)) for texts in dialogue.texts for text in texts),
        media=_media_noted(dialogue),
        unknown_roles=[r for r in roles if r not in shapes.SUPERVISED_ROLES | shapes.OTHER_ROLES],
        # A call that is a turn of its own (`function_call`) is that turn's text, and is counted.
        lost_tool_calls=lost if "tool calls" in dialogue.outside else 0,
    )
    audit.add_rendered(found, place)


def _media_noted(dialogue: shapes.Dialogue) -> int:
    # Parts that are no text were left out when the record was read.
    return any(note.startswith("images, audio or video") for note in dialogue.notes)


class TemplateRenderer:
    """A `shapes.Renderer` by chat template.

    audit: what rendering found so far; whoever counts takes it and puts a new one in its place.
    place: file and position of the record at hand, for the audit's examples; set by whoever reads.
    """

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self.audit = MaskAudit()
        self.place = ""

    def render(self, dialogue: shapes.Dialogue) -> shapes.Rendered:
        """Raises RecordError with the template's own message where it fails."""
        trained = dialogue.trained(self.renderer.train_on)
        try:
            rendered = self.renderer.render(dialogue.messages, dialogue.tools, dialogue.extra, trained)
        except RenderError as error:
            self.audit.add_failure(str(error), self.place)
            raise shapes.RecordError(f"chat template failed: {error}") from None
        rendered.media = rendered.media or _media_noted(dialogue)
        self.audit.add_rendered(rendered, self.place)
        return shapes.Rendered([rendered.text], rendered.spans, rendered.plain)
