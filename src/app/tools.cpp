// SPDX-License-Identifier: Apache-2.0
#include "tools.hpp"

#include "calibrate_command.hpp"
#include "checkpoint_command.hpp"
#include "data_command.hpp"
#include "report_command.hpp"
#include "model_commands.hpp"
#include "text_commands.hpp"
#include "tokenize_command.hpp"
#include "tokenizer_command.hpp"

#include <string_view>

namespace p3d::app {

std::optional<int> run_tool(int argc, char** argv) {
  std::string_view const name = argc > 1 ? argv[1] : "";
  if (name == "plan" && argc > 2 && std::string_view(argv[2]) == "calibrate")
    return calibrate_command(argc - 2, argv + 2);
  if (name == "checkpoint") return checkpoint_command(argc - 1, argv + 1);
  if (name == "data" && argc > 2 && std::string_view(argv[2]) == "tokenize")
    return tokenize_command(argc - 2, argv + 2);
  if (name == "data") return data_command(argc - 1, argv + 1);
  if (name == "generate") return generate_command(argc - 1, argv + 1);
  if (name == "eval") return eval_command(argc - 1, argv + 1);
  if (name == "report") return report_command(argc - 1, argv + 1);
  if (name == "import") return import_command(argc - 1, argv + 1);
  if (name == "export") return export_command(argc - 1, argv + 1);
  if (name == "tokenizer") return tokenizer_command(argc - 1, argv + 1);
  return {};
}

}  // namespace p3d::app
