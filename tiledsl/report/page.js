"use strict";
// Anchors lead into what may be folded.
const unfold = () => {
  const to = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = to; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  if (to) to.scrollIntoView({ block: "center" });
};
addEventListener("hashchange", unfold);
unfold();

const holder = document.getElementById("data");
if (holder) {
  const data = JSON.parse(holder.textContent);
  const rows = [...document.querySelectorAll("#trials tbody tr")];
  const heads = [...document.querySelectorAll("#trials th")];
  const texts = rows.map((row, i) => [data.points[i].config, ...[...row.cells].map((cell) => cell.textContent)].join(" ").toLowerCase());
  const search = document.getElementById("search"), axis = document.getElementById("axis");
  const filters = [...document.querySelectorAll("[data-filter]")];
  let shown = data.points;
  for (const hidden of document.querySelectorAll("form.filters, figure")) hidden.hidden = false;

  // Plotly reads a few tags of HTML in texts; none is meant here.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const layout = (x, y) => {
    const axes = { color: color("muted"), gridcolor: color("line"), zeroline: false, automargin: true };
    return {
      margin: { l: 60, r: 16, t: 10, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: color("text"), family: "system-ui, sans-serif" }, showlegend: false, hovermode: "closest",
      hoverlabel: { align: "left" }, xaxis: { ...axes, ...x }, yaxis: { ...axes, ...y }, shapes: [], annotations: [],
    };
  };
  const draw = (place, traces, how) => Plotly.react(place, traces, how, { responsive: true, displayModeBar: false });
  const dots = (points, x, y) => {
    const best = points.map((each) => each.wins);
    return {
      type: "scatter", mode: "markers", x: points.map(x), y: points.map(y), hovertemplate: "%{text}<extra></extra>",
      text: points.map((each) => plain(each.config).replace(/ /g, "<br>") + "<br>" + plain(each.label)),
      marker: {
        size: best.map((wins) => (wins ? 14 : 7)), symbol: best.map((wins) => (wins ? "star" : "circle")),
        color: best.map((wins) => color(wins ? "good" : "accent")), opacity: best.map((wins) => (wins ? 1 : 0.65)),
      },
    };
  };

  function times() {
    const chosen = data.plots.axes[axis.value], points = shown.filter((each) => each.ms !== null);
    const x = (each) => (axis.value === "0" ? each.rank : each.axes[axis.value - 1]);
    const all = points.map((each) => each.ms), wide = Math.max(...all) > 20 * Math.min(...all);
    // Few values stand side by side, in order: tiles are powers of two.
    const values = [...new Set(data.points.map(x))].filter((each) => each !== null);
    const few = axis.value !== "0" && (values.length <= 16 || values.some((each) => typeof each === "string"));
    const order = values.every((each) => typeof each === "number") ? values.sort((a, b) => a - b) : values.sort();
    const how = layout({ title: { text: plain(chosen) }, ...(few ? { type: "category", categoryorder: "array", categoryarray: order } : {}) },
      { title: { text: "milliseconds" }, ...(wide ? { type: "log" } : {}) });
    const line = data.plots.reference;
    if (line !== null) {
      const y = wide ? Math.log10(line) : line;
      how.shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: line, y1: line, line: { color: color("muted"), dash: "dash" } });
      how.annotations.push({ xref: "paper", x: 1, y, xanchor: "right", yanchor: "bottom", showarrow: false, text: "reference", font: { color: color("muted") } });
    }
    draw("times", [dots(points, x, (each) => each.ms)], how);
  }

  function roofline() {
    const roof = data.plots.roofline;
    if (!roof) return;
    const points = shown.filter((each) => each.tflops !== null), at = roof.intensity, ridge = roof.tera / roof.dram;
    const left = Math.min(at, ridge) / 8, right = Math.max(at, ridge) * 8;
    const limit = { type: "scatter", mode: "lines", x: [left, ridge, right], y: [left * roof.dram, roof.tera, roof.tera],
      line: { color: color("muted") }, hoverinfo: "skip" };
    draw("roofline", [limit, dots(points, () => at, (each) => each.tflops)],
      layout({ type: "log", title: { text: "operations per byte of memory" } }, { type: "log", title: { text: "TFLOP/s" } }));
  }

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (i) => words.every((word) => word.includes("=") ? texts[i].split(" ").includes(word) : texts[i].includes(word)) &&
      filters.every((each) => each.value === "" || each.value ===
        (each.dataset.filter === "status" ? data.points[i].status : data.points[i].values[data.tunables[each.dataset.filter]]));
    shown = [];
    for (const row of rows) {
      const i = Number(row.dataset.row);
      row.hidden = !fits(i);
      if (!row.hidden) shown.push(data.points[i]);
    }
    document.getElementById("count").textContent = `${shown.length} of ${rows.length} configurations`;
    times();
    roofline();
  }

  data.plots.axes.forEach((name, i) => axis.add(new Option(name, i)));
  axis.addEventListener("change", times);
  search.addEventListener("input", filter);
  filters.forEach((each) => each.addEventListener("change", filter));
  document.querySelector("form.filters").addEventListener("submit", (event) => event.preventDefault());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", filter);
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const way = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", way === 1 ? "ascending" : "descending");
    const key = (row) => data.points[row.dataset.row].keys[column];
    rows.sort((a, b) => {
      const one = key(a), other = key(b);
      if (one === null || other === null) return (one === null) - (other === null);
      return way * (typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other)));
    });
    rows[0].parentElement.append(...rows);
  }));
  filter();
}
