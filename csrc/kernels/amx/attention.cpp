// Attention over bf16 KV memory by tiles, but for the first chunk of a row's keys: that, and everything else of
// kernels.h, as the level avx512bf16 has it. With so few keys tiles gain little or nothing in decoding.
//
// Tiles of keys and of values lie in memory as the products want them: 16 lines of a pair of elements of 16 keys, 8
// lines of two tokens' values of 16 elements. Queries and softmax weights are bfloat16 as at the level avx512bf16,
// whose softmax this is. Products come in runs of their own, all scores of a chunk and then all outputs: beside tile
// instructions the processor is slow at vector instructions (see panel.h).
//
// What fixes the value of a row, bit by bit; a product is one of a tile (see linear/tiles.h), a chain of fused
// multiply-adds from 0 over the first elements of pairs, one over the second ones, and their sum added to the value:
//   score      products of 32 elements of the head in order, the last ones filled up with zeros;
//   largest    and sum as at the level avx512bf16;
//   output     products of tiles of 16 keys in order, of all that a row sees something of. The value of a key that is
//              not visible is taken as 0: it may be anything, and belong to another sequence. Rows are multiplied
//              together, so values that only some of them see are taken as 0 where they are not finite, and what those
//              make of the rows that see them is added at the end.
// GCC 12 takes the deliberately undefined operands inside its own intrinsics for a fault of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "kernels/simd/avx512.h"

#include "kernels/amx/shapes.h"
#include "kernels/avx512bf16/softmax.h"

namespace homenode {

extern const Kernels kernels_avx512bf16;

namespace {

constexpr int kBlockRows = 16;         // of a tile
constexpr int kScoreColumns = 32;      // elements of a head in a product
constexpr int kLine = 64;              // bytes of a tile's row
constexpr int kTilesAtOnce = 4;        // of sums
constexpr size_t kScoreStride = kChunkKeys * sizeof(float);

// Calls work(first row, rows) for blocks of at most 16 rows, of the same size so that the tiles keep their shape: the
// second may begin with a row of the first, which it computes a second time.
template <class Work>
inline void for_tile_blocks(int rows, Work work) {
  static_assert(kQueryRows <= 2 * kBlockRows);
  if (rows <= kBlockRows) return work(0, rows);
  const int half = (rows + 1) / 2;
  work(0, half);
  work(rows - half, half);
}

// The last elements of heads that are no multiple of 32, filled up with zeros: of some rows' queries, and room for
// those of a tile of keys.
struct LastColumns {
  int count;
  alignas(64) uint8_t queries[kBlockRows * kLine], keys[16 * kLine];

