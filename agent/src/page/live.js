'use strict';
// Asks for the document once a second while the page is visible, and draws it. Texts of the document are only ever set as
// text: names, reasons and addresses come from anybody.
(() => {
  const SPAN = 900;
  // The plots grow to it, so that the first minute is not a line.
  const SPANS = [60, 180, 360, SPAN];
  const PERIOD = 1000;
  const PATIENCE = 10000;
  const MOST_PLOTTED = 16;
  // The plot's height in pixels, and that of the lines above and below it; the height of its area in units.
  const [HEIGHT, ABOVE, BELOW, UNITS] = [140, 22, 22, 1000];
  const LEAST = (1.5 * UNITS) / HEIGHT;
  const find = (id) => document.getElementById(id);

  // A text in at most `longest` characters, without control characters and those that reorder text.
  const clean = (text, longest = 120) => {
    const letters = Array.from(String(text ?? '').replace(
      /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, '\ufffd'));
    if (letters.length <= longest) return letters.join('');
    const half = Math.floor((longest - 1) / 2);
    return `${letters.slice(0, half).join('')}\u2026${letters.slice(-half).join('')}`;
  };
  const whole = (value) => Math.round(value).toLocaleString('en');
  const trimmed = (value, digits) => String(Number(value.toFixed(digits)));
  const compact = (value) => {
    const [by, unit] = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e4, 'k']].find(([least]) => value >= least) ?? [1, ''];
    const short = value / (unit === 'k' ? 1e3 : by);
    return trimmed(short, short < 1 ? 3 : short < 100 ? 1 : 0) + unit;
  };
  const rate = (value) => (value === null || value === undefined ? '-' : `${value > 0 && value < 10 ? trimmed(value, 1) : whole(value)}/s`);
  const size = (bytes) => {
    const power = Math.min(5, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
    return `${trimmed(bytes / 1024 ** power, power && bytes / 1024 ** power < 100 ? 1 : 0)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'][power]}`;
  };
  const duration = (seconds) => {
    const left = Math.max(0, Math.round(seconds));
    for (const [length, unit, next, small] of [[86400, 'd', 3600, 'h'], [3600, 'h', 60, 'min'], [60, 'min', 1, 's']]) {
      if (left < length) continue;
      const rest = Math.floor((left % length) / next);
      return `${Math.floor(left / length)} ${unit}${rest ? ` ${rest} ${small}` : ''}`;
    }
    return `${left} s`;
  };
  const percent = (share) => `${trimmed(share * 100, share < 0.1 ? 2 : 0)} %`;
  const make = (tag, attributes, ...content) => {
    const element = document.createElement(tag);
    Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
    element.append(...content);
    return element;
  };
  const draw = (tag, attributes, ...content) => {
    const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
    Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
    element.append(...content);
    return element;
  };
  const write = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };

  // Cells of tables.
  const number = (text, value) => ({ text, value: value ?? -1 });
  const count = (value) => number(value === null || value === undefined ? '-' : whole(value), value);
  const flow = (value) => number(rate(value), value);

  // Rows are [key, cells]; a row keeps its element, so that a selection lasts.
  const fill = (id, rows, empty) => {
    const table = find(id).querySelector('table');
    const body = table.tBodies[0];
    const before = new Map(Array.from(body.rows, (row) => [row.dataset.key, row]));
    const wanted = rows.map(([key, cells]) => {
      let row = before.get(key);
      if (row === undefined || row.cells.length !== cells.length) {
        row = make('tr', { 'data-key': key }, ...cells.map(() => make('td', {})));
      }
      before.delete(key);
      cells.forEach((cell, nth) => {
        const place = row.cells[nth];
        const text = typeof cell === 'object' ? cell.text : clean(cell);
        write(place, text);
        if (typeof cell === 'object') {
          place.className = 'number';
          place.dataset.value = cell.value;
        } else {
          place.className = text.length > 40 ? 'long' : '';
        }
      });
      return row;
    });
    body.replaceChildren(...wanted);
    sortRows(table);
    find(id).hidden = rows.length === 0;
    const note = find(`${id}-note`);
    write(note, rows.length === 0 ? empty : '');
    note.hidden = note.textContent === '';
  };

  // Documents: the last one, and intervals with rates for each limit.
  let last = null;
  let isUnbroken = false;
  let answeredAt = null;
  // When a request failed first since then.
  let askedAt = null;
  let problem = null;
  const plots = new Map();
  let rates = new Map();

  const unitOf = (limit) => (limit.unit === 'bytes' ? 'bytes' : limit.direction === 'request' ? 'requests' : 'packets');
  const counts = (limit) => {
    const of = (kind) => (limit.unit === 'bytes' ? limit[kind].bytes : limit[kind].packets);
    return { passed: of('passed'), refused: of('throttled'), would: of('would_throttle') };
  };
  // Counters that went down have begun anew: that interval has no rate.
  const differences = (now, before, seconds) => {
    const result = {};
    for (const kind of Object.keys(now)) {
      if (now[kind] < before[kind]) return null;
      result[kind] = (now[kind] - before[kind]) / seconds;
    }
    return result;
  };

  const remember = (next) => {
    rates = new Map();
    let total = null;
    const seconds = last === null ? 0 : next.at_seconds - last.at_seconds;
    // The host was started again: its clock too.
    if (seconds < 0) plots.forEach((plot) => { plot.rows = []; });
    if (seconds > 0) {
      const known = new Map(last.limits.map((limit) => [limit.name, limit]));
      for (const limit of next.limits) {
        const before = known.get(limit.name);
        if (before === undefined || before.unit !== limit.unit) continue;
        const found = differences(counts(limit), counts(before), seconds);
        if (found === null) continue;
        rates.set(limit.name, found);
        if (!isUnbroken) continue;
        if (!plots.has(limit.name)) plots.set(limit.name, { rows: [] });
        plots.get(limit.name).rows.push({ from: last.at_seconds, to: next.at_seconds, ...found });
      }
      const sum = ({ passed_packets: passed, throttled_packets: refused }) => ({ passed, refused });
      total = differences(sum(next.status.totals), sum(last.status.totals), seconds);
    }
    const names = new Set(next.limits.map((limit) => limit.name));
    for (const [name, plot] of plots) {
      plot.rows = plot.rows.filter((row) => row.to > next.at_seconds - SPAN);
      if (!names.has(name)) {
        plot.figure?.remove();
        plots.delete(name);
      }
    }
    isUnbroken = true;
    last = next;
    return total;
  };

  // Axes.
  const stepOf = (highest, most) => {
    const least = Math.max(highest / most, 1e-3);
    const power = 10 ** Math.floor(Math.log10(least));
    return power * ([1, 2, 5].find((factor) => factor * power >= least * 0.999999) ?? 10);
  };
  const path = (rows, which, start, scale) => {
    const points = [`M0 ${UNITS}`];
    let end = 0;
    for (const row of rows) {
      const stacks = [row.passed - Math.min(row.would, row.passed), row.passed, row.passed + row.refused];
      let height = 0;
      let own = 0;
      let below = 0;
      for (const sum of stacks.slice(0, which + 1)) {
        own = sum - below;
        height += own > 0 ? Math.max(own * scale, LEAST) : 0;
        below = sum;
      }
      const y = own > 0 ? Math.max(0, Math.round(UNITS - height)) : UNITS;
      const from = Math.max(0, row.from - start);
      if (from > end + 0.001) points.push(`V${UNITS}`);
      points.push(`H${from.toFixed(2)}V${y}`);
      end = row.to - start;
      points.push(`H${end.toFixed(2)}`);
    }
    points.push(`V${UNITS}Z`);
    return points.join('');
  };

  const times = (span) => {
    const third = (nth) => duration((span * nth) / 3);
    return [[0, 'start', `${third(3)} ago`], [1 / 3, 'middle', third(2)], [2 / 3, 'middle', third(1)], [1, 'end', 'now']].map(
      ([at, anchor, text]) => draw('text', { x: `${(at * 100).toFixed(2)}%`, y: ABOVE + HEIGHT + 15, 'text-anchor': anchor }, text));
  };

  const framed = (plot) => {
    plot.legend = make('ul', { class: 'legend' });
    plot.name = make('span', {});
    plot.about = make('span', { class: 'note' });
    plot.svg = draw('svg', { class: 'plot', role: 'img', width: '100%', height: HEIGHT + ABOVE + BELOW });
    plot.figure = make('figure', {}, make('figcaption', {}, plot.name, plot.about), plot.legend, plot.svg);
  };
  // Keeps the figures that are there, so that a selection lasts.
  const arrange = (id, figures) => {
    const children = Array.from(find(id).children);
    if (children.length !== figures.length || figures.some((figure, nth) => children[nth] !== figure)) {
      find(id).replaceChildren(...figures);
    }
  };

  const plotted = (limit, span, isAttacked) => {
    if (!plots.has(limit.name)) plots.set(limit.name, { rows: [] });
    const plot = plots.get(limit.name);
    if (plot.figure === undefined) framed(plot);
    plot.figure.classList.toggle('attacked', isAttacked);
    const observes = limit.action === 'observe' || last.status.mode === 'observe';
    write(plot.name, clean(limit.name));
    write(plot.about, (isAttacked ? 'attacked; ' : '') + (observes ? 'observed only: refuses nothing; ' : '') + clean(limit.summary, 200));
    const now = rates.get(limit.name);
    const unit = unitOf(limit);
    const has = (kind) => plot.rows.some((row) => row[kind] > 0);
    const items = [['passed', 'passed', now && now.passed - Math.min(now.would, now.passed)]];
    if (observes || has('would')) items.push(['would', 'would be refused', now?.would]);
    if (!observes || has('refused')) items.push(['refused', 'refused', now?.refused]);
    plot.legend.replaceChildren(...items.map(([kind, text, value]) => make('li', { class: kind }, `${text} ${rate(value)}`)));
    const highest = Math.max(...plot.rows.map((row) => row.passed + row.refused), 0) || 1;
    const tick = stepOf(highest, 4);
    const ticks = Math.max(1, Math.ceil((highest * 1.03) / tick));
    const y = (value) => ABOVE + HEIGHT * (1 - value / (tick * ticks));
    const start = last.at_seconds - span;
    const parts = [draw('title', {}, `${clean(limit.name)}: ${unit} a second over the last ${duration(span)}. Now ${items.map(([, text, value]) => `${text} ${rate(value)}`).join(', ')}.`)];
    for (let at = 1; at <= ticks; at += 1) {
      parts.push(draw('line', { class: 'grid', x1: 0, x2: '100%', y1: y(tick * at), y2: y(tick * at) }));
    }
    const area = draw('svg', { x: 0, y: ABOVE, width: '100%', height: HEIGHT, viewBox: `0 0 ${span} ${UNITS}`, preserveAspectRatio: 'none' });
    const scale = UNITS / (tick * ticks);
    // The largest sum first: the others cover it.
    for (const [which, kind] of [[2, 'refused'], [1, 'would'], [0, 'passed']]) {
      if (has(kind)) area.append(draw('path', { class: kind, d: path(plot.rows, which, start, scale) }));
    }
    parts.push(area, draw('line', { class: 'base', x1: 0, x2: '100%', y1: y(0), y2: y(0) }));
    for (let at = 1; at <= ticks; at += 1) {
      const text = `${compact(tick * at)}${at === ticks ? ` ${unit}/s` : ''}`;
      parts.push(draw('text', { class: 'inside', x: 2, y: y(tick * at) - 4 }, text));
    }
    parts.push(...times(span));
    plot.svg.replaceChildren(...parts);
    return plot.figure;
  };

  const showLimits = () => {
    const attacked = new Set(last.status.attacks.map((attack) => attack.limit));
    const shown = last.limits.slice(0, MOST_PLOTTED);
    const oldest = Math.min(last.at_seconds, ...Array.from(plots.values(), (plot) => plot.rows[0]?.from ?? last.at_seconds));
    const span = SPANS.find((length) => length >= last.at_seconds - oldest) ?? SPAN;
    const figures = shown.map((limit) => plotted(limit, span, attacked.has(limit.name)));
    arrange('plots', figures);
    fill('limits', last.limits.map((limit) => {
      const now = rates.get(limit.name);
      const { passed, refused, would } = counts(limit);
      return [limit.name, [limit.name, limit.summary, flow(now?.passed), flow(now?.refused), flow(now?.would), count(passed), count(refused), count(would), count(limit.keys)]];
    }), 'The config in effect has no limits.');
    const more = last.limits.length - shown.length;
    write(find('plots-note'), more > 0 ? `Plots of the first ${MOST_PLOTTED} limits; the table has all ${last.limits.length}.` : '');
  };

  // Fair limits. The agent has the history of their levels, one value a second.
  const CAUSES = new Map([['drops', 'servers drop'], ['wait', 'units wait for long'], ['load', 'the service reports that it is full'],
    ['demand', 'sources send more than fits'], ['recent', 'there was an overload a short time ago']]);
  const causeOf = (fair) => (fair.held_by === null ? '-' : CAUSES.get(fair.held_by) ?? clean(fair.held_by));
  const levelPlots = new Map();

  // A step for each second with a level, and a gap where nothing was refused or measured.
  const levelPath = (levels, from, depth) => levels.map((level, nth) => {
    if (level === null) return '';
    const at = (depth(level) * UNITS).toFixed(1);
    const isFirst = nth === 0 || levels[nth - 1] === null;
    return `${isFirst ? `M${from + nth} ${at}` : `V${at}`}H${from + nth + 1}`;
  }).join('');

  const levelled = (fair) => {
    if (!levelPlots.has(fair.limit)) levelPlots.set(fair.limit, {});
    const plot = levelPlots.get(fair.limit);
    if (plot.figure === undefined) framed(plot);
    const { level: levels } = fair.history;
    const known = levels.filter((level) => level !== null);
    const lowest = 10 ** Math.floor(Math.log10(Math.max(Math.min(...known), 0.001)));
    const decades = Math.max(1, Math.ceil(Math.log10(Math.max(...known) / lowest) - 1e-9));
    const depth = (value) => 0.97 - (0.94 * Math.log10(Math.max(value, lowest) / lowest)) / decades;
    const y = (value) => ABOVE + HEIGHT * depth(value);
    const span = SPANS.find((length) => length >= levels.length) ?? SPAN;
    const now = fair.level === null ? 'no level now' : `level ${rate(fair.level)}: ${causeOf(fair)}`;
    const above = fair.level === null ? '' : `at least ${whole(fair.sources_above)} of ${whole(fair.sources)} sampled sources are above it`;
    write(plot.name, clean(fair.limit));
    write(plot.about, above);
    plot.legend.replaceChildren(make('li', { class: 'level' }, now));
    const parts = [draw('title', {}, `${clean(fair.limit)}: units a second that each source may send, over the last ${duration(span)}, on a logarithmic scale. Now ${now}. ${above}`)];
    const labels = [];
    for (let at = 0; at <= decades; at += Math.ceil(decades / 4)) {
      const value = lowest * 10 ** at;
      parts.push(draw('line', { class: 'grid', x1: 0, x2: '100%', y1: y(value), y2: y(value) }));
      labels.push(draw('text', { class: 'inside', x: 2, y: y(value) - 4 }, `${compact(value)}/s`));
    }
    const area = draw('svg', { x: 0, y: ABOVE, width: '100%', height: HEIGHT, viewBox: `0 0 ${span} ${UNITS}`, preserveAspectRatio: 'none' });
    area.append(draw('path', { class: 'level', d: levelPath(levels, span - levels.length, depth) }));
    parts.push(area, ...labels, ...times(span));
    plot.svg.replaceChildren(...parts);
    return plot.figure;
  };

  const showFair = () => {
    const all = last.status.fair ?? [];
    find('fair-section').hidden = all.length === 0;
    const shown = all.filter((fair) => fair.history.level.some((level) => level !== null)).slice(0, MOST_PLOTTED);
    arrange('fair-plots', shown.map(levelled));
    const names = new Set(shown.map((fair) => fair.limit));
    for (const name of levelPlots.keys()) {
      if (!names.has(name)) levelPlots.delete(name);
    }
    fill('fair', all.map((fair) => [fair.limit, [
      fair.limit, fair.failure ?? fair.state, flow(fair.level), causeOf(fair), fair.since === null ? '-' : clock(fair.since * 1000),
      flow(fair.offered), flow(fair.passed), flow(fair.capacity), count(fair.sources_above),
      fair.heaviest.slice(0, 3).map((heavy) => `${heavy.source} ${rate(heavy.refused)}`).join(', ') || '-']]), '');
  };

  const showRest = () => {
    const { status, sources, bans, groups } = last;
    fill('sources', sources.map((row) => [`${row.source} ${row.limit}`, [
      row.source, row.limit, flow(row.throttled_per_second), flow(row.passed_per_second),
      count(row.throttled_packets), count(row.would_throttle_packets), count(row.passed_packets)]]),
    'No sources yet: none was refused or has passed 64 packets.');
    const age = last.sources_age_seconds;
    const first = last.matching > sources.length ? `The first ${whole(sources.length)} of ${whole(last.matching)}. ` : '';
    write(find('sources-age'), sources.length === 0 ? '' : `${first}Read ${duration(age)} ago${age > 10 ? ': a large table is read less often' : ''}.`);
    fill('bans', bans.map((ban) => [ban.cidr, [
      ban.cidr, ban.origin, ban.reason ?? '-',
      number(ban.expires_in_seconds === null ? 'until lifted' : duration(ban.expires_in_seconds - age), ban.expires_in_seconds === null ? 1e18 : ban.expires_in_seconds),
      count(ban.throttled_packets)]]), 'No bans.');
    write(find('bans-more'), status.bans > bans.length ? `The first ${whole(bans.length)} of ${whole(status.bans)}.` : '');
    fill('groups', groups.map((group) => [group.name, [
      group.name, group.enforcement, count(group.pids_current), number(`${trimmed(group.cpu.usage_seconds, 1)} s`, group.cpu.usage_seconds),
      number(`${trimmed(group.cpu.throttled_seconds, 1)} s`, group.cpu.throttled_seconds),
      number(size(group.memory.current_bytes), group.memory.current_bytes), number(size(group.network.egress_bytes), group.network.egress_bytes),
      number(size(group.network.ingress_bytes), group.network.ingress_bytes), group.notes.join('; ') || '-']]), 'No process groups.');
    fill('interfaces', status.interfaces.map((of) => [of.name, [
      of.name, of.state, of.attach ?? '-', of.enforced_by.join(', ') || '-', of.reason ?? '-']]), 'No interfaces: no limit is on packets.');
    const { cluster } = status;
    find('cluster-section').hidden = cluster === undefined || cluster === null;
    if (cluster) {
      write(find('cluster-state'), `Node ${clean(cluster.node)}, ${whole(cluster.hosts)} host${cluster.hosts === 1 ? '' : 's'}. Store: ${clean(cluster.health)}${cluster.last_error ? ` (${clean(cluster.last_error, 300)})` : ''}.`);
      fill('cluster', cluster.limits.map((limit) => [limit.name, [
        limit.name, limit.mode, number(percent(limit.share), limit.share), limit.share_from, count(limit.hosts), flow(limit.demand_per_second), count(limit.failures)]]), 'No shared limits.');
    }
    const notes = status.notes.slice(0, 50).map((note) => clean(note, 1000));
    if (status.notes.length > notes.length) notes.push(`And ${whole(status.notes.length - notes.length)} more.`);
    const list = find('notes');
    if (notes.join('\n') !== Array.from(list.children, (item) => item.textContent).join('\n')) {
      list.replaceChildren(...notes.map((note) => make('li', {}, note)));
    }
    find('notes-section').hidden = notes.length === 0;
  };

  const alertsOf = ({ status }) => {
    const alerts = [];
    const { trial, last_reload: reload } = status;
    for (const attack of status.attacks) {
      const busiest = attack.sources.slice(0, 3).map((source) => clean(source.source)).join(', ');
      alerts.push(['error', `Attack on limit ${clean(attack.limit)}: ${rate(attack.refused_per_second)} refused, at most ${rate(attack.peak_per_second)}, ${percent(attack.refused_share)} of its packets since ${clock(attack.started * 1000)}.${busiest ? ` Busiest: ${busiest}.` : ''}`]);
    }
    if (trial && trial.rollback_failing) {
      alerts.push(['error', `The trial of ${clean(trial.file)} has ended, and the rollback fails${trial.rollback ? `: ${clean(trial.rollback.error, 500)}` : ''}. The agent tries again.`]);
    } else if (trial) {
      alerts.push(['info', `Trial of ${clean(trial.file)}: the previous config returns in ${duration(trial.ends_in_seconds)}, unless "weir confirm" is run.`]);
    }
    if (reload && !reload.ok) {
      alerts.push(['error', `The last reload failed, and the config before it is in effect: ${clean(reload.errors.join('; '), 1000)}`]);
    }
    for (const of of status.interfaces) {
      if (of.state !== 'attached' && of.enforced_by.length === 0) alerts.push(['error', `No limits are in effect on interface ${clean(of.name)}: ${clean(of.state)}.`]);
    }
    if (status.mode === 'observe') alerts.push(['info', 'Mode observe: limits count packets and refuse none.']);
    return alerts;
  };
  const clock = (milliseconds) => new Date(milliseconds).toTimeString().slice(0, 8);

  const showState = () => {
    const state = find('state');
    const isLost = problem !== null;
    state.classList.toggle('lost', isLost);
    // Read out once; the time of updates never.
    if (isLost) state.setAttribute('role', 'alert');
    else state.removeAttribute('role');
    if (isLost) {
      const shown = last === null ? '' : `What is shown is of ${clock(answeredAt)}. `;
      write(state, `${problem} ${shown}Trying again every second.`);
    } else if (last !== null) {
      write(state, `Version ${clean(last.status.version)}, mode ${clean(last.status.mode)}, ${clean(last.status.config ?? 'built-in limits')}. Updated ${clock(answeredAt)}.`);
    }
  };

  const show = (total) => {
    const { status } = last;
    write(find('passed'), rate(total?.passed));
    write(find('refused'), rate(total?.refused));
    write(find('tracked'), `${whole(status.sources.tracked)} of ${compact(status.sources.capacity)}`);
    write(find('banned'), whole(status.bans));
    write(find('uptime'), duration(status.uptime_seconds));
    const alerts = alertsOf(last);
    const place = find('alerts');
    alerts.forEach(([kind, text], nth) => {
      const line = place.children[nth] ?? place.appendChild(make('p', {}));
      line.className = kind;
      write(line, text);
    });
    while (place.children.length > alerts.length) place.lastChild.remove();
    document.title = `${status.attacks.length > 0 ? '(attack) ' : ''}Weir, live`;
    showLimits();
    showFair();
    showRest();
    find('content').hidden = false;
  };

  const ask = async () => {
    const reply = await fetch('live.json', { cache: 'no-store', credentials: 'omit', redirect: 'error', signal: AbortSignal.timeout(PATIENCE) });
    if (!reply.ok) throw new Error(`The agent replied ${reply.status}: ${clean(await reply.text(), 500)}`);
    return reply.json();
  };

  let timer = null;
  let isAsking = false;
  const poll = async () => {
    if (isAsking) return;
    clearTimeout(timer);
    isAsking = true;
    const began = performance.now();
    try {
      const next = await ask();
      [answeredAt, askedAt, problem] = [Date.now(), null, null];
      // A document may be reused for many viewers, or while reading it is expensive.
      if (last === null || next.at_seconds !== last.at_seconds) show(remember(next));
    } catch (error) {
      isUnbroken = false;
      askedAt ??= Date.now();
      const said = error instanceof Error && error.message.startsWith('The agent replied') ? error.message : null;
      problem = said ?? `No reply from the agent since ${clock(askedAt)}.`;
    }
    isAsking = false;
    showState();
    if (document.visibilityState === 'visible') {
      timer = setTimeout(poll, Math.max(100, PERIOD - (performance.now() - began)));
    } else {
      isUnbroken = false;
    }
  };
  document.addEventListener('visibilitychange', () => {
    clearTimeout(timer);
    if (document.visibilityState === 'visible') poll();
    else isUnbroken = false;
  });
  poll();
})();
