#include "threads.h"

#include <immintrin.h>

namespace citybus {
namespace {

constexpr int kSpins = 3000;  // some 50 us: longer than the gaps within a step, shorter than those between steps

bool has_piece(uint64_t ticket) { return uint32_t(ticket) < uint32_t(ticket >> 32); }

}  // namespace

ThreadPool::ThreadPool(int size) {
  try {
    for (int thread = 1; thread < size; ++thread) workers_.emplace_back([this, thread] { work(thread); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_.store(true);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void ThreadPool::start(uint32_t count, Function function, void* context) {
  if (workers_.empty() || count <= 1) {
    for (uint32_t piece = 0; piece < count; ++piece) function(context, piece, 0);
    return;
  }
  function_ = function;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  ticket_.store(uint64_t(count) << 32);
  if (sleepers_.load() > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  while (take_piece(0)) {
  }
  wait_for_the_others(count);
}

// Whoever spins for longer on a busy machine takes time from the thread that it waits for.
void ThreadPool::wait_for_the_others(uint32_t count) {
  for (int spins = 0; spins < kSpins; ++spins) {
    if (done_.load() == count) return;
    _mm_pause();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  caller_sleeps_.store(true);
  finished_.wait(lock, [this, count] { return done_.load() == count; });
  caller_sleeps_.store(false);
}

bool ThreadPool::take_piece(int thread) {
  uint64_t ticket = ticket_.load();
  while (has_piece(ticket)) {
    if (ticket_.compare_exchange_weak(ticket, ticket + 1)) {
      function_(context_, uint32_t(ticket), thread);
      if (done_.fetch_add(1) + 1 == uint32_t(ticket >> 32) && caller_sleeps_.load()) {
        std::lock_guard<std::mutex> lock(mutex_);
        finished_.notify_one();
      }
      return true;
    }
  }
  return false;
}

// False where the pool ends.
bool ThreadPool::wait_for_work() {
  for (int spins = 0; spins < kSpins; ++spins) {
    if (has_piece(ticket_.load(std::memory_order_relaxed))) return true;
    _mm_pause();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  sleepers_.fetch_add(1);
  wake_.wait(lock, [this] { return stopping_.load() || has_piece(ticket_.load()); });
  sleepers_.fetch_sub(1);
  return !stopping_.load();
}

void ThreadPool::work(int thread) {
  while (wait_for_work()) {
    while (take_piece(thread)) {
    }
  }
}

}  // namespace citybus
