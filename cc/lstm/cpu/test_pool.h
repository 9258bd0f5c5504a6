// Thread pools for tests: one that works, and those that a core must not depend on.
#ifndef TF_FUSED_LSTM_CC_LSTM_CPU_TEST_POOL_H_
#define TF_FUSED_LSTM_CC_LSTM_CPU_TEST_POOL_H_

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "cc/lstm/lstm.h"

namespace tfl::testing {

// Runs closures on `threads` threads of its own; with none, keeps them until the pool is destroyed.
class TestPool {
 public:
  explicit TestPool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~TestPool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    // What never got a thread runs now, long after the calls that scheduled it.
    for (const auto& closure : queue_) closure();
  }

  void Add(std::function<void()> closure) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      queue_.push_back(std::move(closure));
    }
    wake_.notify_one();
  }

  tfl_cpu_runtime Runtime(int num_threads) {
    return {num_threads,
            [](void* pool, void (*fn)(void*), void* arg) {
              static_cast<TestPool*>(pool)->Add([fn, arg] { fn(arg); });
            },
            this};
  }

 private:
  void Work() {
    for (;;) {
      std::function<void()> closure;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
        if (queue_.empty()) return;
        closure = std::move(queue_.front());
        queue_.pop_front();
      }
      closure();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tfl::testing

#endif  // TF_FUSED_LSTM_CC_LSTM_CPU_TEST_POOL_H_
