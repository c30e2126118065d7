// Every level against the scalar one: a line for each storage format, kind of attention and row kernel at each level. A
// line says that the numbers were compared, over as many random shapes as there are rounds; a level that differs ends
// the program.
#include <cmath>
#include <functional>
#include <map>

#include "kernels/kernels.h"
#include "kv/cache.h"
#include "linear/rows.h"
#include "tests/matrices.h"

namespace homenode::checks {
namespace {

// What a cell of the table says: the largest difference that was seen, of what it is relative to. 0: the same bits.
std::map<std::pair<std::string, Level>, double> cells;

void note(const std::string& kernel, Level level, double difference, double most) {
  require(difference <= most, kernel + " at " + level_name(level) + " is " + std::to_string(difference) +
                                  " from the scalar one, more than " + std::to_string(most));
  double& cell = cells[{kernel, level}];
  cell = std::max(cell, difference);
}

double largest_difference(const float* a, const float* b, size_t count) {
  double largest = 0, size = 0;
  for (size_t i = 0; i < count; ++i) {
    require(std::isfinite(a[i]) && std::isfinite(b[i]), "results are numbers");
    largest = std::max(largest, std::fabs(double(a[i]) - double(b[i])));
    size = std::max(size, std::fabs(double(b[i])));
  }
  return largest / std::max(size, 1e-30);
}

float rounded_to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

float as_it_is(float x) { return x; }

// The largest difference of a product from the exact one, of activations as `multiplied` has them, relative to the sum
// of magnitudes of its products.
double relative_difference(const Matrix& m, const float* x, int64_t tokens, const float* found,
                           float (*multiplied)(float)) {
  const int64_t rows = m.weight->rows, columns = m.weight->columns;
  double largest = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t r = 0; r < rows; ++r) {
      double exact = 0, size = 1e-30;
      for (int64_t c = 0; c < columns; ++c) {
        const double product = double(multiplied(x[t * columns + c])) * double(m.values[size_t(r * columns + c)]);
        exact += product, size += std::fabs(product);
      }
      largest = std::max(largest, std::fabs(double(found[t * rows + r]) - exact) / size);
    }
  }
  return largest;
}

void compare_products(Random& random, Format format) {
  const auto pool = pool_of(1);
  const int64_t columns = random_columns(random, format), rows = random.between(1, 70), tokens = random_tokens(random);
  const Matrix matrix = random_matrix(random, *pool, format, rows, columns);
  const std::vector<const Weight*> weights = {matrix.weight.get()};
  const std::vector<const float*> biases = {nullptr};
  const Exact<float> x = reals(random, size_t(tokens * columns));
  const auto product = [&](Level level) {
    return Product{weights, biases, columns, rows, level}.of(*pool, x.get(), columns, tokens, nullptr);
  };
  const Exact<float> wanted = product(Level::scalar);
  for (const Level level : levels()) {
    const Exact<float> found = product(level);
    if (format == Format::bf16 && linear_table(level).round) {
      note(format_name(format), level, relative_difference(matrix, x.get(), tokens, found.get(), rounded_to_bf16),
           double(columns + 4) * 0x1p-24);
      const Exact<float> fine =
          Product{weights, biases, columns, rows, level, Precision::fine}.of(*pool, x.get(), columns, tokens, nullptr);
      note("BF16, fine", level, relative_difference(matrix, x.get(), tokens, fine.get(), as_it_is),
           double(columns + 4) * 0x1p-24 + 0x1p-17);
    } else {
      const bool same = !std::memcmp(found.get(), wanted.get(), found.size() * sizeof(float));
      note(format_name(format), level,
           same ? 0 : std::max(1e-30, largest_difference(found.get(), wanted.get(), found.size())), 0);
    }
  }
}

// Random keys and values of one KV head, and rows that see some of them.
struct Chunk {
  int head_dim, rows, keys;
  KvType type;
  int value_columns;  // values are the first so many elements of keys; 0: they are beside them
  std::shared_ptr<KvCache> cache;
  std::vector<const void*> key_tiles, value_tiles;
  std::vector<int> begin, end;
  std::vector<float> queries, slopes;
  std::vector<int> apart;
  int reach;
  std::vector<float> bias;  // of each row, of distances up to `reach`
  int first_key;

