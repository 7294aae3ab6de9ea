// The rows in memory: unpacked, filtered and sorted, without a document.

// A block's value: base64 of gzipped JSON.
async function unpack(id) {
  const text = document.getElementById(id).textContent;
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(plain).json();
}

class Table {
  constructor(data) {
    this.data = data;
    this.n = data.n;
    this.ids = Int32Array.from(data.token_id);
    this.coded = {};
    for (const [name, column] of Object.entries(data.coded)) {
      this.coded[name] = { values: column.values, codes: Uint16Array.from(column.codes) };
    }
    this.numbers = { token_id: this.ids };
    for (const [name, values] of Object.entries(data.numbers)) {
      this.numbers[name] = Float64Array.from(values, (v) => (v === null ? NaN : v));
    }
    this.masks = data.masks.map((mask) => Int32Array.from(mask));
    this.natural = Int32Array.from({ length: this.n }, (_, i) => i);
    this.orders = new Map();
  }

  value(name, row) {
    const column = this.coded[name];
    return column ? column.values[column.codes[row]] : this.numbers[name][row];
  }

  hex(row) {
    return this.data.hex[row];
  }

  // How many rows have each value of a coded column, or stand in each corpus.
  tally(name) {
    if (name === 'corpus') {
      return this.data.corpora.map((corpus, k) => {
        const [mask, bit] = this.bit(k);
        return [corpus, mask.reduce((n, m) => n + ((m & bit) !== 0), 0)];
      });
    }
    const { values, codes } = this.coded[name];
    const counts = new Uint32Array(values.length);
    for (const code of codes) counts[code]++;
    return values.map((value, code) => [value, counts[code]]);
  }

  bit(place) {
    return [this.masks[Math.floor(place / 30)], 1 << place % 30];
  }

  // Rows of a sort order; ties and gaps keep the natural order, gaps last.
  order(name, down) {
    if (!name) return this.natural;
    const key = `${name} ${down}`;
    if (!this.orders.has(key)) {
      const keys = this.keys(name);
      const sign = down ? -1 : 1;
      const known = this.natural.filter((row) => keys[row] === keys[row]);
      const gaps = this.natural.filter((row) => keys[row] !== keys[row]);
      known.sort((a, b) => (keys[a] < keys[b] ? -sign : keys[a] > keys[b] ? sign : a - b));
      const rows = new Int32Array(this.n);
      rows.set(known);
      rows.set(gaps, known.length);
      this.orders.set(key, rows);
    }
    return this.orders.get(key);
  }

  keys(name) {
    if (name === 'token') return this.data.text;
    return this.coded[name] ? this.coded[name].codes : this.numbers[name];
  }

  // Rows that fit, in the order asked. wanted: {column: value}, with `corpus` and `search` among them.
  select(wanted, name, down) {
    const order = this.order(name, down);
    if (Object.keys(wanted).length === 0) return order;
    const keep = new Uint8Array(this.n).fill(1);
    for (const [column, value] of Object.entries(wanted)) {
      if (column === 'search') this.search(value, keep);
      else if (column === 'corpus') {
        const [mask, bit] = this.bit(this.data.corpora.indexOf(value));
        for (let row = 0; row < this.n; row++) if (!(mask[row] & bit)) keep[row] = 0;
      } else {
        const { values, codes } = this.coded[column];
        const code = values.indexOf(value);
        for (let row = 0; row < this.n; row++) if (codes[row] !== code) keep[row] = 0;
      }
    }
    return order.filter((row) => keep[row]);
  }

  // Keeps the rows that hold a text, whatever its case, or have the id.
  search(text, keep) {
    this.lower ??= this.data.text.map((t) => t.toLowerCase());
    const needle = text.toLowerCase();
    const id = /^\d+$/.test(text) ? Number(text) : -1;
    for (let row = 0; row < this.n; row++) {
      if (keep[row] && !this.lower[row].includes(needle) && this.ids[row] !== id) keep[row] = 0;
    }
  }
}

// A file of rows. columns: [name, function of a row].
function csv(rows, columns) {
  const cell = (value) => {
    if (value === null || value === undefined || Number.isNaN(value)) return '';
    if (typeof value === 'number') return String(value);
    // A spreadsheet runs text that begins with one of these, also after blanks.
    const safe = /^\s*[=+\-@\t\r\n＝＋－＠]/u.test(value) ? `'${value}` : value;
    return `"${safe.replaceAll('"', '""')}"`;
  };
  const lines = [columns.map(([name]) => name).join(',')];
  for (const row of rows) lines.push(columns.map(([, of]) => cell(of(row))).join(','));
  return lines.join('\r\n') + '\r\n';
}

function jsonl(rows, columns) {
  const line = (row) =>
    JSON.stringify(
      Object.fromEntries(columns.map(([name, of]) => [name, Number.isNaN(of(row)) ? null : of(row)])),
    );
  return Array.from(rows, (row) => line(row) + '\n').join('');
}
