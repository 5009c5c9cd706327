// control-client completion: generates a completion script for a shell from the tables of the help. To install it, add
// one line:
//
//   bash   eval "$(control-client completion bash)"    to ~/.bashrc
//   zsh    eval "$(control-client completion zsh)"     to ~/.zshrc, after compinit
//   fish   control-client completion fish | source     to ~/.config/fish/config.fish
//
// Each script finds the command among the words before the cursor, and skips the values of options. For targets, and
// after `run`, it passes the line to control-client, which scans the folder and asks the live system. For the other
// tools, the script parses their --help.

import { commandsFor, ownersOf, wordsOf } from '../shared/words/commands.ts';
import { withCommon } from '../shared/line/options.ts';
import type { Command, Shell } from '../shared/words/commands.ts';
import type { NamedOption, Option, Options } from '../shared/line/options.ts';

/** The hidden command that prints completions from live systems; its argument is the unfinished line. */
export const LIVE = '__complete';

const OTHERS = 'control-board control-console control-demo control-kbctl control-mcp control-run';

type Completion = Option['completion'];

const COMMANDS = commandsFor('client');

/** Returns the script for a shell. */
export function completionFor(shell: Shell, options: Options): string {
  return { bash, zsh, fish }[shell](withCommon(options)).trim();
}

function takesTargets({ isLocal, takesNoTargets }: Command): boolean {
  return isLocal !== true && takesNoTargets !== true;
}

/** Whether only the live system knows the values of the argument. */
function isLive({ argument }: Command): boolean {
  return argument !== undefined && argument.values === undefined;
}

function isCommon([name]: NamedOption): boolean {
  return ownersOf(name).length === 0;
}

function flagsOf([name, { short }]: NamedOption): string[] {
  return short === undefined ? [`--${name}`] : [`-${short}`, `--${name}`];
}

/** The flags that take a value. */
function valuedFlags(options: NamedOption[]): string[] {
  return options.filter(([, { type }]) => type === 'string').flatMap(flagsOf);
}

function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A shell command that prints the names of systems that begin with the value of a shell variable. */
function namesFor(variable: string): string {
  return `control-client ${LIVE} "control-client status $${variable}" 2>/dev/null </dev/null`;
}

/** A pattern for commands, in bash and zsh. */
function patternOf(...commands: Command[]): string {
  return commands.flatMap(wordsOf).map(quote).join('|');
}