  Chunk(Random& random, ThreadPool& pool, KvType kind, bool within)
      : head_dim(2 * random.between(1, 70)),
        rows(random.between(1, kQueryRows)),
        keys(random.between(1, kChunkKeys)),
        type(kind),
        value_columns(within ? random.between(1, head_dim) : 0),
        cache(taken(KvCache::create(pool, {1, 1, head_dim, kChunkKeys, type}, 1))),
        reach(random.between(0, 200)),
        first_key(random.of<int>({0, kChunkKeys})) {
    const KvKernels& scalar = kernels(Level::scalar).kv[int(type)];
    for (int k = 0; k < keys; ++k) {
      scalar.put_key(reals(random, size_t(head_dim), 3).get(), head_dim, k % kTileKeys, cache->key_tile(0, 0, 0, k));
      scalar.put_values(reals(random, size_t(head_dim)).get(), nullptr, head_dim, k % kTileKeys,
                        cache->value_tile(0, 0, 0, k));
    }
    for (int k = 0; k < kChunkKeys; k += kTileKeys)
      key_tiles.push_back(cache->keys(0, 0, 0, k)), value_tiles.push_back(cache->values(0, 0, 0, k));
    for (int r = 0; r < rows; ++r) {
      begin.push_back(random.one_in(2) ? 0 : random.between(0, keys - 1));
      end.push_back(random.between(begin.back() + 1, keys));
      slopes.push_back(0.01f * random.real()), apart.push_back(-random.between(0, 600));
      for (int d = 0; d < head_dim; ++d) queries.push_back(random.real());
      for (int d = -reach; d <= reach; ++d) bias.push_back(random.real());
    }
  }

  // The softmax of every row: its weighted values over the sum of weights, and the largest score.
  std::vector<float> attended(const Kernels& table, float softcap) const {
    const int value_dim = value_columns ? value_columns : head_dim;
    const auto padded = size_t(padded_head(value_dim));
    const Exact<std::byte> turned(size_t{kTurnedBytes});
    const KvKernels& kv = table.kv[int(type)];
    const Exact<float> scores(size_t(kQueryRows) * kChunkKeys), largest(static_cast<size_t>(rows)),
        sum(static_cast<size_t>(rows)), out(size_t(rows) * padded);
    const Exact<float> loaded(queries.size());
    std::vector<float> scales;
    std::vector<const float*> biases;
    for (int r = 0; r < rows; ++r) {
      biases.push_back(bias.data() + r * (2 * reach + 1));
      auto* row = reinterpret_cast<std::byte*>(loaded.get()) + int64_t(r) * head_dim * kv.query_bytes;
      scales.push_back(kv.load_query(queries.data() + r * head_dim, head_dim, 0.2f, row));
    }
    kv.attend({rows,
               head_dim,
               value_dim,
               loaded.get(),
               scales.data(),
               softcap,
               key_tiles.data(),
               value_tiles.data(),
               begin.data(),
               end.data(),
               first_key,
               scores.get(),
               largest.get(),
               sum.get(),
               out.get(),
               int64_t(padded),
               value_columns ? turned.get() : nullptr,
               nullptr,
               0,
               softcap == 0 ? slopes.data() : nullptr,
               apart.data(),
               softcap == 0 ? biases.data() : nullptr,
               reach});
    std::vector<float> found(largest.get(), largest.get() + rows);
    for (int r = 0; r < rows; ++r) {
      for (int d = 0; d < value_dim; ++d) found.push_back(out[size_t(r) * padded + size_t(d)] / sum[size_t(r)]);
    }
    return found;
  }
};

void compare_attention(Random& random, KvType type, const char* name, bool within = false) {
  const auto pool = pool_of(1);
  const Chunk chunk(random, *pool, type, within);
  const float softcap = random.one_in(2) ? 0 : 0.3f + 2 * std::fabs(random.real());
  const Kernels& scalar = kernels(Level::scalar);
  const std::vector<float> wanted = chunk.attended(scalar, softcap);
  for (const Level level : levels()) {
    // Codes of softmax weights may differ by one of 32767 where the exponentials differ in their last bit; queries and
    // weights that are rounded to bfloat16 differ in their ninth.
    const bool rounded = kernels(level).kv[int(type)].query_bytes != scalar.kv[int(type)].query_bytes;
    const std::vector<float> found = chunk.attended(kernels(level), softcap);
    note(name, level, largest_difference(found.data(), wanted.data(), wanted.size()),
         rounded                ? 2e-2
         : type == KvType::int8 ? 2e-4
                                : 1e-5);
  }
}

