"use strict";
// Draws the pictures from the data in the page. Without it the tables stay open and say the same.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const PHASES = ["queue", "prefill", "decode", "tools"];
  const drawn = [];

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const armColour = (arm) => colour(arm) || colour("decode");
  const axis = (name, more) => ({
    name, nameLocation: "middle", nameGap: 30, nameTextStyle: { color: colour("soft") },
    axisLabel: { color: colour("soft") }, axisLine: { lineStyle: { color: colour("rule") } },
    splitLine: { lineStyle: { color: colour("rule"), opacity: 0.5 } }, ...more,
  });
  const frame = (more) => ({
    animation: false, backgroundColor: "transparent", textStyle: { color: colour("ink"), fontFamily: "system-ui, sans-serif" },
    grid: { left: 76, right: 24, top: 44, bottom: 56 },
    tooltip: {
      trigger: "item", renderMode: "richText", confine: true, backgroundColor: colour("panel"), borderColor: colour("rule"),
      textStyle: { color: colour("ink") },
    },
    legend: { top: 6, textStyle: { color: colour("ink") }, inactiveColor: colour("rule") }, ...more,
  });

  const lineLegend = () => ({ ...frame({}).legend, itemWidth: 36, itemStyle: { opacity: 0 } });

  const draw = (id, options, height) => {
    const box = document.getElementById(id);
    if (!box) return;
    box.hidden = false;
    if (height) box.style.height = height + "px";
    const chart = echarts.init(box, null, { renderer: "canvas" });
    chart.setOption(options());
    drawn.push({ chart, options });
    box.parentElement.querySelector("details").open = false;
  };

  const longest = () => Math.max(0.1, ...Object.values(data.lines).flat().flatMap((line) => line.segments.map((s) => s[2])));

  const bar = (params, api) => {
    const from = api.coord([api.value(1), api.value(0)]);
    const to = api.coord([api.value(2), api.value(0)]);
    const height = Math.min(22, api.size([0, 1])[1] * 0.7);
    const area = params.coordSys;
    const shape = echarts.graphic.clipRectByRect(
      { x: from[0], y: from[1] - height / 2, width: Math.max(to[0] - from[0], 0.6), height },
      { x: area.x, y: area.y, width: area.width, height: area.height },
    );
    return shape && { type: "rect", shape, style: { fill: api.visual("color") } };
  };

  const timeLine = (lines) => () => frame({
    grid: { left: 150, right: 24, top: 44, bottom: 92 },
    xAxis: axis("seconds since the arm began", {
      type: "value", min: 0, max: Math.ceil(longest() * 10) / 10,
      axisLabel: { color: colour("soft"), showMaxLabel: false },
    }),
    yAxis: axis("", {
      type: "category", inverse: true, data: lines.map((line) => line.package + " " + line.end), splitLine: { show: false },
      axisLabel: {
        color: (value) => (value.endsWith(" delivered") ? colour("soft") : colour("bad")), width: 130, overflow: "truncate",
      },
    }),
    dataZoom: [{ type: "slider", xAxisIndex: 0, filterMode: "none", height: 18, bottom: 12 }, { type: "inside", xAxisIndex: 0, filterMode: "none" }],
    series: PHASES.map((phase) => ({
      name: phase, type: "custom", renderItem: bar, itemStyle: { color: colour(phase) },
      encode: { x: [1, 2], y: 0 },
      tooltip: {
        formatter: (at) => `package ${lines[at.value[0]].package}, step ${at.value[3]}\n${phase}: ${(at.value[2] - at.value[1]).toFixed(3)} s, from ${at.value[1].toFixed(2)} s`,
      },
      data: lines.flatMap((line, row) => line.segments.filter((s) => s[0] === phase).map((s) => [row, s[1], s[2], s[3]])),
    })),
  });

  const rates = () => frame({
    tooltip: { ...frame({}).tooltip, trigger: "axis" },
    legend: { ...lineLegend(), data: Object.keys(data.rates) },
    xAxis: axis("step", { type: "value", min: 1, minInterval: 1 }),
    yAxis: axis("tokens per second", { type: "value", min: 0, nameGap: 50 }),
    series: Object.entries(data.rates).flatMap(([arm, rows]) => [
      {
        name: arm + ", 5th percentile", type: "line", stack: arm, symbol: "none", lineStyle: { opacity: 0 },
        data: rows.map((r) => [r[0], r[1]]), tooltip: { show: false }, silent: true,
      },
      {
        name: arm + ", middle 90 %", type: "line", stack: arm, symbol: "none", lineStyle: { opacity: 0 },
        areaStyle: { color: armColour(arm), opacity: 0.16 }, data: rows.map((r) => [r[0], r[3] - r[1]]),
        tooltip: { show: false }, silent: true,
      },
      {
        name: arm, type: "line", symbolSize: 5, itemStyle: { color: armColour(arm) }, lineStyle: { width: 2 },
        data: rows.map((r) => [r[0], r[2]]),
      },
    ]),
  });

  const cells = () => frame({
    tooltip: { ...frame({}).tooltip, trigger: "axis" },
    legend: lineLegend(),
    xAxis: axis("seconds since the arm began", { type: "value", min: 0 }),
    yAxis: axis("KV cells", { type: "value", min: 0, nameGap: 56 }),
    series: Object.entries(data.cells).flatMap(([arm, rows]) => [
      {
        name: arm + ", in use", type: "line", step: "end", symbol: "none", itemStyle: { color: armColour(arm) }, lineStyle: { width: 2 },
        areaStyle: { color: armColour(arm), opacity: 0.1 }, data: rows.map((r) => [r[0], r[1]]),
      },
      {
        name: arm + ", if nothing were shared", type: "line", step: "end", symbol: "none", itemStyle: { color: armColour(arm) },
        lineStyle: { width: 2, type: "dashed" }, data: rows.map((r) => [r[0], r[2]]),
      },
    ]),
  });

  for (const [arm, lines] of Object.entries(data.lines)) {
    if (lines.length) draw("line-" + arm, timeLine(lines), Math.max(240, 150 + lines.length * 26));
  }
  if (Object.values(data.rates).some((rows) => rows.length)) draw("rates", rates);
  if (Object.values(data.cells).some((rows) => rows.length)) draw("cells", cells);

  const again = () => drawn.forEach(({ chart, options }) => chart.setOption(options(), true));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  window.addEventListener("resize", () => drawn.forEach(({ chart }) => chart.resize()));
})();