  LastColumns(const AttendArgs& a, int row, int rows) : count(a.head_dim % kScoreColumns) {
    if (count == 0) return;
    __builtin_memset(queries, 0, sizeof queries);
    __builtin_memset(keys, 0, sizeof keys);
    for (int r = 0; r < rows; ++r) {
      const auto* query = static_cast<const uint16_t*>(a.queries) + int64_t(row + r + 1) * a.head_dim - count;
      __builtin_memcpy(queries + r * kLine, query, static_cast<size_t>(count) * sizeof(uint16_t));
    }
  }
};

template <int Tile>
HOMENODE_ATTEND void multiply_keys(const void* keys) {
  load_tile<6>(keys, kLine);
  add_pair_products<Tile, 4, 6>();
}

// Calls tile.operator()<i>() for i = 0 .. count - 1.
template <class Work>
HOMENODE_ATTEND void for_sum_tiles(int count, Work tile) {
  tile.template operator()<0>();
  if (count > 1) tile.template operator()<1>();
  if (count > 2) tile.template operator()<2>();
  if (count > 3) tile.template operator()<3>();
}

// Scores of some rows against `count` tiles of keys.
inline void score_tiles(const AttendArgs& a, Prefetch& prefetch, LastColumns& last, int row, int tile, int count) {
  const size_t stride = static_cast<size_t>(a.head_dim) * sizeof(uint16_t);
  const auto* queries = static_cast<const uint8_t*>(a.queries) + static_cast<size_t>(row) * stride;
  const int whole = a.head_dim - last.count;
  const auto keys_at = [&](int i, int column) {
    return static_cast<const uint8_t*>(a.keys[tile + i]) + static_cast<size_t>(column) / 2 * kLine;
  };
  for_sum_tiles(count, []<int I>() { clear_tile<I>(); });
  PrefetchCursor cursor = prefetch.begin();
  for (int column = 0; column < whole; column += kScoreColumns) {
    prefetch.look(cursor);
    cursor.step();
    load_tile<4>(queries + static_cast<size_t>(column) * sizeof(uint16_t), stride);
    for_sum_tiles(count, [&]<int I>() { multiply_keys<I>(keys_at(I, column)); });
  }
  prefetch.end(cursor);
  if (last.count > 0) {
    const size_t bytes = static_cast<size_t>(last.count) / 2 * kLine;
    load_tile<4>(last.queries, kLine);
    for_sum_tiles(count, [&]<int I>() {
      __builtin_memcpy(last.keys, keys_at(I, whole), bytes);
      multiply_keys<I>(last.keys);
    });
  }
  float* scores = a.scores + int64_t(row) * kChunkKeys + tile * kTileKeys;
  for_sum_tiles(count, [&]<int I>() { store_tile_rows<I>(scores + I * kTileKeys, kScoreStride); });
}

inline void score_block(const AttendArgs& a, Prefetch& prefetch, const Seen& seen, int row, int rows) {
  LastColumns last(a, row, rows);
  use_attention_shape(rows);
  for (int tile = seen.first_tile(); tile < seen.last_tile(); tile += kTilesAtOnce) {
    const int left = seen.last_tile() - tile;
    score_tiles(a, prefetch, last, row, tile, left < kTilesAtOnce ? left : kTilesAtOnce);
  }
}

// Some elements of the values of a tile that not all rows see all of: 0 of keys that no row sees, and where they are
// not finite.
struct SeenValues {
  alignas(64) uint8_t lines[kTileKeys / 2][kTilesAtOnce * kLine];
  bool finite = true;

