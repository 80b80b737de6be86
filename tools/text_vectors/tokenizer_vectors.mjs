// Mints tests/data/text/token-ids.json: ids of many strings by an independent implementation
// (@huggingface/tokenizers). Run once; see README.md for how. Deterministic: seeded strings only.
// SPDX-License-Identifier: MIT
import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const [modules, qwen3Dir, demoDir, heldout, out] = process.argv.slice(2);
const { Tokenizer } = createRequire(modules + '/')('@huggingface/tokenizers');

let state = 0x2545f491n;
function random(n) {
  // SplitMix64
  state = (state + 0x9e3779b97f4a7c15n) & 0xffffffffffffffffn;
  let z = state;
  z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & 0xffffffffffffffffn;
  z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & 0xffffffffffffffffn;
  return Number((z ^ (z >> 31n)) % BigInt(n));
}
const pick = (list) => list[random(list.length)];

const texts = [];
const add = (...list) => texts.push(...list);

// Plain, contractions, numbers, punctuation.
add('', 'a', ' ', '  ', 'Hello world', 'Hello, world!', ' leading', 'trailing ', 'two  spaces', 'tab\tnext',
  "I'm you're we'll he'd they've it's don't", "I'M YOU'RE WE'LL HE'D THEY'VE IT'S DON'T", "'s't're've'm'll'd",
  "rock'n'roll ''quoted'' 'tis", "'S 'ſ l'été qu’il d'Or", '1', '12', '123', '1234567890', '3.14159', '1,000,000.00', '0x1F 1e-10 ½ ² Ⅷ ٣٤٥ १२३',
  '!!!', '...', '---', '***bold*** __x__', '?!?!', '(a)[b]{c}<d>', '$100 €50 £20 ¥10 ₿1', '#hash @at %20 &amp; ^ ~ ` | \\',
  'https://example.com/a/b?c=d&e=f#g', 'user@example.org', 'C:\\path\\file.txt', '"quoted" “curly” ‘single’ «guillemets»', 'em—dash en–dash…');
// White space: runs, mixtures, unusual ones (not U+0085, U+180E, U+FEFF: JavaScript's \s differs there).
for (const n of [1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 100]) add(' '.repeat(n) + 'x', 'x' + ' '.repeat(n), '\n'.repeat(n), '\t'.repeat(n) + 'y');
add('a\nb', 'a\r\nb', 'a\n\nb', 'a \n b', 'a\n \nb', ' \n', '\n ', ' \n \n  \n   x', '\r', '\r\r\n\n', 'a\u00a0b', 'a\u2003b', 'a\u3000b', 'a\u2028b\u2029c', 'x\u200bx', 'a\u202f1', '\v\f', 'end.\n\n\nNext', '!\n', '!\r\n\r\n', ' !\n\n x');
// Combining marks and normal forms.
add('e\u0301', 'é', 'cafe\u0301 café', 'a\u0323\u0302 a\u0302\u0323', 'ậ', '\u0301', ' \u0301x', 'o\u0308\u0304', 'ǭ̣', '\u1100\u1161\u11a8', '각', '가\u11a8', '\u1100\u1161', '한국어 텍스트', '\u0344', '\u212b Å', '\u2126 Ω', '\u212a K', '\uf900', 'ｶﾞ が か\u3099', 'ﬁ ﬀ', '\u0958 क\u093c', '\u0dd9\u0dcf\u0dca', 'Zalgo: H\u0321\u0356e\u0330\u0301l\u0326\u0300\u0317l\u0304o', 's\u0323\u0307 s\u0307\u0323 \u1e69', '\u09c7\u09be', '\u{1d15e}', '\u{1d157}\u{1d165}', '\u{110a5}\u{110ba}', '\u{2f800}');
// Emoji and sequences.
add('😀', '👍🏽', '👩‍👩‍👧‍👦', '🏳️‍🌈', '🇩🇪🇫🇷', '❤️ ❤', '1️⃣', '🤷🏿‍♂️ shrug', 'a😀b 😀😀 c', '🧑‍💻: `code`', '☃☂★');
// Scripts.
add('你好，世界！', '中文没有空格的句子。第二句？', '日本語のテキスト、カタカナとひらがな。', '漢字カナ交じり文123', 'مرحبا بالعالم', 'السَّلَامُ عَلَيْكُمْ', 'שָׁלוֹם עולם', 'नमस्ते दुनिया', 'สวัสดีชาวโลก', 'Привет, мир! Ёлка', 'Γειά σου Κόσμε', 'Xin chào thế giới', 'Tiếng Việt có dấu', 'İstanbul ığüşöç', 'Straße GROẞE', 'Łódź Żółć', 'ქართული', 'Հայերեն', 'አማርኛ', 'ភាសាខ្មែរ', 'မြန်မာ', 'བོད་ཡིག', 'ᠮᠣᠩᠭᠣᠯ', '𐌰𐌱𐌲', '𝒜𝓁𝑔𝑒𝒷𝓇𝒶 𝟙𝟚', '𠮷野家', '\u{10ffff}', '\u{e000}', '\u{fffd}', '\u{0}', 'a\u0000b', '\u0001\u001f\u007f');
// Code and markup.
add('def f(x):\n    return x + 1\n', 'for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}\n', '{"key": [1, 2.5, null, true], "s": "a\\nb"}', '<div class="x">\n  <p>Hi &amp; bye</p>\n</div>', 'SELECT * FROM t WHERE a = \'b\';', '#include <vector>\nint main() { return 0; }', 'a=b==c!=d<=e>=f&&g||h', '/* c */ // d\n', '```python\nprint("x")\n```', '|a|b|\n|-|-|\n|1|2|', 'camelCase snake_case SCREAMING_CASE kebab-case', 'λx.x ∀x∈ℝ: x²≥0', '$\\frac{a}{b}$', '\x1b[31mred\x1b[0m', 'A'.repeat(200), 'ab'.repeat(150), 'https://' + 'x'.repeat(120), '='.repeat(79) + '\n', '-'.repeat(80), 'donaudampfschifffahrtsgesellschaftskapitän'.repeat(4));
// Special and added tokens inside text.
add('<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n', '<|im_end|>', '<|im_end|><|im_end|>', ' <|im_end|> ', 'a<|endoftext|>b', '<|im_start', '<|im_start|', '|im_start|>', '<<|im_start|>>', '<|im_start|><|im_', '<think>\n\n</think>\n\nHi', '<tool_call>\n{"name": "f"}\n</tool_call>', 'x<think>y</think>z', '<|vision_start|><|image_pad|><|vision_end|>', '<|IM_START|>', '<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>', 'e\u0301<|im_end|>e\u0301', '\u0301<|im_end|>\u0301', '<|im_end|> \n<|im_end|>');

