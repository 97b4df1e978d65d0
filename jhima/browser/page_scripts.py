"""What runs inside pages: a watch on changes, the test for quiet, native select boxes made visible, a banner.

None of it changes what a page holds, but while a select box is open or a banner shows.
"""

from __future__ import annotations

QUIET = 0.05  # seconds without a request or a change that count as settled

# Runs before a page's own scripts. The blinking caret would make two screenshots of one state differ. Short one-shot
# timers are waited for, since fields that search while one types wait some 0.3 s before they ask; `budget` bounds how
# many, so that a page that draws itself by timers does not hold up every step.
WATCH = """(() => {
  const seen = {changed: performance.now(), timers: new Set(), budget: 8, set: window.setTimeout};
  const touch = () => { seen.changed = performance.now(); };
  const all = {subtree: true, childList: true, attributes: true, characterData: true};
  new MutationObserver(touch).observe(document, all);
  document.addEventListener('scroll', touch, {capture: true, passive: true});
  const style = new CSSStyleSheet();
  style.replaceSync('* { caret-color: transparent !important }');
  document.adoptedStyleSheets = [style];
  const clear = window.clearTimeout;
  window.setTimeout = function (work, delay, ...given) {
    if (typeof work !== 'function' || !(delay >= 1 && delay <= 500) || seen.budget <= 0)
      return seen.set.call(window, work, delay, ...given);
    seen.budget -= 1;
    const then = function (...a) { seen.timers.delete(id); touch(); work.apply(this, a); };
    const id = seen.set.call(window, then, delay, ...given);
    seen.timers.add(id);
    return id;
  };
  window.clearTimeout = id => { seen.timers.delete(id); clear.call(window, id); };
  Object.defineProperty(window, '__seen', {value: seen});
})()"""

# Resolves with the page's HTTP status (0: unknown) once it is loaded, runs no transition that ends and no short timer,
# and has not changed for `quiet` ms; or after `cap` ms. `acted`: the quiet time starts now, for what just happened may
# have consequences; it is then counted in looks, too, between which the page runs what is due: while a busy machine
# keeps a page from running, nothing changes in it either.
SETTLED = """([quiet, cap, acted]) => new Promise(resolve => {
  const begun = performance.now(), seen = window.__seen, every = 10;
  const ends = a => a.playState === 'running' && isFinite(a.effect?.getComputedTiming().endTime);
  let last = begun, looks = 0;
  const look = () => {
    const now = performance.now(), since = Math.max(seen?.changed ?? 0, acted ? begun : 0);
    looks = since === last ? looks + 1 : 0;
    last = since;
    const quieted = document.readyState === 'complete' && now - since >= quiet && (!acted || looks * every >= quiet)
      && !seen?.timers.size && !document.getAnimations().some(ends);
    if (!quieted && now - begun < cap) return (seen?.set ?? setTimeout).call(window, look, every);
    if (seen) { seen.budget = 4; if (!quieted) seen.timers.clear(); }
    resolve(performance.getEntriesByType('navigation')[0]?.responseStatus ?? 0);
  };
  look();
})"""


SELECT_ALL = """() => {
  const e = document.activeElement;
  if (e?.select) e.select(); else if (e?.isContentEditable) getSelection().selectAllChildren(e);
}"""

