// SPDX-License-Identifier: Apache-2.0
#include "config/files.hpp"
#include "config/rules.hpp"

#include <fmt/format.h>

namespace p3d::config {

namespace {

/// A file to resume from must be there, and checkpoint.load = "weights" needs one.
void check_resume(Check const& c) {
  if (!c.known({"checkpoint.resume"})) return;
  auto const& resume = c.config.checkpoint.resume;
  bool const file = resume != "auto" && resume != "none";
  if (c.known({"checkpoint.load"}) && c.config.checkpoint.load == Load::weights && !file) {
    c.error({"checkpoint.load", "checkpoint.resume"}, "checkpoint.resume to name the file whose weights are loaded",
            fmt::format("resume = \"{}\"", resume),
            "set checkpoint.resume = \"FOLDER/NAME-STEP.h5\" (a run that was stopped goes on by the same command), or "
            "checkpoint.load = \"all\"");
  }
  if (c.known({"checkpoint.load", "model.load"}) && file && c.config.checkpoint.load == Load::weights &&
      !c.config.model.load.empty()) {
    c.error({"checkpoint.load", "model.load"}, "weights from one place",
            fmt::format("checkpoint.resume = \"{}\" and model.load = \"{}\"", resume, c.config.model.load),
            "remove model.load, or set checkpoint.resume to \"auto\" and checkpoint.load to \"all\"");
  }
  if (!file) return;
  if (auto const wrong = no_file(resume))
    c.error({"checkpoint.resume"}, "\"auto\", \"none\" or an existing checkpoint",
            fmt::format("no file {}{}", resume, wrong->missing ? "" : ": it is " + wrong->found),
            wrong->fix + "; p3d checkpoint ls FOLDER lists checkpoints");
}

/// A checkpoint of step 0 needs checkpoints at all.
void check_at_start(Check const& c) {
  if (!c.known({"checkpoint.at_start", "checkpoint.every"})) return;
  if (!c.config.checkpoint.at_start || c.config.checkpoint.on()) return;
  c.error({"checkpoint.at_start", "checkpoint.every"}, "checkpoint.every, without which no checkpoints are written",
          "checkpoint.every = 0", "set checkpoint.every = \"end\", or checkpoint.at_start = false");
}

}  // namespace

void check_checkpoint(Check const& check) {
  check_at_start(check);
  check_resume(check);
}

}  // namespace p3d::config
