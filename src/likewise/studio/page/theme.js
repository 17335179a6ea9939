// The colours a person chose last are there before the first paint. Read by index.html before everything else.
(() => {
  try {
    const chosen = localStorage.getItem("likewise-colours");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.colours = chosen;
  } catch {
    // A browser that keeps nothing follows the system.
  }
})();
