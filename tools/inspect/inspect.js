/*
 * The page of `kvcobra inspect --html`: inspect.html has its text, and this file the sentences, tiles and
 * pictures that depend on the numbers, which are the document of `--json` with a member "page" (inspect_page.c).
 */
'use strict';

const table = numbers.kind === 'table' ? numbers : null;
const statistics = table ? numbers.statistics : numbers;
const {geometry, page: about} = numbers;
const layers = geometry.n_layers, heads = geometry.n_kv_heads;
const SIDES = [{key: 'K', name: 'Keys', series: 'k', mark: 'circle'}, {key: 'V', name: 'Values', series: 'v', mark: 'triangle'}];
const HEADS_MAX = 8192, LAYERS_MAX = 256; // more of them are not readable on a page
const ofSide = (rows, side) => rows.filter((row) => row.side === side.key);
const total = (values) => values.reduce((sum, x) => sum + x, 0);

function missing(part) {
    if (part !== 'expected') return numbers.unavailable[part];
    if (!table) return 'it needs a table, which kvcobra solve makes';
    return hasExpected ? undefined : 'the table does not say what its solve expected of other budgets';
}

/* The sums of distortion over all heads, if they are known. */
function distortions() {
    if (!numbers.distortion) return null;
    const equal = total(numbers.distortion.map((h) => h.equal)), solved = total(numbers.distortion.map((h) => h.solved));
    return equal > 0 && solved > 0 ? {equal, solved} : null;
}

/* What the solve expected of the table, and of other budgets; any file can claim to be a table, so numbers are checked. */
const expected = (table && table.provenance && table.provenance.expected) || {};
const positive = (x) => Number.isFinite(x) && x > 0;
const expectedOwn = [expected.unseen_distortion, expected.distortion].find(positive);
const expectedUnit = positive(expected.kl) && expectedOwn ? expected.kl / expectedOwn : null; // KL of a unit of distortion
const hasExpected = expectedOwn && [expected.at_bpd, expected.at_bpd_distortion, expected.at_bpd_equal].every(
    (values, _, all) => Array.isArray(values) && values.length > 0 && values.length <= 16 && values.length === all[0].length && values.every(positive));

/* ---- text ---- */

const nameOf = (path) => path.slice(path.lastIndexOf('/') + 1);

