// Sampling: rows are shared among threads.
#pragma once

#include "api.h"
#include "buffer.h"
#include "operations.h"
#include "threads.h"

namespace citybus {

class Sampler {
 public:
  // Throws std::bad_alloc.
  void sample(const citybus_draws& draws, const Operations& operations, ThreadPool& threads);

 private:
  void reserve(int64_t vocab_size, int threads);
  SamplingScratch scratch_of(int thread, int64_t room) const;

  Buffer<double> sums_;
  Buffer<float> numbers_;
  Buffer<int32_t> indexes_;
};

}  // namespace citybus
