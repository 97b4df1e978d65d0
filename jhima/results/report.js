"use strict";
// The viewer of report.py's page. What pages and models wrote enters the document as text nodes
// only: nothing here builds markup, a style or an address from a string of the data (the addresses
// of images and pages are report.py's own).
const data = JSON.parse(document.getElementById("data").textContent);
const side = document.getElementById("side"),
  main = document.getElementById("main");
const at = {group: -1, plan: 0, episode: 0, step: 0}; // what is shown; group -1 is the overview

function el(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children.filter(child => child !== null));
  return node;
}

function button(className, act, ...children) {
  const node = el("button", className, ...children);
  node.type = "button";
  node.addEventListener("click", act);
  return node;
}

function link(className, address, ...children) {
  const node = el("a", className, ...children);
  node.href = address;
  return node;
}

function picture(key, alt) {
  const node = el("img");
  node.src = data.images[key];
  node.alt = alt;
  return node;
}

function table(className, rows) {
  // the first row is the header; a cell is text or a node
  const row = (tag, values) => el("tr", "", ...values.map(value => el(tag, "", value)));
  return el(
    "table",
    className,
    el("thead", "", row("th", rows[0])),
    el("tbody", "", ...rows.slice(1).map(values => row("td", values))),
  );
}

const symbol = (letter, upper, lower) =>
  el("i", "symbol", letter, el("span", "", el("span", "", upper), el("span", "", lower)));
const signed = value =>
  value === null ? "" : (value < 0 ? "\u2212" : value > 0 ? "+" : "") + Math.abs(value).toFixed(2);
function verdict(cell) {
  if (cell === null) return "missing";
  if (cell.reward === null) return "unscored";
  return cell.reward ? "success" : "failed";
}
const called = {missing: "not run", unscored: "no reward", success: "reward 1", failed: "reward 0"};
const places = group =>
  group.rows.flatMap((row, plan) =>
    row.flatMap((cell, episode) => (cell ? [{plan, episode}] : [])),
  );

function firstPlace(group) {
  // preferably an episode that has its steps
  const all = places(group);
  return (
    all.find(({plan, episode}) => group.rows[plan][episode].steps) ||
    all[0] || {plan: 0, episode: 0}
  );
}

// ---- marks on a screenshot ----

const circle = (x, y, r) => `M${x - r},${y}a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 ${-2 * r},0`;

function arrow(x, y, toX, toY, head) {
  const angle = Math.atan2(toY - y, toX - x),
    wing = turn =>
      `M${toX},${toY}` +
      `L${toX - head * Math.cos(angle + turn)},${toY - head * Math.sin(angle + turn)}`;
  return `M${x},${y}L${toX},${toY}` + wing(0.5) + wing(-0.5);
}

function mark(action, width, height) {
  // the SVG path of one action, "" when it has no place on the page
  const r = Math.max(width, height) / 40;
  const x = action.x ?? width / 2,
    y = action.y ?? height / 2,
    dot = circle(x, y, r / 6);
  if (action.kind === "scroll") {
    const dx = action.dx || 0,
      dy = action.dy || 0,
      length = Math.hypot(dx, dy);
    return length ? dot + arrow(x, y, x + (4 * r * dx) / length, y + (4 * r * dy) / length, r) : "";
  }
  if (action.kind === "drag" && action.to)
    return (action.x === null ? "" : circle(x, y, r / 2)) + arrow(x, y, ...action.to, r);
  if (action.x === null || action.y === null) return "";
  if (action.kind === "click")
    return dot + circle(x, y, r) + (action.count > 1 ? circle(x, y, 1.5 * r) : "");
  return action.kind === "hover" ? circle(x, y, r) : "";
}

function screenshot(step, alt) {
  if (step.image === null) return el("div", "shot absent", "no screenshot");
  const width = step.width > 0 ? step.width : 1280,
    height = step.height > 0 ? step.height : 720;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  for (const action of step.actions) {
    const d = mark(action, width, height);
    for (const layer of d ? ["halo", "mark"] : []) {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", d);
      path.setAttribute("class", action.kind === "hover" ? layer + " dashed" : layer);
      svg.append(path);
    }
  }
  const shot = el("div", "shot", picture(step.image, alt), svg);
  shot.style.aspectRatio = `${width} / ${height}`;
  // A small viewport is enlarged, but not into a blur nor beyond the window.
  shot.style.maxWidth = `min(${2 * width}px, ${(75 * width) / height}vh)`;
  return shot;
}

// ---- the side: overview and tasks ----

