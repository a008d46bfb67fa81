// SPDX-License-Identifier: Apache-2.0
// The config.json of a model that began as another one: the file of that one, with what has changed and nothing else.
//
// The change is found by comparing the files that p3d itself writes for both models. Training changes the length of
// texts and dropout; the export may change the type of the numbers. Any other difference means that the file is not of
// this model, and it is not used.

#include <p3d/config/hugging_face.hpp>

#include <p3d/base/error.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>

namespace p3d::config {

namespace {

using Json = nlohmann::ordered_json;

/// The keys that may differ between a model and the one that it began as.
bool may_change(std::string_view key) {
  constexpr std::string_view keys[] = {
      "max_position_embeddings", "n_positions", "n_ctx", "resid_pdrop", "embd_pdrop", "attn_pdrop"};
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

/// The config.json that p3d writes for a model that began in a family; type and end of text are left open.
Json own_file(Model const& m, ModelFamily origin) { return Json::parse(write_hugging_face(m, "float32", -1, origin)); }

/// The file of the origin, and the list of changes that are made to it.
class Update {
public:
  explicit Update(Json file) : file_(std::move(file)) {}

  bool has(char const* key) const { return file_.contains(key) && !file_[key].is_null(); }
  Json const& operator[](char const* key) const { return file_[key]; }
  /// Gives a key a value, and notes the change with `why`.
  void set(std::string const& key, Json const& value, std::string const& why = "") {
    auto const before = file_.contains(key) ? file_[key].dump() : "none";
    if (file_.contains(key) && file_[key] == value) return;
    out_.changes.push_back(fmt::format("{} = {} ({} in the origin{})", key, value.dump(), before, why));
    file_[key] = value;
    changed_ = true;
  }
  /// Adds a line to the changes without one in the file.
  void note(std::string text) { out_.changes.push_back(std::move(text)); }

  /// The result: the bytes of `origin` when nothing has changed.
  UpdatedConfig finish(std::string_view origin) && {
    out_.text = changed_ ? file_.dump(2) + "\n" : std::string(origin);
    return std::move(out_);
  }

private:
  Json file_;
  UpdatedConfig out_;
  bool changed_ = false;
};

/// Sets eos_token_id where the origin has none; notes it where the origin names another token.
void update_end(Update& file, std::int64_t eos_token) {
  if (eos_token < 0) return;
  if (!file.has("eos_token_id")) return file.set("eos_token_id", eos_token);
  auto const& there = file["eos_token_id"];
  bool const named = there.is_array() ? std::find(there.begin(), there.end(), Json(eos_token)) != there.end()
                                      : there == Json(eos_token);
  if (!named)
    file.note(fmt::format("eos_token_id = {}, as in the origin, although documents of the run end with {}",
                          there.dump(), eos_token));
}

/// Keeps the stretch of longrope, which follows from max_position_embeddings where a file does not say it.
void keep_stretch(Update& file, Model const& began, Model const& now) {
  if (now.rope_scaling != RopeScaling::longrope || now.seq_len == began.seq_len) return;
  for (char const* key : {"rope_parameters", "rope_scaling"}) {  // a file may have both, which are equal then
    if (!file.has(key) || !file[key].is_object()) continue;
    auto rope = file[key];
    if (rope.contains("factor") && !rope["factor"].is_null()) continue;
    rope["factor"] = began.rope_scaling_factor;
    file.set(key, rope, "; without factor another one would follow from max_position_embeddings");
  }
}

}  // namespace

UpdatedConfig update_hugging_face(std::string_view origin, std::string const& path, Model const& model,
                                  std::string_view dtype, std::int64_t eos_token) {
  auto const there = read_hugging_face(origin, path);  // it checks, too, that every key is there once
  auto const family = there.family;
  auto began = there.model;
  began.mtp = model.mtp;  // the number of its blocks is set below
  Update file(Json::parse(origin));
  auto now = model;
  if (model.position == Position::rope && model.seq_len < began.seq_len) {
    now.seq_len = began.seq_len;  // the run read shorter texts, and the model can do no less than before
    file.note(fmt::format("max_position_embeddings = {}, as in the origin, although model.seq_len of the run is {}",
                          began.seq_len, model.seq_len));
  }
  auto const before = own_file(began, family), after = own_file(now, family);
  for (auto const& item : after.items()) {
    auto const& key = item.key();
    if (before.contains(key) && before[key] == item.value()) continue;
    if (!may_change(key)) {
      base::refuse({.expected = fmt::format("{} = {}, as the model has it", key, item.value().dump()),
                    .found = before.contains(key) ? before[key].dump() : "none",
                    .where = path,
                    .fix = "name the folder of the model that the run began with"});
    }
    if (key != "n_ctx" || file.has("n_ctx")) file.set(key, item.value());  // older files have n_ctx
  }
  keep_stretch(file, began, now);
  constexpr char const* predicts = "num_nextn_predict_layers";
  bool const named = file.has(predicts) || file.has("num_mtp_layers");
  for (char const* key : {predicts, "num_mtp_layers"})
    if (file.has(key)) file.set(key, model.mtp.depth, "; model.mtp.depth of the run");
  if (!named && model.mtp.on()) file.set(predicts, model.mtp.depth, "; model.mtp.depth of the run");
  for (char const* key : {"dtype", "torch_dtype"})  // the names in transformers 5, and before
    if (file.has(key)) file.set(key, dtype, "; --dtype chooses the type of the numbers");
  update_end(file, eos_token);
  auto out = std::move(file).finish(origin);
  out.family = family;
  return out;
}

}  // namespace p3d::config