const texts = {
    model(element) {
        const name = cut(about.model || 'a model without a name', 120);
        element.textContent = name;
        document.title = `${name}${table ? `, ${table.bpd_code.toFixed(2)} bits per number` : ''} – KV-COBRA`;
    },
    lead(element) {
        const bits = table && table.bpd_code.toFixed(2);
        let what = 'Calibration statistics, from which tables of every budget are solved.';
        if (table) what = `An allocation table of ${bits} bits per number${statistics ? ', analysed with calibration statistics' : ''}.`;
        write(element, `${what} File `, ['code', cut(nameOf(about.path), 120)], about.day ? ` of ${about.day}.` : '.');
    },
    cost(element) {
        if (table && !numbers.eval)
            note(element, 'What the table does to answers is not measured here. ',
                 ['code', 'kvcobra eval MODEL --table TABLE --text TEXT --json'], ' measures perplexity and KL; ',
                 ['code', 'kvcobra inspect --eval'], ' reads its output.');
        if (distortions())
            write(add(element, 'p'), 'Distortion is the squared error of decoded vectors, weighed by how much the model depends on each ' +
                  'direction (metric ', ['code', about.metric], '), summed over layers, heads and sides. It has no unit: compare it ' +
                  'with values of the same metric, such as that of equal budgets.');
        else if (table)
            note(element, 'The distortion needs the statistics of the solve: ', ['code', '--stats'], '.');
    },
    expected(element) {
        element.textContent = `${expectedUnit ? 'KL' : 'Distortion'} to expect at other budgets, by the curves of the solve, with bits moved between heads and with ` +
            'the same bits for every head and side.';
    },
    fixed(element) {
        element.textContent = 'Each process holds means, bases and levels once for all its sequences: ' +
            `${bytes(numbers.charged.fixed_bytes)}, or ${figure(numbers.charged.fixed_bpd_32768)} bits per number of a sequence of 32768 tokens.`;
    },
    distortion(element) {
        write(element, 'The distortion e′Me is the squared error e of a decoded vector, weighed by the metric M, which says how much the ' +
              'model depends on each direction (metric ', ['code', about.metric], `${about.power !== 1 ? `, to the power ${figure(about.power)}` : ''}` +
              '), per token. It is measured on the sampled vectors of the calibration text.');
    },
    moved(element) {
        const sums = distortions();
        element.textContent = `Open marks: every head and side has ${figure(numbers.distortion_budget)} bits per number. Filled marks: as ` +
            `solved, with the same total.${sums ? ` The sum is ${figure(sums.equal)} with equal budgets and ${figure(sums.solved)} as solved.` : ''}` +
            ' Bits move to the heads where they reduce the distortion most, so other heads get worse.';
    },
    weighted(element) {
        write(element, 'The same with every direction weighed by the effect of an error in it (metric ', ['code', about.metric], '): ',
              ['code', 'bands'], ' distributes its bits by these values.');
    },
    files(list) {
        if (table) {
            fact(list, 'table file', about.path);
            fact(list, 'table', table.digest, 'code');
            fact(list, 'size', bytes(table.file_bytes));
            if (about.unsolved) fact(list, 'note', about.unsolved);
        }
        fact(list, 'model', numbers.model_digest, 'code');
        if (!statistics) return;
        fact(list, 'statistics file', about.stats_path);
        fact(list, 'statistics', statistics.digest, 'code');
        fact(list, 'metrics', about.metrics);
        if (about.solved && about.solved.from_other) fact(list, 'note', 'the table was solved from other statistics of the same model');
    },
    provenance(element) {
        if (!table) return;
        add(element, 'h3', {}, 'Provenance of the table');
        const list = add(element, 'dl', {class: 'facts columns'});
        if (isObject(table.provenance)) provenanceFacts(list, table.provenance);
        else fact(list, 'provenance', shown(table.provenance));
    },
};

const FACTS_MAX = 64;
const isObject = (x) => x !== null && typeof x === 'object' && !Array.isArray(x);
const isRows = (x) => Array.isArray(x) && isObject(x[0]);
const shown = (value) => typeof value === 'string' ? value : JSON.stringify(value);

/* Values first: they must not stand under the heading of an object. */
function provenanceFacts(list, provenance) {
    const facts = Object.entries(provenance).filter(([, value]) => !isObject(value)).map(([key, value]) => [key, shown(value)]);
    for (const [key, object] of Object.entries(provenance).filter(([, value]) => isObject(value))) {
        facts.push([key]);
        for (const [name, value] of Object.entries(object))
            if (!(name === 'texts' && isRows(value))) facts.push([name, shown(value)]);
    }
    for (const [key, value] of facts.slice(0, FACTS_MAX)) {
        if (value === undefined) add(add(list, 'div', {class: 'group'}), 'dt', {}, cut(key, 120));
        else fact(list, key, value);
    }
    if (facts.length > FACTS_MAX) fact(list, 'and', `${facts.length - FACTS_MAX} more values, which are in the JSON`);
}

/* ---- tiles ---- */

