"""The answers of a device to Keras's questions."""

import pytest

from cost_models.errors import HardwareError, WorkloadError
from cost_models.hardware.catalogue import rows
from cost_models.hardware.lookup import cluster
from cost_models.hardware.platform import CUDNN, HOST, TargetPlatform, at_least, exactly


@pytest.mark.parametrize(
    ("name", "cudnn", "ampere", "hopper", "exactly_90"),
    [
        ("gpu-v100-16gb", True, False, False, False),
        ("gpu-a100-80gb", True, True, False, False),
        ("gpu-h100-80gb", True, True, True, True),
        ("gpu-b200", True, True, True, False),
        ("gpu-mi300x", False, False, False, False),
        ("tpu-v4-8", False, False, False, False),
        ("cpu", False, False, False, False),
    ],
)
def test_answers_follow_from_the_catalogue(name, cudnn, ampere, hopper, exactly_90):
    platform = TargetPlatform.of(cluster(name).chip)
    kind = name.partition("-")[0]
    assert [platform.answer(one) for one in ("cpu", "gpu", "tpu")] == [kind == one for one in ("cpu", "gpu", "tpu")]
    asked = (CUDNN, at_least("8.0"), at_least("9.0"), exactly("9.0"))
    assert [platform.answer(one) for one in asked] == [cudnn, ampere, hopper, exactly_90]
    assert platform.gives([("gpu", kind == "gpu"), (CUDNN, cudnn)])
    assert not platform.gives([("gpu", kind == "gpu"), (CUDNN, not cudnn)])
    assert TargetPlatform.from_dict(platform.to_dict()) == platform


def test_every_nvidia_gpu_of_the_catalogue_has_its_compute_capability_with_a_source():
    chips = [row for row in rows().values() if row.family == "nvidia"]
    assert chips
    assert all(row.figures["compute_capability"].sources for row in chips)


def test_an_unknown_kind_or_question_is_refused():
    with pytest.raises(HardwareError, match="platform 'npu'; expected one of tpu, gpu, cpu"):
        TargetPlatform("npu")
    with pytest.raises(WorkloadError, match="by the question 'is it warm', which this version does not know"):
        HOST.answer("is it warm")
