// The small edits of a source that a test should notice: a condition negated, a constant raised, a statement left out.

type Kind = 'operator' | 'condition' | 'branches' | 'constant' | 'negate' | 'await' | 'word' | 'statement' | 'guard';

/** Puts a text in the place of a part of a source. */
export interface Edit {
  kind: Kind;
  start: number;
  end: number;
  text: string;
}

interface Token {
  kind: string;
  text: string;
  start: number;
  end: number;
}

const SIGNS = [
  '>>>=', '===', '!==', '**=', '>>>', '...', '&&=', '||=', '??=', '=>', '==', '!=', '<=', '>=', '&&', '||', '??', '?.',
  '++', '--', '+=', '-=', '**', ...'-+*/%<>=!?:;,.(){}[]&|^~@',
];

const TOKEN = new RegExp([
  /(?<comment>\/\/[^\n]*|\/\*[^]*?\*\/)/,
  /(?<string>'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`(?:\\[^]|[^`\\])*`)/,
  /(?<regex>(?<=[(,=:[!&|?{};]\s*|return )\/(?![*/])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\[\n])+\/[a-z]*)/,
  /(?<word>[A-Za-z_$#][\w$]*)/,
  /(?<number>\d[\d_.]*(?:e\d+)?\b)/,
  new RegExp(`(?<sign>${SIGNS.map((sign) => sign.replaceAll(/./g, '\\$&')).join('|')})`),
].map(({ source }) => source).join('|'), 'g');

const [OPENING, CLOSING] = ['([{', ')]}'];

const SIGN_SWAPS: Readonly<Record<string, readonly string[]>> = {
  '===': ['!=='], '!==': ['==='], '&&': ['||'], '||': ['&&'], '??': ['&&'],
  '<': ['<=', '>='], '<=': ['<', '>'], '>': ['>=', '<='], '>=': ['>', '<'],
  '+': ['-'], '-': ['+'], '+=': ['-='], '*': ['/'], '/': ['*'],
};
const CONDITIONS = ['===', '!==', '&&', '||', '??'];

const WORD_SWAPS: Readonly<Record<string, string>> = {
  true: 'false', false: 'true', some: 'every', every: 'some', min: 'max', max: 'min', startsWith: 'endsWith',
  shift: 'pop', push: 'unshift', floor: 'ceil', ceil: 'floor',
};

/** A statement on a line of its own, which is no declaration. */
const STATEMENT = new RegExp(`^(\\s+)((?!${[
  ...['const', 'let', 'import', 'export', 'type', 'case', 'static', 'readonly', 'function', 'async', 'class', 'throw',
    'interface', 'declare', 'private'].map((word) => `${word} `),
  'return\\b', 'default:', '\\/\\/', '\\*', '\\/\\*', '#\\w+[:;]', '\\w+\\??: ',
].join('|')})\\S.*;)(?:\\s*\\/\\/.*)?$`);

/** A condition that leaves early. */
const GUARD = /^(\s+)(if \(.*\) (?:return|continue|break|throw)\b.*;)/;

/** All edits of a source; what a template literal contains is left alone. */
export function editsOf(source: string): Edit[] {
  const tokens = tokensOf(source);
  const strings = tokens.filter(({ kind }) => kind === 'string');
  const isOutside = ({ start }: Edit): boolean => strings.every((one) => start <= one.start || start >= one.end);
  return [
    ...tokens.flatMap((_, index) => editsAt(tokens, index, source)), ...editsOfLines(source).filter(isOutside),
  ];
}

function tokensOf(source: string): Token[] {
  return [...source.matchAll(TOKEN)].map(({ 0: text, index: start, groups = {} }): Token => {
    const kind = Object.keys(groups).find((name) => groups[name] !== undefined) ?? '';
    return { kind, text, start, end: start + text.length };
  }).filter(({ kind }) => kind !== 'comment');
}

function editsAt(tokens: readonly Token[], index: number, source: string): Edit[] {
  const { kind, text, start, end } = tokens[index]!;
  const [before, after] = [tokens[index - 1]?.text, tokens[index + 1]?.text];
  const replace = (by: Kind, ...texts: string[]): Edit[] => texts.map((one) => ({ kind: by, start, end, text: one }));
  if (kind === 'number') {
    const value = Number(text.replaceAll('_', ''));
    const other = value > 20 ? [value * 3] : value > 1 ? [value - 1] : [];
    return replace('constant', ...[value + 1, ...other].map(String));
  }
  if (kind === 'sign') {
    const swaps = replace(CONDITIONS.includes(text) ? 'condition' : 'operator', ...SIGN_SWAPS[text] ?? []);
    return text === '?' && after !== ':' ? [...swaps, ...swapBranches(tokens, index, source)] : swaps;
  }
  if (kind !== 'word') return [];
  if (text === 'await' && before !== 'for') return [{ kind: 'await', start, end: end + 1, text: '' }];
  if (text === 'if' && after === '(') return negate(tokens, index, source);
  const isMethod = before === '.' || before === '?.';
  const isSwapped = Object.hasOwn(WORD_SWAPS, text) && (isMethod || text === 'true' || text === 'false');
  return isSwapped ? replace('word', WORD_SWAPS[text]!) : [];
}

function negate(tokens: readonly Token[], index: number, source: string): Edit[] {
  const start = tokens[index + 1]!.end;
  const close = find(tokens, index + 2, ')');
  if (close === undefined) return [];
  return [{ kind: 'negate', start, end: close.start, text: `!(${source.slice(start, close.start)})` }];
}

/** Of `condition ? one : other`, short and without another one in it. */
function swapBranches(tokens: readonly Token[], index: number, source: string): Edit[] {
  const start = tokens[index]!.end;
  const colon = find(tokens, index + 1, ':');
  const stop = colon && find(tokens, tokens.indexOf(colon) + 1, ',;)]}');
  if (colon === undefined || stop === undefined || stop.start - start > 200) return [];
  const [one, other] = [source.slice(start, colon.start), source.slice(colon.end, stop.start)];
  if (one.trim() === other.trim() || one.includes('?') || other.includes('?')) return [];
  return [{ kind: 'branches', start, end: stop.start, text: `${other.trimEnd()} :${one}` }];
}

/** The first of these signs, at the depth of the token at the index. */
function find(tokens: readonly Token[], index: number, signs: string): Token | undefined {
  let depth = 0;
  for (const token of tokens.slice(index)) {
    if (token.kind !== 'sign') continue;
    if (depth === 0 && signs.includes(token.text)) return token;
    if (OPENING.includes(token.text)) depth += 1;
    if (CLOSING.includes(token.text)) depth -= 1;
    if (depth < 0) return undefined;
  }
  return undefined;
}

function editsOfLines(source: string): Edit[] {
  const edits: Edit[] = [];
  let offset = 0;
  for (const line of source.split('\n')) {
    const kind = GUARD.test(line) ? 'guard' : 'statement';
    const [, indent = '', text = ''] = (kind === 'guard' ? GUARD : STATEMENT).exec(line) ?? [];
    const start = offset + indent.length;
    if (text !== '' && isBalanced(text)) edits.push({ kind, start, end: start + text.length, text: ';' });
    offset += line.length + 1;
  }
  return edits;
}

function isBalanced(text: string): boolean {
  let depth = 0;
  for (const { kind, text: sign } of tokensOf(text)) {
    if (kind !== 'sign') continue;
    if (OPENING.includes(sign)) depth += 1;
    if (CLOSING.includes(sign)) depth -= 1;
    if (depth < 0) return false;
  }
  return depth === 0;
}
