// SPDX-License-Identifier: Apache-2.0
#include "model_mutations.hpp"

#include <p3d/config/hugging_face.hpp>
#include <p3d/io/safetensors.hpp>
#include <p3d/io/text_file.hpp>
#include <p3d/layout/hugging_face.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

namespace p3d::fuzz {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Expect = ModelMutation::Expect;

void write(std::string const& path, std::string const& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

config::Model small_model(config::ModelFamily family) {
  bool const gpt = family == config::ModelFamily::gpt2;
  config::Model m;
  m.vocab_size = 12, m.hidden = 8, m.layers = 2, m.heads = 2, m.kv_heads = gpt ? 2 : 1, m.ffn = 12, m.seq_len = 6;
  if (gpt) return m;
  m.norm = config::Norm::rmsnorm, m.position = config::Position::rope, m.activation = config::Activation::swiglu;
  m.bias = false, m.tied_embeddings = false, m.rope_scaling = config::RopeScaling::llama3;
  m.moe.ffn = m.ffn;
  using config::ModelFamily;
  m.qkv_bias = family == ModelFamily::qwen2 || family == ModelFamily::qwen2_moe || family == ModelFamily::glm4;
  if (m.qkv_bias) m.head_size = 6;
  if (family == ModelFamily::glm4) m.head_size = 8, m.rope_fraction = 0.5, m.rope_pairs = config::RopePairs::neighbours;
  if (family == ModelFamily::granite) m.embedding_multiplier = 3.0, m.residual_multiplier = 0.5, m.logits_scaling = 2.0;
  if (family == ModelFamily::gemma2 || family == ModelFamily::gemma3_text) {
    m.activation = config::Activation::geglu, m.norm_offset = 1, m.head_size = 6, m.window = {3, 0};
    m.embedding_multiplier = std::sqrt(8.0);
  }
  if (family == ModelFamily::gemma2) m.attention_softcap = 50.0, m.logits_softcap = 30.0;
  if (family == ModelFamily::gemma3_text) m.rope_local_theta = 100, m.rope_scaling = config::RopeScaling::none;
  if (family == ModelFamily::ministral3) m.rope_query_beta = 0.1;
  if (family == ModelFamily::mistral) m.window = {3};
  if (family == ModelFamily::olmo3) m.window = {3, 0}, m.rope_scaling = config::RopeScaling::none;
  if (family == ModelFamily::smollm3) m.rope_layers = {1, 0};
  if (family == ModelFamily::apertus) m.activation = config::Activation::xielu;
  if (family == ModelFamily::phi3) {
    m.rope_scaling = config::RopeScaling::longrope, m.rope_original_seq_len = 4;
    m.rope_short_factors = {1.0, 1.0}, m.rope_long_factors = {1.5, 2.0};
  }
  m.qk_norm = config::row_of(family).qk_norm;
  m.norm_placement = config::row_of(family).norm_placement;
  if (!config::row_of(family).experts) return m;
  m.moe.experts = 3, m.moe.ffn = 6;
  if (family == ModelFamily::deepseek_v3 || family == ModelFamily::glm4_moe) {
    m.moe.experts = 4, m.moe.first_dense = 1, m.moe.shared_ffn = 12, m.moe.score = config::RouterScore::sigmoid;
    m.moe.choice_bias = true;
  }
  if (family == ModelFamily::glm4_moe) m.rope_fraction = 0.5;
  if (family == ModelFamily::deepseek_v3) {
    m.kv_heads = 2, m.head_size = 6, m.rope_pairs = config::RopePairs::neighbours;
    m.mla = {.kv_lora_rank = 4, .q_lora_rank = 6, .qk_nope_head_dim = 4, .qk_rope_head_dim = 2, .v_head_dim = 3};
    m.rope_scaling = config::RopeScaling::yarn, m.rope_scaling_factor = 4.0, m.rope_attention_factor = 1.0;
    m.moe.groups = 2, m.moe.group_top_k = 1;
  }
  if (family == ModelFamily::gpt_oss) {
    m.bias = m.qkv_bias = m.attention_sinks = m.moe.bias = true;
    m.activation = config::Activation::swiglu_clamped, m.window = {3, 0};
  }
  if (family == config::ModelFamily::qwen2_moe) m.moe.first_dense = 1, m.moe.shared_ffn = 10, m.moe.shared_gate = true;
  return m;
}

/// A file of weights, taken apart.
struct Parts {
  Json header;
  std::string data;
};
Parts take_apart(std::string const& bytes) {
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  return {Json::parse(bytes.substr(8, length)), bytes.substr(8 + length)};
}
std::string put_together(std::string const& header, std::string const& data) {
  std::uint64_t const length = header.size();
  return std::string(reinterpret_cast<char const*>(&length), 8) + header + data;
}

/// Any value of JSON.
Json any_value(Draw& draw) {
  switch (draw.below(12)) {
    case 0: return nullptr;
    case 1: return draw.one_in(2);
    case 2: return "";
    case 3: return "text";
    case 4: return Json::array();
    case 5: return Json::object();
    case 6: return draw.bits();
    case 7: return 0.5;
    case 8: return std::numeric_limits<double>::max();
    case 9: return std::string(1 + draw.below(1 << 16), draw.one_in(2) ? 'x' : '\n');
    default: return draw.extreme();
  }
}

/// Damage of any file: bytes changed, the end cut off, something added.
std::string damage(std::string bytes, Draw& draw, std::string& detail) {
  switch (draw.below(4)) {
    case 0: {
      auto const end = draw.below(bytes.size());
      detail = fmt::format("cut at byte {}", end);
      return bytes.substr(0, end);
    }
    case 1: {
      auto const at = draw.below(bytes.size());
      detail = fmt::format("byte {} added", at);
      return bytes.insert(at, 1, static_cast<char>(draw.bits()));
    }
    default: {
      auto const at = draw.below(bytes.size());
      auto const bit = draw.below(8);
      detail = fmt::format("bit {} of byte {}", bit, at);
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      return bytes;
    }
  }
}

std::string nested(Draw& draw) { return "{\"a\":" + std::string(1 + draw.below(1 << 18), draw.one_in(2) ? '[' : '{'); }

/// A field of a tensor of the header takes another value.
void change_tensor(Json& header, Draw& draw, ModelMutation& m) {
  auto const at = 1 + draw.below(header.size() - 1);  // behind __metadata__
  auto it = std::next(header.begin(), static_cast<std::ptrdiff_t>(at));
  auto const name = it.key();
  auto& entry = it.value();
  auto const good = entry;
  char const* const fields[] = {"dtype", "shape", "data_offsets"};
  auto const* field = fields[draw.below(3)];
  switch (draw.below(6)) {
    case 0: entry[field] = any_value(draw); break;
    case 1: entry.erase(field); break;
    case 2:
      entry["dtype"] = std::vector<char const*>{"F64", "F16", "I32", "U64", "F8_E4M3", "F4", "f32"}[draw.below(7)];
      break;
    case 3: {
      auto& list = entry[draw.one_in(2) ? "shape" : "data_offsets"];
      list[draw.below(list.size())] = draw.extreme();
      break;
    }
    case 4: entry[std::string("more")] = any_value(draw); break;
    default: entry = any_value(draw); break;
  }
  m.detail = fmt::format("{}: {}, {} before", name, entry.dump().substr(0, 200), good.dump());
  if (entry.dump() == good.dump()) m.expect = Expect::same;
  auto only_type = good;
  only_type["dtype"] = "F16";  // nothing tells it from BF16
  if (good["dtype"] == "BF16" && entry == only_type) m.expect = Expect::any_numbers;
}

ModelMutation change_header(std::string const& path, Draw& draw) {
  auto const bytes = io::read_text(path);
  auto parts = take_apart(bytes);
  ModelMutation m;
  m.kind = "header";
  m.named = ".safetensors";
  m.expect = Expect::refusal;
  switch (draw.below(7)) {
    case 0: {
      std::uint64_t const length = static_cast<std::uint64_t>(draw.extreme());
      m.detail = fmt::format("length {}", length);
      auto changed = bytes;
      std::memcpy(changed.data(), &length, 8);
      if (changed == bytes) m.expect = Expect::same;
      return write(path, changed), m;
    }
    case 1: {  // a tensor under another name
      auto const it =
          std::next(parts.header.begin(), static_cast<std::ptrdiff_t>(1 + draw.below(parts.header.size() - 1)));
      auto const old = it.key();
      auto const value = it.value();
      parts.header.erase(old);
      parts.header[draw.one_in(2) ? std::string(200'000, 'n') : old + "\xc3\xa9"] = value;
      m.detail = old + " has another name";
      m.named = "";
      break;
    }
    case 2: {  // the same tensor twice
      auto const text = parts.header.dump();
      auto const it = std::next(parts.header.begin(), 1);
      m.detail = it.key() + " twice";
      return write(path, put_together(text.substr(0, text.size() - 1) + "," + Json(it.key()).dump() + ":" +
                                          it.value().dump() + "}",
                                      parts.data)),
             m;
    }
    case 3: m.detail = "nested"; return write(path, put_together(nested(draw), parts.data)), m;
    case 4: {  // as many tensors as fit, of no bytes
      auto const n = 1 + draw.below(3000);
      for (std::uint64_t i = 0; i < n; ++i)
        parts.header[fmt::format("{}", i)] = {
            {"dtype", "F32"}, {"shape", {0, draw.bits() >> 1}}, {"data_offsets", {0, 0}}};
      m.detail = fmt::format("{} empty tensors more", n);
      m.named = "";
      break;
    }
    default: change_tensor(parts.header, draw, m);
  }
  write(path, put_together(parts.header.dump(), parts.data));
  return m;
}

/// One key of config.json or of the index takes another value, goes or comes.
ModelMutation change_json(std::string const& path, char const* kind, Draw& draw) {
  auto file = Json::parse(io::read_text(path));
  ModelMutation m;
  m.kind = kind;
  m.expect = Expect::refusal_or_same;
  auto* object = &file;
  if (file.contains("weight_map") && !draw.one_in(5)) object = &file["weight_map"];
  if (file.contains("rope_scaling") && file["rope_scaling"].is_object() && draw.one_in(4))
    object = &file["rope_scaling"];
  auto const it = std::next(object->begin(), static_cast<std::ptrdiff_t>(draw.below(object->size())));
  auto const key = it.key();
  switch (draw.below(8)) {
    case 0:
      object->erase(key);
      m.detail = "without " + key;
      break;
    case 1:
      (*object)["key that nobody knows"] = any_value(draw);
      m.detail = "a new key";
      m.expect = Expect::refusal;
      if (object == &file && std::string(kind) == "index") m.expect = Expect::same;
      break;
    case 2: {
      auto const text = file.dump();
      m.detail = "a key twice";
      m.expect = Expect::refusal;
      auto const first = file.begin().key();
      write(path, text.substr(0, text.size() - 1) + "," + Json(first).dump() + ":1}");
      return m;
    }
    case 3:
      m.detail = "nested";
      m.expect = Expect::refusal;
      write(path, nested(draw));
      return m;
    case 4:
      (*object)[key] =
          std::vector<char const*>{"../model.safetensors", "config.json", "/dev/zero", ".", "a\tb"}[draw.below(5)];
      m.detail = key + " = " + (*object)[key].dump();
      break;
    default:
      (*object)[key] = any_value(draw);
      m.detail = fmt::format("{} = {}", key, (*object)[key].dump().substr(0, 200));
  }
  write(path, file.dump());
  return m;
}

}  // namespace

std::vector<GoodModel> make_good_models(std::string const& folder) {
  std::vector<GoodModel> out;
  using config::ModelFamily;
  for (auto const& row : config::model_families()) {
    auto const family = row.family;
    bool const gpt = family == ModelFamily::gpt2;
    config::Config c;
    c.model = small_model(family);
    auto const table = layout::make_param_table(c);
    auto const layout = layout::hugging_face_layout(config::family_of(c.model, family), c.model, table);
    GoodModel good;
    good.folder = (fs::path(folder) / to_string(family)).string();
    fs::create_directories(good.folder);
    std::vector<io::SafetensorsWriter::Item> items;
    for (auto const& t : layout.tensors) items.push_back({t.name, t.shape, t.wide});
    auto const type = gpt ? io::TensorType::f32 : io::TensorType::bf16;
    io::SafetensorsWriter writer(good.folder, items, type, gpt ? 1 << 20 : 600);
    writer.create();
    Draw draw(7, gpt ? 1 : 0);
    for (std::size_t i = 0; i < items.size(); ++i) {
      std::int64_t n = 1;
      for (auto const size : items[i].shape) n *= size;
      std::vector<double> numbers(static_cast<std::size_t>(n));
      for (auto& x : numbers) x = static_cast<double>(draw.below(1000)) / 512 - 1;
      writer.write(i, 0, n, io::Element::float64, numbers.data());
    }
    writer.flush(), writer.commit();
    for (auto const& file : writer.files()) {
      auto const name = fs::path(file).filename().string();
      name.ends_with(".json") ? good.index = name : good.weights.emplace_back(name);
    }
    write((fs::path(good.folder) / "config.json").string(), config::write_hugging_face(c.model, "float32", -1, family));
    out.push_back(std::move(good));
  }
  return out;
}

ModelMutation mutate_model(GoodModel const& good, std::string const& folder, Draw& draw) {
  fs::remove_all(folder);
  fs::copy(good.folder, folder);
  auto const file = [&](std::string const& name) { return (fs::path(folder) / name).string(); };
  auto const& weights = draw.of(good.weights);
  ModelMutation m;
  switch (draw.below(good.index.empty() ? 5 : 7)) {
    case 0: {
      m.kind = "bytes of weights";
      auto const bytes = io::read_text(file(weights));
      write(file(weights), damage(bytes, draw, m.detail));
      m.expect = Expect::any_numbers;
      break;
    }
    case 1: {
      m.kind = "bytes of config";
      write(file("config.json"), damage(io::read_text(file("config.json")), draw, m.detail));
      break;
    }
    case 2: m = change_json(file("config.json"), "config", draw); break;
    case 3:
    case 4: m = change_header(file(weights), draw); break;
    case 5: m = change_json(file(good.index), "index", draw); break;
    default:
      m.kind = "a file less";
      m.detail = weights;
      m.named = weights;
      m.expect = Expect::refusal;
      fs::remove(file(weights));
  }
  for (auto const& entry : fs::directory_iterator(folder)) m.bytes += entry.file_size();
  return m;
}

}  // namespace p3d::fuzz
