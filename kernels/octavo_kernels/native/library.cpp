// The C ABI. Compiled for any x86-64, so that a processor without the instruction sets hears of it instead of stopping.
#include <stdlib.h>
#include <string.h>

#include <new>

#include "forms.h"
#include "processor.h"

#define OCTAVO_EXPORT extern "C" __attribute__((visibility("default")))

namespace octavo {

namespace avx2 {
extern const Forms forms;
}
namespace avx512 {
extern const Forms forms;
}
namespace avx512vnni {
extern const Forms forms;
}
#ifndef OCTAVO_WITHOUT_AMX
namespace avx512bf16 {
extern const Forms forms;
}
namespace amx {
extern const Forms forms;
}
#endif

namespace {

struct Isa {
  const char* name;
  const Forms* forms;
  bool runs;
};

// Why AMX is not used although the processor has it; null when it is, or has none.
const char* without_amx() {
  if (!has_amx()) return nullptr;
#ifdef OCTAVO_WITHOUT_AMX
  return "the library was built by a compiler that knows no AMX";
#else
  static const bool permitted = system_permits_amx();
  return permitted ? nullptr : "the operating system does not permit it";
#endif
}

// Best first.
const Isa* isas() {
  static const Isa all[] = {
#ifndef OCTAVO_WITHOUT_AMX
      {"amx", &amx::forms, has_amx() && !without_amx()},
      {"avx512bf16", &avx512bf16::forms, has_bfloat16()},
#endif
      {"avx512vnni", &avx512vnni::forms, has_vnni()},
      {"avx512", &avx512::forms, has_avx512()},
      {"avx2", &avx2::forms, has_avx2()},
      {nullptr, nullptr, false}};
  return all;
}

struct Context {
  Threads* threads;
  const Forms* forms;
  float* memory = nullptr;
  int64_t numbers = 0;

  float* room(int64_t needed) {
    if (needed > numbers) {
      free(memory);
      memory = (float*)aligned_alloc(64, (needed * sizeof(float) + 63) / 64 * 64);
      numbers = memory ? needed : 0;
    }
    return memory;
  }
};

}  // namespace
}  // namespace octavo

using namespace octavo;

// Of the sources that the library was built from.
OCTAVO_EXPORT const char* octavo_stamp() { return OCTAVO_STAMP; }

// Name of the instruction set with this number, best first, that runs here; null behind the last.
OCTAVO_EXPORT const char* octavo_isa(int number) {
  for (const Isa* isa = isas(); isa->name; isa++)
    if (isa->runs && number-- == 0) return isa->name;
  return nullptr;
}

// Why AMX is not among them although the processor has it; else null.
OCTAVO_EXPORT const char* octavo_without_amx() { return without_amx(); }

// Null when the processor does not have this instruction set, or there is no memory or thread to be had.
OCTAVO_EXPORT void* octavo_open(const char* name, int thread_count) {
  for (const Isa* isa = isas(); isa->name; isa++) {
    if (strcmp(isa->name, name) || !isa->runs) continue;
    Context* context = new (std::nothrow) Context;
    Threads* threads = context ? Threads::open(thread_count, isa->forms->put_back) : nullptr;
    if (!threads) {
      delete context;
      return nullptr;
    }
    context->threads = threads;
    context->forms = isa->forms;
    return context;
  }
  return nullptr;
}

OCTAVO_EXPORT void octavo_close(void* context) {
  Context* c = (Context*)context;
  delete c->threads;
  free(c->memory);
  delete c;
}

// Of the functions below those that can run out of memory return whether they did not.

OCTAVO_EXPORT int octavo_decoder_step(void* context, const Model* m, const Batch* b, float* logits) {
  Context* c = (Context*)context;
  float* memory = c->room(c->forms->step_room(*m, *b));
  if (!memory || !c->threads->reserve(c->forms->step_scratch(*m, *b))) return 0;
  c->threads->begin_step();
  c->forms->decoder_step(*c->threads, *m, *b, logits, memory);
  c->threads->end_step();
  return 1;
}

OCTAVO_EXPORT int octavo_sample(void* context, const float* logits, int64_t rows, int64_t width, const Draws* d,
                                int64_t* tokens) {
  Context* c = (Context*)context;
  if (d && !c->threads->reserve(c->forms->sample_scratch(width))) return 0;
  c->threads->begin_step();
  c->forms->sample(*c->threads, logits, rows, width, d, tokens);
  c->threads->end_step();
  return 1;
}

// norm: the weight of the norm that x goes through first, with this eps; null: none.
OCTAVO_EXPORT int octavo_linear(void* context, const Linear* l, const float* x, const float* norm, float eps, float* y,
                                int64_t rows, int add) {
  Context* c = (Context*)context;
  float* memory = c->room(c->forms->linear_room(*l, rows) + 1);
  if (!memory || !c->threads->reserve(c->forms->linear_scratch(*l))) return 0;
  c->threads->begin_step();
  c->forms->linear(*c->threads, *l, x, norm, eps, y, rows, add, memory);
  c->threads->end_step();
  return 1;
}

OCTAVO_EXPORT int octavo_gated_linear(void* context, const Linear* l, const float* x, float* y, int64_t rows) {
  Context* c = (Context*)context;
  float* memory = c->room(c->forms->linear_room(*l, rows) + 1);
  if (!memory || !c->threads->reserve(c->forms->linear_scratch(*l))) return 0;
  c->threads->begin_step();
  c->forms->gated_linear(*c->threads, *l, x, y, rows, memory);
  c->threads->end_step();
  return 1;
}

OCTAVO_EXPORT void octavo_rms_norm(void* context, const float* x, const float* weight, float eps, float* y,
                                   int64_t rows, int64_t width) {
  ((Context*)context)->forms->rms_norm(x, weight, eps, y, rows, width);
}

OCTAVO_EXPORT void octavo_silu_mul(void* context, float* gate_up, int64_t rows, int64_t width) {
  ((Context*)context)->forms->silu_mul(gate_up, rows, width);
}

OCTAVO_EXPORT void octavo_rotary_kv(void* context, const Attention* s, const Batch* b, const Layer* layer, float eps,
                                    const float* cos, const float* sin, float* qkv) {
  Context* c = (Context*)context;
  c->threads->begin_step();
  c->forms->rotary_kv(*c->threads, *s, *b, *layer, eps, cos, sin, qkv);
  c->threads->end_step();
}

OCTAVO_EXPORT int octavo_paged_attention(void* context, const Attention* s, const Batch* b, const float* q,
                                         const void* keys, const void* values, float* out) {
  Context* c = (Context*)context;
  float* memory = c->room(c->forms->attention_room(*s, *b));
  if (!memory || !c->threads->reserve(c->forms->attention_scratch(*s))) return 0;
  c->threads->begin_step();
  c->forms->paged_attention(*c->threads, *s, *b, q, keys, values, out, memory);
  c->threads->end_step();
  return 1;
}
