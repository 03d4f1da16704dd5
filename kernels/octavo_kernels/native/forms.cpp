// Compiled once for each instruction set: build.py passes its flags, and its name as OCTAVO_ISA.
#include "forms.h"

#include "../decoder_step/native.h"
#include "../sampling/native.h"

namespace octavo {
namespace OCTAVO_ISA {

extern const Forms forms = {
#ifdef __AMX_TILE__
    release_tiles,
#else
    nullptr,
#endif
    step_scratch,
    attention_scratch,
    attention_room,
    linear_scratch,
    linear_room,
    step_room,
    decoder_step,
    sample_scratch,
    sample,
    [](Threads& threads, const Linear& l, const float* x, const float* norm, float eps, float* y, int64_t rows, bool add,
       float* memory) { linear(threads, l, {x, l.in, norm, eps}, {y, l.out, add}, rows, memory);
    },
    [](Threads& threads, const Linear& l, const float* x, float* y, int64_t rows, float* memory) {
      const Source gated = gated_linear(threads, l, {x, l.in}, y, l.out, rows, memory);
      for (int64_t row = 0; row < rows; row++) gated.row(row, l.out / 2, y + row * l.out);
    },
    [](const float* x, const float* weight, float eps, float* y, int64_t rows, int64_t width) {
      for (int64_t row = 0; row < rows; row++) rms_norm(x + row * width, weight, eps, y + row * width, width);
    },
    [](float* gate_up, int64_t rows, int64_t width) {
      for (int64_t row = 0; row < rows; row++)
        silu_mul(gate_up + row * 2 * width, gate_up + row * 2 * width + width, gate_up + row * 2 * width, width);
    },
    rotary_rows,
    [](Threads& threads, const Attention& s, const Batch& b, const float* q, const void* keys, const void* values,
       float* out, float* memory) {
      paged_attention(threads, s, b, q, s.heads * s.head_dim, keys, values, out, memory);
    },
};

}  // namespace OCTAVO_ISA
}  // namespace octavo
