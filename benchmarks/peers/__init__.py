"""The ways to run an LSTM that are compared, FusedLSTM first."""

from __future__ import annotations

from benchmarks.peers.base import Device, Peer, Program, Settings, Unavailable

__all__ = ["PEERS", "Peer", "Program", "Settings", "Unavailable"]

_TF = ("tensorflow",)
_KERAS = ("tensorflow", "keras")
_KERAS_2 = ("tensorflow", "tf_keras")
_CPU: tuple[Device, ...] = ("cpu",)
_GPU: tuple[Device, ...] = ("gpu",)

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("fused", "FusedLSTM", "fused_lstm:build_function", _TF),
        Peer("fused-concrete", "FusedLSTM, concrete", "fused_lstm:build_concrete", _TF),
        Peer("fused-eager", "FusedLSTM, eager", "fused_lstm:build_eager", _TF),
        Peer("fused-layer", "FusedLSTM layer", "fused_lstm:build_layer", _KERAS),
        Peer("keras", "Keras LSTM", "keras_lstm:build", _KERAS),
        Peer("tf-keras", "tf_keras LSTM", "keras2_lstm:build", _KERAS_2),
        Peer("cudnn", "CudnnRNNV3", "cudnn_rnn:build", _TF, _GPU),
        Peer("block", "BlockLSTMV2", "block_lstm:build", _TF, dtypes=("float16", "float32")),
        # A session cannot hold its bfloat16 variables on a GPU.
        Peer(
            "basic-cell",
            "BasicLSTMCell",
            "basic_lstm_cell:build",
            _KERAS_2,
            dtypes=("float16", "float32", "float64"),
        ),
        Peer("torch", "PyTorch", "torch_lstm:build", ("torch",)),
        Peer("torch-graph", "PyTorch, CUDA graph", "torch_lstm:build_graph", ("torch",), _GPU),
        Peer(
            "onnxruntime",
            "ONNX Runtime",
            "onnx_runtime:build",
            ("onnx", "onnxruntime"),
            _CPU,
            ("float32",),
            ("forward",),
        ),
        Peer(
            "openvino",
            "OpenVINO",
            "openvino_lstm:build",
            ("onnx", "openvino"),
            _CPU,
            ("float32",),
            ("forward",),
        ),
    )
}
