// A pool of threads that live as long as their models: the pieces of a job are taken by whoever is free.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace citybus {

class ThreadPool {
 public:
  // `size` threads compute, of which the caller of `run` is one. Throws std::system_error.
  explicit ThreadPool(int size);
  ~ThreadPool();

  int size() const { return int(workers_.size()) + 1; }

  // Call `body(piece, thread)` for every piece of 0 .. count - 1, from threads 0 .. size - 1 at once; returns when all
  // pieces are done. Bodies must not throw. One caller at a time.
  template <typename Body>
  void run(uint32_t count, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    start(count, [](void* context, uint32_t piece, int thread) { (*static_cast<Plain*>(context))(piece, thread); },
          const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Function = void (*)(void* context, uint32_t piece, int thread);

  void start(uint32_t count, Function function, void* context);
  void wait_for_the_others(uint32_t count);
  bool take_piece(int thread);
  bool wait_for_work();
  void work(int thread);
  void stop();

  // Number of pieces in the upper half, the next one to take in the lower half. The job's fields below change only
  // when every piece is done, so whoever has taken a piece can read them.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<uint32_t> done_{0};
  Function function_ = nullptr;
  void* context_ = nullptr;

  std::atomic<int> sleepers_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;      // of workers: there is a job
  std::condition_variable finished_;  // of the caller: it is done
  std::vector<std::thread> workers_;
};

}  // namespace citybus
