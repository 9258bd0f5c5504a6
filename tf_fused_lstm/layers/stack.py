"""`FusedLSTMStack`: LSTM layers on top of each other as one op."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_fused_lstm import _keras
from tf_fused_lstm.layers.group import run, why_apart

if TYPE_CHECKING or not _keras.USES_TF_KERAS:
    import keras

    from tf_fused_lstm.layers.keras3 import FusedLSTM

    # Of the tensors of any backend.
    _flip, _concatenate = keras.ops.flip, keras.ops.concatenate
else:
    import tf_keras as keras

    from tf_fused_lstm.layers.tf_keras import FusedLSTM

    _flip, _concatenate = tf.reverse, tf.concat


@keras.saving.register_keras_serializable(package="tf_fused_lstm")
class FusedLSTMStack(keras.layers.Layer):
    """Several LSTM layers, each on the output of the one below, in one op forward and backward.

    The same as calling `tf.keras.layers.LSTM` layers, or with `bidirectional` each of them in a
    `tf.keras.layers.Bidirectional`, one after the other, all but the last with return_sequences.
    Weights are those layers' in their order:

        stack.set_weights([w for layer in layers for w in layer.get_weights()])

    `FusedLSTMStack.from_layers(layers)` makes a stack of such layers, weights included. Where the
    op cannot run (see `FusedLSTM`) the layers run one after the other, with the same results;
    `fused_reason` says why. In tf_keras it cannot where FusedLSTM drops other inputs at each step.

    Args:
        units: The units of each layer, of each of its directions.
        bidirectional: Every layer has two directions, whose outputs are concatenated.
        return_sequences: Give the last layer's output of every step, not only of the last.
        return_state: Return the final states too.
        stateful: As in `tf.keras.layers.LSTM`.
        use_fused: As in `FusedLSTM`.
        name: As in every Keras layer, as are `dtype` and `trainable`.
        dtype: Likewise.
        trainable: Likewise.
        **lstm_arguments: Of every layer, as `tf.keras.layers.LSTM` takes them: activation, dropout,
            recurrent_dropout, seed, initializers, ...; go_backwards only without bidirectional.

    Call arguments:
        sequences: `[batch, steps, features]`, or in tf_keras `[steps, batch, features]` if
            `time_major`, as are mask and output then.
        initial_state: A list of h and c, each `[batch, units]`, of every layer in turn, or of a
            layer's forward and then its backward direction. Default: zeros, or the kept states if
            `stateful`.
        mask: `[batch, steps]`; for every layer.
        training: Whether dropout is active.

    Returns:
        The output, `[batch, steps, units]`, or `[batch, units]` without return_sequences, of two
        directions twice as wide; with return_state a tuple of it and the final states, in the order
        of initial_state.
    """

    def __init__(
        self,
        units: Sequence[int],
        *,
        bidirectional: bool = False,
        return_sequences: bool = False,
        return_state: bool = False,
        stateful: bool = False,
        use_fused: bool | str = "auto",
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
        **lstm_arguments: Any,
    ):
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        self.units = _checked_units(units)
        self.bidirectional = bool(bidirectional)
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.stateful = stateful
        self.use_fused = use_fused
        self.supports_masking = True
        if self.bidirectional and lstm_arguments.get("go_backwards"):
            raise ValueError("go_backwards must be False with bidirectional, got True")
        # Of every direction of every layer, in the order of Keras's weights.
        self.cell_layers = [
            self._make_cell_layer(index, is_backward, lstm_arguments)
            for index in range(len(self.units))
            for is_backward in ((False, True) if self.bidirectional else (False,))
        ]
        _keras.track_in_checkpoints(self, self.cell_layers)
        self._last_reason: str | None = None

    def _make_cell_layer(self, index: int, is_backward: bool, arguments: dict[str, Any]) -> Any:
        is_last = index + 1 == len(self.units)
        own: dict[str, Any] = {"return_sequences": self.return_sequences if is_last else True}
        if self.bidirectional:  # as Keras's wrapper sets its layers
            own |= {"go_backwards": is_backward, "zero_output_for_mask": own["return_sequences"]}
        return FusedLSTM(
            self.units[index],
            return_state=True,
            stateful=self.stateful,
            use_fused=self.use_fused,
            dtype=self.dtype_policy,
            name=f"{'backward' if is_backward else 'forward'}_{index}",
            **{**arguments, **own},
        )

    @classmethod
    def from_layers(cls, layers: Sequence[Any], **arguments: Any) -> FusedLSTMStack:
        """A stack of the configuration of LSTM layers, and of their weights if they are built.

        Args:
            layers: `tf.keras.layers.LSTM` layers, or a `tf.keras.layers.Bidirectional` around
                each, that differ in units alone, and the last one in return_sequences and
                return_state.
            **arguments: The stack's own, such as name.

        Raises:
            ValueError: layers are not such layers; the message says which, and what differs.
        """
        layers = list(layers)
        configurations = [_configuration_of(layer) for layer in layers]
        if not configurations:
            raise ValueError("layers must be one LSTM layer or more, got none")
        first = configurations[0]
        for layer, configuration in zip(layers, configurations, strict=True):
            different = {
                k
                for k in first.keys() | configuration.keys()
                if configuration.get(k) != first.get(k)
            } - _OF_A_LAYER
            if different:
                raise ValueError(
                    f"layers must have one configuration but for units; {layer.name} has another "
                    f"{', '.join(sorted(different))} than {layers[0].name}"
                )
        for layer in layers[:-1]:
            if not layer.return_sequences:
                raise ValueError(f"{layer.name} must have return_sequences, as it is not the last")
        shared = {k: v for k, v in first.items() if k not in _OF_A_LAYER}
        last = configurations[-1]
        stack = cls(
            [configuration["units"] for configuration in configurations],
            return_sequences=last["return_sequences"],
            return_state=last["return_state"],
            **{**shared, **arguments},
        )
        if all(layer.built for layer in layers):
            inner = getattr(layers[0], "forward_layer", layers[0])
            stack.build((None, None, inner.cell.kernel.shape[0]))
            stack.set_weights([w for layer in layers for w in layer.get_weights()])
        return stack

    @property
    def fused_reason(self) -> str | None:
        """Why the latest call (or trace) did not run as one op; None where it did."""
        return self._last_reason

    def _cells(self) -> list[list[Any]]:
        """The layers' directions."""
        each = 2 if self.bidirectional else 1
        return [self.cell_layers[i : i + each] for i in range(0, len(self.cell_layers), each)]

    def build(self, sequences_shape: Any, initial_state_shape: Any = None) -> None:
        shape = tuple(sequences_shape)
        for directions in self._cells():
            for cell in directions:
                with tf.name_scope(cell.name):  # in tf_keras the weights' names
                    cell.build(shape)
                cell.built = True
            shape = (*shape[:2], sum(cell.units for cell in directions))
        super().build(sequences_shape)

    def call(
        self,
        sequences: Any,
        initial_state: Any = None,
        mask: Any = None,
        training: bool | None = False,
    ) -> Any:
        mask = _first(mask)
        states = self._split(initial_state)
        self._last_reason = self._why_not_fused(sequences, mask, training)
        if self._last_reason is None:
            output, final_h, final_c = self._call_op(sequences, states, mask, training)
            finals = [v for pair in zip(final_h, final_c, strict=True) for v in pair]
        elif self.use_fused is True:
            raise ValueError(
                f"{self.name}: use_fused=True, but the fused op cannot run: {self._last_reason}"
            )
        else:
            output, finals = self._call_layers(sequences, states, mask, training)
        return (output, *finals) if self.return_state else output

    @tf.autograph.experimental.do_not_convert
    def _call_op(self, sequences: Any, states: list[Any], mask: Any, training: Any) -> Any:
        results = run(self._cells(), sequences, states, mask, training)
        if self.stateful:
            for cell, h, c in zip(self.cell_layers, *results[1:], strict=True):
                cell._keep_states(h, c)
        return results

    def _call_layers(self, sequences: Any, states: list[Any], mask: Any, training: Any) -> Any:
        """One layer after the other."""
        x, finals, states = sequences, [], list(states)
        for directions in self._cells():
            outputs = []
            for index, cell in enumerate(directions):
                output, *final = cell(x, initial_state=states.pop(0), mask=mask, training=training)
                is_reversed = index == 1 and cell.return_sequences
                outputs.append(_flip(output, axis=[self._steps_axis]) if is_reversed else output)
                finals += final
            x = outputs[0] if len(outputs) == 1 else _concatenate(outputs, axis=-1)
        return x, finals

    def _why_not_fused(self, sequences: Any, mask: Any, training: Any) -> str | None:
        for cell in self.cell_layers:
            if not isinstance(cell, FusedLSTM):
                return f"{cell.name} is a keras.layers.LSTM"
            if cell._stock_refuses(sequences, mask):
                return f"{cell.name} refuses the input"
            reason = cell._why_not_op(sequences, mask)
            if reason is not None:
                return f"{cell.name}: {reason}"
        return why_apart(self._cells(), training)

    def _split(self, initial_state: Any) -> list[Any]:
        """A pair of h and c for each cell, or None for each."""
        cells = len(self.cell_layers)
        if initial_state is None:
            return [None] * cells
        is_list = isinstance(initial_state, (list, tuple))
        states = list(initial_state) if is_list else [initial_state]
        if len(states) != 2 * cells:
            raise ValueError(
                f"{self.name}: initial_state must be {2 * cells} tensors, h and c of each of "
                f"{cells} cells, got {len(states)}"
            )
        return [states[i : i + 2] for i in range(0, len(states), 2)]

    def reset_states(self) -> None:
        """Sets the kept states of a stateful stack to zeros."""
        for cell in self.cell_layers:
            cell.reset_states()

    reset_state = reset_states

    @property
    def _steps_axis(self) -> int:
        return 0 if self.cell_layers[0].time_major else 1

    def compute_output_shape(self, sequences_shape: Any, initial_state_shape: Any = None) -> Any:
        leading = tuple(sequences_shape)[:2]
        batch = leading[1 - self._steps_axis]
        width = self.units[-1] * (2 if self.bidirectional else 1)
        output = (*leading, width) if self.return_sequences else (batch, width)
        if not self.return_state:
            return output
        states = [(batch, cell.units) for cell in self.cell_layers]
        return (output, *(state for state in states for _ in range(2)))

    def compute_mask(self, _: Any, mask: Any = None) -> Any:
        output_mask = _first(mask) if self.return_sequences else None
        if not self.return_state:
            return output_mask
        return [output_mask] + [None] * (2 * len(self.cell_layers))

    def get_config(self) -> dict[str, Any]:
        lstm = self.cell_layers[0].get_config()
        if self.bidirectional:
            del lstm["go_backwards"]
        own = {
            "units": list(self.units),
            "bidirectional": self.bidirectional,
            "return_sequences": self.return_sequences,
            "return_state": self.return_state,
            "stateful": self.stateful,
            "use_fused": self.use_fused,
        }
        shared = {k: v for k, v in lstm.items() if k not in _OF_A_LAYER and k not in own}
        return {**shared, **super().get_config(), **own}


