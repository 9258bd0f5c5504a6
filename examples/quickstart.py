"""FusedLSTM in a Keras model, and the op alone."""

import keras
import numpy as np

import tf_fused_lstm as tfl

x = np.random.default_rng(0).standard_normal((256, 32, 8), dtype=np.float32)
y = x.sum(axis=(1, 2))  # learn to add up a sequence

model = keras.Sequential([tfl.FusedLSTM(64), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, y, epochs=5)

kernel, recurrent_kernel, bias = model.layers[0].weights
output, final_h, final_c = tfl.fused_lstm(x, kernel.value, recurrent_kernel.value, bias.value)
print(output.shape, final_h.shape, final_c.shape)
