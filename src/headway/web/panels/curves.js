// What was measured while the run went on.
PANELS.curves = {
  title: "Curves",
  draw(host, section) { drawCharts(host, section.charts); },
};
