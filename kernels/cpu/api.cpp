#include "api.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <system_error>

#include "llama.h"
#include "sampler.h"

struct citybus_threads {
  const citybus::Operations& operations;
  citybus::ThreadPool pool;
  citybus::Sampler sampler;
};

struct citybus_llama {
  citybus::Llama model;
};

namespace {

template <typename Body>
int guarded(Body body) {
  try {
    return body() ? CITYBUS_OK : CITYBUS_INVALID;
  } catch (const std::bad_alloc&) {
    return CITYBUS_NO_MEMORY;
  } catch (const std::system_error&) {
    return CITYBUS_NO_THREADS;
  }
}

// AMX with BF16, whose tiles Linux gives to a process that asks for them (Documentation/arch/x86/xstate.rst).
bool have_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kAmxBf16) && (d & kAmxTile) &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

const citybus::Operations& operations_of(int isa) {
  switch (isa) {
    case CITYBUS_AMX_BF16: return citybus::amx_operations();
    case CITYBUS_AVX512_BF16: return citybus::avx512_operations();
    default: return citybus::avx2_operations();
  }
}

bool is_negative(int64_t number) { return number < 0; }

}  // namespace

int citybus_interface(void) { return CITYBUS_INTERFACE; }

int citybus_best_isa(void) {
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    return have_amx() ? CITYBUS_AMX_BF16 : CITYBUS_AVX512_BF16;
  return avx2 ? CITYBUS_AVX2 : CITYBUS_NONE;
}

citybus_threads* citybus_threads_create(int isa, int num_threads, int* status) {
  citybus_threads* threads = nullptr;
  *status = guarded([&] {
    if (isa <= CITYBUS_NONE || isa > citybus_best_isa() || num_threads < 1) return false;
    threads = new citybus_threads{operations_of(isa), citybus::ThreadPool(num_threads), {}};
    return true;
  });
  return threads;
}

void citybus_threads_destroy(citybus_threads* threads) { delete threads; }

int citybus_sample_tokens(citybus_threads* threads, const citybus_draws* draws) {
  return guarded([&] {
    if (draws->vocab_size < 1) return false;
    threads->sampler.sample(*draws, threads->operations, threads->pool);
    return true;
  });
}

citybus_llama* citybus_llama_create(const citybus_shape* shape, citybus_threads* threads, int* status) {
  citybus_llama* llama = nullptr;
  *status = guarded([&] {
    if (shape->head_dim % citybus::kLanes) return false;
    if (shape->soft_cap < 0 || std::any_of(shape->windows, shape->windows + shape->num_layers, is_negative))
      return false;
    llama = new citybus_llama{{*shape, threads->operations, threads->pool}};
    return true;
  });
  return llama;
}

int64_t citybus_llama_weights_bytes(const citybus_llama* llama) { return llama->model.weights_bytes(); }

int citybus_llama_set_weight(citybus_llama* llama, int weight, int64_t layer, const uint16_t* data) {
  return guarded([&] { return llama->model.set_weight(citybus_weight(weight), layer, data); });
}

int citybus_llama_forward(citybus_llama* llama, const citybus_step* step) {
  return guarded([&] { return llama->model.forward(*step); });
}

void citybus_llama_destroy(citybus_llama* llama) { delete llama; }

void citybus_prefer_huge_pages(void* start, int64_t bytes) { citybus::prefer_huge_pages(start, size_t(bytes)); }