function miniature(group) {
  // K x M squares
  const grid = el("span", "miniature");
  for (const row of group.rows)
    grid.append(el("span", "", ...row.map(cell => el("b", verdict(cell)))));
  return grid;
}

function drawSide() {
  const filter = el("input");
  filter.type = "search";
  filter.placeholder = "Filter tasks";
  filter.setAttribute("aria-label", "Filter tasks");
  const list = el("div", "list");
  data.groups.forEach((group, index) => {
    if (index === 0 || data.groups[index - 1].batch !== group.batch)
      list.append(el("h3", "", "batch " + group.batch));
    const name = el("span", "name", group.intent || group.id);
    const item = button(
      "item",
      () => show({group: index, ...firstPlace(group), step: 0}),
      el(
        "span",
        "words",
        el("span", "meta", group.sites.join(" + ") + " \u00b7 " + group.id),
        name,
      ),
      miniature(group),
    );
    item.dataset.index = index;
    list.append(item);
  });
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    for (const item of list.querySelectorAll(".item"))
      item.hidden = !item.textContent.toLowerCase().includes(wanted);
  });
  for (const page of data.pages || [])
    list.append(
      link(
        "item",
        page.file,
        el(
          "span",
          "words",
          el("span", "meta", `${page.tasks} tasks, ${page.episodes} episodes`),
          el("span", "name", "batch " + page.name),
        ),
        el("span", "", page.success + " %"),
      ),
    );
  const overview = button("item overview", () => show({group: -1}), "Overview");
  overview.dataset.index = -1;
  side.append(
    ...[
      el("h1", "", data.run),
      data.index ? link("item", data.index, "All batches") : null,
      overview,
      filter,
      list,
      el(
        "p",
        "keys",
        key("\u2190"),
        key("\u2192"),
        " step ",
        key("\u2191"),
        key("\u2193"),
        " episode ",
        key("j"),
        key("k"),
        " task",
      ),
    ].filter(node => node !== null),
  );
}

const key = name => el("kbd", "", name);

// ---- the overview ----

function drawOverview() {
  const {tasks, episodes, unscored, not_played} = data.counts;
  const batches = data.pages
    ? data.pages.length
    : new Set(data.groups.map(group => group.batch)).size;
  main.append(
    el(
      "header",
      "",
      el("h2", "", "Overview"),
      el(
        "p",
        "meta",
        `${tasks} tasks, ${batches} ${batches === 1 ? "batch" : "batches"}, ` +
          `${episodes} episodes, ${unscored} of them without a reward; ` +
          `${not_played} not played`,
      ),
    ),
  );
  for (const notice of [
    data.omitted,
    data.unreadable.length ? "Files that could not be read:" : "",
  ])
    if (notice) main.append(el("p", "notice", notice));
  if (data.unreadable.length)
    main.append(el("ul", "plain", ...data.unreadable.map(line => el("li", "", line))));
  main.append(
    el("h3", "", "Success"),
    table("numbers success-table", data.success),
    el(
      "p",
      "meta",
      "Percent, mean over tasks; \u00b1 standard error over runs; bootstrap interval over " +
        "tasks. Unscored episodes have no reward and count in no mean.",
    ),
  );
  if (data.curve)
    main.append(
      el("h3", "", "Learning curve"),
      el("div", "curve", picture(data.curve, "Success against batch")),
    );
  if (data.subgoals)
    main.append(
      el("h3", "", "Subtasks completed and success"),
      el(
        "div",
        "curve",
        picture(data.subgoals, "ROC curve, and success by share of subtasks completed"),
      ),
    );
  if (data.args.length)
    main.append(
      el("h3", "", "Arguments"),
      el(
        "dl",
        "args",
        ...data.args.flatMap(([name, value]) => [el("dt", "", name), el("dd", "", value)]),
      ),
    );
}

// ---- one task: plans x episodes ----

