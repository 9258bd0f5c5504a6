"""What FusedLSTM is in either Keras: when the op can run, and how it is called."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import tensorflow as tf

from tf_fused_lstm import _loader, _tensorflow, _xla, activations, composite, ops

# The stock layer comes after the mixin in the order of bases.
_StockLSTM: Any = object


class LSTMOnOp(_StockLSTM):
    """A mixin before a stock LSTM layer, whose `call` asks `_can_run_op` and calls `_run_op`."""

    # The stock layer's cell, its name for people, and its default recurrent_initializer.
    _stock_cell: ClassVar[type]
    _stock_cell_name: ClassVar[str]
    _orthogonal: ClassVar[type]

    def __init__(self, units: int, *args: Any, use_fused: bool | str = "auto", **kwargs: Any):
        if use_fused != "auto" and not isinstance(use_fused, bool):
            raise ValueError(f'use_fused must be "auto", True or False, got {use_fused!r}')
        super().__init__(units, *args, **kwargs)
        self.use_fused = use_fused
        self._last_reason: str | None = None
        reason = self._configuration_reason()
        if use_fused is True and reason is not None:
            raise ValueError(self._cannot_fuse(reason))

    @property
    def fused_reason(self) -> str | None:
        """Why the op does not run: of the configuration, or else of the latest call (or trace).

        None where the op runs.
        """
        return self._configuration_reason() or self._last_reason

    @contextlib.contextmanager
    def _orthogonal_in_bfloat16(self) -> Iterator[None]:
        """Where weights of bfloat16 can be drawn orthogonal: TensorFlow has no such QR."""
        cell = self.cell
        initializer = cell.recurrent_initializer
        orthogonal = isinstance(initializer, self._orthogonal)
        if cell.variable_dtype != "bfloat16" or not orthogonal:
            yield
            return

        def draw(shape: Any, dtype: Any = None, **kwargs: Any) -> tf.Tensor:
            return tf.cast(initializer(shape, dtype="float32", **kwargs), "bfloat16")

        cell.recurrent_initializer = draw
        try:
            yield
        finally:
            cell.recurrent_initializer = initializer

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "use_fused": self.use_fused}

    def _cannot_fuse(self, reason: str) -> str:
        return f"{self.name}: use_fused=True, but the fused op cannot run: {reason}"

    def _can_run_op(self, sequences: Any, mask: Any, training: Any) -> bool:
        """Whether this call runs the op; raises if it cannot and use_fused is True."""
        self._last_reason = reason = self._why_not_op(sequences, mask, training)
        if reason is not None and self.use_fused is True:
            raise ValueError(self._cannot_fuse(reason))
        return reason is None

    def _why_not_op(self, sequences: Any, mask: Any, training: Any) -> str | None:
        return self._configuration_reason() or self._call_reason(sequences, mask, training)

    def _configuration_reason(self) -> str | None:
        """Why no call of this layer can run the op, or None."""
        cell = self.cell
        dtype, variable_dtype = cell.compute_dtype, cell.variable_dtype
        known = dtype in ("float16", "bfloat16", "float32", "float64")
        narrow = dtype in ("float16", "bfloat16")
        if self.use_fused is False:
            return "use_fused=False"
        if _loader.raw_ops() is None:
            return "the op library is not loaded"
        if type(cell) is not self._stock_cell:
            return f"the cell is a {type(cell).__name__}, not a {self._stock_cell_name}"
        for argument in ("activation", "recurrent_activation"):
            function = getattr(cell, argument)
            if activations.name_of(function) is None:
                name = getattr(function, "__name__", repr(function))
                return f"{argument}={name} is not one of {', '.join(activations.NAMES)}"
        if not known or not (variable_dtype == dtype or (narrow and variable_dtype == "float32")):
            return f"the op has no kernel for {dtype} with {variable_dtype} variables"
        if dtype != self.compute_dtype:
            return f"the cell computes in {dtype}, the layer in {self.compute_dtype}"
        return self._stock_configuration_reason()

    def _call_reason(self, sequences: Any, mask: Any, training: Any) -> str | None:
        """Why this call cannot run the op although the configuration could, or None."""
        dtype = tf.as_dtype(sequences.dtype)
        if _tensorflow.in_xla_context() and not _xla.available():
            return "XLA compiles the calling function (jit_compile=True), without its kernels"
        if dtype.is_floating and dtype.name != self.compute_dtype:
            return f"the input is {dtype.name}, the layer computes in {self.compute_dtype}"
        if not dtype.is_floating and (self.dropout or dtype.is_complex):
            return f"the input is {dtype.name}"
        mask_shape = tf.TensorShape(getattr(mask, "shape", ()))
        if mask_shape.rank == 3 and mask_shape[-1] != 1:
            return f"the mask has shape {tuple(mask_shape)}, not (batch, steps)"
        return self._stock_call_reason(training)

    def _stock_configuration_reason(self) -> str | None:
        """As `_configuration_reason`, of what only this Keras has."""
        return None

    def _stock_call_reason(self, training: Any) -> str | None:
        """As `_call_reason`, of what only this Keras has, or means otherwise."""
        return None

    def _to_x(self, sequences: Any) -> tf.Tensor:
        x = tf.cast(tf.convert_to_tensor(sequences), self.compute_dtype)
        expected = self.cell.kernel.shape[0]
        if x.shape[-1] is not None and x.shape[-1] != expected:
            raise ValueError(
                f"{self.name}: sequences must have {expected} features, as when the layer was "
                f"built, got shape {tuple(x.shape)}"
            )
        return x

    def _run_op(
        self,
        x: tf.Tensor,
        weights: tuple[tf.Tensor, tf.Tensor, tf.Tensor | None],
        initial_state: tuple[Any, Any] | None,
        mask: Any,
        *,
        time_major: bool = False,
    ) -> ops.FusedLSTMOutput:
        """Runs the op with the layer's attributes.

        Args:
            x: What `_to_x` returned, perhaps with dropout applied.
            weights: kernel, recurrent_kernel and bias, as they are stored.
            initial_state: h and c; None for zeros.
            mask: As the layer's call takes it.
            time_major: The layout of x, mask and output.
        """
        kernel, recurrent_kernel, bias = weights
        batch_axis = 1 if time_major else 0
        initial_h, initial_c = (
            (None, None)
            if initial_state is None
            else (self._state(state, x, batch_axis) for state in initial_state)
        )
        inputs = composite.Inputs(
            x=x,
            kernel=[kernel],
            recurrent_kernel=[recurrent_kernel],
            bias=[] if bias is None else [bias],
            initial_h=[] if initial_h is None else [initial_h],
            initial_c=[] if initial_c is None else [initial_c],
            mask=[] if mask is None else [self._mask(mask, x, batch_axis)],
        )
        attributes = composite.Attributes(
            time_major=time_major,
            go_backwards=self.go_backwards,
            return_sequences=self.return_sequences,
            zero_output_for_mask=self.zero_output_for_mask,
            activation=activations.required_name_of("activation", self.cell.activation),
            recurrent_activation=activations.required_name_of(
                "recurrent_activation", self.cell.recurrent_activation
            ),
        )
        output, (final_h,), (final_c,) = ops.run(inputs, attributes, training=None)
        return ops.FusedLSTMOutput(output, final_h, final_c)

    def _state(self, state: Any, x: tf.Tensor, batch_axis: int) -> tf.Tensor:
        state = tf.cast(tf.convert_to_tensor(state), x.dtype)
        if state.shape.rank == 2 and state.shape[0] == 1 and x.shape[batch_axis] != 1:
            state = tf.broadcast_to(state, [tf.shape(x)[batch_axis], state.shape[1]])
        return state

    def _mask(self, mask: Any, x: tf.Tensor, batch_axis: int) -> tf.Tensor:
        mask = tf.cast(tf.convert_to_tensor(mask), tf.bool)
        if mask.shape.rank == 3:
            mask = mask[:, :, 0]
        if mask.shape.rank == 2 and mask.shape[batch_axis] == 1 and x.shape[batch_axis] != 1:
            shape = [tf.shape(mask)[0], tf.shape(mask)[1]]
            shape[batch_axis] = tf.shape(x)[batch_axis]
            mask = tf.broadcast_to(mask, shape)
        if not mask.shape.is_compatible_with(x.shape[:2]):
            layout = "(steps, batch)" if batch_axis else "(batch, steps)"
            raise ValueError(
                f"{self.name}: mask must have shape {layout} = {tuple(x.shape[:2])}, as "
                f"sequences of shape {tuple(x.shape)} say, got {tuple(mask.shape)}"
            )
        return mask
