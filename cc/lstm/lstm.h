// The core's whole interface: one plain description of an LSTM call and three functions a device.
//
// The recurrence, with Keras's gate order i, f, g, o along the last axis of every weight
// (S. Hochreiter and J. Schmidhuber, Long Short-Term Memory, 1997; F. Gers et al., 2000):
//   z   = x_t W + h_{t-1} R + b
//   i, f, o = recurrent_activation(z_i, z_f, z_o),   g = activation(z_g)
//   c_t = f * c_{t-1} + i * g,   h_t = o * activation(c_t)
// A masked step keeps h and c; its output is that of the step before (zeros before the first
// valid step), or zeros with zero_output_for_mask.
//
// Two directions: 0 runs forward in time and 1 backward, each with weights and states of its own,
// over the same x and mask. Their outputs lie side by side, that of direction 1 at the step whose x
// it read (M. Schuster and K. Paliwal, Bidirectional Recurrent Neural Networks, 1997).
//
// Dropout: with masks for a gate, its part of z is (x_t * m) W + (h_{t-1} * n) R + b, the same m
// and n at all steps (Y. Gal and Z. Ghahramani, A Theoretically Grounded Application of Dropout in
// Recurrent Neural Networks, 2016). Masks hold factors, as 0 and 1 / (1 - rate), and are constants:
// they have no gradient. h itself, hence the output, is not dropped.
//
// C linkage and plain structs: the library that holds the core does not depend on TensorFlow or on
// a C++ ABI, so that one core serves several adapters. All tensors are dense and row-major.
#ifndef TF_FUSED_LSTM_CC_LSTM_LSTM_H_
#define TF_FUSED_LSTM_CC_LSTM_LSTM_H_

#include <stddef.h>
#include <stdint.h>

#define TFL_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { TFL_FLOAT32 = 0, TFL_FLOAT64 = 1, TFL_FLOAT16 = 2, TFL_BFLOAT16 = 3 } tfl_dtype;

// TFL_HARD_SIGMOID is Keras 3's: clip(x / 6 + 1 / 2, 0, 1).
typedef enum {
  TFL_TANH = 0,
  TFL_SIGMOID = 1,
  TFL_HARD_SIGMOID = 2,
  TFL_RELU = 3,
  TFL_LINEAR = 4
} tfl_activation;

typedef enum {
  TFL_OK = 0,
  TFL_INVALID_ARGUMENT = 1,
  TFL_UNAVAILABLE = 2,  // this build or this machine has no such device
  TFL_RESOURCE_EXHAUSTED = 3,
  TFL_INTERNAL = 4
} tfl_code;

typedef struct {
  tfl_code code;
  char message[252];
} tfl_status;

enum { TFL_MAX_DIRECTIONS = 2 };

// What a call computes; the same for forward and backward. Sizes may be zero.
typedef struct {
  int64_t batch;
  int64_t steps;
  int64_t input_size;
  int64_t hidden_size;
  tfl_dtype dtype;         // x, states, output, and their gradients
  tfl_dtype weight_dtype;  // weights and their gradients: dtype, or float32 below a 16-bit dtype
  tfl_activation activation;
  tfl_activation recurrent_activation;
  uint8_t num_directions;    // 1 or 2
  uint8_t time_major;        // x, mask, output are [steps, batch, ...], else [batch, steps, ...]
  uint8_t go_backwards;      // step s of the recurrence and of the output reads x_{steps-1-s}; of
                             // one direction only
  uint8_t return_sequences;  // output of every step, else each direction's last: [batch, ...]
  uint8_t zero_output_for_mask;  // a masked step's output is 0
  uint8_t has_bias;
  uint8_t has_mask;
  uint8_t has_initial_h;
  uint8_t has_initial_c;
  uint8_t num_dropout_masks;            // on x: 0, 1 for all gates, or 4, one each for i, f, g, o
  uint8_t num_recurrent_dropout_masks;  // on h where it meets R: likewise
  uint8_t training;                     // keep the reserve that tfl_*_backward reads
  uint8_t allow_tf32;                   // float32 products may round their factors to TF32 (CUDA)
} tfl_lstm_spec;

