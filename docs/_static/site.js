// Small repairs of the theme for keyboards and screen readers.
document.addEventListener("DOMContentLoaded", () => {
  // The label holds the visible text, so that speech input finds the button by it.
  for (const button of document.querySelectorAll(".search-button-field")) button.ariaLabel = "Search Ctrl+K";
  // Wide tables scroll: by keyboard too.
  const reachable = () => {
    for (const box of document.querySelectorAll("table, .pst-scrollable-table-container, .cell_output div, pre")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    }
  };
  reachable();
  addEventListener("resize", reachable);
});
