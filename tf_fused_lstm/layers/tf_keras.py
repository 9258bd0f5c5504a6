"""`FusedLSTM` for tf_keras: tf_keras.layers.LSTM whose loop over time is one op."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from tf_fused_lstm import _keras
from tf_fused_lstm.layers.shared import LSTMOnOp


@tf_keras.saving.register_keras_serializable(package="tf_fused_lstm", name="FusedLSTM")
class FusedLSTM(LSTMOnOp, tf_keras.layers.LSTM):
    """`tf_keras.layers.LSTM` with the whole loop over time in one op, forward and backward.

    The arguments, weights, names, masks, states, dropout and results are those of
    `tf_keras.layers.LSTM`; `get_weights`, `set_weights` and weight files are interchangeable.
    The gate order is i, f, c, o.

    The op runs where it can: activations tanh, sigmoid, relu or linear, any mask, any initial
    state, ragged sequences, `time_major`, stateful, dropout of the inputs, float16, bfloat16,
    float32, float64 and the mixed policies, in functions compiled by XLA (`jit_compile=True`) too.
    tf_keras's own path is taken, with the same results, by other activations, tf_keras's
    hard_sigmoid, clip(x / 5 + 1 / 2, 0, 1), among them; while training by `recurrent_dropout`, and
    by dropout where tf_keras calls its cell at every step (without a bias, or with activations
    other than tanh and sigmoid) and the cell draws a mask for each gate (`implementation=1`) or for
    each step (in a graph, without `unroll`). `fused_reason` says why. `unroll` changes nothing
    where the op runs.

    While a GradientTape records the call the op keeps what the gradient reads; in inference it
    keeps nothing.

    Args:
        units: The size of the output and of the states.
        *args: As in `tf_keras.layers.LSTM`.
        use_fused: `"auto"` runs the op where it can and tf_keras's own path elsewhere; `True`
            raises a ValueError that names the unmet condition instead; `False` always takes
            tf_keras's own path, for a graph of ordinary ops (ONNX, TFLite).
        **kwargs: As in `tf_keras.layers.LSTM`.

    Call arguments:
        inputs: `[batch, steps, features]`, `[steps, batch, features]` if `time_major`, or ragged
            in its steps.
        mask: `[batch, steps]`, `[steps, batch]` if `time_major`, bool or numbers; a False step
            keeps the states, and repeats the output of the step before (zero before the first
            True, or if `zero_output_for_mask`).
        training: Whether dropout is active.
        initial_state: `[h, c]`, each `[batch, units]`. Default: zeros, or the kept states if
            `stateful`.
    """

    _stock_cell = tf_keras.layers.LSTMCell
    _stock_cell_name = "tf_keras.layers.LSTMCell"
    _orthogonal = tf_keras.initializers.Orthogonal

    def build(self, input_shape: Any) -> None:
        with self._orthogonal_in_bfloat16():
            super().build(input_shape)

    def call(
        self,
        inputs: Any,
        mask: Any = None,
        training: Any = None,
        initial_state: Any = None,
    ) -> Any:
        # tf_keras reads this signature, which AutoGraph's decorator would hide.
        return self._call(inputs, mask, training, initial_state)

    @tf.autograph.experimental.do_not_convert
    def _call(self, inputs: Any, mask: Any, training: Any, initial_state: Any) -> Any:
        if isinstance(inputs, list):
            # The states beside the sequences, as tf_keras passes those that are its tensors.
            inputs, initial_state = inputs[0], inputs[1:] or None
        if isinstance(mask, (list, tuple)):
            mask = mask[0]
        if not self._tf_keras_refuses(inputs, mask) and self._can_run_op(inputs, mask, training):
            return self._call_op(inputs, mask, training, initial_state)
        return super().call(inputs, mask=mask, training=training, initial_state=initial_state)

    def _tf_keras_refuses(self, sequences: Any, mask: Any) -> bool:
        """Whether tf_keras.layers.LSTM.call will raise a ValueError that is right for us too."""
        if isinstance(sequences, tf.RaggedTensor):
            return mask is not None or self.unroll or self.time_major
        return self.unroll and sequences.shape[0 if self.time_major else 1] is None

    def _stock_configuration_reason(self) -> str | None:
        if type(self)._process_inputs is not tf_keras.layers.LSTM._process_inputs:
            return f"{type(self).__name__} overrides _process_inputs"
        if self.return_runtime:
            return "return_runtime=True asks for the name of tf_keras's own path"
        return None

    def _stock_call_reason(self, training: Any) -> str | None:
        if _never(training):
            return None
        if 0 < self.recurrent_dropout < 1:
            return "recurrent_dropout while training"
        if self.dropout and not self._could_use_gpu_kernel:
            if self.implementation == 1:
                return "dropout with a mask for each gate (implementation=1)"
            if not self.unroll and not tf.executing_eagerly():
                return "dropout that tf_keras draws anew at every step of a loop in a graph"
        return None

    def _call_op(self, inputs: Any, mask: Any, training: Any, initial_state: Any) -> Any:
        row_lengths = None
        if isinstance(inputs, tf.RaggedTensor):
            row_lengths = inputs.row_lengths()
            inputs = inputs.to_tensor()
            mask = tf.sequence_mask(row_lengths, tf.shape(inputs)[1])
        if initial_state is not None or self.stateful:
            inputs, initial_state, _ = self._process_inputs(inputs, initial_state, None)
        x = self._to_x(inputs)
        if self.dropout and not _never(training):
            x = self._with_dropout(x, training)
        cell = self.cell
        with _keras.without_autocast():
            kernel, recurrent_kernel, bias = (
                None if variable is None else tf.convert_to_tensor(variable)
                for variable in (cell.kernel, cell.recurrent_kernel, cell.bias)
            )
        output, h, c = self._run_op(
            x, (kernel, recurrent_kernel, bias), initial_state, mask, time_major=self.time_major
        )
        if self.stateful:
            self.add_update(
                [
                    tf.compat.v1.assign(variable, tf.cast(state, variable.dtype))
                    for variable, state in zip(self.states, (h, c), strict=True)
                ]
            )
        if row_lengths is not None and self.return_sequences:
            output = _to_ragged(output, row_lengths, self.go_backwards)
        return [output, h, c] if self.return_state else output

    def _with_dropout(self, x: tf.Tensor, training: Any) -> tf.Tensor:
        """x with the dropout of tf_keras.layers.LSTM, which draws as many masks as that does."""
        if self._could_use_gpu_kernel:
            # A mask of x's shape: what is dropped differs from step to step, as it does there.
            self.reset_dropout_mask()
            return x * self.get_dropout_mask_for_cell(x, training, count=4)[0]
        cell, steps_axis = self.cell, 0 if self.time_major else 1
        self._maybe_reset_cell_dropout_mask(cell)
        step = tf.gather(x, 0, axis=steps_axis)
        mask = cell.get_dropout_mask_for_cell(step, training, count=4)[0]
        return x * tf.expand_dims(mask, steps_axis) if cell.dropout < 1 else x


def _never(training: Any) -> bool:
    """Whether the call is known not to train."""
    value = None if training is None else tf.get_static_value(training)
    return value is not None and not value


def _to_ragged(output: tf.Tensor, row_lengths: tf.Tensor, go_backwards: bool) -> tf.RaggedTensor:
    """The steps of each row, in processing order: the last ones if `go_backwards`."""
    if not go_backwards:
        return tf.RaggedTensor.from_tensor(output, row_lengths)
    ragged = tf.RaggedTensor.from_tensor(tf.reverse(output, [1]), row_lengths)
    return tf.reverse(ragged, [1])


# tf_keras names a layer, and its group in a weight file, after its class's __name__ in lower case:
# with that of its own layer, weight files of models with tf_keras.layers.LSTM load into the same
# models with FusedLSTM, and the other way round. Saved configurations use the registered name; but
# in TimeDistributed, and in any wrapper in an .h5 file, tf_keras looks up the __name__ alone.
FusedLSTM.__name__ = tf_keras.layers.LSTM.__name__.capitalize()
tf_keras.saving.get_custom_objects()[FusedLSTM.__name__] = FusedLSTM
