// Small repairs of the theme for keyboards and screen readers.
document.addEventListener("DOMContentLoaded", () => {
  // The button's visible text is its name; a shorter label would hide the shortcut from speech input.
  for (const button of document.querySelectorAll(".search-button-field")) button.removeAttribute("aria-label");
  // Wide tables scroll: by keyboard too.
  const reachable = () => {
    for (const box of document.querySelectorAll("table, .pst-scrollable-table-container, .cell_output div, pre")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    }
  };
  reachable();
  addEventListener("resize", reachable);
});
