import csv

import pytest

from cost_models.xla.profiles import cpu, gpu, tpu
from cost_models.xla.rules import Rule, registered, rule
from studies.memory_vs_compiler.ledger import LEAST_MAPE_POINTS, LEAST_ROWS, LEDGER

PROFILES = (gpu.AMPERE, gpu.HOPPER, gpu.VOLTA, cpu.CPU, tpu.V5E, *tpu.BY_CHIP.values())


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="a rule named 'float-normalization' is registered already"):
        rule("float-normalization", source="nowhere")(lambda: None)


def test_every_rule_names_its_source_and_every_profile_lists_registered_rules():
    assert all(one.source for one in registered().values())
    for profile in PROFILES:
        for name, listed in profile.rules.items():
            assert listed.function is registered()[name].function


def test_every_rule_of_a_compiler_is_in_some_profile():
    of_compilers = {name for name, one in registered().items() if one.function.__module__.startswith("cost_models.xla")}
    assert of_compilers == {name for profile in PROFILES for name in profile.rules}


def test_settings_are_bound_by_name_and_make_another_rule():
    plain = Rule("sum", "arithmetic", lambda x, *, y=0: x + y)
    assert plain(1) == 1
    assert plain.using(y=2)(1) == 3
    assert plain.using(y=2) == plain.using(y=1).using(y=2) != plain


def rows():
    """The rows of the ledger, by rule."""
    found = {}
    with LEDGER.open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["rule"], []).append(row)
    return found


def test_every_rule_of_a_compiler_has_its_rows_in_the_ledger_and_no_other_rule_is_kept():
    of_compilers = {name for name, one in registered().items() if one.function.__module__.startswith("cost_models.xla")}
    kept = {name for name, found in rows().items() if any(row["state"] == "kept" for row in found)}
    assert kept == of_compilers


def test_a_rule_that_does_not_pay_in_any_group_says_why_it_stays():
    for name, found in rows().items():
        kept = [row for row in found if row["state"] == "kept"]
        pays = any(
            float(row["mape_without"]) - float(row["mape"]) >= LEAST_MAPE_POINTS
            or int(row["inside"]) - int(row["inside_without"]) >= LEAST_ROWS
            for row in kept
        )
        assert not kept or pays or any(row["note"] for row in kept), name
