// The visible part of a long table: rows are made as they scroll into sight.

const ROW = 34;
const MARGIN = 8;

class Grid {
  // columns: [{key, label, fill(cell, row), number, sortable}]; open(row): a node for an opened row.
  constructor(host, columns, { open, sort, picked }) {
    Object.assign(this, { host, columns, open, sort, picked });
    this.view = new Int32Array(0);
    this.rows = new Map();
    this.opened = -1;
    this.panel = null;
    this.active = { place: 0, column: 1 };
    this.choice = new Set();

    this.head = element('div', 'row head');
    this.head.setAttribute('role', 'row');
    this.head.setAttribute('aria-rowindex', '1');
    columns.forEach((column, k) => this.head.append(this.header(column, k)));
    const top = element('div', 'heads');
    this.body = element('div', 'body');
    for (const group of [top, this.body]) group.setAttribute('role', 'rowgroup');
    top.append(this.head);
    host.append(top, this.body);
    host.setAttribute('aria-colcount', columns.length);
    host.addEventListener('scroll', () => this.draw(), { passive: true });
    this.body.addEventListener('keydown', (event) => this.key(event));
    this.body.addEventListener('focusin', (event) => this.focused(event.target));
    new ResizeObserver(() => this.measure()).observe(host);
  }

  header(column, k) {
    const cell = element('div', `cell c-${column.key}${column.number ? ' n' : ''}`);
    cell.setAttribute('role', 'columnheader');
    cell.setAttribute('aria-colindex', k + 1);
    if (column.sortable === false) {
      cell.append(element('span', 'sr', column.label));
      return cell;
    }
    const button = element('button', 'sort', column.label);
    button.type = 'button';
    button.addEventListener('click', () => this.sort(column));
    cell.append(button);
    return cell;
  }

  // Which column the rows are sorted by.
  sorted(key, down) {
    this.columns.forEach((column, k) => {
      const cell = this.head.children[k];
      if (column.key === key) cell.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      else cell.removeAttribute('aria-sort');
    });
  }

  show(view) {
    this.view = view;
    this.close();
    this.rows.clear();
    this.body.replaceChildren();
    this.active.place = 0;
    this.host.scrollTop = 0;
    this.host.setAttribute('aria-rowcount', view.length + 1);
    this.draw();
  }

  top(place) {
    const below = this.opened >= 0 && place > this.opened;
    return place * ROW + (below ? this.panelHeight : 0);
  }

  at(y) {
    if (this.opened < 0 || y < (this.opened + 1) * ROW) return Math.floor(y / ROW);
    return Math.max(this.opened, Math.floor((y - this.panelHeight) / ROW));
  }

  draw() {
    const { scrollTop, clientHeight } = this.host;
    const last = this.view.length - 1;
    this.body.style.height = `${this.top(last + 1)}px`;
    const from = Math.max(0, this.at(scrollTop) - MARGIN);
    const to = Math.min(last, this.at(scrollTop + clientHeight) + MARGIN);
    const places = [];
    for (let place = from; place <= to; place++) places.push(place);
    // The row that has the focus stays in the document, or the focus would be lost.
    const { place: kept } = this.active;
    if (kept <= last && (kept < from || kept > to)) kept < from ? places.unshift(kept) : places.push(kept);
    const wanted = new Set(places);
    for (const [place, row] of this.rows) {
      if (!wanted.has(place)) {
        row.remove();
        this.rows.delete(place);
      }
    }
    let next = this.body.firstChild;
    const put = (node) => {
      if (node === next) next = next.nextSibling;
      else this.body.insertBefore(node, next);
    };
    for (const place of places) {
      if (!this.rows.has(place)) this.rows.set(place, this.make(place));
      const row = this.rows.get(place);
      row.style.top = `${this.top(place)}px`;
      put(row);
      if (place === this.opened) put(this.panel);
    }
    if (this.panel && !wanted.has(this.opened)) this.panel.remove();
  }

