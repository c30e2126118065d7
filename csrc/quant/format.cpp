#include "quant/format.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "quant/block.h"
#include "quant/encode.h"
#include "quant/half.h"

namespace homenode {
namespace {

struct Name {
  Format format;
  const char* name;
  FileBlock block;
};

constexpr Name kFormats[] = {
    {Format::f32, "F32", {1, 4}},        {Format::f16, "F16", {1, 2}},        {Format::bf16, "BF16", {1, 2}},
    {Format::q8_0, "Q8_0", {32, 34}},    {Format::q4_0, "Q4_0", {32, 18}},    {Format::q4_1, "Q4_1", {32, 20}},
    {Format::q5_0, "Q5_0", {32, 22}},    {Format::q5_1, "Q5_1", {32, 24}},    {Format::iq4_nl, "IQ4_NL", {32, 18}},
    {Format::mxfp4, "MXFP4", {32, 17}},  {Format::q2_k, "Q2_K", {256, 84}},   {Format::q3_k, "Q3_K", {256, 110}},
    {Format::q4_k, "Q4_K", {256, 144}},  {Format::q5_k, "Q5_K", {256, 176}},  {Format::q6_k, "Q6_K", {256, 210}},
    {Format::iq4_xs, "IQ4_XS", {256, 136}},
};

uint16_t half_at(const uint8_t* source, int64_t i) {
  uint16_t bits;
  std::memcpy(&bits, source + 2 * i, 2);
  return bits;
}

const Name* find(Format format) {
  const Name* found =
      std::find_if(std::begin(kFormats), std::end(kFormats), [format](const Name& n) { return n.format == format; });
  return found == std::end(kFormats) ? nullptr : found;
}

}  // namespace

FileBlock file_block(Format format) {
  const Name* known = find(format);
  return known ? known->block : FileBlock{};
}

const char* format_name(Format format) {
  const Name* known = find(format);
  return known ? known->name : "unknown";
}

int64_t file_row_bytes(Format format, int64_t columns) {
  const FileBlock block = file_block(format);
  return (columns + block.columns - 1) / block.columns * block.bytes;
}

void decode_row(Format format, const uint8_t* source, float* out, int64_t columns) {
  if (format == Format::f32) {
    std::memcpy(out, source, size_t(columns) * 4);
    return;
  }
  if (format == Format::f16 || format == Format::bf16) {
    // Two loops, as the compiler makes vectors of such.
    if (format == Format::f16) {
      for (int64_t i = 0; i < columns; ++i) out[i] = half_to_float(half_at(source, i));
    } else {
      for (int64_t i = 0; i < columns; ++i) out[i] = bf16_to_float(half_at(source, i));
    }
    return;
  }
  const Coding* coding = coding_of(format);
  if (!coding) return;
  const FileBlock size = file_block(format);
  RowBlock block;
  for (int64_t i = 0; i < columns; i += size.columns, source += size.bytes) {
    split_block(format, source, block);
    block_values(*coding, block, out + i, int(std::min<int64_t>(size.columns, columns - i)));
  }
}

bool can_encode(Format format) {
  return format == Format::f32 || format == Format::f16 || format == Format::bf16 || format == Format::q8_0 ||
         format == Format::q4_0;
}

void encode_row(Format format, const float* source, uint8_t* out, int64_t columns) {
  if (format == Format::f32) {
    std::memcpy(out, source, size_t(columns) * 4);
    return;
  }
  if (format == Format::f16 || format == Format::bf16) {
    for (int64_t i = 0; i < columns; ++i) {
      const uint16_t bits = format == Format::f16 ? float_to_half(source[i]) : float_to_bf16(source[i]);
      std::memcpy(out + 2 * i, &bits, 2);
    }
    return;
  }
  const FileBlock size = file_block(format);
  const auto encode = format == Format::q8_0 ? encode_q8_0 : encode_q4_0;
  int64_t i = 0;
  for (; i + 32 <= columns; i += 32, out += size.bytes) encode(source + i, out);
  if (i < columns) {
    float block[32] = {};
    std::copy_n(source + i, columns - i, block);
    encode(block, out);
  }
}

}  // namespace homenode
