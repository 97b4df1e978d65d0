// Runs before a page's own scripts and records when the page last changed, for settled.js.
//
// The blinking caret is hidden, for it would make two screenshots of one state differ. Short one-
// shot timers count as activity, since fields that search while one types wait some 0.3 s before
// they ask. `budget` bounds how many, so that a page that draws itself by timers does not hold up
// every step.
(() => {
  const activity = {
    changed: performance.now(), timers: new Set(), budget: 8, setTimeout: window.setTimeout,
  };
  const touch = () => { activity.changed = performance.now(); };
  const everything = {subtree: true, childList: true, attributes: true, characterData: true};
  new MutationObserver(touch).observe(document, everything);
  document.addEventListener('scroll', touch, {capture: true, passive: true});
  const style = new CSSStyleSheet();
  style.replaceSync('* { caret-color: transparent !important }');
  document.adoptedStyleSheets = [style];
  const clear = window.clearTimeout;
  window.setTimeout = function (work, delay, ...args) {
    if (typeof work !== 'function' || !(delay >= 1 && delay <= 500) || activity.budget <= 0)
      return activity.setTimeout.call(window, work, delay, ...args);
    activity.budget -= 1;
    const run = function (...values) {
      activity.timers.delete(id);
      touch();
      work.apply(this, values);
    };
    const id = activity.setTimeout.call(window, run, delay, ...args);
    activity.timers.add(id);
    return id;
  };
  window.clearTimeout = id => { activity.timers.delete(id); clear.call(window, id); };
  Object.defineProperty(window, '__activity', {value: activity});
})()
