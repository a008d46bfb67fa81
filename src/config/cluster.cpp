// SPDX-License-Identifier: Apache-2.0
// Reads cluster.toml. One table below names every key with its range and its place in the struct; unknown keys, values
// that do not fit and numbers that contradict each other are all reported, with line and column.
#include <p3d/config/cluster.hpp>

#include "config/input.hpp"
#include "config/nesting.hpp"
#include "config/values.hpp"

#include <p3d/base/enum_names.hpp>
#include <p3d/base/error.hpp>
#include <p3d/base/text.hpp>
#include <p3d/base/text_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <sstream>

namespace p3d::config {
namespace {

constexpr std::int64_t most_file_bytes = std::int64_t{1} << 20;
constexpr double most = 1e30;
constexpr NumberRange any{0.0, most}, positive{0.0, most, true}, part{0.0, 1.0, true};
constexpr IntegerRange count{1, std::int64_t{1} << 40};

/// A key of the file.
struct Field {
  std::string section, name;
  std::string type;
  std::function<MaybeMismatch(toml::node const&, Cluster&, Level&)> read;
  std::function<std::string(Cluster&, Level&)> write;    ///< its value as the file has it; "": it is left out
  std::function<double*(Cluster&, Level&)> number = {};  ///< the place of a number that is no integer
};

std::string shortest(double value) { return fmt::format("{}", value); }
std::string as_toml(std::string const& text) {
  std::ostringstream out;
  out << toml::value<std::string>(text);
  return out.str();
}

template <class Get>
Field number(char const* section, char const* name, NumberRange range, Get get) {
  return {section,
          name,
          describe(range),
          [=](toml::node const& node, Cluster& c, Level& level) { return read_number(node, range, get(c, level)); },
          [=](Cluster& c, Level& level) { return shortest(get(c, level)); },
          [=](Cluster& c, Level& level) { return &get(c, level); }};
}
template <class Get>
Field integer(char const* section, char const* name, IntegerRange range, Get get) {
  return {section, name, describe(range),
          [=](toml::node const& node, Cluster& c, Level& level) { return read_integer(node, range, get(c, level)); },
          [=](Cluster& c, Level& level) { return get(c, level) == 0 ? "" : fmt::format("{}", get(c, level)); }};
}
template <class Get>
Field text(char const* section, char const* name, Get get) {
  return {section, name, "string, not empty",
          [=](toml::node const& node, Cluster& c, Level& level) { return read_string(node, false, get(c, level)); },
          [=](Cluster& c, Level& level) { return get(c, level).empty() ? "" : as_toml(get(c, level)); }};
}

/// Reads [[bytes, share], ...].
MaybeMismatch read_share(toml::node const& node, std::vector<std::pair<double, double>>& out) {
  constexpr char const* like = "write pairs of bytes and share, ascending: [[1e6, 0.13], [8e6, 0.5], [1e9, 0.9]]";
  auto const* list = node.as_array();
  if (list == nullptr || list->empty()) return Mismatch{&node, describe(node), like};
  std::vector<std::pair<double, double>> pairs;
  auto mismatch = read_list(*list, [&](toml::node const& item) -> MaybeMismatch {
    auto const* pair = item.as_array();
    if (pair == nullptr || pair->size() != 2) return Mismatch{&item, describe(item), like};
    std::pair<double, double> read;
    if (auto wrong = read_number(*pair->get(0), positive, read.first)) return wrong;
    if (auto wrong = read_number(*pair->get(1), part, read.second)) return wrong;
    if (!pairs.empty() && read.first <= pairs.back().first) return Mismatch{&item, "bytes that do not ascend", like};
    pairs.push_back(read);
    return {};
  });
  if (!mismatch) out = std::move(pairs);
  return mismatch;
}

std::string write_share(std::vector<std::pair<double, double>> const& share) {
  std::vector<std::string> pairs;
  for (auto const& [bytes, part] : share) pairs.push_back(fmt::format("[{}, {}]", shortest(bytes), shortest(part)));
  return pairs.empty() ? "" : fmt::format("[{}]", base::join(pairs, ", "));
}

/// Reads the name of a generation of kernels.
MaybeMismatch read_kernels(toml::node const& node, PlannedKernels& out) {
  std::string name;
  if (auto wrong = read_string(node, false, name)) return wrong;
  for (auto value : base::values_of<PlannedKernels>())
    if (value != PlannedKernels::automatic && name == base::to_string(value)) {
      out = value;
      return {};
    }
  return Mismatch{&node, describe(node), "write host for p3d on CPUs, flash for GPUs"};
}

std::vector<Field> const& fields() {
  static std::vector<Field> const all{
      text(
          "", "name", [](Cluster & c, Level&) -> auto& { return c.name; }),
      {"", "kernels", "flash, unfused, fused, fp8 or host",
       [](toml::node const& node, Cluster& c, Level&) { return read_kernels(node, c.kernels); },
       [](Cluster& c, Level&) { return as_toml(base::to_string(c.kernels)); }},
      text(
          "device", "name", [](Cluster & c, Level&) -> auto& { return c.device.name; }),
      number(
          "device", "fp64", any, [](Cluster & c, Level&) -> auto& { return c.device.fp64; }),
      number(
          "device", "fp32", any, [](Cluster & c, Level&) -> auto& { return c.device.fp32; }),
      number(
          "device", "fp16", any, [](Cluster & c, Level&) -> auto& { return c.device.fp16; }),
      number(
          "device", "bf16", any, [](Cluster & c, Level&) -> auto& { return c.device.bf16; }),
      number(
          "device", "fp8", any, [](Cluster & c, Level&) -> auto& { return c.device.fp8; }),
      number(
          "device", "memory", positive, [](Cluster & c, Level&) -> auto& { return c.device.memory; }),
      number(
          "device", "bandwidth", positive, [](Cluster & c, Level&) -> auto& { return c.device.bandwidth; }),
      number(
          "device", "bandwidth_share", part, [](Cluster & c, Level&) -> auto& { return c.device.bandwidth_share; }),
      number(
          "device", "permute_share", part, [](Cluster & c, Level&) -> auto& { return c.device.permute_share; }),
      number(
          "device", "half_rate", any, [](Cluster & c, Level&) -> auto& { return c.device.half_rate; }),
      number(
          "device", "launch", any, [](Cluster & c, Level&) -> auto& { return c.device.launch; }),
      number(
          "device", "sharers", {1.0, 1e6}, [](Cluster & c, Level&) -> auto& { return c.device.sharers; }),
      number(
          "gemm", "best", part, [](Cluster & c, Level&) -> auto& { return c.gemm.best; }),
      number(
          "gemm", "size", any, [](Cluster & c, Level&) -> auto& { return c.gemm.size; }),
      integer(
          "gemm", "tile_rows", count, [](Cluster & c, Level&) -> auto& { return c.gemm.tile_rows; }),
      integer(
          "gemm", "tile_cols", count, [](Cluster & c, Level&) -> auto& { return c.gemm.tile_cols; }),
      integer(
          "gemm", "units", count, [](Cluster & c, Level&) -> auto& { return c.gemm.units; }),
      integer(
          "gemm", "align", count, [](Cluster & c, Level&) -> auto& { return c.gemm.align; }),
      number(
          "gemm", "align_penalty", {1.0, 100.0}, [](Cluster & c, Level&) -> auto& { return c.gemm.align_penalty; }),
      number(
          "gemm", "odd_penalty", {1.0, 100.0}, [](Cluster & c, Level&) -> auto& { return c.gemm.odd_penalty; }),
      number(
          "gemm", "weight_gradient", {0.0, 2.0, true},
          [](Cluster & c, Level&) -> auto& { return c.gemm.weight_gradient; }),
      number(
          "attention", "best", part, [](Cluster & c, Level&) -> auto& { return c.attention; }),
      text(
          "level", "name", [](Cluster&, Level & l) -> auto& { return l.name; }),
      integer(
          "level", "size", {2, count.max}, [](Cluster&, Level & l) -> auto& { return l.size; }),
      number(
          "level", "bandwidth", positive, [](Cluster&, Level & l) -> auto& { return l.bandwidth; }),
      number(
          "level", "latency", any, [](Cluster&, Level & l) -> auto& { return l.latency; }),
      number(
          "level", "message_share", part, [](Cluster&, Level & l) -> auto& { return l.message_share; }),
      {"level", "share", "list of pairs of bytes and share",
       [](toml::node const& node, Cluster&, Level& l) { return read_share(node, l.share); },
       [](Cluster&, Level& l) { return write_share(l.share); }},
      number(
          "jitter", "sigma", {0.0, 1.0}, [](Cluster & c, Level&) -> auto& { return c.jitter; }),
      number(
          "cost", "rank_hour", any, [](Cluster & c, Level&) -> auto& { return c.rank_hour; }),
  };
  return all;
}

/// Reads a file and collects its errors.
class ClusterReader {
public:
  explicit ClusterReader(std::string name) : file_(std::move(name)) {}

