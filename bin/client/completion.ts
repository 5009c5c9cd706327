// control-client completion: the scripts with which bash, zsh and fish ask complete.ts what may come next.

import { listOf } from '../shared/cli.ts';
import { parseChoice, type Verb, verb } from './verb.ts';

/** The scripts pass it with the line before the cursor. */
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
