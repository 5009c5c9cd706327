// The name of a program: the script, not the interpreter or launcher that runs it.

import { basename } from 'node:path';

/** These run the word after their options: a command or a script. */
const RUNNERS = new Set((
  'env nice ionice chrt taskset numactl timeout nohup setsid stdbuf time sudo runuser systemd-run xvfb-run tini ' +
  'dumb-init exec command npx bunx uvx sh bash dash zsh ksh python pypy node deno bun tsx java ruby perl php julia ' +
  'lua Rscript'
).split(' '));

/** Their options with a value in the next word that is not a number. */
const VALUED = new RegExp(`^(${[
  'env -[uCS]', 'ionice -c', 'timeout (-s|--signal)', 'stdbuf -[ioe]', 'time -[fo]', 'sudo (-\\w*[ug]|--user)',
  'runuser (-[ug]|--user)', 'systemd-run (-[up]|--unit)', 'xvfb-run -[ef]', 'exec -a', 'npx (-p|--package)',
  'uvx --(from|with)', '\\w*sh -\\w*[oO]', 'python -[WX]', 'node (-[rC]|--(require|import|loader|env-file))', 'bun -r',
  'java (-cp|-p|--?class-?path|--module-path)', 'ruby -[Ir]', 'perl -I', 'php -d', 'julia -t', 'lua -l',
].join('|')}) `);

/** These run a command after options that are too many to list. */
const LAUNCHER = new RegExp(`^(${[
  '(torchrun|torch\\.distributed\\.\\w+|deepspeed|mpirun|mpiexec|srun)',
  '(accelerate|uv|poetry|pipenv|conda|npm|pnpm|yarn|bundle|go|deno|bun|tsx) (run|exec|launch|task|watch)',
].join('|')}) `);
const VERB = /^(run|exec|launch|task|watch)$/;

const SCRIPT = /\.([cm]?[jt]sx?|py|rb|pl|php|R|jl|lua|sh|jar)$/;
const EMPTY = /^(-.*|[\d.,:+-]+[smhd]?|0x[\da-f]+|\w+=.*|.*\$.*|[./]*)$/s; // an option, a number, a variable, `.`

// An interpreter and its option for code or a module:
const SHELL_CODE = /^\w*sh -\w*c$/;
const CODE = /^(python|pypy) -\w*c$|^(node|deno|bun|ruby|perl|php|julia|lua|Rscript) (-\w*[eE]|--eval)$/;
const MODULE = /^(python|pypy|torchrun) -m$/;

// In shell code:
const TOKEN = /(?<!\S)#[^\n]*|(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[<>]&|&>|\$\(\(?[^()]*\)+|[^\s;&|()'"\\])+|[;&|()\n]/gs;
const SEPARATOR = /^[;&|()\n]$/;
const REDIRECTION = /^[\d&]*[<>]/;
const PREFIX = /^(if|then|elif|else|while|until|do|!|\{|-.*|\w+=.*|.*\$.*)$/s; // a command may follow
const BUILT_IN = new Set((
  '. : [ [[ alias case cd conda done echo esac eval exec exit export fi for function kill mkdir module printf pushd ' +
  'read set shift shopt sleep source test trap true ulimit umask unset wait }'
).split(' '));

/** Returns the base name of the first telling word: `train.py` for `nice -n 5 python3 -u train.py`. Never empty. */
export function nameOf(line: readonly string[]): string {
  return findName(line) || 'command';
}

function findName([file = '', ...words]: readonly string[]): string {
  const name = basename(file);
  const kind = name.replace(/\.exe$/i, '').replace(/(?<=^[a-z]+)[\d.]+$/, ''); // of `python3.12`
  const isLauncher = LAUNCHER.test(`${name} ${words[0]} `);
  if (!isLauncher && !RUNNERS.has(kind)) return name;
  let guess = ''; // the word after an option of a launcher may be its value, unless it is a script
  for (const [index, word] of words.entries()) {
    const [option, rest] = [`${kind} ${word}`, words.slice(index + 1)];
    const before = words[index - 1] ?? '';
    if (SHELL_CODE.test(option)) return findInShell(rest[0] ?? '') || name;
    if (MODULE.test(option)) return findName(rest) || name;
    if (CODE.test(option)) return name;
    if (EMPTY.test(word) || (isLauncher ? index === 0 && VERB.test(word) : VALUED.test(`${kind} ${before} `))) continue;
    if (!isLauncher || SCRIPT.test(word) || !/^-+(?!-|no-)[^=]+$/.test(before)) return findName([word, ...rest]);
    guess ||= basename(word);
  }
  return guess || name;
}

/** Returns an empty text if all commands are built in. */
function findInShell(code: string): string {
  const commands: string[][] = [[]];
  for (const token of code.match(TOKEN) ?? []) {
    const command = commands.at(-1) as string[];
    const word = token.replaceAll(/['"\\]/g, '');
    if (SEPARATOR.test(token)) commands.push([]);
    else if (!token.startsWith('#') && (command.length > 0 || !PREFIX.test(word))) command.push(word);
  }
  const names = commands.map((words) => {
    const end = words.findIndex((word) => REDIRECTION.test(word));
    return findName(end < 0 ? words : words.slice(0, end));
  });
  return names.find((name) => name !== '' && !BUILT_IN.has(name)) ?? '';
}
