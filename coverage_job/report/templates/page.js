// The page: theme, filters, what an opened row shows, and taking rows away.

const $ = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat('en');
const words = (name) => name.replaceAll('_', ' ');
const SYMBOLS = { absent: '○', critical: '◔', low: '◑', covered: '●', exempt: '–' };
const LABELS = {
  token: 'Token',
  token_id: 'Id',
  language: 'Language',
  category: 'Category',
  was: 'Was',
  status: 'Status',
  corpus: 'Corpus',
  pretraining_occurrences: 'Pre-training',
  posttraining_supervised_occurrences: 'Supervised',
  deficit: 'Lacks',
  action: 'Action',
  lm_head_cosine: 'Cosine',
};
const label = (key) => LABELS[key] ?? words(key.replace('posttraining_', ''));

function number(value, key) {
  if (value === null || Number.isNaN(value)) return '–';
  return /cosine|l2/.test(key) ? value.toFixed(4) : whole.format(value);
}

function theme() {
  const button = $('theme');
  const modes = ['auto', 'light', 'dark'];
  let mode = 'auto';
  try {
    mode = localStorage.getItem('coverage-job theme') ?? 'auto';
  } catch {} // a file of its own may keep nothing
  const set = (value) => {
    mode = modes.includes(value) ? value : 'auto';
    document.documentElement.dataset.theme = mode;
    button.textContent = `Theme: ${mode}`;
  };
  set(mode);
  button.hidden = false;
  button.addEventListener('click', () => {
    set(modes[(modes.indexOf(mode) + 1) % modes.length]);
    try {
      localStorage.setItem('coverage-job theme', mode);
    } catch {}
  });
}

function columnsOf(table) {
  const pick = {
    key: 'pick',
    label: 'Take',
    sortable: false,
    fill(cell, row) {
      const box = element('input');
      box.type = 'checkbox';
      box.setAttribute('aria-label', `Take token ${table.ids[row]}`);
      cell.append(box);
    },
  };
  const token = {
    key: 'token',
    label: label('token'),
    fill(cell, row) {
      const button = element('button', 'open');
      button.type = 'button';
      const hex = table.hex(row);
      button.append(hex === undefined ? visible(table.data.text[row]) : visibleBytes(hex));
      cell.append(button);
    },
  };
  const coded = (key) => ({
    key,
    label: label(key),
    fill(cell, row) {
      const value = table.value(key, row);
      cell.textContent = key === 'status' || key === 'was' ? `${SYMBOLS[value]} ${value}` : words(value);
    },
  });
  const numeric = (key) => ({
    key,
    label: label(key),
    number: true,
    fill(cell, row) {
      cell.textContent = key === 'token_id' ? table.ids[row] : number(table.numbers[key][row], key);
    },
  });
  const numbers = Object.keys(table.data.numbers);
  return [
    pick,
    token,
    numeric('token_id'),
    ...['language', 'category', 'was', 'status'].filter((key) => table.coded[key]).map(coded),
    ...numbers.filter((key) => key !== 'lm_head_cosine').map(numeric),
    coded('action'),
    ...numbers.filter((key) => key === 'lm_head_cosine').map(numeric),
  ];
}

