"""Listed prices of catalogue hardware."""

import pytest

from cost_models.hardware.catalogue import rows
from cost_models.hardware.chip_sizes import sizes
from cost_models.hardware.pricing import Offer, offers


def test_prices_are_of_the_size_that_they_are_listed_for():
    small, large = offers("tpu-v2-8"), offers("tpu-v2-32")
    assert [one.usd_per_chip_hour for one in small] == [1.125]
    assert [one.usd_per_chip_hour for one in large] == [1.5, 1.125]
    assert offers("gpu-p100-16gb") == ()


@pytest.mark.parametrize("key", [row.key for row in rows().values() if row.prices])
def test_every_price_has_a_basis_and_a_source_with_the_date_it_was_read(key):
    for offer in offers(sizes(rows()[key])[0]):
        assert offer.basis
        assert all("(read 20" in source for source in offer.sources)


def test_a_million_samples_cost_the_hours_that_they_take_on_all_chips():
    # 4 chips at 3 USD are 12 USD an hour; at 500 samples a second a million samples take 2,000 s.
    assert Offer(3.0, "", ()).usd_per_million_samples(4, 500.0) == pytest.approx(12 * 2000 / 3600)
