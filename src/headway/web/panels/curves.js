// @ts-check
// Training curves.
PANELS.curves = {
  title: "Curves",
  draw(host, section) {
    drawCharts(host, section.charts);
  },
};
