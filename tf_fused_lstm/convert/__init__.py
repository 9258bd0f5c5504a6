"""LSTM weights to and from other layers and frameworks, as NumPy arrays.

Everything goes through `LSTMWeights`, what a keras.layers.LSTM holds:

    cells = tfl.convert.from_torch(module.state_dict())
    layer.set_weights(cells[0])

| `from_`, `to_` | of | gate order | biases |
|---|---|---|---|
| `basic_lstm_cell` | BasicLSTMCell, LSTMCell, LSTMBlockCell of TF 1 | i c f o | 1, forget_bias |
| `cudnn_params` | CudnnLSTM's opaque parameters, all layers and directions | i f c o | 2 |
| `cudnn_canonical` | the lists that CudnnRNNCanonicalToParams takes | i f c o | 2 |
| `keras_cudnn_lstm` | Keras's CuDNNLSTM layer | i f c o | 2 |
| `torch` | PyTorch's nn.LSTM, by its state dict, all layers and directions | i f g o | 2 |
| `onnx` | ONNX's LSTM, all directions | i o f c | 2 |
"""

from tf_fused_lstm.convert.cells import from_basic_lstm_cell, to_basic_lstm_cell
from tf_fused_lstm.convert.cudnn import (
    cudnn_params_size,
    from_cudnn_canonical,
    from_cudnn_params,
    from_keras_cudnn_lstm,
    to_cudnn_canonical,
    to_cudnn_params,
    to_keras_cudnn_lstm,
)
from tf_fused_lstm.convert.onnx import from_onnx, to_onnx
from tf_fused_lstm.convert.pytorch import from_torch, to_torch
from tf_fused_lstm.convert.weights import LSTMWeights

__all__ = [
    "LSTMWeights",
    "cudnn_params_size",
    "from_basic_lstm_cell",
    "from_cudnn_canonical",
    "from_cudnn_params",
    "from_keras_cudnn_lstm",
    "from_onnx",
    "from_torch",
    "to_basic_lstm_cell",
    "to_cudnn_canonical",
    "to_cudnn_params",
    "to_keras_cudnn_lstm",
    "to_onnx",
    "to_torch",
]