const tiles = {
    cost(list) {
        if (numbers.eval) {
            const {kl, ppl, ppl_exact: exact, tokens, window} = numbers.eval;
            tile(list, 'KL to the exact model, per token', `${figure(kl, 3)} nats`, `of ${tokens} tokens in windows of ${window}`);
            const change = 100 * (ppl / exact - 1);
            tile(list, 'Perplexity', `${figure(exact)} → ${figure(ppl)}`, `${change < 0 ? '' : '+'}${change.toFixed(2)} %; 0 % would be the exact model`);
        }
        if (!numbers.eval && expectedUnit)
            tile(list, 'KL to the exact model, expected', `about ${figure(expected.kl, 2)} nats`, 'per token on text like that of the calibration: an estimate, by what KL was of distortion there');
        if (table) {
            const context = numbers.bytes.find((b) => b.tokens === 32768);
            tile(list, 'A context of 32768 tokens', bytes(context.total),
                 `${bytes(context.binary16)} in binary16: ${figure(context.binary16 / context.total, 2)} times as much`);
            tile(list, 'Tokens per GiB', grouped(context.tokens_per_gib), `${grouped(context.tokens * 2 ** 30 / context.binary16)} in binary16`);
            tile(list, 'Bits per number', context.bpd_true.toFixed(3),
                 `${table.bpd_code.toFixed(3)} of codes (keys ${table.k_bpd.toFixed(3)}, values ${table.v_bpd.toFixed(3)}); binary16: 16`);
        } else {
            tile(list, 'A table', 'not yet', ['code', 'kvcobra solve'], ' makes one of any budget');
        }
        const sums = distortions();
        if (sums)
            tile(list, 'Distortion, of that of equal budgets', `${figure(100 * sums.solved / sums.equal, 3)} %`,
                 `e′Me per token: ${figure(sums.solved)}; with the same ${figure(numbers.distortion_budget)} bits for every head: ${figure(sums.equal)}`);
    },
    options(list) {
        if (about.solved) {
            tile(list, 'Method', about.solved.method, `metric ${about.solved.metric}${about.solved.predicted ? ', values predicted from keys' : ''}`);
            tile(list, 'Budget', figure(about.solved.budget), 'bits per number');
        }
        tile(list, 'Layers × KV heads', `${layers} × ${heads}`, `of dimension ${geometry.d}, ${geometry.n_rot} of it rotated; ${geometry.n_heads} query heads`);
        if (statistics) tile(list, 'Tokens calibrated on', grouped(statistics.tokens), `vectors of ${grouped(statistics.samples)} stored`);
    },
};

/* ---- pictures ---- */

const tooMany = (parent, what) => note(parent, `${what} need too many marks for a page; the numbers are in the JSON.`);

/* A panel per side, beside each other where there is room: @draw(panel, side). */
function panels(parent, draw) {
    const both = add(parent, 'div', {class: 'panels'}), boxes = SIDES.map(() => add(both, 'div')); // first, so that their widths are known
    boxes.forEach((panel, i) => {
        add(panel, 'h4', {}, SIDES[i].name);
        draw(panel, SIDES[i]);
    });
}

/* ---- maps of layers and heads ---- */

const CELL = 31, CELL_HEIGHT = 30, MAP_LEFT = 54, MAP_TOP = 20, RAMP = 9;

