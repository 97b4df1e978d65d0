// Draws the options of native select boxes in the page.
//
// A native select box opens a window of its own, which no screenshot shows and no click reaches.
// Its options are drawn here instead, in a closed shadow root that the page's styles do not
// touch. `__options.find(text)` scrolls an option of the open box into view and returns where to
// click: null if no box is open, [] if the box has no such option to choose.
(() => {
  let host = null, box = null, rows = [];
  const close = () => { host?.remove(); host = box = null; rows = []; };
  const choose = index => {
    const chosen = box, changed = chosen.selectedIndex !== index;
    close();
    chosen.selectedIndex = index;
    if (!changed) return;
    for (const kind of ['input', 'change'])
      chosen.dispatchEvent(new Event(kind, {bubbles: true}));
  };
  const open = select => {
    box = select;
    host = document.createElement('div');
    host.style.cssText =
      'all: initial; position: fixed; inset: 0; pointer-events: none; z-index: 2147483647';
    const root = host.attachShadow({mode: 'closed'}), list = document.createElement('div');
    const edges = select.getBoundingClientRect(), style = getComputedStyle(select);
    const below = innerHeight - edges.bottom, room = Math.max(below, edges.top) - 4;
    const left = Math.max(0, Math.min(edges.left, innerWidth - edges.width));
    list.style.cssText = `position: absolute; box-sizing: border-box; overflow-y: auto;
      pointer-events: auto; cursor: default; max-height: ${room}px; min-width: ${edges.width}px;
      max-width: ${innerWidth}px; left: ${left}px;
      ${below >= room ? `top: ${edges.bottom}px` : `bottom: ${innerHeight - edges.top}px`};
      background: white; color: black; border: 1px solid #767676;
      font: ${style.fontSize} ${style.fontFamily}`;
    let group = null;
    rows = [...select.options].map((option, index) => {
      const parent = option.parentElement, grouped = parent?.tagName === 'OPTGROUP';
      if (parent !== group && grouped) {
        const head = list.appendChild(document.createElement('div'));
        head.textContent = parent.label;
        head.style.cssText = 'padding: 3px 6px; font-weight: bold; white-space: nowrap';
      }
      group = parent;
      const row = list.appendChild(document.createElement('div'));
      const off = option.disabled || parent?.disabled;
      row.textContent = option.label || option.text || '\u00a0';
      row.style.cssText = `padding: 3px ${grouped ? 18 : 6}px; min-height: 1.2em;
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
    if (e.composedPath()[0] === host || e.target === host) {
      e.preventDefault();
      e.stopPropagation();
      return;
    }
    const select = e.composedPath().find(n => n instanceof HTMLSelectElement), last = box;
    close();
    if (!select || e.button || select.multiple || select.size > 1 || select.disabled) return;
    e.preventDefault();  // the native list stays shut
    select.focus();
    if (select !== last) open(select);
  }, true);
  addEventListener('keydown', e => {
    if (!host) return;
    close();
    if (e.key === 'Escape') e.stopPropagation();
  }, true);
  addEventListener('scroll', e => {
    if (host && e.target !== host) close();
  }, {capture: true, passive: true});
  const find = text => {
    if (!box) return null;
    const same = (a, b) => a.trim().toLowerCase() === b.trim().toLowerCase();
    const enabled = rows.filter(({off}) => !off);
    const match = enabled.find(({option}) => option.label === text || option.value === text)
      || enabled.find(({option}) => same(option.label, text) || same(option.value, text));
    if (!match) return [];
    match.row.scrollIntoView({block: 'nearest'});
    const edges = match.row.getBoundingClientRect();
    return [edges.x + Math.min(edges.width, 20) / 2, edges.y + edges.height / 2];
  };
  Object.defineProperty(window, '__options', {value: {shut: close, find}});
})()
