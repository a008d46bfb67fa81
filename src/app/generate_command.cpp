// SPDX-License-Identifier: Apache-2.0
// Continues texts with a trained model. The prompts are read before the model is loaded, as the longest one decides for
// how many positions it is made ready. Example: "p3d generate runs/tiny --prompt 'The ' --tokens 20 --json" prints one
// object with the text and its tokens.
#include "stored_model.hpp"
#include "text_commands.hpp"
#include "words.hpp"

#include <p3d/base/error.hpp>
#include <p3d/base/log.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/text_file.hpp>
#include <p3d/base/timer.hpp>
#include <p3d/run/text.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>

namespace p3d::app {

namespace {

/// Decides how the model is read: it gets no more rotary positions than the longest text will need.
config::Reading reading_of(StoredModel const& model, text::Tokenizer const& tokenizer,
                           std::vector<std::string> const& prompts, std::int64_t tokens) {
  config::Reading out;
  auto const seq_len = model.config.model.seq_len;
  // Learned positions are read whole, as the checkpoint has them. Texts that may fill the model need all positions.
  if (model.config.model.position != config::Position::rope || tokens >= seq_len) return out;
  constexpr std::int64_t least = 256;  // a multiple of every usual parallel.cp
  auto longest = least - tokens;
  for (auto const& prompt : prompts) {
    std::vector<std::int32_t> read;
    tokenizer.encode(prompt, read, true);
    longest = std::max<std::int64_t>({longest, std::ssize(read), 1});
  }
  out.seq_len = std::min(seq_len, longest + tokens);
  return out;
}

/// The prompts of the command line: each --prompt, then each file, whole or line by line.
struct Prompts {
  std::vector<std::string> texts, files;
  bool lines = false;

  std::vector<std::string> all() const {
    auto out = texts;
    for (auto const& file : files) {
      auto const text = base::read_text_file(file, "a text to continue", "--prompt-file", std::int64_t{1} << 30);
      if (!lines) {
        out.push_back(text);
        continue;
      }
      for (std::size_t at = 0; at < text.size();) {
        auto const end = std::min(text.find('\n', at), text.size());
        out.push_back(text.substr(at, end - at));
        if (out.back().ends_with('\r')) out.back().pop_back();
        at = end + 1;
      }
    }
    if (out.empty() && !files.empty())
      throw wrong_words("a prompt", fmt::format("no line in {}", base::join(files)), "write a prompt into each line");
    // Without any prompt one empty text is continued: a new document.
    if (out.empty()) out.emplace_back();
    return out;
  }
};

/// Prints the texts, as JSON or as they are with a line between them.
void print(std::vector<std::string> const& prompts, std::vector<run::DrawnText> const& texts, bool json) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    auto const& t = texts[i];
    if (json) {
      nlohmann::ordered_json line;
      line["prompt"] = prompts[i];
      line["text"] = t.text;
      line["prompt_tokens"] = t.prompt_tokens;
      line["tokens"] = t.tokens;
      for (auto const& token : t.logprobs) {
        auto list = nlohmann::ordered_json::array();
        for (auto const& x : token) list.push_back({x.token, x.logprob});
        line["logprobs"].push_back(list);
      }
      // Bytes that are not UTF-8 become U+FFFD.
      fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
      continue;
    }
    if (i > 0) std::fputs("----\n", stdout);
    auto const text = text_for_output(prompts[i] + t.text);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fputs("\n", stdout);
  }
  std::fflush(stdout);
}

}  // namespace

int generate_command(int argc, char** argv) {
  ModelLine line;
  Prompts prompts;
  run::TextOptions o;
  o.draw.tokens = 200;
  o.draw.temperature = 0.8;
  bool json = false, no_end = false, speed = false;
  CLI::App app{
      "Continues texts with a trained model. The same texts on every layout, up to rounding. Replicas share "
      "the prompts."};
  app.name("p3d generate");
  // A number of tokens that no run reaches.
  constexpr std::uint64_t most = std::uint64_t{1} << 40;
  app.add_option("--prompt", prompts.texts, "text to continue; may be given again")->allow_extra_args(false);
  app.add_option("--prompt-file", prompts.files, "file with a text to continue; may be given again")
      ->allow_extra_args(false);
  app.add_flag("--lines", prompts.lines, "every line of a prompt file is a prompt of its own");
  app.add_option("--tokens", o.draw.tokens, "tokens to add at most (200)")->check(count_from(0, most));
  app.add_option("--temperature", o.draw.temperature, "0: always the most likely token (0.8)")
      ->check(number_from(0, 1e6));
  app.add_option("--top-k", o.draw.top_k, "only the k most likely tokens; 0: all")->check(count_from(0, most));
  app.add_option("--top-p", o.draw.top_p, "only the most likely tokens that together reach this probability (1)")
      ->check(number_from(0, 1));
  app.add_option("--stop", o.stop, "a text that ends the answer and is left out of it; may be given again")
      ->allow_extra_args(false)
      ->check({[](std::string const& stop) {
                 return stop.empty() ? "an empty string: it would end every answer at once" : std::string();
               },
               "not empty"});
  app.add_flag("--no-end", no_end, "go on after the tokenizer's end of a document");
  app.add_option("--batch", o.draw.batch, "prompts of a replica at the same time (16)")->check(count_from(1, 1 << 20));
  app.add_option("--seed", o.draw.seed, "another seed, another text (1)")->check(count_from(0, ~std::uint64_t{0}));
  app.add_flag("--json", json, "print an object a line: prompt, text, prompt_tokens, tokens");
  app.add_option("--logprobs", o.logprobs,
                 "with --json: for each token that was drawn the N likeliest, [token, log-probability] (0)")
      ->check(count_from(0, most))
      ->needs("--json");
  app.add_flag("--speed", speed, "print tokens and seconds to stderr at the end");
  add_tokenizer_option(app, line);
  if (auto const code = parse_model_line(app, line, argc, argv)) return *code;
  o.ends = !no_end;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::vector<std::string> given;
  auto const prepare = [&](comm::Communicator& world, StoredModel const& model) {
    tokenizer = comm::agree(world, "open the tokenizer", [&] { return stored_tokenizer(model, line); });
    given = comm::agree(world, "read the prompts", [&] { return prompts.all(); });
    return reading_of(model, *tokenizer, given, o.draw.tokens);
  };
  return with_stored_model(argc, argv, line, prepare, [&](auto& trainer, StoredModel const& model) {
    // The checkpoint's word for the end of a document counts, where the tokenizer is the checkpoint's too.
    if (line.tokenizer.empty() && !model.tokenizer.name.empty()) o.document_end = static_cast<int>(model.tokenizer.end);
    base::Stopwatch watch;
    auto const texts = run::continue_texts(trainer, *tokenizer, given, o);
    auto const seconds = watch.seconds();
    if (base::log_rank() != 0) return 0;
    print(given, texts, json);
    if (speed) {
      std::int64_t read = 0, drawn = 0;
      for (auto const& t : texts) {
        read += static_cast<std::int64_t>(t.prompt_tokens.size());
        drawn += static_cast<std::int64_t>(t.tokens.size());
      }
      fmt::print(stderr, "{} from {} in {:.3f} s: {:.4f} s a token\n", base::counted(drawn, "token"),
                 base::counted(read, "prompt token"), seconds,
                 seconds / static_cast<double>(std::max<std::int64_t>(1, drawn)));
    }
    return 0;
  });
}

}  // namespace p3d::app