/* One cell per head, in strips of as many layers as the page has room for. @cells: {value, text, small, says}. */
function map(parent, side, cells, largest) {
    const fit = Math.max(4, Math.floor((parent.clientWidth - MAP_LEFT - 2) / CELL)), columns = Math.min(layers, fit > 20 ? Math.floor(fit / 2) : fit);
    const strips = add(parent, 'div', {class: 'maps'});
    for (let first = 0; first < layers; first += columns) {
        const last = Math.min(first + columns, layers), width = MAP_LEFT + columns * CELL + 2, height = MAP_TOP + heads * CELL_HEIGHT + 4;
        const svg = d3.select(strips).append('svg').attr('class', 'heat').attr('viewBox', `0 0 ${width} ${height}`).style('max-width', `${width}px`)
            .attr('role', 'img').attr('aria-label', `${side.name} by head, layers ${first} to ${last - 1}`);
        const tick = (x, y, text, anchor) => svg.append('text').attr('class', 'tick').attr('x', x).attr('y', y).attr('text-anchor', anchor).text(text);
        tick(MAP_LEFT - 6, MAP_TOP - 5, 'layer', 'end');
        for (let layer = first; layer < last; layer++) tick(MAP_LEFT + (layer - first + 0.5) * CELL, MAP_TOP - 5, layer, 'middle');
        for (let head = 0; head < heads; head++) tick(MAP_LEFT - 6, MAP_TOP + head * CELL_HEIGHT + 19, `head ${head}`, 'end');
        const inside = cells.filter((c) => c.layer >= first && c.layer < last);
        const group = svg.selectAll('g').data(inside).enter().append('g')
            .attr('class', (c) => Number.isFinite(c.value) ? `cell q${Math.min(RAMP - 1, Math.floor(c.value / largest * RAMP))}` : 'cell none')
            .attr('transform', (c) => `translate(${MAP_LEFT + (c.layer - first) * CELL} ${MAP_TOP + c.head * CELL_HEIGHT})`);
        group.append('rect').attr('width', CELL).attr('height', CELL_HEIGHT);
        group.append('text').attr('x', CELL / 2).attr('y', (c) => c.small ? 13 : 19).text((c) => c.text);
        group.filter((c) => c.small).append('text').attr('class', 'small').attr('x', CELL / 2).attr('y', 25).text((c) => c.small);
        tip(group, (c) => `${side.name}, layer ${c.layer}, head ${c.head}: ${c.says}`);
    }
}

function maps(parent, cellOf, largest, what) {
    if (layers * heads > HEADS_MAX) {
        tooMany(parent, `${layers} layers of ${heads} heads`);
        return;
    }
    for (const side of SIDES) {
        add(parent, 'h4', {}, side.name);
        map(parent, side, ofSide(numbers.codecs, side).map((c) => ({layer: c.layer, head: c.head, ...cellOf(c)})), largest);
    }
    const list = legend(parent);
    legendKey(list, `0 (left) to ${figure(largest)} (right): ${what}`, RAMP * 30, (svg) => {
        for (let i = 0; i < RAMP; i++)
            svg.append('g').attr('class', `cell q${i}`).append('rect').attr('x', i * 30).attr('width', 30).attr('height', 14);
    });
}

/* ---- one number per head ---- */

/* Open marks for before, filled marks for after, connected by a line. @rows: {layer, head, side, before, after}. */
function byHead(parent, rows, title, log, names) {
    if (layers * heads > HEADS_MAX) {
        tooMany(parent, `${layers} layers of ${heads} heads`);
        return;
    }
    const domain = range(rows.flatMap((r) => names ? [r.before, r.after] : [r.after]), log), n = layers * heads;
    const size = n <= 128 ? 3.2 : n <= 512 ? 2.2 : 1.4;
    const place = (r) => r.layer + (heads > 1 ? 0.56 * (r.head / (heads - 1) - 0.5) : 0);
    panels(parent, (panel, side) => {
        const plot = chart(panel, {label: `${side.name}: ${title} by layer and head`, height: 250, x: {domain: [-0.7, layers - 0.3], title: 'layer'}, y: {domain, log, title}});
        for (const r of ofSide(rows, side)) {
            const x = plot.x(place(r)), says = `${side.name}, layer ${r.layer}, head ${r.head}: `;
            if (names && Number.isFinite(r.before) && Number.isFinite(r.after)) {
                plot.svg.append('line').attr('class', 'link').attr('x1', x).attr('x2', x).attr('y1', plot.y(r.before)).attr('y2', plot.y(r.after));
                mark(plot.svg, side.series, side.mark, x, plot.y(r.before), size, false).node().tipText = `${says}${figure(r.before)}, ${names[0]}`;
            }
            if (Number.isFinite(r.after))
                mark(plot.svg, side.series, side.mark, x, plot.y(r.after), size).node().tipText = `${says}${figure(r.after)}${names ? `, ${names[1]}` : ''}`;
        }
    });
    const list = legend(parent);
    if (names) {
        markKey(list, names[0], false);
        markKey(list, names[1], true);
    }
    add(list, 'span', {class: 'item'}, 'one mark per head');
}

