/*
 * What every page uses: numbers as text, tables, tiles and charts. A page is a template whose elements name
 * what they hold; the script of the page (inspect.js, capacity.js) says how it is computed.
 *
 * Names in the numbers come from files that may be hostile. They become text of elements and never markup:
 * nothing here or in a page's script parses HTML.
 */
'use strict';

const numbers = JSON.parse(document.getElementById('numbers').textContent);
const hasPictures = typeof d3 !== 'undefined';

/* ---- elements and text ---- */

function add(parent, tag, attributes = {}, text = undefined) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
}

/* A sentence of strings and of [tag, text] pairs, such as ['code', '--stats']. */
function write(element, ...parts) {
    for (const part of parts) {
        if (Array.isArray(part)) add(element, part[0], {}, part[1]);
        else element.append(part);
    }
    return element;
}

function note(parent, ...parts) {
    return write(add(parent, 'p', {class: 'note'}), ...parts);
}

/* At most @most characters, and how many are left out. */
function cut(text, most) {
    const characters = Array.from(text);
    return characters.length <= most ? text : characters.slice(0, most).join('') + `… (${characters.length - most} more)`;
}

/* Four digits, or @digits of them; a dash for a number that is not known. */
function figure(x, digits = 4) {
    if (x === null || x === undefined) return '–';
    if (typeof x !== 'number' || Number.isInteger(x)) return String(x);
    return String(Number(x.toPrecision(digits)));
}

/* Digits in groups of three. */
function grouped(x) {
    return Math.floor(x).toLocaleString('en-US');
}

function bytes(x) {
    const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
    let unit = 0;
    for (; x >= 1024 && unit < units.length - 1; unit++) x /= 1024;
    return `${figure(x, 3)} ${units[unit]}`;
}

/* ---- tables and tiles ---- */

const ROWS_MAX = 4096, SHORT_ROWS = 32, ARRAY_SHOWN = 16;

function at(path) {
    return path.split('.').reduce((value, key) => value && value[key], numbers);
}

const FORMS = {bytes, grouped};

function cell(value, form) {
    if (form) return FORMS[form](value);
    if (!Array.isArray(value)) return figure(value);
    if (value.length <= ARRAY_SHOWN) return value.map((x) => figure(x)).join(' ');
    return `${value.length} values, ${figure(value[0])} to ${figure(value[value.length - 1])}`;
}

/* An element with data-rows, the path of an array of objects, and data-columns: "key=heading; key=heading=bytes"; the form
 * of its numbers is one of FORMS. */
function fillTable(element) {
    const path = element.dataset.rows, rows = at(path);
    const columns = element.dataset.columns.split(';').map((column) => column.split('=').map((word) => word.trim()));
    if (!Array.isArray(rows)) {
        element.remove();
        return;
    }
    if (rows.length > ROWS_MAX) {
        note(element, `${rows.length} rows are too many for a page; `, ['code', 'kvcobra inspect --json'], ' has them at ', ['code', path], '.');
        return;
    }
    const isText = (value) => typeof value === 'string' || Array.isArray(value);
    const table = add(add(element, 'div', {class: rows.length <= SHORT_ROWS ? 'scroll short' : 'scroll', tabindex: '0'}), 'table', {'data-of': path});
    add(table, 'caption', {}, element.dataset.caption);
    const head = add(add(table, 'thead'), 'tr');
    for (const [key, title, form] of columns)
        add(head, 'th', {scope: 'col', 'data-key': key, 'data-form': form || '', class: isText(rows[0] && rows[0][key]) ? 'text' : ''}, title);
    const body = add(table, 'tbody');
    for (const row of rows) {
        const line = add(body, 'tr');
        for (const [key, title, form] of columns)
            add(line, 'td', {'data-label': title, class: isText(row[key]) ? 'text' : ''}, cell(row[key], form));
    }
}

function tile(list, title, value, ...remark) {
    const entry = add(list, 'div');
    add(entry, 'dt', {}, title);
    write(add(add(entry, 'dd', {}, value), 'small'), ...remark);
}

function fact(list, name, value, tag = 'bdi') {
    const entry = add(list, 'div');
    add(entry, 'dt', {}, cut(name, 120));
    add(add(entry, 'dd'), tag, {}, cut(value, 600));
}

/* ---- charts ---- */