# What a layer of a stack has of its own, or the stack for all of them.
_OF_A_LAYER = {
    "units", "name", "trainable", "return_sequences", "return_state", "zero_output_for_mask",
}  # fmt: skip


def _first(mask: Any) -> Any:
    """The mask of the sequences, from one for each argument or for the sequences alone."""
    return mask[0] if isinstance(mask, (list, tuple)) else mask


def _checked_units(units: Any) -> tuple[int, ...]:
    is_list = isinstance(units, Sequence) and not isinstance(units, str)
    if not is_list or not units or not all(isinstance(number, Integral) for number in units):
        raise ValueError(f"units must be the units of each layer, such as [64, 64], got {units!r}")
    return tuple(int(number) for number in units)


def _configuration_of(layer: Any) -> dict[str, Any]:
    """A layer's LSTM configuration, with bidirectional."""
    wrapper = layer if isinstance(layer, keras.layers.Bidirectional) else None
    if wrapper is not None and wrapper.merge_mode != "concat":
        raise ValueError(f"{layer.name} must merge its directions by concat, as a stack does")
    lstm = layer if wrapper is None else wrapper.forward_layer
    if not isinstance(lstm, keras.layers.LSTM):
        raise ValueError(
            "layers must be keras.layers.LSTM, or Bidirectional around one, got "
            f"{getattr(layer, 'name', layer)}, a {type(layer).__name__}"
        )
    configuration = lstm.get_config()
    if wrapper is not None:
        backward = wrapper.backward_layer.get_config()
        apart = {k for k in configuration if configuration[k] != backward.get(k)}
        apart -= {"name", "go_backwards"}
        if apart or configuration["go_backwards"]:
            raise ValueError(f"the directions of {layer.name} differ: {', '.join(sorted(apart))}")
        del configuration["go_backwards"]
    for name in ("use_fused", "batch_input_shape"):
        configuration.pop(name, None)
    return {**configuration, "bidirectional": wrapper is not None}
