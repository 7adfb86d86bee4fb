// Drawing a token from a row of logits, as kernels/sample_tokens.py specifies it.
namespace citybus {
namespace CITYBUS_ISA {

constexpr double kGreedyBelow = 1e-5;

struct Row {
  const float* logits;
  int64_t size;
  float peak;
  float temperature;

  int64_t chunks() const { return (size + kChunk - 1) / kChunk; }
  int64_t end_of_chunk(int64_t chunk) const { return std::min(size, (chunk + 1) * kChunk); }
};

// Logits from `first` on; what is beyond the row is impossible.
inline Lanes cleaned(const Row& row, int64_t first) {
  if (first + kLanes <= row.size) return cleaned(load(row.logits + first));
  float rest[kLanes];
  store(rest, fill(-INFINITY));
  std::memcpy(rest, row.logits + first, size_t(row.size - first) * sizeof(float));
  return cleaned(load(rest));
}

// Unnormalised probabilities; the likeliest token has 1, and those below `least` 0.
inline Lanes weights_of(const Row& row, Lanes logits, float least) {
  Lanes power = divide(subtract(logits, fill(row.peak)), fill(row.temperature));
  Lanes weights = where_at_least(power, fill(-87.0f), exponential(power));
  return where_at_least(weights, fill(least), weights);
}

// The greatest logit; `peaks` has 16 of every chunk, of each lane one.
inline float find_peaks(const Row& row, float* peaks) {
  Lanes greatest = fill(-INFINITY);
  for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
    Lanes of_chunk = fill(-INFINITY);
    for (int64_t i = chunk * kChunk; i < row.end_of_chunk(chunk); i += kLanes)
      of_chunk = maximum(cleaned(row, i), of_chunk);
    store(peaks + chunk * kLanes, of_chunk);
    greatest = maximum(of_chunk, greatest);
  }
  return largest(greatest);
}

// The lowest id of those that have the greatest logit.
inline int64_t first_of_likeliest(const Row& row, const float* peaks) {
  Lanes peak = fill(row.peak);
  int64_t i = 0;
  while (!at_least(load(peaks + i), peak)) i += kLanes;
  i = i / kLanes * kChunk;
  unsigned found;
  while (!(found = at_least(cleaned(row, i), peak))) i += kLanes;
  return i + __builtin_ctz(found);
}

// The tokens from `first` to before `end` whose logits are at least `bound`, and possible.
inline Candidates gather(const Row& row, int64_t first, int64_t end, float bound, const SamplingScratch& scratch) {
  Candidates found{scratch.logits, scratch.weights, scratch.ids, 0};
  Lanes bounds = fill(std::max(bound, -FLT_MAX));
  float lanes[kLanes];
  for (int64_t i = first; i < end; i += kLanes) {
    Lanes x = cleaned(row, i);
    unsigned wanted = at_least(x, bounds);
    if (wanted) store(lanes, x);
    for (; wanted; wanted &= wanted - 1) {
      int lane = __builtin_ctz(wanted);
      found.logits[found.count] = lanes[lane];
      found.ids[found.count++] = int32_t(i + lane);
    }
  }
  for (int64_t i = 0; i < found.count; i += kLanes)
    store(found.weights + i, weights_of(row, load(found.logits + i), 0.0f));
  return found;
}

// Sums of the weights of every chunk, and of all of them.
inline double sum_chunks(const Row& row, float least, double* masses) {
  double mass = 0;
  for (int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
    Sums sums = no_sums();
    for (int64_t i = chunk * kChunk; i < row.end_of_chunk(chunk); i += kLanes)
      sums = add(sums, weights_of(row, cleaned(row, i), least));
    masses[chunk] = total(sums);
    mass += masses[chunk];
  }
  return mass;
}

// The top_k-th greatest of peaks of distinct logits is reached by at least as many logits as top_k says.
inline Candidates likeliest(const Row& row, int64_t top_k, const SamplingScratch& scratch) {
  auto one = [](int32_t) { return 1.0; };
  int64_t peaks = row.chunks() * kLanes;
  float bound = top_k <= peaks ? find_cut(scratch.peaks, peaks, double(top_k), scratch, one).logit : -FLT_MAX;
  Candidates found = gather(row, 0, row.size, bound, scratch);
  if (found.count > top_k) cut(found, find_cut(found.logits, found.count, double(top_k), scratch, one));
  return found;
}

// Tokens whose weights are so small that all tokens of less would not have 1 - top_p are not needed to reach top_p.
inline float nucleus_bound(const Row& row, double top_p, double mass) {
  constexpr double kRounding = 0.01;
  double power = std::log((1 - top_p) * mass / double(row.size)) - kRounding;
  return float(double(row.peak) + double(row.temperature) * power);
}

inline void keep_nucleus(Candidates& found, double mass, const SamplingScratch& scratch) {
  cut(found, find_cut(found.logits, found.count, mass, scratch, [&](int32_t i) { return double(found.weights[i]); }));
}

inline double mass_of(const Candidates& found, float least) {
  double mass = 0;
  for (int64_t i = 0; i < found.count; ++i) mass += found.weights[i] >= least ? found.weights[i] : 0.0f;
  return mass;
}

// Where the cumulative distribution, which is `mass` before the first, passes `target`.
inline int64_t invert(const Candidates& found, double mass, double target, float least) {
  int64_t token = 0;
  for (int64_t i = 0; i < found.count && mass <= target; ++i) {
    if (found.weights[i] < least || found.weights[i] == 0) continue;
    mass += found.weights[i];
    token = found.ids[i];
  }
  return token;
}

inline double target_of(double number, double mass) { return std::min(number * mass, std::nextafter(mass, 0.0)); }

// Of all tokens: only those of the chunk that the draw falls into are looked at one by one.
inline int64_t draw_of_all(const Row& row, const Draw& draw, const SamplingScratch& scratch) {
  float least = float(draw.min_p);
  double target = target_of(draw.number, sum_chunks(row, least, scratch.masses)), mass = 0;
  int64_t chunk = 0;
  while (chunk + 1 < row.chunks() && mass + scratch.masses[chunk] <= target) mass += scratch.masses[chunk++];
  return invert(gather(row, chunk * kChunk, row.end_of_chunk(chunk), -FLT_MAX, scratch), mass, target, least);
}

int64_t sample(const float* logits, int64_t size, const Draw& draw, const SamplingScratch& scratch) {
  Row row{logits, size, 0.0f, float(draw.temperature)};
  row.peak = find_peaks(row, scratch.peaks);
  if (!(draw.temperature > kGreedyBelow) || row.peak == -INFINITY) return first_of_likeliest(row, scratch.peaks);
  bool has_top_k = 0 < draw.top_k && draw.top_k < size, has_top_p = draw.top_p < 1;
  if (!has_top_k && !has_top_p) return draw_of_all(row, draw, scratch);
  Candidates found;
  if (has_top_k) {
    found = likeliest(row, draw.top_k, scratch);
    if (has_top_p) keep_nucleus(found, draw.top_p * mass_of(found, 0.0f), scratch);
  } else {
    double mass = sum_chunks(row, 0.0f, scratch.masses);
    found = gather(row, 0, size, nucleus_bound(row, draw.top_p, mass), scratch);
    keep_nucleus(found, draw.top_p * mass, scratch);
  }
  float least = float(draw.min_p);
  return invert(found, 0, target_of(draw.number, mass_of(found, least)), least);
}

}  // namespace CITYBUS_ISA
}  // namespace citybus