function markKey(list, text, filled) {
    legendKey(list, text, 30, (svg) => SIDES.forEach((side, i) => mark(svg, side.series, side.mark, 8 + 14 * i, 7, 4, filled)));
}

/* ---- spectra ---- */

const SPECTRUM_FLOOR = 1e-5; // share of the total; smaller shares are drawn at the edge

function spectra(parent, kind) {
    if (layers > LAYERS_MAX) {
        tooMany(parent, `${layers} layers`);
        return;
    }
    const list = legend(parent), charts = add(parent, 'div', {class: 'multiples'}), d = geometry.d;
    lineKey(list, 'k', 'keys');
    lineKey(list, 'v', 'values');
    add(list, 'span', {class: 'item'}, 'shaded: range of the heads. Horizontal: direction, from 1. Vertical: its share of the total, one line per factor of ten.');
    for (let layer = 0; layer < layers; layer++) {
        const box = add(charts, 'div');
        const plot = chart(box, {label: `layer ${layer}`, most: 220, height: 124, left: 34, right: 10, top: 17, bottom: 19,
                                 x: {domain: [1, d], ticks: [1, d / 2, d]}, y: {domain: [SPECTRUM_FLOOR, 1], log: true}});
        const rows = about.spectra.filter((s) => s.layer === layer).map((s) => ({side: s.side, at: s.at, ...s[kind]}));
        for (const side of SIDES) {
            const s = rows.find((row) => row.side === side.key);
            const area = d3.area().x((i) => plot.x(s.at[i])).y0((i) => plot.y(s.low[i])).y1((i) => plot.y(s.high[i]));
            plot.svg.append('path').attr('class', `band ${side.series}`).attr('d', area(d3.range(s.at.length)));
            line(plot, side.series, s.at.map((x, i) => [x, s.middle[i]]));
        }
        plot.svg.append('text').attr('class', 'panel').attr('x', plot.left).attr('y', 12).text(`layer ${layer}`);
        sayNearest(plot, rows[0].at, (i) => `layer ${layer}, direction ${rows[0].at[i]}: ` +
            rows.map((s, side) => `${SIDES[side].name.toLowerCase()} ${figure(s.middle[i], 2)} (${figure(s.low[i], 2)} to ${figure(s.high[i], 2)})`).join(', '));
    }
}

/* ---- Gaussianity ---- */

function kurtosis(parent, before, after) {
    const bins = numbers.gaussianity.histogram, shares = {};
    for (const side of SIDES) {
        const rows = ofSide(bins, side);
        for (const stage of [before, after]) {
            const n = total(rows.map((r) => r[stage])) || 1;
            shares[side.key + stage] = rows.flatMap((r) => [[r.from, r[stage] / n], [r.from + 0.1, r[stage] / n]]);
        }
    }
    const most = 1.05 * d3.max(Object.values(shares).flat(), ([, y]) => y) || 1;
    panels(parent, (panel, side) => {
        const plot = chart(panel, {label: `${side.name}: excess kurtosis before and after rotation`, height: 210, left: 68,
                                   x: {domain: [-2, 6], title: 'excess kurtosis (last step: all larger values)'}, y: {domain: [0, most], title: 'share of coordinates'}});
        line(plot, 'before', shares[side.key + before]);
        line(plot, side.series, shares[side.key + after]);
        const from = ofSide(bins, side).map((r) => r.from);
        sayNearest(plot, from.map((x) => x + 0.05), (i) => `excess kurtosis ${figure(from[i], 3)} to ${figure(from[i] + 0.1, 3)}: ` +
            `${figure(100 * shares[side.key + before][2 * i][1], 3)} % before, ${figure(100 * shares[side.key + after][2 * i][1], 3)} % after`);
    });
    const list = legend(parent);
    lineKey(list, 'before', 'before rotation');
    lineKey(list, 'k', 'keys after rotation');
    lineKey(list, 'v', 'values after rotation');
}

