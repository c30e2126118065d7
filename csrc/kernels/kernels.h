// The inner loops that exist once for each instruction set level, as a table of function pointers. Matrix products have
// their own (linear/linear.h).
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/isa.h"
#include "kernels/activation.h"

namespace homenode {

constexpr int kTileKeys = 16;  // keys side by side in a tile of the KV cache: one vector of lanes
constexpr int kChunkKeys = 256;  // keys whose softmax is computed at once; chunks are counted from position 0
constexpr int kChunkTiles = kChunkKeys / kTileKeys;
constexpr int kQueryRows = 32;  // most (query, head) rows a chunk is computed for at once
constexpr int kMostHead = 4096;  // most elements of a head

// Attention over int8 keys and values multiplies whole numbers. These bounds keep every sum of products in 32 bits, so
// that it is exact.
constexpr int kKvLimit = 127;  // of a code of a key or value
constexpr int kWeightLimit = 32767;  // of a softmax weight: kChunkKeys * kWeightLimit * 128 < 2^31
constexpr int query_limit(int64_t head_dim) {
  const int64_t most = INT32_MAX / (128 * head_dim);
  return static_cast<int>(most < 32767 ? most : 32767);
}

// Row lengths of attention accumulators: whole lanes.
constexpr int64_t padded_head(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Values that are the first elements of keys are put in the order of values so many elements at a time.
constexpr int kTurnedColumns = 64;
constexpr int64_t kTurnedBytes = int64_t(kChunkKeys) * kTurnedColumns * static_cast<int64_t>(sizeof(float));

struct PrefetchRange {
  const void* from;
  int64_t bytes;
};

// Attention of up to kQueryRows rows over one chunk of one KV head.
struct AttendArgs {
  int rows, head_dim, value_dim;  // value_dim: elements of a value
  const void* queries;  // [rows] heads as load_query of the same kind of KV memory leaves them, for scores in base 2
  const float* query_scales;  // [rows] what load_query returned
  float softcap;  // scores become softcap * tanh(score / softcap), in base 2 as well; 0: they stay
  const void* const* keys;  // [kChunkTiles] tiles, see kv/cache.h
  const void* const* values;  // [kChunkTiles]; not looked at with `turned`
  const int* begin;  // [rows] keys begin <= i < end of the chunk are visible to a row
  const int* end;
  int first_key;  // where the chunk begins among the keys of its rows
  float* scores;  // [kQueryRows, kChunkKeys] work space
  float* largest;  // [rows] out: largest score
  float* sum;  // [rows] out: sum of 2^(score - largest); 0 where nothing is visible
  float* out;  // [rows, out_stride] out: sum of 2^(score - largest) * value
  int64_t out_stride;  // padded_head(value_dim)
  void* turned;  // [kTurnedBytes] work space, where the values are the first value_dim elements of the keys; else null
  // [prefetch_ranges] what will be wanted next, in that order: worth fetching meanwhile
  const PrefetchRange* prefetch = nullptr;
  int prefetch_ranges = 0;
  // [rows] slopes in base 2, and the position of the chunk's first key less that of the row: a score loses its slope
  // times the distance of its key from the row; null: nothing. Not with a softcap.
  const float* slopes = nullptr;
  const int* apart = nullptr;
  // [rows] what is added to a score by how far its key is behind the row, in base 2: [2 * reach + 1] of distances
  // -reach .. reach, whose ends count for all beyond; null: nothing.
  const float* const* biases = nullptr;
  int reach = 0;
};

// A chunk's results (largest2, sum2, out2) into those of the chunks before it. Rows of `largest` are kQueryRows,
// whatever `rows` says. The row sees nothing of the chunk; it is the row's first; it is a later one
enum class Merge : uint8_t { leave, take, add };
struct MergeArgs {
  int rows;
  int64_t padded;  // elements of an output row
  const Merge* how;  // [rows]
  float *largest, *sum, *out;
  const float *largest2, *sum2, *out2;
};

struct Largest {
  float value;
  int64_t index;  // of the first among equals
  bool nan;  // a NaN was seen (value and index mean nothing then)
};

// Tokens of a sequence through a panel of a head's state, 16 value columns of it: the gated delta rule. Of each token,
// with the state S [key_width, 16]: r = (v - decay * S^T k) * beta; S = decay * S + k r^T; out = S^T q. With `by_row`
// each row of S has a decay of its own, of [tokens, key_width].
struct DeltaArgs {
  int tokens, key_width;
  const float *q, *k;  // [tokens, key_width]
  const float *decay, *beta;  // [tokens]
  const float* v;  // [tokens, columns], v_stride from token to token
  int64_t v_stride;
  float* out;  // [tokens, columns], out_stride from token to token
  int64_t out_stride;
  int columns;  // that the panel has, at most 16
  float* state;  // [key_width, 16]
  bool by_row = false;
};

// Tokens of a sequence through a panel of a head's state, 16 value columns of it: the recurrence of Mamba 2. Of each
// token, with the state S [key_width, 16]: S = decay * S + share * k v^T; out = S^T q + skip * v.
struct ScanArgs {
  int tokens, key_width;
  const float *q, *k, *v;  // [tokens, key_width] twice, [tokens, columns], all `stride` from token to token
  int64_t stride;
  const float *decay, *share;  // [tokens]
  float skip;
  float* out;  // [tokens, columns], out_stride from token to token
  int64_t out_stride;
  int columns;  // that the panel has, at most 16
  float* state;  // [key_width, 16]
};

// A token's outputs of a causal convolution of each channel by itself: bias + the sum of weight * input over `width`
// tokens, the last of which is the token itself; then silu, if so.
struct ConvolveArgs {
  int width;
  const float* const* inputs;  // [width] the channels of each token, the oldest first; null: zeros
  const float* weights;  // [width, weight_stride]
  int64_t weight_stride;
  const float* bias;  // [count], or null
  bool silu;
  float* out;  // [count]
  int64_t count;  // channels
};

// A digest of KV memory on its way: what one head of a page has added up to so far (see simd/kv_copy.h), and how many
// lines that were.
struct KvDigest {
  uint64_t sums[8] = {};
  uint64_t lines = 0;
};

// Tiles one behind the other.
struct TileRun {
  const std::byte* from;
  std::byte* to;  // null: they are only read
  int64_t tile_bytes, tiles;
  const std::byte* next;  // what will be read after them: asked for towards the end; it may be any address
};

// How one kind of KV memory (see kv/cache.h) is written and read.
struct KvKernels {
  int query_bytes;  // of an element of a loaded query
  // The head of a query, times the softmax scale and log2(e), as `attend` multiplies it: float32 or bfloat16, and with
  // int8 KV memory codes of 16 bits. Returns what the codes are times, else 1.
  float (*load_query)(const float* q, int64_t head_dim, float scale, void* out);
  // One head of a key as token `token` of a tile; with int8 its scale as well. bf16 and int8 round to nearest, halves
  // to even; with int8 a head with an element that is not finite becomes NaN as a whole.
  void (*put_key)(const float* key, int64_t head_dim, int token, void* tile);
  // The same of the values of `token` and, unless `next` is null, of the token after it; `token` is even then.
  void (*put_values)(const float* value, const float* next, int64_t head_dim, int token, void* tile);
  void (*attend)(const AttendArgs&);
  // Its scores alone, of the tiles that any row sees; what has to do with values is not looked at.
  void (*score)(const AttendArgs&);
};

struct Kernels {
  // out = x / sqrt(mean(x^2) + eps) * weight over `width` values.
  void (*rms_norm)(const float* x, const float* weight, float* out, int64_t width, float eps);
  // The two steps of it, for who wants the result piece by piece: 1 / sqrt(mean(x^2) + eps), and out = x * scale *
  // weight.
  float (*rms_scale)(const float* x, int64_t width, float eps);
  void (*scale_row)(const float* x, float scale, const float* weight, float* out, int64_t count);
  // Rotates a head, pairing element i with i + half by the cosines [half] and sines [half]; elements from 2 * half on
  // pass. out may be x.
  void (*rotate)(const float* x, float* out, const float* cos_sin, int64_t half, int64_t head_dim);
  GateKernel gates[kActivations];  // by Activation
  // out = cap * tanh(x / cap).
  void (*soft_cap)(const float* x, float cap, float* out, int64_t count);
  KvKernels kv[3];  // by KvType
  void (*merge)(const MergeArgs&);
  // out = x / divisor.
  void (*divide)(const float* x, float divisor, float* out, int64_t count);
  Largest (*find_largest)(const float* x, int64_t count);
  // Sum of exp((x - largest) * factor), pieces of a fixed length added in double precision.
  double (*sum_exponentials)(const float* x, int64_t count, float largest, float factor);
  // out = exp((x - largest) * factor), 0 where x is -infinity.
  void (*exponentials)(const float* x, float* out, int64_t count, float largest, float factor);
  // Copies tiles past the caches and adds them to a digest. Who has called it for all there is calls fence_stores
  // (epoch_words.h) before others are told.
  void (*copy_tiles)(const TileRun&, KvDigest&);
  // out = x / (1 + exp(-gate)); out may be x or gate.
  void (*sigmoid_mul)(const float* gate, const float* x, float* out, int64_t count);
  // out = x * y; out may be x or y.
  void (*multiply_rows)(const float* x, const float* y, float* out, int64_t count);
  void (*convolve)(const ConvolveArgs&);
  void (*delta_rule)(const DeltaArgs&);
  void (*selective_scan)(const ScanArgs&);
  // out += factor * max(x, 0).
  void (*add_positive)(const float* x, float factor, float* out, int64_t count);
  // out = x, then in turn for each of the runs of y: out += (offset + its weight) * run, the product rounded before the
  // sum; all are `width` long. weights null: zeros.
  void (*add_weighted)(const float* x, const float* y, int64_t runs, const float* weights, float offset, float* out,
                       int64_t width);

  constexpr GateKernel gate(Activation activation) const { return gates[static_cast<int>(activation)]; }
};

const Kernels& kernels(Level);

}  // namespace homenode
