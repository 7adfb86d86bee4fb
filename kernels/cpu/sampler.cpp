#include "sampler.h"

namespace citybus {
namespace {

// As kernels/philox.py: the first half of Philox-4x32-10's output as a number in [0, 1) of 53 bits.
double uniform(uint64_t seed, uint64_t number) {
  uint32_t counter[4] = {uint32_t(number), uint32_t(number >> 32), 0, 0};
  uint32_t key[2] = {uint32_t(seed), uint32_t(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    uint64_t first = uint64_t(counter[0]) * 0xD2511F53u, second = uint64_t(counter[2]) * 0xCD9E8D57u;
    counter[0] = uint32_t(second >> 32) ^ counter[1] ^ key[0];
    counter[1] = uint32_t(second);
    counter[2] = uint32_t(first >> 32) ^ counter[3] ^ key[1];
    counter[3] = uint32_t(first);
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return ((counter[0] >> 5) * 67108864.0 + (counter[1] >> 6)) * 0x1p-53;
}

}  // namespace

void Sampler::sample(const citybus_draws& draws, const Operations& operations, ThreadPool& threads) {
  reserve(draws.vocab_size, threads.size());
  threads.run(uint32_t(draws.num_rows), [&](uint32_t row, int thread) {
    double number = uniform(uint64_t(draws.seeds[row]), uint64_t(draws.counters[row]));
    Draw draw{draws.temperatures[row], draws.top_ks[row], draws.top_ps[row], draws.min_ps[row], number};
    draws.tokens[row] = operations.sample(draws.logits + row * draws.vocab_size, draws.vocab_size, draw,
                                          scratch_of(thread, sampling_room(draws.vocab_size)));
  });
}

void Sampler::reserve(int64_t vocab_size, int threads) {
  size_t room = size_t(sampling_room(vocab_size)), count = size_t(threads);
  sums_.reserve(count * (size_t(kBins) + room / kChunk));
  numbers_.reserve(count * 3 * room);
  indexes_.reserve(count * 2 * room);
}

SamplingScratch Sampler::scratch_of(int thread, int64_t room) const {
  double* sums = sums_.data() + thread * (kBins + room / kChunk);
  float* numbers = numbers_.data() + thread * 3 * room;
  int32_t* indexes = indexes_.data() + thread * 2 * room;
  return {sums, sums + kBins, numbers, numbers + room, numbers + 2 * room, indexes, indexes + room};
}

}  // namespace citybus
