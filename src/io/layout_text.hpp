// SPDX-License-Identifier: Apache-2.0
#pragma once
// The description of the file inside the file (attribute `layout` of the root group).

namespace p3d::io {

inline constexpr char const* random_text =
    "counter-based: Philox4x32-10; every number follows from seed, purpose and its global number (sample, element), so "
    "seed, "
    "step and samples are the whole random state";

inline constexpr char const* layout_text =
    "A p3d checkpoint holds the global arrays of a training run; nothing in it depends on the parallel layout that "
    "wrote it.\n"
    "Attributes of /: step (optimizer steps done), tokens (trained on), samples (number of the next global sample), "
    "seed,\n"
    "  data_hash (xxHash64 of the training data), data_order (version of the order of samples), precision, "
    "p3d_version, random, format, format_version, layout (this "
    "text).\n"
    "/input: the complete input of the run (TOML). /tokenizer: the file of its tokenizer, if any. /model_files/NAME: "
    "files beside the model that it began with. /table: one record "
    "for each parameter in model order: name, rows "
    "(0: a vector), cols,\n"
    "  layer (-1: embedding side; number of layers: head side), decay (1: weight decay applies), unit.\n"
    "/parameters/NAME: matrices [out, in], vectors [n]. /first_moment/NAME, /second_moment/NAME: AdamW, the same "
    "shapes. /previous_weights/NAME: the weights before these, where optimizer.delay is 1 or more, and\n"
    "/previous_weights.K/NAME: those K updates before; in the last one, those that layers read.\n"
    "Each array is contiguous and has the attributes unit and checksum. checksum = sum over its elements, modulo 2^64, "
    "of\n"
    "  mix(((i + 1) * 0x9e3779b97f4a7c15) ^ bits), i: row-major index, bits: IEEE pattern as an unsigned integer,\n"
    "  mix(z): z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27; z *= 0x94d049bb133111eb; z ^= z >> 31.\n"
    "The user block before the HDF5 signature is text: file size, byte ranges of the arrays, hash of all other "
    "bytes.\n";

}  // namespace p3d::io