  ClusterResult read(std::string_view written) {
    if (auto const line = too_deep_at_line(written); line > 0) {
      add(KeyErrors::between_keys(), "", fmt::format("{}:{}", file_, line), "a cluster file", "values that nest deeply",
          "inputs/clusters has examples");
      return finish();
    }
    try {
      document_ = toml::parse(written, file_);
    } catch (toml::parse_error const& e) {
      add(KeyErrors::in_file(e.source().begin), "", place(e.source().begin), "TOML", std::string(e.description()),
          "correct this line (the format is TOML); what follows it was not looked at");
      return finish();
    }
    Level none;
    for (auto const& [key, node] : document_) {
      std::string const name(key.str());
      auto const* const table = node.as_table();
      if (name == "level")
        read_levels(node);
      else if (table != nullptr && is_section(name))
        read_section(name, *table, none);
      else
        read_field("", key, node, none);
    }
    if (errors_.size() == 0) check();
    return finish();
  }

private:
  static bool is_section(std::string const& name) {
    return std::any_of(fields().begin(), fields().end(), [&](Field const& f) { return f.section == name; });
  }
  std::string place(toml::source_position at) const { return fmt::format("{}:{}:{}", file_, at.line, at.column); }
  void add(KeyErrors::Order order, std::string key, std::string where, std::string expected, std::string found,
           std::string fix) {
    errors_.add(order, {.key = std::move(key),
                        .where = std::move(where),
                        .expected = std::move(expected),
                        .found = std::move(found),
                        .fix = std::move(fix)});
  }
  ClusterResult finish() {
    ClusterResult result{.cluster = {}, .errors = errors_.sorted()};
    if (result.errors.empty()) result.cluster = std::move(cluster_);
    return result;
  }