/* Marks and lines of an element say under the pointer what they are: their text is @say(datum). */
function tip(selection, say) {
    return selection.each(function attach(datum) { this.tipText = say(datum); });
}

function followPointer() {
    const box = add(document.body, 'div', {id: 'tip', hidden: ''});
    const show = (event) => {
        let target = event.target;
        while (target && !target.tipText) target = target.parentNode;
        box.hidden = !target;
        if (!target) return;
        box.textContent = typeof target.tipText === 'function' ? target.tipText(event) : target.tipText;
        const left = Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 6);
        box.style.left = `${Math.max(left, 4)}px`;
        box.style.top = `${event.clientY + 18 + box.offsetHeight > window.innerHeight ? event.clientY - box.offsetHeight - 10 : event.clientY + 18}px`;
    };
    document.addEventListener('pointermove', show);
    document.addEventListener('pointerdown', show);
    document.addEventListener('pointerleave', () => { box.hidden = true; });
}

/* The range of the numbers with some room; above 0 with @log. */
function range(values, log = false) {
    const known = values.filter((x) => Number.isFinite(x) && (!log || x > 0));
    if (known.length === 0) return log ? [0.1, 1] : [0, 1];
    const [low, high] = d3.extent(known);
    if (log) return [low / 1.2, high * 1.2];
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [low >= 0 && low < (high - low) ? 0 : low - room, high + room];
}

function ticksOf(axis, scale, length) {
    if (axis.ticks) return axis.ticks;
    if (!axis.log) return scale.ticks(Math.max(2, Math.min(8, length / (axis.wide ? 60 : 36))));
    const decades = Math.log10(axis.domain[1] / axis.domain[0]);
    const all = scale.ticks().filter((t) => decades <= 3 ? [1, 2, 5].includes(Number(t.toExponential()[0])) : /^1e/.test(t.toExponential(0)));
    const every = Math.ceil(all.length / Math.max(1, length / 24));
    return all.filter((t, i) => i % every === 0);
}

const SUPERSCRIPT = '⁰¹²³⁴⁵⁶⁷⁸⁹';

function tickText(axis, value) {
    const [low, high] = axis.domain, exponent = Math.round(Math.log10(Math.abs(value)));
    if (!axis.log || (low >= 5e-3 && high <= 2e3) || Math.abs(value / 10 ** exponent - 1) > 1e-9) return figure(value);
    return `10${exponent < 0 ? '⁻' : ''}${Array.from(String(Math.abs(exponent)), (digit) => SUPERSCRIPT[digit]).join('')}`;
}

/*
 * A chart as wide as its parent, at most @most pixels. @x, @y: {domain, log, title, ticks}, ticks optional.
 * Returns its selection and scales. Values outside the domain are drawn at the edge.
 */
function chart(parent, {label, most = 520, height = 230, left = 62, right = 12, top = 12, bottom = 38, x, y}) {
    const width = Math.max(150, Math.min(most, parent.clientWidth || most));
    const svg = d3.select(parent).append('svg').attr('class', 'plot').attr('viewBox', `0 0 ${width} ${height}`)
        .attr('role', 'img').attr('aria-label', label).style('max-width', `${most}px`);
    const scaleOf = (axis, ends) => (axis.log ? d3.scaleLog() : d3.scaleLinear()).domain(axis.domain).range(ends).clamp(true);
    const sx = scaleOf(x, [left, width - right]), sy = scaleOf(y, [height - bottom, top]);
    for (const t of ticksOf({...x, wide: true}, sx, width - left - right)) {
        svg.append('line').attr('class', 'grid').attr('x1', sx(t)).attr('x2', sx(t)).attr('y1', top).attr('y2', height - bottom);
        svg.append('text').attr('class', 'tick').attr('x', sx(t)).attr('y', height - bottom + 15).attr('text-anchor', 'middle').text(tickText(x, t));
    }
    for (const t of ticksOf(y, sy, height - top - bottom)) {
        svg.append('line').attr('class', 'grid').attr('x1', left).attr('x2', width - right).attr('y1', sy(t)).attr('y2', sy(t));
        svg.append('text').attr('class', 'tick').attr('x', left - 6).attr('y', sy(t) + 4).attr('text-anchor', 'end').text(tickText(y, t));
    }
    svg.append('rect').attr('class', 'frame').attr('x', left).attr('y', top).attr('width', width - left - right).attr('height', height - top - bottom);
    if (x.title)
        svg.append('text').attr('class', 'axis').attr('x', (left + width - right) / 2).attr('y', height - 6).attr('text-anchor', 'middle').text(x.title);
    if (y.title)
        svg.append('text').attr('class', 'axis').attr('transform', `translate(13 ${(top + height - bottom) / 2}) rotate(-90)`).attr('text-anchor', 'middle').text(y.title);
    return {svg, x: sx, y: sy, width, height, left, right, top, bottom};
}

