from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from coverage_job.report.visible import hidden, visible, visible_bytes
from tests.report.fabricate import HOSTILE


class Parsed(HTMLParser):
    """The tags of a fragment and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def assert_harmless(html: str) -> None:
    parsed = Parsed(html)
    assert set(parsed.tags) <= {"bdi", "span"}
    assert not [c for c in parsed.text if hidden(c)]


@given(
    st.text(alphabet=st.characters(blacklist_categories=["Cs"]) | st.sampled_from("<>&'\"=\u202e\u200b \n"))
)
def test_nothing_hides_and_nothing_acts(text: str) -> None:
    assert_harmless(visible(text))


@given(st.binary())
def test_bytes_too(data: bytes) -> None:
    assert_harmless(visible_bytes(data))


@given(st.text(alphabet="abc日本é<&>", min_size=1))
def test_plain_text_is_unchanged(text: str) -> None:
    assert Parsed(visible(text)).text == text


def test_hostile_tokens() -> None:
    shown = [Parsed(visible(text)).text for text in HOSTILE]
    assert shown[3] == "U+202EevilU+202C"
    assert shown[4] == "U+200BU+200DU+FEFF"
    assert shown[10].startswith("◌")
    assert shown[13] == "␣×40"
    assert shown[15] == "U+0000U+001B[31m"
