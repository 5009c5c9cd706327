// control-client completion: Tab in bash, zsh and fish. The script of a shell passes the line before the cursor to
// `control-client __complete`, which prints what may come next: a directive, and after `words` one word per line, with
// a tab and its help if it has one.
//
//   words            the lines that follow
//   files START      file names; the word begins with START, such as `--targets=`
//   hosts START      host names

import { parseArgs } from 'node:util';
import { EXIT, listOf, type NamedOption, type Options, withCommon } from '../shared/cli.ts';
import { findCommand } from '../shared/commands.ts';
import {
  acceptedBy, completeAnswer, COMPLETION_MS, completionsOf, isArgument, isQuestionId, questionsIn, wordsBefore,
} from '../shared/declared.ts';
import { logsOfUser, nameInLogPath as nameOf } from '../shared/log.ts';
import { completeName, select, type Sources } from '../shared/names.ts';
import { PATIENCE_MS } from '../shared/via.ts';
import { parseChoice, type Verb, verb } from './verb.ts';

export const COMPLETE = '__complete';

/** The shells that have a completion. */
export const SHELLS = ['bash', 'zsh', 'fish'] as const;
export type Shell = typeof SHELLS[number];
const ARGUMENT = { name: 'SHELL', values: SHELLS };

export const completion: Verb = verb({
  name: 'completion', argument: ARGUMENT, isLocal: true, example: 'completion fish | source',
  help: `print the completion for a shell: ${listOf(SHELLS)}`,
  take: (words) => parseChoice(ARGUMENT, words.shift()),
  run: ({ argument }) => console.log(SCRIPTS[argument as Shell].trim()),
});

/** What `completion` prints. Bash and zsh also pass the part of the last word that they replace. */
const SCRIPTS: Readonly<Record<Shell, string>> = {
  bash: `
_control_client() {
  local how value word help
  COMPREPLY=()
  { IFS=' ' read -r how value
    while IFS=$'\\t' read -r word help; do COMPREPLY+=("$word"); done
  } < <(control-client ${COMPLETE} "\${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null </dev/null)
  [[ $how == hosts ]] && COMPREPLY=($(compgen -A hostname -- "$2"))
  [[ $how == files ]] || compopt +o default 2>/dev/null # bash 3.2 of macOS has no compopt
  [[ $COMPREPLY == *[=/] ]] && compopt -o nospace 2>/dev/null
}
complete -o default -F _control_client control-client`,
  zsh: `
_control_client() {
  local line="\${(j: :)words[1,CURRENT-1]} $PREFIX"
  local -a found=("\${(@f)$(control-client ${COMPLETE} "$line" "$PREFIX" 2>/dev/null </dev/null)}")
  local how=\${found[1]%% *} value=\${found[1]#* }
  found=("\${(@)\${(@)\${(@)found[2,-1]//(#m)[\\\\:]/\\\\$MATCH}/$'\\t'/:}}") # as _describe takes them
  local -a open=(\${(M)found:#*[=/]}) closed=(\${found:#*[=/]})
  case $how in
    words) _describe value open -S ''; _describe value closed ;;
    files|hosts) compset -P "$value"; _$how ;;
  esac
}
compdef _control_client control-client`,
  fish: `
function __control_client
    set -l found (control-client ${COMPLETE} (commandline -pc | string collect) 2>/dev/null </dev/null)
    set -l how (string split ' ' -- "$found[1] ")
    set -l word (commandline -ct)
    switch $how[1]
        case words
            printf '%s\\n' $found[2..]
        case hosts
            printf '%s\\n' "$how[2]"(__fish_print_hostnames)
        case files
            printf '%s\\n' "$how[2]"(__fish_complete_path (string replace -- "$how[2]" '' "$word"))
    end
end
complete -c control-client -f -a '(__control_client)'`,
};

