"use strict";
// Draws the pictures from the data in the page, each when it comes into sight, and all of them before printing.
// Without it the tables stay open and say the same.
(() => {
  const specs = JSON.parse(document.getElementById("data").textContent);
  const NARROW_PX = 600;
  const PRINTED_PX = 680;
  const drawn = new Map();
  let printing = false;

  const legend = (spec, toggle) => {
    const list = document.createElement("ul");
    list.className = "legend";
    for (const entry of polystemCharts.entries(spec)) {
      const item = list.appendChild(document.createElement("li"));
      const button = item.appendChild(document.createElement("button"));
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      const mark = button.appendChild(document.createElement("i"));
      mark.className = entry.block ? "block" : entry.dashed ? "dashed" : "";
      mark.dataset.hue = entry.hue;
      button.append(entry.name);
      button.addEventListener("click", () => {
        button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") === "true" ? "false" : "true");
        toggle(entry.name);
      });
    }
    return list;
  };

  const tint = (list, spec) => {
    const marks = list.querySelectorAll("i");
    polystemCharts.entries(spec).forEach((entry, at) => {
      marks[at].style.borderColor = polystemCharts.colour(entry.hue);
      marks[at].style.backgroundColor = entry.block ? polystemCharts.colour(entry.hue) : "";
    });
  };

  const prepare = (box, spec) => {
    box.hidden = false;
    const height = polystemCharts.height(spec);
    if (height) box.style.height = height + "px";
    const list = legend(spec, (name) => drawn.get(box)?.chart.dispatchAction({ type: "legendToggleSelect", name }));
    tint(list, spec);
    box.before(list);
    if (spec.title) {
      const title = document.createElement("p");
      title.className = "subtitle";
      title.textContent = spec.title.charAt(0).toUpperCase() + spec.title.slice(1);
      list.before(title);
    }
    box.parentElement.querySelector("details").open = false;
    return list;
  };

  const options = (box, spec) => polystemCharts.options(spec, box.clientWidth < NARROW_PX, printing);

  const draw = (box) => {
    if (drawn.has(box)) return;
    const spec = specs[box.id];
    const chart = echarts.init(box, null, { renderer: "canvas", devicePixelRatio: Math.max(window.devicePixelRatio, 2) });
    chart.setOption(options(box, spec));
    drawn.set(box, { chart, spec });
  };

  const again = () => {
    for (const [box, list] of lists) tint(list, specs[box.id]);
    for (const [box, { chart, spec }] of drawn) chart.setOption(options(box, spec), true);
  };

  const fit = () => {
    for (const [box, { chart, spec }] of drawn) {
      chart.resize();
      chart.setOption(options(box, spec), true);
    }
  };

  const lists = new Map();
  for (const [id, spec] of Object.entries(specs)) {
    const box = document.getElementById(id);
    lists.set(box, prepare(box, spec));
  }

  const seen = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
    { rootMargin: "600px" },
  );
  for (const box of lists.keys()) seen.observe(box);

  let opened = [];
  const print = (begins) => {
    printing = begins;
    document.documentElement.toggleAttribute("data-printing", begins);
    if (begins) {
      opened = [...document.querySelectorAll("section details:not([open]):not(.long)")].filter((each) => !each.closest(".notices"));
      for (const box of lists.keys()) draw(box);
    }
    for (const each of opened) each.open = begins;
    for (const { chart } of drawn.values()) chart.resize(begins ? { width: PRINTED_PX } : { width: "auto" });
    again();
  };
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  let settled = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(settled);
    settled = requestAnimationFrame(() => printing || fit());
  });
})();
