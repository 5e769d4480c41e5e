"""`GradientSums`: an optimizer that adds up gradients and leaves the weights as they are."""

from __future__ import annotations

from typing import Any

import keras


class GradientSums(keras.optimizers.Optimizer):
    """Adds each gradient to a variable of its own, so that micro-steps can be compared by their gradients.

    The compiled optimizer would hide what a gradient is behind its own rule, clipping and decay.

    sums    one variable for each trainable variable, in the same order
    scale   factor of the loss, and so of the sums: gradients in float16 would be rounded to zero without it
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__(learning_rate=1.0, loss_scale_factor=scale, name="gradient_sums")
        self.scale = scale
        self.sums: list[Any] = []

    def build(self, variables: Any) -> None:
        if self.built:
            return
        super().build(variables)
        self.sums = self.add_optimizer_variables(variables, "gradient_sum")

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        for gradient, variable in zip(grads, variables, strict=True):
            if gradient is not None:
                self.assign_add(self.sums[self._get_variable_index(variable)], gradient)
        self._iterations.assign_add(1)
