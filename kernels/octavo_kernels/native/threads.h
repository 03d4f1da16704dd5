// The threads of a step. They share out the items of one region after the other, and sleep when there is no step.
#pragma once

#include <stdint.h>

namespace octavo {

class Pool;

// What a thread has set up in its processor for the items that it takes, as the instruction set has it; zeros: nothing.
struct alignas(64) ThreadState {
  uint8_t bytes[64];
};

class Threads {
 public:
  // count: this thread and count - 1 more. put_back: undoes what a thread has set up; null where nothing is. Returns null
  // when they cannot be had.
  static Threads* open(int count, void (*put_back)());
  ~Threads();

  int count() const { return count_; }

  // Between these, threads without an item look for the next region a while before they sleep. Each region is between
  // them. What a thread has set up is put back before it sleeps, and at the step's end.
  void begin_step();
  void end_step();

  // Calls body(item, thread) for each item of [0, items), in any order, and returns when all are done. Items are shared
  // out in parts of neighbours, [items * thread / count, items * (thread + 1) / count), which each thread goes through
  // from first to last before it helps others.
  template <class Body>
  void run(int64_t items, const Body& body) {
    if (items == 1 || count_ == 1) {
      for (int64_t item = 0; item < items; item++) body(item, 0);
      return;
    }
    share(
        items, [](const void* context, int64_t item, int thread) { (*(const Body*)context)(item, thread); }, &body);
  }

  ThreadState& state(int thread) { return states_[thread]; }

  // A thread's own memory: at least as many bytes as were last reserved. Contents are lost when more is reserved.
  bool reserve(int64_t bytes);
  float* scratch(int thread) const { return (float*)(scratch_ + thread * scratch_bytes_); }

 private:
  Threads() = default;
  void share(int64_t items, void (*body)(const void*, int64_t, int), const void* context);
  void rest(int thread);

  friend class Pool;

  int count_ = 1;
  Pool* pool_ = nullptr;
  void (*put_back_)() = nullptr;
  ThreadState* states_ = nullptr;
  char* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
};

}  // namespace octavo