// Every plane and every block of 256 code points that has one: samples, spaced and unspaced.
const isSurrogate = (p) => p >= 0xd800 && p <= 0xdfff;
const jsSpaceDiffers = (p) => p === 0x85 || p === 0x180e || p === 0xfeff;
// Combining marks of Unicode 17 reorder in Node and not yet elsewhere.
const tooNew = (p) => p >= 0x1acf && p <= 0x1aff;
const randomPoint = (low, high) => {
  for (;;) {
    const p = low + random(high - low);
    if (!isSurrogate(p) && !jsSpaceDiffers(p) && !tooNew(p)) return String.fromCodePoint(p);
  }
};
for (let plane = 0; plane <= 16; ++plane)
  for (let i = 0; i < 3; ++i) {
    let s = '';
    for (let k = 0; k < 12; ++k) s += randomPoint(plane * 0x10000, plane * 0x10000 + 0x10000) + pick(['', '', ' ']);
    add(s);
  }
for (let block = 0; block < 0x3200; block += 0x80) {
  let s = '';
  for (let k = 0; k < 16; ++k) s += randomPoint(block, block + 0x80);
  add(s);
}
// Random soup over characters at which the pre-tokenizer's alternatives meet.
const soup = ['a', 'B', 'é', 'e\u0301', '\u0323', 'ß', '中', 'ع', '1', '２', '٣', ' ', '  ', '\n', '\r\n', '\t', '\u00a0', '\u3000', '.', '!', "'", "'s", "'LL", '-', '_', '(', '"', '😀', '\u200d', '<|im_end|>', '<', '|', '\u0000', 'the', ' and', 'ing'];
for (let i = 0; i < 160; ++i) {
  let s = '';
  for (let k = 0, n = 2 + random(24); k < n; ++k) s += pick(soup);
  add(s);
}
// Real prose.
const prose = readFileSync(heldout, 'utf8');
for (let i = 0; i < 12; ++i) {
  const at = random(prose.length - 900);
  add(prose.slice(at, at + 300 + random(600)));
}

const json = (path) => JSON.parse(readFileSync(path, 'utf8'));
const result = { about: 'ids by @huggingface/tokenizers 0.2.0, add_special_tokens false; see tools/text_vectors/README.md', texts };
for (const [name, dir] of [['qwen3', qwen3Dir], ['demo', demoDir]]) {
  const tokenizer = new Tokenizer(json(dir + '/tokenizer.json'), json(dir + '/tokenizer_config.json'));
  result[name] = texts.map((t) => tokenizer.encode(t, { add_special_tokens: false }).ids);
}
const lines = Object.entries(result).map(([k, v]) => JSON.stringify(k) + ': ' + (Array.isArray(v) ? '[\n' + v.map((x) => JSON.stringify(x)).join(',\n') + '\n]' : JSON.stringify(v)));
writeFileSync(out, '{\n' + lines.join(',\n') + '\n}\n');
console.log(texts.length, 'texts');