function bash(options: NamedOption[]): string {
  const fallback = `{ IFS=$'\\n'; COMPREPLY=($(compgen -f -- "$current")); }`; // bash 3.2 of macOS has no compopt
  const files = `compopt -o default 2>/dev/null || ${fallback}`;
  const offer = (completion: Completion): string => {
    if (completion === undefined) return ':';
    if (completion === 'hosts') return 'COMPREPLY=($(compgen -A hostname -- "$current"))';
    return completion === 'files' ? files : `words=${quote(completion.join(' '))}`;
  };
  const own = options.filter((option) => !isCommon(option)).map(([name]) => {
    return `case $command in ''|${patternOf(...ownersOf(name))}) flags+=' --${name}' ;; esac`;
  });
  const offers = COMMANDS.map((command) => {
    const targets = takesTargets(command) ? 'live=1' : ':';
    const first = command.argument && (isLive(command) ? 'live=1' : offer(command.argument.values));
    return `${patternOf(command)}) ${first ? `if [[ $argument ]]; then ${targets}; else ${first}; fi` : targets} ;;`;
  });
  const values = options.map(([name, { completion }]) => `--${name}) ${offer(completion)} ;;`);
  return `
_control_client() {
  local current=\${COMP_WORDS[COMP_CWORD]} line=\${COMP_LINE:0:COMP_POINT} IFS=$' \\t\\n'
  local command= argument= option= word words= live= start
  local flags='${options.filter(isCommon).flatMap(flagsOf).join(' ')}'
  for word in "\${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    if [[ $word == [@:=]* ]]; then option=\${option:-$word} # bash splits words here; the rest of the value follows
    elif [[ $option ]]; then option=
    else
      case $word in
        ${valuedFlags(options).join('|')}) option=$word ;;
        -*) ;;
        *) if [[ $command ]]; then argument=$word; else command=$word; fi ;;
      esac
    fi
  done
  [[ $current == [@:=]* ]] && option=\${option:-$current} current=
  ${own.join('\n  ')}
  COMPREPLY=()
  case \${option:-$command} in
    '') ${offer(COMMANDS.map(({ name }) => name))} ;;
    ${[...offers, ...values].join('\n    ')}
  esac
  [[ $command$option == run= ]] && live=1 # a value
  if [[ $live && $current != -* ]]; then
    words=$("$1" ${LIVE} "$line" 2>/dev/null </dev/null)
    start=\${line##*[[:space:]]} start=\${start%"$current"} # the start of the same word, which bash splits at =
    words=\${words//"$start"}
    [[ $words == *= ]] && compopt -o nospace 2>/dev/null
  fi
  [[ -z $option && $current == -* ]] && words=$flags
  [[ $words ]] && COMPREPLY+=($(compgen -P "\${current%"\${current##*,}"}" -W "$words" -- "\${current##*,}"))
}
complete -F _control_client control-client
_control_other() {
  local current=\${COMP_WORDS[COMP_CWORD]} tool=\${1##*/} IFS=$' \\t\\n'
  local option= flags= valued= line word words= index
  local form='^  (-., )?(--[a-z-]+)( [^ ]+)?( |$)'
  while IFS= read -r line; do
    [[ $line =~ $form ]] || continue
    flags+=" \${BASH_REMATCH[2]}"
    [[ \${BASH_REMATCH[3]} ]] && valued+=" \${BASH_REMATCH[2]} "
  done <<< "$("$1" --help 2>/dev/null </dev/null)"
  for ((index = 1; index < COMP_CWORD; index++)); do
    word=\${COMP_WORDS[index]}
    if [[ $word == [@:=]* ]]; then option=\${option:-$word}
    elif [[ $option ]]; then option=
    elif [[ $valued == *" $word "* ]]; then option=$word
    elif [[ $tool == control-run && ( $word == -- || $word != -* ) ]]; then break
    fi
  done
  [[ $current == [@:=]* ]] && option=\${option:-$current} current=
  COMPREPLY=()
  if [[ $option ]]; then :
  elif [[ $tool == control-run ]] && { ((index < COMP_CWORD)) || [[ $current != -* ]]; }; then
    [[ $word == -- ]] && ((index++))
    declare -F _command_offset >/dev/null && { _command_offset $index; return; } # of the package bash-completion
    ((index == COMP_CWORD)) && words=$(compgen -c -- "$current")
  elif [[ $current == -* ]]; then words=$flags
  elif [[ $tool =~ ^control-(board|console|kbctl)\$ ]]; then words=$(${namesFor('current')})
  fi
  if [[ $words ]]; then COMPREPLY=($(compgen -W "$words" -- "$current")); else ${files}; fi
}
complete -F _control_other ${OTHERS}
`;
}

function zsh(options: NamedOption[]): string {
  const escape = (text: string): string => text.replaceAll(/[\\:[\]]/g, '\\$&');
  const offer = (completion: Completion, value: string): string => {
    if (completion === undefined) return ' ';
    return Array.isArray(completion) ? `_values -s , ${value} ${completion.join(' ')}` : `_${completion}`;
  };
  const known = options.map((option) => {
    const [name, { value, help, completion }] = option;
    const [equals, offers] = value === undefined ? ['', ''] : ['=', `:${escape(value)}:${offer(completion, value)}`];
    const specs = flagsOf(option).map((flag) => quote(`${flag}${equals}[${escape(help)}]${offers}`));
    const condition = isCommon(option) ? '' : `[[ $command == (|${patternOf(...ownersOf(name))}) ]] && `;
    return `${condition}specs+=(${specs.join(' ')})`;
  });
  const offers = COMMANDS.map((command) => {
    const { argument } = command;
    const values = isLive(command) ? '_control_client_live' : `(${argument?.values?.join(' ')})`;
    const first = argument ? `'2:${argument.name}:${values}' ` : '';
    const others = takesTargets(command) ? `'*:TARGET:_control_client_live'` : '';
    return `${patternOf(command)}) specs+=(${first}${others}) ;;`;
  });
  return `
_control_client_live() {
  local -a found=(\${(f)"$($words[1] ${LIVE} "\${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null </dev/null)"})
  compadd -S '' -- \${(M)found:#*=}
  compadd -- \${found:#*=}
}
_control_client() {
  local word command option
  local -a specs=('1:command:{_describe command commands}') commands=(
    ${COMMANDS.map(({ name, help }) => quote(`${name}:${help}`)).join('\n    ')}
  )
  for word in $words[2,CURRENT-1]; do
    if [[ $option ]]; then option=
    elif [[ $word == (${valuedFlags(options).join('|')}) ]]; then option=$word
    elif [[ $word != -* ]]; then command=$word; break
    fi
  done
  ${known.join('\n  ')}
  case $command in
    ${offers.join('\n    ')}
  esac
  _arguments $specs
}
compdef _control_client control-client
_control_names() {
  compadd -- \${(f)"$(${namesFor('PREFIX')})"}
}
_control_other() {
  local line help="$($words[1] --help 2>/dev/null </dev/null)"
  local -a specs
  for line in \${(f)help//$'\\n'\${(l:20:)}( )#/  }; do # wrapped texts in one line
    [[ $line =~ '^  (-., )?(--[a-z-]+)( [^ ]+)?( +(.*))?$' ]] || continue
    specs+=("$match[2]\${match[3]:+=}[\${match[5]//(#m)[\\\\:\\[\\]]/\\\\$MATCH}]\${match[3]:+:value:_files}")
  done
  case $service in
    control-run) specs+=('(-)1:command:_command_names -e' '*::arguments:_normal') ;;
    control-board|control-console|control-kbctl) specs+=('*:TARGET:_control_names') ;;
  esac
  _arguments -S $specs
}
compdef _control_other ${OTHERS}
`;
}

