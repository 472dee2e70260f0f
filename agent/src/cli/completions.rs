//! Completions: the scripts that shells load, and the program's replies to them.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::{env, process};

use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use host::PROGRAM;

use super::as_called;

/// The variable by which a script calls this program; its value is the shell.
const VARIABLE: &str = "WEIR_COMPLETE";

/// Bash splits the line at `:` and `=` and replaces what follows the last of them. Words are split here, so that an IPv6
/// address or `--limit=NAME` is one.
const BASH: &str = r#"_weir_PROGRAM() {
    local line=${COMP_LINE:0:COMP_POINT} words reply
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local current=${words[${#words[@]} - 1]} kept=
    [[ $current == *[:=]* ]] && kept=${current%"${current##*[:=]}"}
    local IFS=$'\013'
    COMPREPLY=()
    for reply in $(
        _CLAP_IFS="$IFS" _CLAP_COMPLETE_INDEX=$((${#words[@]} - 1)) VARIABLE=bash PROGRAM -- "${words[@]}" 2> /dev/null
    ); do
        [[ $reply == *[^a-zA-Z0-9_./:=@%+,-]* ]] && printf -v reply %q "$reply"
        COMPREPLY+=("${reply#"$kept"}")
    done
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=/] ]] && compopt -o nospace 2> /dev/null
    return 0
}
complete -o nosort -F _weir_PROGRAM PROGRAM 2> /dev/null || complete -F _weir_PROGRAM PROGRAM
"#;
/// Follows the script for zsh: loaded from `fpath`, the file is the function of the first completion.
const ZSH: &str = r#"if [[ ${funcstack[1]} == _PROGRAM ]]; then
    _clap_dynamic_completer_PROGRAM "$@"
fi
"#;

/// Prints a shell's script.
pub fn script(shell: Shell) -> anyhow::Result<ExitCode> {
    let name = PROGRAM.name();
    let ours = |text: &str| {
        text.replace("PROGRAM", name)
            .replace("VARIABLE", VARIABLE)
            .into_bytes()
    };
    let script = match shell {
        Shell::Bash => ours(BASH),
        _ => {
            let mut script = Vec::new();
            let shells = Shells::builtins();
            let completer = shells.completer(&shell.to_string());
            let completer = completer.ok_or_else(|| anyhow::anyhow!("no script for {shell}"))?;
            completer.write_registration(VARIABLE, name, name, name, &mut script)?;
            if shell == Shell::Zsh {
                script.extend(ours(ZSH));
            }
            script
        }
    };
    io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the candidates and exits if a script calls the program; errors are silent, since a user is typing.
pub fn complete_for_a_script() {
    let here = env::current_dir().ok();
    let completion = CompleteEnv::with_factory(as_called::command).var(VARIABLE);
    match completion.try_complete(env::args_os(), here.as_deref()) {
        Ok(false) => {}
        Ok(true) => process::exit(0),
        Err(_) => process::exit(1),
    }
}
