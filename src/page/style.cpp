// SPDX-License-Identifier: Apache-2.0
// The look of the page: the reader's own fonts, light and dark, narrow and wide, on paper. The colours of the runs are
// those of Okabe and Ito, which people with any colour vision tell apart, made darker on light ground and lighter on
// dark ground.

#include "run_page_parts.hpp"

#include <fmt/format.h>

#include <array>

namespace p3d::page {

namespace {

constexpr std::array<char const*, 7> light{"#0072b2", "#d55e00", "#008a63", "#b8558f", "#b47a00", "#2a92cc", "#333333"};
constexpr std::array<char const*, 7> dark{"#58aee8", "#f08a3c", "#2fc497", "#e49cc6", "#e6b03c", "#9ad6f8", "#dddddd"};
/// The dashes of lines. Runs beyond the number of colours are dashed.
constexpr std::array<char const*, 4> dashes{"none", "6 3", "2 2.5", "8 3 2 3"};

constexpr char const* sheet = R"css(
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums;-webkit-text-size-adjust:100%}
main{max-width:1400px;margin:0 auto;padding:20px 28px 40px}
body>input{position:absolute;opacity:0;pointer-events:none}
h1{font-size:24px;font-weight:650;margin:0;overflow-wrap:anywhere}
h2{font-size:16px;font-weight:650;margin:30px 0 8px;break-after:avoid}
h3{font-size:14px;font-weight:650;margin:0}
p{margin:0}
.quiet,small,figcaption p,.panel>p,footer,dt{color:var(--quiet)}
figcaption p,.panel>p,small,footer{font-size:12px}
footer{margin-top:36px;border-top:1px solid var(--line);padding-top:8px}
pre{margin:6px 0;padding:10px 12px;background:var(--sheet);border:1px solid var(--line);border-radius:6px;
overflow-x:auto;font:12px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
code{font:12px/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
summary{cursor:pointer;padding:3px 0}
.notes{margin:10px 0 0;padding:8px 12px 8px 28px;border:1px solid var(--line);border-left:3px solid var(--warn);
border-radius:6px;background:var(--sheet)}
.notes pre{border:0;padding:0;margin:0;background:none;white-space:pre-wrap}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(250px,1fr));gap:0 28px;margin:16px 0 0}
.facts div{border-bottom:1px solid var(--line);padding:6px 0}
.facts dt{font-size:12px}.facts dd{margin:0;overflow-wrap:anywhere}
.scroll{overflow-x:auto}
table{border-collapse:separate;border-spacing:0;font-size:13px}
th,td{text-align:left;vertical-align:top;padding:4px 22px 4px 0;border-bottom:1px solid var(--line);font-weight:400}
td{max-width:26em;overflow-wrap:break-word}
tbody th{color:var(--quiet);white-space:nowrap;position:sticky;left:0;background:var(--ground)}
thead th{font-weight:650;white-space:nowrap}
.bars{margin:4px 0 12px;width:100%;table-layout:fixed}.bars td{padding-right:14px}.bars th:first-child{width:13em}
.bars tbody th{white-space:normal;padding-right:14px}
.bar{display:block;width:100%;height:7px;margin:4px 0 1px}.bar rect{fill:var(--run)}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;margin-top:10px}
.legend label,.switch label{cursor:pointer}
.swatch{width:26px;height:10px;margin-right:7px;vertical-align:0}
.switch{margin:8px 0 12px}
.switch label{display:inline-block;border:1px solid var(--line);padding:2px 10px;color:var(--quiet)}
.switch label:first-of-type{border-radius:6px 0 0 6px;margin-left:6px}
.switch label:last-of-type{border-radius:0 6px 6px 0;border-left:0}
.panels{display:grid;grid-template-columns:repeat(3,minmax(0,1fr));gap:22px 26px;align-items:start}
.pair{grid-template-columns:repeat(2,minmax(0,1fr))}
.panel{margin:0;min-width:0}.wide{grid-column:span 2;grid-row:span 2}.row{grid-column:1/-1}
.chart{display:block;width:100%;height:auto;margin-top:4px;overflow:visible}
.on-narrow{display:none}
.chart text{font-size:12px;fill:var(--quiet)}.chart .title{fill:var(--ink)}
.chart .x{text-anchor:middle}.chart .y{text-anchor:end}
.grid path{stroke:var(--line);stroke-width:1;fill:none}.grid .axis,.grid path[d$="v4"]{stroke:var(--quiet)}
.line,.raw,.between,.start,.flaw{fill:none;stroke:var(--run);stroke-linejoin:round;stroke-linecap:round}
.line{stroke-width:1.7;stroke-dasharray:var(--dash)}.raw{stroke-width:.9;opacity:.45}
.between{stroke-width:1;opacity:.55}.start{stroke-dasharray:2 4;stroke-width:1.2;opacity:.8}.flaw{stroke-width:2}
circle{fill:var(--ground);stroke:var(--run);stroke-width:1.6}.dot{fill:var(--run);stroke:none}
.trace{margin:0 0 16px}.trace img{display:block;min-width:900px;width:100%;margin-top:4px;border-radius:6px;
border:1px solid var(--line)}
#by-steps:checked~main .over-tokens,#by-tokens:checked~main .over-steps{display:none}
#by-steps:checked~main label[for=by-steps],#by-tokens:checked~main label[for=by-tokens]{color:var(--ink);
background:var(--sheet);font-weight:650}
body>input:focus-visible~main .switch,body>input:focus-visible~main .legend{outline:2px solid var(--quiet);
outline-offset:4px}
@media (max-width:1100px){.panels{grid-template-columns:repeat(2,minmax(0,1fr))}.wide{grid-row:auto}}
@media (max-width:680px){main{padding:14px 14px 30px}.panels{grid-template-columns:minmax(0,1fr)}
.wide{grid-column:auto}.on-wide{display:none}.on-narrow{display:block}h1{font-size:20px}
.facts{grid-template-columns:1fr 1fr;gap:0 16px}.chart text{font-size:13px}
tbody th{white-space:normal;min-width:7.5em}th,td{padding-right:14px}}
@media print{body{font-size:11px}main{max-width:none;padding:0}.panel,.trace,tr{break-inside:avoid}.switch{display:none}
.trace img{min-width:0}.panels{grid-template-columns:repeat(2,minmax(0,1fr))}.wide{grid-row:auto}
.scroll,pre{overflow:visible}pre{white-space:pre-wrap}}
)css";