/** @param args The line, and the part of the last word that the shell replaces. */
export async function complete(verbs: readonly Verb[], options: Options, args: readonly string[]): Promise<number> {
  const [line = '', replaced] = args;
  const [, ...words] = wordsBefore(line);
  let limit: NodeJS.Timeout | undefined;
  try {
    const limitMs = /\s--via\b/.test(line) || process.env['CONTROL_VIA'] ? PATIENCE_MS : COMPLETION_MS;
    limit = setTimeout(() => process.exit(EXIT.DONE), limitMs); // a DNS lookup cannot be aborted
    await printCandidates(verbs, withCommon(options), words, replaced);
  } catch {} // the user is still typing; the complete line reports errors
  clearTimeout(limit);
  return EXIT.DONE;
}

async function printCandidates(
  verbs: readonly Verb[],
  options: readonly NamedOption[],
  words: string[],
  replaced: string | undefined,
): Promise<void> {
  const current = words.pop() ?? '';
  const kept = Math.max(0, current.length - (replaced ?? current).length); // bash replaces what follows = or :
  const offer = (offers: readonly string[]): void => {
    for (const word of offers) if (word.startsWith(current)) console.log(word.slice(kept));
  };
  const known = Object.fromEntries(options);
  const config = { options: known, strict: false, allowPositionals: true, tokens: true } as const;
  const { values, positionals, tokens } = parseArgs({ ...config, args: words });
  const last = tokens.at(-1);
  const [start = '', named = ''] = /^--([a-z-]+)=/.exec(current) ?? [];
  const isPending = last?.kind === 'option' && last.value === undefined && known[last.name]?.type === 'string';
  const option = known[isPending ? last.name : named];
  const isOption = current.startsWith('-');
  if (typeof option?.completion === 'string') return console.log(`${option.completion} ${start}`);
  console.log('words');
  if (option !== undefined) {
    const list = current.slice(0, Math.max(start.length, current.lastIndexOf(',') + 1));
    return offer((option.completion ?? []).map((word) => list + word));
  }
  if (isOption) {
    const [word] = positionals;
    const command = findCommand(verbs, word ?? '');
    const isTaken = ([name]: NamedOption): boolean => {
      if (command?.lacks?.includes(name) === true) return false;
      const isCommon = !verbs.some(({ options: own = {} }) => name in own);
      return word === undefined || isCommon || Object.hasOwn(command?.options ?? {}, name);
    };
    return offer(options.filter(isTaken).flatMap(([name, { short, help: what }]) => {
      return [...short === undefined ? [] : [`-${short}\t${what}`], `--${name}\t${what}`];
    }));
  }
  return offerArguments(verbs, positionals, values as Sources, current, offer);
}

/** Offers commands of control-client, or what follows one. */
async function offerArguments(
  verbs: readonly Verb[],
  [word, name, ...others]: string[],
  values: Sources,
  current: string,
  offer: (words: readonly string[]) => void,
): Promise<void> {
  if (word === undefined) return offer(verbs.map((command) => `${command.name}\t${command.help}`));
  const command = findCommand(verbs, word);
  if (command === undefined) return;
  if (name === undefined && command.argument !== undefined) offer(command.argument.values ?? []);
  else if (!command.isLocal) {
    const ended = command.name === 'log' ? logsOfUser().map(nameOf).filter((logged) => /^\w[\w.-]*$/.test(logged)) : [];
    offer([...new Set([...await completeName(current, values), ...ended])]);
  }
  if (command.name !== 'run' && command.name !== 'answer') return;
  const isFirst = command.name === 'run' || isQuestionId(name ?? ''); // otherwise, the first word may be a target
  const after = name === undefined || isFirst ? others : [name, ...others];
  const targetWords = after.filter((other) => !isArgument(other));
  const { targets } = await select(targetWords, { ...values, timeoutMs: COMPLETION_MS }, 'all');
  const reply = targets.length === 1 ? await targets[0]?.client.request('info') : undefined;
  const typed = [...name !== undefined && isFirst ? [name] : [], ...after.filter(isArgument), current];
  if (command.name === 'run') offer(completionsOf(acceptedBy(reply?.body ?? {}), typed));
  else if (reply?.ok === true) offer(completeAnswer(questionsIn(reply.body), typed, false));
}
