"""Scratch of library kernels."""

from cost_models.xla.buffers.liveness import schedule
from cost_models.xla.buffers.purpose import Purpose
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import dense

VOLTA = compiler_profile("gpu", compute_capability=7.0)


def test_every_product_of_a_library_has_scratch_while_it_runs():
    columns = schedule(dense(64, 32), VOLTA, Updates.AT_ONCE).temporaries
    scratch = columns.tensor < 0
    assert set(columns.purpose[scratch].tolist()) == {Purpose.WORKSPACE}
    assert set(columns.scratch[scratch].tolist()) == {VOLTA.setting("dot-workspace", "size")}
    assert (columns.birth == columns.death)[scratch].all()
    assert scratch.sum() == 2  # forward, and the gradient of the kernel
