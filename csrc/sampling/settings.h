// Written by `make stubs` from src/homenode/sampling.py; not to be edited.
//
// X(type, name, least, most): the settings that each row of a SamplingInput has, and their ranges, bounds
// included.
#pragma once
#include <cstdint>

#define HOMENODE_SAMPLING_SETTINGS(X) \
  X(float, repetition_penalty, 0.001f, 1000.0f) \
  X(float, frequency_penalty, -1000000.0f, 1000000.0f) \
  X(float, presence_penalty, -1000000.0f, 1000000.0f) \
  X(float, temperature, 0.0f, 1000000.0f) \
  X(float, dynatemp_range, 0.0f, 100.0f) \
  X(float, dynatemp_exponent, 0.0f, 100.0f) \
  X(float, top_n_sigma, -1.0f, 1000.0f) \
  X(int32_t, top_k, 0, 2147483647) \
  X(float, typical_p, 0.0f, 1.0f) \
  X(float, top_p, 0.0f, 1.0f) \
  X(float, min_p, 0.0f, 1.0f) \
  X(float, max_surprise, 0.0f, 1000.0f) \
  X(float, xtc_probability, 0.0f, 1.0f) \
  X(float, xtc_threshold, 0.0f, 1.0f)