function quantiles(parent) {
    panels(parent, (panel, side) => {
        const rows = ofSide(numbers.gaussianity.qq, side);
        const plot = chart(panel, {label: `${side.name}: quantiles beside those of a normal distribution`, height: 400, left: 58,
                                   x: {domain: [-4, 4], title: 'quantile of N(0,1)'}, y: {domain: [-6, 6], title: 'quantile of the coordinates'}});
        line(plot, 'diagonal', [[-4, -4], [4, 4]]);
        line(plot, 'before', rows.map((r) => [r.normal, r.basis]));
        line(plot, side.series, rows.map((r) => [r.normal, r.bands]));
        marks(plot, side.series, side.mark, rows.filter((r, i) => i % 2 === 0).map((r) => [r.normal, r.bands]), 3, (x, y) => `N(0,1): ${figure(x, 3)}; coordinates: ${figure(y, 3)}`);
    });
    const list = legend(parent);
    lineKey(list, 'diagonal', 'N(0,1)');
    lineKey(list, 'before', 'before rotation');
    markKey(list, 'after rotation in bands of 8', true);
}

/* ---- methods ---- */

const METHOD_LOOKS = [['s0', 'circle'], ['s1', 'square'], ['s2', 'triangle'], ['s3', 'diamond'], ['s4', 'cross']];

/* The lines of methods, [title, points], with their legend, and the table's own value where it is known. @name: of y. */
function methodLines(parent, plot, lines, name, own) {
    const list = legend(parent);
    for (const [i, [title, points]] of Array.from(lines.entries()).reverse()) { // the first method is drawn last, on top
        const [series, shape] = METHOD_LOOKS[i];
        line(plot, series, points);
        marks(plot, series, shape, points, 4, (x, y) => `${title}: ${figure(x)} bits, ${name} ${figure(y)}`);
    }
    for (const [i, [title]] of lines.entries()) {
        const [series, shape] = METHOD_LOOKS[i];
        legendKey(list, title, 30, (svg) => {
            svg.append('path').attr('class', `line ${series}`).attr('d', 'M2 7h26');
            mark(svg, series, shape, 15, 7, 4);
        });
    }
    if (!own) return;
    mark(plot.svg, 'own', 'circle', plot.x(about.charged), plot.y(own), 9, false).node().tipText = `this table: ${figure(about.charged)} bits, ${name} ${figure(own)}`;
    legendKey(list, 'this table', 20, (svg) => mark(svg, 'own', 'circle', 10, 7, 5, false));
}

function curves(parent) {
    const solved = numbers.curves.filter((c) => c.distortion > 0), own = table && distortions();
    const methods = Array.from(new Set(numbers.curves.map((c) => c.method)));
    let domain = range([...solved.map((c) => c.bpd), ...(own ? [about.charged] : [])]);
    if (domain[1] - domain[0] < 1) { // one budget: a range of hundredths of a bit would mislead
        const middle = (domain[0] + domain[1]) / 2;
        domain = [middle - 0.5, middle + 0.5];
    }
    const plot = chart(parent, {label: 'Distortion by bits per number, one line per method', most: 720, height: 340,
                                x: {domain, title: 'bits charged per number'},
                                y: {domain: range([...solved.map((c) => c.distortion), ...(own ? [own.solved] : [])], true), log: true, title: 'distortion e′Me per token, all layers'}});
    methodLines(parent, plot, methods.map((method) => [method, solved.filter((c) => c.method === method).map((c) => [c.bpd, c.distortion])]), 'distortion', own && own.solved);
}