/* A line through [[x, y]]; it is broken where a number is not known. */
function line(plot, series, points) {
    const path = d3.line().defined(([, y]) => Number.isFinite(y)).x(([x]) => plot.x(x)).y(([, y]) => plot.y(y));
    plot.svg.append('path').attr('class', `line ${series}`).attr('d', path(points));
}

const MARKS = {circle: 'symbolCircle', triangle: 'symbolTriangle', square: 'symbolSquare', diamond: 'symbolDiamond', cross: 'symbolCross'};

/* A mark of about 2 @r pixels at a place of the picture, filled or with a hole. */
function mark(svg, series, shape, x, y, r, filled = true) {
    return svg.append('path').attr('class', `mark ${series}${filled ? '' : ' open'}`)
        .attr('d', d3.symbol().type(d3[MARKS[shape]]).size(2.6 * r * r)()).attr('transform', `translate(${x} ${y})`);
}

function marks(plot, series, shape, points, r, say) {
    for (const [x, y] of points.filter(([, y]) => Number.isFinite(y)))
        mark(plot.svg, series, shape, plot.x(x), plot.y(y), r).node().tipText = say && say(x, y);
}

/* The text of the nearest of the positions @xs, ascending, wherever the pointer is in the frame. */
function sayNearest(plot, xs, say) {
    const area = plot.svg.append('rect').attr('class', 'sense').attr('x', plot.left).attr('y', plot.top)
        .attr('width', plot.width - plot.left - plot.right).attr('height', plot.height - plot.top - plot.bottom);
    area.node().tipText = (event) => {
        const box = area.node().getBoundingClientRect();
        const x = plot.x.invert(plot.left + (event.clientX - box.left) / box.width * (plot.width - plot.left - plot.right));
        return say(d3.scan(xs.map((at) => Math.abs(at - x))));
    };
}

function legend(parent) {
    return add(parent, 'p', {class: 'legend'});
}

/* An entry of a legend: what @draw puts into a small picture, and its name. */
function legendKey(list, text, width, draw) {
    const item = add(list, 'span', {class: 'item'});
    draw(d3.select(item).append('svg').attr('class', 'key').attr('viewBox', `0 0 ${width} 14`).attr('width', width).attr('height', 14).attr('aria-hidden', 'true'));
    item.append(` ${text}`);
}

function lineKey(list, series, text) {
    legendKey(list, text, 30, (svg) => svg.append('path').attr('class', `line ${series}`).attr('d', 'M2 7h26'));
}

/* ---- the page ---- */

/* @page: {texts, tiles, draw}, functions by the names in data-text, data-tiles and data-draw of the template. */
function showPage(page) {
    for (const part of document.querySelectorAll('[data-needs]')) {
        const why = page.missing(part.dataset.needs);
        if (why === undefined) continue;
        part.textContent = '';
        note(part, `Not available: ${why}.`);
    }
    for (const element of document.querySelectorAll('[data-text]')) page.texts[element.dataset.text](element);
    for (const list of document.querySelectorAll('[data-tiles]')) page.tiles[list.dataset.tiles](list);
    for (const element of document.querySelectorAll('[data-rows]')) fillTable(element);
    const figures = Array.from(document.querySelectorAll('figure[data-draw]'));
    if (!hasPictures) {
        note(document.querySelector('header'), 'This page has tables only: D3, which draws the pictures, was not installed (Debian’s package node-d3) where this program was built.');
        for (const element of figures) element.remove();
        for (const details of document.querySelectorAll('details')) details.open = true;
        return;
    }
    let width = -1;
    const drawAll = () => {
        if (document.body.clientWidth === width) return;
        width = document.body.clientWidth;
        for (const element of figures) {
            element.textContent = '';
            page.draw[element.dataset.draw](element);
        }
    };
    drawAll();
    followPointer();
    window.addEventListener('resize', drawAll);
}
