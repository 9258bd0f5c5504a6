// Makes the status values of the C interface.
#ifndef TF_FUSED_LSTM_CC_LSTM_CPU_STATUS_H_
#define TF_FUSED_LSTM_CC_LSTM_CPU_STATUS_H_

#include <cstdarg>
#include <cstdio>

#include "cc/lstm/lstm.h"

namespace tfl::cpu {

inline tfl_status Ok() {
  tfl_status status;
  status.code = TFL_OK;
  status.message[0] = '\0';
  return status;
}

__attribute__((format(printf, 1, 2))) inline tfl_status InvalidArgument(const char* format, ...) {
  tfl_status status;
  status.code = TFL_INVALID_ARGUMENT;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(status.message, sizeof(status.message), format, arguments);
  va_end(arguments);
  return status;
}

}  // namespace tfl::cpu

#endif  // TF_FUSED_LSTM_CC_LSTM_CPU_STATUS_H_
