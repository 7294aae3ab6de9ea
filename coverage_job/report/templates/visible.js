// Token text as nodes in which nothing hides and nothing acts: the same rules as visible.py.

const HIDDEN = /[\p{C}\p{Zl}\p{Zp}\p{Zs}\p{DI}]/u;
const NAMED = { '\n': '\\n', '\r': '\\r', '\t': '\\t' };
const LONG_RUN = 6;

function element(name, className, text) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// A <bdi> with a text, its hidden characters named, the spaces at its borders shown.
function visible(text) {
  if (text === '') return element('span', 'note', '(empty)');
  const out = element('bdi');
  const characters = Array.from(text);
  let start = 0;
  let end = characters.length;
  while (start < end && characters[start] === ' ') start++;
  while (end > start && characters[end - 1] === ' ') end--;
  let plain = /^\p{M}/u.test(text.slice(start)) ? '◌' : '';
  for (let i = 0, length; i < characters.length; i += length) {
    const character = characters[i];
    length = 1;
    while (characters[i + length] === character) length++;
    const space = character === ' ';
    if (space ? length > 1 || i < start || i >= end : HIDDEN.test(character)) {
      out.append(plain);
      plain = '';
      const code = character.codePointAt(0).toString(16).toUpperCase().padStart(4, '0');
      const name = space ? '␣' : (NAMED[character] ?? `U+${code}`);
      const chips = length >= LONG_RUN ? [`${name}×${length}`] : Array(length).fill(name);
      out.append(...chips.map((chip) => element('span', 'chip', chip)));
    } else {
      plain += character.repeat(length);
    }
  }
  out.append(plain);
  return out;
}

// Bytes given in hex, as one chip.
function visibleBytes(hex) {
  return element('span', 'chip', (hex.match(/../g) ?? []).map((b) => `0x${b.toUpperCase()}`).join(' '));
}
