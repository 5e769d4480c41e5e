"""Masks of splash attention, by the shapes of its operands."""

import pytest

from cost_models.workload.splash_attention import computes_mask

QUERIES, KEYS = 256, 512
SEGMENTS = [(QUERIES, 128), (8, KEYS)]


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (SEGMENTS, False),
        ([*SEGMENTS, (QUERIES, 128)], True),
        ([*SEGMENTS, (4, 8, KEYS)], True),
        ([*SEGMENTS, (KEYS, 64)], False),
        ([*SEGMENTS, (2,)], False),
    ],
)
def test_positions_beside_the_segments_are_a_mask(shapes, expected):
    assert computes_mask(shapes, {QUERIES, KEYS}) is expected
