"""`FusedLSTM` for tf_keras: tf_keras.layers.LSTM whose loop over time is one op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from tf_fused_lstm import _dropout
from tf_fused_lstm.layers.shared import LSTMOnOp


@tf_keras.saving.register_keras_serializable(package="tf_fused_lstm", name="FusedLSTM")
class FusedLSTM(LSTMOnOp, tf_keras.layers.LSTM):
    """`tf_keras.layers.LSTM` with the whole loop over time in one op, forward and backward.

    The arguments, weights, names, masks, states, dropout and results are those of
    `tf_keras.layers.LSTM`; `get_weights`, `set_weights` and weight files are interchangeable.
    The gate order is i, f, c, o.

    The op runs where it can: activations tanh, sigmoid, relu or linear, any mask, any initial
    state, ragged sequences, `time_major`, stateful, dropout and recurrent_dropout, float16,
    bfloat16, float32, float64 and the mixed policies, in functions compiled by XLA
    (`jit_compile=True`) too. Other activations, tf_keras's hard_sigmoid, clip(x / 5 + 1 / 2, 0, 1),
    among them, take tf_keras's own path, with the same results; `fused_reason` says why. `unroll`
    changes nothing where the op runs.

    From the same seed dropout drops what tf_keras's layer drops when it is called eagerly or with
    `unroll`: of a layer with recurrent_dropout, without a bias or with activations other than tanh
    and sigmoid the same at all steps of a call, else others of the inputs at each step. Only in the
    loop that tf_keras makes in a graph its cell does not find its masks again, and draws new ones
    at every step; there the op still keeps those of the call.

    `tf_keras.layers.Bidirectional(FusedLSTM(...))` runs both directions as one op, but where the
    two layers differ in more than their weights, or while dropout drops other inputs at each step;
    its `forward_layer.apart_reason` says why.

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

    _stock_layer = tf_keras.layers.LSTM
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
        if not self._stock_refuses(inputs, mask) and self._can_run_op(inputs, mask):
            return self._call_op(inputs, mask, training, initial_state)
        self._leave_to_stock()
        return super().call(inputs, mask=mask, training=training, initial_state=initial_state)

    def _stock_refuses(self, sequences: Any, mask: Any) -> bool:
        if isinstance(sequences, tf.RaggedTensor):
            return mask is not None or self.unroll or self.time_major
        return self.unroll and sequences.shape[0 if self.time_major else 1] is None

    def _stock_configuration_reason(self) -> str | None:
        if self._overrides("_process_inputs"):
            return f"{type(self).__name__} overrides _process_inputs"
        if self.return_runtime:
            return "return_runtime=True asks for the name of tf_keras's own path"
        return None

    def _call_op(self, inputs: Any, mask: Any, training: Any, initial_state: Any) -> Any:
        row_lengths = None
        if isinstance(inputs, tf.RaggedTensor):
            row_lengths = inputs.row_lengths()
            inputs = inputs.to_tensor()
            mask = tf.sequence_mask(row_lengths, tf.shape(inputs)[1])
        output, h, c = self._run_op(inputs, initial_state, mask, training, FusedLSTM.call)
        if row_lengths is not None and self.return_sequences:
            output = _to_ragged(output, row_lengths, self.go_backwards)
        return [output, h, c] if self.return_state else output

    def _keep_states(self, h: tf.Tensor, c: tf.Tensor) -> None:
        self.add_update(
            [
                tf.compat.v1.assign(variable, tf.cast(state, variable.dtype))
                for variable, state in zip(self.states, (h, c), strict=True)
            ]
        )

    def _initial_state(self, x: tf.Tensor, initial_state: Any) -> Sequence[Any] | None:
        if initial_state is None and not self.stateful and not self._overrides("get_initial_state"):
            return None
        return self._process_inputs(x, initial_state, None)[1]

    def _dropout_masks(self, x: tf.Tensor, training: Any) -> tuple[Any, Any]:
        cell = self.cell
        if (
            self._could_use_gpu_kernel
            or _never(training)
            or not (cell.dropout or cell.recurrent_dropout)
        ):
            return None, None

        counts = self._dropout_counts()
        self._maybe_reset_cell_dropout_mask(cell)
        masks = None
        if _always(training) and cell.dropout < 1 and cell.recurrent_dropout < 1:
            batch = x.shape[self._batch_axis]
            kinds = (
                _dropout.Kind(counts[0], cell.dropout, [1, batch, cell.kernel.shape[0]]),
                _dropout.Kind(counts[1], cell.recurrent_dropout, [1, batch, cell.units]),
            )
            masks = _dropout.draw_in_tf_keras(cell._random_generator, kinds, x.dtype)
        if masks is None:
            step, state = self._one_step(x)
            drawn = (
                cell.get_dropout_mask_for_cell(step, training, count=4),
                cell.get_recurrent_dropout_mask_for_cell(state, training, count=4),
            )
            masks = [
                tf.stack(some[:count]) if count else None
                for some, count in zip(drawn, counts, strict=True)
            ]
            self._maybe_reset_cell_dropout_mask(cell)
        return masks[0], masks[1]

    def _drops_each_step(self, training: Any) -> bool:
        return bool(self.dropout and self._could_use_gpu_kernel and not _never(training))

    def _dropped_each_step(self, x: tf.Tensor, training: Any) -> tf.Tensor:
        if not self._drops_each_step(training):
            return x
        self.reset_dropout_mask()
        own = type(self).get_dropout_mask_for_cell
        masks = None
        if (
            _always(training)
            and self.dropout < 1
            and own is tf_keras.layers.LSTM.get_dropout_mask_for_cell
        ):
            kind = _dropout.Kind(1, self.dropout, x.shape)
            masks = _dropout.draw_in_tf_keras(self._random_generator, [kind], x.dtype)
        if masks is None:
            masks = self.get_dropout_mask_for_cell(x, training, count=4)
        return x * masks[0]


def _never(training: Any) -> bool:
    """Whether the call is known not to train."""
    if training is None and tf.executing_eagerly():
        training = tf_keras.backend.learning_phase()  # what tf_keras takes for it
    value = None if training is None else tf.get_static_value(training)
    return value is not None and not value


def _always(training: Any) -> bool:
    """Whether the call is known to train, as tf_keras tells."""
    return not tf.is_tensor(training) and (training is True or training == 1)


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
