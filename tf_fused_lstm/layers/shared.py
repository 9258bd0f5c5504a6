"""What FusedLSTM is in either Keras: when the op can run, and what it is called with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tf_fused_lstm import _keras, _loader, _tensorflow, _xla, activations
from tf_fused_lstm._arguments import to_mask
from tf_fused_lstm.layers.group import Together, forget_kept, run, run_in_wrapper

# The stock layer comes after the mixin in the order of bases.
_StockLSTM: Any = object


class LSTMOnOp(_StockLSTM):
    """A mixin before a stock LSTM layer, whose `call` asks `_can_run_op` and calls `_run_op`, or
    `_leave_to_stock` before it calls the stock layer.
    """

    # The stock layer, its cell, the cell's name for people, and its default recurrent_initializer.
    _stock_layer: ClassVar[type]
    _stock_cell: ClassVar[type]
    _stock_cell_name: ClassVar[str]
    _orthogonal: ClassVar[type]
    # Of tf_keras's layers an argument.
    time_major: bool = False

    def __init__(self, units: int, *args: Any, use_fused: bool | str = "auto", **kwargs: Any):
        if use_fused != "auto" and not isinstance(use_fused, bool):
            raise ValueError(f'use_fused must be "auto", True or False, got {use_fused!r}')
        super().__init__(units, *args, **kwargs)
        self.use_fused = use_fused
        self._last_reason: str | None = None
        self._apart_reason: str | None = None
        self._together = Together()
        reason = self._configuration_reason()
        if use_fused is True and reason is not None:
            raise ValueError(self._cannot_fuse(reason))

    @property
    def fused_reason(self) -> str | None:
        """Why the op does not run: of the configuration, or else of the latest call (or trace).

        None where the op runs.
        """
        return self._configuration_reason() or self._last_reason

    @property
    def apart_reason(self) -> str | None:
        """Of the forward layer of a Bidirectional: why the latest call (or trace) ran its
        directions as an op each, or by Keras, and not as one op. None where it did.
        """
        return self._apart_reason

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

    def _can_run_op(self, sequences: Any, mask: Any) -> bool:
        """Whether this call runs the op; raises if it cannot and use_fused is True."""
        reason = self._why_not_op(sequences, mask)
        if self._last_reason != reason:  # as Keras's __setattr__ takes as long as an op
            self._last_reason = reason
        if reason is not None and self.use_fused is True:
            raise ValueError(self._cannot_fuse(reason))
        return reason is None

    def _why_not_op(self, sequences: Any, mask: Any) -> str | None:
        return self._configuration_reason() or self._call_reason(sequences, mask)

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
                if name in activations.NAMES:
                    return f"{argument} is another {name} than the op's"
                return f"{argument}={name} is not one of {', '.join(activations.NAMES)}"
        if not known or not (variable_dtype == dtype or (narrow and variable_dtype == "float32")):
            return f"the op has no kernel for {dtype} with {variable_dtype} variables"
        if dtype != self.compute_dtype:
            return f"the cell computes in {dtype}, the layer in {self.compute_dtype}"
        return self._stock_configuration_reason()

    def _call_reason(self, sequences: Any, mask: Any) -> str | None:
        """Why this call cannot run the op although the configuration could, or None."""
        dtype = tf.as_dtype(sequences.dtype)
        if _tensorflow.in_xla_context() and not _xla.available():
            return "XLA compiles the calling function (jit_compile=True), without its kernels"
        if dtype.is_floating and dtype.name != self.compute_dtype:
            return f"the input is {dtype.name}, the layer computes in {self.compute_dtype}"
        is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool
        if not is_number or (self.dropout and not dtype.is_floating):
            return f"the input is {dtype.name}"
        mask_shape = tf.TensorShape(getattr(mask, "shape", ()))
        if mask_shape.rank == 3 and mask_shape[-1] != 1:
            return f"the mask has shape {tuple(mask_shape)}, not (batch, steps)"
        return None

    def _overrides(self, method: str) -> bool:
        """Whether the stock layer's method is replaced, by a subclass or in this layer alone."""
        function = getattr(getattr(self, method), "__func__", None)
        return function is not getattr(self._stock_layer, method)

    def _stock_configuration_reason(self) -> str | None:
        """As `_configuration_reason`, of what only this Keras has."""
        return None

    def _to_x(self, sequences: Any) -> tf.Tensor:
        x = sequences
        if not (isinstance(x, tf.Tensor) and x.dtype == self.compute_dtype):
            x = tf.cast(tf.convert_to_tensor(x), self.compute_dtype)
        expected = self.cell.kernel.shape[0]
        if x.shape[-1] is not None and x.shape[-1] != expected:
            raise ValueError(
                f"{self.name}: sequences must have {expected} features, as when the layer was "
                f"built, got shape {tuple(x.shape)}"
            )
        return x

    def _stock_refuses(self, sequences: Any, mask: Any) -> bool:
        """Whether the stock layer's call will raise a ValueError that is right for us too."""
        raise NotImplementedError

    def _leave_to_stock(self) -> None:
        self._apart_reason = self.fused_reason
        forget_kept(self)

    def _run_op(
        self, sequences: Any, initial_state: Any, mask: Any, training: Any, own_call: Any
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """(output, final_h, final_c) by the op; keeps the states if `stateful`.

        Args:
            sequences: As the layer's call takes it, but not ragged.
            initial_state: Likewise.
            mask: Likewise.
            training: Likewise.
            own_call: FusedLSTM's call. A subclass's may change what each direction reads.
        """
        results = None
        if type(self).call is own_call:
            results = run_in_wrapper(self, sequences, initial_state, mask, training)
        else:
            self._apart_reason = f"{type(self).__name__} overrides call"
        if results is None:
            output, (h,), (c,) = run([[self]], sequences, [initial_state], mask, training)
            results = output, h, c
        if self.stateful:
            self._keep_states(*results[1:])
        return results

    def _keep_states(self, h: tf.Tensor, c: tf.Tensor) -> None:
        """Assigns the final states to a stateful layer's variables."""
        raise NotImplementedError

    def _op_inputs(self, x: tf.Tensor, initial_state: Any, training: Any) -> dict[str, Any]:
        """The op's inputs for this layer's cell by name, None where there is none.

        x is the lowest layer's input: only its batch and its type are this layer's too.
        """
        cell = self.cell
        with _keras.without_autocast():
            weights = {
                name: None if variable is None else _keras.read(variable)
                for name, variable in (
                    ("kernel", cell.kernel),
                    ("recurrent_kernel", cell.recurrent_kernel),
                    ("bias", cell.bias),
                )
            }
        state = self._initial_state(x, initial_state)
        initial_h, initial_c = (
            (None, None) if state is None else (self._state(part, x) for part in state)
        )
        dropout_mask, recurrent_dropout_mask = self._dropout_masks(x, training)
        return {
            **weights,
            "initial_h": initial_h,
            "initial_c": initial_c,
            "dropout_mask": dropout_mask,
            "recurrent_dropout_mask": recurrent_dropout_mask,
        }

    def _initial_state(self, x: tf.Tensor, initial_state: Any) -> Sequence[Any] | None:
        """The initial h and c; None for zeros."""
        raise NotImplementedError

    def _dropout_masks(self, x: tf.Tensor, training: Any) -> tuple[Any, Any]:
        """The cell's masks for this call in the op's form, drawn as the stock cell draws them."""
        raise NotImplementedError

    def _dropout_counts(self) -> tuple[int, int]:
        """How many masks the cell may draw, of its input and of h."""
        cell = self.cell
        each = 4 if cell.implementation == 1 else 1
        return each * (0 < cell.dropout < 1), each * (0 < cell.recurrent_dropout < 1)

    def _drops_each_step(self, training: Any) -> bool:
        """Whether this call drops other inputs at each step, which the op does not."""
        return False

    def _dropped_each_step(self, x: tf.Tensor, training: Any) -> tf.Tensor:
        """x with such dropout applied, if there is any."""
        return x

    def _one_step(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Zeros in the shapes of the cell's input and state at one step, as its masks are drawn."""
        batch = x.shape[self._batch_axis]
        if batch is None:
            batch = tf.shape(x)[self._batch_axis]
        cell = self.cell
        return tf.zeros([batch, cell.kernel.shape[0]], x.dtype), tf.zeros(
            [batch, cell.units], x.dtype
        )

    @property
    def _batch_axis(self) -> int:
        return 1 if self.time_major else 0

    def _state(self, state: Any, x: tf.Tensor) -> tf.Tensor:
        axis = self._batch_axis
        state = tf.cast(tf.convert_to_tensor(state), x.dtype)
        shared = state.shape.rank == 2 and state.shape[0] == 1 and x.shape[axis] != 1
        if state.shape.rank == 1 or shared:  # one for all rows, as the step's sums broadcast it
            state = tf.broadcast_to(state, [tf.shape(x)[axis], state.shape[-1]])
        return state

    def _mask(self, mask: Any, x: tf.Tensor) -> tf.Tensor:
        axis = self._batch_axis
        mask = to_mask("mask", mask)
        if mask.shape.rank == 3:
            mask = mask[:, :, 0]
        if mask.shape.rank == 2 and mask.shape[axis] == 1 and x.shape[axis] != 1:
            shape = [tf.shape(mask)[0], tf.shape(mask)[1]]
            shape[axis] = tf.shape(x)[axis]
            mask = tf.broadcast_to(mask, shape)
        if not mask.shape.is_compatible_with(x.shape[:2]):
            layout = "(steps, batch)" if axis else "(batch, steps)"
            raise ValueError(
                f"{self.name}: mask must have shape {layout} = {tuple(x.shape[:2])}, as "
                f"sequences of shape {tuple(x.shape)} say, got {tuple(mask.shape)}"
            )
        return mask
