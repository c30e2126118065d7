#include "linear/linear.h"

#include <algorithm>

#include "base/isa.h"
#include "linear/rows.h"
#include "linear/tuning.h"
#include "quant/block.h"
#include "quant/pack.h"

namespace homenode {

const LinearTable& linear_table(Level level) {
  switch (level) {
#ifdef HOMENODE_HAVE_AVX2
    case Level::avx2: return linear_table_avx2();
#endif
#ifdef HOMENODE_HAVE_AVX2VNNI
    case Level::avx2vnni: return linear_table_avx2vnni();
#endif
#ifdef HOMENODE_HAVE_AVX512
    case Level::avx512: {
      static const LinearTable tuned = tuned_for(processor(), linear_table_avx512());
      return tuned;
    }
#endif
#ifdef HOMENODE_HAVE_AVX512BF16
    case Level::avx512bf16: {
      static const LinearTable tuned = tuned_for(processor(), linear_table_avx512bf16());
      return tuned;
    }
#endif
#ifdef HOMENODE_HAVE_AMX
    case Level::amx: return linear_table_amx();
#endif
#ifdef HOMENODE_HAVE_NEON
    case Level::neon: return linear_table_neon();
#endif
#ifdef HOMENODE_HAVE_DOTPROD
    case Level::dotprod: return linear_table_dotprod();
#endif
#ifdef HOMENODE_HAVE_I8MM
    case Level::i8mm: return linear_table_i8mm();
#endif
    default: return linear_table_scalar();
  }
}

int linear_tile_tokens(Level level) {
  const LinearTable& table = linear_table(level);
  return table.panels[0].unpack ? table.panels[0].max_tokens : table.coded[0].tokens_of_many;
}

void linear_finish() {
  if (const auto finish = linear_table(current_level()).finish) finish();
}

bool is_coded(const Weight& w) { return coding_of(w.format) != nullptr; }


void unpack_row(const Weight& w, int64_t row, float* out, int thread) {
  const auto piece =
      std::find_if(w.pieces.begin(), w.pieces.end(), [row](const Weight::Piece& p) { return row < p.row_end; });
  const int64_t inside = row - piece->row_begin;
  const uint8_t* group =
      w.data(size_t(piece - w.pieces.begin()), thread) + inside / kGroupRows * packed_group_bytes(w.format, w.columns);
  unpack_group_row(w.format, group, w.columns, int(inside % kGroupRows), out);
}

void embedding_rows(const Weight& table, int64_t first, const int32_t* ids, int64_t tokens, float* out,
                    int64_t out_stride, int thread, int threads) {
  const int64_t end = tokens * (thread + 1) / threads;
  for (int64_t i = tokens * thread / threads; i < end; ++i) {
    const int64_t row = ids[i] - first;
    if (row >= 0 && row < table.rows) unpack_row(table, row, out + i * out_stride, thread);
    else std::fill_n(out + i * out_stride, table.columns, 0.0f);
  }
}

}  // namespace homenode
