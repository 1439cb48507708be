"use strict";
// From the chart values in the page to options of the chart library. Text is drawn on the canvas, never as HTML.
const polystemCharts = (() => {
  const style = getComputedStyle(document.documentElement);
  const HUES = 8;
  const colour = (hue) => style.getPropertyValue("--" + (typeof hue === "number" ? "hue-" + (hue % HUES) : hue)).trim();

  const number = (value) =>
    value === null || value === undefined ? "-"
      : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en-US")
        : Number(value.toPrecision(4)).toString();
  const told = (axis, value) => (axis.percent ? Number((value * 100).toPrecision(4)) + " %" : number(value));
  const short = (text, most) => (text.length > most ? text.slice(0, most - 1) + "\u2026" : text);

  // Of a name that is too long both ends: names of one chart often begin alike.
  const joined = (text, most) => (text.length > most ? text.slice(0, Math.ceil((most - 1) / 2)) + "\u2026" + text.slice(-Math.floor((most - 1) / 2)) : text);

  // Pixels that the longest name of a row takes, in a font of 12; names beyond `most` are cut.
  const room = (names, most) => Math.ceil(16 + 6.7 * Math.min(most, Math.max(0, ...names.map((name) => name.length))));

  const axisOf = (axis, narrow, more) => ({
    type: "value", name: axis.name, nameLocation: "middle", nameGap: 32, scale: axis.least === null,
    min: axis.least === null ? null : axis.least, max: axis.most === null ? null : axis.most,
    minInterval: axis.whole ? 1 : 0, splitNumber: narrow ? 4 : 6,
    interval: axis.most === null ? undefined : axis.most / (narrow ? 4 : 5),
    nameTextStyle: { color: colour("soft"), fontSize: 12 },
    axisLabel: {
      color: colour("soft"), hideOverlap: true,
      formatter: (value) => (axis.percent ? Number((value * 100).toPrecision(4)) + " %" : value.toLocaleString("en-US")),
    },
    axisLine: { lineStyle: { color: colour("rule") } }, splitLine: { lineStyle: { color: colour("rule"), opacity: 0.5 } },
    ...more,
  });

  const frame = (more) => ({
    animation: false, backgroundColor: "transparent",
    textStyle: { color: colour("ink"), fontFamily: "system-ui, sans-serif" },
    grid: { left: 70, right: 22, top: 22, bottom: 52 },
    legend: { show: false },
    tooltip: {
      trigger: "item", renderMode: "richText", confine: true, backgroundColor: colour("panel"),
      borderColor: colour("rule"), textStyle: { color: colour("ink"), fontSize: 12 },
    },
    ...more,
  });
  const tooltip = (more) => ({ ...frame({}).tooltip, ...more });

  // A line of its own for the rules, so that they stay when others are switched off, and that the axes reach them.
  const ruled = (rules, [anchorX, anchorY], upright = "end") =>
    rules.length === 0 ? []
      : [{
        type: "line", name: "", silent: true, symbol: "none", lineStyle: { opacity: 0 },
        data: rules.map((rule) => (rule.across === "y" ? [anchorX, rule.at] : [rule.at, anchorY])),
        markLine: {
          silent: true, symbol: "none", lineStyle: { color: colour("floor"), type: "solid", width: 1.5 },
          data: rules.map((rule) => ({
            [rule.across === "y" ? "yAxis" : "xAxis"]: rule.at,
            lineStyle: { type: rule.word.startsWith("floor") || rule.word === "1" ? "solid" : "dashed" },
            label: {
              formatter: () => rule.word, color: colour("floor"), distance: 4, fontWeight: 600,
              backgroundColor: colour("paper"), padding: [1, 4], position: rule.across === "y" ? "insideEndTop" : upright,
            },
          })),
        },
      }];

  const band = (line) => ({
    type: "custom", name: line.name, silent: true, z: 1, encode: { x: 0, y: [1, 2] }, data: line.band,
    renderItem: (params, api) => {
      if (params.dataIndexInside !== 0) return null;
      const high = line.band.map((at) => api.coord([at[0], at[2]]));
      const low = line.band.map((at) => api.coord([at[0], at[1]])).reverse();
      return { type: "polygon", shape: { points: [...high, ...low] }, style: { fill: colour(line.hue), opacity: 0.15 } };
    },
  });

  const oneLine = (line) => ({
    type: "line", name: line.name, step: line.steps || false, showSymbol: line.dotted, symbolSize: 5, z: 3,
    stack: line.stacked ? "all" : undefined, yAxisIndex: line.on_right ? 1 : 0, itemStyle: { color: colour(line.hue) },
    lineStyle: { width: line.stacked ? 1 : 2, type: line.dashed ? "dashed" : "solid", color: colour(line.hue) },
    areaStyle: line.stacked ? { opacity: 0.75, color: colour(line.hue) } : undefined, data: line.points,
  });

  const linesTip = (chart) => (items) => {
    const shown = items.filter((item) => item.seriesName && item.seriesType === "line");
    if (shown.length === 0) return "";
    const rows = shown.map((item) => {
      const line = chart.lines.find((each) => each.name === item.seriesName);
      const axis = line && line.on_right ? chart.right : chart.y;
      return `${item.seriesName}: ${item.value[1] === null ? "-" : told(axis, item.value[1])}`;
    });
    return [`${chart.x.name}: ${number(shown[0].value[0])}`, ...rows].join("\n");
  };

  const lines = (chart, narrow) => {
    const anchor = chart.lines.flatMap((line) => line.points).find((at) => at[1] !== null) || [0, 0];
    return frame({
      grid: { left: 70, right: chart.right ? 56 : 22, top: 22, bottom: 52 },
      tooltip: tooltip({ trigger: "axis", formatter: linesTip(chart) }),
      xAxis: axisOf(chart.x, narrow, { splitLine: { show: false } }),
      yAxis: [
        axisOf(chart.y, narrow, { nameGap: 52 }),
        ...(chart.right ? [axisOf(chart.right, narrow, { nameGap: 36, splitLine: { show: false } })] : []),
      ],
      series: [
        ...chart.lines.filter((line) => line.band.length > 1).map(band), ...chart.lines.map(oneLine),
        ...ruled(chart.rules, anchor),
      ],
    });
  };

  const bar = (params, api) => {
    const from = api.coord([api.value(1), api.value(0)]);
    const to = api.coord([api.value(2), api.value(0)]);
    const height = Math.min(20, api.size([0, 1])[1] * 0.75);
    const area = params.coordSys;
    const shape = echarts.graphic.clipRectByRect(
      { x: from[0], y: from[1] - height / 2, width: Math.max(to[0] - from[0], 0.6), height },
      { x: area.x, y: area.y, width: area.width, height: area.height },
    );
    return shape && { type: "rect", shape, style: { fill: api.visual("color") } };
  };

  const timeline = (chart, narrow, printing) => {
    const end = chart.segments.reduce((most, s) => Math.max(most, s[3]), 0.1);
    const width = narrow ? 84 : 150;
    return frame({
      grid: { left: width + 8, right: 22, top: 8, bottom: printing ? 52 : 88 },
      tooltip: tooltip({
        formatter: (at) => `package ${chart.rows[at.value[0]]}, step ${at.value[3]}\n${at.seriesName}: `
          + `${number(at.value[2] - at.value[1])} s, from ${number(at.value[1])} s`,
      }),
      xAxis: axisOf(chart.x, narrow, { max: Math.ceil(end * 10) / 10, axisLabel: { ...axisOf(chart.x).axisLabel, showMaxLabel: false } }),
      yAxis: {
        type: "category", inverse: true, data: chart.rows.map((_, row) => row), splitLine: { show: false },
        axisLine: { lineStyle: { color: colour("rule") } }, axisTick: { show: false },
        axisLabel: {
          interval: 0, width, overflow: "truncate", fontSize: 11, formatter: (row) => chart.rows[row],
          color: (row) => (chart.ends[row] ? colour("soft") : colour("bad")),
        },
      },
      dataZoom: printing ? [] : [{ type: "slider", xAxisIndex: 0, filterMode: "none", height: 18, bottom: 10, textStyle: { color: colour("soft") } }],
      series: chart.phases.map((phase, index) => ({
        name: phase, type: "custom", renderItem: bar, itemStyle: { color: colour(phase) }, encode: { x: [1, 2], y: 0 },
        data: chart.segments.filter((s) => s[0] === index).map((s) => s.slice(1)),
      })),
    });
  };

  const ROW_LETTERS = (narrow) => (narrow ? 16 : 24);

  const bars = (chart, narrow) => frame({
    grid: { left: room(chart.rows, ROW_LETTERS(narrow)), right: 40, top: 22, bottom: 52 },
    tooltip: tooltip({ formatter: (at) => `${chart.rows[at.dataIndex]}\n${at.seriesName}: ${told(chart.x, at.value)}` }),
    xAxis: axisOf(chart.x, narrow),
    yAxis: {
      type: "category", inverse: true, data: chart.rows.map((_, row) => row), axisTick: { show: false },
      axisLine: { lineStyle: { color: colour("rule") } },
      axisLabel: { interval: 0, color: colour("ink"), formatter: (row) => short(chart.rows[row], ROW_LETTERS(narrow)) },
    },
    series: [
      ...chart.stacks.map((part) => ({
        type: "bar", name: part.name, stack: chart.stacked ? "all" : undefined, barMaxWidth: 26, itemStyle: { color: colour(part.hue) },
        data: part.values,
      })),
      ...ruled(chart.rules, [0, 0]),
    ],
  });

  const leansLeft = (chart, dot) => {
    const across = chart.dots.map((each) => each.x);
    return dot.x > (Math.min(...across) + Math.max(...across)) / 2;
  };

  const dots = (chart, narrow) => frame({
    tooltip: tooltip({
      formatter: (at) => (at.seriesType === "scatter"
        ? `${chart.dots[at.dataIndex].name}\n${chart.x.name}: ${told(chart.x, at.value[0])}\n${chart.y.name}: ${told(chart.y, at.value[1])}` : ""),
    }),
    xAxis: axisOf(chart.x, narrow, { boundaryGap: ["12%", "12%"], splitLine: { show: false } }),
    yAxis: axisOf(chart.y, narrow, { nameGap: 52, max: (reach) => Math.min(1, Math.ceil(Math.max(reach.max * 1.1, 0.06) * 10) / 10) }),
    series: [
      {
        type: "line", name: "front", silent: true, symbol: "none", step: "end", data: chart.front,
        lineStyle: { color: colour("soft"), type: "dashed", width: 1.5 },
      },
      {
        type: "scatter", name: "arms", symbolSize: 13, data: chart.dots.map((dot) => ({
          value: [dot.x, dot.y], label: { position: leansLeft(chart, dot) ? "left" : "right" },
          itemStyle: dot.filled ? { color: colour(dot.hue) } : { color: "transparent", borderColor: colour(dot.hue), borderWidth: 2 },
        })),
        label: {
          show: true, position: "right", distance: 8, color: colour("ink"), fontSize: 12,
          formatter: (at) => short(chart.dots[at.dataIndex].name, narrow ? 18 : 32),
        },
        labelLayout: { moveOverlap: "shiftY" },
      },
      ...ruled(chart.rules, chart.dots.length ? [chart.dots[0].x, chart.dots[0].y] : [0, 0]),
    ],
  });

  const whisker = (chart) => (params, api) => {
    const row = chart.rows[params.dataIndex];
    if (row.low === null || row.high === null) return null;
    const [low, high] = [row.low, row.high].map((value) => api.coord([value, params.dataIndex]));
    const style = { stroke: colour("ink"), lineWidth: 2 };
    const edge = (at) => ({ type: "line", shape: { x1: at[0], y1: at[1] - 6, x2: at[0], y2: at[1] + 6 }, style });
    return {
      type: "group",
      children: [{ type: "line", shape: { x1: low[0], y1: low[1], x2: high[0], y2: high[1] }, style }, edge(low), edge(high)],
    };
  };

  const forest = (chart, narrow) => {
    const [names, most] = narrow ? [chart.rows.map((row) => row.name.split(" (")[0]), 18] : [chart.rows.map((row) => row.name), 52];
    const all = chart.rows.flatMap((row) => [row.value, row.low ?? row.value, row.high ?? row.value]);
    // Ratios far apart: on a straight scale the largest would press all others together.
    const doubling = chart.at === 1 && Math.min(...all) > 0 && Math.max(...all, 1) / Math.min(...all, 1) > 4;
    const values = chart.rows.map((row, at) => [row.value, at, row.low ?? row.value, row.high ?? row.value]);
    return frame({
      grid: { left: room(names, most), right: 28, top: 22, bottom: 52 },
      tooltip: tooltip({
        formatter: (at) => {
          const row = chart.rows[at.dataIndex];
          const interval = row.low === null ? chart.bare : `${told(chart.x, row.low)} to ${told(chart.x, row.high)}`;
          return `${row.name}\n${told(chart.x, row.value)} (${interval})`;
        },
      }),
      xAxis: axisOf(chart.x, narrow, doubling ? { type: "log", logBase: 2, name: chart.x.name + " (logarithmic)" } : {}),
      yAxis: {
        type: "category", inverse: true, data: chart.rows.map((_, row) => row), axisTick: { show: false },
        axisLine: { show: false }, splitLine: { show: false },
        axisLabel: { interval: 0, color: colour("ink"), formatter: (row) => joined(names[row], most) },
      },
      series: [
        { type: "custom", name: "interval", renderItem: whisker(chart), encode: { x: [0, 2, 3], y: 1 }, data: values },
        {
          type: "scatter", name: "value", symbolSize: 10, z: 4, encode: { x: 0, y: 1 },
          data: chart.rows.map((row, at) => ({ value: [row.value, at], itemStyle: { color: colour(row.hue), opacity: 1 } })),
        },
        ...ruled(chart.at === null ? [] : [{ across: "x", at: chart.at, word: number(chart.at) }], [0, 0], "start"),
      ],
    });
  };

  const entries = (chart) => {
    if (chart.kind === "lines") return chart.lines.map((line) => ({ name: line.name, hue: line.hue, dashed: line.dashed, block: line.stacked }));
    if (chart.kind === "timeline") return chart.phases.map((phase) => ({ name: phase, hue: phase, block: true }));
    if (chart.kind === "bars") return chart.stacks.map((part) => ({ name: part.name, hue: part.hue, block: true }));
    return [];
  };

  const height = (chart) => {
    if (chart.kind === "timeline") return Math.max(200, 110 + chart.rows.length * (chart.rows.length > 30 ? 17 : 26));
    if (chart.kind === "bars") return 90 + chart.rows.length * Math.max(36, chart.stacked ? 0 : chart.stacks.length * 18);
    if (chart.kind === "forest") return 100 + chart.rows.length * 34;
    return null;
  };

  const kinds = { lines, timeline, bars, dots, forest };
  return { options: (chart, narrow, printing) => kinds[chart.kind](chart, narrow, printing), entries, height, colour };
})();