  make(place) {
    const data = this.view[place];
    const row = element('div', 'row');
    row.setAttribute('role', 'row');
    row.setAttribute('aria-rowindex', place + 2);
    row.dataset.place = place;
    this.columns.forEach((column, k) => {
      const cell = element('div', `cell c-${column.key}${column.number ? ' n' : ''}`);
      cell.setAttribute('role', 'gridcell');
      cell.setAttribute('aria-colindex', k + 1);
      column.fill(cell, data);
      this.stop(cell).tabIndex = place === this.active.place && k === this.active.column ? 0 : -1;
      row.append(cell);
    });
    const box = row.querySelector('input');
    box.checked = this.choice.has(data);
    row.classList.toggle('chosen', box.checked);
    box.addEventListener('change', () => {
      box.checked ? this.choice.add(data) : this.choice.delete(data);
      row.classList.toggle('chosen', box.checked);
      this.picked();
    });
    const button = row.querySelector('button');
    button.setAttribute('aria-expanded', place === this.opened);
    row.addEventListener('click', (event) => {
      if (!event.target.closest('input, label') && !getSelection().toString()) this.toggle(place);
    });
    return row;
  }

  // What takes the focus in a cell.
  stop(cell) {
    return cell.querySelector('input, button') ?? cell;
  }

  async toggle(place) {
    const before = this.opened;
    this.close();
    if (place !== before) {
      const data = this.view[place];
      const panel = element('div', 'row panel');
      panel.setAttribute('role', 'row');
      const cell = element('div', 'cell');
      cell.setAttribute('role', 'gridcell');
      cell.setAttribute('aria-colspan', this.columns.length);
      panel.append(cell);
      cell.append(await this.open(data));
      // While the details were unpacked another view may have come.
      if (this.view[place] !== data || this.opened >= 0) return;
      this.opened = place;
      this.panel = panel;
      this.mark(place, true);
      panel.style.top = `${(place + 1) * ROW}px`;
      this.draw();
      this.measure();
      const bottom = (place + 1) * ROW + this.panelHeight;
      if (bottom > this.host.scrollTop + this.host.clientHeight - ROW) {
        this.host.scrollTop = Math.min(place * ROW, bottom - this.host.clientHeight + 2 * ROW);
      }
    }
    this.draw();
  }

  close() {
    if (this.opened < 0) return;
    this.mark(this.opened, false);
    this.panel.remove();
    this.opened = -1;
    this.panel = null;
  }

  mark(place, open) {
    const row = this.rows.get(place);
    row?.querySelector('button').setAttribute('aria-expanded', open);
    row?.classList.toggle('opened', open);
  }

  get panelHeight() {
    return this.height ?? 0;
  }

  measure() {
    if (this.panel?.isConnected) this.height = this.panel.offsetHeight;
    this.draw();
  }

  focused(target) {
    const cell = target.closest('.cell');
    const row = cell?.closest('.row');
    if (!row?.dataset.place) return;
    this.activate(Number(row.dataset.place), [...row.children].indexOf(cell));
  }

  activate(place, column) {
    const stop = () => {
      const row = this.rows.get(this.active.place);
      return row && this.stop(row.children[this.active.column]);
    };
    if (stop()) stop().tabIndex = -1;
    this.active = { place, column };
    if (stop()) stop().tabIndex = 0;
    return stop;
  }

  key(event) {
    if (event.target.closest('.panel')) {
      if (event.key === 'Escape') this.go(this.opened, this.active.column);
      return;
    }
    const { place, column } = this.active;
    const last = this.view.length - 1;
    const page = Math.max(1, Math.floor(this.host.clientHeight / ROW) - 2);
    const shown = this.columns.map((_, k) => k).filter((k) => this.head.children[k].offsetParent);
    const step = (by) => shown[Math.min(shown.length - 1, Math.max(0, shown.indexOf(column) + by))];
    const moves = {
      ArrowDown: [place + 1, column],
      ArrowUp: [place - 1, column],
      PageDown: [place + page, column],
      PageUp: [place - page, column],
      ArrowRight: [place, step(1)],
      ArrowLeft: [place, step(-1)],
      Home: event.ctrlKey ? [0, column] : [place, shown[0]],
      End: event.ctrlKey ? [last, column] : [place, shown.at(-1)],
    };
    if (moves[event.key]) {
      event.preventDefault();
      const [to, at] = moves[event.key];
      this.go(Math.min(last, Math.max(0, to)), at);
    } else if (event.key === 'Enter' && event.target.tagName !== 'BUTTON') {
      event.preventDefault();
      this.toggle(place);
    }
  }

  go(place, column) {
    const head = this.head.offsetHeight;
    const top = this.top(place);
    const room = this.host.clientHeight - head - ROW;
    if (top < this.host.scrollTop) this.host.scrollTop = top;
    else if (top > this.host.scrollTop + room) this.host.scrollTop = top - room;
    const stop = this.activate(place, column);
    this.draw();
    stop()?.focus({ preventScroll: true });
  }
}