// Bytes of the scratch a call needs. The caller allocates them, 64-byte aligned, uninitialised.
typedef struct {
  int64_t reserve_bytes;  // 0 unless spec.training
  int64_t forward_workspace_bytes;
  int64_t backward_workspace_bytes;
} tfl_lstm_sizes;

// Pointers may be null only where the spec says so, or where a tensor has no elements. Arrays hold
// one pointer a direction.
typedef struct {
  const void* x;                                     // dtype [batch, steps, input], or time-major
  const void* kernel[TFL_MAX_DIRECTIONS];            // weight_dtype [input, 4 hidden]
  const void* recurrent_kernel[TFL_MAX_DIRECTIONS];  // weight_dtype [hidden, 4 hidden]
  const void* bias[TFL_MAX_DIRECTIONS];              // weight_dtype [4 hidden]
  const void* initial_h[TFL_MAX_DIRECTIONS];         // dtype [batch, hidden]; zeros where absent
  const void* initial_c[TFL_MAX_DIRECTIONS];         // dtype [batch, hidden]; zeros where absent
  const uint8_t* mask;                               // 0 or 1 [batch, steps], or time-major
  const void* dropout_mask[TFL_MAX_DIRECTIONS];      // dtype [num_dropout_masks, batch, input]
  // dtype [num_recurrent_dropout_masks, batch, hidden]
  const void* recurrent_dropout_mask[TFL_MAX_DIRECTIONS];
} tfl_lstm_inputs;

typedef struct {
  void* output;  // dtype [batch, steps, directions * hidden], time-major, or [batch, ...]
  void* final_h[TFL_MAX_DIRECTIONS];  // dtype [batch, hidden]
  void* final_c[TFL_MAX_DIRECTIONS];  // dtype [batch, hidden]
  void* reserve;                      // sizes.reserve_bytes, written if spec.training
  void* workspace;                    // sizes.forward_workspace_bytes
} tfl_lstm_outputs;

// What backward reads besides the inputs. A null gradient stands for zeros.
typedef struct {
  const void* output;       // as forward wrote it
  const void* reserve;      // as forward wrote it, with spec.training, on the same kind of device
  const void* grad_output;  // dtype, shape of output
  const void* grad_final_h[TFL_MAX_DIRECTIONS];  // dtype [batch, hidden]
  const void* grad_final_c[TFL_MAX_DIRECTIONS];  // dtype [batch, hidden]
} tfl_lstm_saved;

// What backward writes, all of it, in the shapes and types of the inputs. Null: not wanted.
typedef struct {
  void* grad_x;
  void* grad_kernel[TFL_MAX_DIRECTIONS];
  void* grad_recurrent_kernel[TFL_MAX_DIRECTIONS];
  void* grad_bias[TFL_MAX_DIRECTIONS];
  void* grad_initial_h[TFL_MAX_DIRECTIONS];
  void* grad_initial_c[TFL_MAX_DIRECTIONS];
  void* workspace;  // sizes.backward_workspace_bytes
} tfl_lstm_gradients;

// Where a call runs. CPU: at most num_threads threads take part, the caller's included; schedule
// runs fn(arg) once, later, on a thread of the pool, perhaps after the call has returned, perhaps
// on none that is free soon: the core never waits for a thread that has not begun.
typedef struct {
  int32_t num_threads;
  void (*schedule)(void* pool, void (*fn)(void* arg), void* arg);
  void* pool;
} tfl_cpu_runtime;

// CUDA: all work is queued on stream (a CUstream of the current context); no call waits for it.
typedef struct {
  void* stream;
  int32_t device;  // CUDA ordinal
} tfl_cuda_runtime;