function drawTask(group) {
  const origin = [group.sites.join(" + "), "task " + group.id, "batch " + group.batch]
    .filter(Boolean)
    .join(" \u00b7 ");
  main.append(
    el(
      "header",
      "",
      el("p", "meta", origin),
      el("h2", "text", group.intent || "(no instruction)"),
      group.template ? el("p", "meta text", "Template: ", group.template) : null,
    ),
  );
  const episodes = Math.max(0, ...group.rows.map(row => row.length));
  const numbers = Array.from({length: episodes}, (_, j) => el("th", "", String(j)));
  const head = el(
    "tr",
    "",
    el("th", "plan", "Plan"),
    ...numbers,
    el("th", "", symbol("S", "", "i")),
    el("th", "", symbol("A", "D", "i")),
  );
  const rows = group.plans.map((plan, i) => {
    const steps = plan.subtasks.length
      ? el("ol", "text", ...plan.subtasks.map(text => el("li", "", text)))
      : el("p", "text", plan.text || "(no plan recorded)");
    return el(
      "tr",
      "",
      el(
        "th",
        "plan",
        el(
          "div",
          "plan-name",
          `Plan ${i}`,
          el("span", "meta", plan.tokens ? ` ${plan.tokens} tokens` : ""),
        ),
        steps,
      ),
      ...group.rows[i].map((cell, j) => el("td", "", drawCell(cell, i, j))),
      el("td", "score", plan.score === null ? "\u2013" : plan.score.toFixed(2)),
      el("td", "score", plan.advantage === null ? "\u2013" : signed(plan.advantage)),
    );
  });
  const grid = el("table", "grid", el("thead", "", head), el("tbody", "", ...rows));
  main.append(
    el(
      "div",
      "beside",
      el("div", "scroller", grid),
      group.first
        ? el(
            "figure",
            "first",
            picture(group.first, "What the decomposer saw"),
            el("figcaption", "meta", "What the decomposer saw"),
          )
        : null,
    ),
    el(
      "p",
      "meta legend",
      "Columns: episodes ",
      el("i", "", "j"),
      ". Large: reward ",
      symbol("R", "", "ij"),
      ". Small: actor advantage ",
      symbol("A", "A", "ij"),
      ", compared with the episodes of the same plan. ",
      symbol("S", "", "i"),
      " is a plan's mean reward, ",
      symbol("A", "D", "i"),
      " compares it with the other plans.",
    ),
    el("section", "episode"),
  );
}

function drawCell(cell, plan, episode) {
  const kind = verdict(cell),
    big = {success: "1", failed: "0", unscored: "\u2013", missing: ""}[kind];
  if (cell === null) return el("span", "cell missing");
  const node = button(
    "cell " + kind,
    () => show({plan, episode, step: 0}),
    el("b", "", big),
    el("small", "", signed(cell.advantage)),
  );
  node.dataset.place = `${plan},${episode}`;
  node.title =
    `plan ${plan}, episode ${episode}: ${called[kind]}` +
    (cell.steps ? "" : ", steps not embedded");
  if (!cell.steps) node.classList.add("brief");
  return node;
}

// ---- one episode: verdict, filmstrip, steps ----

function drawEpisode(group) {
  const section = main.querySelector(".episode"),
    cell = (group.rows[at.plan] || [])[at.episode];
  section.replaceChildren();
  if (!cell) return;
  const kind = verdict(cell);
  const numbers = [
    `${cell.length} steps`,
    cell.seconds === null ? "" : `${cell.seconds.toFixed(1)} s`,
    cell.advantage === null ? "" : `advantage ${signed(cell.advantage)}`,
  ];
  section.append(
    el(
      "h3",
      "",
      `Plan ${at.plan}, episode ${at.episode}`,
      el("span", "tag " + kind, called[kind]),
      el("span", "meta", numbers.filter(Boolean).join(" \u00b7 ")),
    ),
    facts([
      ["Failure", cell.failure, "bad"],
      ["Answer", cell.answer],
      ["Last page", cell.url, "code"],
    ]),
  );
  const yes = value =>
    value === null
      ? el("span", "tag unscored", "not known")
      : el("span", "tag " + (value ? "success" : "failed"), value ? "yes" : "no");
  const checks = cell.checks.map(({kind, what, passed, reason}) => [
    kind,
    what,
    yes(passed),
    reason,
  ]);
  if (checks.length)
    section.append(table("checks", [["Check", "Expected", "Passed", "Reason"], ...checks]));
  if (cell.subtasks) {
    const names = group.plans[at.plan]?.subtasks || [];
    section.append(
      table("checks judged", [
        ["", "Subtask", "Completed"],
        ...cell.subtasks.completed.map((done, i) => [String(i + 1), names[i] || "", yes(done)]),
      ]),
      el("p", "meta", "The judge's reply"),
      el("pre", "text", cell.subtasks.reply),
    );
  }
  if (!cell.steps) section.append(el("p", "notice", cell.absent));
  else if (cell.steps.length)
    section.append(
      el("div", "strip", ...cell.steps.map(drawFrame)),
      el("div", "stage", ...cell.steps.map(drawStep)),
    );
}