void compare_rows(Random& random) {
  const int64_t n = random.between(1, 3000);
  const auto count = size_t(n);
  const Exact<float> x = reals(random, count, 9), y = reals(random, count);
  const float top = *std::max_element(x.get(), x.get() + count);
  std::map<std::string, std::function<void(const Kernels&, float*)>> all = {
      {"rms_norm", [&](const Kernels& k, float* out) { k.rms_norm(x.get(), y.get(), out, n, 1e-6f); }},
      {"rotate", [&](const Kernels& k, float* out) { k.rotate(x.get(), out, y.get(), n / 2, n); }},
      {"divide", [&](const Kernels& k, float* out) { k.divide(x.get(), 0.7f, out, n); }},
      {"sigmoid_mul", [&](const Kernels& k, float* out) { k.sigmoid_mul(x.get(), y.get(), out, n); }},
      {"multiply_rows", [&](const Kernels& k, float* out) { k.multiply_rows(x.get(), y.get(), out, n); }},
      {"soft_cap", [&](const Kernels& k, float* out) { k.soft_cap(x.get(), 3, out, n); }},
      {"exponentials", [&](const Kernels& k, float* out) { k.exponentials(x.get(), out, n, top, 1.5f); }},
      {"add_positive",
       [&](const Kernels& k, float* out) {
         std::copy_n(y.get(), n, out);
         k.add_positive(x.get(), 0.7f, out, n);
       }},
      {"add_weighted",
       [&](const Kernels& k, float* out) {
         std::copy_n(x.get(), n, out);
         k.add_weighted(x.get(), y.get(), 3, y.get(), 0.5f, out, n / 3);
       }},
      {"sum_exponentials",
       [&](const Kernels& k, float* out) { std::fill_n(out, n, float(k.sum_exponentials(x.get(), n, top, 1.5f))); }},
      {"find_largest",
       [&](const Kernels& k, float* out) {
         const Largest found = k.find_largest(x.get(), n);
         std::fill_n(out, n, found.value + float(found.index));
       }},
  };
  for (int i = 0; i < kActivations; ++i) {
    const std::string name = kActivationNames[i];
    all[name + "_mul"] = [&, i](const Kernels& k, float* out) { k.gates[i](x.get(), y.get(), out, n); };
    if (is_plain(static_cast<Activation>(i)))
      all[name] = [&, i](const Kernels& k, float* out) { k.gates[i](x.get(), nullptr, out, n); };
  }
  for (const auto& [name, kernel] : all) {
    const auto of = [&kernel, count](Level level) {
      Exact<float> out(count);
      kernel(kernels(level), out.get());
      return out;
    };
    const Exact<float> wanted = of(Level::scalar);
    for (const Level level : levels())
      note(name, level, largest_difference(of(level).get(), wanted.get(), count), 2e-6);
  }
}

void compare_merge(Random& random) {
  const int64_t padded = padded_head(random.between(1, 130));
  const Exact<float> state = reals(random, size_t(padded)), other = reals(random, size_t(padded));
  const float first = random.real();
  const Exact<float> second = reals(random, kQueryRows), sums = reals(random, kQueryRows);
  sums[0] = 3;
  const auto merged = [&](Level level) {
    const Exact<float> all(size_t(padded) + 2 * kQueryRows);
    std::copy_n(state.get(), padded, all.get() + 2 * kQueryRows);
    all[0] = first, all[kQueryRows] = 2;
    const Merge how = Merge::add;
    kernels(level).merge({1, padded, &how, all.get(), all.get() + kQueryRows, all.get() + 2 * kQueryRows, second.get(),
                          sums.get(), other.get()});
    std::vector<float> found(all.get() + 2 * kQueryRows, all.get() + 2 * kQueryRows + padded);
    found.push_back(all[0]), found.push_back(all[kQueryRows]);
    return found;
  };
  const std::vector<float> wanted = merged(Level::scalar);
  for (const Level level : levels())
    note("merge", level, largest_difference(merged(level).data(), wanted.data(), wanted.size()), 2e-6);
}

