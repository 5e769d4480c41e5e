from __future__ import annotations

import pytest

from autoplan import parsing
from autoplan.errors import ConfigError

LONG = "9" * 5000
"""More digits than Python reads."""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1h", 3600), ("1.5m", 90), ("1H2M3S", 3723), (" 5s ", 5)],
)
def test_durations(text, seconds):
    assert parsing.duration_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "10", "ten minutes", "m", "0s", "0h0m", "-5s", "30m1h", "10 m", "1e3s", "5s5s", LONG + "s"]
)
def test_what_is_no_duration(text):
    with pytest.raises(ConfigError) as caught:
        parsing.duration_seconds(text)
    assert str(caught.value) == f"--budget {text}: expected a time with units, such as 90s, 10m or 1h30m"


@pytest.mark.parametrize(("text", "value"), [("8%", 0.08), ("0%", 0.0), ("12.5%", 0.125), (" 99% ", 0.99)])
def test_shares(text, value):
    assert parsing.share(text) == value


@pytest.mark.parametrize("text", ["8", "0.08", "100%", "-1%", "", "%", "a%", "8%%", "0" + LONG + "%"])
def test_what_is_no_share(text):
    with pytest.raises(ConfigError) as caught:
        parsing.share(text)
    assert str(caught.value) == (
        f"--headroom {text}: expected a percentage of the device's memory below 100%, such as 8%"
    )


def test_effective_batches():
    assert parsing.batch_range("keep") is None
    assert parsing.batch_range("64..4096") == (64, 4096)
    assert parsing.batch_range("64..64") == parsing.batch_range("64") == (64, 64)


@pytest.mark.parametrize(
    "text",
    ["", "0", "64.0", "64-128", "128..64", "0..4", "64..", "..64", "a..b", "1..2..3", "-1..4", "1.." + LONG, LONG],
)
def test_what_is_no_range(text):
    with pytest.raises(ConfigError) as caught:
        parsing.batch_range(text)
    assert str(caught.value) == (
        f"--effective-batch {text}: expected keep, samples per update such as 256, or a range such as 64..4096"
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 * 2**30),
        ("1.5 GiB", 3 * 2**29),
        ("512mib", 2**29),
        ("2g", 2 * 2**30),
        ("64K", 2**16),
        ("1500 MB", 1_500_000_000),
        ("1TB", 10**12),
    ],
)
def test_sizes(text, size):
    assert parsing.size_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "2", "2048", "GiB", "-1GiB", "0GiB", "2 G B", "two GiB", "1.2.3GiB", "50%", "2b", LONG + "g"]
)
def test_what_is_no_size(text):
    with pytest.raises(ConfigError) as caught:
        parsing.size_bytes(text)
    assert str(caught.value) == f"--memory-limit {text}: expected a size with a unit, such as 2GiB or 1500MB"


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("data=4,model=2", {"data": 4, "model": 2}),
        ("data=8", {"data": 8}),
        ("model=2, data=1", {"model": 2, "data": 1}),
    ],
)
def test_meshes(text, axes):
    assert parsing.mesh_axes(text) == axes


@pytest.mark.parametrize(
    "text",
    ["", "8", "data", "data=", "data=0", "data=x", "data=4,data=2", "batch=4", "data=4,", "data=²", "data=" + LONG],
)
def test_what_is_no_mesh(text):
    with pytest.raises(ConfigError) as caught:
        parsing.mesh_axes(text)
    assert str(caught.value) == (
        f"--mesh {text}: expected each of the axes data and model once, such as data=4,model=2"
    )


def test_settings_split_at_the_first_equals_sign():
    assert parsing.settings(["precision=float32", "mesh=data=8", " batch.global = 64"]) == {
        "precision": "float32",
        "mesh": "data=8",
        "batch.global": "64",
    }
    assert parsing.settings([]) == {}


@pytest.mark.parametrize("pair", ["precision", "=float32", "precision=", "precision =", ""])
def test_what_is_no_setting(pair):
    with pytest.raises(ConfigError) as caught:
        parsing.settings([pair])
    assert str(caught.value) == (f"--fix {pair}: expected KEY=VALUE, such as precision=float32 or mesh=data=8")


def test_a_key_twice():
    with pytest.raises(ConfigError) as caught:
        parsing.settings(["batch=64", "batch=128"])
    assert str(caught.value) == "--fix batch is given twice, as 64 and as 128; keep one of them"


def test_names():
    assert parsing.names(["batch,precision", "remat, batch,"]) == ("batch", "precision", "remat")
    assert parsing.names([]) == ()


@pytest.mark.parametrize("texts", [[","], [""], ["batch", " , "]])
def test_words_that_name_nothing_are_not_taken_for_all(texts):
    with pytest.raises(ConfigError, match="expected names of settings with commas between"):
        parsing.names(texts)


@pytest.mark.parametrize(("option", "like"), [("--hardware", "tpu-v5e-4,gpu-h100-80gb"), ("--family", "tpu,nvidia")])
def test_an_option_of_names_says_what_it_names(option, like):
    assert parsing.names([like], option) == tuple(like.split(","))
    with pytest.raises(ConfigError, match=f"^{option} ',': expected .* with commas between, such as {like}$"):
        parsing.names([","], option)


def test_choices_name_what_is_near():
    assert parsing.choice("--precision", "mixed_float16", ("float32", "mixed_float16")) == "mixed_float16"
    with pytest.raises(ConfigError) as caught:
        parsing.choice("--precision", "mixed_flot16", ("float32", "mixed_float16"))
    assert str(caught.value) == (
        "--precision mixed_flot16: expected one of float32, mixed_float16; did you mean mixed_float16?"
    )
    with pytest.raises(ConfigError) as caught:
        parsing.choice("--remat", "x", ("none", "full"))
    assert str(caught.value) == "--remat x: expected one of none, full"


@pytest.mark.parametrize(
    ("texts", "shapes"),
    [
        ([], {}),
        (["224,224,3"], {"": [224, 224, 3]}),
        (["ids=512", " mask = 512 "], {"ids": [512], "mask": [512]}),
    ],
)
def test_input_shapes(texts, shapes):
    assert parsing.input_shapes(texts) == shapes


@pytest.mark.parametrize("text", ["", "ids=", "=3", "224x224x3", "224,,3", "0,3", "-1", "1e3", "9" * 20, "None,3"])
def test_wrong_input_shapes_are_refused(text):
    with pytest.raises(ConfigError, match=r"--input-shape .*: expected the sizes of one sample, without the batch"):
        parsing.input_shapes([text])


@pytest.mark.parametrize("texts", [["3", "4"], ["3", "ids=4"], ["ids=3", "4"], ["ids=3", "ids=4"]])
def test_each_input_is_given_once(texts):
    with pytest.raises(ConfigError, match="give each input once, as NAME=SIZE"):
        parsing.input_shapes(texts)


@pytest.mark.parametrize(
    ("shape", "texts"),
    [(None, []), ((224, 224, 3), ["224,224,3"]), ({"ids": (512,), "rows": 4}, ["ids=512", "rows=4"]), (5, ["5"])],
)
def test_shapes_from_python_become_texts(shape, texts):
    assert parsing.shape_texts(shape) == texts
