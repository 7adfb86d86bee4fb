// Where the likeliest of some tokens end, without sorting them.
namespace citybus {
namespace CITYBUS_ISA {

// Some tokens of a row in the order of their ids, in the memory of a thread.
struct Candidates {
  float* logits;
  float* weights;
  int32_t* ids;
  int64_t count;
};

// The likeliest are those above `logit`, and the first `ties` of those at it.
struct Cut {
  float logit;
  int64_t ties;
};

// Integers that compare as the numbers do. There is no NaN and no -0.
inline uint32_t order(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// How many of the likeliest it takes to reach `wanted`, where number i adds `measure(i)`; all, where all are too few.
// Up to three times a histogram over some bits, the highest first, of those that are equal in the bits before:
// `members`.
template <typename Measure>
Cut find_cut(const float* logits, int64_t count, double wanted, const SamplingScratch& scratch, Measure measure) {
  double above = 0;
  int32_t* members = scratch.members;
  for (int64_t i = 0; i < count; ++i) members[i] = int32_t(i);
  auto all_equal = [&] {
    int64_t i = 1;
    while (i < count && logits[members[i]] == logits[members[0]]) ++i;
    return i == count;
  };
  for (int shift : {21, 10, 0}) {
    if (all_equal()) break;
    auto bin_of = [&](int32_t member) { return order(logits[member]) >> shift & (kBins - 1); };
    std::memset(scratch.bins, 0, kBins * sizeof(double));
    for (int64_t i = 0; i < count; ++i) scratch.bins[bin_of(members[i])] += measure(members[i]);
    int64_t found = -1;
    double before = above;
    for (int64_t bin = kBins - 1; bin >= 0 && (found < 0 || above < wanted); --bin) {
      if (scratch.bins[bin] == 0) continue;
      found = bin;
      before = above;
      above += scratch.bins[bin];
    }
    above = before;
    int64_t left = 0;
    for (int64_t i = 0; i < count; ++i) {
      members[left] = members[i];
      left += bin_of(members[i]) == found;
    }
    count = left;
  }
  double ties = std::ceil((wanted - above) / measure(members[0]));
  return {logits[members[0]], int64_t(ties < 1 ? 1 : ties < double(count) ? ties : double(count))};
}

// Only the likeliest stay.
inline void cut(Candidates& candidates, Cut cut) {
  int64_t kept = 0;
  for (int64_t i = 0; i < candidates.count; ++i) {
    float logit = candidates.logits[i];
    if (logit < cut.logit || (logit == cut.logit && cut.ties-- <= 0)) continue;
    candidates.logits[kept] = logit;
    candidates.weights[kept] = candidates.weights[i];
    candidates.ids[kept++] = candidates.ids[i];
  }
  candidates.count = kept;
}

}  // namespace CITYBUS_ISA
}  // namespace citybus