// Outputs of some tokens of a panel, and the state after them; and those of a convolution.
void compare_delta(Random& random) {
  const int tokens = random.between(1, 9), width = random.between(1, 140), columns = random.between(1, 16);
  const auto rows = size_t(tokens * width), found = size_t(tokens * columns), state = size_t(16 * width);
  const Exact<float> q = reals(random, rows), k = reals(random, rows), v = reals(random, found),
                     start = reals(random, state), decay = reals(random, rows), beta = reals(random, size_t(tokens));
  const bool by_row = random.one_in(2);
  for (size_t i = 0; i < rows; ++i) k[i] /= float(width);  // so that states stay about as large as they are
  const auto after = [&](Level level) {
    const Exact<float> all(found + state);
    std::copy_n(start.get(), state, all.get() + found);
    kernels(level).delta_rule({tokens, width, q.get(), k.get(), decay.get(), beta.get(), v.get(), columns, all.get(),
                               columns, columns, all.get() + found, by_row});
    return std::vector<float>(all.get(), all.get() + found + state);
  };
  const auto scanned = [&](Level level) {
    const Exact<float> all(found + state), rows(size_t(tokens) * size_t(2 * width + columns));
    std::copy_n(start.get(), state, all.get() + found);
    for (int t = 0; t < tokens; ++t) {
      float* const row = rows.get() + t * (2 * width + columns);
      std::copy_n(k.get() + t * width, width, row), std::copy_n(q.get() + t * width, width, row + width);
      std::copy_n(v.get() + t * columns, columns, row + 2 * width);
    }
    kernels(level).selective_scan({tokens, width, rows.get() + width, rows.get(), rows.get() + 2 * width,
                                   2 * width + columns, decay.get(), beta.get(), 0.7f, all.get(), columns, columns,
                                   all.get() + found});
    return std::vector<float>(all.get(), all.get() + found + state);
  };
  const auto convolved = [&](Level level) {
    const Exact<float> out(found);
    const std::vector<const float*> inputs = {nullptr, v.get(), v.get()};
    const Exact<float> weights = reals(random, 3 * found);
    for (size_t i = 0; i < 3 * found; ++i) weights[i] = float(i % 7) - 3;
    kernels(level).convolve(
        {3, inputs.data(), weights.get(), int64_t(found), v.get(), true, out.get(), int64_t(found)});
    return std::vector<float>(out.get(), out.get() + found);
  };
  const std::vector<float> wanted = after(Level::scalar), wanted_scan = scanned(Level::scalar),
                           wanted_convolution = convolved(Level::scalar);
  for (const Level level : levels()) {
    note("delta_rule", level, largest_difference(after(level).data(), wanted.data(), wanted.size()), 1e-5);
    note("selective_scan", level, largest_difference(scanned(level).data(), wanted_scan.data(), wanted_scan.size()),
         1e-5);
    note("convolve", level, largest_difference(convolved(level).data(), wanted_convolution.data(), found), 2e-6);
  }
}

void compare_copies(Random& random) {
  const int64_t tile_bytes = 32 * random.between(1, 80), tiles = random.between(1, 16);
  const auto bytes = size_t(tile_bytes * tiles);
  const Exact<std::byte> from(bytes), to(bytes);
  for (size_t i = 0; i < bytes; ++i) from[i] = std::byte(random.bits() >> 30);
  KvDigest wanted;
  kernels(Level::scalar).copy_tiles({from.get(), nullptr, tile_bytes, tiles, nullptr}, wanted);
  for (const Level level : levels()) {
    KvDigest digest;
    kernels(level).copy_tiles({from.get(), to.get(), tile_bytes, tiles, nullptr}, digest);
    note("copy_tiles", level,
         !std::memcmp(&digest, &wanted, sizeof wanted) && !std::memcmp(from.get(), to.get(), bytes) ? 0 : 1, 0);
  }
}

}  // namespace

void check_levels(Random& random) {
  for (const Format format : kFormats) compare_products(random, format);
  compare_attention(random, KvType::f32, "attention f32");
  compare_attention(random, KvType::bf16, "attention bf16");
  compare_attention(random, KvType::int8, "attention int8");
  compare_attention(random, KvType::f32, "attention within f32", true);
  compare_attention(random, KvType::bf16, "attention within bf16", true);
  compare_attention(random, KvType::int8, "attention within int8", true);
  compare_rows(random);
  compare_merge(random);
  compare_delta(random);
  compare_copies(random);
}

void print_levels() {
  for (const auto& [place, difference] : cells) {
    const char* how = level_emulated(place.second) ? "emulated" : "native";
    std::printf("%s\t%s\t%s\t%.1e\n", place.first.c_str(), level_name(place.second), how, difference);
  }
}

}  // namespace homenode::checks
