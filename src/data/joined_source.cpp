// SPDX-License-Identifier: Apache-2.0
// Several sources as one. Numbers of tokens, documents and sequences run through all of them, and a binary search over
// the beginnings finds the part. Example: parts of 100 and 50 tokens; token 120 is token 20 of the second part.
#include <p3d/data/token_source.hpp>

#include <p3d/base/error.hpp>

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

namespace p3d::data {

namespace {

/// The sources one after the other: tokens, documents and sequences are numbered through.
class Joined final : public TokenSource {
public:
  Joined(std::vector<std::unique_ptr<TokenSource>> parts, std::vector<double> const& weights)
      : parts_(std::move(parts)) {
    P3D_REQUIRE(parts_.size() == weights.size() && !parts_.empty(), "every source has a weight");
    std::string content = "p3d blend 1";
    double sum = 0.0;
    for (double const w : weights) sum += w;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      begins_.push_back(begins_.back() + parts_[i]->size());
      documents_.push_back(documents_.back() + parts_[i]->documents());
      sequences_.push_back(sequences_.back() + parts_[i]->sequences());
      // The hash stands for the contents and the weights: a run with another blend must not go on from a checkpoint.
      content += fmt::format(", {:016x} * {}", parts_[i]->hash(), weights[i]);
      text_ += fmt::format("{}{:.4g} x {}", i == 0 ? "" : " + ", weights[i] / sum, parts_[i]->describe());
    }
    hash_ = XXH64(content.data(), content.size(), 0);
  }

  std::int64_t size() const override { return begins_.back(); }
  std::uint64_t hash() const override { return hash_; }
  std::string describe() const override { return text_; }
  std::size_t parts() const override { return parts_.size(); }
  TokenSource const& part(std::size_t i) const override { return *parts_[i]; }
  std::int64_t documents() const override { return documents_.back(); }
  bool knows_documents() const override {
    return std::all_of(parts_.begin(), parts_.end(), [](auto const& part) { return part->knows_documents(); });
  }
  layout::Range document_with(std::int64_t token) const override {
    auto const p = part_of(begins_, token);
    return shifted(parts_[p]->document_with(token - begins_[p]), p);
  }
  std::int64_t sequences() const override { return sequences_.back(); }

  void read(std::int64_t first, std::span<int> out) const override {
    P3D_REQUIRE(first >= 0 && first + static_cast<std::int64_t>(out.size()) <= size(), "the tokens exist");
    while (!out.empty()) {
      auto const p = part_of(begins_, first);
      auto const here = static_cast<std::size_t>(std::min<std::int64_t>(begins_[p + 1] - first, std::ssize(out)));
      parts_[p]->read(first - begins_[p], out.first(here));
      out = out.subspan(here);
      first += static_cast<std::int64_t>(here);
    }
  }
  layout::Range document(std::int64_t i) const override {
    auto const p = part_of(documents_, i);
    return shifted(parts_[p]->document(i - documents_[p]), p);
  }
  layout::Range sequence(std::int64_t i) const override {
    auto const p = part_of(sequences_, i);
    return shifted(parts_[p]->sequence(i - sequences_[p]), p);
  }

private:
  using Begins = std::vector<std::int64_t>;
  /// The part that holds number i of a list of beginnings.
  static std::size_t part_of(Begins const& begins, std::int64_t i) {
    P3D_REQUIRE(i >= 0 && i < begins.back(), "the place exists");
    return static_cast<std::size_t>(std::upper_bound(begins.begin(), begins.end(), i) - begins.begin() - 1);
  }
  /// A range of tokens of a part, in the numbers of the whole source.
  layout::Range shifted(layout::Range tokens, std::size_t p) const {
    return {tokens.begin + begins_[p], tokens.end + begins_[p]};
  }

  std::vector<std::unique_ptr<TokenSource>> parts_;
  Begins begins_{0}, documents_{0}, sequences_{0};
  std::string text_;
  std::uint64_t hash_ = 0;
};

}  // namespace

std::unique_ptr<TokenSource> make_joined(std::vector<std::unique_ptr<TokenSource>> parts,
                                         std::vector<double> const& weights) {
  return std::make_unique<Joined>(std::move(parts), weights);
}

}  // namespace p3d::data