  SeenValues(const uint8_t* values, size_t stride, int count, uint32_t visible) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    for (int pair = 0; pair < kTileKeys / 2; ++pair) {
      const uint32_t of_pair = visible >> 2 * pair & 3;
      const __m512i kept =
          _mm512_set1_epi32(static_cast<int>((of_pair & 1 ? 0xffffu : 0) | (of_pair & 2 ? 0xffff0000u : 0)));
      for (int i = 0; i < count; ++i) {
        const __m512i line =
            _mm512_and_si512(_mm512_loadu_si512(values + static_cast<size_t>(pair) * stride + i * kLine), kept);
        const __mmask32 other = _mm512_cmpeq_epi16_mask(_mm512_and_si512(line, exponent), exponent);
        finite = finite && other == 0;
        _mm512_store_si512(lines[pair] + i * kLine, _mm512_maskz_mov_epi16(~other, line));
      }
    }
  }
};

// Adds what values that are not finite make of the rows that see them, to `count` times 16 elements from element d on.
inline void add_not_finite(const AttendArgs& a, int row, int rows, int tile, int d, int count) {
  const auto* values = static_cast<const uint16_t*>(a.values[tile]);
  const auto as_float = [](uint16_t x) { return __builtin_bit_cast(float, uint32_t(x) << 16); };
  for (int r = row; r < row + rows; ++r) {
    for (int key = 0; key < kTileKeys; ++key) {
      const int of_chunk = tile * kTileKeys + key;
      if (of_chunk < a.begin[r] || of_chunk >= a.end[r]) continue;
      for (int i = d; i < d + 16 * count; ++i) {
        const uint16_t value = values[key / 2 * 2 * int64_t(a.value_dim) + 2 * i + key % 2];
        if ((value & 0x7f80) == 0x7f80)
          a.out[r * a.out_stride + i] += as_float(weight_pairs(a, r)[of_chunk]) * as_float(value);
      }
    }
  }
}

template <int Tile>
HOMENODE_ATTEND void multiply_values(const uint8_t* values, size_t stride) {
  load_tile<7>(values + Tile * kLine, stride);
  add_pair_products<Tile, 5, 7>();
}

// `count` times 16 elements of the outputs of some rows, from element d on.
inline void weigh_values(const AttendArgs& a, Prefetch& prefetch, const Seen& seen, int row, int rows, int d,
                         int count) {
  const size_t stride = 2 * static_cast<size_t>(a.value_dim) * sizeof(uint16_t);  // of two tokens
  const auto* weights = reinterpret_cast<const uint8_t*>(weight_pairs(a, row));
  uint32_t not_finite = 0;  // tiles
  static_assert(kChunkTiles <= 32);
  for_sum_tiles(count, []<int I>() { clear_tile<I>(); });
  PrefetchCursor cursor = prefetch.begin();
  for (int tile = seen.first_tile(); tile < seen.last_tile(); ++tile) {
    prefetch.look(cursor);
    cursor.step();
    const auto* values = static_cast<const uint8_t*>(a.values[tile]) + 2 * static_cast<size_t>(d) * sizeof(uint16_t);
    load_tile<5>(weights + static_cast<size_t>(tile * kTileKeys) * sizeof(uint16_t), kScoreStride);
    if (tile * kTileKeys >= seen.all_begin && (tile + 1) * kTileKeys <= seen.all_end) {
      for_sum_tiles(count, [&]<int I>() { multiply_values<I>(values, stride); });
    } else {
      const SeenValues some(values, stride, count, visible_bits(seen.begin, seen.end, tile * kTileKeys));
      not_finite |= uint32_t(!some.finite) << tile;
      for_sum_tiles(count, [&]<int I>() { multiply_values<I>(some.lines[0], sizeof some.lines[0]); });
    }
  }
  prefetch.end(cursor);
  float* out = a.out + row * a.out_stride + d;
  const size_t out_stride = static_cast<size_t>(a.out_stride) * sizeof(float);
  for_sum_tiles(count, [&]<int I>() { store_tile_rows<I>(out + I * 16, out_stride); });
  for (int tile = 0; not_finite >> tile; ++tile) {
    if (not_finite >> tile & 1) add_not_finite(a, row, rows, tile, d, count);
  }
}

inline void weigh_block(const AttendArgs& a, Prefetch& prefetch, const Seen& seen, int row, int rows) {
  use_attention_shape(rows);
  const int padded = static_cast<int>(padded_head(a.value_dim));
  for (int d = 0; d < padded; d += 16 * kTilesAtOnce) {
    const int left = (padded - d) / 16;
    weigh_values(a, prefetch, seen, row, rows, d, left < kTilesAtOnce ? left : kTilesAtOnce);
  }
}

inline int64_t steps_of(const AttendArgs& a) {
  const Seen any = seen_by(a, 0, a.rows);
  const int64_t tiles = any.last_tile() - any.first_tile(), blocks = a.rows > kBlockRows ? 2 : 1;
  const int64_t groups = (tiles + kTilesAtOnce - 1) / kTilesAtOnce,
                strips = (padded_head(a.value_dim) + 16 * kTilesAtOnce - 1) / (16 * kTilesAtOnce);
  return blocks * (groups * (a.head_dim / kScoreColumns) + tiles * strips);
}

void score_in_tiles(const AttendArgs& a) {
  if (a.first_key == 0) return kernels_avx512bf16.kv[1].score(a);
  Prefetch prefetch(a, 0);
  for_tile_blocks(a.rows, [&](int row, int rows) { score_block(a, prefetch, seen_by(a, row, rows), row, rows); });
}

void attend_in_tiles(const AttendArgs& a) {
  if (a.first_key == 0) return kernels_avx512bf16.kv[1].attend(a);
  Prefetch prefetch(a, a.prefetch_ranges ? steps_of(a) : 0);
  for_tile_blocks(a.rows, [&](int row, int rows) { score_block(a, prefetch, seen_by(a, row, rows), row, rows); });
  // All rows have weights, be it zeros, of all keys that any of them sees
  const Seen any = seen_by(a, 0, a.rows);
  for_row_blocks<kPairRowBlock>(a.rows, [&]<int R>(int row) { apply_softmax_pairs<R>(a, any, row); });
  for_value_strips<uint16_t>(a, [&](const AttendArgs& strip) {
    for_tile_blocks(a.rows, [&](int row, int rows) { weigh_block(strip, prefetch, seen_by(a, row, rows), row, rows); });
  });
}

}  // namespace

const Kernels& kernels_amx() {
  static const Kernels table = [] {
    Kernels kernels = kernels_avx512bf16;
    kernels.kv[1].attend = attend_in_tiles;
    kernels.kv[1].score = score_in_tiles;
    return kernels;
  }();
  return table;
}

}  // namespace homenode
