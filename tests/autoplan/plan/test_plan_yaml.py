from __future__ import annotations

import pytest

from autoplan.plan.plan_yaml import Inline, YamlProblem, parse, render


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1e-05, "1.0e-05"),
        (0.00412345678, "0.00412346"),
        (134000.4, "134000.0"),
        (2.5, "2.5"),
        (3.0, "3.0"),
        (1e22, "1.0e+22"),
        (17, "17"),
        (20830591386, "20830591386"),
        (True, "true"),
        (None, "null"),
    ],
)
def test_numbers_are_written_with_sensible_digits_and_stay_numbers(number, text):
    assert render({"x": number}) == f"x: {text}\n"
    value = parse(f"x: {text}").value["x"]
    assert type(value) is type(number)
    assert value == pytest.approx(number, rel=1e-5) if number is not None else value is None


NUMBERS_ELSEWHERE = [
    "1e-4",
    "08",
    "1e5",
    ".5",
    "+3",
    "2026-01-01",
    "12:30",
    "0x1f",
    "1_000",
    "no",
    "off",
    "true",
    "~",
    "null",
    "=",
    "<<",
]
AWKWARD = [
    "",
    "a: b",
    "- a",
    "#c",
    "tail \nline",
    "two\nlines\n",
    "\ttab",
    "nul\0",
    "\x1b[1m",
    "µs → é",
    "%",
    "@x",
    "`",
    "'",
    '"',
]


@pytest.mark.parametrize("text", [*NUMBERS_ELSEWHERE, *AWKWARD])
def test_text_stays_text(text):
    assert parse(render({"x": text, "l": [text], "i": Inline(k=text)})).value == {
        "x": text,
        "l": [text],
        "i": {"k": text},
    }


def test_sentences_take_a_line_each():
    assert render({"notes": ["one thing", "another"], "args": ["--epochs", "3"]}) == (
        "notes:\n- one thing\n- another\nargs: [--epochs, '3']\n"
    )


def test_plain_lists_and_inline_mappings_take_one_line_each():
    assert render({"l": [1, 2], "m": {"a": Inline(b={"c": 1})}, "n": [{"a": 1}]}) == (
        "l: [1, 2]\nm:\n  a: {b: {c: 1}}\nn:\n- a: 1\n"
    )


def test_every_key_and_item_has_its_line():
    document = parse("a: 1\nb:\n  c: [x, y]\n  d:\n  - e: 1\n  - e: 2\n")
    assert document.lines == {
        (): 1,
        ("a",): 1,
        ("b",): 2,
        ("b", "c"): 3,
        ("b", "c", 0): 3,
        ("b", "c", 1): 3,
        ("b", "d"): 4,
        ("b", "d", 0): 5,
        ("b", "d", 0, "e"): 5,
        ("b", "d", 1): 6,
        ("b", "d", 1, "e"): 6,
    }
    assert document.line_of(("b", "missing", "deeper")) == 2


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nb: 2\na: 3", 3, "this key is already on line 1; keep only one"),
        ("a: &x [1]\nb: *x", 1, "an alias (*name); expected the values themselves"),
        ("a: 1\nb: !!python/object/apply:os.system [x]", 2, "tag:yaml.org,2002:python/object/apply:os.system"),
        ("a: 1\nb: !!python/name:os.system x", 2, "tag:yaml.org,2002:python/name:os.system"),
        ("a: 1\n[b]: 1", 2, "a key that is a list or a mapping; expected a name"),
        ("a: 1e999", 1, "a number too large to read; expected a finite one"),
        ("a: " + "9" * 5000, 1, "a number too large to read; expected a finite one"),
        ("a: 1\nb: [1,", 3, "expected"),
        ("a: b: c", 1, "mapping values are not allowed"),
        ("--- a\n--- b", 2, "another document"),
        ("\0", None, "not allowed"),
        ("[" * 100_000, 1, "nest"),
    ],
)
def test_what_is_no_plain_document_is_told_with_its_line(text, line, message):
    with pytest.raises(YamlProblem) as caught:
        parse(text)
    assert message in str(caught.value)
    assert caught.value.line == line


def test_an_alias_that_contains_itself_ends():
    with pytest.raises(YamlProblem, match="an alias"):
        parse("a: &x [*x]")


def test_no_document_is_none():
    assert parse("# nothing but a comment\n").value is None