// What a row opens to: why it is flagged and what serves it, its counts, its neighbours.
function panelOf(table, details, row) {
  const panel = element('div', 'details');
  const list = element('dl');
  const line = (name, content) => {
    const value = element('dd');
    value.append(content);
    list.append(element('dt', '', name), value);
  };
  const hex = table.hex(row);
  const text = table.data.text[row];
  if (hex === undefined) line('Token', visible(text));
  line('Bytes', visibleBytes(hex ?? hexOf(text)));
  const reason = details.reason.values[details.reason.codes[row]];
  if (reason) line('Remedy', `${words(table.value('action', row))}: ${reason}`);
  if (details.context[row]) line('Context', visible(details.context[row]));
  for (const [key, { values, codes }] of Object.entries(details.coded)) {
    line(words(key), words(values[codes[row]]) || '–');
  }
  for (const [key, values] of Object.entries(details.numbers)) line(words(key), number(values[row], key));
  const counts = element('div', 'parts');
  counts.append(totalsOf(details.counts, row), ...partsOf(details.parts, row));
  panel.append(list, counts);
  const near = details.neighbours.of[row];
  if (near) {
    const box = element('div', 'near');
    for (const [name, ids] of [['Neighbours before', near[0]], ['Neighbours after', near[1]]]) {
      const side = element('div');
      const ordered = element('ol');
      for (const id of ids) {
        const item = element('li');
        item.append(visible(details.neighbours.names[id] ?? ''), element('span', 'note', ` ${id}`));
        ordered.append(item);
      }
      side.append(element('h4', '', name), ordered);
      box.append(side);
    }
    panel.append(box);
  }
  return panel;
}

// A table of plain cells; the first `left` columns are text, the others numbers.
function tableOf(names, rows, left) {
  const grid = element('table');
  const head = grid.createTHead().insertRow();
  names.forEach((name, k) => {
    const cell = element('th', k < left ? '' : 'n', name);
    cell.scope = 'col';
    head.append(cell);
  });
  const body = grid.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((value, k) => {
      const cell = line.insertCell();
      if (k >= left) cell.className = 'n';
      cell.append(typeof value === 'number' ? whole.format(value) : value);
    });
  }
  return grid;
}

function totalsOf(counts, row) {
  const rows = [
    ['Pre-training', 'pretraining_'],
    ['Post-training', 'posttraining_'],
    ['of it supervised', 'posttraining_supervised_'],
  ].map(([name, prefix]) => [name, counts[`${prefix}occurrences`][row], counts[`${prefix}documents`][row]]);
  return tableOf(['Stage', 'Occurrences', 'Documents'], rows, 1);
}

function hexOf(text) {
  return Array.from(new TextEncoder().encode(text), (b) => b.toString(16).padStart(2, '0')).join('');
}

function partsOf(parts, row) {
  if (!parts.starts) {
    parts.starts = [0];
    for (const size of parts.sizes) parts.starts.push(parts.starts.at(-1) + size);
  }
  const [from, to] = [parts.starts[row], parts.starts[row + 1]];
  if (from === to) return [element('p', 'note', 'No corpus of either stage holds it.')];
  const rows = [];
  for (let i = from; i < to; i++) {
    const [stage, corpus, language, group] = parts.keys[parts.key[i]];
    const all = parts.occurrences[i];
    rows.push([corpus, stage, language || '–', group ? visible(group) : '–', all, all - parts.unsupervised[i]]);
  }
  const names = ['Corpus', 'Stage', 'Language', 'Group', 'Occurrences', 'Supervised'];
  const out = [element('h4', '', 'By corpus, language and group'), tableOf(names, rows, 4)];
  const more = parts.left_out[row];
  if (more) out.push(element('p', 'note', `${whole.format(more)} smaller counts are in histogram.parquet.`));
  return out;
}

// Columns of a file of rows: exact text, and bytes where there is no text.
function fileColumns(table) {
  const names = [...Object.keys(table.coded), ...Object.keys(table.data.numbers)];
  return [
    ['token_id', (row) => table.ids[row]],
    ['token', (row) => table.data.text[row]],
    ['bytes', (row) => table.hex(row) ?? hexOf(table.data.text[row])],
    ...names.map((name) => [name, (row) => table.value(name, row)]),
  ];
}