/* The first picture: what other budgets would give, from the table alone. */
function drawExpected(parent) {
    const unit = expectedUnit || 1, own = unit * expectedOwn, name = expectedUnit ? 'KL' : 'distortion';
    const lines = [['bits moved between heads', expected.at_bpd_distortion], ['the same bits for every head', expected.at_bpd_equal]]
        .map(([title, values]) => [title, values.map((y, i) => [expected.at_bpd[i], unit * y])]);
    const all = lines.flatMap(([, points]) => points);
    const plot = chart(parent, {label: `Expected ${name} by bits per number`, most: 720, height: 260,
                                x: {domain: range([...all.map(([x]) => x), about.charged]), title: 'bits per number'},
                                y: {domain: range([...all.map(([, y]) => y), own], true), log: true, title: expectedUnit ? 'KL, nats per token' : 'distortion e′Me per token'}});
    methodLines(parent, plot, lines, name, own);
}

/* ---- a table's widths, levels and bytes ---- */

const WIDTH_MAX = 8;

function widths(parent) {
    panels(parent, (panel, side) => {
        const plot = chart(panel, {label: `${side.name}: widths of coordinates by layer`, x: {domain: [-0.7, layers - 0.3], title: 'layer'},
                                   y: {domain: [0, 1], title: 'share of the coordinates'}});
        for (let layer = 0; layer < layers; layer++) {
            const count = new Array(WIDTH_MAX + 1).fill(0);
            for (const c of ofSide(numbers.codecs, side).filter((row) => row.layer === layer)) for (const b of c.bits) count[b] += 8;
            let below = 0;
            for (let b = WIDTH_MAX; b > 0; b--) {
                const above = below + count[b] / (heads * geometry.d);
                if (count[b] > 0) {
                    const bar = plot.svg.append('g').attr('class', `cell q${b}`);
                    bar.append('rect').attr('x', plot.x(layer - 0.42)).attr('width', plot.x(layer + 0.42) - plot.x(layer - 0.42))
                        .attr('y', plot.y(above)).attr('height', plot.y(below) - plot.y(above));
                    bar.node().tipText = `${side.name}, layer ${layer}: ${count[b]} coordinates of ${b} bit${b > 1 ? 's' : ''}`;
                }
                below = above;
            }
        }
    });
    const list = legend(parent);
    list.append('Bits of a coordinate: ');
    for (let b = WIDTH_MAX; b > 0; b--)
        legendKey(list, String(b), 22, (svg) => svg.append('g').attr('class', `cell q${b}`).append('rect').attr('width', 22).attr('height', 14));
    list.append('white above: not stored.');
}

const LEVELS_SHOWN = 5; // standard deviations

/* Levels as long strokes, thresholds as short ones; from 5 bits on and with a trellis levels alone. */
function levels(parent) {
    panels(parent, (panel, side) => {
        const plot = chart(panel, {label: `${side.name}: levels and thresholds`, height: 270, left: 56,
                                   x: {domain: [-LEVELS_SHOWN, LEVELS_SHOWN], title: 'standard deviations of the coordinate'}, y: {domain: [0.4, WIDTH_MAX + 0.6], ticks: []}});
        for (const l of ofSide(numbers.levels, side)) {
            const y = plot.y(l.bits), half = l.bits <= 4 ? 9 : 6, inside = (z) => Math.abs(z) <= LEVELS_SHOWN;
            const strokes = (values, from, length) => values.filter(inside).map((z) => `M${plot.x(z).toFixed(1)} ${(y - from).toFixed(1)}v${length}`).join('');
            plot.svg.append('text').attr('class', 'tick').attr('x', plot.left - 8).attr('y', y + 4).attr('text-anchor', 'end').text(`${l.bits} bit${l.bits > 1 ? 's' : ''}`);
            plot.svg.append('line').attr('class', 'fine').attr('x1', plot.left).attr('x2', plot.width - plot.right).attr('y1', y).attr('y2', y);
            plot.svg.append('path').attr('class', `stroke ${side.series}`).attr('d', strokes(l.levels, half, 2 * half));
            if (l.bits <= 4 && l.states === 0) plot.svg.append('path').attr('class', 'stroke threshold').attr('d', strokes(l.thresholds, 4, 8));
            plot.svg.append('rect').attr('class', 'sense').attr('x', plot.left).attr('width', plot.width - plot.left - plot.right).attr('y', y - 14).attr('height', 28)
                .node().tipText = `${l.bits} bit${l.bits > 1 ? 's' : ''}, ${l.coordinates} coordinates${l.states > 0 ? `, trellis of ${l.states} states` : ''}: ${cell(l.levels)}`;
        }
    });
    write(legend(parent), 'Long strokes: levels. Short strokes: thresholds between them (up to 4 bits, without a trellis). Levels beyond 5 standard deviations are in the table of numbers.');
}