function drawFrame(step, t) {
  const kinds = step.actions.map(action => action.kind).join(", ");
  const what = step.end ? "the end" : `${t}  ${step.error || kinds || "nothing"}`;
  return button(
    "frame",
    () => show({step: t}),
    screenshot(step, step.end ? "The end" : `Step ${t}`),
    el("span", step.error ? "bad" : "", what),
  );
}

function drawStep(step, t) {
  if (step.end) {
    const shot = screenshot(step, "Screenshot after the last step");
    return el("article", "step", shot, el("p", "meta", "After the last step"));
  }
  return el(
    "article",
    "step",
    screenshot(step, `Screenshot before step ${t}`),
    el(
      "div",
      "said",
      el("p", "meta", `Step ${t} \u00b7 ${step.tokens} tokens`),
      el("p", "operation text", step.operation || "(no operation given)"),
      facts([
        ["Error", step.error, "bad"],
        ["Thought", step.thought],
        ["Action", step.actions.map(action => action.text).join("\n"), "code"],
        ["Page", step.url, "code"],
        ["New plan", step.plan.map((text, i) => `${i + 1}. ${text}`).join("\n")],
        ["Browser", step.note],
        ["Warnings", step.warnings.join("\n"), "warn"],
      ]),
      step.reply
        ? el("details", "", el("summary", "", "Raw reply"), el("pre", "text", step.reply))
        : null,
    ),
  );
}

function facts(rows) {
  return el(
    "dl",
    "facts",
    ...rows
      .filter(([, value]) => value)
      .flatMap(([name, value, look]) => [
        el("dt", "", name),
        el("dd", "text " + (look || ""), value),
      ]),
  );
}

// ---- moving about ----

function show(change) {
  const old = {...at};
  Object.assign(at, change);
  const group = data.groups[at.group];
  if (at.group !== old.group || !main.firstChild) {
    main.replaceChildren();
    if (group) drawTask(group);
    else drawOverview();
    scrollTo(0, 0);
    for (const item of side.querySelectorAll(".item")) {
      const here = Number(item.dataset.index) === at.group;
      item.setAttribute("aria-current", here);
      if (here) item.scrollIntoView({block: "nearest"});
    }
  }
  if (group) {
    if (at.group !== old.group || at.plan !== old.plan || at.episode !== old.episode)
      drawEpisode(group);
    for (const cell of main.querySelectorAll("button.cell"))
      cell.setAttribute("aria-pressed", cell.dataset.place === `${at.plan},${at.episode}`);
    select(main.querySelectorAll(".frame"), true);
    select(main.querySelectorAll(".step"), false);
  }
  const hash = group ? `#${at.group}.${at.plan}.${at.episode}.${at.step}` : "#";
  // The address then leads back to this place.
  if (location.hash !== hash && (group || location.hash)) location.replace(hash);
}

function select(nodes, scroll) {
  nodes.forEach((node, t) => node.classList.toggle("current", t === at.step));
  if (scroll && nodes[at.step]) {
    const node = nodes[at.step],
      strip = node.parentElement;
    strip.scrollLeft =
      node.offsetLeft - strip.offsetLeft - (strip.clientWidth - node.offsetWidth) / 2;
  }
}

function move(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
  const group = data.groups[at.group];
  if (event.key === "j" || event.key === "k") {
    const items = [...side.querySelectorAll(".item:not([hidden])")];
    const here = items.findIndex(item => Number(item.dataset.index) === at.group);
    const next = items[here + (event.key === "j" ? 1 : -1)];
    if (next) next.click();
  } else if (group && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
    const step = at.step + (event.key === "ArrowRight" ? 1 : -1);
    if (step < 0 || step >= main.querySelectorAll(".frame").length) return;
    show({step});
    main.querySelector(".strip").scrollIntoView({block: "nearest"});
    main.querySelector(".step.current").scrollIntoView({block: "nearest"});
  } else if (group && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
    const all = places(group),
      here = all.findIndex(({plan, episode}) => plan === at.plan && episode === at.episode);
    const next = all[here + (event.key === "ArrowDown" ? 1 : -1)];
    if (next) show({...next, step: 0});
  } else return;
  event.preventDefault();
}

function followHash() {
  const [group, plan, episode, step] = location.hash.slice(1).split(".").map(Number);
  if (!location.hash.slice(1) || !data.groups[group]) return show({group: -1});
  const known = data.groups[group].rows[plan]?.[episode];
  show({
    group,
    ...(known ? {plan, episode} : firstPlace(data.groups[group])),
    step: known?.steps?.[step] ? step : 0,
  });
}

document.title = data.run;
drawSide();
followHash();
addEventListener("hashchange", followHash);
addEventListener("keydown", move);
