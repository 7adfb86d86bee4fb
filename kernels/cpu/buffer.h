// Memory on huge pages where the system has them.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace citybus {

constexpr size_t kHugePage = size_t(2) << 20;

// Ask for huge pages in the pages that lie within [start, start + bytes). A hint: failing is no error.
inline void prefer_huge_pages(void* start, size_t bytes) {
#ifdef MADV_HUGEPAGE
  size_t first = (reinterpret_cast<size_t>(start) + 4095) & ~size_t(4095);
  size_t last = (reinterpret_cast<size_t>(start) + bytes) & ~size_t(4095);
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
  (void)start, (void)bytes;
#endif
}

// Numbers of type T, all zero at first. Throws std::bad_alloc.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t count) { reserve(count); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  // Room for `count` numbers; what was held is lost, and all are zero, where it has to grow.
  T* reserve(size_t count) {
    if (count <= count_) return data_;
    std::free(data_);
    data_ = nullptr;
    count_ = 0;
    size_t align = count * sizeof(T) < kHugePage ? 64 : kHugePage;
    size_t bytes = (count * sizeof(T) + align - 1) / align * align;
    data_ = static_cast<T*>(std::aligned_alloc(align, bytes));
    if (data_ == nullptr) throw std::bad_alloc();
    if (align == kHugePage) prefer_huge_pages(data_, bytes);
    std::memset(data_, 0, bytes);
    count_ = count;
    return data_;
  }

  T* data() const { return data_; }
  size_t bytes() const { return count_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace citybus
