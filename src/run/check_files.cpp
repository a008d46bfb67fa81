// SPDX-License-Identifier: Apache-2.0
// The check opens the files with the functions that a run uses, so it refuses what the run would refuse.
#include <p3d/run/check_files.hpp>

#include <p3d/base/text.hpp>
#include <p3d/text/token_origin.hpp>
#include <p3d/text/tokenize.hpp>
#include <p3d/text/tokenizer.hpp>
#include <p3d/run/text.hpp>

#include <fmt/format.h>

namespace p3d::run {

std::string describe_data(data::TokenSource const& source, data::Sampler const& sampler, config::Config const& c) {
  return fmt::format(
      "Data: {}; {} of {}{}, {} for validation", source.describe(),
      base::counted(sampler.num_train_windows(), c.batch.variable ? "training sample" : "training window"),
      c.batch.variable ? "up to " : "", base::counted(c.model.seq_len, "token"), sampler.num_eval_windows());
}

std::string note_about_data(config::Config const& c) {
  if (c.data.format != config::DataFormat::text) return text::note_about_ends(c);
  auto paths = c.data.path;
  for (auto const& source : c.data.source) paths.push_back(source.path);
  return text::note_about_binaries(paths, c.data.source.empty() ? "data.path" : "data.source");
}

std::string note_about_tokenizer(config::Config const& c, text::Tokenizer const& tokenizer) {
  bool const known = c.data.format == config::DataFormat::text || c.data.tokenizer != "bytes";
  if (c.model.load.empty() || !known) return "";
  for (auto const& path : text::tokenizer_files(c.model.load)) {
    try {
      if (text::parse_tokenizer(path, text::read_tokenizer_file(path), "")->hash() == tokenizer.hash()) return "";
    } catch (base::Error const&) {
      continue;  // p3d cannot read it, so nobody can use it here
    }
    auto const fix = c.data.format == config::DataFormat::text
                         ? fmt::format("p3d data tokenize --tokenizer {} makes them from text", path)
                         : fmt::format("data.tokenizer=\"{}\" takes it, for tokens that it made", path);
    return fmt::format(
        "the model of model.load has a tokenizer of its own, {}, and data.tokenizer = \"{}\" gives other tokens than "
        "those that its weights are about; {}",
        path, c.data.tokenizer, fix);
  }
  return "";
}

FileCheck check_files(config::Config const& c) {
  FileCheck out;
  auto const step = [&](auto const& what) {
    try {
      what();
    } catch (base::Error const& e) {
      if (e.code() != base::ExitCode::bad_input) throw;
      out.errors.push_back(e);
    }
  };
  step([&] {
    auto const tokenizer = open_tokenizer(c, false);
    if (c.data.tokenizer != "bytes") out.notes.push_back("Tokenizer: " + tokenizer.tokenizer->describe());
    if (auto const note = text::require_tokenizer(c, *tokenizer.tokenizer); !note.empty()) out.notes.push_back(note);
    if (auto const note = note_about_tokenizer(c, *tokenizer.tokenizer); !note.empty())
      out.notes.push_back("Warning: " + note);
  });
  step([&] {
    if (auto const note = note_about_data(c); !note.empty()) out.notes.push_back(note);
    auto const source = data::make_token_source(c);
    // Megatron-LM's order makes tables of all samples, and refuses no more than the other orders: any other one will
    // do.
    auto any_order = c;
    if (c.data.shuffle == config::Shuffle::megatron) any_order.data.shuffle = config::Shuffle::windows;
    bool const blends = any_order.data.shuffle != c.data.shuffle && c.data.source.size() > 1;
    for (auto& s : any_order.data.source) {
      if (blends) s.weight = 1.0;  // weights for Megatron-LM need no whole ratios, weights for other orders do
    }
    out.notes.push_back(describe_data(*source, data::Sampler(*source, any_order), c));
  });
  return out;
}

}  // namespace p3d::run
