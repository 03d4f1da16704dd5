// The operations of one instruction set.
#pragma once

#include "abi.h"
#include "threads.h"

namespace octavo {

struct Forms {
  void (*put_back)();  // what a thread has set up (Threads::open); or null

  int64_t (*step_scratch)(const Model&, const Batch&);
  int64_t (*attention_scratch)(const Attention&);
  int64_t (*attention_room)(const Attention&, const Batch&);
  int64_t (*linear_scratch)(const Linear&);
  int64_t (*linear_room)(const Linear&, int64_t rows);
  int64_t (*step_room)(const Model&, const Batch&);
  void (*decoder_step)(Threads&, const Model&, const Batch&, float* logits, float* memory);
  int64_t (*sample_scratch)(int64_t width);
  void (*sample)(Threads&, const float* logits, int64_t rows, int64_t width, const Draws*, int64_t* tokens);

  // Each operation alone, for tests against its reference.
  void (*linear)(Threads&, const Linear&, const float* x, const float* norm, float eps, float* y, int64_t rows, bool add,
                 float* memory);
  void (*gated_linear)(Threads&, const Linear&, const float* x, float* y, int64_t rows, float* memory);
  void (*rms_norm)(const float* x, const float* weight, float eps, float* y, int64_t rows, int64_t width);
  void (*silu_mul)(float* gate_up, int64_t rows, int64_t width);
  void (*rotary_kv)(Threads&, const Attention&, const Batch&, const Layer&, float eps, const float* cos,
                    const float* sin, float* qkv);
  void (*paged_attention)(Threads&, const Attention&, const Batch&, const float* q, const void* keys,
                          const void* values, float* out, float* memory);
};

}  // namespace octavo