  void read_section(std::string const& section, toml::table const& table, Level& level) {
    for (auto const& [key, node] : table) read_field(section, key, node, level);
  }

  void read_levels(toml::node const& node) {
    auto const* const list = node.as_array();
    if (list == nullptr || !list->is_homogeneous(toml::node_type::table)) {
      add(KeyErrors::in_file(node.source().begin), "level", place(node.source().begin),
          "[[level]], once for each level", describe(node), "write [[level]] on a line of its own, its keys below it");
      return;
    }
    for (auto const& item : *list) {
      auto& level = cluster_.levels.emplace_back();
      read_section("level", *item.as_table(), level);
      levels_at_.push_back(item.source().begin);
    }
  }

  void read_field(std::string const& section, toml::key const& key, toml::node const& node, Level& level) {
    std::string const name(key.str()), full = section.empty() ? name : section + "." + name;
    std::vector<std::string> known;
    for (auto const& f : fields()) {
      if (f.section == section && f.name == name) {
        given_.push_back(full);
        if (auto const mismatch = f.read(node, cluster_, level))
          add(KeyErrors::in_file(mismatch->node->source().begin), full, place(mismatch->node->source().begin), f.type,
              mismatch->found, mismatch->fix);
        return;
      }
      if (f.section == section) known.push_back(f.name);
      if (section.empty() && !f.section.empty() && std::find(known.begin(), known.end(), f.section) == known.end())
        known.push_back(f.section);
    }
    auto const close = base::nearest(name, known);
    add(KeyErrors::in_file(key.source().begin), full, place(key.source().begin),
        section.empty() ? "a section: " + base::join(known)
                        : fmt::format("a key of [{}]: {}", section, base::join(known)),
        name, close.empty() ? "remove it" : fmt::format("did you mean {}?", close));
  }

  /// Checks what several keys say together.
  void check() {
    auto const missing = [&](char const* key, char const* what) {
      if (std::find(given_.begin(), given_.end(), key) == given_.end())
        add(KeyErrors::between_keys(), key, file_, what, "no such key", "add it; inputs/clusters has examples");
    };
    missing("name", "the name of the cluster");
    missing("device.memory", "the bytes of a device's memory");
    missing("device.bandwidth", "the bytes per second of a device's memory");
    auto const& d = cluster_.device;
    if (d.fp64 + d.fp32 + d.fp16 + d.bf16 + d.fp8 == 0)
      add(KeyErrors::between_keys(), "device", file_, "operations per second of at least one type", "none",
          "add fp32, bf16, ... to [device]");
    if (cluster_.levels.empty())
      add(KeyErrors::between_keys(), "level", file_, "at least one [[level]]", "none",
          "add [[level]] with name, size, bandwidth and latency");
    std::int64_t inner = 1;
    for (std::size_t i = 0; i < cluster_.levels.size(); ++i) {
      auto const& level = cluster_.levels[i];
      auto const where = place(levels_at_[i]);
      if (level.bandwidth == 0)
        add(KeyErrors::in_file(levels_at_[i]), "level.bandwidth", where, "the bandwidth of the level", "no such key",
            "add bandwidth, in bytes per second of a rank");
      bool const last = i + 1 == cluster_.levels.size();
      if (level.size == 0 && last) continue;
      if (level.size == 0 || level.size <= inner || level.size % inner != 0)
        add(KeyErrors::in_file(levels_at_[i]), "level.size", where,
            fmt::format("a multiple of {}, the size of the level before, and more than it", inner),
            level.size == 0 ? "no size" : fmt::format("{}", level.size),
            "name the closest level first; only the last one may leave its size out");
      inner = std::max<std::int64_t>(inner, level.size);
    }
  }

