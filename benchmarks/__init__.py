"""FusedLSTM beside the other ways to run an LSTM: same weights, checked results, one table.

`python -m benchmarks --help` lists what can be asked. Layout:

    shapes.py     named sets of sizes
    reference.py  the LSTM in float64 numpy, forward and backward
    problem.py    random data of one size, and what is right for it
    peers/        one file for each way to run it
    runner.py     check, warm up, time in interleaved rounds
    trace.py      what runs inside one call, from TensorFlow's profiler
    report.py     tables and JSON
    plot.py       the JSON as a picture
    results/      recorded runs
"""
