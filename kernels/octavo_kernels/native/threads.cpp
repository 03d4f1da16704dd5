// A region is done when its items are, not when every thread has been there: a thread that the machine gives to somebody
// else meanwhile is not waited for unless it holds an item, or has not said yet that it has done some: it says so once, when
// it finds no more. So a busy neighbour costs what it takes, and no more.
//
// Each thread has a part of the items of its own, neighbours, which it takes from first to last, so that it reads memory
// in one piece; then it takes what is left of the others' parts. One word says which region is open, and one for each part
// how many of its items are taken:
//
//     open    [ region: 40 bits | items: 24 bits ]
//     taken   [ region: 40 bits | taken: 24 bits ]     of an older region: none is taken yet
//
// To take an item is to write the next number, together with the region, over the number that was read. Whoever manages
// has an item of that very region, which therefore cannot be over yet. Whoever comes late finds all of a part taken, or a
// newer region, has read nothing else and leaves.
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

constexpr int kFieldBits = 24;
constexpr uint64_t kField = (1u << kFieldBits) - 1;
constexpr uint64_t kRegions = 1ull << (64 - kFieldBits);
// How long a thread looks for work before it sleeps: longer than one thread usually waits for another within a step
// (microseconds), and short beside what others lose by it.
constexpr uint64_t kPatience = 50000;  // clock cycles

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

// The next item of a part of so many, or -1 where it has none left, or another region is open since.
int64_t take(std::atomic<uint64_t>& taken, uint64_t region, uint64_t items) {
  uint64_t word = taken.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t ahead = ((word >> kFieldBits) - region) % kRegions;  // numbers begin anew one day
    const uint64_t next = ahead == 0 ? word & kField : 0;
    if ((ahead != 0 && ahead < kRegions / 2) || next >= items) return -1;
    const uint64_t after = region << kFieldBits | (next + 1);
    if (taken.compare_exchange_weak(word, after, std::memory_order_acq_rel, std::memory_order_relaxed)) return next;
  }
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
    count_ = count;
    threads_ = new (std::nothrow) pthread_t[count];
    seats_ = new (std::nothrow) Seat[count];
    if (!threads_ || !seats_) return false;
    for (int number = 1; number < count; number++) {
      seats_[number].pool = this;
      seats_[number].number = number;
      if (pthread_create(&threads_[started_], nullptr, work, &seats_[number])) return false;
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
    region_ = (region_ + 1) % kRegions;
    open_.store(region_ << kFieldBits | (uint64_t)items, std::memory_order_release);
    call();
    take_items(0);
    if (soon([&] { return done_.load(std::memory_order_acquire) == items; })) return;
    waiting_ = true;
    for (uint32_t done; (done = done_.load()) != items;) sleep_while(done_, done);
    waiting_ = false;
  }

  std::atomic<bool> in_step{false};

 private:
  struct alignas(64) Seat {
    Pool* pool;
    int number;
    std::atomic<uint64_t> taken{0};
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
    const uint64_t open = open_.load(std::memory_order_acquire), region = open >> kFieldBits, items = open & kField;
    uint32_t done = 0;
    for (int part = 0; part < count_; part++) {
      const int owner = (thread + part) % count_;
      const int64_t begin = items * owner / count_, end = items * (owner + 1) / count_;
      for (int64_t item; (item = take(seats_[owner].taken, region, end - begin)) >= 0; done++)
        body_(context_, begin + item, thread);
    }
    if (done && done_.fetch_add(done) + done == items && waiting_) wake_all(done_);
  }

  void call() {
    called_++;
    if (asleep_) wake_all(called_);
  }

  Threads& owner_;
  pthread_t* threads_ = nullptr;
  Seat* seats_ = nullptr;
  int count_ = 0, started_ = 0;
  uint64_t region_ = 0;
  void (*body_)(const void*, int64_t, int) = nullptr;
  const void* context_ = nullptr;
  std::atomic<bool> closing_{false}, waiting_{false};
  std::atomic<int> asleep_{0};
  alignas(64) std::atomic<uint64_t> open_{0};
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
