"""Tests of the marks for what is invisible on a page."""

import unicodedata

import pytest

from amqpstore_server.management.pages.visible import sentence, with_marks


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("<a href='x'>a\u202eb</a>", "<a href='x'>a[U+202E]b</a>"),
        ("<p>in \u2066\u200b</p>", "<p>in [U+2066][U+200B]</p>"),
        ("<b>x</b> after\xa0it<br>", "<b>x</b> after[U+00A0]it<br>"),
        ("<code> lead</code>", "<code>\u2423lead</code>"),
        ("<code>trail  </code>", "<code>trail\u2423\u2423</code>"),
        ("<a>a  b c</a>", "<a>a\u2423\u2423b c</a>"),
        ("<a>a\tb\n</a>", "<a>a[U+0009]b[U+000A]</a>"),
        ("<code> </code>", "<code>\u2423</code>"),
        ("<h1> a </h1>", "<h1>\u2423a\u2423</h1>"),
        ("<td><bdi>a </bdi> b </td>", "<td><bdi>a\u2423</bdi> b </td>"),
        ("<option value=' a'> a</option>", "<option value=' a'>\u2423a</option>"),
        # What is a template's own, and what is sent.
        ("<p> text\n <a>x</a> \n</p>", "<p> text\n <a>x</a> \n</p>"),
        ("<pre>{\n  1}</pre>", "<pre>{\n  1}</pre>"),
        ("<textarea>a\u202eb</textarea>", "<textarea>a\u202eb</textarea>"),
        ("<option>a\u202eb</option>", "<option>a\u202eb</option>"),
        ("<input value='a\u202eb'>", "<input value='a\u202eb'>"),
        ("<a>\u0645\u0631\u062d\u0628\u0627 \xe9 \u6f22</a>",) * 2,
    ],
)
def test_what_would_not_be_seen_is_marked(page: str, shown: str) -> None:
    assert with_marks(page) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no queue ' a  b '", "no queue '<bdi>\u2423a\u2423\u2423b\u2423</bdi>'"),
        ("queue 'x' in vhost '/'", "queue '<bdi>x</bdi>' in vhost '<bdi>/</bdi>'"),
        ("the queue's owner isn't 'o'", "the queue&#39;s owner isn&#39;t '<bdi>o</bdi>'"),
        ("no '<b>\u202ex'", "no '<bdi>&lt;b&gt;[U+202E]x</bdi>'"),
        ("no name", "no name"),
        ("'", "&#39;"),
    ],
)
def test_a_name_in_a_sentence_is_an_element_of_its_own(text: str, shown: str) -> None:
    assert with_marks(f"<p>{sentence(text)}</p>") == f"<p>{shown}</p>"


def test_no_character_that_controls_or_formats_is_left() -> None:
    for code in range(0x110000):
        one = chr(code)
        is_hidden = unicodedata.category(one) in ("Cc", "Cf", "Zl", "Zp") or (
            unicodedata.category(one) == "Zs" and one != " "
        )
        # These have a form of their own: marks for numbers in Arabic and Syriac, and hieroglyphs.
        has_form = (
            unicodedata.bidirectional(one) in ("AN", "AL")
            or 0x110BD <= code <= 0x110CD
            or 0x13430 <= code <= 0x13455
        )
        if is_hidden and not has_form and one not in "<\t\n\r":
            assert one not in with_marks(f"<p>a{one}b</p>"), f"U+{code:04X}"
