"""`AttentionCall`: one call of dot-product attention in a micro-step, and the fused kernel that Keras would use for it.

The rules are those of `keras/src/backend/jax/nn.py` (`_can_use_flash_attention`, `dot_product_attention`) inside a
compiled training step, and of the kernels that it calls.
"""

from __future__ import annotations

from pydantic import Field

from autoplan.plan.records import Value

FIRST_FUSED_CAPABILITY = 8.0
"""cuDNN's fused attention needs at least Ampere (`_can_use_flash_attention`)."""
_LARGE_HEADS_CAPABILITY, _HEAD, _LARGE_HEAD, _HEAD_MULTIPLE = 9.0, 128, 256, 8
"""Head widths that cuDNN takes (`check_is_flash_attention` of `jax/_src/cudnn/fused_attention_stablehlo.py`)."""
FUSED_DTYPES = ("float16", "bfloat16")
"""Dtypes of queries that cuDNN takes (`check_layout` of the same module)."""
_TPU_BLOCK = 128
"""Positions of one block of the TPU kernel (`BlockSizes.get_default` of `splash_attention_kernel.py`)."""


class AttentionCall(Value):
    """One call of dot-product attention in a micro-step of the script. Shapes are (batch, length, heads, width).

    A layer with dropout on its scores, or one that returns them, makes no such call and is never fused.
    """

    layer: str = Field(description="the layer that makes the call")
    follows_setting: bool = Field(
        True, description="Keras's setting decides; False: the layer's own flash_attention=True, or own code, does"
    )
    query: list[int] | None = Field(None, description="None: the shapes are not known")
    key: list[int] | None = None
    value: list[int] | None = None
    dtype: str = ""
    masked: bool = False
    causal: bool = False

    def fuses_on_gpu(self, compute_dtype: str, capability: float | None) -> bool:
        """Return whether a GPU of this compute capability computes it in one cuDNN kernel."""
        if compute_dtype not in FUSED_DTYPES or capability is None or capability < FIRST_FUSED_CAPABILITY:
            return False
        if self.query is None or self.value is None:
            return True
        width, large = self.query[-1], capability >= _LARGE_HEADS_CAPABILITY
        takes_width = width <= (_LARGE_HEAD if large else _HEAD) and width % _HEAD_MULTIPLE == 0
        return takes_width and (large or self.value[-1] == width)

    @property
    def fuses_on_tpu(self) -> bool:
        """Whether a TPU computes it in one Pallas kernel: no mask, not causal, a length that divides into blocks."""
        return not self.has_mask and not self.is_refused_on_tpu

    @property
    def has_mask(self) -> bool:
        """Whether positions are left out. In a compiled step every mask is traced, and the TPU kernel takes no such."""
        return self.masked or self.causal

    @property
    def is_refused_on_tpu(self) -> bool:
        """Whether the TPU kernel raises an error for the lengths, which Keras logs before it computes without."""
        if self.query is None or self.key is None:
            return False
        length, source_length = self.query[1], self.key[1]
        return length != source_length or length % _TPU_BLOCK != 0