const ITEMS = [['codes', 'codes'], ['padding', 'padding'], ['headers', 'headers'], ['sinks', 'exact first tokens'], ['tail', 'exact newest tokens']];

function drawBytes(parent) {
    parent.classList.add('wide');
    const rows = numbers.bytes, left = 112, height = 268;
    const plot = chart(parent, {label: 'Bits held per number at several context lengths, by purpose', most: 720, height, left, top: 8,
                                x: {domain: [0, d3.max(rows, (b) => b.bpd_true) * 1.15 || 1], title: 'bits held per number (binary16: 16)'}, y: {domain: [0, 1], ticks: []}});
    rows.forEach((b, i) => {
        const top = 14 + i * 36;
        let sum = 0;
        plot.svg.append('text').attr('class', 'tick').attr('x', left - 8).attr('y', top + 17).attr('text-anchor', 'end').text(`${b.tokens} tokens`);
        ITEMS.forEach(([key, name], k) => {
            const bits = b.total > 0 ? b[key] * b.bpd_true / b.total : 0;
            plot.svg.append('rect').attr('class', `b${k}`).attr('x', plot.x(sum)).attr('y', top).attr('width', plot.x(sum + bits) - plot.x(sum)).attr('height', 26)
                .node().tipText = `${b.tokens} tokens, ${name}: ${bytes(b[key])}, ${figure(bits)} bits per number`;
            sum += bits;
        });
        plot.svg.append('text').attr('class', 'value').attr('x', plot.x(sum) + 6).attr('y', top + 17).text(b.bpd_true.toFixed(2));
    });
    const list = legend(parent);
    ITEMS.forEach(([, name], k) => legendKey(list, name, 22, (svg) => svg.append('rect').attr('class', `b${k}`).attr('width', 22).attr('height', 14)));
}

const draw = {
    bytes: drawBytes, expected: drawExpected, widths, levels, curves, quantiles,
    ranks: (parent) => maps(parent, (c) => ({value: c.coordinates, text: String(c.coordinates), small: `${c.mean_bits.toFixed(1)}b`,
                                             says: `${c.coordinates} coordinates of ${c.mean_bits.toFixed(2)} bits`}),
                            geometry.d, 'stored coordinates; below each, their mean width in bits'),
    budgets: (parent) => maps(parent, (c) => ({value: c.bpd, text: c.bpd.toFixed(2), says: `${figure(c.bpd)} bits per number`}),
                              Math.max(1, d3.max(numbers.codecs, (c) => c.bpd)), 'stored bits per original number'),
    distortion: (parent) => byHead(parent, numbers.distortion.map((h) => ({...h, before: h.equal, after: h.solved})),
                                   'distortion e′Me per token', true, ['the same budget for every head and side', 'as solved']),
    spectra: (parent) => spectra(parent, 'plain'),
    weighted: (parent) => spectra(parent, 'weighted'),
    alpha: (parent) => byHead(parent, numbers.spectra.map((s) => ({...s, after: s.alpha})), 'power-law exponent', false, null),
    kurtosisByHead: (parent) => byHead(parent, numbers.gaussianity.heads.map((h) => ({...h, before: h.basis, after: h.bands})),
                                       'median excess kurtosis', false, ['before rotation', 'after rotation in bands of 8']),
    kurtosisInBands: (parent) => kurtosis(parent, 'basis', 'bands'),
    kurtosisTogether: (parent) => kurtosis(parent, 'eigen', 'rotated'),
};

showPage({texts, tiles, draw, missing});
