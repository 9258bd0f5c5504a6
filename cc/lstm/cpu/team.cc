#include "cc/lstm/cpu/team.h"

#include <sched.h>

#include <memory>
#include <new>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace tfl::cpu {
namespace {

// Waits before helping a member that has joined with its share, and before yielding the core.
constexpr int kWaitsBeforeHelp = 64;
constexpr int kWaitsBeforeYield = 2048;

void Pause() {
#if defined(__SSE2__)
  _mm_pause();
#endif
}

// Subnormals read and give zero while this lives.
class FlushSubnormals {
 public:
#if defined(__SSE2__)
  FlushSubnormals() : saved_(_mm_getcsr()) {
    // All exceptions masked, round to nearest, flush-to-zero, denormals-are-zero.
    _mm_setcsr(0x1F80 | 0x8000 | 0x0040);
  }
  ~FlushSubnormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#endif
};

}  // namespace

// Lives until the caller and every closure it scheduled have let go of it. So it is neither on the
// caller's stack nor in the call's workspace: a closure that the pool runs late reads here that the
// team is closed, when the call, which waits for none that has not begun, has given back both.
class TeamState {
 public:
  static TeamState* Create(int shares, void (*program)(void*, Member&), void* context) {
    std::unique_ptr<TeamState> state(new (std::nothrow) TeamState);
    if (state == nullptr) return nullptr;
    state->share_list_.reset(new (std::nothrow) Share[shares]);
    if (state->share_list_ == nullptr) return nullptr;
    for (int i = 0; i < shares; ++i) {
      state->share_list_[i].taken.store(0, std::memory_order_relaxed);
      state->share_list_[i].done.store(0, std::memory_order_relaxed);
    }
    state->shares_ = shares;
    state->program_ = program;
    state->context_ = context;
    state->references_.store(shares, std::memory_order_relaxed);
    return state.release();
  }

  void RunAsCaller() { Run(0); }

  // Lets nobody in any more and waits until everyone inside has left.
  void Close() {
    inside_.fetch_or(kClosed, std::memory_order_acq_rel);
    for (int waits = 0; inside_.load(std::memory_order_acquire) != kClosed;) Member::Wait(&waits);
  }

  void Release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  // What the pool runs: perhaps while the team works, perhaps long after.
  static void Join(void* argument) {
    TeamState* state = static_cast<TeamState*>(argument);
    if ((state->inside_.fetch_add(1, std::memory_order_acq_rel) & kClosed) == 0) {
      FlushSubnormals flush;
      state->Run(state->joined_.fetch_add(1, std::memory_order_relaxed));
    }
    state->inside_.fetch_sub(1, std::memory_order_release);
    state->Release();
  }

  bool HasJoined(int id) const { return id < joined_.load(std::memory_order_relaxed); }

 private:
  static constexpr int64_t kClosed = int64_t{1} << 32;

  void Run(int id) {
    Member member(this, share_list_.get(), shares_, id);
    program_(context_, member);
  }

  std::unique_ptr<Share[]> share_list_;
  int shares_ = 0;
  void (*program_)(void*, Member&) = nullptr;
  void* context_ = nullptr;
  std::atomic<int> references_{0};
  std::atomic<int> joined_{1};
  std::atomic<int64_t> inside_{0};
};

bool Member::MayHelp(int share, int waits) const {
  return waits >= kWaitsBeforeHelp || !state_->HasJoined(share);
}

void Member::Wait(int* waits) {
  if (++*waits < kWaitsBeforeYield) {
    Pause();
  } else {
    sched_yield();
  }
}

void RunTeam(const tfl_cpu_runtime& runtime, int shares, void (*program)(void*, Member&),
             void* context) {
  FlushSubnormals flush;
  TeamState* state = nullptr;
  if (shares > 1 && runtime.schedule != nullptr) {
    state = TeamState::Create(shares, program, context);
  }
  if (state == nullptr) {
    Member member(nullptr, nullptr, shares, 0);
    program(context, member);
    return;
  }
  for (int i = 1; i < shares; ++i) runtime.schedule(runtime.pool, &TeamState::Join, state);
  state->RunAsCaller();
  state->Close();
  state->Release();
}

}  // namespace tfl::cpu
