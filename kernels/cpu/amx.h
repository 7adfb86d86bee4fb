// Tiles of AMX: registers of 16 rows of 64 bytes, of which a product of two adds to a third.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace citybus {

// The shapes of a thread's eight tiles. While there are some, switching threads costs more: they last as long as this.
class Tiles {
 public:
  struct Shape {
    uint8_t rows;
    uint16_t row_bytes;
  };

  explicit Tiles(const Shape (&shapes)[8]) {
    alignas(64) struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int i = 0; i < 8; ++i) config.row_bytes[i] = shapes[i].row_bytes, config.rows[i] = shapes[i].rows;
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

}  // namespace citybus