// The sizes for num_threads threads; a call must use the number that its sizes were asked for.
TFL_EXPORT tfl_status tfl_cpu_lstm_sizes(const tfl_lstm_spec* spec, int32_t num_threads,
                                         tfl_lstm_sizes* sizes);
TFL_EXPORT tfl_status tfl_cpu_lstm_forward(const tfl_lstm_spec* spec, const tfl_lstm_inputs* inputs,
                                           const tfl_lstm_outputs* outputs,
                                           const tfl_cpu_runtime* runtime);
TFL_EXPORT tfl_status tfl_cpu_lstm_backward(const tfl_lstm_spec* spec,
                                            const tfl_lstm_inputs* inputs,
                                            const tfl_lstm_saved* saved,
                                            const tfl_lstm_gradients* gradients,
                                            const tfl_cpu_runtime* runtime);

// 1 if this library holds CUDA code (whether or not the machine has a GPU).
TFL_EXPORT int32_t tfl_built_with_cuda(void);
// As above on CUDA device `device`; TFL_UNAVAILABLE in a library without CUDA code.
TFL_EXPORT tfl_status tfl_cuda_lstm_sizes(const tfl_lstm_spec* spec, int32_t device,
                                          tfl_lstm_sizes* sizes);
TFL_EXPORT tfl_status tfl_cuda_lstm_forward(const tfl_lstm_spec* spec,
                                            const tfl_lstm_inputs* inputs,
                                            const tfl_lstm_outputs* outputs,
                                            const tfl_cuda_runtime* runtime);
TFL_EXPORT tfl_status tfl_cuda_lstm_backward(const tfl_lstm_spec* spec,
                                             const tfl_lstm_inputs* inputs,
                                             const tfl_lstm_saved* saved,
                                             const tfl_lstm_gradients* gradients,
                                             const tfl_cuda_runtime* runtime);

// Several layers on top of each other, the first reading x and every other one the output of the
// one before it: at once where the device has the room and it is faster.
enum { TFL_MAX_STACK_LAYERS = 8 };

// For each direction of the gradient: whether one call for all layers runs them at once, and its
// scratch, 0 where it does not.
typedef struct {
  uint8_t forward_at_once;
  uint8_t backward_at_once;  // only with spec.training; what forward kept may be either's
  int64_t forward_workspace_bytes;
  int64_t backward_workspace_bytes;
} tfl_lstm_stack_sizes;

// Of specs that each pass tfl_cuda_lstm_sizes, which gives a layer's reserve also here.
TFL_EXPORT tfl_status tfl_cuda_lstm_stack_sizes(const tfl_lstm_spec* specs, int32_t num_layers,
                                                int32_t device, tfl_lstm_stack_sizes* sizes);
// Only where forward_at_once. An array element is a layer, as for tfl_cuda_lstm_forward, with
// inputs[l].x == outputs[l - 1].output; every output has memory of its own, 16-byte aligned, and
// outputs[0].workspace is that of all. All layers take inputs[0].mask.
TFL_EXPORT tfl_status tfl_cuda_lstm_stack_forward(const tfl_lstm_spec* specs, int32_t num_layers,
                                                  const tfl_lstm_inputs* inputs,
                                                  const tfl_lstm_outputs* outputs,
                                                  const tfl_cuda_runtime* runtime);
// Only where backward_at_once. Of saved[l].grad_output only the last layer's is read, of
// gradients[l].grad_x only the first layer's written; gradients[0].workspace is that of all.
TFL_EXPORT tfl_status tfl_cuda_lstm_stack_backward(const tfl_lstm_spec* specs, int32_t num_layers,
                                                   const tfl_lstm_inputs* inputs,
                                                   const tfl_lstm_saved* saved,
                                                   const tfl_lstm_gradients* gradients,
                                                   const tfl_cuda_runtime* runtime);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TF_FUSED_LSTM_CC_LSTM_LSTM_H_