  std::string file_;
  toml::table document_;
  Cluster cluster_;
  KeyErrors errors_;
  std::vector<std::string> given_;
  std::vector<toml::source_position> levels_at_;
};

}  // namespace

double Cluster::peak(Precision precision) const {
  switch (precision) {
    case Precision::fp64: return device.fp64;
    case Precision::fp32: return device.fp32;
    case Precision::bf16: return device.bf16;
    case Precision::fp16: return device.fp16;
  }
  return 0;
}

Level const& Cluster::level(std::int64_t distance) const {
  P3D_REQUIRE(!levels.empty(), "a cluster has a level");
  for (auto const& l : levels)
    if (l.size == 0 || distance < l.size) return l;
  return levels.back();
}

void Cluster::require_room(std::int64_t ranks) const {
  auto const size = levels.back().size;
  if (size == 0 || ranks <= size) return;
  base::refuse({.expected = fmt::format("at most {} ranks: the last [[level]] has this size", size),
                .found = fmt::format("{}", ranks),
                .where = "the cluster " + name,
                .fix = "add the level that connects more of them, such as a network, or remove the size"});
}

std::vector<std::string> constants(Cluster const& cluster) {
  std::vector<std::string> out;
  for (auto const& f : fields()) {
    if (!f.number || f.section == "level") continue;
    out.push_back(f.section + "." + f.name);
  }
  for (std::size_t i = 0; i < cluster.levels.size(); ++i)
    for (auto const& f : fields())
      if (f.number && f.section == "level") out.push_back(fmt::format("level{}.{}", i + 1, f.name));
  return out;
}

namespace {
/// The field of a constant, and the level that it belongs to.
std::pair<Field const*, Level*> find_constant(Cluster& cluster, std::string_view name) {
  for (auto const& f : fields()) {
    if (!f.number) continue;
    if (f.section != "level" && f.section + "." + f.name == name) return {&f, nullptr};
    for (std::size_t i = 0; i < cluster.levels.size() && f.section == "level"; ++i)
      if (name == fmt::format("level{}.{}", i + 1, f.name) || name == cluster.levels[i].name + "." + f.name)
        return {&f, &cluster.levels[i]};
  }
  return {nullptr, nullptr};
}
}  // namespace

std::optional<double> constant(Cluster const& cluster, std::string_view name) {
  auto copy = cluster;
  Level none;
  auto const [field, level] = find_constant(copy, name);
  if (field == nullptr) return std::nullopt;
  return *field->number(copy, level != nullptr ? *level : none);
}

std::string set_constant(Cluster& cluster, std::string_view name, double value) {
  Level none;
  auto const [field, level] = find_constant(cluster, name);
  P3D_REQUIRE(field != nullptr, "a constant of the cluster has that name");
  toml::value<double> const node(value);
  return field->read(node, cluster, level != nullptr ? *level : none) ? field->type : "";
}

std::string cluster_toml(Cluster const& cluster, ClusterNotes const& notes) {
  auto copy = cluster;
  Level none;
  std::string out, section;
  auto const line = [&](Field const& f, std::string const& key, Level& level) {
    auto const value = f.write(copy, level);
    if (value.empty()) return;
    auto const note = std::find_if(notes.begin(), notes.end(), [&](auto const& n) { return n.first == key; });
    auto const text = fmt::format("{} = {}", f.name, value);
    out += note == notes.end() ? text + '\n' : fmt::format("{:<23} # {}\n", text, note->second);
  };
  for (auto const& f : fields()) {
    if (f.section == "level" || f.section == "jitter" || f.section == "cost") continue;
    if (f.section != section) out += fmt::format("\n[{}]\n", section = f.section);
    line(f, section.empty() ? f.name : section + "." + f.name, none);
  }
  for (std::size_t i = 0; i < copy.levels.size(); ++i) {
    out += "\n[[level]]\n";
    for (auto const& f : fields())
      if (f.section == "level") line(f, fmt::format("level{}.{}", i + 1, f.name), copy.levels[i]);
  }
  for (auto const& f : fields()) {
    if (f.section != "jitter" && f.section != "cost") continue;
    out += fmt::format("\n[{}]\n", f.section);
    line(f, f.section + "." + f.name, none);
  }
  return out;
}

ClusterResult parse_cluster(std::string_view text, std::string const& name) { return ClusterReader(name).read(text); }

ClusterResult parse_cluster_file(std::string const& path) {
  try {
    return parse_cluster(base::read_text_file(path, "a cluster file", path, most_file_bytes), path);
  } catch (base::Error const& e) {
    return {
        .cluster = {},
        .errors = {
            {.key = "", .where = path, .expected = e.text().expected, .found = e.text().found, .fix = e.text().fix}}};
  }
}

}  // namespace p3d::config
