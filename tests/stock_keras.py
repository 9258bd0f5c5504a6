"""The LSTM layer of either Keras as the reference."""

import importlib


def keep_keras_from_cudnn() -> None:
    """Lets keras.layers.LSTM run as its loop of ordinary ops on a GPU as well.

    cuDNN, which it would take there, refuses most masks and has no second derivatives, and what is
    inside a wrapper cannot be told otherwise: use_cudnn is no part of the configuration.
    """
    # By name: the packages have functions of the same names as attributes.
    for module in ("keras.src.backend", "keras.src.backend.tensorflow.rnn"):
        importlib.import_module(module).cudnn_ok = lambda *args, **kwargs: False


def keep_tf_keras_from_cudnn() -> None:
    """The same for tf_keras.layers.LSTM."""
    lstm = importlib.import_module("tf_keras.src.layers.rnn.lstm")
    lstm.gru_lstm_utils.is_cudnn_supported_inputs = lambda *args: False  # of eager calls
    lstm.lstm_with_backend_selection = lstm.standard_lstm
