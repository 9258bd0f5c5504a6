"""Rewriting graphs whose source is lost: their LSTM ops become FusedLSTM.

`body` holds a graph's nodes, `cudnn_ops` and `block_ops` replace one op each, `loops` finds what
stays, `rewriter` goes through a graph and its functions, `files` through files.
"""

from tf_fused_lstm.convert.graph.files import rewrite
from tf_fused_lstm.convert.graph.rewriter import Entry, rewrite_graph_def

__all__ = ["Entry", "rewrite", "rewrite_graph_def"]
