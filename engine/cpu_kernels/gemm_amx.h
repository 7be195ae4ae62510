// int8 tiles on AMX: 16 rows, in two planes, times one panel of 32 columns. Included by gemm_i8.h; the same packed
// weights, the same exact integers. Without AMX at compile time, or without the kernel's permission, it reports "not
// ready".
#pragma once

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define PS_AMX 1
#endif

namespace ps {

constexpr int64_t kAmxTile = 16;  // rows of one tile
constexpr int64_t kAmxRows = 5;   // fewer rows run faster on VNNI

#ifdef PS_AMX

// Linux asks each process once for permission to use the tile registers.
static bool amx_ready() {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    static const bool ready = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    return ready;
}

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// Configures this thread's tiles for its lifetime, then puts back what another library had configured.
class AmxSession {
  public:
    explicit AmxSession(bool wanted) : active_(wanted && amx_ready()) {
        if (!active_) return;
        _tile_storeconfig(&before_);
        TileConfig config;
        for (int t = 0; t < 8; ++t) {
            config.row_bytes[t] = 64;
            config.rows[t] = 16;
        }
        _tile_loadconfig(&config);
    }
    ~AmxSession() {
        if (!active_) return;
        if (before_.palette == 0) {
            _tile_release();
        } else {
            _tile_loadconfig(&before_);
        }
    }
    AmxSession(const AmxSession&) = delete;
    AmxSession& operator=(const AmxSession&) = delete;

  private:
    const bool active_;
    TileConfig before_;
};

// `rows` of 16 rows from `row` on. The caller's buffer must hold whole tiles: surplus rows are computed, not stored.
static void tile_amx(const RowsI8& a, int64_t row, int64_t rows, const MatrixI8& w, int64_t p, const Output& to) {
    static_assert(NR == 32 && kPlanes == 2);
    alignas(64) int32_t high[kAmxTile][NR], low[kAmxTile][NR];
    const int64_t k = padded_k(w.k);
    const int8_t* b = w.panels + p * k * NR;
    const uint8_t *x_high = a.values + row * a.stride, *x_low = x_high + plane_bytes(w.k);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < k; i += 64) {
        _tile_loadd(4, x_high + i, a.stride);
        _tile_loadd(6, b + i * NR, 4 * NR);
        _tile_loadd(7, b + i * NR + 64, 4 * NR);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_loadd(5, x_low + i, a.stride);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    _tile_stored(0, high[0], sizeof high[0]);
    _tile_stored(1, high[0] + 16, sizeof high[0]);
    _tile_stored(2, low[0], sizeof low[0]);
    _tile_stored(3, low[0] + 16, sizeof low[0]);
    for (int64_t r = 0; r < rows; ++r) {
        const vi acc[2][NV] = {{load_i(high[r]), load_i(high[r] + VW)}, {load_i(low[r]), load_i(low[r] + VW)}};
        finish_tile_i8<1>(acc, w, p, a.scales + row + r, to.at_row(r));
    }
}

#else

static bool amx_ready() { return false; }

class AmxSession {
  public:
    explicit AmxSession(bool) {}
};

static void tile_amx(const RowsI8&, int64_t, int64_t, const MatrixI8&, int64_t, const Output&) {}

#endif

}  // namespace ps
