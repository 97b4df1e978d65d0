// Shows a text over the page's last lines, or takes it away again ("").
text => {
  document.getElementById('__banner')?.remove();
  if (!text) return;
  const bar = document.createElement('div');
  bar.id = '__banner';
  bar.style.cssText = `all: initial; position: fixed; left: 0; right: 0; bottom: 0;
    z-index: 2147483647; pointer-events: none; padding: 4px 8px; background: #222; color: white;
    font: 14px/1.3 sans-serif; max-height: 40%; overflow: hidden`;
  bar.textContent = text;
  document.documentElement.append(bar);
}
