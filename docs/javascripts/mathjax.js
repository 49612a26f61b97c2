// Settings of the MathJax in vendor/, which typesets the formulas that pymdownx.arithmatex marks.
window.MathJax = {
  tex: {
    inlineMath: [["\\(", "\\)"]],
    displayMath: [["\\[", "\\]"]],
    processEscapes: true,
    processEnvironments: true,
  },
  // The menu would load further files, which are not here.
  options: { enableMenu: false, ignoreHtmlClass: ".*|", processHtmlClass: "arithmatex" },
};
