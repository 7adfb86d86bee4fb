// How weights, keys and values lie in memory. Numbers are in pairs along the dimension that is summed over.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bf16.h"

namespace citybus {

constexpr int kLanes = 16;           // float32 numbers, or pairs of bf16 ones, in 64 bytes
constexpr int kPanels = 2;           // panels of 16 columns that are computed together: a group
constexpr int kColumns = kLanes * kPanels;
constexpr int kGroupTokens = 16;     // tokens of a group of keys and values
constexpr int kTilePairs = 16;       // pairs that a row of a product is rounded up to

constexpr int64_t round_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// A weight [columns, size] as bf16 [groups][pairs][panels][16 columns][2]; what is beyond its edges is zero.
struct Matrix {
  bf16* data;
  int64_t groups;
  int64_t pairs;

  bf16* group(int64_t index) const { return data + index * pairs * kColumns * 2; }
  int64_t columns() const { return groups * kColumns; }

  // The pair of numbers 2 * `pair` and 2 * `pair` + 1 of column `column`.
  bf16* at(int64_t column, int64_t pair) const {
    return group(column / kColumns) + (pair * kColumns + column % kColumns) * 2;
  }

  static int64_t numbers(int64_t columns, int64_t size) {
    return round_up(columns, kColumns) * round_up(size, 2 * kTilePairs);
  }
};

// Keys or values of one layer: bf16 [groups of 16 tokens][kv_heads][16 * head_dim]. Of a group and a head, keys are
// [head_dim / 2][16 tokens][2] and values [16 / 2][head_dim][2]. Slot s is token s % 16 of group s / 16.
struct KvShape {
  int64_t kv_heads;
  int64_t head_dim;

  int64_t offset(int64_t group, int64_t head) const { return (group * kv_heads + head) * kGroupTokens * head_dim; }
};

}  // namespace citybus
