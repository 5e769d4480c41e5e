"""Arguments of `fit` by name."""

from autoplan.runtime.data.fit_arguments import map_data, without


def test_arguments_are_left_out_by_name():
    assert without({"x": 1, "epochs": 2, "verbose": 0}, "epochs", "callbacks") == {"x": 1, "verbose": 0}


def test_a_function_is_applied_to_the_data_alone():
    arguments = {"x": [1], "y": [2], "batch_size": 3}
    found = map_data(lambda data: None if data is None else data * 2, arguments)
    assert found == {"x": [1, 1], "y": [2, 2], "sample_weight": None}