/// Style variables for the colours of the runs, behind `others`.
std::string colours(std::array<char const*, 7> const& runs, char const* others) {
  std::string out = others;
  for (std::size_t i = 0; i < runs.size(); ++i) out += fmt::format(";--c{}:{}", i, runs[i]);
  return out;
}

}  // namespace

std::string style(std::size_t runs) {
  auto const on_light = colours(
                 light, "--ground:#ffffff;--sheet:#f5f6f8;--ink:#1c2128;--quiet:#5c6773;--line:#dfe3e8;--warn:#d55e00"),
             on_dark = colours(
                 dark, "--ground:#14171b;--sheet:#1d2127;--ink:#e6e9ed;--quiet:#9aa5b1;--line:#333a43;--warn:#f08a3c");
  auto out =
      fmt::format(":root{{color-scheme:light dark;{}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{}}}}}",
                  on_light, on_dark);
  out += sheet;
  for (std::size_t r = 0; r < runs; ++r) {
    out += fmt::format(".r{}{{--run:var(--c{});--dash:{}}}\n", r, r % light.size(),
                       dashes[r / light.size() % dashes.size()]);
    if (runs > 1)
      out += fmt::format(
          "#show{0}:not(:checked)~main .chart .r{0}{{display:none}}#show{0}:not(:checked)~main "
          ".legend label[for=show{0}]{{opacity:.4}}\n",
          r);
  }
  return out;
}

}  // namespace p3d::page