async function tokens() {
  if (!$('table-data')) return;
  const table = new Table(await unpack('table-data'));
  let loading = null;
  const details = () => (loading ??= unpack('details-data'));
  const state = { wanted: {}, key: null, down: false };
  const fields = ['language', 'category', 'was', 'status', 'action', 'corpus'].filter(
    (name) => table.coded[name] || (name === 'corpus' && table.data.corpora.length),
  );

  const grid = new Grid($('grid'), columnsOf(table), {
    open: async (row) => panelOf(table, await details(), row),
    sort(column) {
      // Numbers are first asked for from the highest.
      state.down = state.key === column.key ? !state.down : Boolean(column.number);
      state.key = column.key;
      grid.sorted(state.key, state.down);
      refresh();
    },
    picked: () => tell(),
  });

  const rows = () => (grid.choice.size ? [...grid.choice].sort((a, b) => a - b) : grid.view);
  const tell = () => {
    const found = `${whole.format(grid.view.length)} of ${whole.format(table.n)} tokens`;
    $('count').textContent = grid.choice.size ? `${found}, ${whole.format(grid.choice.size)} ticked` : found;
    for (const id of ['copy', 'download']) {
      $(id).textContent = `${id === 'copy' ? 'Copy' : 'Download'} ${whole.format(rows().length)}`;
      $(id).disabled = rows().length === 0;
    }
  };
  const refresh = () => {
    grid.show(table.select(state.wanted, state.key, state.down));
    tell();
  };
  const want = (name, value) => {
    if (value === undefined) delete state.wanted[name];
    else state.wanted[name] = value;
    refresh();
  };

  const selects = {};
  for (const name of fields) {
    const box = element('label', '', `${label(name)} `);
    const select = element('select');
    select.id = `filter-${name}`;
    select.append(new Option('any', ''));
    const tally = table.tally(name).sort((a, b) => b[1] - a[1]);
    tally.forEach(([value, n], k) => select.append(new Option(`${words(value) || '(none)'} (${whole.format(n)})`, k + 1)));
    select.addEventListener('change', () => want(name, tally[select.value - 1]?.[0]));
    select.pick = (value) => {
      select.value = tally.findIndex(([v]) => v === value) + 1;
      want(name, value);
    };
    selects[name] = select;
    box.append(select);
    $('filters').append(box);
  }
  const clear = () => {
    state.wanted = {};
    $('filters').reset();
    grid.choice.clear();
  };
  $('filters').addEventListener('submit', (event) => event.preventDefault());
  $('search').addEventListener('input', () => want('search', $('search').value || undefined));
  $('reset').addEventListener('click', () => {
    clear();
    refresh();
  });
  for (const button of document.querySelectorAll('button[data-filter]')) {
    button.addEventListener('click', () => {
      clear();
      selects[button.dataset.filter].pick(button.dataset.value);
      $('tokens').scrollIntoView();
      $('tokens').focus({ preventScroll: true });
    });
  }

  const file = () => ($('format').value === 'csv' ? csv : jsonl)(rows(), fileColumns(table));
  $('download').addEventListener('click', () => {
    const link = element('a');
    const type = $('format').value === 'csv' ? 'text/csv' : 'application/x-ndjson';
    link.href = URL.createObjectURL(new Blob([file()], { type: `${type};charset=utf-8` }));
    link.download = `flagged-${table.data.run}.${$('format').value}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    $('said').textContent = `${whole.format(rows().length)} rows written`;
  });
  $('copy').addEventListener('click', async () => {
    const text = file();
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = element('textarea', 'sr', text);
      document.body.append(area);
      area.select();
      document.execCommand('copy');
      area.remove();
    }
    $('said').textContent = `${whole.format(rows().length)} rows copied`;
    $('copy').textContent = 'Copied';
    setTimeout(tell, 1500);
  });

  for (const id of ['filters', 'actions', 'grid']) $(id).hidden = false;
  refresh();
  document.documentElement.dataset.ready = 'true';
  // Ready before the first row is opened, without delaying the first view.
  setTimeout(() => {
    details();
    table.search('', new Uint8Array(table.n));
  }, 300);
}

theme();
// Until the table works, and where it cannot, its first rows stand as plain HTML.
tokens().then(() => document.documentElement.classList.remove('plain'));
