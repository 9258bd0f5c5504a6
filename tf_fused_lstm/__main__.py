"""`python -m tf_fused_lstm rewrite IN OUT`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from tf_fused_lstm.convert.graph import Entry, rewrite


def _table(entries: Sequence[Entry]) -> str:
    rows = [("graph", "node", "op", "", "")]
    rows += [
        (e.graph or "(main)", e.node, e.op, "rewritten" if e.rewritten else "left", e.detail)
        for e in entries
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{c:{w}}" for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _summary(entries: Sequence[Entry]) -> str:
    rewritten = sum(e.rewritten for e in entries)
    if not entries:
        return "no LSTM ops found; the copy is unchanged"
    return f"{rewritten} rewritten, {len(entries) - rewritten} left"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status: 0, or 1 after an error."""
    parser = argparse.ArgumentParser(prog="python -m tf_fused_lstm")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser(
        "rewrite",
        help="make the LSTMs of a SavedModel or frozen graph fused ops",
        description="Write a copy of a SavedModel or frozen GraphDef in which CudnnRNN, "
        "CudnnRNNV2, CudnnRNNV3, BlockLSTM and BlockLSTMV2 are FusedLSTM ops, then print what was "
        "rewritten, and what was left and why.",
    )
    command.add_argument("source", metavar="IN", help="a SavedModel's folder or a GraphDef's file")
    command.add_argument("destination", metavar="OUT", help="what to write; must not exist")
    command.add_argument("--json", action="store_true", help="print the summary as JSON")
    options = parser.parse_args(arguments)
    try:
        entries = rewrite(options.source, options.destination)
    except (OSError, ValueError) as error:
        print(f"tf_fused_lstm: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps([dataclasses.asdict(entry) for entry in entries], indent=2))
    else:
        if entries:
            print(_table(entries), end="\n\n")
        print(_summary(entries))
    return 0


if __name__ == "__main__":
    sys.exit(main())
