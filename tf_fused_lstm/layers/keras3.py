"""`FusedLSTM` for Keras 3: keras.layers.LSTM whose loop over time is one op."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_fused_lstm import _dropout, _keras, _tensorflow, _xla
from tf_fused_lstm.layers.shared import LSTMOnOp


class _Repeated(threading.local):
    """What a rematerialised call made when it ran first, for when it runs again."""

    values: dict[str, Any] | None = None

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        if self.values is None:
            return make()
        if name not in self.values:
            self.values[name] = make()
        return self.values[name]

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Repeated, ()


@keras.saving.register_keras_serializable(package="tf_fused_lstm", name="FusedLSTM")
class FusedLSTM(LSTMOnOp, keras.layers.LSTM):
    """`keras.layers.LSTM` with the whole loop over time in one op, forward and backward.

    The arguments, weights, names, masks, states, dropout and results are those of
    `keras.layers.LSTM`; `get_weights`, `set_weights` and weight files are interchangeable.
    The gate order is i, f, c, o.

    The op runs where it can: activations tanh, sigmoid, hard_sigmoid, relu or linear, any mask,
    any initial state, stateful, dropout and recurrent_dropout, float16, bfloat16, float32,
    float64 and the mixed policies, in functions compiled by XLA (`jit_compile=True`) too. Other
    activations take Keras's own path, with the same results; `fused_reason` says why. `unroll`
    changes nothing where the op runs. From the same seed dropout drops what Keras's drops.

    `keras.layers.Bidirectional(FusedLSTM(...))` runs both directions as one op, but where the two
    layers differ in more than their weights; its `forward_layer.apart_reason` says why.

    The states of a stateful layer are no weights: files of weights and models hold none, an export
    holds them as they were, and its calls move them on.

    In a `keras.RematScope` the layer recomputes with the dropout and the states of the call, where
    Keras's draws and reads them anew, as do both in a rematerialised wrapper. In a `tf.cond` of a
    graph it fails while tracing, as Keras's does in any graph.

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

    autograph_info__ = _tensorflow.UnconvertedCall()
    _stock_layer = keras.layers.LSTM
    _stock_cell = keras.layers.LSTMCell
    _stock_cell_name = "keras.layers.LSTMCell"
    _orthogonal = keras.initializers.Orthogonal

    def __init__(self, units: int, *args: Any, use_fused: bool | str = "auto", **kwargs: Any):
        super().__init__(units, *args, use_fused=use_fused, **kwargs)
        self._repeated = _Repeated()
        self._may_run_op = self._configuration_reason() is None

    @property
    def supports_jit(self) -> bool:
        """Whether Keras may compile a model with this layer by XLA: if its user says so.

        Not by `jit_compile="auto"`, as with a cuDNN LSTM: the op gains nothing, and each new number
        of steps would be a new compilation.
        """
        if getattr(self, "_may_run_op", False):
            return not _keras.keras_chooses_jit() and _xla.available()
        return self._supports_jit

    @supports_jit.setter
    def supports_jit(self, value: bool) -> None:
        self._supports_jit = value

    def build(self, sequences_shape: Any, initial_state_shape: Any = None) -> None:
        with self._orthogonal_in_bfloat16():
            super().build(sequences_shape, initial_state_shape)

    @_tensorflow.unconverted
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Keras's own way to `call` takes longer than a small op. An error is left to it, to be said
        # as always.
        with contextlib.suppress(Exception):
            if self._is_plain_call(args, kwargs):
                return self._call_plainly(*args)
        return super().__call__(*args, **kwargs)

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
        if not self._stock_refuses(sequences, mask) and self._can_run_op(sequences, mask):
            return self._call_op(sequences, initial_state, mask, training)
        self._leave_to_stock()
        return super().call(sequences, initial_state=initial_state, mask=mask, training=training)

    def rematerialized_call(self, layer_call: Any, *args: Any, **kwargs: Any) -> Any:
        """As Keras's, but with the dropout and the states of the first time, of which the gradient
        is; and in graphs too: there TensorFlow recomputes functions of tensors by position, of
        which it takes a gradient by each.
        """
        made: dict[str, Any] = {}

        def has_gradient(value: Any) -> bool:
            return tf.is_tensor(value) and value.dtype.is_floating

        def of_tensors(*tensors: tf.Tensor) -> Any:
            rest = iter(tensors)
            values = [next(rest) if has_gradient(v) else v for v in flat]
            call_args, call_kwargs = tf.nest.pack_sequence_as((args, kwargs), values)
            before, self._repeated.values = self._repeated.values, made
            try:
                return layer_call(*call_args, **call_kwargs)
            finally:
                self._repeated.values = before

        flat = tf.nest.flatten((args, kwargs))
        recomputed = super().rematerialized_call(of_tensors, *args, **kwargs)
        # Keras calls what it gets with these arguments.
        return lambda *_, **__: recomputed(*(v for v in flat if has_gradient(v)))

    def _stock_refuses(self, sequences: Any, mask: Any) -> bool:
        batch, steps = sequences.shape[0], sequences.shape[1]
        expected = self._expected_batch_size
        return (self.unroll and steps is None) or (
            self.stateful and batch is not None and expected is not None and batch != expected
        )

    def _stock_configuration_reason(self) -> str | None:
        if keras.backend.backend() != "tensorflow":
            return f"Keras runs on {keras.backend.backend()}, not on TensorFlow"
        if self._overrides("inner_loop"):
            return f"{type(self).__name__} overrides inner_loop"
        if self.use_cudnn is True:
            return "use_cudnn=True asks for cuDNN"
        return None

    def _is_plain_call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether of all that Keras does about a call only `call` has an effect.

        Of an eager call with x alone, or `training` where nothing is dropped, no mask, and nothing
        added to the layer, or put in the place of its methods, that Keras minds.
        """
        x: Any = args[0] if len(args) == 1 else None
        cell = self.cell
        return (
            _tensorflow.is_eager(x)
            and kwargs.keys() <= {"training"}
            and isinstance(kwargs.get("training"), bool | int | None)
            and type(self) is FusedLSTM
            and not hasattr(x, "_keras_mask")
            and x.dtype.name == self.input_dtype
            and self.built
            and self._called
            and not (self.dropout or self.recurrent_dropout)
            and self.activity_regularizer is None
            and self._remat_mode is None
            and self.quantization_mode is None
            and getattr(self.call, "__func__", None) is _CALL
            and getattr(self.compute_mask, "__func__", None) is _COMPUTE_MASK
            and self._layers == [cell]
            and not (self._losses or self._loss_ids)
            and not (cell._layers or cell._losses or cell._loss_ids)
            and keras.distribution.distribution() is None
        )

    def _call_plainly(self, x: Any) -> Any:
        self._assert_input_compatibility(x)
        if self._stock_refuses(x, None) or not self._can_run_op(x, None):
            raise NotImplementedError
        return self._call_op(x, None, None, False)

    @_tensorflow.unconverted
    def _call_op(self, sequences: Any, initial_state: Any, mask: Any, training: Any) -> Any:
        output, h, c = self._run_op(sequences, initial_state, mask, training, FusedLSTM.call)
        return (output, h, c) if self.return_state else output

    def _keep_states(self, h: tf.Tensor, c: tf.Tensor) -> None:
        def assign() -> list[Any]:
            return [v.assign(s) for v, s in zip(self.states, (h, c), strict=True)]

        self._repeated.once("final_states", assign)

    def _dropout_masks(self, x: tf.Tensor, training: Any) -> tuple[Any, Any]:
        counts = self._dropout_counts()
        total = sum(counts)
        if not total:
            return None, None
        # At every call, trained or not, so that the seed moves on as Keras's does.
        cell, repeated = self.cell, self._repeated
        generator = cell.seed_generator
        if not training:
            repeated.once("skipped", lambda: _dropout.skip(generator, total))
            return None, None
        batch = tf.shape(x)[0] if x.shape[0] is None else x.shape[0]
        kinds = (
            _dropout.Kind(counts[0], cell.dropout, [1, batch, cell.kernel.shape[0]]),
            _dropout.Kind(counts[1], cell.recurrent_dropout, [1, batch, self.units]),
        )
        masks = None
        if repeated.values is None:
            masks = _dropout.draw_eagerly(generator, kinds, x.dtype)
        if masks is None:
            seeds = repeated.once("seeds", lambda: _dropout.next_seeds(generator, total))
            masks = _dropout.draw(seeds, kinds, x.dtype)
        return masks[0], masks[1]

    def _initial_state(self, x: tf.Tensor, initial_state: Any) -> Sequence[Any] | None:
        if initial_state is None:
            if self.stateful:
                # As stored: a call that went past Keras is in the scope of an outer layer.
                with _keras.without_autocast():
                    initial_state = self._repeated.once(
                        "initial_state",
                        lambda: [tf.convert_to_tensor(v.value) for v in self.states],
                    )
            elif not self._overrides("get_initial_state"):
                return None
            else:
                initial_state = self.get_initial_state(batch_size=tf.shape(x)[0])
        if not keras.tree.is_nested(initial_state) or len(initial_state) != 2:
            count = len(initial_state) if keras.tree.is_nested(initial_state) else 1
            raise ValueError(
                f"{self.name}: initial_state must be two tensors, [h, c], each of shape (batch, "
                f"{self.units}), got {count}"
            )
        h, c = (keras.ops.convert_to_tensor(state) for state in initial_state)
        return h, c


# Patched, they are Keras's to call.
_CALL, _COMPUTE_MASK = FusedLSTM.call, FusedLSTM.compute_mask

# Keras names a layer, and its group in a weight file, after its class's __name__: with Keras's own
# name, weight files of models with keras.layers.LSTM load into the same models with FusedLSTM, and
# the other way round. Saved configurations use the registered name.
FusedLSTM.__name__ = keras.layers.LSTM.__name__
