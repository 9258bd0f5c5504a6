"""`FusedLSTM`: keras.layers.LSTM whose loop over time is one op."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_fused_lstm import _loader, _tensorflow, _xla, activations, composite, ops


@keras.saving.register_keras_serializable(package="tf_fused_lstm", name="FusedLSTM")
class FusedLSTM(keras.layers.LSTM):
    """`keras.layers.LSTM` with the whole loop over time in one op, forward and backward.

    The arguments, weights, names, masks, states, dropout and results are those of
    `keras.layers.LSTM`; `get_weights`, `set_weights` and weight files are interchangeable.
    The gate order is i, f, c, o.

    The op runs where it can: activations tanh, sigmoid, hard_sigmoid, relu or linear, any mask,
    any initial state, stateful, dropout of the inputs, float16, bfloat16, float32, float64 and
    the mixed policies, in functions compiled by XLA (`jit_compile=True`) too. `recurrent_dropout`
    while training and other activations take Keras's own path, with the same results;
    `fused_reason` says why. `unroll` changes nothing where the op runs.

    While a GradientTape records the call the op keeps what the gradient reads; in inference it
    keeps nothing.

    Args:
        units: The size of the output and of the states.
        *args: As in `keras.layers.LSTM`.
        use_fused: `"auto"` runs the op where it can and Keras's own path elsewhere; `True` raises
            a ValueError that names the unmet condition instead; `False` always takes Keras's own
            path, for a graph of ordinary ops (ONNX, TFLite).
        **kwargs: As in `keras.layers.LSTM`.

    Call arguments:
        sequences: `[batch, steps, features]`.
        initial_state: `[h, c]`, each `[batch, units]`. Default: zeros, or the kept states if
            `stateful`.
        mask: `[batch, steps]`, bool or numbers; a False step keeps the states, and repeats the
            output of the step before (zero before the first True, or if `zero_output_for_mask`).
        training: Whether dropout is active.
    """

    def __init__(self, units: int, *args: Any, use_fused: bool | str = "auto", **kwargs: Any):
        if use_fused != "auto" and not isinstance(use_fused, bool):
            raise ValueError(f'use_fused must be "auto", True or False, got {use_fused!r}')
        super().__init__(units, *args, **kwargs)
        self.use_fused = use_fused
        self._last_reason: str | None = None
        reason = self._configuration_reason()
        if use_fused is True and reason is not None:
            raise ValueError(self._cannot_fuse(reason))
        self._trains_fused = reason is None and (use_fused is True or not self.recurrent_dropout)

    @property
    def supports_jit(self) -> bool:
        """Whether Keras may compile a model with this layer by XLA: if its user says so.

        Not by `jit_compile="auto"`, as with a cuDNN LSTM: the op gains nothing, and each new number
        of steps would be a new compilation.
        """
        if getattr(self, "_trains_fused", False):
            return not _tensorflow.keras_chooses_jit() and _xla.available()
        return self._supports_jit

    @supports_jit.setter
    def supports_jit(self, value: bool) -> None:
        self._supports_jit = value

    @property
    def fused_reason(self) -> str | None:
        """Why the op does not run: of the configuration, or else of the latest call (or trace).

        None where the op runs.
        """
        return self._configuration_reason() or self._last_reason

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "use_fused": self.use_fused}

    def call(
        self,
        sequences: Any,
        initial_state: Any = None,
        mask: Any = None,
        training: bool | None = False,
    ) -> Any:
        if isinstance(sequences, tf.RaggedTensor):
            raise ValueError(
                f"{self.name}: sequences must be a dense tensor, got a RaggedTensor. Pass "
                "sequences.to_tensor() and mask=tf.sequence_mask(sequences.row_lengths())."
            )
        if keras.tree.is_nested(mask):
            mask = keras.tree.flatten(mask)[0]
        if self._keras_refuses(sequences):
            reason = None
        else:
            reason = self._configuration_reason() or self._call_reason(sequences, mask, training)
            self._last_reason = reason
            if reason is None:
                return self._call_op(sequences, initial_state, mask, training)
            if self.use_fused is True:
                raise ValueError(self._cannot_fuse(reason))
        return super().call(sequences, initial_state=initial_state, mask=mask, training=training)

    def _cannot_fuse(self, reason: str) -> str:
        return f"{self.name}: use_fused=True, but the fused op cannot run: {reason}"

    def _keras_refuses(self, sequences: Any) -> bool:
        """Whether keras.layers.LSTM.call will raise a ValueError that is right for us too."""
        batch, steps = sequences.shape[0], sequences.shape[1]
        expected = self._expected_batch_size
        return (self.unroll and steps is None) or (
            self.stateful and batch is not None and expected is not None and batch != expected
        )

    def _configuration_reason(self) -> str | None:
        """Why no call of this layer can run the op, or None."""
        cell = self.cell
        dtype, variable_dtype = cell.compute_dtype, cell.variable_dtype
        known = dtype in ("float16", "bfloat16", "float32", "float64")
        narrow = dtype in ("float16", "bfloat16")
        if self.use_fused is False:
            return "use_fused=False"
        if keras.backend.backend() != "tensorflow":
            return f"Keras runs on {keras.backend.backend()}, not on TensorFlow"
        if _loader.raw_ops() is None:
            return "the op library is not loaded"
        if type(cell) is not keras.layers.LSTMCell:
            return f"the cell is a {type(cell).__name__}, not a keras.layers.LSTMCell"
        if type(self).inner_loop is not keras.layers.LSTM.inner_loop:
            return f"{type(self).__name__} overrides inner_loop"
        for argument in ("activation", "recurrent_activation"):
            function = getattr(cell, argument)
            if activations.name_of(function) is None:
                name = getattr(function, "__name__", repr(function))
                return f"{argument}={name} is not one of {', '.join(activations.NAMES)}"
        if self.use_cudnn is True:
            return "use_cudnn=True asks for cuDNN"
        if not known or not (variable_dtype == dtype or (narrow and variable_dtype == "float32")):
            return f"the op has no kernel for {dtype} with {variable_dtype} variables"
        if dtype != self.compute_dtype:
            return f"the cell computes in {dtype}, the layer in {self.compute_dtype}"
        return None

    def _call_reason(self, sequences: Any, mask: Any, training: Any) -> str | None:
        """Why this call cannot run the op although the configuration could, or None."""
        dtype = keras.backend.standardize_dtype(sequences.dtype)
        is_float = keras.backend.is_float_dtype(dtype)
        if _tensorflow.in_xla_context() and not _xla.available():
            return "XLA compiles the calling function (jit_compile=True), without its kernels"
        if training and 0 < self.recurrent_dropout < 1:
            return "recurrent_dropout while training"
        if training and self.dropout and self.cell.implementation == 1:
            return "dropout with a mask for each gate (implementation=1)"
        if is_float and dtype != self.compute_dtype:
            return f"the input is {dtype}, the layer computes in {self.compute_dtype}"
        if not is_float and (self.dropout or "complex" in dtype):
            return f"the input is {dtype}"
        mask_shape = tf.TensorShape(getattr(mask, "shape", ()))
        if mask_shape.rank == 3 and mask_shape[-1] != 1:
            return f"the mask has shape {tuple(mask_shape)}, not (batch, steps)"
        return None

    @tf.autograph.experimental.do_not_convert
    def _call_op(self, sequences: Any, initial_state: Any, mask: Any, training: Any) -> Any:
        cell = self.cell
        dtype = tf.as_dtype(self.compute_dtype)
        x = tf.cast(tf.convert_to_tensor(sequences), dtype)
        self._check_features(x)
        initial_h, initial_c = self._initial_state(x, initial_state, dtype)
        if cell.dropout or cell.recurrent_dropout:
            # Keras draws the masks at every call, so that the seed moves on as Keras's does.
            shape_of_h = initial_h
            if shape_of_h is None:
                shape_of_h = tf.zeros([tf.shape(x)[0], cell.units], dtype)
            self._maybe_config_dropout_masks(cell, x[:, 0, :], [shape_of_h])
            if training and 0 < cell.dropout < 1:
                x = x * cell.get_dropout_mask(x[:, 0, :])[:, tf.newaxis, :]
            self._maybe_reset_dropout_masks(cell)

        with _tensorflow.without_autocast():
            kernel, recurrent_kernel, bias = (
                None if variable is None else tf.convert_to_tensor(variable.value)
                for variable in (cell.kernel, cell.recurrent_kernel, cell.bias)
            )
        inputs = composite.Inputs(
            x=x,
            kernel=kernel,
            recurrent_kernel=recurrent_kernel,
            bias=bias,
            initial_h=initial_h,
            initial_c=initial_c,
            mask=None if mask is None else self._mask(x, mask),
        )
        attributes = composite.Attributes(
            time_major=False,
            go_backwards=self.go_backwards,
            return_sequences=self.return_sequences,
            zero_output_for_mask=self.zero_output_for_mask,
            activation=activations.required_name_of("activation", cell.activation),
            recurrent_activation=activations.required_name_of(
                "recurrent_activation", cell.recurrent_activation
            ),
        )
        output, h, c = ops.run(inputs, attributes, training=None)
        if self.stateful:
            for variable, state in zip(self.states, (h, c), strict=True):
                variable.assign(state)
        return (output, h, c) if self.return_state else output

    def _check_features(self, x: tf.Tensor) -> None:
        expected = self.cell.kernel.shape[0]
        if x.shape[-1] is not None and x.shape[-1] != expected:
            raise ValueError(
                f"{self.name}: sequences must have {expected} features, as when the layer was "
                f"built, got shape {tuple(x.shape)}"
            )

    def _initial_state(
        self, x: tf.Tensor, initial_state: Any, dtype: tf.DType
    ) -> tuple[tf.Tensor | None, tf.Tensor | None]:
        """The initial h and c; None for zeros."""
        if initial_state is None:
            if self.stateful:
                initial_state = self.states
            elif type(self).get_initial_state is keras.layers.RNN.get_initial_state:
                return None, None
            else:
                initial_state = self.get_initial_state(batch_size=tf.shape(x)[0])
        if not keras.tree.is_nested(initial_state) or len(initial_state) != 2:
            count = len(initial_state) if keras.tree.is_nested(initial_state) else 1
            raise ValueError(
                f"{self.name}: initial_state must be two tensors, [h, c], each of shape (batch, "
                f"{self.units}), got {count}"
            )
        h, c = (self._state(x, state, dtype) for state in initial_state)
        return h, c

    def _state(self, x: tf.Tensor, state: Any, dtype: tf.DType) -> tf.Tensor:
        state = tf.cast(keras.ops.convert_to_tensor(state), dtype)
        if state.shape.rank == 2 and state.shape[0] == 1 and x.shape[0] != 1:
            state = tf.broadcast_to(state, [tf.shape(x)[0], state.shape[1]])
        return state

    def _mask(self, x: tf.Tensor, mask: Any) -> tf.Tensor:
        mask = tf.cast(tf.convert_to_tensor(mask), tf.bool)
        if mask.shape.rank == 3:
            mask = mask[:, :, 0]
        if mask.shape.rank == 2 and mask.shape[0] == 1 and x.shape[0] != 1:
            mask = tf.broadcast_to(mask, [tf.shape(x)[0], tf.shape(mask)[1]])
        if not mask.shape.is_compatible_with(x.shape[:2]):
            raise ValueError(
                f"{self.name}: mask must have shape (batch, steps) = {tuple(x.shape[:2])}, as "
                f"sequences of shape {tuple(x.shape)} say, got {tuple(mask.shape)}"
            )
        return mask


# Keras names a layer, and its group in a weight file, after its class's __name__: with Keras's own
# name, weight files of models with keras.layers.LSTM load into the same models with FusedLSTM, and
# the other way round. Saved configurations use the registered name.
FusedLSTM.__name__ = keras.layers.LSTM.__name__
