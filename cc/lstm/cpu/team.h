// A team of threads that runs one program of phases together.
//
// Every member runs the same program. A phase is a fixed list of tasks, dealt out in as many shares
// as the team has places; a member takes the tasks of its own share first, which keeps what they
// touch in its cache from phase to phase, then those that nobody else has taken. A phase ends when
// all its tasks are done. So nothing waits for a thread that has not begun, a thread may join at
// any time, and the list of tasks, hence every result, does not depend on who joined.
#ifndef TF_FUSED_LSTM_CC_LSTM_CPU_TEAM_H_
#define TF_FUSED_LSTM_CC_LSTM_CPU_TEAM_H_

#include <atomic>
#include <cstdint>

#include "cc/lstm/lstm.h"

namespace tfl::cpu {

// How many tasks of each share were taken and done, over all phases so far; a cache line each.
struct Share {
  alignas(64) std::atomic<int64_t> taken;
  alignas(64) std::atomic<int64_t> done;
};

class TeamState;

// One thread's place in the program.
class Member {
 public:
  int id() const { return id_; }
  int shares() const { return shares_; }

  // Runs task(index, count) for every index below count = shares() * tasks_per_share, on all
  // members together, and returns when all have run. Tasks must not depend on each other.
  template <class Task>
  void Phase(int tasks_per_share, const Task& task) {
    const int count = shares_ * tasks_per_share;
    if (state_ == nullptr) {
      for (int index = 0; index < count; ++index) task(index, count);
      return;
    }
    const int64_t begin = position_;
    position_ += tasks_per_share;
    const auto run = [&](int share) {
      for (int64_t i; (i = Take(share, position_)) >= 0;) {
        task(share * tasks_per_share + static_cast<int>(i - begin), count);
        MarkDone(share);
      }
    };
    run(id_);
    for (int share = 0, waits = 0; share < shares_;) {
      if (IsDone(share, position_)) {
        ++share;
        continue;
      }
      if (MayHelp(share, waits)) run(share);
      Wait(&waits);
    }
  }

 private:
  friend class TeamState;
  friend void RunTeam(const tfl_cpu_runtime&, int, void (*)(void*, Member&), void*);
  Member(TeamState* state, Share* share_list, int shares, int id)
      : state_(state), share_list_(share_list), shares_(shares), id_(id) {}

  // The next task of `share` below `end`, or -1.
  int64_t Take(int share, int64_t end) const {
    std::atomic<int64_t>& taken = share_list_[share].taken;
    int64_t next = taken.load(std::memory_order_relaxed);
    while (next < end) {
      if (taken.compare_exchange_weak(next, next + 1, std::memory_order_relaxed)) return next;
    }
    return -1;
  }
  void MarkDone(int share) const {
    share_list_[share].done.fetch_add(1, std::memory_order_release);
  }
  bool IsDone(int share, int64_t end) const {
    return share_list_[share].done.load(std::memory_order_acquire) >= end;
  }
  bool MayHelp(int share, int waits) const;
  static void Wait(int* waits);

  TeamState* state_;  // null: alone
  Share* share_list_;
  int shares_;
  int id_;
  int64_t position_ = 0;  // the tasks of each share in the phases before
};

// Runs program(context, member) on the calling thread and on those of the runtime's pool that come
// while it runs, at most `shares` together. Subnormals count as zero within the program; the
// caller's floating-point state is restored.
void RunTeam(const tfl_cpu_runtime& runtime, int shares, void (*program)(void*, Member&),
             void* context);

}  // namespace tfl::cpu

#endif  // TF_FUSED_LSTM_CC_LSTM_CPU_TEAM_H_
