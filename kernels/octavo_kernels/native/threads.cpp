// A region is done when its items are, not when every thread has been there: a thread that the machine gives to somebody
// else meanwhile is not waited for unless it holds an item. So a busy neighbour costs what it takes, and no more.
//
// One word says which region is open, how many items it has and which is next:
//
//     ticket   [ region: 16 bits | items: 24 bits | next: 24 bits ]
//
// To take an item is to add 1 to it. Whoever gets a number below `items` has an item of that very region, which
// therefore cannot be over yet; whoever gets another number has read nothing else and leaves.
#include "threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <x86intrin.h>

#include <atomic>
#include <new>

namespace octavo {
namespace {

constexpr uint64_t kField = (1u << 24) - 1;
// How long a thread looks for work before it sleeps: longer than one thread usually waits for another within a step
// (microseconds), and short beside what others lose by it.
constexpr uint64_t kPatience = 50000;  // clock cycles

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

template <class Condition>
bool soon(const Condition& condition) {
  const uint64_t end = __rdtsc() + kPatience;
  while (!condition()) {
    if (__rdtsc() > end) return false;
    _mm_pause();
  }
  return true;
}

}  // namespace

class Pool {
 public:
  explicit Pool(Threads& owner) : owner_(owner) {}

  bool start(int count) {
    threads_ = new (std::nothrow) pthread_t[count];
    seats_ = new (std::nothrow) Seat[count];
    if (!threads_ || !seats_) return false;
    for (int number = 1; number < count; number++) {
      seats_[started_] = {this, number};
      if (pthread_create(&threads_[started_], nullptr, work, &seats_[started_])) return false;
      pthread_setname_np(threads_[started_], "octavo-kernels");
      started_++;
    }
    return true;
  }

  void stop() {
    closing_ = true;
    call();
    for (int number = 0; number < started_; number++) pthread_join(threads_[number], nullptr);
    delete[] threads_;
    delete[] seats_;
  }

  void share(int64_t items, void (*body)(const void*, int64_t, int), const void* context) {
    body_ = body;
    context_ = context;
    done_.store(0, std::memory_order_relaxed);
    region_++;
    ticket_.store(region_ << 48 | (uint64_t)items << 24, std::memory_order_release);
    call();
    take_items(0);
    if (soon([&] { return done_.load(std::memory_order_acquire) == items; })) return;
    waiting_ = true;
    for (uint32_t done; (done = done_.load()) != items;) sleep_while(done_, done);
    waiting_ = false;
  }

  std::atomic<bool> in_step{false};

 private:
  struct Seat {
    Pool* pool;
    int number;
  };

  static void* work(void* seat) {
    ((Seat*)seat)->pool->serve(((Seat*)seat)->number);
    return nullptr;
  }

  void serve(int thread) {
    while (!closing_) {
      const uint32_t seen = called_.load();
      take_items(thread);
      const auto news = [&] { return called_.load(std::memory_order_relaxed) != seen; };
      if (in_step.load(std::memory_order_relaxed) && soon(news)) continue;
      owner_.rest(thread);
      asleep_++;
      sleep_while(called_, seen);
      asleep_--;
    }
  }

  void take_items(int thread) {
    for (;;) {
      uint64_t ticket = ticket_.load(std::memory_order_relaxed);
      if ((ticket & kField) >= (ticket >> 24 & kField)) return;
      ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
      const uint64_t item = ticket & kField, items = ticket >> 24 & kField;
      if (item >= items) return;
      body_(context_, (int64_t)item, thread);
      if (done_.fetch_add(1) + 1 == items && waiting_) wake_all(done_);
    }
  }

  void call() {
    called_++;
    if (asleep_) wake_all(called_);
  }

  Threads& owner_;
  pthread_t* threads_ = nullptr;
  Seat* seats_ = nullptr;
  int started_ = 0;
  uint64_t region_ = 0;
  void (*body_)(const void*, int64_t, int) = nullptr;
  const void* context_ = nullptr;
  std::atomic<bool> closing_{false}, waiting_{false};
  std::atomic<int> asleep_{0};
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> done_{0};
  alignas(64) std::atomic<uint32_t> called_{0};
};

Threads* Threads::open(int count, void (*put_back)()) {
  Threads* threads = new (std::nothrow) Threads;
  if (!threads) return nullptr;
  threads->count_ = count;
  threads->put_back_ = put_back;
  threads->states_ = (ThreadState*)aligned_alloc(alignof(ThreadState), count * sizeof(ThreadState));
  if (threads->states_) {
    memset(threads->states_, 0, count * sizeof(ThreadState));
    if (count == 1) return threads;
    threads->pool_ = new (std::nothrow) Pool(*threads);
    if (threads->pool_ && threads->pool_->start(count)) return threads;
  }
  delete threads;
  return nullptr;
}

Threads::~Threads() {
  if (pool_) pool_->stop();
  delete pool_;
  free(states_);
  free(scratch_);
}

void Threads::begin_step() {
  if (pool_) pool_->in_step = true;
}

void Threads::end_step() {
  if (pool_) pool_->in_step = false;
  rest(0);
}

void Threads::rest(int thread) {
  static const ThreadState nothing{};
  if (!memcmp(&states_[thread], &nothing, sizeof nothing)) return;
  put_back_();
  states_[thread] = nothing;
}

bool Threads::reserve(int64_t bytes) {
  if (bytes <= scratch_bytes_) return true;
  bytes = (bytes + 4095) / 4096 * 4096;
  free(scratch_);
  scratch_ = (char*)aligned_alloc(4096, bytes * count_);
  scratch_bytes_ = scratch_ ? bytes : 0;
  return scratch_ != nullptr;
}

void Threads::share(int64_t items, void (*body)(const void*, int64_t, int), const void* context) {
  pool_->share(items, body, context);
}

}  // namespace octavo