# A native select box opens a window of its own, which no screenshot shows and no click reaches. Instead its options
# are drawn in the page, in a closed shadow root that page styles do not touch. `__options.find(text)` is the place of
# an option of the open box, scrolled into view: null without an open box, [] without such an option to choose.
SELECT_BOX = """(() => {
  let host = null, box = null, rows = [];
  const close = () => { host?.remove(); host = box = null; rows = []; };
  const choose = index => {
    const chosen = box, changed = chosen.selectedIndex !== index;
    close();
    chosen.selectedIndex = index;
    if (changed) for (const kind of ['input', 'change']) chosen.dispatchEvent(new Event(kind, {bubbles: true}));
  };
  const open = select => {
    box = select;
    host = document.createElement('div');
    host.style.cssText = 'all: initial; position: fixed; inset: 0; pointer-events: none; z-index: 2147483647';
    const root = host.attachShadow({mode: 'closed'}), list = document.createElement('div');
    const at = select.getBoundingClientRect(), style = getComputedStyle(select);
    const below = innerHeight - at.bottom, room = Math.max(below, at.top) - 4;
    const left = Math.max(0, Math.min(at.left, innerWidth - at.width));
    list.style.cssText = `position: absolute; box-sizing: border-box; overflow-y: auto; pointer-events: auto; cursor: default;
      max-height: ${room}px; min-width: ${at.width}px; max-width: ${innerWidth}px; left: ${left}px;
      ${below >= room ? `top: ${at.bottom}px` : `bottom: ${innerHeight - at.top}px`}; background: white; color: black;
      border: 1px solid #767676; font: ${style.fontSize} ${style.fontFamily}`;
    let group = null;
    rows = [...select.options].map((option, index) => {
      const parent = option.parentElement;
      if (parent !== group && parent?.tagName === 'OPTGROUP') {
        const head = list.appendChild(document.createElement('div'));
        head.textContent = parent.label;
        head.style.cssText = 'padding: 3px 6px; font-weight: bold; white-space: nowrap';
      }
      group = parent;
      const row = list.appendChild(document.createElement('div')), off = option.disabled || parent?.disabled;
      row.textContent = option.label || option.text || '\\u00a0';
      row.style.cssText = `padding: 3px ${parent?.tagName === 'OPTGROUP' ? 18 : 6}px; min-height: 1.2em;
        white-space: nowrap; ${option.hidden ? 'display: none;' : ''} ${off ? 'color: #999;' : ''}
        ${option.selected ? 'background: #1a73e8; color: white' : ''}`;
      if (!off) row.addEventListener('click', e => { e.stopPropagation(); choose(index); });
      return {row, option, off};
    });
    root.append(list);
    document.documentElement.append(host);
    rows[select.selectedIndex]?.row.scrollIntoView({block: 'nearest'});
  };
  addEventListener('mousedown', e => {
    if (e.composedPath()[0] === host || e.target === host) { e.preventDefault(); e.stopPropagation(); return; }
    const select = e.composedPath().find(n => n instanceof HTMLSelectElement), was = box;
    close();
    if (!select || e.button || select.multiple || select.size > 1 || select.disabled) return;
    e.preventDefault();                             // the native list stays shut
    select.focus();
    if (select !== was) open(select);
  }, true);
  addEventListener('keydown', e => { if (host) { close(); if (e.key === 'Escape') e.stopPropagation(); } }, true);
  addEventListener('scroll', e => { if (host && e.target !== host) close(); }, {capture: true, passive: true});
  Object.defineProperty(window, '__options', {value: {shut: close, find: text => {
    if (!box) return null;
    const same = (a, b) => a.trim().toLowerCase() === b.trim().toLowerCase();
    const found = rows.find(({option, off}) => !off && (option.label === text || option.value === text))
      || rows.find(({option, off}) => !off && (same(option.label, text) || same(option.value, text)));
    if (!found) return [];
    found.row.scrollIntoView({block: 'nearest'});
    const at = found.row.getBoundingClientRect();
    return [at.x + Math.min(at.width, 20) / 2, at.y + at.height / 2];
  }}});
})()"""

# Shows a text over the page's last lines, or takes it away again ("").
BANNER = """text => {
  document.getElementById('__banner')?.remove();
  if (!text) return;
  const bar = document.createElement('div');
  bar.id = '__banner';
  bar.style.cssText = `all: initial; position: fixed; left: 0; right: 0; bottom: 0; z-index: 2147483647;
    pointer-events: none; padding: 4px 8px; background: #222; color: white; font: 14px/1.3 sans-serif; max-height: 40%; overflow: hidden`;
  bar.textContent = text;
  document.documentElement.append(bar);
}"""
