// What task_functions.py reads on the sites' pages.
({
  // The rows of an order's page.
  order: () => [...document.querySelectorAll('#my-orders-table tbody')].map(row => {
    const cell = name => row.querySelector('td.' + name);
    const text = name => cell(name)?.innerText.trim() ?? '';
    const labels = [...(cell('name')?.querySelectorAll('dt') ?? [])];
    return {
      name: cell('name')?.querySelector('.product-item-name')?.innerText.trim() ?? text('name'),
      options: Object.fromEntries(labels.map(
        dt => [dt.innerText.trim(), dt.nextElementSibling?.innerText.trim() ?? ''])),
      sku: text('sku'),
      price: text('price'),
      qty: text('qty').match(/\d+/)?.[0] ?? '0',
      subtotal: text('subtotal'),
    };
  }),

  // The values of a product's details whose label holds one of `names`.
  details: names => [...document.querySelectorAll('#productDetails_detailBullets_sections1 tr')]
    .filter(row => names.some(name => row.cells[0].innerText.toLowerCase().includes(name)))
    .map(row => row.cells[1]?.innerText ?? '').join(', '),

  rating: () => document.querySelector('.rating-result')?.title ?? '',

  // What the first element that `selector` finds says; '' if it finds none, or is no selector.
  text: selector => {
    try { return document.querySelector(selector)?.textContent ?? ''; } catch { return ''; }
  },

  // The comments on a post's page, which nests them in one another: `tree` is the post with all
  // of them below it, `newest` the newest comment of one user, `parent` what that one answers, a
  // comment or the post.
  comments: name => {
    const text = (node, selector) => node.querySelector(selector)?.innerText.trim() ?? '';
    const entry = (node, content) => ({
      username: text(node, '.fg-inherit'),
      content: text(node, content),
      net_score: parseInt(text(node, '.vote__net-score')) || 0,
      time: node.querySelector('time')?.dateTime ?? '',
    });
    const main = document.querySelector('#main') ?? document.body, entries = new Map();
    const tree = {...entry(main, '.submission__body'), children: []};
    let newest = null, parent = null, last = -1;
    for (const node of main.querySelectorAll('.comment')) {  // a comment comes before its answers
      const above = entries.get(node.parentElement.closest('.comment')) ?? tree;
      const own = entry(node, '.comment__content'), time = Date.parse(own.time) || 0;
      entries.set(node, {...own, children: []});
      above.children.push(entries.get(node));
      if (own.username === name && time > last) {
        const {children, ...rest} = above;
        [newest, parent, last] = [own, rest, time];
      }
    }
    // The tree as text: it may nest deeper than Python likes.
    return {tree: JSON.stringify(tree), newest, parent};
  },

  // The role on the row of a project's member.
  role: name => {
    for (const cell of document.querySelectorAll('[data-label="Account"]'))
      if (cell.innerText.split(/\s+/).includes('@' + name))
        return cell.parentElement.querySelector('.col-max-role span')?.innerText ?? '';
    return '';
  },
})
