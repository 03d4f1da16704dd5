// One token for each row of logits. README.md has the order of the filters, reference.py the truth.
#pragma once

#include "../native/simd.h"
#include "../native/threads.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int64_t kNotFinite = -1;
constexpr float kMinTemperature = 1e-5f;  // colder is greedy in all but name
constexpr int64_t kStretch = 256;         // tokens whose likelihoods are summed up together
constexpr int64_t kFewNumbers = 1 << 19;  // below which to look for the largest is not worth waking a thread

struct Largest {
  float value;  // NaN where the row holds one
  int64_t at;   // the first of equals
};

inline Largest largest(const float* row, int64_t width) {
  typedef typename Types<kLanes>::Int Int;
  Vec<kLanes> values = splat<kLanes>(-__builtin_inff());
  Int places{}, nan{}, place{};
  for (int lane = 0; lane < kLanes; lane++) place[lane] = lane;
  const int64_t whole = width / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes, place += kLanes) {
    const Vec<kLanes> x = load<kLanes>(row + i);
    const Int better = x > values;
    nan |= x != x;
    values = better ? x : values;
    places = better ? place : places;
  }
  Largest best{values[0], places[0]};
  bool has_nan = nan[0];
  const auto take = [&](float value, int64_t at) {
    if (value > best.value || (value == best.value && at < best.at)) best = {value, at};
  };
  for (int lane = 1; lane < kLanes; lane++) {
    has_nan = has_nan || nan[lane];
    take(values[lane], places[lane]);
  }
  for (int64_t i = whole; i < width; i++) {
    has_nan = has_nan || row[i] != row[i];
    take(row[i], i);
  }
  if (has_nan) best.value = __builtin_nanf("");
  return best;
}

// e^((x - largest) / temperature): 1 for the most likely token. Filled up with zeros to whole stretches.
inline void likelihoods(const float* row, int64_t width, float largest, float temperature, float* to) {
  const auto likelihood = [&](Vec<kLanes> x) {
    const Vec<kLanes> exponent = (x - largest) / temperature;
    return exponent < -87.0f ? Vec<kLanes>{} : exponential<kLanes>(exponent);
  };
  const int64_t whole = width / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) store<kLanes>(to + i, likelihood(load<kLanes>(row + i)));
  float rest[kLanes];
  for (int lane = 0; lane < kLanes; lane++) rest[lane] = whole + lane < width ? row[whole + lane] : -__builtin_inff();
  for (int64_t i = whole; i < divided_up(width, kStretch) * kStretch; i += kLanes) {
    store<kLanes>(to + i, likelihood(load<kLanes>(rest)));
    for (float& x : rest) x = -__builtin_inff();
  }
}

inline double stretch_mass(const float* stretch) {
  double sums[8] = {};
  for (int64_t i = 0; i < kStretch; i += 8)
    for (int j = 0; j < 8; j++) sums[j] += (double)stretch[i + j];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

inline double mass_of(const float* likelihood, int64_t width) {
  double mass = 0;
  for (int64_t i = 0; i < width; i += kStretch) mass += stretch_mass(likelihood + i);
  return mass;
}

inline void drop_below(float* likelihood, int64_t width, float bound) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const Vec<kLanes> x = load<kLanes>(likelihood + i);
    store<kLanes>(likelihood + i, x < bound ? Vec<kLanes>{} : x);
  }
}

// The largest bound that leaves as many tokens as `count`, and likelihoods that sum up to `mass`; 0 when none does.
//
// Nothing is sorted. A likelihood is a float in (0, 1], so its bits are in the same order as its value and the two
// highest are zero. Tokens are counted by the next ten; the part is found in which the bound must lie; of the tokens in
// it the next ten bits tell, then the last ten:
//
//     bits    00 [ 10: counted for all ][ 10: for those of that part ][ 10 ]
inline float bound_for(const float* likelihood, int64_t width, int64_t count, double mass) {
  struct Part {
    double mass;
    int64_t count;
  } parts[1024];
  double heavier = 0;   // what lies above the part
  int64_t likelier = 0;
  uint32_t prefix = 0;
  for (int shift = 20; shift >= 0; shift -= 10) {
    for (Part& part : parts) part = {0, 0};
    for (int64_t i = 0; i < width; i++) {
      uint32_t bits;
      memcpy(&bits, likelihood + i, sizeof bits);
      if (!bits || bits >> shift >> 10 != prefix) continue;
      Part& part = parts[bits >> shift & 1023];
      part.mass += (double)likelihood[i];
      part.count++;
    }
    int found = 1023;
    while (found >= 0 && (likelier + parts[found].count < count || heavier + parts[found].mass < mass)) {
      likelier += parts[found].count;
      heavier += parts[found--].mass;
    }
    if (found < 0) return 0;  // also where rounding has lost a trifle of the mass
    prefix = prefix << 10 | (uint32_t)found;
  }
  float bound;
  memcpy(&bound, &prefix, sizeof bound);
  return bound;
}

// The first token at which the mass, summed up in the order of tokens, exceeds this share of all.
inline int64_t token_at(const float* likelihood, int64_t width, double share) {
  const double target = share * mass_of(likelihood, width);
  double mass = 0;
  int64_t start = 0;
  for (; start + kStretch < width; start += kStretch) {
    const double next = mass + stretch_mass(likelihood + start);
    if (next > target) break;
    mass = next;
  }
  int64_t token = start;  // the last likely one of the stretch, where rounding leaves none beyond the target
  for (int64_t i = start; i < start + kStretch; i++) {
    if (!likelihood[i]) continue;
    token = i;
    mass += (double)likelihood[i];
    if (mass > target) break;
  }
  return token;
}

inline int64_t drawn_token(const Draws& d, int64_t row, const float* logits, int64_t width, float largest,
                           float* likelihood) {
  const float temperature = d.temperature[row] > kMinTemperature ? d.temperature[row] : kMinTemperature;
  const int64_t padded = divided_up(width, kStretch) * kStretch;
  likelihoods(logits, width, largest, temperature, likelihood);
  if (d.min_p[row] > 0) drop_below(likelihood, padded, d.min_p[row]);
  if (d.top_k[row] > 0 && d.top_k[row] < width)
    drop_below(likelihood, padded, bound_for(likelihood, padded, d.top_k[row], 0));
  if (d.top_p[row] < 1)
    drop_below(likelihood, padded, bound_for(likelihood, padded, 1, (double)d.top_p[row] * mass_of(likelihood, padded)));
  return token_at(likelihood, padded, d.uniform[row]);
}

// Bytes of each thread's own memory.
inline int64_t sample_scratch(int64_t width) { return divided_up(width, kStretch) * kStretch * sizeof(float); }

// d: null where all rows are greedy.
inline void sample(Threads& threads, const float* logits, int64_t rows, int64_t width, const Draws* d,
                   int64_t* tokens) {
  const auto one = [&](int64_t row, int thread) {
    const float* of_row = logits + row * width;
    const Largest best = largest(of_row, width);
    if (!__builtin_isfinite(best.value))
      tokens[row] = kNotFinite;
    else if (!d || d->temperature[row] == 0)
      tokens[row] = best.at;
    else
      tokens[row] = drawn_token(*d, row, of_row, width, best.value, threads.scratch(thread));
  };
  if (!d && rows * width < kFewNumbers)
    for (int64_t row = 0; row < rows; row++) one(row, 0);
  else
    threads.run(rows, one);
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