function fish(options: NamedOption[]): string {
  const text = (plain: string): string => quote(plain.replaceAll('\\', '\\\\'));
  const after = (pattern: string): string => `-n '__control_client_after "${pattern}"'`;
  const anyOf = (...commands: Command[]): string => {
    return `(${commands.flatMap(wordsOf).map((word) => word.replaceAll(/[^\w-]/g, '[$&]')).join('|')})`;
  };
  const live = `control-client ${LIVE} (commandline -pc) 2>/dev/null </dev/null`;
  const commands = COMMANDS.flatMap((command) => {
    const { name, help, argument } = command;
    const targets = `${anyOf(command)}${argument ? ' .+' : '( .+)?'}`;
    return [
      `${after('')} -a ${name} -d ${text(help)}`,
      ...argument?.values ? [`${after(anyOf(command))} -a ${quote(argument.values.join(' '))}`] : [],
      ...isLive(command) ? [`${after(anyOf(command))} -a '(${live})'`] : [],
      ...takesTargets(command) ? [`${after(targets)} -a '(${live})'`] : [],
    ];
  });
  const offer = (completion: Completion): string => {
    if (completion === undefined) return '-x';
    if (completion === 'files') return '-rF';
    return `-xa '(${completion === 'hosts' ? '__fish_print_hostnames' : `__fish_append , ${completion.join(' ')}`})'`;
  };
  const known = options.map((option) => {
    const [name, { short, value, help, completion }] = option;
    const condition = isCommon(option) ? '' : `${after(`|${anyOf(...ownersOf(name))}( .+)?`)} `;
    const form = `${short === undefined ? '' : `-s ${short} `}-l ${name}`;
    return `${condition}${form} ${value === undefined ? '' : `${offer(completion)} `}-d ${text(help)}`;
  });
  return `
# Whether the words before the cursor, without options and their values, match a pattern.
function __control_client_after
    set -l words
    set -l option ''
    for word in (commandline -opc)[2..]
        if test -n "$option"
            set option ''
        else if contains -- $word ${valuedFlags(options).join(' ')}
            set option $word
        else if not string match -q -- '-*' $word
            set -a words $word
        end
    end
    string match -qr -- "^($argv)\\$" "$words"
end
${['-f', ...commands, ...known].map((line) => `complete -c control-client ${line}`).join('\n')}
function __control_other
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l tool (string replace -r '.*/' '' -- $words[1])
    set -l help ($words[1] --help 2>/dev/null </dev/null | string collect)
    set -l help (string replace -ra '\\n {20} *' '  ' -- $help) # wrapped texts in one line
    set -l valued (string replace -rf '^  (--[a-z-]+) \\S.*' '$1' -- $help)
    set -l option
    set -e words[1]
    while set -q words[1]
        if test -n "$option"
            set option
        else if contains -- $words[1] $valued
            set option $words[1]
        else if test $tool = control-run; and string match -qr -- '^(--$|[^-])' $words[1]
            break
        end
        set -e words[1]
    end
    if test -n "$option"
        __fish_complete_path $current
    else if test $tool = control-run; and begin; set -q words[1]; or not string match -q -- '-*' $current; end
        test "$words[1]" = --; and set -e words[1]
        complete -C (string join ' ' -- (string escape -- $words) $current)
    else if string match -q -- '-*' $current
        string replace -rf '^  (?:-., )?(--[a-z-]+)(?: \\S+)?(?: +(.*))?$' '$1'\\t'$2' -- $help
    else if contains $tool control-board control-console control-kbctl
        ${namesFor('current')}
    else
        __fish_complete_path $current
    end
end
for tool in ${OTHERS}
    complete -c $tool -f -a '(__control_other)'
end
`;
}
